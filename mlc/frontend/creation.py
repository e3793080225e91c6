"""Functions of `mlc.numpy` that make arrays: from data, from a shape, ranges, and triangles."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType, asked_dtype
from mlc.core.errors import DtypeError, ShapeError, TraceError
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.primitives import array_of, compare, like, select
from mlc.frontend.primitives import full as splat
from mlc.frontend.promotion import as_array, as_numpy, broadcast, convert, kind_of, numpy_dtype, promote, promote_dtypes, result_kind
from mlc.frontend.record import emit


def dtype_or(dtype: object, default: DType) -> DType:
    return default if dtype is None else asked_dtype(dtype)


def shape_of(shape: object) -> tuple[int, ...]:
    """A shape argument as a tuple of non-negative ints; ShapeError otherwise."""
    if isinstance(shape, Array):
        raise TraceError("a shape must be known when the function is recorded; make it static (static_argnums)")
    try:
        sizes = (shape,) if hasattr(shape, "__index__") and not (isinstance(shape, np.ndarray) and shape.ndim) else tuple(shape)
        sizes = tuple(n.__index__() for n in sizes)
    except (AttributeError, TypeError):
        raise ShapeError(f"a shape is a tuple of ints, got {shape!r}") from None
    if any(n < 0 for n in sizes):
        raise ShapeError(f"a size cannot be negative: {sizes}")
    return sizes


# --------------------------------------------------------------------------- from data
def _holds_array(value: object) -> bool:
    return isinstance(value, Array) or (isinstance(value, (list, tuple)) and any(map(_holds_array, value)))


def _from_nested(value: list | tuple, dtype: DType | None) -> Array:
    """Nested lists: through NumPy when they hold data only, by stacking when they hold recorded arrays."""
    if _holds_array(value):
        _check_ints(value, dtype)
        parts = [asarray(v) for v in value]
        shapes = {p.type.shape for p in parts}
        if len(shapes) > 1:
            raise ShapeError(f"the parts of a nested list differ in shape: {', '.join(str(list(s)) for s in sorted(shapes))}")
        parts = promote_dtypes(*parts)
        joined = [emit("reshape", (p,), None, TensorType((1, *p.type.shape), p.type.dtype)) for p in parts]
        found = emit("concatenate", joined, {"axis": 0}, weak=False)
        return found if dtype is None else convert(found, dtype)
    try:
        data = np.array(value)
    except (ValueError, OverflowError) as error:
        raise ShapeError(f"a nested list is ragged or holds no numbers: {error}") from None
    if data.dtype.kind == "O":
        raise TraceError("a nested list holds objects that are no numbers, or ints past 64 bits")
    if dtype is not None and dtype.is_int and data.dtype.kind in "iu":
        return as_array(_int_data(value, dtype))
    _check_ints(value, dtype)
    found = as_array(data)
    return found if dtype is None else convert(found, dtype)


def _check_ints(value: object, dtype: DType | None) -> None:
    """DtypeError for a Python int that an integer dtype does not hold, however deep it stands."""
    if dtype is None or not dtype.is_int:
        return
    if isinstance(value, (list, tuple)):
        for each in value:
            _check_ints(each, dtype)
    elif isinstance(value, int):
        _int_data(value, dtype)


def _int_data(value: object, dtype: DType) -> np.ndarray:
    data = np.array(value)
    if data.size:
        least, most = int(data.min()), int(data.max())
        if least < dtype.min or most > dtype.max:
            raise DtypeError(f"{least if least < dtype.min else most} does not fit {dtype}")
    return data.astype(dtype.numpy)


@public(aliases=("array",), creates=True)
def asarray(a, dtype=None, order=None, *, copy=None, device=None):
    """An array of the value: scalars, nested lists, NumPy and foreign arrays, or arrays of mlc; Python scalars stay weak without `dtype`."""
    wanted = None if dtype is None else asked_dtype(dtype)
    if isinstance(a, (list, tuple)):
        return _from_nested(a, wanted)
    if isinstance(a, (bool, int, float)) and not isinstance(a, np.generic):
        _check_ints(a, wanted)
        return as_array(a, wanted)
    if isinstance(a, Array):
        return a if wanted is None else convert(a, wanted)
    data = as_numpy(a)
    if data is None:
        kind_of(a)
        raise TraceError(f"a {type(a).__name__} cannot become an array")
    numpy_dtype(data)
    found = as_array(data)
    return found if wanted is None else convert(found, wanted)


@public
def astype(x, dtype, /, *, copy=True, device=None):
    """x in another dtype: float to integer truncates and saturates (NaN is 0), integers wrap."""
    return convert(array_of(x), dt.f64 if dtype is None else asked_dtype(dtype))


@public
def from_dlpack(x, /, *, device=None, copy=None):
    """An array of anything with `__dlpack__`."""
    return as_array(as_numpy(x))


@public
def copy(a, order=None):
    """a itself: arrays are immutable."""
    return array_of(a)


# --------------------------------------------------------------------------- from a shape
@public(creates=True)
def zeros(shape, dtype=None, *, device=None):
    """Zeros, float64 unless `dtype` says otherwise."""
    return splat(shape_of(shape), 0, dtype_or(dtype, dt.f64))


@public(creates=True)
def ones(shape, dtype=None, *, device=None):
    """Ones, float64 unless `dtype` says otherwise."""
    return splat(shape_of(shape), 1, dtype_or(dtype, dt.f64))


@public(creates=True)
def empty(shape, dtype=None, *, device=None):
    """Zeros: nothing of mlc is ever uninitialised."""
    return splat(shape_of(shape), 0, dtype_or(dtype, dt.f64))


@public(creates=True)
def full(shape, fill_value, dtype=None, *, device=None):
    """One value everywhere, in its own dtype unless `dtype` says otherwise."""
    shape = shape_of(shape)
    found = as_array(fill_value, None if dtype is None else asked_dtype(dtype))
    if not found.type.shape and not isinstance(fill_value, (Array, np.ndarray)):
        return as_array(fill_value, found.type.dtype, found.weak, shape)
    return broadcast(found, shape)


def _like(name: str, value: int | None):
    def function(x, fill_value=value, dtype=None, *, shape=None, device=None):
        x = array_of(x)
        wanted = dtype_or(dtype, x.type.dtype)
        return full(x.type.shape if shape is None else shape, fill_value, wanted)

    def plain(x, dtype=None, *, shape=None, device=None):
        return function(x, value, dtype, shape=shape)
    made = function if value is None else plain
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{name[:-5]} with the shape and dtype of x unless said otherwise."
    return public(made)


zeros_like, ones_like, empty_like, full_like = _like("zeros_like", 0), _like("ones_like", 1), _like("empty_like", 0), _like("full_like", None)


def iota(shape: tuple, axis: int, dtype: DType) -> Array:
    return emit("iota", (), {"axis": axis}, TensorType(shape, dtype), False)


@public(creates=True)
def arange(start, stop=None, step=None, dtype=None, *, device=None):
    """start, start + step, ... below stop; all of them known when the function is recorded."""
    given = [v for v in (start, stop, step) if v is not None]
    if any(isinstance(v, Array) for v in given):
        raise TraceError("the bounds of arange must be known when the function is recorded; make them static (static_argnums)")
    wanted = asked_dtype(dtype) if dtype is not None else result_kind([np.asarray(v) if isinstance(v, np.generic) else v for v in given])[0]
    begin, end = (0, start) if stop is None else (start, stop)
    size = max(0, math.ceil((end - begin) / (1 if step is None else step)))
    if step is None:
        line = iota((size,), 0, wanted)
        return line if begin == 0 else emit("add", (as_array(begin, wanted, False, (size,)), line))
    working = dt.f32 if wanted.is_half else wanted
    scaled = emit("mul", (as_array(step, working, False, (size,)), iota((size,), 0, working)))
    return convert(emit("add", (as_array(begin, working, False, (size,)), scaled)), wanted)


@public(creates=True)
def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, *, device=None):
    """`num` evenly spaced values from start to stop."""
    num = num.__index__()
    if num < 0:
        raise ShapeError(f"number of samples, {num}, must not be negative")
    wanted = None if dtype is None else asked_dtype(dtype)
    working = dt.promote(kind_of(_plain(start)), kind_of(_plain(stop)))[0]
    working = working if working.is_float else dt.f64
    a, b = (as_array(v, working) for v in promote(start, stop))
    shape, div = a.type.shape, num - 1 if endpoint else num
    spread = (num, *shape)

    def over(x: Array) -> Array:
        return emit("broadcast_in_dim", (x,), {"dims": tuple(range(1, len(spread)))}, TensorType(spread, working), False)
    if num == 0:
        out, step = splat(spread, 0, working), splat((), math.nan, working)
    elif num == 1:
        out, step = over(a), splat((), math.nan, working) if endpoint else emit("sub", (b, a))
    else:
        step = emit("div", (emit("sub", (b, a)), like(a, div)))
        out = _lerp(a, b, spread, div, working, over, endpoint)
    if wanted is not None and wanted.is_int:
        out = emit("floor", (out,))
    axis = axis.__index__() % (len(shape) + 1)
    if axis:
        out = emit("transpose", (out,), {"perm": (*range(1, axis + 1), 0, *range(axis + 1, len(spread)))})
    out = convert(out, wanted or working)
    return (out, step) if retstep else out


def _plain(value: object) -> object:
    return as_numpy(value) if not isinstance(value, (Array, bool, int, float)) else value


def _lerp(a: Array, b: Array, spread: tuple, div: int, dtype: DType, over, endpoint: bool) -> Array:
    """a * (1 - t) + b * t for t = i / div, with the end itself exact (`jnp.linspace`)."""
    count = div if endpoint else spread[0]
    part = (count, *spread[1:])
    t = emit("div", (iota(part, 0, dtype), splat(part, div, dtype)))
    lines = [emit("broadcast_in_dim", (x,), {"dims": tuple(range(1, len(part)))}, TensorType(part, dtype), False) for x in (a, b)]
    out = emit("add", (emit("mul", (lines[0], emit("sub", (splat(part, 1, dtype), t)))), emit("mul", (lines[1], t))))
    if not endpoint:
        return out
    last = emit("reshape", (b,), None, TensorType((1, *spread[1:]), dtype), False)
    return emit("concatenate", (out, last), {"axis": 0}, weak=False)


@public(creates=True)
def eye(N, M=None, k=0, dtype=None, *, device=None):
    """Ones on diagonal k, float64 unless `dtype` says otherwise."""
    return convert(_diagonal_mask(*shape_of((N, N if M is None else M)), k.__index__()), dtype_or(dtype, dt.f64))


@public(creates=True)
def identity(n, dtype=None):
    """The n x n identity."""
    return eye(n, dtype=dtype)


def _grid(n: int, m: int, k: int) -> tuple[Array, Array]:
    """Row numbers plus k, and column numbers."""
    row, column = iota((n, m), 0, dt.i32), iota((n, m), 1, dt.i32)
    return emit("add", (row, like(row, k))) if k else row, column


def _diagonal_mask(n: int, m: int, k: int) -> Array:
    return compare("eq", *_grid(n, m, k))


@public(creates=True)
def tri(N, M=None, k=0, dtype=None):
    """Ones on and below diagonal k; float32 by default, as in `jax.numpy`."""
    return convert(compare("ge", *_grid(*shape_of((N, N if M is None else M)), k.__index__())), dtype_or(dtype, dt.f32))


def _triangle(name: str, shift: int, keep_below: bool):
    def function(m, k=0):
        x = array_of(m)
        if x.ndim < 2:
            raise ShapeError(f"the argument must have two axes or more, got {x.type}")
        mask = broadcast(compare("ge", *_grid(*x.type.shape[-2:], k.__index__() - shift)), x.type.shape)
        zero = like(x, 0)
        return select(mask, x, zero) if keep_below else select(mask, zero, x)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{'Lower' if keep_below else 'Upper'} triangle of the last two axes, zeros elsewhere."
    return public(function)


tril, triu = _triangle("tril", 0, True), _triangle("triu", 1, False)


@public
def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    """Coordinate arrays of a grid."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"indexing is 'xy' or 'ij', got {indexing!r}")
    arrays = [array_of(x) for x in xi]
    for x in arrays:
        if x.ndim != 1:
            raise ShapeError(f"every argument must have one axis, got {x.type}")
    if indexing == "xy" and len(arrays) >= 2:
        arrays[0], arrays[1] = arrays[1], arrays[0]
    whole = [1 if sparse else x.type.shape[0] for x in arrays]
    out = [emit("broadcast_in_dim", (x,), {"dims": (i,)}, TensorType([*whole[:i], x.type.shape[0], *whole[i + 1:]], x.type.dtype))
           for i, x in enumerate(arrays)]
    if indexing == "xy" and len(out) >= 2:
        out[0], out[1] = out[1], out[0]
    return out


