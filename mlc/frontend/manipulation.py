"""Functions of `mlc.numpy` that move elements: shapes, axes, joining, splitting, padding, repeating. Exact in every dtype."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

import numpy as np

from mlc.core.dims import TensorType, broadcast_shapes, normalize_axes, normalize_axis
from mlc.core.errors import ShapeError, TraceError, UnsupportedError
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.creation import asarray, shape_of
from mlc.frontend.primitives import array_of, refuse_out
from mlc.frontend.promotion import as_array, broadcast, convert, promote_dtypes
from mlc.frontend.record import emit


def _shaped(x: Array, shape: Sequence[int]) -> Array:
    shape = tuple(shape)
    return x if shape == x.type.shape else emit("reshape", (x,), None, TensorType(shape, x.type.dtype))


def permuted(x: Array, perm: Sequence[int]) -> Array:
    """x with its axes in this order; nothing is recorded for the identity."""
    perm = tuple(perm)
    return x if perm == tuple(range(x.ndim)) else emit("transpose", (x,), {"perm": perm})


def sliced(x: Array, start: Sequence[int], limit: Sequence[int], strides: Sequence[int]) -> Array:
    """The slice op, left out when it takes everything."""
    if tuple(limit) == x.type.shape and not any(start) and all(s == 1 for s in strides):
        return x
    return emit("slice", (x,), {"start": tuple(start), "limit": tuple(limit), "strides": tuple(strides)})


def part(x: Array, axis: int, start: int, limit: int, stride: int = 1) -> Array:
    """Elements start:limit:stride along one axis."""
    starts, limits, strides = [0] * x.ndim, list(x.type.shape), [1] * x.ndim
    starts[axis], limits[axis], strides[axis] = start, max(start, limit), stride
    return sliced(x, starts, limits, strides)


# --------------------------------------------------------------------------- shapes
@public
def reshape(a, shape=None, order="C", *, newshape=None, copy=None):
    """The elements in row-major order in another shape; one size may be -1."""
    x = array_of(a)
    if order not in ("C", "F"):
        raise UnsupportedError(f"order={order!r} is not available; use 'C' or 'F'")
    wanted = newshape if shape is None else shape
    if isinstance(wanted, Array):
        raise TraceError("a shape must be known when the function is recorded; make it static (static_argnums)")
    sizes = [n.__index__() for n in ((wanted,) if hasattr(wanted, "__index__") and not np.ndim(wanted) else wanted)]
    if sizes.count(-1) == 1:
        rest = math.prod(n for n in sizes if n != -1)
        if rest == 0 or x.size % rest:
            raise ShapeError(f"{x.type} has {x.size} elements, which {sizes} cannot hold")
        sizes[sizes.index(-1)] = x.size // rest
    sizes = shape_of(tuple(sizes))
    if math.prod(sizes) != x.size:
        raise ShapeError(f"{x.type} has {x.size} elements, the shape {list(sizes)} has {math.prod(sizes)}")
    if order == "F":
        return permuted(_shaped(permuted(x, range(x.ndim)[::-1]), sizes[::-1]), range(len(sizes))[::-1])
    return _shaped(x, sizes)


@public
def ravel(a, order="C"):
    """All elements along one axis."""
    return reshape(a, (-1,) if array_of(a).size else (0,), order)


@public
def expand_dims(a, axis=0):
    """New axes of size 1 at these places of the result."""
    x = array_of(a)
    places = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = x.ndim + len(places)
    axes = {normalize_axis(p, rank, "axis") for p in places}
    if len(axes) != len(places):
        raise ShapeError(f"axes {tuple(places)} name one axis twice")
    sizes = iter(x.type.shape)
    return _shaped(x, [1 if i in axes else next(sizes) for i in range(rank)])


@public
def squeeze(a, axis=None):
    """Without these axes (all of size 1 by default)."""
    x = array_of(a)
    axes = [i for i, n in enumerate(x.type.shape) if n == 1] if axis is None else normalize_axes(axis, x.ndim, "axis")
    for i in axes:
        if x.type.shape[i] != 1:
            raise ShapeError(f"axis {i} of {x.type} has {x.type.shape[i]} elements; only an axis of size 1 can be squeezed")
    return _shaped(x, [n for i, n in enumerate(x.type.shape) if i not in axes])


@public
def broadcast_to(x, shape):
    """x spread over a shape by NumPy's rules."""
    x, shape = array_of(x), shape_of(shape)
    if x.ndim > len(shape) or any(n not in (1, m) for n, m in zip(x.type.shape[::-1], shape[::-1])):
        raise ShapeError(f"{x.type} cannot be broadcast to {list(shape)}")
    return broadcast(x, shape)


