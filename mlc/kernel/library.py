"""Which kernels are functions of mlc's library: compiled once a machine, with sizes as arguments, instead of once a program.

LLVM takes a quarter longer for a function whose sizes are arguments, so it has to be one that others ask for too: a contraction,
attention, or a reduction of rows, on f32 or f64. Such functions differ in their register tile or lanes, in what is left over at the edges, and
in what is computed beside. They run as fast as with constants (128 cubed and 256 cubed within 0.8%); small products, whose loops have few
iterations, would not (64 cubed: 1.5%), and stay with the program.
"""

from __future__ import annotations

from math import prod

from mlc.core import dtype as dt
from mlc.kernel.ir import Dot, Kernel, Stage
from mlc.kernel.schedule import Schedule

# Multiplications of a product, and of a row with a matrix, up to which sizes are constants.
SMALL, SMALL_STREAM = 64 ** 3, 32 ** 3
# A tile of fewer rows has few multiplications to hide what addresses cost (48 columns of packed weights: 5%).
ROWS = 4


def in_library(kernel: Kernel, schedule: Schedule) -> bool:
    """Whether the kernel's code comes from the library. Stores past the caches need alignment that sizes prove."""
    if schedule.streams or any(p.type.dtype not in (dt.f32, dt.f64) for p in kernel.params):
        return False
    (stage, *more), (plan, *_) = kernel.stages, schedule.stages
    if isinstance(stage, Stage):
        return bool(kernel.rows) and all(isinstance(s, Stage) for s in more) and any(s.reduces for s in kernel.stages)
    if more or (isinstance(stage, Dot) and (plan.parts or (plan.m < ROWS and not plan.stream))):
        return False
    operands = (stage.a, stage.b) if isinstance(stage, Dot) else (stage.query, stage.key, stage.value)
    work = prod(extent for _, extent in (*kernel.rows, *stage.axes))
    return work > (SMALL_STREAM if isinstance(stage, Dot) and plan.stream else SMALL) and all(e.op == "load" for e in operands)
