"""What cannot be recorded is refused with the user's line and what to do instead."""

import copy
import math
import pickle
import re
import threading

import numpy as np
import pytest
from frontend_samples import numbered

import mlc
from mlc.errors import DtypeError, MlcError, ShapeError, TraceError, UnsupportedError

X = np.ones((2, 3), np.float32)
HERE = r"test_trace_errors\.py:\d+"


def raised(function, *args, error=TraceError):
    with pytest.raises(error) as caught:
        mlc.jit(function)(*(args or (X,)))
    return str(caught.value)


def first_line(function):
    return function.__code__.co_firstlineno


CONVERSIONS = {
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "and": lambda x: x.any() and x.all(),
    "not": lambda x: not x.any(),
    "max": lambda x: max(x[0, 0], x[0, 1]),
    "int": lambda x: int(x[0, 0]),
    "float": lambda x: float(x[0, 0]),
    "math": lambda x: math.sqrt(x[0, 0]),
    "range": lambda x: list(range(x.argmax())),
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "asarray": lambda x: np.asarray(x),
    "array of list": lambda x: np.array([x[0], x[1]]),
    "list index": lambda x: [1, 2, 3][x.argmax()],
    "shape": lambda x: mlc.numpy.zeros(x.argmax()),
    "in": lambda x: 1.0 in x,
    "complex": lambda x: complex(x[0, 0]),
    "pickle": lambda x: pickle.dumps(x),
    "reshape": lambda x: x.reshape(x.argmax()),
    "setitem": lambda x: x.__setitem__(0, 1),
    "arange": lambda x: mlc.numpy.arange(x[0, 0]),
    "numpy setitem": lambda x: np.zeros(2).__setitem__(0, x[0, 0]),
    "numpy iadd": lambda x: np.zeros((2, 3), "f4").__iadd__(x),
    "format": lambda x: f"{x[0, 0]:.2f}" + 1,
}


@pytest.mark.parametrize("name", [n for n in CONVERSIONS if n != "format"])
def test_conversion_names_the_users_line_and_a_way_out(name):
    message = raised(CONVERSIONS[name])
    assert re.search(HERE + r" \(<lambda>\)", message), message
    assert re.search("where|static|mlc.numpy|return the array|at\\[index\\]|immutable|astype|complex|y = y", message), message


def test_the_line_is_the_one_that_failed():
    def model(x):
        y = x * 2
        if y.sum() > 0:
            return y
        return x

    assert f"test_trace_errors.py:{first_line(model) + 2} (model)" in raised(model)


def test_printing_a_tracer_is_allowed():
    seen = []
    mlc.jit(lambda x: seen.append(f"{x} {x!r} {x:>5}") or x)(X)
    assert seen == ["Tracer(f32[2,3]) Tracer(f32[2,3]) Tracer(f32[2,3])"]


def test_tracers_copy_as_themselves():
    assert mlc.jit(lambda x: copy.deepcopy({"a": x})["a"] + copy.copy(x))(X).tolist() == (X + X).tolist()


# --------------------------------------------------------------------------- ops' own errors
@pytest.mark.parametrize(
    "function, error, match",
    numbered(
        (lambda x: x + np.ones(4, "f4"), ShapeError, rf"^add at {HERE} \(<lambda>\): shapes \[2, 3\] and \[4\] do not broadcast"),
        (lambda x: x @ x, ShapeError, rf"^matmul at {HERE}.*contracting axis 1 of the left \(3\) with axis 0 of the right \(2\)"),
        (lambda x: x.reshape(4), ShapeError, rf"^reshape at {HERE}.*f32\[2,3\] has 6 elements, the shape \[4\] has 4"),
        (lambda x: x.reshape(4, -1), ShapeError, rf"^reshape at {HERE}.*cannot hold"),
        (lambda x: x.sum(axis=2), ShapeError, rf"^sum at {HERE}.*axis 2 is out of range for rank 2"),
        (lambda x: x.sum(axis=(0, 0)), ShapeError, rf"^sum at {HERE}.*twice"),
        (lambda x: mlc.nn.softmax(x, axis=5), ShapeError, rf"^softmax at {HERE}.*axis 5 is out of range"),
        (lambda x: ~x, DtypeError, rf"^invert at {HERE}.*operand is f32"),
        (lambda x: x & 1, DtypeError, rf"^bitwise_and at {HERE}"),
        (lambda x: x << 1, DtypeError, rf"^left_shift at {HERE}"),
        (lambda x: -(x > 0), DtypeError, rf"^negative at {HERE}"),
        (lambda x: (x > 0) - (x > 1), DtypeError, rf"^subtract at {HERE}.*logical_xor"),
        (lambda x: x.astype(int) ** -1, DtypeError, rf"^power at {HERE}.*negative power"),
        (lambda x: x.astype("complex64"), DtypeError, rf"^astype at {HERE}.*not supported"),
        (lambda x: x + 1j, DtypeError, rf"^add at {HERE}.*complex"),
        (lambda x: mlc.numpy.concatenate([x, x[0]]), ShapeError, rf"^concatenate at {HERE}"),
        (lambda x: mlc.numpy.concatenate([]), ShapeError, rf"^concatenate at {HERE}"),
        (lambda x: mlc.numpy.stack([x, x[0]]), ShapeError, rf"^stack at {HERE}.*f32\[2,3\] and f32\[3\]"),
        (lambda x: mlc.numpy.split(x, 2, 1), ShapeError, rf"^split at {HERE}.*equal parts"),
        (lambda x: x.transpose(0, 0), ShapeError, rf"^transpose at {HERE}.*permutation"),
        (lambda x: x.squeeze(0), ShapeError, rf"^squeeze at {HERE}.*size 1"),
        (lambda x: mlc.numpy.broadcast_to(x, (2, 2)), ShapeError, rf"^broadcast_to at {HERE}"),
        (lambda x: x.at[0].set(np.ones(5)), ShapeError, rf"^at\[\.\.\.\]\.set at {HERE}.*does not fit"),
        (lambda x: x.at[7].set(1), IndexError, rf"^at at {HERE}.*out of bounds"),
        (lambda x: x[0, 0, 0], IndexError, rf"^indexing at {HERE}.*too many indices"),
        (lambda x: x["a"], ShapeError, rf"^indexing at {HERE}.*not an index"),
        (lambda x: mlc.numpy.asarray([[1, 2], [3]]), ShapeError, rf"^asarray at {HERE}.*ragged"),
        (lambda x: mlc.numpy.asarray([x, x[0]]), ShapeError, rf"^asarray at {HERE}.*differ in shape"),
        (lambda x: mlc.numpy.add(x, [1, 2, 3]), TraceError, rf"^add at {HERE}.*list is not an array.*asarray"),
        (lambda x: mlc.numpy.einsum("ij,jk", x), ShapeError, rf"^einsum at {HERE}.*2 operands"),
        (lambda x: mlc.numpy.zeros((-1,)), ShapeError, rf"^zeros at {HERE}.*negative"),
        (lambda x: mlc.numpy.zeros(2.5), ShapeError, rf"^zeros at {HERE}.*tuple of ints"),
    ),
)
def test_op_error_names_the_op_and_the_line(function, error, match):
    assert re.search(match, raised(function, error=error))


