"""Ops that move elements without touching them, and the leaves: parameter, constant, iota."""

from __future__ import annotations

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dims import TensorType
from mlc.core.errors import DtypeError, ShapeError
from mlc.ops.base import FRESH, LEAF, OPAQUE, VIEW, OpDef, Piece, check_axes, movement, register


def _identity_axes(count: int):
    return tuple((0, ((axis, 1),)) for axis in range(count))


def _whole(out: TensorType, source) -> list[Piece]:
    return [Piece(0, tuple(out.shape), (0,) * out.rank, (1,) * out.rank, source)]


# --------------------------------------------------------------------------- broadcast_in_dim
def _infer_broadcast(types, attrs, given):
    (x,), dims = types, attrs["dims"]
    if len(dims) != x.rank or list(dims) != sorted(set(dims)) or any(not 0 <= d < given.rank for d in dims):
        raise ShapeError(f"broadcast_in_dim: dims {list(dims)} must name {x.rank} distinct, increasing axes of the result {given}")
    for axis, d in enumerate(dims):
        if x.shape[axis] not in (1, given.shape[d]):
            raise ShapeError(f"broadcast_in_dim: axis {axis} of {x} cannot become axis {d} of {given}; sizes must be equal, or 1")
    return TensorType(given.shape, x.dtype)


def _np_broadcast(x, *, dims, shape, dtype):
    spread = [1] * len(shape)
    for axis, d in enumerate(dims):
        spread[d] = x.shape[axis]
    return np.broadcast_to(x.reshape(spread), shape).copy()


broadcast_in_dim = movement(
    "broadcast_in_dim", version=1, arity=1, attrs={"dims": "axes"}, typed=True, infer=_infer_broadcast, numpy=_np_broadcast,
    jax=lambda jnp, lax, x, *, dims, shape, dtype: lax.broadcast_in_dim(x, shape, dims),
    pieces=lambda types, attrs, out: _whole(out, tuple(
        (0, () if types[0].shape[axis] == 1 else ((d, 1),)) for axis, d in enumerate(attrs["dims"]))))


# --------------------------------------------------------------------------- reshape, transpose
def _infer_reshape(types, attrs, given):
    if types[0].size != given.size:
        raise ShapeError(f"reshape: {types[0]} has {types[0].size} elements, the result {given} has {given.size}")
    return TensorType(given.shape, types[0].dtype)


reshape = movement(
    "reshape", version=1, arity=1, attrs={}, typed=True, infer=_infer_reshape, alias=VIEW,
    numpy=lambda x, *, shape, dtype: x.reshape(shape), jax=lambda jnp, lax, x, *, shape, dtype: lax.reshape(x, shape))


def _infer_transpose(types, attrs, given):
    (x,), perm = types, attrs["perm"]
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"transpose: perm {list(perm)} is not a permutation of the axes of {x}")
    return TensorType([x.shape[p] for p in perm], x.dtype)


transpose = movement(
    "transpose", version=1, arity=1, attrs={"perm": "ints"}, infer=_infer_transpose,
    numpy=lambda x, *, perm: np.asarray(np.transpose(x, perm), order="C"), jax=lambda jnp, lax, x, *, perm: lax.transpose(x, perm),
    pieces=lambda types, attrs, out: _whole(out, tuple(
        (0, ((attrs["perm"].index(axis), 1),)) for axis in range(out.rank))))


