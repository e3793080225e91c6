"""Shapes, tensor types, axes and broadcasting, against NumPy."""

import itertools
import pickle

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.dims import (
    Dim,
    TensorType,
    broadcast_shapes,
    normalize_axes,
    normalize_axis,
    parse_type,
    row_major_strides,
    static_shape,
)
from mlc.core.errors import DtypeError, ParseError, ShapeError, UnsupportedError


@pytest.mark.parametrize("text", ["f32[64,784]", "f32[]", "bf16[0]", "bool[1,2,3,4]", "u64[B,128]", "i8[B,T,B]"])
def test_types_print_as_they_are_written(text):
    assert str(parse_type(text)) == text and parse_type(text) == parse_type(f"  {text.replace(',', ' , ').replace('[', ' [ ')} ")


@pytest.mark.parametrize("text, error", [
    ("f32", ParseError), ("[3]", ParseError), ("f32[3", ParseError), ("f32[3]]", ParseError), ("f32[1.5]", ParseError), ("f32[a-b]", ParseError),
    ("f32[,]", ParseError), ("f32[3,]", ParseError), ("", ParseError), ("f33[3]", DtypeError), ("f32[-1]", ShapeError), ("F32[3]", ParseError),
])
def test_malformed_types_are_refused(text, error):
    with pytest.raises(error):
        parse_type(text)


def test_types_are_equal_by_shape_and_dtype():
    assert TensorType([2, 3], dt.f32) == parse_type("f32[2,3]") and hash(TensorType([2, 3], dt.f32)) == hash(parse_type("f32[2,3]"))
    assert len({parse_type(t) for t in ("f32[2,3]", "f32[3,2]", "f16[2,3]", "f32[B,3]", "f32[6]", "f32[2,3]")}) == 5
    assert parse_type("f32[]") != "f32[]"
    assert pickle.loads(pickle.dumps(parse_type("bf16[B,2]"))) == parse_type("bf16[B,2]")


def test_sizes():
    t = parse_type("f32[4,3,2]")
    assert (t.rank, t.size, t.nbytes) == (3, 24, 96) and t.with_dtype(dt.i8).nbytes == 24
    assert parse_type("f64[]").size == 1 and parse_type("f64[3,0]").nbytes == 0


def test_symbolic_sizes_are_refused_by_name():
    for ask in (lambda: parse_type("f32[2,Batch]").size, lambda: static_shape((2, Dim("Batch")), "argument x")):
        with pytest.raises(UnsupportedError, match="symbolic dim 'Batch'"):
            ask()


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (1, 0, 3), (7, 1)])
def test_row_major_strides_are_numpys(shape):
    want = np.empty([max(n, 1) for n in shape], np.int8).strides
    assert [s for s, n in zip(row_major_strides(shape), shape) if n > 1] == [w for w, n in zip(want, shape) if n > 1] or 0 in shape


def test_axes_are_normalized_like_numpys():
    assert normalize_axes(None, 3, "sum") == (0, 1, 2) and normalize_axes(-1, 3, "sum") == (2,) and normalize_axes([2, 0], 3, "sum") == (0, 2)
    assert normalize_axes(np.int64(1), 3, "sum") == (1,) and normalize_axes((), 3, "sum") == () and normalize_axis(-3, 3, "sum") == 0


@pytest.mark.parametrize("axes, message", [(3, "axis 3 is out of range for rank 3"), (-4, "out of range"), ((0, -3), "name one axis twice"),
                                           ((0, 0), "twice"), ((1.5,), "must be an int, got 1.5"), (("x",), "must be an int")])
def test_axes_that_do_not_exist_are_refused(axes, message):
    with pytest.raises(ShapeError, match=message):
        normalize_axes(axes, 3, "sum")


def test_broadcasting_is_numpys():
    shapes = [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (4, 1, 3), (0,), (2, 0), (1, 1, 1)]
    for a, b in itertools.product(shapes, repeat=2):
        try:
            want = np.broadcast_shapes(a, b)
        except ValueError:
            with pytest.raises(ShapeError, match="do not broadcast"):
                broadcast_shapes(a, b)
        else:
            assert broadcast_shapes(a, b) == want
    assert broadcast_shapes((2, 1), (3,), (4, 1, 1)) == (4, 2, 3) and broadcast_shapes() == ()


def test_named_dims_broadcast_by_name():
    b, t = Dim("B"), Dim("T")
    assert broadcast_shapes((b, 1), (1, t), (t,)) == (b, t)
    with pytest.raises(ShapeError):
        broadcast_shapes((b,), (t,))
