"""A whole program at the loop level: lowered kernels, and their execution by the loop interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlc.kernel.interp import execute_steps
from mlc.kernel.ir import Kernel, KernelGraph
from mlc.kernel.library import whole_in_library
from mlc.kernel.schedule import Schedule
from mlc.loop.interp import run
from mlc.loop.ir import LoopKernel
from mlc.loop.lower import lower


def lower_program(program: KernelGraph, schedules: Mapping[Kernel, Schedule]) -> dict[Kernel, LoopKernel]:
    """The loops of each distinct kernel."""
    whole = whole_in_library([(kernel, schedules[kernel]) for kernel in program.kernels()]) or None
    return {kernel: lower(kernel, schedules[kernel], whole) for kernel in program.kernels()}


def run_program(program: KernelGraph, loops: Mapping[Kernel, LoopKernel], args: Sequence[np.ndarray],
                constants: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The program's outputs by the loop interpreter, one kernel after another."""
    return execute_steps(program, args, constants, lambda kernel, bound: run(loops[kernel], bound))