@public
def broadcast_arrays(*arrays):
    """All of them in their common shape."""
    found = [array_of(x) for x in arrays]
    shape = broadcast_shapes(*(x.type.shape for x in found))
    return [broadcast(x, shape) for x in found]


@public(name="broadcast_shapes")
def broadcast_shapes_(*shapes):
    """The shape that these broadcast to."""
    return broadcast_shapes(*map(shape_of, shapes))


def _at_least(n: int):
    def function(*arrays):
        found = []
        for a in arrays:
            x = array_of(a)
            if x.ndim >= n:
                found.append(x)
            elif n == 3 and x.ndim:
                found.append(_shaped(x, (1, *x.type.shape, 1) if x.ndim == 1 else (*x.type.shape, 1)))
            else:
                found.append(_shaped(x, (1,) * (n - x.ndim) + x.type.shape))
        return found[0] if len(found) == 1 else found
    function.__name__ = function.__qualname__ = f"atleast_{n}d"
    function.__doc__ = f"With {n} axes or more."
    return public(function)


atleast_1d, atleast_2d, atleast_3d = _at_least(1), _at_least(2), _at_least(3)


# --------------------------------------------------------------------------- axes
@public(name="permute_dims")
def permute_dims(a, /, axes):
    """The axes in another order."""
    return transpose(a, axes)


@public
def transpose(a, axes=None):
    """The axes in another order, reversed by default."""
    x = array_of(a)
    perm = tuple(range(x.ndim))[::-1] if axes is None else tuple(normalize_axis(p, x.ndim, "axes") for p in axes)
    if sorted(perm) != list(range(x.ndim)):
        raise ShapeError(f"axes {tuple(axes)} are not a permutation of the axes of {x.type}")
    return permuted(x, perm)


@public
def matrix_transpose(x, /):
    """The last two axes swapped."""
    x = array_of(x)
    if x.ndim < 2:
        raise ShapeError(f"a matrix has two axes or more, got {x.type}")
    return swapaxes(x, -1, -2)


@public
def swapaxes(a, axis1, axis2):
    """Two axes swapped."""
    x = array_of(a)
    i, j = normalize_axis(axis1, x.ndim, "axis1"), normalize_axis(axis2, x.ndim, "axis2")
    perm = list(range(x.ndim))
    perm[i], perm[j] = j, i
    return permuted(x, perm)


@public
def moveaxis(a, source, destination):
    """Axes moved to other places; the rest keep their order."""
    x = array_of(a)
    take = [normalize_axis(s, x.ndim, "source") for s in (source if isinstance(source, (tuple, list)) else (source,))]
    put = [normalize_axis(d, x.ndim, "destination") for d in (destination if isinstance(destination, (tuple, list)) else (destination,))]
    if len(take) != len(put) or len(set(take)) != len(take) or len(set(put)) != len(put):
        raise ShapeError(f"source {source} and destination {destination} must name as many different axes")
    perm = [i for i in range(x.ndim) if i not in take]
    for to, of in sorted(zip(put, take)):
        perm.insert(to, of)
    return permuted(x, perm)


@public
def rollaxis(a, axis, start=0):
    """Axis moved to before `start`."""
    x = array_of(a)
    axis = normalize_axis(axis, x.ndim, "axis")
    start = start + x.ndim if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


@public
def flip(m, axis=None):
    """Reversed along axes (all by default)."""
    x = array_of(m)
    axes = normalize_axes(axis, x.ndim, "axis")
    return emit("rev", (x,), {"axes": axes}) if axes else x


