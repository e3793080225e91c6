"""Which kernels are functions of mlc's library: compiled once a machine, with sizes as arguments, instead of once a program.

LLVM takes a quarter longer for a function whose sizes are arguments, so it has to be one that others ask for too: a contraction, or
attention, on floats, with little after it. Such functions differ in their register tile, in what is left over at the edges, and in the few
instructions that follow. They run as fast as with constants (128 cubed and 256 cubed within 0.8%); small products, whose loops have few
iterations, would not (64 cubed: 1.5%), and stay with the program.
"""

from __future__ import annotations

from math import prod

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.kernel.ir import Attend, Dot, Kernel
from mlc.kernel.schedule import Schedule
from mlc.kernel.tiling import LIGHT_EPILOGUE

# Multiplications of a product, and of a row with a matrix, up to which sizes are constants.
SMALL, SMALL_STREAM = 64 ** 3, 32 ** 3
# A tile of fewer rows has few multiplications to hide what addresses cost (48 columns of packed weights: 5%).
ROWS = 4


def in_library(kernel: Kernel, schedule: Schedule) -> bool:
    """Whether the kernel's code comes from the library. Stores past the caches need alignment that sizes prove."""
    if len(kernel.stages) != 1 or schedule.streams:
        return False
    (stage,), (plan,) = kernel.stages, schedule.stages
    if not isinstance(stage, (Attend, Dot)) or stage.dtype not in (dt.f32, dt.f64):
        return False
    if isinstance(stage, Dot) and (plan.parts or (plan.m < ROWS and not plan.stream)):
        return False
    operands = (stage.a, stage.b) if isinstance(stage, Dot) else (stage.query, stage.key, stage.value)
    work = prod(extent for _, extent in (*kernel.rows, *stage.axes))
    small = SMALL_STREAM if isinstance(stage, Dot) and plan.stream else SMALL
    if work <= small or any(e.op != "load" for e in operands):
        return False
    following = [p.value for p in stage.puts] + ([stage.score] if isinstance(stage, Attend) else [])
    return sum(1 for e in ex.topological(following) if e.args) <= LIGHT_EPILOGUE
