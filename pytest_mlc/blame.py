"""Which level broke a graph: run it at every level in order, judge each; the first that is wrong is guilty.

`levels` is the one place that knows how to get at the levels. For a pass that rewrites, the guilty rewrite is found by
bisection over the option `limit` (apply only the first n rewrites).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.core.options import OPTIONS
from mlc.graph.graph import Graph
from pytest_mlc import executor
from pytest_mlc.child import ChildError
from pytest_mlc.executor import Compiler
from pytest_mlc.models import NUMPY
from pytest_mlc.oracle import Referee, judge
from pytest_mlc.service import run_request

# Seconds for one level; interpreters are slow.
TIMEOUT = 2 * executor.TIMEOUT


def levels(graph: Graph, args: Sequence[np.ndarray]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """(name, outputs) of every level in order: the captured graph interpreted, after each pass, kernels, loops, machine code."""
    from mlc.compile import trace_levels
    yield from trace_levels(graph, args)


@dataclass(frozen=True)
class Blame:
    """The first level that is wrong, the last one that is right, and what is known beyond the level's name."""

    guilty: str
    after: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.guilty}{f', {self.detail}' if self.detail else ''}{f'  (right up to: {self.after})' if self.after else ''}"


def blame(compiler: Compiler, graph: Graph, args: Sequence[np.ndarray], referee: Referee | None = None) -> Blame:
    """Find the guilty level. A level that raises, crashes or hangs is guilty as well."""
    referee = referee or Referee.of(graph, args)
    # Graph levels are run by NumPy, whose functions are less accurate than mlc's.
    by_numpy = Referee.of(graph, args, NUMPY)
    last = ""
    try:
        compiler.send({**run_request(graph, args), "do": "levels"})
        while True:
            answer = compiler.receive(TIMEOUT)
            if "end" in answer:
                return Blame("none", last, "every level is right when run on its own")
            if "error" in answer:
                return Blame(f"what follows {last}" if last else "capture", last, f"{answer['error']}: {answer['message'].splitlines()[0][:200]}")
            interpreted = answer["level"] == "graph" or answer["level"].startswith("pass ")
            if judge(graph, args, answer["outputs"], referee=by_numpy if interpreted else referee).failed:
                _drain(compiler)
                return _refine(compiler, graph, args, referee, Blame(answer["level"], last))
            last = answer["level"]
    except ChildError as error:
        return Blame(f"what follows {last}" if last else "capture", last, f"{error.kind}: {error.detail}")


def _drain(compiler: Compiler) -> None:
    """Take the answers of the levels that come after the guilty one, so that the next request gets its own."""
    while True:
        answer = compiler.receive(TIMEOUT)
        if "end" in answer or "error" in answer:
            return


def _refine(compiler: Compiler, graph: Graph, args: Sequence[np.ndarray], referee: Referee, found: Blame) -> Blame:
    """Name the rewrite by bisection, when the guilty level is a pass."""
    if not found.guilty.startswith("pass ") or "limit" not in OPTIONS:
        return found
    wrong_with, right_with = _upper_limit(compiler, graph, args, referee), 0
    if wrong_with is None:
        return found
    while wrong_with - right_with > 1:
        middle = (wrong_with + right_with) // 2
        if _wrong(compiler, graph, args, referee, middle):
            wrong_with = middle
        else:
            right_with = middle
    answer = compiler.ask({**run_request(graph, args), "do": "rewrite", "number": wrong_with}, TIMEOUT)
    named = f" of {answer['total']} ({answer['rule']})" if "rule" in answer else ""
    return Blame(found.guilty, found.after, f"rewrite {wrong_with}{named}")


def _wrong(compiler: Compiler, graph: Graph, args: Sequence[np.ndarray], referee: Referee, limit: int) -> bool:
    done = compiler.run(graph, args, options={"limit": limit})
    return done.failed or (done.kind == "ran" and judge(graph, args, done.outputs, referee=referee).failed)


def _upper_limit(compiler: Compiler, graph: Graph, args: Sequence[np.ndarray], referee: Referee) -> int | None:
    """A limit with which the graph is wrong while without any rewrite it is right; None when rewrites don't matter."""
    if _wrong(compiler, graph, args, referee, 0):
        return None
    limit = 1
    while limit < 1 << 16:
        if _wrong(compiler, graph, args, referee, limit):
            return limit
        limit *= 2
    return None
