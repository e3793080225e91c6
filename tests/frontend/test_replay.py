"""Calls that a recording has seen are written down again, and give the graph that running the function gives."""

import warnings

import numpy as np
import pytest

import mlc
import mlc.nn
import mlc.numpy.linalg
from mlc.core.errors import MlcError
from mlc.frontend import api, replay
from mlc.frontend.promotion import WideningWarning
from mlc.graph import print_graph

PUBLIC = {f"{space}.{name}": function for space, names in (("numpy", api.NUMPY), ("nn", api.NN), ("linalg", api.LINALG))
          for name, function in names.items()}
F, G, I, B = "f32[4,4]", "f32[4,4]", "i32[4,4]", "bool[4,4]"
# What functions are tried with: traced arguments a, b, c, and Python values.
TRIED = {
    "a": lambda f, a, b, c: f(a), "ab": lambda f, a, b, c: f(a, b),
    "ba": lambda f, a, b, c: f(b, a), "aa": lambda f, a, b, c: f(a, a),
    "ac": lambda f, a, b, c: f(a, c), "abc": lambda f, a, b, c: f(a, b, c),
    "cab": lambda f, a, b, c: f(c, a, b), "(a,b)": lambda f, a, b, c: f((a, b)),
    "[a,c]": lambda f, a, b, c: f([a, c]), "a1": lambda f, a, b, c: f(a, 1),
    "a.5": lambda f, a, b, c: f(a, 0.5), "2a": lambda f, a, b, c: f(2, a),
    "a(1,0)": lambda f, a, b, c: f(a, (1, 0)), "a(2,8)": lambda f, a, b, c: f(a, (2, 8)),
    "axis": lambda f, a, b, c: f(a, axis=-1), "axes": lambda f, a, b, c: f(a, axis=(0, 1), keepdims=True),
    "dtype": lambda f, a, b, c: f(a, dtype=np.float64), "a12": lambda f, a, b, c: f(a, 0, 1),
    "a0.0": lambda f, a, b, c: f(a, 0.0), "a-0.0": lambda f, a, b, c: f(a, -0.0),
    "approximate": lambda f, a, b, c: f(a, approximate=True),
}


def recorded(run, *specs):
    return print_graph(mlc.jit(run).lower(*map(mlc.spec, specs)).graph, locations=True)


def without(monkeypatch):
    """No call has a key."""
    def unknown(*args):
        raise replay.Unknown
    monkeypatch.setattr(replay, "_describe", unknown)


def arrays(found):
    """The arrays in a result, for the recorded function to return."""
    if isinstance(found, (tuple, list)):
        return [a for x in found for a in arrays(x)]
    return [found] if hasattr(found, "dtype") else []


