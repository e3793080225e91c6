"""From a kernel graph to memory: the order of its steps, lifetimes, the arena plan, and the place of every kernel argument."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from mlc.core import options as opt
from mlc.core.dataclass import replace
from mlc.kernel.ir import Kernel, KernelGraph, Step
from mlc.kernel.packing import residents
from mlc.loop import interp
from mlc.loop.ir import Buffer, LoopKernel
from mlc.memory import order
from mlc.memory.plan import ALIGNMENT, WORKSPACE, MemoryPlan, Request, plan_memory
from mlc.memory.verify import verify_plan
from mlc.passes.manager import PassResult

Spilled = Mapping[Kernel, Sequence[Buffer]]
# (slot, byte offset): slots are the program's inputs, outputs, residents (constants and packed weights), and last the arena and the workspace.
Place = tuple[int, int]
# The workspace of a thread is kept, and shared by programs: a kernel that needs more scratch than this has it in the arena.
WORKSPACE_LIMIT = 1 << 20


def _in_place(step: Step) -> list[tuple[str, str]]:
    """(written, read) values of a step that may share memory."""
    bound = dict(zip((p.name for p in step.kernel.params), step.args))
    return sorted((bound[out], bound[source]) for source, out in step.kernel.may_alias)


def order_program(program: KernelGraph, spilled: Spilled) -> KernelGraph:
    """The program with its steps in an order that keeps little memory alive at once.

    Outputs have memory of their own: what is alive beside it is least where they count as alive from when they are written. As
    temporaries need not fit into them, an order that leaves several outputs out is tried too, and the smaller arena wins.
    """
    temps = {v.name for v in program.values.values() if v.role == "temp"}
    best: KernelGraph | None = None
    found: list[list[int]] = []
    least = 0
    for kept in (set(program.outputs), set()) if len(program.outputs) > 1 else (set(program.outputs),):
        ordered = _order(program, spilled, temps, kept)
        if ordered not in found:
            found.append(ordered)
    for ordered in found:
        candidate = replace(program, steps=[program.steps[k] for k in ordered])
        arena = plan_memory(_requests(candidate, spilled)).arena_bytes if len(found) > 1 else 0
        if best is None or arena < least:
            best, least = candidate, arena
    return best


def _order(program: KernelGraph, spilled: Spilled, temps: set[str], kept: set[str]) -> list[int]:
    """An order in which little of the temporaries and of `kept` is alive at once; what is kept stays so to the end."""
    counted = temps | kept
    writer = {name: k for k, step in enumerate(program.steps) for name in step.writes()}
    steps, deps = [], []
    for k, step in enumerate(program.steps):
        writes = [(w, program.values[w].type.nbytes) for w in step.writes() if w in counted]
        writes += [(r.name, r.nbytes) for r in _own_buffers(k, spilled[step.kernel]) if not r.scratch]
        steps.append(order.Step(step.reads(), tuple(writes), tuple(p for p in _in_place(step) if set(p) <= counted)))
        deps.append([writer[r] for r in step.reads() if r in writer and r not in counted])
    return order.order_steps(steps, deps, kept)


class ProgramPlan:
    """Where everything lives."""

    def __init__(self, program: KernelGraph, spilled: Spilled):
        self.spilled = spilled
        self.slots = {name: k for k, name in enumerate((*program.inputs, *program.outputs, *program.residents()))}
        self.requests = _requests(program, spilled)
        self.memory: MemoryPlan = plan_memory(self.requests)
        if opt.get("check"):
            verify_plan(self.requests, self.memory)
        self.homes = {p.name: (self._slot(p.home), p.offset) for p in self.memory.placements}

    def _slot(self, home: str) -> int:
        return len(self.slots) + 1 if home == WORKSPACE else self.slots[home] if home else len(self.slots)

    def places(self, number: int, step: Step) -> list[Place]:
        """The place of each buffer of step `number`: its arguments, then the scratch that does not fit on the stack."""
        found = [(self.slots[a], 0) if a in self.slots else self.homes[a] for a in step.args]
        return found + [self.homes[f"{number}.{b.name}"] for b in self.spilled[step.kernel]]

    def dead_before(self, number: int) -> list[tuple[Place, int]]:
        """(place, bytes) of the arena, of outputs and of the workspace that nobody may read from step `number` on: all first, then what the step
        before read last."""
        if number == 0:
            whole = [((self.slots[r.name], 0), r.nbytes) for r in self.requests if r.own]
            whole += [((self._slot(""), 0), self.memory.arena_bytes), ((self._slot(WORKSPACE), 0), self.memory.workspace_bytes)]
            return [(place, nbytes) for place, nbytes in whole if nbytes]
        alive = [(p.home, p.offset, p.offset + p.nbytes) for p in self.memory.placements if p.first < number <= p.last]
        found = []
        for p in self.memory.placements:
            if p.last != number - 1:
                continue
            at, end = p.offset, p.offset + p.nbytes
            for low, high in [*sorted((low, high) for home, low, high in alive if home == p.home), (end, end)]:
                if at < min(low, end):
                    found.append(((self._slot(p.home), at), min(low, end) - at))
                at = max(at, high)
        return found


def _requests(program: KernelGraph, spilled: Spilled) -> list[Request]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    shares: dict[str, list[str]] = {}
    for k, step in enumerate(program.steps):
        for name in step.writes():
            first[name] = last[name] = k
        for name in step.reads():
            last[name] = k
        for written, read in _in_place(step):
            shares.setdefault(written, []).append(read)
    found = []
    for value in program.values.values():
        if value.role in ("temp", "output"):
            name, own = value.name, value.role == "output"
            end = len(program.steps) if own else last[name]
            found.append(Request(name, value.type.nbytes, first[name], end, tuple(shares.get(name, ())), str(value.type), own))
    for k, step in enumerate(program.steps):
        found += _own_buffers(k, spilled[step.kernel])
    return found


def _own_buffers(number: int, spilled: Sequence[Buffer]) -> list[Request]:
    """What step `number` needs for itself: scratch of the thread that runs it, unless there is too much of that, and what its threads share."""
    private = [b for b in spilled if b.role == "scratch"]
    small = sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in private) <= WORKSPACE_LIMIT
    return [Request(f"{number}.{b.name}", b.nbytes, number, number, (), f"{b.dtype}[{b.size}]", scratch=small and b in private) for b in spilled]


def run_planned(program: KernelGraph, plan: ProgramPlan, loops: Mapping[Kernel, LoopKernel], args: Sequence[np.ndarray],
                constants: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The program's outputs by the loop interpreter inside the planned memory: in-place results on their operands, dead bytes poisoned."""
    outputs = [np.full(program.values[o].type.nbytes, 0xFF, np.uint8) for o in program.outputs]
    given = [[np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in group] for group in (args, residents(program, constants))]
    slots = [*given[0], *outputs, *given[1], *(np.empty(nbytes, np.uint8) for nbytes in (plan.memory.arena_bytes, plan.memory.workspace_bytes))]
    for number, step in enumerate(program.steps):
        for (slot, offset), nbytes in plan.dead_before(number):
            slots[slot][offset:offset + nbytes] = 0xFF
        kernel = loops[step.kernel]
        placed = [b for b in kernel.buffers if not b.own or b in plan.spilled[step.kernel]]
        interp.run(kernel, {b.name: slots[slot][offset:offset + b.nbytes].view(b.dtype.numpy)
                            for b, (slot, offset) in zip(placed, plan.places(number, step), strict=True)})
    types = [program.values[o].type for o in program.outputs]
    return [value.view(type.dtype.numpy).reshape(type.shape) for value, type in zip(outputs, types)]


def plan_program(program: KernelGraph, spilled: Spilled) -> tuple[ProgramPlan, PassResult]:
    """The memory plan of an ordered program, and its line of the pass log."""
    begun = time.perf_counter()
    plan = ProgramPlan(program, spilled)
    note = f"arena {plan.memory.arena_bytes:,} B, peak/lower bound {plan.memory.ratio:.2f}"
    steps = len(program.steps)
    return plan, PassResult(None, True, name="plan", version=1, nodes_before=steps, nodes_after=steps,
                            milliseconds=(time.perf_counter() - begun) * 1e3, notes=[note])
