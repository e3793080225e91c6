"""Indexing by what is known when the function is recorded: ints, slices, None, Ellipsis, one static index array; and `x.at[...]`.

Everything becomes slices, reversals, reshapes and joins. An index past the end is an error, as in NumPy: it is static,
so it is always a bug.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import normalize_axis
from mlc.core.errors import ShapeError, TraceError, UnsupportedError
from mlc.frontend import binary
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.creation import asarray
from mlc.frontend.manipulation import _shaped, joined, part, sliced
from mlc.frontend.primitives import array_of, full, select
from mlc.frontend.promotion import as_array, broadcast, checked, convert, promote, promote_dtypes, to_inexact
from mlc.frontend.record import emit
from mlc.frontend.source import locate

MAX_PIECES = 256


class OutOfBoundsError(ShapeError, IndexError):
    """A static index past the end of its axis."""


class Index:
    """A basic index, worked out for a shape: per axis start, limit, stride > 0, whether reversed; and the result's shape."""

    def __init__(self, shape: tuple[int, ...], items: tuple):
        self.start, self.limit, self.stride, self.reverse = [], [], [], []
        self.boxed: list[int] = []  # sizes of the box, one an axis of the operand
        self.result: list[int] = []
        axis = 0
        for item in items:
            if item is None:
                self.result.append(1)
            elif isinstance(item, slice):
                self._slice(item, shape[axis], axis)
                axis += 1
            else:
                self._int(item, shape[axis], axis)
                axis += 1

    def _add(self, start: int, limit: int, stride: int, reverse: bool, size: int) -> None:
        self.start.append(start)
        self.limit.append(limit)
        self.stride.append(stride)
        self.reverse.append(reverse)
        self.boxed.append(size)

    def _slice(self, item: slice, size: int, axis: int) -> None:
        if any(isinstance(v, Array) and hasattr(v, "_trace") for v in (item.start, item.stop, item.step)):
            raise UnsupportedError(f"axis {axis} is sliced at a traced position, which is not available yet; make it static (static_argnums)")
        try:
            begin, end, step = item.indices(size)
        except (TypeError, ValueError):
            raise ShapeError(f"axis {axis}: {item} is not a slice of ints with a nonzero step") from None
        count = len(range(begin, end, step))
        if not count:
            self._add(0, 0, 1, False, 0)
        elif step > 0:
            self._add(begin, begin + (count - 1) * step + 1, step, False, count)
        else:
            self._add(begin + (count - 1) * step, begin + 1, -step, True, count)
        self.result.append(count)

    def _int(self, item: int, size: int, axis: int) -> None:
        if not -size <= item < size:
            raise OutOfBoundsError(f"index {item} is out of bounds for axis {axis} with size {size}")
        self._add(item % size, item % size + 1, 1, False, 1)

    def take(self, x: Array) -> Array:
        """x at this index."""
        x = sliced(x, self.start, self.limit, self.stride)
        axes = tuple(i for i, r in enumerate(self.reverse) if r and self.boxed[i] > 1)
        return _shaped(emit("rev", (x,), {"axes": axes}) if axes else x, self.result)

    def put(self, value: Array, shape: tuple[int, ...], fill: object) -> Array:
        """A value of the result's shape laid into `shape`, `fill` elsewhere."""
        value = _shaped(value, self.boxed)
        axes = tuple(i for i, r in enumerate(self.reverse) if r and self.boxed[i] > 1)
        value = emit("rev", (value,), {"axes": axes}) if axes else value
        pads = []
        for start, stride, count, size in zip(self.start, self.stride, self.boxed, shape):
            covered = count + max(count - 1, 0) * (stride - 1)
            pads.append((start, size - start - covered, stride - 1))
        return emit("pad", (value, as_array(fill, value.type.dtype)), {"pads": tuple(pads)}, weak=value.weak)

    @property
    def covers(self) -> bool:
        """Whether every element is addressed."""
        return all(s == 0 and st == 1 for s, st in zip(self.start, self.stride))


def _expand(index: object, rank: int) -> tuple:
    """The index as a tuple with one item an axis (and None for new ones): Ellipsis filled in, the rest taken whole."""
    items = index if isinstance(index, tuple) else (index,)
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    gaps = sum(1 for i in items if i is Ellipsis)
    if gaps > 1:
        raise OutOfBoundsError("an index can hold one Ellipsis only")
    if used > rank:
        raise OutOfBoundsError(f"too many indices: the array has {rank} axes, {used} were indexed")
    fill = (slice(None),) * (rank - used)
    if not gaps:
        return (*items, *fill)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    return (*items[:at], *fill, *items[at + 1:])


