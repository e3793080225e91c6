"""The verifier of memory plans: short, and sharing nothing with the planner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.core.errors import VerifyError
from mlc.memory.plan import MemoryPlan, Placement, Request


def every_request_is_placed_once(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """One placement a request, with its size and lifetime."""
    wanted = {r.name: (r.nbytes, r.first, r.last) for r in requests}
    for p in plan.placements:
        if wanted.pop(p.name, None) != (p.nbytes, p.first, p.last):
            raise VerifyError("every_request_is_placed_once", f"%{p.name}", f"{p.nbytes} B live k{p.first}..k{p.last}", "each request as it is, once")
    if wanted:
        raise VerifyError("every_request_is_placed_once", "the plan", f"no place for {sorted(wanted)}", "each request as it is, once")


def placements_are_aligned_and_inside(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """Every buffer starts at a multiple of 64 and ends inside the arena."""
    for p in plan.placements:
        if p.offset % 64:
            raise VerifyError("placements_are_aligned_and_inside", f"%{p.name}", f"offset {p.offset}", "a multiple of 64")
        if p.offset < 0 or p.offset + p.nbytes > plan.arena_bytes:
            raise VerifyError("placements_are_aligned_and_inside", f"%{p.name}", f"[{p.offset}, {p.offset + p.nbytes})", f"inside {plan.arena_bytes}")


def _takes_over(requests: dict[str, Request], old: Placement, new: Placement) -> bool:
    """Whether `new` may lie on `old`: the kernel that writes it is the last that reads `old`, allows it, and they start together."""
    return (old.name in requests[new.name].may_share and new.in_place_of == old.name and old.offset == new.offset
            and old.first < old.last == new.first)


def buffers_alive_together_never_overlap(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """No byte belongs to two live buffers, unless one takes the other over in place."""
    known = {r.name: r for r in requests}
    columns = [[p.offset for p in plan.placements], [p.offset + p.nbytes for p in plan.placements],
               [p.first for p in plan.placements], [p.last for p in plan.placements]]
    low, high, first, last = np.array(columns, np.int64).reshape(4, -1)
    for i, p in enumerate(plan.placements):
        clash = (low[:i] < p.offset + p.nbytes) & (p.offset < high[:i]) & (first[:i] <= p.last) & (p.first <= last[:i])
        for j in np.flatnonzero(clash & (low[:i] < high[:i])) if p.nbytes else ():
            other = plan.placements[j]
            if not (_takes_over(known, other, p) or _takes_over(known, p, other)):
                raise VerifyError("buffers_alive_together_never_overlap", f"%{p.name} and %{other.name}",
                                  f"[{p.offset}, {p.offset + p.nbytes}) live k{p.first}..k{p.last} and "
                                  f"[{other.offset}, {other.offset + other.nbytes}) live k{other.first}..k{other.last}", "disjoint bytes or steps")


INVARIANTS = (every_request_is_placed_once, placements_are_aligned_and_inside, buffers_alive_together_never_overlap)


def verify_plan(requests: Sequence[Request], plan: MemoryPlan) -> MemoryPlan:
    """Check a plan against what was asked for; returns it. VerifyError names the invariant and the buffers."""
    for invariant in INVARIANTS:
        invariant(requests, plan)
    return plan