# --------------------------------------------------------------------------- slice, rev
def _infer_slice(types, attrs, given):
    (x,) = types
    start, limit, step = attrs["start"], attrs["limit"], attrs["strides"]
    if not len(start) == len(limit) == len(step) == x.rank:
        raise ShapeError(f"slice: start, limit and strides need {x.rank} entries for {x}")
    for axis, (a, b, s, n) in enumerate(zip(start, limit, step, x.shape)):
        if not (0 <= a <= b <= n and s > 0):
            raise ShapeError(f"slice: axis {axis} of {x}: start {a}, limit {b}, stride {s}; need 0 <= start <= limit <= {n} and stride > 0")
    return TensorType([-(-(b - a) // s) for a, b, s in zip(start, limit, step)], x.dtype)


slice_ = movement(
    "slice", version=1, arity=1, attrs={"start": "ints", "limit": "ints", "strides": "ints"}, infer=_infer_slice,
    numpy=lambda x, *, start, limit, strides: x[tuple(map(slice, start, limit, strides))].copy(),
    jax=lambda jnp, lax, x, *, start, limit, strides: lax.slice(x, start, limit, strides),
    pieces=lambda types, attrs, out: _whole(out, tuple(
        (a, ((axis, s),)) for axis, (a, s) in enumerate(zip(attrs["start"], attrs["strides"])))))


def _infer_rev(types, attrs, given):
    check_axes("rev", attrs["axes"], types[0].rank)
    return types[0]


rev = movement(
    "rev", version=1, arity=1, attrs={"axes": "axes"}, infer=_infer_rev,
    numpy=lambda x, *, axes: np.asarray(np.flip(x, axes), order="C"), jax=lambda jnp, lax, x, *, axes: lax.rev(x, axes),
    pieces=lambda types, attrs, out: _whole(out, tuple(
        (out.shape[axis] - 1, ((axis, -1),)) if axis in attrs["axes"] else (0, ((axis, 1),)) for axis in range(out.rank))))


# --------------------------------------------------------------------------- concatenate, pad
def _infer_concatenate(types, attrs, given):
    axis = attrs["axis"]
    if not types:
        raise ShapeError("concatenate: at least one operand is needed")
    first = types[0]
    if not 0 <= axis < first.rank:
        raise ShapeError(f"concatenate: axis {axis} is out of range for {first}")
    for other in types[1:]:
        if other.dtype is not first.dtype:
            raise DtypeError(f"concatenate: operands are {first} and {other}; dtypes must be equal (convert first)")
        if other.rank != first.rank or any(a != b for i, (a, b) in enumerate(zip(other.shape, first.shape)) if i != axis):
            raise ShapeError(f"concatenate: {first} and {other} differ outside axis {axis}")
    shape = list(first.shape)
    shape[axis] = sum(t.shape[axis] for t in types)
    return TensorType(shape, first.dtype)


def _concatenate_pieces(types, attrs, out):
    pieces, offset = [], 0
    for k, part in enumerate(types):
        start = tuple(offset if axis == attrs["axis"] else 0 for axis in range(out.rank))
        pieces.append(Piece(k, tuple(part.shape), start, (1,) * out.rank, _identity_axes(out.rank)))
        offset += part.shape[attrs["axis"]]
    return pieces


concatenate = movement(
    "concatenate", version=1, arity=None, attrs={"axis": "int"}, infer=_infer_concatenate, fusion=OPAQUE,
    numpy=lambda *xs, axis: np.concatenate(xs, axis), jax=lambda jnp, lax, *xs, axis: lax.concatenate(xs, axis), pieces=_concatenate_pieces)


def _infer_pad(types, attrs, given):
    x, value = types
    if value.rank or value.dtype is not x.dtype:
        raise ShapeError(f"pad: the padding value must be a scalar {x.dtype}, got {value}")
    if len(attrs["pads"]) != x.rank or any(len(p) != 3 for p in attrs["pads"]):
        raise ShapeError(f"pad: pads need {x.rank} entries (low, high, interior) for {x}")
    shape = []
    for axis, (n, (low, high, interior)) in enumerate(zip(x.shape, attrs["pads"])):
        if interior < 0:
            raise ShapeError(f"pad: axis {axis}: interior padding {interior} is negative")
        size = low + high + n + max(n - 1, 0) * interior
        if size < 0:
            raise ShapeError(f"pad: axis {axis} of {x} would get the size {size}")
        shape.append(size)
    return TensorType(shape, x.dtype)


def _pad_box(n: int, size: int, low: int, interior: int) -> tuple[int, int]:
    """First operand index that lands inside the result, and how many do."""
    step = interior + 1
    first = max(0, -(low // step))
    last = min(n - 1, (size - 1 - low) // step)
    return first, max(0, last - first + 1)


def _np_pad(x, value, *, pads):
    size = [low + high + n + max(n - 1, 0) * inner for n, (low, high, inner) in zip(x.shape, pads)]
    out = np.full(size, value, x.dtype)
    places = [low + np.arange(n) * (inner + 1) for n, (low, _, inner) in zip(x.shape, pads)]
    kept = [np.flatnonzero((to >= 0) & (to < s)) for to, s in zip(places, size)]
    if x.ndim:
        out[np.ix_(*(to[k] for to, k in zip(places, kept)))] = x[np.ix_(*kept)]
    return out if x.ndim else x.copy()


def _pad_pieces(types, attrs, out):
    boxes = [_pad_box(n, s, low, inner) for n, s, (low, _, inner) in zip(types[0].shape, out.shape, attrs["pads"])]
    start = tuple(low + first * (inner + 1) for (first, _), (low, _, inner) in zip(boxes, attrs["pads"]))
    fill = Piece(1, tuple(out.shape), (0,) * out.rank, (1,) * out.rank, ())
    inside = Piece(0, tuple(count for _, count in boxes), start, tuple(p[2] + 1 for p in attrs["pads"]),
                   tuple((first, ((axis, 1),)) for axis, (first, _) in enumerate(boxes)))
    return [inside] if inside.shape == tuple(out.shape) else [fill, inside]


pad = movement(
    "pad", version=1, arity=2, attrs={"pads": "pairs"}, infer=_infer_pad, fusion=OPAQUE, numpy=_np_pad,
    jax=lambda jnp, lax, x, value, *, pads: lax.pad(x, value, pads), pieces=_pad_pieces)


# --------------------------------------------------------------------------- leaves
def _infer_iota(types, attrs, given):
    if given.dtype.kind == "b":
        raise DtypeError("iota: the result must be numeric, got bool")
    if not 0 <= attrs["axis"] < given.rank:
        raise ShapeError(f"iota: axis {attrs['axis']} is out of range for {given}")
    return given


def _np_iota(*, axis, shape, dtype):
    from mlc.core.scalar_eval import convert
    line = np.arange(shape[axis], dtype=np.int64)
    line = line.astype(dtype) if dtype == np.longdouble else convert(line, dt.i64, dt.as_dtype(dtype))
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape).copy()


iota = movement(
    "iota", version=1, arity=0, attrs={"axis": "int"}, typed=True, infer=_infer_iota, numpy=_np_iota, dtypes=dt.NUMERIC,
    jax=lambda jnp, lax, *, axis, shape, dtype: lax.broadcasted_iota(dtype, shape, axis), inputs=(),
    generate=lambda indices, attrs, out: ex.convert(indices[attrs["axis"]], out.dtype))


def _infer_constant(types, attrs, given):
    value = attrs["value"]
    if value.dtype is not given.dtype or not (value.is_scalar or value.array.shape == tuple(given.shape)):
        raise ShapeError(f"constant: data is {value.dtype}{list(value.array.shape)}, the node says {given}")
    return given


def _generate_splat(indices, attrs, out):
    array = attrs["value"].array
    if out.dtype.is_float:
        return ex.const_bits(int(array.view(dt.uint_of(out.dtype).numpy)), out.dtype)
    return ex.const(array[()], out.dtype)


constant = movement(
    "constant", version=1, arity=0, attrs={"value": "literal"}, typed=True, infer=_infer_constant, inputs=(),
    numpy=lambda *, value, shape, dtype: np.broadcast_to(value.array, shape).astype(dtype),
    jax=lambda jnp, lax, *, value, shape, dtype: jnp.broadcast_to(jnp.asarray(value.array, dtype), shape), generate=_generate_splat)

parameter = register(OpDef(
    name="parameter", version=1, arity=0, attrs={"name": "str"}, dtypes=dt.ALL, infer=lambda types, attrs, given: given, numpy=None, jax=None,
    fusion=LEAF, alias=FRESH, facts=(), ulp={}, inputs=(), typed=True))

