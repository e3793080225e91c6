"""What a kernel costs by its own loops: floating-point (or integer) operations, and bytes it reads and writes once."""

from __future__ import annotations

import math

from mlc.core import expr as ex
from mlc.core.dataclass import dataclass
from mlc.kernel.axes import stage_parts
from mlc.kernel.ir import Attend, Dot, Kernel, KernelGraph, Stage

# Rough single-core rates (AVX2, second-level cache), only used to tell work of microseconds from long work: up to three times too slow.
_FLOPS_PER_SECOND, _BYTES_PER_SECOND = 100e9, 60e9


@dataclass(frozen=True)
class Cost:
    flops: int
    bytes_accessed: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes_accessed + other.bytes_accessed)

    @property
    def seconds(self) -> float:
        """A rough estimate, for choosing between ways to call and to run."""
        return self.flops / _FLOPS_PER_SECOND + self.bytes_accessed / _BYTES_PER_SECOND


# Instructions that are more than one operation; of a power few bits of the exponent.
_OPERATIONS = {"fma": 2, "pow": 20}


def _weight(exprs) -> int:
    return sum(_OPERATIONS.get(e.op, 1) for e in ex.topological(exprs, rare=False) if e.args)


def _flops(stage: Stage | Dot | Attend) -> int:
    """Operations of a stage in one row."""
    if isinstance(stage, Attend):
        (_, queries), (_, keys), (_, depth), (_, columns) = stage.axes
        scores = queries * keys * (2 * depth + 2 * columns + _weight([stage.score]) + _weight([stage.weight]) + 4)
        return scores + queries * columns * (1 + _weight([p.value for p in stage.puts]))
    if isinstance(stage, Dot):
        return stage.m[1] * stage.n[1] * (2 * stage.k[1] + _weight([p.value for p in stage.puts]))
    kept, over = math.prod(e for _, e in stage.axes), math.prod(e for _, e in stage.over)
    inner = _weight([v for r in stage.reduces for v in (*r.values, *r.combine)] + [p.value for p in stage.puts])
    return kept * (over * inner + _weight([f.value for f in stage.finish]))


def stage_cost(kernel: Kernel, stage: Stage | Dot | Attend) -> Cost:
    """What one of the kernel's stages costs over all rows; of a buffer no more than the stage has points counts, or its product terms."""
    rows = math.prod(e for _, e in kernel.rows)
    exprs, puts = stage_parts(stage)
    names = {e.attr[0] for e in ex.topological(exprs) if e.op == "load"} | {put.target for put in puts}
    points = rows * math.prod(e for _, e in (*stage.axes, *getattr(stage, "over", ()))) if not isinstance(stage, Dot) else None
    sizes = [(p.type.nbytes * (rows if p.role == "scratch" else 1), p.type.dtype.itemsize) for p in kernel.params if p.name in names]
    return Cost(rows * _flops(stage), sum(size if points is None else min(size, points * item) for size, item in sizes))


def kernel_cost(kernel: Kernel) -> Cost:
    """Operations counted from the stages, bytes from the buffers."""
    rows = math.prod(e for _, e in kernel.rows)
    return Cost(rows * sum(map(_flops, kernel.stages)), sum(p.type.nbytes for p in kernel.params if p.role != "scratch"))


def program_cost(program: KernelGraph) -> Cost:
    """The sum over the program's steps."""
    each = {kernel: kernel_cost(kernel) for kernel in program.kernels()}
    return sum((each[step.kernel] for step in program.steps), Cost(0, 0))
