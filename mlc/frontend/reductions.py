"""Reductions of `mlc.numpy`: sums promote narrow integers to 64 bits, half floats compute in float32, as in `jax.numpy`."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, normalize_axes, normalize_axis
from mlc.core.dtype import DType, asked_dtype
from mlc.core.errors import DtypeError, ShapeError
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.binary import isclose
from mlc.frontend.primitives import array_of, compare, full, like, refuse_out, select, to_bool
from mlc.frontend.promotion import as_array, broadcast, convert, promote, promote_dtypes, to_inexact, to_numeric
from mlc.frontend.record import emit


def keep(x: Array, shape: tuple, axes: tuple[int, ...]) -> Array:
    """A reduced array with the reduced axes of `shape` back as 1s."""
    return emit("reshape", (x,), None, TensorType([1 if i in axes else n for i, n in enumerate(shape)], x.type.dtype))


def wide(dtype: DType) -> DType:
    """float32 for half floats: what `jax.numpy` computes their sums in."""
    return dt.f32 if dtype.is_half else dtype


def _sum_dtype(dtype: DType) -> DType:
    if dtype is dt.bool_ or dtype.kind == "i":
        return dt.i64
    return dt.u64 if dtype.kind == "u" else dtype


def _mask(x: Array, where: object, identity: object) -> Array:
    """x with the elements that `where` leaves out replaced by the identity."""
    condition = as_array(where)
    if condition.type.dtype is not dt.bool_:
        raise DtypeError(f"where must be bool, got {condition.type}")
    shape = np.broadcast_shapes(condition.type.shape, x.type.shape)
    x = broadcast(x, shape)
    return select(broadcast(condition, shape), x, like(x, identity))


def reduce(op: str, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """One reduction op; the result is never weak."""
    out = emit(op, (x,), {"axes": axes}, weak=False)
    return keep(out, x.type.shape, axes) if keepdims else out


def _identity(op: str, dtype: DType) -> object:
    return {"reduce_sum": 0, "reduce_prod": 1, "reduce_max": dtype.min, "reduce_min": dtype.max,
            "reduce_and": True, "reduce_or": False}[op]


def _fold(op: str, x: Array, axis, keepdims, initial, where, combine: str, needs_element: bool = False) -> Array:
    if where is not None:
        if needs_element and initial is None:
            raise ShapeError("where needs initial=, because there is no identity")
        x = _mask(x, where, _identity(op, x.type.dtype))
    axes = normalize_axes(axis, x.ndim, "axis")
    if needs_element and initial is None and any(x.type.shape[a] == 0 for a in axes):
        raise ShapeError(f"{x.type} has no element along axes {list(axes)}, and there is no identity; give initial=")
    out = reduce(op, x, axes, keepdims)
    if initial is not None:
        start = as_array(initial, x.type.dtype)
        if start.ndim:
            raise ShapeError(f"initial must be a scalar, got {start.type}")
        out = emit(combine, (broadcast(start, out.type.shape), out), weak=False)
    return out


def _sum_like(op: str, combine: str, a, axis, dtype, keepdims, initial, where, promote_integers) -> Array:
    (x,) = promote(a, to=to_numeric)
    source = array_of(a).type.dtype if isinstance(a, Array) else x.type.dtype
    result = asked_dtype(dtype) if dtype is not None else _sum_dtype(source) if promote_integers else x.type.dtype
    # As in jax.numpy: an explicit dtype is also the dtype of the computation.
    x = convert(x, wide(result) if dtype is None else result)
    if result is dt.bool_:
        op, combine = ("reduce_or", "or") if op == "reduce_sum" else ("reduce_and", "and")
    return convert(_fold(op, x, axis, keepdims, initial, where, combine), result)


@public(name="sum")
def sum_(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None, promote_integers=True):
    """Sum over axes (all by default); integers and bools give 64-bit integers unless `dtype` says otherwise."""
    refuse_out(out)
    return _sum_like("reduce_sum", "add", a, axis, dtype, keepdims, initial, where, promote_integers)


@public
def prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None, promote_integers=True):
    """Product over axes (all by default); integers and bools give 64-bit integers unless `dtype` says otherwise."""
    refuse_out(out)
    return _sum_like("reduce_prod", "mul", a, axis, dtype, keepdims, initial, where, promote_integers)


@public(name="max", aliases=("amax",))
def max_(a, axis=None, out=None, keepdims=False, initial=None, where=None):
    """Maximum over axes; NaN if any element is. ShapeError for no elements without `initial`."""
    refuse_out(out)
    return _fold("reduce_max", array_of(a), axis, keepdims, initial, where, "max", True)


@public(name="min", aliases=("amin",))
def min_(a, axis=None, out=None, keepdims=False, initial=None, where=None):
    """Minimum over axes; NaN if any element is. ShapeError for no elements without `initial`."""
    refuse_out(out)
    return _fold("reduce_min", array_of(a), axis, keepdims, initial, where, "min", True)


@public(name="all")
def all_(a, axis=None, out=None, keepdims=False, *, where=None):
    """Whether every element is nonzero."""
    refuse_out(out)
    return _fold("reduce_and", to_bool(array_of(a)), axis, keepdims, None, where, "and")


@public(name="any")
def any_(a, axis=None, out=None, keepdims=False, *, where=None):
    """Whether some element is nonzero."""
    refuse_out(out)
    return _fold("reduce_or", to_bool(array_of(a)), axis, keepdims, None, where, "or")


@public
def count_nonzero(a, axis=None, keepdims=False):
    """How many elements are nonzero, as int64."""
    return sum_(to_bool(array_of(a)), axis=axis, dtype=dt.i64, keepdims=keepdims)


@public
def ptp(a, axis=None, out=None, keepdims=False):
    """max - min."""
    refuse_out(out)
    x = array_of(a)
    return emit("sub", (max_(x, axis, keepdims=keepdims), min_(x, axis, keepdims=keepdims)))


def count(x: Array, axis, keepdims: bool, where: object, dtype: DType) -> Array:
    """How many elements each result is made from: a scalar constant, or a sum when `where` masks."""
    if where is None:
        axes = normalize_axes(axis, x.ndim, "axis")
        return full((), math.prod(x.type.shape[a] for a in axes), dtype)
    return sum_(broadcast(as_array(where), x.type.shape), axis, dtype=dtype, keepdims=keepdims)


@public
def mean(a, axis=None, dtype=None, out=None, keepdims=False, *, where=None):
    """Sum divided by the count; integers give floats, half floats compute in float32."""
    refuse_out(out)
    x = array_of(a)
    result = to_inexact(x.type.dtype) if dtype is None else asked_dtype(dtype)
    working = wide(result) if dtype is None else result
    total = sum_(x, axis, dtype=working, keepdims=keepdims, where=where)
    return convert(_divide(total, count(x, axis, keepdims, where, working)), result)


def _divide(x: Array, y: Array) -> Array:
    return emit("div", (x, broadcast(y, x.type.shape)), weak=False)


@public
def var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=None, mean=None, correction=None):
    """Mean of squared distances from the mean, divided by count - ddof; NaN when that is not positive."""
    refuse_out(out)
    return _var(array_of(a), axis, dtype, ddof if correction is None else correction, keepdims, where, mean)


_mean = mean


def _var(x: Array, axis, dtype, correction, keepdims, where, center) -> Array:
    result = to_inexact(x.type.dtype) if dtype is None else asked_dtype(dtype)
    working = wide(result)
    x = convert(x, working)
    center = _mean(x, axis, dtype=working, keepdims=True, where=where) if center is None else as_array(center, working)
    distance = emit("sub", (x, broadcast(center, x.type.shape)))
    normalizer = count(x, axis, keepdims, where, working)
    normalizer = emit("sub", (normalizer, broadcast(as_array(correction, working), normalizer.type.shape)), weak=False)
    total = sum_(emit("mul", (distance, distance)), axis, dtype=working, keepdims=keepdims, where=where)
    normalizer = broadcast(normalizer, total.type.shape)
    out = convert(emit("div", (total, normalizer), weak=False), result)
    return select(compare("gt", normalizer, like(normalizer, 0)), out, like(out, np.nan)) if result.is_float else out


@public
def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=None, mean=None, correction=None):
    """The square root of `var`."""
    refuse_out(out)
    return emit("sqrt", (_var(array_of(a), axis, dtype, ddof if correction is None else correction, keepdims, where, mean),))


@public
def average(a, axis=None, weights=None, returned=False, keepdims=False):
    """Mean, or sum(a * weights) / sum(weights)."""
    if weights is None:
        (x,) = promote(a, to=to_inexact)
        out = mean(x, axis, keepdims=keepdims)
        total = broadcast(count(x, axis, False, None, out.type.dtype), out.type.shape)
        return (out, total) if returned else out
    x, w = promote_dtypes(a, weights, to=to_inexact)
    if x.type.shape != w.type.shape:
        if not hasattr(axis, "__index__") or w.type.shape != (x.type.shape[normalize_axis(axis, x.ndim, "axis")],):
            raise ShapeError(f"a is {x.type} and weights are {w.type}; they must be equal, or weights one axis of a named by axis=")
        at = normalize_axis(axis, x.ndim, "axis")
        w = emit("broadcast_in_dim", (w,), {"dims": (at,)}, TensorType([n if i == at else 1 for i, n in enumerate(x.type.shape)], w.type.dtype))
    total = sum_(w, axis, keepdims=keepdims)
    weighted = sum_(emit("mul", (x, broadcast(w, x.type.shape))), axis, keepdims=keepdims)
    out = emit("div", (weighted, broadcast(total, weighted.type.shape)))
    return (out, broadcast(total, out.type.shape)) if returned else out


def _arg(name: str):
    def function(a, axis=None, out=None, keepdims=None):
        refuse_out(out)
        x = array_of(a)
        axes = tuple(range(x.ndim)) if axis is None else (normalize_axis(axis, x.ndim, "axis"),)
        found = emit(name, (x,), {"axes": axes}, TensorType([n for i, n in enumerate(x.type.shape) if i not in axes], dt.i64), False)
        return keep(found, x.type.shape, axes) if keepdims else found
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}: int64 index of the extreme element (of the flattened array by default); the first wins, and NaN beats all."
    return public(function)


argmax, argmin = _arg("argmax"), _arg("argmin")


def _nan(name: str, plain, identity: object, empty_is_nan: bool):
    def function(a, axis=None, keepdims=False, where=None, **kwargs):
        x = array_of(a)
        if not x.type.dtype.is_float:
            return plain(x, axis=axis, keepdims=keepdims, where=where, **kwargs)
        missing = compare("ne", x, x)
        out = plain(select(missing, like(x, identity), x), axis=axis, keepdims=keepdims, where=where, **kwargs)
        if not empty_is_nan:
            return out
        return select(all_(missing, axis=axis, keepdims=keepdims), like(out, np.nan), out)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name[3:]} that leaves NaN out."
    return public(function)


nansum, nanprod = _nan("nansum", sum_, 0, False), _nan("nanprod", prod, 1, False)
nanmax, nanmin = _nan("nanmax", max_, -np.inf, True), _nan("nanmin", min_, np.inf, True)


@public
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False, where=None):
    """Mean that leaves NaN out; NaN when nothing is left."""
    refuse_out(out)
    x = array_of(a)
    if not x.type.dtype.is_float:
        return mean(x, axis, dtype, keepdims=keepdims, where=where)
    present = emit("not", (compare("ne", x, x),), weak=False)
    number = sum_(present, axis=axis, dtype=dt.i32, keepdims=keepdims, where=where)
    total = nansum(x, axis, keepdims=keepdims, where=where) if dtype is None else nansum(x, axis, dtype=dtype, keepdims=keepdims, where=where)
    return emit("div", promote(total, number, to=to_inexact), weak=False)


@public
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan: bool = False):
    """Whether every element is close (`isclose`)."""
    return all_(isclose(a, b, rtol, atol, equal_nan))


@public
def array_equal(a1, a2, equal_nan: bool = False):
    """Whether shapes and all elements are equal."""
    x, y = array_of(a1), array_of(a2)
    if x.type.shape != y.type.shape:
        return as_array(False)
    x, y = promote(x, y)
    same = compare("eq", x, y)
    if equal_nan:
        same = emit("or", (same, emit("and", (compare("ne", x, x), compare("ne", y, y)), weak=False)), weak=False)
    return all_(same)


@public(namespace="nn")
def logsumexp(a, axis=None, b=None, keepdims=False, return_sign=False, where=None):
    """log(sum(b * exp(a))) without overflow (`jax.scipy.special.logsumexp`)."""
    if where is not None:
        x, w = array_of(a), as_array(where)
        shape = np.broadcast_shapes(x.type.shape, w.type.shape)
        x = broadcast(x, shape)
        a = select(broadcast(w, shape), x, like(x, 0))
    if b is None:
        (x,) = promote(a, to=to_inexact)
    else:
        x, scale = promote(a, b, to=to_inexact)
        x = select(compare("ne", scale, like(scale, 0)), x, like(x, -np.inf))
    axes = normalize_axes(axis, x.ndim, "axis")
    top = max_(x, axes, keepdims=True, where=where, initial=-np.inf)
    top = select(emit("is_finite", (top,), weak=False), top, like(top, 0))
    powers = emit("exp", (emit("sub", (x, broadcast(top, x.type.shape)), weak=False),))
    if b is not None:
        powers = emit("mul", (powers, scale), weak=False)
    total = sum_(powers, axes, keepdims=keepdims, where=where)
    sign = emit("sign", (total,))
    top = top if keepdims else emit("reshape", (top,), None, total.type)
    out = emit("add", (emit("log", (emit("abs", (total,)),)), top))
    if return_sign:
        return out, sign
    return out if b is None else select(compare("lt", sign, like(sign, 0)), like(out, np.nan), out)