@public
def fliplr(m):
    """Reversed along axis 1."""
    return flip(m, 1)


@public
def flipud(m):
    """Reversed along axis 0."""
    return flip(m, 0)


@public
def rot90(m, k=1, axes=(0, 1)):
    """Turned by k right angles in the plane of two axes."""
    x = array_of(m)
    i, j = (normalize_axis(a, x.ndim, "axes") for a in axes)
    if i == j:
        raise ShapeError(f"axes {tuple(axes)} must differ")
    k %= 4
    if k in (0, 2):
        return flip(flip(x, i), j) if k else x
    return flip(swapaxes(x, i, j), i) if k == 1 else swapaxes(flip(x, i), i, j)


@public
def roll(a, shift, axis=None):
    """Shifted along axes, with what leaves one end entering the other."""
    x = array_of(a)
    if isinstance(shift, Array):
        raise UnsupportedError("a traced shift needs dynamic slices, which are not available yet; make it static (static_argnums)")
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.type.shape)
    shifts = [s.__index__() for s in (shift if isinstance(shift, (tuple, list)) else (shift,))]
    axes = [normalize_axis(i, x.ndim, "axis") for i in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError(f"{len(shifts)} shifts do not go with {len(axes)} axes")
    count = max(len(shifts), len(axes))
    for by, along in zip(shifts * (count if len(shifts) == 1 else 1), axes * (count if len(axes) == 1 else 1)):
        size = x.type.shape[along]
        by = by % size if size else 0
        if by:
            x = joined([part(x, along, size - by, size), part(x, along, 0, size - by)], along)
    return x


# --------------------------------------------------------------------------- joining and splitting
def joined(arrays: Sequence[Array], axis: int) -> Array:
    """concatenate on arrays of one dtype; one array is itself."""
    return arrays[0] if len(arrays) == 1 else emit("concatenate", arrays, {"axis": axis})


def _parts(arrays: object, dtype: object) -> list[Array]:
    parts = list(arrays)
    if not parts:
        raise ShapeError("at least one array is needed")
    return [asarray(p, dtype) for p in parts] if dtype is not None else promote_dtypes(*parts)


@public(name="concatenate", aliases=("concat",))
def concatenate(arrays, axis=0, dtype=None):
    """Arrays one after another along an existing axis (flattened for None)."""
    parts = _parts(arrays, dtype)
    if axis is None:
        return joined([ravel(p) for p in parts], 0)
    if not parts[0].ndim:
        raise ShapeError("rank-0 arrays cannot be concatenated; use stack")
    return joined(parts, normalize_axis(axis, parts[0].ndim, "axis"))


@public
def stack(arrays, axis=0, out=None, dtype=None):
    """Arrays one after another along a new axis."""
    refuse_out(out)
    parts = _parts(arrays, dtype)
    if len({p.type.shape for p in parts}) > 1:
        raise ShapeError(f"the arrays differ in shape: {' and '.join(dict.fromkeys(str(p.type) for p in parts))}")
    axis = normalize_axis(axis, parts[0].ndim + 1, "axis")
    return joined([expand_dims(p, axis) for p in parts], axis)


@public
def unstack(x, /, *, axis=0):
    """The slices along an axis, as a tuple."""
    x = array_of(x)
    axis = normalize_axis(axis, x.ndim, "axis")
    return tuple(squeeze(part(x, axis, i, i + 1), axis) for i in range(x.type.shape[axis]))


@public
def hstack(tup, dtype=None):
    """Concatenate along axis 1 (axis 0 for one-axis arrays)."""
    parts = [atleast_1d(p) for p in _parts(tup, dtype)]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1)


@public
def vstack(tup, dtype=None):
    """Concatenate along axis 0, arrays with one axis as rows."""
    return concatenate([atleast_2d(p) for p in _parts(tup, dtype)], 0)


@public
def dstack(tup, dtype=None):
    """Concatenate along axis 2."""
    return concatenate([atleast_3d(p) for p in _parts(tup, dtype)], 2)


@public
def column_stack(tup):
    """Arrays with one axis as columns."""
    return concatenate([expand_dims(p, 1) if p.ndim == 1 else atleast_2d(p) for p in _parts(tup, None)], 1)


