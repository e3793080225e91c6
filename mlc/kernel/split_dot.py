"""Deep contractions with a small result in two kernels: sums of blocks of k, then the sum of those.

    dot m:16 n:16 k:100000 then { .. }     rows kb:50 { dot m:16 n:16 k:2000 then { %p[256*kb + ..] = .. } }
                                       ->  stage m:16 n:16 over kb:50 { reduce %p[256*kb + ..] } then { .. }

Threads share the blocks, a block of both operands stays in cache, and what is copied is a block. A block is some of the partial sums that
the contraction has anyway (`tiling.dot_chunk`). What is left of the last block has a kernel of its own.
"""

from __future__ import annotations

import math

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.kernel.axes import rebase, stage_parts
from mlc.kernel.cost import stage_cost
from mlc.kernel.ir import Axis, Dot, Kernel, KernelGraph, Param, Put, Reduce, Stage, Step, Value
from mlc.kernel.parallel import BLOCKS, split_seconds
from mlc.kernel.tiling import dot_chunk, streams

# A result of more elements has enough to share out, and shallower sums too little to split.
MOST_KEPT, LEAST_CHUNKS, LEAST_RATIO = 1 << 14, 4, 8
# Partial sums are at most this part of the operands.
SMALL = 16
# A row times a matrix from L3 or memory: whole rows of the matrix stream better than pieces of columns. In how many blocks from how many bytes on,
# and up to how many columns: so that two blocks are not cut further, and their sums take little memory. One thread gains, too (pages are visited
# once), so the option `fork_us` has no say here.
STREAMED_BLOCKS = ((8, 16 << 20, MOST_KEPT), (2, 2 << 20, 1024))


def _streamed_block(dot: Dot) -> int:
    """Steps of k in a block of a row times a matrix."""
    (_, columns), (_, depth) = dot.n, dot.k
    for blocks, nbytes, most in STREAMED_BLOCKS:
        if columns * depth * dot.b.dtype.itemsize >= nbytes and columns <= most:
            return depth // blocks if depth % blocks == 0 and blocks * columns * SMALL <= columns * depth else 0
    return 0


