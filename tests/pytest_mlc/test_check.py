"""`@mlc.check` and `mlc_check`: what passes, what fails and whom it blames, what is said about a reference that is not the function itself."""

import subprocess
import sys
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mlc
import mlc.numpy as mnp
from mlc.core.dtype import as_dtype
from mlc.core.errors import OptionError, ShapeError, TraceError
from mlc.graph.graph import GraphRewriter
from mlc.passes import pipeline
from mlc.passes.driver import apply_rules
from mlc.passes.manager import Pass, PassResult
from mlc.passes.pattern import BITWISE, RuleSet, Var, term
from mlc.variants import Compiled
from pytest_mlc import compared, native
from pytest_mlc.check import CheckFailed, CheckNote, compare

X = np.random.default_rng(5).standard_normal((6, 8)).astype(np.float32)
W = np.random.default_rng(6).standard_normal((8, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def outside_of_pytest(monkeypatch):
    """Notes become warnings, and these errors unless a test asks for them."""
    monkeypatch.setattr("pytest_mlc.check._current_test", lambda: "")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckNote)
        yield


def traced(x):
    """Whether mlc (and not JAX) is looking at the function."""
    return type(x).__module__.startswith("mlc.")


# --------------------------------------------------------------------------- what passes
class Params(NamedTuple):
    w: np.ndarray
    scale: float


def test_a_model_of_trees_and_numbers_passes():
    def model(params, x, *, bias):
        return {"logits": mnp.tanh(x @ params["layer"].w * params["layer"].scale + bias), "norm": (x * x).sum(axis=1)}
    report = compare(model, {"layer": Params(W, 0.5)}, X, bias=np.arange(3, dtype=np.float32))
    assert not report.failed and report.notes == []


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16", np.float32, np.float64, np.int8, np.uint32, np.int64, np.bool_])
def test_every_kind_of_dtype_passes(dtype):
    x = np.asarray(np.arange(24).reshape(4, 6) % 5, as_dtype(dtype).numpy)
    with jax.enable_x64(True):
        assert not compare(lambda x: (mnp.where(x > 1, x, x * x), mnp.sum(x, axis=0)), x).failed


def test_jax_arrays_are_arguments_too():
    assert not compare(lambda x, w: x @ w, jnp.asarray(X), jnp.asarray(W)).failed


def test_rounding_in_other_places_is_not_worth_a_note():
    n = np.random.default_rng(0).integers(1, 4, 40).astype(np.int32)
    x = np.random.default_rng(1).standard_normal((40, 5)).astype(np.float32)
    assert compare(lambda x, n: x / n[:, None], x, n).notes == []  # XLA multiplies by 1 / n


def attention(p, x):
    """Normalisation, two heads of attention and a residual sum: no element of it has a useful worst-case bound."""
    centred = x - x.mean(axis=-1, keepdims=True)
    h = centred / mnp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
    q, k, v = ((h @ w).reshape(6, 2, 8) for w in p)
    scores = mnp.exp(mnp.permute_dims(q, (1, 0, 2)) @ mnp.permute_dims(k, (1, 2, 0)) * 0.35)
    out = (scores / scores.sum(axis=-1, keepdims=True)) @ mnp.permute_dims(v, (1, 0, 2))
    return x + mnp.permute_dims(out, (1, 0, 2)).reshape(6, 16)


ATTENTION = [np.random.default_rng(k).standard_normal((16, 16)).astype(np.float32) / 4 for k in range(3)], np.hstack([X, -X[::-1]])


def test_a_deep_model_is_judged_and_passes_without_a_note():
    assert compare(attention, *ATTENTION).notes == []


def test_a_small_error_in_a_deep_model_is_found(monkeypatch):
    corrupt(monkeypatch, lambda answer: answer * (1 + np.float32(1e-3) * (np.arange(16) == 5)).astype(np.float32))
    with pytest.raises(CheckFailed, match=r"mlc-check: WRONG .* at out\[\d,5\]"):
        compare(attention, *ATTENTION)


@pytest.mark.parametrize("enabled", [False, True])
def test_the_reference_follows_the_users_64_bit_setting(enabled):
    with jax.enable_x64(enabled):
        x = np.linspace(0, 1, 12).reshape(3, 4)
        report = compare(lambda x: (mnp.exp(x), mnp.argmax(x, axis=1)), x)
        assert not report.failed
        assert native.run_jitted(lambda x: x + 1, (x,), {}).leaves[0].dtype == (np.float64 if enabled else np.float32)


def test_a_decorated_function_runs_without_pytest():
    seen = set()

    @mlc.check(inputs={"x": "f32[B,5]", "n": ("i32[B]", 1, 3)}, dims={"B": (1, 40)})
    def scaled(x, n):
        seen.add(x.shape)
        return x / n[:, None]
    assert scaled() is None
    assert {shape[0] for shape in seen} >= {1, 40} and len(seen) > 2


# --------------------------------------------------------------------------- what fails
def corrupt(monkeypatch, change):
    """Let every program return `change(answer)`."""
    run = Compiled._run
    monkeypatch.setattr(Compiled, "_run", lambda self, leaves: change(run(self, leaves)))


def one_wrong_element(answer):
    answer = answer.copy()
    answer.reshape(-1)[answer.size // 2] += 0.25
    return answer


def test_one_wrong_element_fails_with_everything_needed(monkeypatch):
    corrupt(monkeypatch, one_wrong_element)

    @mlc.check(inputs={"x": "f32[B,4]"}, dims={"B": [2, 9]}, seed=11)
    def activation(x):
        return mnp.tanh(x)
    with pytest.raises(CheckFailed) as failure:
        activation()
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("mlc-check: WRONG  max error 0.25 against a bound of ")
    assert "mlc " in lines[0] and "jax " in lines[0] and "float64 " in lines[0] and lines[0].endswith("at out[1,0])")
    assert [line.split()[0] for line in lines[1:]] == ["guilty:", "reference:", "case:", "fails", "run"]
    assert "  case:  B=2" in lines and "  fails at B=2; B=9; passes at none of the sizes tried" in lines
    assert lines[-1] == "  run again:  call activation again; it draws the same values (seed 11)"


def test_sizes_that_pass_are_told_from_sizes_that_fail(monkeypatch):
    corrupt(monkeypatch, lambda answer: one_wrong_element(answer) if answer.shape[0] > 16 else answer)

    @mlc.check(inputs={"x": "f32[B]"}, dims={"B": [1, 16, 17]})
    def activation(x):
        return mnp.tanh(x)
    with pytest.raises(CheckFailed, match="fails at B=17; passes at B=1; B=16"):
        activation()


def test_an_output_is_named_by_its_path(monkeypatch):
    corrupt(monkeypatch, lambda answer: {**answer, "second": one_wrong_element(answer["second"])})
    with pytest.raises(CheckFailed, match=r"at second\[3,0\]\)"):
        compare(lambda x: {"first": x, "second": mnp.tanh(x)}, X)


def test_a_wrong_pass_is_named(monkeypatch):
    def negate(graph, ctx):
        if any(node.op.name == "neg" for node in graph.nodes):
            return PassResult(graph, False)
        rewriter = GraphRewriter(graph)
        new = [rewriter.copy(i) for i in range(len(graph))]
        return PassResult(rewriter.new.set_outputs(rewriter.new.add("neg", [new[o]]) for o in graph.outputs), True)
    monkeypatch.setattr(pipeline, "PIPELINE", (*pipeline.PIPELINE, Pass("evil", 1, negate)))
    with pytest.raises(CheckFailed, match="guilty:  pass evil"):
        compare(lambda x: mnp.tanh(x), X)


def test_a_wrong_rewrite_is_named(monkeypatch):
    rules = RuleSet()
    x, y = Var("x"), Var("y")
    rules.rewrite("evil", exact=BITWISE, match=term("sub")(x, term("neg")(y)), to=term("sub")(x, y), why="a slip")
    evil = Pass("evil", 1, lambda graph, ctx: apply_rules(rules, graph, ctx))
    monkeypatch.setattr(pipeline, "PIPELINE", (evil, *pipeline.PIPELINE))
    with pytest.raises(CheckFailed, match=r"guilty:  pass evil, rewrite 1 of \d \(evil\)"):
        compare(lambda x: x - (-x), X)


def test_a_program_that_is_only_wrong_when_called_is_said_to_be(monkeypatch):
    corrupt(monkeypatch, one_wrong_element)
    with pytest.raises(CheckFailed, match="guilty:  none, every level is right when run on its own"):
        compare(lambda x: x + 1, X)


@pytest.mark.parametrize("function, said", [
    (lambda x: x + (1.0 if traced(x) else 2.0), "the captured graph computes something else than the function"),
    (lambda x: (x > 0 if traced(x) else x > -9), "the captured graph computes something else than the function"),
    (lambda x: (x, x) if traced(x) else [x, x], r"mlc returns \(\*, \*\), JAX returns \[\*, \*\]"),
    (lambda x: x.sum(axis=0) if traced(x) else x.sum(axis=1), r"the output has shape \[8\] in mlc and \[6\] in JAX"),
    (lambda x: {"a": x.astype(np.float16) if traced(x) else x}, "output a is float16 in mlc and float32 in JAX"),
], ids=["value", "exact value", "structure", "shape", "dtype"])
def test_a_graph_that_is_not_the_function_is_a_fault_of_capture(function, said):
    with pytest.raises(CheckFailed, match=f"mlc-check: CAPTURE  .*{said}") as failure:
        compare(function, X)
    assert "guilty:  capture" in str(failure.value)


# --------------------------------------------------------------------------- what passes with a note
def shifted(answer):
    return native.NativeAnswer(answer.how, [leaf + leaf.dtype.type(0.5) for leaf in answer.leaves], answer.structure)


def test_jax_wrong_under_jit_only_is_a_note_about_jit(monkeypatch):
    monkeypatch.setattr(native, "run_jitted", lambda *given: shifted(native.run_eagerly(*given)))
    with pytest.warns(CheckNote, match=r"jax.jit is wrong where eager JAX is right: mlc .*, jax .*, float64"):
        compare(lambda x: mnp.tanh(x), X)


def test_jax_wrong_on_the_graph_too_is_a_note_about_jax(monkeypatch):
    eager = native.run_eagerly
    monkeypatch.setattr(native, "run_jitted", lambda *given: shifted(eager(*given)))
    monkeypatch.setattr(native, "run_eagerly", lambda *given: shifted(eager(*given)))
    monkeypatch.setattr(compared, "render", lambda graph: lambda x: [jnp.tanh(x) + 0.5])
    with pytest.warns(CheckNote, match="JAX is outside its own bound, mlc is inside"):
        compare(lambda x: mnp.tanh(x), X)


def test_a_function_that_jax_cannot_run_is_compared_as_a_graph_and_that_is_said():
    with pytest.warns(CheckNote, match="the reference is the captured graph rendered as JAX, because JAX cannot run numpy_model itself: "
                                       "TracerArrayConversionError"):
        def numpy_model(x):
            return np.exp(x)
        assert not compare(numpy_model, X).failed


def test_a_wrong_answer_for_such_a_function_fails_and_says_it_too(monkeypatch):
    corrupt(monkeypatch, one_wrong_element)
    with pytest.raises(CheckFailed, match=r"mlc-check: WRONG(.|\n)*rendered as JAX, because JAX cannot run"):
        compare(lambda x: np.exp(x), X)


def test_a_comparison_that_could_judge_nothing_says_so():
    with pytest.warns(CheckNote, match="of the elements could not be judged"):
        compare(lambda x: x / (x.sum() - x.sum() * 1.0000001), X)


def test_the_same_note_of_many_sizes_is_said_once():
    @mlc.check(inputs={"x": "f32[B]"}, dims={"B": [1, 2, 3]})
    def numpy_model(x):
        return np.exp(x)
    with pytest.warns(CheckNote) as noted:
        numpy_model()
    assert len(noted) == 1 and str(noted[0].message).endswith("(and in 2 more cases)")


# --------------------------------------------------------------------------- wrong uses
@pytest.mark.parametrize("function, shown", [(lambda x: None, "None"), (lambda x: {}, "{}")], ids=["None", "dict"])
def test_a_function_that_returns_nothing_is_told_to_return(function, shown):
    with pytest.raises(TraceError, match=rf"<lambda> at test_check.py:\d+ returned {shown}, so there is nothing to compare; end it with `return`"):
        compare(function, X)


@pytest.mark.parametrize("inputs, dims, error, message", [
    ({"y": "f32[4]"}, None, OptionError, "has no parameter 'y'; it has x"),
    ({"x": "f32[B]"}, None, ShapeError, "dim B has no sizes"),
    ("f32[4]", None, TypeError, "mlc.check needs inputs"),
    ({"x": "f32[B]"}, {"B": (1.5, 20)}, OptionError, "B=.*whole numbers"),
], ids=["unknown", "unsized", "unnamed", "fractional"])
def test_inputs_that_make_no_sense_are_refused_when_decorating(inputs, dims, error, message):
    with pytest.raises(error, match=message):
        @mlc.check(inputs=inputs, dims=dims)
        def test(x):
            return x


def test_an_error_of_capture_is_the_users_own():
    with pytest.raises(ShapeError, match=r"test_check\.py"):
        compare(lambda x, w: x @ w, X, W.T)


def test_options_that_a_jaxlib_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(native, "STRICT_FLAGS", (*native.STRICT_FLAGS, "--xla_no_such_option=1"))
    native.accepted_options.cache_clear()
    try:
        assert "xla_no_such_option" in native.strict_options() and native.accepted_options().keys() < native.strict_options().keys()
        assert native.run_jitted(lambda x: jnp.tanh(x), (X,), {}).how == "JAX, jitted, 64-bit types off"
    finally:
        native.accepted_options.cache_clear()


def test_this_jaxlib_takes_strict_options():
    assert native.accepted_options()
    assert native.run_jitted(lambda x: jnp.tanh(x), (X,), {}).how == "JAX, jitted, 64-bit types off"


def test_decorating_imports_neither_pytest_nor_jax():
    code = ("import sys, mlc\n@mlc.check(inputs={'x': 'f32[4]'})\ndef f(x): return x\n"
            "print(sorted({'pytest', 'jax', 'hypothesis', 'pytest_mlc.fixtures'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"