@public
def append(arr, values, axis=None):
    """values after arr."""
    return concatenate([arr, values], axis)


def _split(a, indices_or_sections, axis, uneven: bool) -> list[Array]:
    x = array_of(a)
    axis = normalize_axis(axis, x.ndim, "axis")
    size = x.type.shape[axis]
    if hasattr(indices_or_sections, "__index__") and not np.ndim(indices_or_sections):
        count = operator.index(indices_or_sections)
        if count <= 0:
            raise ShapeError(f"the number of sections must be positive, got {count}")
        each, rest = divmod(size, count)
        if rest and not uneven:
            raise ShapeError(f"axis {axis} of {x.type} cannot be split into {count} equal parts; {size} / {count} leaves {rest}")
        sizes = [each + 1] * rest + [each] * (count - rest)
        cuts = [sum(sizes[:i]) for i in range(count + 1)]
    else:
        inner = [operator.index(i) for i in indices_or_sections]
        cuts = [0, *(min(max(i + size if i < 0 else i, 0), size) for i in inner), size]
    return [part(x, axis, start, limit) for start, limit in itertools.pairwise(cuts)]


@public
def split(ary, indices_or_sections, axis=0):
    """Equal parts, or parts cut at indices, along an axis; a list."""
    return _split(ary, indices_or_sections, axis, False)


@public
def array_split(ary, indices_or_sections, axis=0):
    """Parts that differ by one element at most."""
    return _split(ary, indices_or_sections, axis, True)


# --------------------------------------------------------------------------- repeating
@public
def tile(A, reps):
    """A repeated `reps` times along each axis."""
    x = array_of(A)
    counts = [operator.index(r) for r in (reps if hasattr(reps, "__iter__") else (reps,))]
    counts = [1] * (x.ndim - len(counts)) + counts
    x = _shaped(x, (1,) * (len(counts) - x.ndim) + x.type.shape)
    spread = [n for pair in zip(counts, x.type.shape) for n in pair]
    dims = tuple(range(1, 2 * len(counts), 2))
    out = emit("broadcast_in_dim", (x,), {"dims": dims}, TensorType(shape_of(tuple(spread)), x.type.dtype))
    return _shaped(out, [c * n for c, n in zip(counts, x.type.shape)])


@public
def repeat(a, repeats, axis=None, *, total_repeat_length=None):
    """Each element repeated; the counts are known when the function is recorded."""
    x = array_of(a)
    if isinstance(repeats, Array):
        raise UnsupportedError("traced repeats give a shape that depends on data; make them static (static_argnums)")
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis(axis, x.ndim, "axis")
    counts, size = np.asarray(repeats), x.type.shape[axis]
    if counts.size == 1:
        times = operator.index(counts.reshape(-1)[0])
        spread = [*x.type.shape[:axis + 1], times, *x.type.shape[axis + 1:]]
        dims = tuple(i for i in range(x.ndim + 1) if i != axis + 1)
        out = emit("broadcast_in_dim", (x,), {"dims": dims}, TensorType(shape_of(tuple(spread)), x.type.dtype))
        return _shaped(out, [*x.type.shape[:axis], size * times, *x.type.shape[axis + 1:]])
    if counts.shape != (size,):
        raise ShapeError(f"repeats {counts.tolist()} must be one count, or one for each of the {size} elements along axis {axis}")
    pieces = [repeat(part(x, axis, i, i + 1), int(n), axis) for i, n in enumerate(counts) if n]
    return joined(pieces, axis) if pieces else part(x, axis, 0, 0)


# --------------------------------------------------------------------------- padding
def _pairs(value: object, rank: int, what: str) -> list[tuple]:
    """One pair (before, after) an axis, from a scalar, a pair, or pairs."""
    if isinstance(value, dict):
        full = [(0, 0)] * rank
        for axis, pair in value.items():
            full[normalize_axis(axis, rank, what)] = tuple(pair) if isinstance(pair, (tuple, list)) else (pair, pair)
        return full
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(items, (tuple, list)):
        return [(items, items)] * rank
    items = [tuple(i) if isinstance(i, (tuple, list)) else i for i in items]
    if len(items) == 1:
        only = items[0]
        return [only * 2 if isinstance(only, tuple) and len(only) == 1 else only if isinstance(only, tuple) else (only, only)] * rank
    if len(items) == 2 and not any(isinstance(i, tuple) for i in items):
        return [tuple(items)] * rank
    if len(items) != rank or not all(isinstance(i, tuple) and len(i) == 2 for i in items):
        raise ShapeError(f"{what} needs one pair for each of {rank} axes, got {value!r}")
    return items


