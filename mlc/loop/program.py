"""A whole program at the loop level: lowered kernels, and their execution by the loop interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlc.kernel.ir import Kernel, KernelGraph
from mlc.kernel.schedule import Schedule
from mlc.loop.interp import run
from mlc.loop.ir import LoopKernel
from mlc.loop.lower import lower


def lower_program(program: KernelGraph, schedules: Mapping[Kernel, Schedule]) -> dict[Kernel, LoopKernel]:
    """The loops of each distinct kernel."""
    return {kernel: lower(kernel, schedules[kernel]) for kernel in program.kernels()}


def run_program(program: KernelGraph, loops: Mapping[Kernel, LoopKernel], args: Sequence[np.ndarray],
                constants: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The program's outputs by the loop interpreter, one kernel after another."""
    memory: dict[str, np.ndarray] = {}
    for name, value in zip(program.inputs, args, strict=True):
        memory[name] = np.ascontiguousarray(value).reshape(-1)
    memory.update((name, np.ascontiguousarray(v).reshape(-1)) for name, v in constants.items())
    for step in program.steps:
        for name in step.writes():
            type = program.values[name].type
            memory.setdefault(name, np.zeros(type.size, type.dtype.numpy))
        kernel = loops[step.kernel]
        bound = dict(zip((b.name for b in kernel.buffers), (memory[a] for a in step.args)))
        bound.update((b.name, np.zeros(b.size, b.dtype.numpy)) for b in kernel.buffers if b.role == "scratch")
        run(kernel, bound)
    return [memory[o].reshape(program.values[o].type.shape) for o in program.outputs]