@pytest.mark.parametrize(
    "function, match",
    numbered(
        (lambda x: x.cumsum(0), "cumsum.*yet"),
        (lambda x: mlc.numpy.sort(x), "sort.*not there yet"),
        (lambda x: x[x.argmax()], "gather.*one_hot"),
        (lambda x: x[x > 0], "gather"),
        (lambda x: x.at[x.argmax()].set(1), "gather"),
        (lambda x: x[: x.argmax()], "sliced at a traced position"),
        (lambda x: x.at[np.array([0, 1])].add(1), "scatter"),
        (lambda x: mlc.numpy.where(x), "shape that depends on data"),
        (lambda x: mlc.numpy.unique(x), "shape"),
        (lambda x: np.fft.fft(x), "numpy.fft"),
        (lambda x: np.add.accumulate(x), "np.add.accumulate"),
        (lambda x: mlc.numpy.linalg.norm(x, "nuc"), "singular"),
        (lambda x: np.exp(x, where=x > 0), "where"),
        (lambda x: mlc.numpy.roll(x, x.argmax()), "static"),
        (lambda x: np.sort(x), "not there yet"),
        (lambda x: np.linalg.svd(x), "not there|not available"),
    ),
)
def test_what_is_not_there_says_so(function, match):
    message = raised(function, error=UnsupportedError)
    assert re.search(match, message, re.S) and re.search(HERE, message), message


# --------------------------------------------------------------------------- leaks
def test_leaked_tracer_is_named_when_used():
    kept = []

    def leak(x):
        kept.append(x * 2)
        return x

    mlc.jit(leak)(X)
    line = first_line(leak) + 1
    for use in (
        lambda: kept[0] + 1,
        lambda: mlc.numpy.exp(kept[0]),
        lambda: bool(kept[0]),
        lambda: np.asarray(kept[0]),
        lambda: mlc.jit(lambda y: y)(kept[0]),
        lambda: kept[0].sum(),
        lambda: mlc.asarray(X) + kept[0],
    ):
        with pytest.raises(TraceError, match=rf"leaked traced value at {HERE}.*made at test_trace_errors.py:{line} \(leak\).*return it"):
            use()


def test_tracer_of_an_earlier_recording_in_a_later_one():
    kept = []
    mlc.jit(lambda x: kept.append(x) or x)(X)
    assert re.search(r"leaked.*parameter x of <lambda>", raised(lambda x: x + kept[0]))


def test_tracer_of_an_outer_recording_in_an_inner_lower():
    message = raised(lambda x: mlc.jit(lambda y: y + x).lower(X))
    assert re.search("leaked.*while another function is recorded", message)


def test_tracer_in_another_thread():
    found = []

    def use(x):
        try:
            x + 1
        except MlcError as error:
            found.append(error)

    def model(x):
        t = threading.Thread(target=use, args=(x,))
        t.start()
        t.join()
        return x

    mlc.jit(model)(X)
    assert isinstance(found[0], TraceError)


def test_a_recording_that_failed_does_not_stay_current():
    raised(lambda x: x + np.ones(7), error=ShapeError)
    assert float(mlc.asarray(2.0) + 1) == 3


# --------------------------------------------------------------------------- where nodes come from
def test_nodes_know_line_and_function():
    def helper(x):
        return mlc.nn.softmax(x)

    def model(x):
        y = x + 1
        return helper(y).sum()

    low = mlc.jit(model).lower(X)
    lines = {str(n.meta) for n in low.graph.nodes if n.op.name not in ("parameter", "constant")}
    name = "test_trace_errors.py"
    assert lines == {
        f"{name}:{first_line(model) + 1} (model)",
        f"{name}:{first_line(helper) + 1} (helper)",
        f"{name}:{first_line(model) + 2} (model)",
    }
    assert "test_trace_errors" not in low.as_text()


def test_comprehensions_go_by_their_functions_name():
    def model(x):
        return [x + i for i in range(2)]

    low = mlc.jit(model).lower(X)
    assert {n.meta.function for n in low.graph.nodes if n.op.name == "add"} == {"model"}