def block_of(kernel: Kernel, constant: bool = False) -> int:
    """Steps of k in a block; 0: the kernel is not split. `constant`: its right operand is one, which is stored in the order of its tiles."""
    if kernel.rows or len(kernel.stages) != 1 or not isinstance(kernel.stages[0], Dot):
        return 0
    (dot,) = kernel.stages
    (_, rows), (_, columns), (_, depth) = dot.axes
    if streams(dot) and not constant and (block := _streamed_block(dot)):
        return block
    chunk = dot_chunk(depth)
    chunks = -(-depth // max(1, chunk))
    if dot.panels or chunks < LEAST_CHUNKS or not 0 < rows * columns <= MOST_KEPT or depth < LEAST_RATIO * max(rows, columns):
        return 0
    blocks = max(LEAST_CHUNKS, min(BLOCKS, (rows + columns) * depth // (SMALL * rows * columns)))
    return chunk * -(-chunks // blocks) if stage_cost(kernel, dot).seconds >= split_seconds() else 0


def _used(kernel: Kernel, stage: Stage | Dot) -> tuple[Param, ...]:
    """The kernel's parameters that a stage reads or writes."""
    exprs, puts = stage_parts(stage)
    names = {e.attr[0] for e in ex.topological(exprs) if e.op == "load"} | {put.target for put in puts}
    return tuple(p for p in kernel.params if p.name in names)


def _free(kernel: Kernel, letter: str) -> str:
    taken = {p.name for p in kernel.params} | {name for name, _ in kernel.stages[0].axes}
    return next(name for name in (f"{letter}{k}" for k in range(len(taken) + 1)) if name not in taken)


def _part(kernel: Kernel, dot: Dot, name: str, target: str, start: Affine, steps: int, rows: tuple[Axis, ...], index: Affine) -> Kernel:
    """The kernel of the sums of some steps of k, one row a block."""
    a, b = rebase([dot.a, dot.b], {dot.k[0]: start + Affine(0, ((dot.k[0], 1),))})
    stage = replace(dot, k=(dot.k[0], steps), a=a, b=b, puts=(Put(target, index, ex.var(dot.name, dot.dtype)),))
    size = math.prod(extent for _, extent in rows) * dot.m[1] * dot.n[1]
    return Kernel(name, (*_used(kernel, stage), Param(target, TensorType((size,), dot.dtype), "out")), rows, (stage,))


def split_dot(kernel: Kernel, block: int) -> tuple[list[Kernel], Kernel, list[str]]:
    """Kernels of partial sums, the kernel that adds them up, and the parameters by which they hand them over."""
    (dot,) = kernel.stages
    (m, rows), (n, columns), (_, depth) = dot.axes
    blocks, rest = divmod(depth, block)
    kept, place = rows * columns, Affine(0, ((m, columns), (n, 1)))
    outer, sums, left = _free(kernel, "kb"), _free(kernel, "p"), _free(kernel, "q")
    over = ((outer, blocks),)
    index = Affine(0, ((outer, kept),)) + place
    parts = [_part(kernel, dot, f"{kernel.name}_blocks", sums, Affine(0, ((outer, block),)), block, over, index)]
    buffers = [sums]
    acc = total = ex.var(dot.name, dot.dtype)
    if rest:
        parts.append(_part(kernel, dot, f"{kernel.name}_rest", left, Affine(blocks * block), rest, (), place))
        buffers.append(left)
        total = ex.make("add", dot.dtype, (acc, ex.make("load", dot.dtype, (), (left, place))))
    values = ex.replace([p.value for p in dot.puts], {acc: total})
    added = ex.make("add", dot.dtype, (ex.var("a.0", dot.dtype), ex.var("b.0", dot.dtype)))
    reduce = Reduce((dot.name,), (dot.dtype,), (ex.const(0, dot.dtype),), (ex.make("load", dot.dtype, (), (sums, index)),), (added,))
    stage = Stage((dot.m, dot.n), over, (reduce,), (), tuple(Put(p.target, p.index, value) for p, value in zip(dot.puts, values)))
    own = [replace(part.params[-1], role="in") for part in parts]
    return parts, Kernel(f"{kernel.name}_sum", (*own, *_used(kernel, stage)), (), (stage,)), buffers


def _right_is_constant(program: KernelGraph, step: Step) -> bool:
    """Whether a step's contraction reads a constant as its right operand. What else is constant (a bias, the left operand) must not change the order
    of its sums."""
    read = {e.attr[0] for e in ex.topological([s.b for s in step.kernel.stages if isinstance(s, Dot)]) if e.op == "load"}
    params = [p.name for p in step.kernel.params if p.role != "scratch"]
    return any(program.values[name].role == "constant" for param, name in zip(params, step.args) if param in read)


def split_contractions(program: KernelGraph) -> KernelGraph:
    """The program with deep contractions split where that is worth it."""
    done: dict[tuple[Kernel, bool], tuple | None] = {}
    ways = [(step.kernel, _right_is_constant(program, step)) for step in program.steps]
    for kernel, constant in ways:
        if (kernel, constant) not in done:
            block = block_of(kernel, constant)
            done[kernel, constant] = split_dot(kernel, block) if block else None
    if not any(done.values()):
        return program
    values, steps = dict(program.values), []
    for step, way in zip(program.steps, ways):
        if done[way] is None:
            steps.append(step)
            continue
        parts, last, buffers = done[way]
        bound = dict(zip((p.name for p in step.kernel.params), step.args))
        for part, buffer in zip(parts, buffers):
            bound[buffer] = name = _value_name(values, f"{step.writes()[0]}.{buffer[0]}")
            values[name] = Value(name, part.params[-1].type, "temp", program.values[step.writes()[0]].source)
        steps += [Step(kernel, tuple(bound[p.name] for p in kernel.params)) for kernel in (*parts, last)]
    return replace(program, values=values, steps=steps)


def _value_name(values: dict[str, Value], name: str) -> str:
    while name in values:
        name += "_"
    return name