def test_the_public_functions_are_there():
    assert {"numpy.sum", "nn.softmax", "linalg.vector_norm"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_function_gives_the_graph_it_gave_alone(name, monkeypatch):
    function = PUBLIC[name]
    for specs in ((F, G, I), (I, I, F), (B, B, B)):
        for tried in TRIED.values():
            def run(a, b, c, tried=tried):
                x, y = tried(function, a, b, c), tried(function, b, a, c)
                z = tried(function, a, b, c)
                return arrays((x, y, z, tried(function, b, b, c)))
            with monkeypatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                without(patch)
                try:
                    wanted = recorded(run, *specs)
                except (MlcError, TypeError, ValueError, AttributeError, IndexError):
                    continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert recorded(run, *specs) == wanted


def layers(x, weights):
    for w in weights:
        h = mlc.nn.layer_norm(x, w["s"], w["s"])
        x = x + mlc.nn.gelu(h @ w["w"] * 0.5, approximate=True)
        x = mlc.nn.softmax(x, axis=-1) - mlc.numpy.maximum(x, 0.0)
    return x


@pytest.fixture
def counted(monkeypatch):
    """How often a call was replayed."""
    calls = []
    again = replay._Recipe.again
    monkeypatch.setattr(replay._Recipe, "again", lambda self, *args: calls.append(1) or again(self, *args))
    return calls


MODEL = mlc.spec("f32[4,8]"), [{"s": mlc.spec("f32[8]"), "w": mlc.spec("f32[8,8]")} for _ in range(5)]


def test_layers_give_the_graph_and_the_lines_they_gave_alone(monkeypatch):
    found = print_graph(mlc.jit(layers).lower(*MODEL).graph, locations=True)
    without(monkeypatch)
    assert found == print_graph(mlc.jit(layers).lower(*MODEL).graph, locations=True)


def test_layers_after_the_first_are_replayed(counted):
    mlc.jit(layers).lower(*MODEL)
    assert len(counted) == 4 * 8


DIFFERENT = {
    "signs of zeros": lambda x, y: (x * 0.0, x * -0.0),
    "int and float": lambda x, y: (x * 2, x * 2.0),
    "bool and int": lambda x, y: (x + True, x + 1),
    "one value twice": lambda x, y: (x - y, x - x),
    "weakness": lambda x, y: (mlc.numpy.add(x, y), mlc.numpy.add(x.astype(float), y)),
    "types": lambda x, y: (mlc.numpy.exp(x), mlc.numpy.exp(x.astype("f8"))),
    "keyword": lambda x, y: (mlc.numpy.sum(x, axis=0), mlc.numpy.sum(x, axis=1)),
    "constants": lambda x, y: (x + np.float32([1, 2, 3]), x + np.float32([1, 2, 4])),
    "scalars": lambda x, y: (x + np.float32(1), x + np.float32(2)),
    "splats": lambda x, y: (x + mlc.numpy.zeros(3, "f4"), x + mlc.numpy.ones(3, "f4")),
    "functions": lambda x, y: (x + y, x - y),
    "traced constants": lambda x, y: (x * (mlc.numpy.ones(3, "f4") + 0), x * (mlc.numpy.ones(3, "f4") + 1)),
    "lists": lambda x, y: (mlc.numpy.concatenate([x, y, x]), mlc.numpy.concatenate([x, y, y])),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_calls_that_differ_are_told_apart(case, monkeypatch):
    found = recorded(DIFFERENT[case], "f32[3]" if case != "keyword" else "f32[3,3]", "f32[3]")
    without(monkeypatch)
    assert found == recorded(DIFFERENT[case], "f32[3]" if case != "keyword" else "f32[3,3]", "f32[3]")


def test_each_call_warns():
    def run(x, wide):
        return x * wide, x * wide
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mlc.jit(run).lower(np.ones(3, "f4"), np.float64(2.0))
    assert [w.category for w in seen] == [WideningWarning] * 2


def test_a_refused_call_is_refused_again():
    def run(x, y):
        for _ in range(2):
            with pytest.raises(mlc.errors.ShapeError, match=r"test_replay.py:\d+ \(run\)"):
                mlc.numpy.add(x, y)
        return mlc.numpy.add(x, x)
    mlc.jit(run).lower(mlc.spec("f32[3]"), mlc.spec("f32[4]"))


def test_a_leaked_value_is_refused_where_a_call_of_its_kind_is_known():
    kept = []

    def leak(x):
        kept.append(x)
        return x

    def run(x):
        y = mlc.numpy.exp(x)
        return y + mlc.numpy.exp(kept[0])
    mlc.jit(leak).lower(mlc.spec("f32[3]"))
    with pytest.raises(mlc.errors.TraceError, match="leaked traced value"):
        mlc.jit(run).lower(mlc.spec("f32[3]"))


def test_recordings_do_not_share_calls(counted):
    run = mlc.jit(lambda x: mlc.numpy.exp(x) * 2.0)
    for spec in ("f32[3]", "f32[4]"):
        run.lower(mlc.spec(spec))
    assert not counted


def test_an_inlined_function_shares_its_callers_calls(counted):
    inner = mlc.jit(lambda x: mlc.numpy.exp(x) * 2.0)
    found = recorded(lambda x: inner(mlc.numpy.exp(x) * 2.0), "f32[3]")
    assert len(counted) == 2 and found.count(" = exp ") == 2