def _item(item: object) -> object:
    """An index item in canonical form: None, int, slice, or an integer array."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, Array):
        if not hasattr(item, "_trace"):
            return _item(item.eval())
        raise UnsupportedError(
            f"indexing with a traced array ({item.type}) needs gather, which is not available yet; use mlc.numpy.where or one_hot and a matmul, "
            "or make the index static")
    if isinstance(item, (bool, np.bool_)):
        raise UnsupportedError("indexing with True or False is not available; use None to add an axis")
    if isinstance(item, (list, tuple, np.ndarray)):
        found = np.asarray(item)
        if found.dtype.kind in "iu" and found.ndim == 0:
            return int(found)
        if found.dtype.kind == "b" or found.dtype.kind in "iu" or not found.size:
            return found if found.size or found.dtype.kind in "iub" else found.astype(np.int64)
        raise ShapeError(f"an index array must hold ints or bools, got {found.dtype}")
    try:
        return operator.index(item)
    except TypeError:
        raise ShapeError(f"{item!r} is not an index; use ints, slices, None, Ellipsis or integer arrays") from None


def getitem(x: Array, index: object) -> Array:
    """x[index]. OutOfBoundsError (a ShapeError and an IndexError) past the end, UnsupportedError for traced indices."""
    items = tuple(map(_item, _plain_tuple(index)))
    arrays = [i for i, item in enumerate(items) if isinstance(item, np.ndarray)]
    if not arrays:
        return Index(x.type.shape, _expand(items, x.ndim)).take(x)
    if len(arrays) > 1:
        raise UnsupportedError("more than one index array needs gather, which is not available yet; index axis by axis if the outer product is meant")
    expanded = _masks(_expand(items, x.ndim), x)
    at = next(i for i, item in enumerate(expanded) if isinstance(item, np.ndarray))
    index_array = expanded[at]
    if any(isinstance(item, int) for item in expanded):
        raise UnsupportedError("an index array beside ints needs gather, which is not available yet; index in two steps")
    rest = Index(x.type.shape, tuple(slice(None) if i == at else item for i, item in enumerate(expanded)))
    taken = take_static(rest.take(x), index_array.reshape(-1), at)
    return _shaped(taken, [*taken.type.shape[:at], *index_array.shape, *taken.type.shape[at + 1:]])


def _plain_tuple(index: object) -> tuple:
    return index if isinstance(index, tuple) else (index,)


def _masks(items: tuple, x: Array) -> tuple:
    """Static bool masks of one axis as the indices where they are true."""
    found, axis = [], 0
    for item in items:
        if isinstance(item, np.ndarray) and item.dtype.kind == "b":
            if item.ndim != 1:
                raise UnsupportedError("a bool mask of more than one axis is not available; use mlc.numpy.where")
            if item.shape[0] != x.type.shape[axis]:
                raise OutOfBoundsError(f"a bool mask of {item.shape[0]} does not fit axis {axis} with size {x.type.shape[axis]}")
            item = np.flatnonzero(item)
        found.append(item)
        axis += item is not None
    return tuple(found)


def _runs(index: np.ndarray) -> list[tuple[int, int, int]]:
    """The index as (start, step, count) runs, longest first from the left."""
    runs, i, values = [], 0, index.tolist()
    while i < len(values):
        if i + 1 == len(values):
            runs.append((values[i], 1, 1))
            break
        step, j = values[i + 1] - values[i], i + 1
        while j + 1 < len(values) and values[j + 1] - values[j] == step:
            j += 1
        if step == 0 or (j == i + 1 and step not in (1, -1)):
            runs.append((values[i], 1, 1))
            i += 1
        else:
            runs.append((values[i], step, j - i + 1))
            i = j + 1
    return runs


def take_static(x: Array, index: np.ndarray, axis: int) -> Array:
    """Elements along an axis at indices known now, as joined slices; UnsupportedError when there would be too many."""
    size = x.type.shape[axis]
    if index.size and (int(index.min()) < -size or int(index.max()) >= size):
        worst = int(index.min()) if int(index.min()) < -size else int(index.max())
        raise OutOfBoundsError(f"index {worst} is out of bounds for axis {axis} with size {size}")
    index = np.where(index < 0, index + size, index).astype(np.int64)
    if not index.size:
        return part(x, axis, 0, 0)
    if (index == index[0]).all():
        one = part(x, axis, int(index[0]), int(index[0]) + 1)
        return broadcast(one, (*x.type.shape[:axis], index.size, *x.type.shape[axis + 1:]))
    runs = _runs(index)
    if len(runs) > MAX_PIECES:
        raise UnsupportedError(f"{index.size} irregular static indices need gather, which is not available yet (up to {MAX_PIECES} runs are sliced)")
    pieces = []
    for start, step, count in runs:
        last = start + (count - 1) * step
        low, high = min(start, last), max(start, last)
        piece = part(x, axis, low, high + 1, abs(step))
        pieces.append(piece if step > 0 or count == 1 else emit("rev", (piece,), {"axes": (axis,)}))
    return joined(pieces, axis)


@public
def take(a, indices, axis=None, out=None, mode=None, **kwargs):
    """Elements at static indices along an axis (of the flattened array by default)."""
    x = array_of(a)
    if axis is None:
        x, axis = _shaped(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim, "axis")
    if isinstance(indices, Array):
        indices = _item(indices)
    index = np.asarray(indices)
    if index.dtype.kind not in "iu" and index.size:
        raise ShapeError(f"indices must be integers, got {index.dtype}")
    if mode == "wrap":
        index = index % x.type.shape[axis]
    elif mode == "clip":
        index = np.clip(index, 0, x.type.shape[axis] - 1)
    elif mode not in (None, "raise"):
        raise UnsupportedError(f"mode={mode!r} is not available; use 'wrap' or 'clip'")
    found = take_static(x, index.reshape(-1), axis)
    return _shaped(found, [*x.type.shape[:axis], *index.shape, *x.type.shape[axis + 1:]])


# --------------------------------------------------------------------------- x.at[index]
class At:
    """`x.at`: indexed for updates that give a new array."""

    __slots__ = ("x",)

    def __init__(self, x: Array):
        self.x = x

    def __getitem__(self, index: object) -> AtIndex:
        try:
            items = tuple(map(_item, _plain_tuple(index)))
            if any(isinstance(i, np.ndarray) for i in items):
                raise UnsupportedError(
                    "x.at with an index array needs scatter, which is not available yet; use slices, or mlc.numpy.where with a mask")
            return AtIndex(self.x, Index(self.x.type.shape, _expand(items, self.x.ndim)))
        except (ShapeError, UnsupportedError) as error:
            locate(error, "at")
            raise


class AtIndex:
    """`x.at[index]`: what can be done there. Keyword arguments that tune JAX's scatter are accepted and change nothing."""

    __slots__ = ("index", "x")

    def __init__(self, x: Array, index: Index):
        self.x, self.index = x, index

    def get(self, **kwargs) -> Array:
        """x[index]."""
        return self.index.take(self.x)

    def _update(self, name: str, value: object, function: Callable) -> Array:
        try:
            return self._write(asarray(value) if isinstance(value, (list, tuple)) else value, function)
        except (ShapeError, TraceError) as error:
            locate(error, f"at[...].{name}")
            raise

    def _write(self, value: object, function: Callable) -> Array:
        x, value = promote_dtypes(self.x, value)
        shape = tuple(self.index.result)
        if value.ndim > len(shape) and all(n == 1 for n in value.type.shape[:value.ndim - len(shape)]):
            value = _shaped(value, value.type.shape[value.ndim - len(shape):])
        if value.ndim > len(shape) or any(n not in (1, m) for n, m in zip(value.type.shape[::-1], shape[::-1])):
            raise ShapeError(f"{value.type} does not fit the indexed part {list(shape)} of {self.x.type}")
        new = broadcast(value, shape) if function is None else function(self.index.take(x), broadcast(value, shape))
        new = convert(new, self.x.type.dtype, self.x.weak)
        if not self.x.size or not new.size:
            return self.x
        if self.index.covers and tuple(self.index.boxed) == self.x.type.shape:
            return self.index.put(new, self.x.type.shape, 0) if any(self.index.reverse) else _shaped(new, self.x.type.shape)
        laid = self.index.put(new, self.x.type.shape, 0)
        mask = self.index.put(full(shape, True, dt.bool_), self.x.type.shape, False)
        return select(mask, laid, self.x)

    def set(self, values, **kwargs) -> Array:
        """x with x[index] = values."""
        return self._update("set", values, None)

    def add(self, values, **kwargs) -> Array:
        """x with x[index] += values."""
        return self._update("add", values, binary.add)

    def subtract(self, values, **kwargs) -> Array:
        """x with x[index] -= values."""
        return self._update("subtract", values, binary.subtract)

    def multiply(self, values, **kwargs) -> Array:
        """x with x[index] *= values."""
        return self._update("multiply", values, binary.multiply)

    mul = multiply

    def divide(self, values, **kwargs) -> Array:
        """x with x[index] /= values; an integer x becomes floating, its values first x's dtype (as in JAX)."""
        (wide,) = promote(self.x, to=to_inexact)
        return AtIndex(wide, self.index)._update("divide", convert(as_array(checked(values)), self.x.type.dtype), binary.true_divide)

    def power(self, values, **kwargs) -> Array:
        """x with x[index] **= values, in x's dtype."""
        return self._update("power", convert(as_array(checked(values)), self.x.type.dtype), binary.power)

    def min(self, values, **kwargs) -> Array:
        """x with x[index] = minimum(x[index], values)."""
        return self._update("min", values, binary.minimum)

    def max(self, values, **kwargs) -> Array:
        """x with x[index] = maximum(x[index], values)."""
        return self._update("max", values, binary.maximum)

    def apply(self, function, **kwargs) -> Array:
        """x with x[index] = function(x[index])."""
        return self._update("apply", function(self.index.take(self.x)), None)

