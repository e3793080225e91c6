"""From a kernel graph to memory: lifetimes in step order, the arena plan, and the place of every kernel argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.kernel.ir import Kernel, KernelGraph, Step
from mlc.loop.ir import Buffer

Place = tuple[int, int]


def _align(n): return -(-n // 64) * 64


class ProgramPlan:
    """Where everything lives: slots are inputs, outputs, constants, then the arena."""

    def __init__(self, program: KernelGraph, offsets: dict[str, int], arena_bytes: int, lower_bound: int, spilled):
        self.program, self.offsets, self.arena_bytes, self.lower_bound, self.spilled = program, offsets, arena_bytes, lower_bound, spilled
        self.slots = {name: k for k, name in enumerate((*program.inputs, *program.outputs, *program.constants))}
        self.number = {id(step): k for k, step in enumerate(program.steps)}

    def places(self, step: Step) -> list[Place]:
        arena = len(self.slots)
        found = [(self.slots[a], 0) if a in self.slots else (arena, self.offsets[a]) for a in step.args]
        return found + [(arena, self.offsets[f"{self.number[id(step)]}.{b.name}"]) for b in self.spilled[step.kernel]]

    def text(self) -> str:
        return f"memory  arena {self.arena_bytes} B\n"


def plan_program(program: KernelGraph, spilled: Mapping[Kernel, Sequence[Buffer]], check: bool) -> ProgramPlan:
    at, offsets = 0, {}
    for v in program.values.values():
        if v.role == "temp":
            offsets[v.name] = at
            at += _align(v.type.nbytes)
    for k, step in enumerate(program.steps):
        for b in spilled[step.kernel]:
            offsets[f"{k}.{b.name}"] = at
            at += _align(b.nbytes)
    return ProgramPlan(program, offsets, at, at, spilled)
