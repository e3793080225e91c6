"""`@mlc.check` and `mlc_check`: the user's own function, run by mlc and by JAX, compared under the derived bound.

    @mlc.check(inputs={"x": "f32[B,64]"}, dims={"B": (1, 256)})
    def test_classifier(x):
        return model(params, x)

JAX runs the function itself, with the user's 64-bit setting; the captured graph is rendered as JAX only where the function
cannot run in JAX, and the report says so. Neither pytest nor JAX is imported at module level.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlc.core.errors import OptionError, TraceError, UnsupportedError

if TYPE_CHECKING:
    from pytest_mlc.compared import Answer

# Remarks of checks that passed; the plugin moves them to the reports. Outside of pytest they are warnings.
NOTES: list[str] = []


class CheckFailed(AssertionError):
    """mlc's answer is wrong, or its capture is. The message is the whole report."""


class CheckNote(UserWarning):
    """A check that passed with a remark: JAX was wrong, or could not run the function, or too little could be judged."""


@dataclass(frozen=True)
class Report:
    """What a check found: one answer per case. `mlc_check` returns it."""

    name: str
    answers: list[Answer] = field(default_factory=list)
    again: str = "call it again with the same arguments"

    @property
    def failed(self) -> bool:
        return any(answer.failed for answer in self.answers)

    @property
    def notes(self) -> list[str]:
        """One remark a topic: the first case's, and in how many more cases it was made."""
        topics: dict[str, list[str]] = {}
        for answer in self.answers:
            for topic, text in answer.notes:
                topics.setdefault(topic, []).append(text)
        return [texts[0] + (f" (and in {len(texts) - 1} more cases)" if len(texts) > 1 else "") for texts in topics.values()]

    def __str__(self) -> str:
        failed = next((answer for answer in self.answers if answer.failed), None)
        if failed is None:
            return "\n".join([f"mlc-check: OK  {self.name}", *("  " + note for note in self.notes)])
        lines = [f"mlc-check: {failed.headline}", *("  " + line for line in failed.details)]
        if len(self.answers) > 1:
            bad = [a.case for a in self.answers if a.failed]
            good = [a.case for a in self.answers if not a.failed]
            lines.append(f"  fails at {'; '.join(bad)}; passes at {'; '.join(good) or 'none of the sizes tried'}")
        again = f"pytest {shlex.quote(_current_test())}" if _current_test() else self.again
        return "\n".join([*lines, f"  run again:  {again}"])


def _current_test() -> str:
    """The id of the test that pytest runs now (it leaves it in the environment), or ""."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _conclude(report: Report) -> Report:
    """Raise for a failure; otherwise pass the remarks on."""
    __tracebackhide__ = True
    if report.failed:
        raise CheckFailed(str(report))
    for note in report.notes:
        if "pytest_mlc.fixtures" in sys.modules and _current_test():
            NOTES.append(note)
        else:
            warnings.warn(f"mlc-check: {report.name}: {note}", CheckNote, stacklevel=3)
    return report


def compare(function: Callable, *args: Any, **kwargs: Any) -> Report:
    """Run `function(*args, **kwargs)` with mlc and with JAX and compare the answers. The fixture `mlc_check` is this.

    Arguments are pytrees of arrays and numbers. Raises CheckFailed with a full report, TraceError if the function returns
    nothing, UnsupportedError without JAX; errors of capture are raised as they are.
    """
    __tracebackhide__ = True
    from pytest_mlc.compared import compare_case
    _require_jax()
    name = getattr(function, "__name__", type(function).__name__)
    return _conclude(Report(name, [compare_case(function, args, kwargs)]))


def _require_jax() -> None:
    from pytest_mlc.reference import available
    if not available():
        raise UnsupportedError("mlc.check compares with JAX, which is not installed: pip install 'mlc-compiler[jax]'")


# --------------------------------------------------------------------------- the decorator
def check(inputs: Mapping[str, Any], dims: Mapping[str, Any] | None = None, *, seed: int = 0) -> Callable[[Callable], Callable]:
    """Make a test of a function: its parameters named in `inputs` are drawn, mlc and JAX both run it, the answers are compared.

    `inputs`: parameter -> spec: "f32[B,64]", a spec with a range (("i32[B]", 0, 9)), an array, a callable of `rng` and dims,
    or a pytree of these. `dims`: the sizes of the names in specs: (low, high) tries both ends and sizes between, a list tries
    each. The other parameters stay the test's own (fixtures, parametrize). The decorated function returns None and raises
    CheckFailed. Raises OptionError, ShapeError or TypeError when decorating for inputs that cannot be drawn.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError("mlc.check needs inputs: @mlc.check(inputs={\"x\": \"f32[B,64]\"}, dims={\"B\": (1, 256)})")

    def decorate(test: Callable) -> Callable:
        from pytest_mlc import draws
        signature = _checked_signature(test, inputs)
        draws.validate(inputs, dims)

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            _conclude(run_cases(test, args, kwargs, inputs, dims, seed))

        run.__signature__ = signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in inputs])
        # What `mlc explain` compiles: the test as a function of its drawn inputs, and an example of these.
        run.mlc_model = _of_inputs(test, (), {}, tuple(inputs))
        run.mlc_example = functools.partial(_example, inputs, dims, seed)
        return run
    return decorate


def _example(inputs: Mapping[str, Any], dims: Mapping[str, Any] | None, seed: int, sizes: Mapping[str, int]) -> list[Any]:
    """Values for the inputs at these sizes; dims that are not given take their largest size."""
    from pytest_mlc import draws
    largest = {name: values[-1] for name, values in draws.sizes_of(dims).items()}
    return list(draws.draw(inputs, {**largest, **sizes}, seed, 0).values())


def _checked_signature(test: Callable, inputs: Mapping[str, Any]) -> inspect.Signature:
    if inspect.iscoroutinefunction(test) or inspect.isgeneratorfunction(test) or inspect.isasyncgenfunction(test):
        raise TypeError(f"mlc.check: {test.__name__} must be a plain function that returns the arrays to compare")
    signature = inspect.signature(test)
    missing = [name for name in inputs if name not in signature.parameters]
    if missing:
        raise OptionError(f"mlc.check: {test.__name__} has no parameter {missing[0]!r}; it has {', '.join(signature.parameters) or 'none'}")
    return signature


def run_cases(test: Callable, args: tuple, kwargs: Mapping[str, Any], inputs: Mapping[str, Any], dims: Mapping[str, Any] | None,
              seed: int) -> Report:
    """Every combination of sizes, also after a failure, so that the report says which sizes fail."""
    __tracebackhide__ = True
    from pytest_mlc import draws
    from pytest_mlc.compared import compare_case
    _require_jax()
    report = Report(test.__name__, again=f"call {test.__name__} again; it draws the same values (seed {seed})")
    model = _of_inputs(test, args, kwargs, tuple(inputs))
    for number, sizes in enumerate(draws.cases_of(dims, seed)):
        drawn = draws.draw(inputs, sizes, seed, number)
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        report.answers.append(compare_case(model, tuple(drawn.values()), {}, shown, blame=not report.failed))
    return report


def _of_inputs(test: Callable, args: tuple, kwargs: Mapping[str, Any], names: tuple[str, ...]) -> Callable:
    """The test as a function of its drawn inputs alone, with their names, so that the graph's parameters carry them."""
    @functools.wraps(test)
    def model(*drawn: Any) -> Any:
        return test(*args, **kwargs, **dict(zip(names, drawn)))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    model.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return model


__all__ = ["CheckFailed", "CheckNote", "Report", "TraceError", "check", "compare"]
