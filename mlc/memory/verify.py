"""The verifier of memory plans: short, and sharing nothing with the planner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.core.errors import VerifyError
from mlc.memory.plan import WORKSPACE, MemoryPlan, Placement, Request


def every_request_is_placed_once(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """One placement a request, with its size and lifetime; none for an output in whose memory nothing else lies."""
    wanted = {r.name: (r.nbytes, r.first, r.last) for r in requests}
    homes = {p.home for p in plan.placements}
    for p in plan.placements:
        if wanted.pop(p.name, None) != (p.nbytes, p.first, p.last):
            raise VerifyError("every_request_is_placed_once", f"%{p.name}", f"{p.nbytes} B live k{p.first}..k{p.last}", "each request as it is, once")
    missing = sorted(r.name for r in requests if r.name in wanted and not (r.own and r.name not in homes))
    if missing:
        raise VerifyError("every_request_is_placed_once", "the plan", f"no place for {missing}", "each request as it is, once")


def placements_are_aligned_and_inside(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """Every buffer starts at a multiple of 64 and ends inside the arena, or inside the output or the workspace that is its home."""
    room = {**{r.name: r.nbytes for r in requests if r.own}, "": plan.arena_bytes, WORKSPACE: plan.workspace_bytes}
    for p in plan.placements:
        if p.offset % 64:
            raise VerifyError("placements_are_aligned_and_inside", f"%{p.name}", f"offset {p.offset}", "a multiple of 64")
        if p.home not in room:
            raise VerifyError("placements_are_aligned_and_inside", f"%{p.name}", f"in %{p.home}", "the arena, an output or the workspace")
        if p.offset < 0 or p.offset + p.nbytes > room[p.home]:
            raise VerifyError("placements_are_aligned_and_inside", f"%{p.name}", f"[{p.offset}, {p.offset + p.nbytes})", f"inside {room[p.home]}")


def outputs_are_at_home(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """An output lies in its own memory, from its first byte on, and stays alive past every other buffer."""
    own = {r.name for r in requests if r.own}
    end = max((r.last for r in requests if not r.own), default=-1)
    for p in plan.placements:
        if p.name in own and ((p.home, p.offset) != (p.name, 0) or p.last <= end):
            raise VerifyError("outputs_are_at_home", f"%{p.name}", f"at {p.offset} of %{p.home}, live to k{p.last}",
                              f"its own memory, live past k{end}")


def scratch_alone_is_in_the_workspace(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """What a thread has for one step is nowhere else, and nothing that outlives a step is there."""
    scratch = {r.name for r in requests if r.scratch and r.first == r.last}
    for p in plan.placements:
        if (p.name in scratch) != (p.home == WORKSPACE):
            raise VerifyError("scratch_alone_is_in_the_workspace", f"%{p.name}", f"in {'%' + p.home if p.home else 'the arena'}",
                              "the workspace" if p.name in scratch else "the arena or an output")


def _takes_over(requests: dict[str, Request], old: Placement, new: Placement) -> bool:
    """Whether `new` may lie on `old`: the kernel that writes it is the last that reads `old`, allows it, and they start together."""
    return (old.name in requests[new.name].may_share and new.in_place_of == old.name and old.offset == new.offset
            and old.first < old.last == new.first)


def buffers_alive_together_never_overlap(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """No byte belongs to two live buffers, unless one takes the other over in place."""
    known = {r.name: r for r in requests}
    homes = {name: k for k, name in enumerate(dict.fromkeys(p.home for p in plan.placements))}
    columns = [[p.offset for p in plan.placements], [p.offset + p.nbytes for p in plan.placements],
               [p.first for p in plan.placements], [p.last for p in plan.placements], [homes[p.home] for p in plan.placements]]
    low, high, first, last, home = np.array(columns, np.int64).reshape(5, -1)
    for i, p in enumerate(plan.placements):
        clash = (home[:i] == home[i]) & (low[:i] < p.offset + p.nbytes) & (p.offset < high[:i]) & (first[:i] <= p.last) & (p.first <= last[:i])
        for j in np.flatnonzero(clash & (low[:i] < high[:i])) if p.nbytes else ():
            other = plan.placements[j]
            if not (_takes_over(known, other, p) or _takes_over(known, p, other)):
                raise VerifyError("buffers_alive_together_never_overlap", f"%{p.name} and %{other.name}",
                                  f"[{p.offset}, {p.offset + p.nbytes}) live k{p.first}..k{p.last} and "
                                  f"[{other.offset}, {other.offset + other.nbytes}) live k{other.first}..k{other.last}", "disjoint bytes or steps")


INVARIANTS = (every_request_is_placed_once, placements_are_aligned_and_inside, outputs_are_at_home, scratch_alone_is_in_the_workspace,
              buffers_alive_together_never_overlap)


def verify_plan(requests: Sequence[Request], plan: MemoryPlan) -> MemoryPlan:
    """Check a plan against what was asked for; returns it. VerifyError names the invariant and the buffers."""
    for invariant in INVARIANTS:
        invariant(requests, plan)
    return plan