@public
def pad(array, pad_width, mode="constant", **kwargs):
    """Padded at both ends of each axis; modes constant, edge, reflect, symmetric, wrap, empty."""
    x = array_of(array)
    allowed = {"constant": ("constant_values",), "reflect": ("reflect_type",), "symmetric": ("reflect_type",), "edge": (), "wrap": (), "empty": ()}
    if mode not in allowed:
        raise UnsupportedError(f"mode={mode!r} is not available; use {', '.join(allowed)}")
    if set(kwargs) - set(allowed[mode]):
        raise TypeError(f"pad mode {mode!r} does not take {', '.join(sorted(set(kwargs) - set(allowed[mode])))}")
    if kwargs.get("reflect_type", "even") != "even":
        raise UnsupportedError("reflect_type='odd' is not available; use 'even'")
    widths = [(operator.index(a), operator.index(b)) for a, b in _pairs(pad_width, x.ndim, "pad_width")]
    if any(n < 0 for pair in widths for n in pair):
        raise ShapeError(f"pad widths cannot be negative: {widths}; use slices to crop")
    if mode in ("constant", "empty"):
        return _pad_constant(x, widths, kwargs.get("constant_values", 0))
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = _pad_copy(x, axis, before, after, mode)
    return x


def _pad_constant(x: Array, widths: list[tuple[int, int]], values: object) -> Array:
    if isinstance(values, (Array, int, float, bool, np.generic)) or (isinstance(values, np.ndarray) and values.ndim == 0):
        value = convert(as_array(values), x.type.dtype, x.weak)
        return emit("pad", (x, value), {"pads": tuple((a, b, 0) for a, b in widths)}, weak=x.weak)
    for axis, ((before, after), (low, high)) in enumerate(zip(widths, _pairs(values, x.ndim, "constant_values"))):
        for width, value, first in ((before, low, True), (after, high, False)):
            pads = tuple(((width, 0, 0) if first else (0, width, 0)) if i == axis else (0, 0, 0) for i in range(x.ndim))
            x = emit("pad", (x, as_array(value, x.type.dtype)), {"pads": pads}, weak=x.weak)
    return x


def _pad_copy(x: Array, axis: int, before: int, after: int, mode: str) -> Array:
    """One axis, with copies of x at its ends; wide pads go round as often as needed."""
    size = x.type.shape[axis]
    if size == 0:
        raise ShapeError(f"axis {axis} of {x.type} is empty, so mode {mode!r} has nothing to copy")
    index = np.pad(np.arange(size), (before, after), mode=mode)
    from mlc.frontend.indexing import take_static
    return take_static(x, index, axis)


@public
def diff(a, n=1, axis=-1, prepend=None, append=None):
    """Differences of neighbours along an axis, n times; of bools, whether they differ."""
    x, count = array_of(a), operator.index(n)
    if count < 0 or not x.ndim:
        raise ShapeError(f"{x.type} has no differences of order {n}")
    axis = normalize_axis(axis, x.ndim, "axis")
    ends = []
    for end in (prepend, append):
        if end is not None and not np.ndim(end):
            end = broadcast_to(end, [1 if i == axis else size for i, size in enumerate(x.type.shape)])
        ends.append([] if end is None else [end])
    x = concatenate([*ends[0], x, *ends[1]], axis) if prepend is not None or append is not None else x
    op = "ne" if x.type.dtype.kind == "b" else "sub"
    for _ in range(count):
        size = x.type.shape[axis]
        x = emit(op, (part(x, axis, min(1, size), size), part(x, axis, 0, max(size - 1, 0))))
    return x
