"""Long sums with few kept elements in two stages, so that threads can share them: partial sums of blocks, then the sum of those.

    stage over j0:1048576 { reduce .. }         stage j0.b:64 over j0:16384 { reduce .. } then { %s0[j0.b] = .. }
                                         ->     stage over j0.b:64 { reduce .. with %s0[j0.b] }

The blocks depend on the kernel and the option `fork_us` only, and the kernel says what is added to what: the same bits for any number
of threads, in the interpreters too. What is left of the last block is a partial sum of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.kernel.axes import place_axis
from mlc.kernel.cost import stage_cost
from mlc.kernel.ir import Kernel, KernelGraph, Param, Put, Reduce, Stage
from mlc.kernel.parallel import block_count, block_size, split_seconds

# So many elements make a block worth starting.
LEAST_BLOCK = 32
# From so many kept elements on, there are fewer partial sums of each (they take memory), of more elements; with less to sum, the kept
# elements are shared out themselves.
MANY_KEPT, FEW_BLOCKS = 512, 8


def _fresh(taken: set[str], letter: str) -> str:
    name = next(f"{letter}{k}" for k in range(len(taken) + 1) if f"{letter}{k}" not in taken)
    taken.add(name)
    return name


def _split_stage(stage: Stage, seconds: float, variables: set[str], buffers: set[str]) -> tuple[list[Stage], list[Param]] | None:
    """The stages that do the same in blocks and the scratch between them, or None where no axis can be cut."""
    axis, extent = next((a for a in stage.over if a[1] >= 2 * LEAST_BLOCK), max(stage.over, key=lambda a: a[1]))
    kept = math.prod(e for _, e in stage.axes)
    count = block_count(seconds)
    if kept >= MANY_KEPT:
        count = min(count, FEW_BLOCKS)
        if extent < 2 * LEAST_BLOCK * count:
            return None
    block = block_size(extent, count, LEAST_BLOCK if extent >= 2 * LEAST_BLOCK else 1)
    if block and extent % block and len(stage.over) > 1 and any(len(r.names) > 1 for r in stage.reduces):
        # Where all elements are the worst there are, loops in the order of positions leave none behind, others the first (`mlc.loop.positions`).
        # A rest may take its axes in another order, but all partial results have to be of one kind.
        block = next((extent // n for n in range(count, 1, -1) if extent % n == 0), 0)
    if not block:
        return None
    blocks, rest = divmod(extent, block)
    place, stride = Affine(), 1
    for name, size in reversed(stage.axes):
        place, stride = place + Affine(0, ((name, stride),)), stride * size
    params: list[Param] = []
    parts: list[Reduce] = []
    sums: list[Reduce] = []
    puts: list[tuple[str, ex.Expr]] = []
    outer = f"{axis}.b"
    for r in stage.reduces:
        names = tuple(_fresh(variables, "t") for _ in r.names)
        parts.append(replace(r, names=names))
        loads = []
        for name, dtype in zip(names, r.dtypes):
            buffer = _fresh(buffers, "s")
            params.append(Param(buffer, TensorType(((blocks + bool(rest)) * kept,), dtype), "scratch"))
            puts.append((buffer, ex.var(name, dtype)))
            loads.append(ex.make("load", dtype, (), (buffer, Affine(0, ((outer, kept),)) + place)))
        sums.append(replace(r, values=tuple(loads)))

    def partial(start: Affine, size: int, at: Affine, axes: tuple) -> Stage:
        moved = place_axis(replace(stage, reduces=tuple(parts), finish=()), axis, start, size)
        return replace(moved, axes=(*axes, *stage.axes), finish=tuple(Put(buffer, at + place, value) for buffer, value in puts))
    found = [partial(Affine(0, ((outer, block),)), block, Affine(0, ((outer, kept),)), ((outer, blocks),))]
    if rest:
        found.append(partial(Affine(blocks * block), rest, Affine(blocks * kept), ()))
    found.append(Stage(stage.axes, ((outer, blocks + bool(rest)),), tuple(sums), (), stage.finish))
    return found, params


def split_kernel(kernel: Kernel) -> Kernel:
    """The kernel with its long sums in blocks; itself if it has none, or has rows to share out."""
    stages: list = []
    params = list(kernel.params)
    variables = {name for s in kernel.stages for r in getattr(s, "reduces", ()) for name in r.names}
    variables |= {f.name for s in kernel.stages for f in getattr(s, "finish", ()) if not isinstance(f, Put)}
    variables |= {s.name for s in kernel.stages if not isinstance(s, Stage)}
    buffers = {p.name for p in params}
    for stage in kernel.stages:
        found = None
        if not kernel.rows and isinstance(stage, Stage) and stage.over and stage.reduces:
            seconds, kept = stage_cost(kernel, stage).seconds, math.prod(e for _, e in stage.axes)
            if seconds >= split_seconds() and kept and kept < 4 * math.prod(e for _, e in stage.over):
                found = _split_stage(stage, seconds, variables, buffers)
        stages += found[0] if found else [stage]
        params += found[1] if found else []
    return kernel if len(stages) == len(kernel.stages) else replace(kernel, stages=tuple(stages), params=tuple(params))


def split_program(program: KernelGraph, split: Callable[[Kernel], Kernel] = split_kernel) -> KernelGraph:
    """The program with each kernel split where that is worth it."""
    done = {kernel: split(kernel) for kernel in program.kernels()}
    return replace(program, steps=[replace(step, kernel=done[step.kernel]) for step in program.steps])
