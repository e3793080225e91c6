"""A whole program at the loop level: lowered kernels, and their execution by the loop interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlc.core.dataclass import replace
from mlc.kernel.interp import execute_steps
from mlc.kernel.ir import Kernel, KernelGraph
from mlc.kernel.library import whole_in_library
from mlc.kernel.schedule import Schedule
from mlc.loop.interp import run
from mlc.loop.ir import LoopKernel
from mlc.loop.lower import lower


def lower_program(program: KernelGraph, schedules: Mapping[Kernel, Schedule]) -> dict[Kernel, LoopKernel]:
    """The loops of each distinct kernel."""
    found = {kernel: lower(kernel, schedules[kernel]) for kernel in program.kernels()}
    if whole_in_library([(kernel, schedules[kernel]) for kernel in found]):
        found = {kernel: replace(loops, library=True) for kernel, loops in found.items()}
    return found


def run_program(program: KernelGraph, loops: Mapping[Kernel, LoopKernel], args: Sequence[np.ndarray],
                constants: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The program's outputs by the loop interpreter, one kernel after another."""
    return execute_steps(program, args, constants, lambda kernel, bound: run(loops[kernel], bound))
