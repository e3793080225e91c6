"""One case of a check: capture and run a function with mlc, run it natively in JAX, and judge the two.

mlc outside its bound is mlc's fault. JAX far outside its own bound while mlc is inside has three explanations, told apart by
running the captured graph in JAX too: if that agrees with mlc, the graph is not the function (a fault of capture);
if it agrees with the native answer, or the native answer changes without jit, JAX is wrong and the check passes with a note.
JAX a little outside only rounds in other places than the graph does (x / b becomes x * (1 / b), say).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.core import dtype as dt
from mlc.core.errors import TraceError
from mlc.frontend import tree
from mlc.graph import Graph
from mlc.jit import jit
from mlc.passes.checks import work
from mlc.variants import Compiled
from pytest_mlc import native
from pytest_mlc.blame import blame
from pytest_mlc.executor import Outcome, outcome, serve
from pytest_mlc.oracle import VACUOUS_FRACTION, Referee, Verdict, Worst, judge
from pytest_mlc.reference import render
from pytest_mlc.sampled import SampledReferee
from pytest_mlc.service import run_request
from pytest_mlc.worker import failure

# How many of JAX's own bounds count as far.
FAR = 16.0
# Elements computed (a contraction counts its products) above which the guilty level is not looked for.
MOST_BLAMED_WORK = 1 << 21


@dataclass(frozen=True)
class Answer:
    """What one case found. `kind` is a verdict's, or "failed" with a headline ("WRONG ...") and the lines below it.
    `notes` are (topic, text): remarks that a passing check leaves."""

    case: str
    kind: str
    headline: str = ""
    details: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind == "failed"


@dataclass
class Case:
    """Everything known about one case while it is judged."""

    name: str
    shown: str
    compiled: Compiled
    args: list[np.ndarray]
    outputs: list[np.ndarray]
    paths: list[str]
    native: native.NativeAnswer
    blame: bool

    @property
    def graph(self) -> Graph:
        return self.compiled.graph


def compare_case(function: Callable, args: tuple, kwargs: Mapping[str, Any], shown: str = "", blame: bool = True) -> Answer:
    """Run and judge `function(*args, **kwargs)`; `shown` names the case, `blame` looks for the guilty level of a wrong answer.

    Raises TraceError if the function returns nothing, and capture's own errors.
    """
    __tracebackhide__ = True
    name = getattr(function, "__name__", type(function).__name__)
    args, kwargs = native.canonical_tree((tuple(args), dict(kwargs)))
    compiled = jit(function).lower(*args, **kwargs).compile()
    result = compiled(*args, **kwargs)
    outputs: list = []
    structure = tree.flatten(result, outputs)
    if not outputs:
        raise TraceError(f"{name}{_place(function)} returned {tree.describe(structure)}, so there is nothing to compare; "
                         "end it with `return` and the arrays to compare")
    case = Case(name, shown, compiled, compiled.signature.pack(compiled.signature.check(args, kwargs)), outputs,
                tree.paths(structure), native.run_jitted(function, args, kwargs), blame)
    if case.native.leaves is None:
        return _against_graph(case)
    differs = _outside_differs(case, structure)
    if differs:
        return _failed(case, f"CAPTURE  {differs}", ["guilty:  capture (the recorded function has another type than JAX gives it)"])
    return _against_native(case, function, args, kwargs)


def _place(function: Callable) -> str:
    """` at model.py:41`, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""


# --------------------------------------------------------------------------- what JAX gave
def _outside_differs(case: Case, structure: Any) -> str:
    """How the answers differ in structure, shape or dtype (64-bit types may be narrower in JAX), or ""."""
    if structure != case.native.structure:
        return f"mlc returns {tree.describe(structure)}, JAX returns {tree.describe(case.native.structure)}"
    for path, ours, theirs in zip(case.paths, case.outputs, case.native.leaves):
        what = f"output {path}" if path else "the output"
        if ours.shape != theirs.shape:
            return f"{what} has shape {list(ours.shape)} in mlc and {list(theirs.shape)} in JAX"
        if theirs.dtype not in (ours.dtype, native.canonical_dtype(ours.dtype)):
            return f"{what} is {ours.dtype} in mlc and {theirs.dtype} in JAX"
    return ""


