"""Reductions against jax.numpy in x64."""

import numpy as np
import pytest
from frontend_samples import agree, agree_each, sample

import mlc

pytestmark = pytest.mark.usefixtures("x64")

SUMS = ["sum", "prod", "mean", "var", "std", "max", "min", "all", "any", "ptp", "count_nonzero"]


def finite(dtype, shape=(3, 5), positive=False):
    x = sample(dtype, shape, positive=positive)
    if x.dtype.kind in "iu" and x.dtype.itemsize > 2:
        x = x % np.array(50, x.dtype)  # large ones cancel in float32, in whatever order they are added
    return np.nan_to_num(x.astype(np.float64), nan=0.25, posinf=3, neginf=-2).astype(x.dtype) if x.dtype.kind not in "biu" else x


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "u16", "i64", "bool"])
def test_reductions_over_an_axis(dtype):
    names = [n for n in SUMS if (n, dtype) != ("ptp", "bool")]
    agree_each(names, lambda m, name, x: getattr(m.numpy, name)(x, axis=1, keepdims=True), finite(dtype), ulps=16)


@pytest.mark.parametrize("dtype", ["f16", "f64", "i32", "u8"])
def test_reductions_over_all_axes(dtype):
    agree_each(SUMS, lambda m, name, x: getattr(m.numpy, name)(x), finite(dtype), ulps=32)


def test_nan_and_infinity_pass_through_reductions():
    x = sample("f32", (4, 9))
    agree(lambda m, x: (x.sum(0), x.prod(0), x.max(0), x.min(0), x.mean(0), x.var(0), x.argmax(0), x.argmin(1), x.any(), x.all(0)), x, ulps=16)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), [1]])
def test_axis_forms(axis):
    agree(lambda m, x: (m.numpy.sum(x, axis=tuple(axis) if isinstance(axis, list) else axis), m.numpy.max(x, axis=axis, keepdims=True)),
          finite("f32", (2, 3, 4)), ulps=16)


@pytest.mark.parametrize("dtype", ["f32", "i16", "bool", "bf16"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions(name, dtype):
    agree(lambda m, x: (getattr(m.numpy, name)(x), getattr(m.numpy, name)(x, axis=0), getattr(m.numpy, name)(x, 1, keepdims=True)), sample(dtype))


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "any", "all", "var", "std"])
def test_where_and_initial(name):
    def function(m, x, w):
        kwargs = {"initial": 2} if name in ("sum", "prod", "max", "min") else {}
        return getattr(m.numpy, name)(x, axis=0, where=w, **kwargs)
    agree(function, finite("f32"), sample("bool", (3, 5), seed=2), ulps=16)


@pytest.mark.parametrize("dtype", ["f64", "f16", "i8", "u8"])
def test_explicit_dtype_is_the_dtype_of_the_computation(dtype):
    agree(lambda m, x: (m.numpy.sum(x, axis=0, dtype="float32"), m.numpy.sum(x, dtype="int8"), m.numpy.mean(x, dtype="float64"),
                        m.numpy.prod(x, axis=1, dtype="float16")), finite(dtype, positive=True), ulps=32)


def test_sum_keeps_the_dtype_on_request():
    agree(lambda m, x: m.numpy.sum(x, promote_integers=False), sample("i8"))


@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_nan_reductions(dtype):
    def function(m, x):
        n = m.numpy
        return n.nansum(x, 0), n.nanprod(x, 1), n.nanmax(x, 0), n.nanmin(x, 1), n.nanmean(x, 0), n.nanmean(x, 1, keepdims=True)
    agree(function, sample(dtype), ulps=16)


def test_average_with_weights():
    def function(m, x, w, v):
        n = m.numpy
        return n.average(x, 0), n.average(x, weights=w), n.average(x, 1, v), n.average(x, 0, w, returned=True)
    agree(function, finite("f32"), finite("f32", positive=True), finite("i8", (5,), positive=True), ulps=16)


def test_ddof_and_degenerate_variance():
    agree(lambda m, x: (x.var(0, ddof=1), x.std(1, ddof=2), m.numpy.var(x, correction=1), m.numpy.var(x[:1], axis=0, ddof=1)), finite("f32"), ulps=32)


@pytest.mark.parametrize("equal_nan", [False, True])
def test_closeness(equal_nan):
    x, y = sample("f32"), sample("f32") * np.float32(1 + 1e-6)
    agree(lambda m, x, y: (m.numpy.isclose(x, y, equal_nan=equal_nan), m.numpy.allclose(x, y, equal_nan=equal_nan),
                           m.numpy.array_equal(x, x, equal_nan=equal_nan), m.numpy.array_equal(x, y[:2])), x, y)


def test_empty_axes():
    x = np.zeros((0, 3), np.float32)
    agree(lambda m, x: (x.sum(0), x.prod(0), x.any(0), x.all(), x.mean(0), x.max(1), m.numpy.max(x, 0, initial=-1)), x)


def test_extreme_of_nothing_is_an_error():
    for function in (lambda x: x.max(0), lambda x: x.argmin(0)):
        with pytest.raises(mlc.errors.ShapeError, match="element"):
            mlc.jit(function)(np.zeros((0, 3), np.float32))
