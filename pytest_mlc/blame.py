"""Which level broke a graph: run it at every level in order, judge each; the first that is wrong is guilty.

`levels` is the one place that knows how to get at the levels. For a pass that rewrites, the guilty rewrite is found by
bisection over the option `limit` (apply only the first n rewrites).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlc.core import options as opt
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


def levels(graph: Graph, args: Sequence[np.ndarray]) -> Iterator[tuple[str, list[np.ndarray] | None]]:
    """(name, outputs) of every level in order, as `trace_levels` has them; before each (name, None), so that a crash can be named."""
    from mlc.compile import level_runs
    for name, run in level_runs(graph, args):
        yield name, None
        with executor.poisoned_outputs():
            outputs = run()
        if outputs is not None:
            yield name, outputs


@dataclass(frozen=True)
class Blame:
    """The first level that is wrong, the last one that is right, and what is known beyond the level's name; `raised` where it gave no
    answer (an exception, a crash)."""

    guilty: str
    after: str = ""
    detail: str = ""
    raised: bool = False

    def __str__(self) -> str:
        return f"{self.guilty}{f', {self.detail}' if self.detail else ''}{f'  (right up to: {self.after})' if self.after else ''}"


def blame(compiler: Compiler, graph: Graph, args: Sequence[np.ndarray], referee: Referee | None = None,
          options: Mapping[str, object] | None = None, timeout: float = TIMEOUT) -> Blame:
    """Find the guilty level, compiling under `options` (those of the failing case). A level that raises, crashes or hangs is guilty
    as well: by the stage that the exception names, else the level that was running."""
    referee = referee or Referee.of(graph, args)
    suspect = _Suspect(compiler, graph, args, referee, dict(options or {}))
    found = _first_wrong(suspect, timeout)
    if found.raised and int(suspect.options.get("check", opt.get("check"))) < 1:
        # What an invalid graph or program does shows later; with every stage verified it shows where it was made.
        checked = replace(suspect, options={**suspect.options, "check": 1})
        verified = _first_wrong(checked, timeout)
        suspect, found = (checked, verified) if verified.raised else (suspect, found)
    return _refine(suspect, found) if found.guilty.startswith("pass ") and "limit" in OPTIONS else found


@dataclass(frozen=True)
class _Suspect:
    """The case that is looked into, and who runs and who judges it."""

    compiler: Compiler
    graph: Graph
    args: Sequence[np.ndarray]
    referee: Referee
    options: dict[str, object]

    def request(self, **fields: object) -> dict:
        return {**run_request(self.graph, self.args), "options": self.options, **fields}

    def wrong(self, limit: int) -> bool:
        """Whether the graph is wrong with only the first `limit` rewrites."""
        done = self.compiler.run(self.graph, self.args, options={**self.options, "limit": limit})
        return done.failed or (done.kind == "ran" and judge(self.graph, self.args, done.outputs, referee=self.referee).failed)


def _first_wrong(suspect: _Suspect, timeout: float) -> Blame:
    graph, args, compiler = suspect.graph, suspect.args, suspect.compiler
    # Graph levels are run by NumPy, whose functions are less accurate than mlc's.
    by_numpy = Referee.of(graph, args, NUMPY)
    last, running = "", "capture"
    try:
        compiler.send(suspect.request(do="levels"))
        while True:
            answer = compiler.receive(timeout)
            if "end" in answer:
                return Blame("none", last, "every level is right when run on its own")
            if "error" in answer:
                return Blame(answer.get("stage") or running, last, said(answer), raised=True)
            if answer["outputs"] is None:
                running = answer["level"]
                continue
            interpreted = answer["level"] == "graph" or answer["level"].startswith("pass ")
            if judge(graph, args, answer["outputs"], referee=by_numpy if interpreted else suspect.referee).failed:
                _drain(compiler, timeout)
                return Blame(answer["level"], last)
            last = answer["level"]
    except ChildError as error:
        return Blame(running, last, f"{error.kind}: {error.detail}", raised=True)


def said(answer: dict) -> str:
    """The exception of an answer in one line."""
    return f"{answer['error']}: {(answer['message'].splitlines() or [''])[0][:200]}"


def _drain(compiler: Compiler, timeout: float) -> None:
    """Take the answers of the levels that come after the guilty one, so that the next request gets its own."""
    try:
        while not {"end", "error"} & compiler.receive(timeout).keys():
            pass
    except ChildError:
        return  # a later level died of what the guilty one did


def _refine(suspect: _Suspect, found: Blame) -> Blame:
    """Name the rewrite of the guilty pass by bisection."""
    wrong_with, right_with = _upper_limit(suspect), 0
    if wrong_with is None:
        return found
    while wrong_with - right_with > 1:
        middle = (wrong_with + right_with) // 2
        if suspect.wrong(middle):
            wrong_with = middle
        else:
            right_with = middle
    try:
        answer = suspect.compiler.ask(suspect.request(do="rewrite", number=wrong_with), TIMEOUT)
    except ChildError:
        answer = {}
    named = f" of {answer['total']} ({answer['rule']})" if "rule" in answer else ""
    return Blame(found.guilty, found.after, f"rewrite {wrong_with}{named}{f': {found.detail}' if found.detail else ''}")


def _upper_limit(suspect: _Suspect) -> int | None:
    """A limit with which the graph is wrong while without any rewrite it is right; None when rewrites don't matter."""
    if suspect.wrong(0):
        return None
    limit = 1
    while limit < 1 << 16:
        if suspect.wrong(limit):
            return limit
        limit *= 2
    return None
