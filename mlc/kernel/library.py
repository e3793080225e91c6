"""Which kernels are functions of mlc's library: compiled once a machine, with sizes as arguments, instead of once a program.

LLVM takes a quarter longer for a function whose sizes are arguments, so it has to be one that others ask for too: a contraction,
attention, or a reduction of rows, on f32 or f64. Such functions differ in their register tile or lanes, in what is left over at the edges, and
in what is computed beside. They run as fast as with constants (128 cubed and 256 cubed within 0.8%); small products, whose loops have few
iterations, would not (64 cubed: 1.5%), and stay with the program, unless something in it is larger and all of it can come from the library:
then LLVM need not be loaded for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlc.core import dtype as dt
from mlc.kernel.ir import Dot, Kernel, Stage
from mlc.kernel.schedule import Schedule

# Multiplications of a product, and of a row with a matrix, up to which sizes are constants.
SMALL, SMALL_STREAM = 64 ** 3, 32 ** 3
# A tile of fewer rows has few multiplications to hide what addresses cost (48 columns of packed weights: 5%).
ROWS = 4


def in_library(kernel: Kernel, schedule: Schedule) -> bool:
    """Whether the kernel's code comes from the library, whatever else there is in its program."""
    if not _could_be(kernel, schedule):
        return False
    (stage, *_), (plan, *_) = kernel.stages, schedule.stages
    if isinstance(stage, Stage):
        return bool(kernel.rows)
    if isinstance(stage, Dot) and plan.m < ROWS and not plan.stream:
        return False
    return _work(kernel) > (SMALL_STREAM if isinstance(stage, Dot) and plan.stream else SMALL)


def whole_in_library(kernels: Sequence[tuple[Kernel, Schedule]]) -> bool:
    """Whether all kernels of a program come from there: those that do anyway, and what is small beside something larger than
    `SMALL_STREAM`. (Where all are small, they stay with the program: three products of an MLP take 1.4 us, and with sizes as arguments 1.55.)"""
    large = (_work(kernel) > SMALL_STREAM for kernel, _ in kernels if not isinstance(kernel.stages[0], Stage))
    return len(kernels) > 1 and all(_could_be(*each) for each in kernels) and any(large)


def _work(kernel: Kernel) -> int:
    """Multiplications of a product."""
    return prod(extent for _, extent in (*kernel.rows, *kernel.stages[0].axes))


def _could_be(kernel: Kernel, schedule: Schedule) -> bool:
    """Whether there is code of the kernel that others may ask for. Stores past the caches need alignment that sizes prove."""
    if schedule.streams or any(p.type.dtype not in (dt.f32, dt.f64) for p in kernel.params):
        return False
    (stage, *more), (plan, *_) = kernel.stages, schedule.stages
    if isinstance(stage, Stage):
        return all(isinstance(s, Stage) for s in more) and any(s.reduces for s in kernel.stages)
    if more or (isinstance(stage, Dot) and plan.parts):
        return False
    operands = (stage.a, stage.b) if isinstance(stage, Dot) else (stage.query, stage.key, stage.value)
    return all(e.op == "load" for e in operands)