def _widened(case: Case, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [theirs.astype(ours.dtype) for ours, theirs in zip(case.outputs, leaves)]


def _against_native(case: Case, function: Callable, args: tuple, kwargs: dict) -> Answer:
    referee = SampledReferee.of(case.graph, case.args)
    verdict = judge(case.graph, case.args, case.outputs, _widened(case, case.native.leaves), referee)
    if verdict.failed:
        return _wrong(case, verdict, referee)
    if verdict.kind != "finding" or not _far_outside(case, case.native.leaves, referee):
        return _passed(case, verdict)
    eager = native.run_eagerly(function, args, kwargs)
    if eager.leaves is not None and _agrees(case, eager.leaves, referee):
        return _passed(case, verdict, "jit", f"jax.jit is wrong where eager JAX is right: {_element(case, verdict.worst)}")
    rendered = _rendered(case)
    if not _agrees(case, rendered, referee):
        return _passed(case, verdict, "jax", _finding(case, verdict))
    if not native.x64() and _holds_wide_floats(case.graph):
        return _passed(case, verdict, "x64", "the function computes in float64, which JAX does in float32 unless jax_enable_x64 is on")
    return _failed(case, f"CAPTURE  the captured graph computes something else than the function: {_element(case, verdict.worst)}", [
        "guilty:  capture (JAX agrees with mlc on the captured graph, and not with itself on the function)"])


def _against_graph(case: Case) -> Answer:
    """The function cannot run in JAX: the captured graph does."""
    note = f"the reference is the captured graph rendered as JAX, because JAX cannot run {case.name} itself: {case.native.problem}"
    referee = SampledReferee.of(case.graph, case.args)
    verdict = judge(case.graph, case.args, case.outputs, _rendered(case), referee)
    if verdict.failed:
        return _wrong(case, verdict, referee, [note])
    return _passed(case, verdict, "rendered", note, *(("jax", _finding(case, verdict)) if verdict.kind == "finding" else ()))


def _finding(case: Case, verdict: Verdict) -> str:
    return f"JAX is outside its own bound, mlc is inside: {_element(case, verdict.worst) if verdict.worst else verdict.reason}"


def _rendered(case: Case) -> list[np.ndarray]:
    """The captured graph in eager JAX, 64-bit types on."""
    import jax
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        return [np.asarray(leaf) for leaf in render(case.graph)(*case.args)]


def _agrees(case: Case, leaves: Sequence[np.ndarray], referee: Referee) -> bool:
    return judge(case.graph, case.args, case.outputs, _widened(case, leaves), referee).kind != "finding"


def _holds_wide_floats(graph: Graph) -> bool:
    return any(getattr(node.type, "dtype", None) is dt.f64 and node.shape for node in graph.nodes)


def _far_outside(case: Case, leaves: Sequence[np.ndarray], referee: Referee) -> bool:
    """Whether an element is more than FAR of JAX's bounds from the referee, or differs where nothing rounds."""
    for value, theirs, ours in zip(referee.jax_outputs(), leaves, case.outputs):
        if not np.issubdtype(ours.dtype, np.floating) and ours.dtype.kind != "V":
            if (np.asarray(theirs) != ours).any():
                return True
            continue
        with np.errstate(all="ignore"):
            wide = np.asarray(theirs, value.mid.dtype)
            bound = FAR * (value.error + np.finfo(np.float32).eps * np.abs(value.mid) * (ours.dtype.itemsize < 8))
            same = (wide == value.mid) | (np.isnan(wide) & np.isnan(value.mid))
            if (~same & ~(np.abs(wide - value.mid) <= bound)).any():
                return True
    return False


# --------------------------------------------------------------------------- what is said
def _passed(case: Case, verdict: Verdict, *notes: str) -> Answer:
    """`notes` alternates topics and texts."""
    found = list(zip(notes[::2], notes[1::2]))
    if verdict.unjudged > VACUOUS_FRACTION:
        found.append(("vacuous", f"{verdict.unjudged:.0%} of the elements could not be judged: their bound is larger than they are; "
                                 "choose inputs that keep divisors away from 0 and sums from cancelling"))
    at = f"at {case.shown}: " if case.shown else ""
    return Answer(case.shown, verdict.kind, notes=tuple((topic, at + text) for topic, text in found))


def _wrong(case: Case, verdict: Verdict, referee: Referee, more: Sequence[str] = ()) -> Answer:
    worst = verdict.worst
    said = f"max error {worst.error:.2g} against a bound of {worst.bound:.2g}  ({_element(case, worst)})" if worst else verdict.reason
    return _failed(case, f"WRONG  {said}", [*_guilty(case, referee), *more])


def _element(case: Case, worst: Worst) -> str:
    """`mlc 0.25, jax 0.5625, float64 0.5625 at out[3,0]`, the output by its own name where there are several."""
    shown = str(worst).partition(", bound ")[0]
    name = f"out{worst.output or ''}"
    return shown.replace(f" at {name}[", f" at {case.paths[worst.output] or name}[")


def _failed(case: Case, headline: str, details: Sequence[str]) -> Answer:
    lines = [*details]
    if case.native.leaves is not None:
        lines.append(f"reference:  {case.native.how}")
    if case.shown:
        lines.append(f"case:  {case.shown}")
    return Answer(case.shown, "failed", headline, tuple(lines))


def _guilty(case: Case, referee: Referee) -> list[str]:
    """The first level, from the captured graph down to machine code, whose answer is outside the bound."""
    if not case.blame:
        return []
    if work(case.graph) > MOST_BLAMED_WORK:
        return ["guilty:  not looked for, interpreting every level would take too long; try smaller sizes"]
    return [f"guilty:  {blame(_InProcess(), case.graph, case.args, referee)}"]


class _InProcess:
    """What `blame` asks a worker process for, done here: under the options, and with whatever else, the test has set up."""

    def send(self, request: dict) -> None:
        self.answers = serve(request)

    def receive(self, timeout: float) -> dict:
        try:
            return next(self.answers)
        except Exception as error:  # a broken level may raise anything
            return failure(error)

    def ask(self, request: dict, timeout: float) -> dict:
        self.send(request)
        return self.receive(timeout)

    def run(self, graph: Graph, args: Sequence[np.ndarray], **extra: Any) -> Outcome:
        return outcome(self.ask({**run_request(graph, args, **extra), "do": "run"}, 0))
