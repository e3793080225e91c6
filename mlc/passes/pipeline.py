"""The pipeline: the one list of graph passes, and why each stands where it stands."""

from __future__ import annotations

from collections.abc import Callable

from mlc.core import options as opt
from mlc.core.errors import OptionError
from mlc.graph.graph import Graph
from mlc.passes.cse import CSE
from mlc.passes.dce import DCE
from mlc.passes.fold import FOLD
from mlc.passes.inline import INLINE
from mlc.passes.manager import Pass, PassContext, PassResult, run_passes
from mlc.passes.motion import MOTION
from mlc.passes.simplify import SIMPLIFY

PIPELINE: tuple[Pass, ...] = (
    INLINE,     # first: rewrites, CSE and folding then see across what were call boundaries
    SIMPLIFY,   # before fold: makes splats of broadcast constants, which fold for free; before cse: one form for equal things
    FOLD,       # before cse: equal results of folding then merge
    CSE,        # before dce: leaves the merged nodes behind; before motion: a value used twice must be seen as such
    DCE,        # before motion: dead users would count as users
    MOTION,     # last: needs exact use counts; what it moves, the next round simplifies
)

# Stages after the graph passes that `disable_passes` may name, too.
LATER_STAGES = ("fuse", "attention")


def active_passes() -> list[Pass]:
    """The pipeline without what the option `disable_passes` names. Raises OptionError for an unknown or required name."""
    off = {name.strip() for name in opt.get("disable_passes").split(",")} - {""}
    known = {each.name: each for each in PIPELINE}
    for name in sorted(off):
        if name not in known and name not in LATER_STAGES:
            raise OptionError(f"disable_passes: no pass is called {name!r}; known: {', '.join([*known, *LATER_STAGES])}")
        if name in known and known[name].required:
            raise OptionError(f"disable_passes: {name} is required: what follows cannot do without it")
    return [each for each in PIPELINE if each.name not in off]


def run_pipeline(graph: Graph, ctx: PassContext | None = None,
                 observe: Callable[[PassResult], None] | None = None) -> tuple[Graph, list[PassResult]]:
    """Run the active passes to a fixed point; returns the new graph and the pass log. The input is not mutated.

    `ctx` (made from the options in force if left out) tells afterwards which rewrites were applied, in order; `observe`
    gets every PassResult while it still holds its graph. Raises VerifyError, naming the pass, under MLC_CHECK or when a
    pass breaks.
    """
    return run_passes(graph, active_passes(), ctx or PassContext(limit=opt.get("limit")), observe)


def describe_pipeline() -> str:
    """Names, versions and options of the active passes, a line each: part of the cache key."""
    return "".join(f"{each.describe()}\n" for each in active_passes())
