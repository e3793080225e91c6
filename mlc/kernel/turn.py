"""Left operands that lie across are copied before the contraction, row by row, where reading them as they lie takes longer.

    dot m:1024 n:1024 k:1024 { a: %x[m + 1024*k] .. }
 -> stage j0:1024 j1:1024 { %sa[1024*j0 + j1] = %x[j0 + 1024*j1] } ; dot m:1024 n:1024 k:1024 { a: %sa[1024*m + k] .. }

Each step of k then reads the next element, not one of another line or page: every panel of columns passes all rows again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.core.expr import Expr, make
from mlc.kernel.axes import rebase, renaming
from mlc.kernel.ir import Axis, Dot, Kernel, KernelGraph, Param, Put, Stage, Step
from mlc.kernel.tiling import L1_BYTES, LINE

# An operand of so many bytes, with each step of k on a page of its own, where so many columns read it.
PAGE, FAR_BYTES, FAR_COLUMNS = 4096, 1 << 20, 256
# Narrow vectors read a line more often: each step on a line of its own, of an operand of so many bytes, with so many panels of columns.
NARROW_BYTES = 1 << 18


def row_major(axes: Sequence[Axis]) -> Affine:
    """The index of an element in contiguous memory over these axes."""
    total, stride = Affine(), 1
    for name, extent in reversed(axes):
        total, stride = total + Affine(0, ((name, stride),)), stride * extent
    return total


def copied(operand: Expr, axes: Sequence[Axis], scratch_name: str) -> tuple[Stage, Expr, TensorType]:
    """A stage that copies the operand into contiguous scratch over `axes`, the load that replaces it, and the scratch's type."""
    names = {name: f"j{p}" for p, (name, _) in enumerate(axes)}
    (value,) = rebase([operand], renaming(names))
    local = tuple((names[name], extent) for name, extent in axes)
    stage = Stage(local, (), (), (Put(scratch_name, row_major(local), value),))
    load = make("load", operand.dtype, (), (scratch_name, row_major(axes)))
    return stage, load, TensorType([math.prod(e for _, e in axes)], operand.dtype)


def turns(dot: Dot, vector_bytes: int) -> bool:
    """Whether the left operand had better be copied."""
    (_, rows), (_, columns), (name, depth) = dot.axes
    size = rows * depth * dot.a.dtype.itemsize
    steps = [abs(e.attr[1].coefficient(name)) * e.dtype.itemsize for e in ex.topological([dot.a]) if e.op == "load"]
    if columns < FAR_COLUMNS or not steps:
        return False
    if size >= FAR_BYTES and max(steps) >= PAGE:
        return True
    narrow = vector_bytes < LINE and dot.a.op == "load" and dot.dtype.is_float
    return narrow and size >= NARROW_BYTES and max(steps) >= LINE and depth * LINE > L1_BYTES // 2


def turn_kernel(kernel: Kernel, vector_bytes: int) -> Kernel:
    """The kernel with left operands copied where that is worth it; itself where none is."""
    stages, params = [], list(kernel.params)
    for stage in kernel.stages:
        if isinstance(stage, Dot) and turns(stage, vector_bytes):
            scratch = f"s{sum(p.role == 'scratch' for p in params)}"
            first, load, type = copied(stage.a, (stage.m, stage.k), scratch)
            stages.append(first)
            stage = replace(stage, a=load)
            params.append(Param(scratch, type, "scratch"))
        stages.append(stage)
    return replace(kernel, stages=tuple(stages), params=tuple(params)) if len(stages) > len(kernel.stages) else kernel


def turn_left(program: KernelGraph, vector_bytes: int) -> KernelGraph:
    """The program with left operands of contractions copied where that is worth it, for a target with such vectors."""
    done = {kernel: turn_kernel(kernel, vector_bytes) for kernel in program.kernels()}
    steps = [Step(done[step.kernel], step.args) for step in program.steps]
    return replace(program, steps=steps) if any(done[k] is not k for k in done) else program
