"""What a kernel costs by its own loops: floating-point (or integer) operations, and bytes it reads and writes once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlc.core import expr as ex
from mlc.kernel.ir import Attend, Dot, Kernel, KernelGraph

# Rough single-core rates, only used to tell calls of microseconds from long ones.
_FLOPS_PER_SECOND, _BYTES_PER_SECOND = 20e9, 10e9


@dataclass(frozen=True)
class Cost:
    flops: int
    bytes_accessed: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes_accessed + other.bytes_accessed)

    @property
    def seconds(self) -> float:
        """A rough estimate, for choosing between ways to call."""
        return self.flops / _FLOPS_PER_SECOND + self.bytes_accessed / _BYTES_PER_SECOND


def _weight(exprs) -> int:
    return sum(2 if e.op == "fma" else 1 for e in ex.topological(exprs) if e.args)


def kernel_cost(kernel: Kernel) -> Cost:
    """Operations counted from the stages, bytes from the buffers."""
    rows = math.prod(e for _, e in kernel.rows)
    flops = 0
    for stage in kernel.stages:
        if isinstance(stage, Attend):
            (_, queries), (_, keys), (_, depth), (_, columns) = stage.axes
            scores = queries * keys * (2 * depth + 2 * columns + _weight([stage.score]) + _weight([stage.weight]) + 4)
            flops += rows * (scores + queries * columns * (1 + _weight([p.value for p in stage.puts])))
            continue
        if isinstance(stage, Dot):
            kept = stage.m[1] * stage.n[1]
            flops += rows * kept * (2 * stage.k[1] + _weight([p.value for p in stage.puts]))
            continue
        kept, over = math.prod(e for _, e in stage.axes), math.prod(e for _, e in stage.over)
        inner = _weight([v for r in stage.reduces for v in (*r.values, *r.combine)] + [p.value for p in stage.puts])
        flops += rows * kept * (over * inner + _weight([f.value for f in stage.finish]))
    return Cost(flops, sum(p.type.nbytes for p in kernel.params if p.role != "scratch"))


def program_cost(program: KernelGraph) -> Cost:
    """The sum over the program's steps."""
    return sum((kernel_cost(step.kernel) for step in program.steps), Cost(0, 0))
