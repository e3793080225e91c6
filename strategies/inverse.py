"""What a movement op or a reduction may be applied to so that it gives a wanted type: operand types and attributes.

Patterns are built from their root: the root's type is chosen first, then each operand's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlc_strategies.draws import Draws
from mlc_strategies.shapes import Palette

from mlc.core.dims import TensorType
from mlc.core.dtype import DType

Before = tuple[list[TensorType], dict]
_INVERSES: dict[str, Callable[[Draws, Palette, TensorType], Before | None]] = {}


def inverse_of(name: str) -> Callable:
    """Register the inverse of one op."""
    def enter(function: Callable) -> Callable:
        _INVERSES[name] = function
        return function
    return enter


def before(name: str, draws: Draws, palette: Palette, type: TensorType) -> Before | None:
    """Operand types and attributes with which the op gives `type`; None when nothing fits. Raises KeyError for an op without inverse."""
    return _INVERSES[name](draws, palette, type)


def reshapes(palette: Palette, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of as many elements: axes merged, split off as 1, or swapped in size."""
    size = math.prod(shape)
    options = [(size,), tuple(reversed(shape)), (1, *shape), (*shape, 1), tuple(n for n in shape if n != 1)]
    options += [(size // n, n) for n in palette.sizes if n > 1 and size % n == 0]
    options += [s for s in palette.shapes if math.prod(s) == size]
    return [s for s in options if palette.fits(s)]


def shuffled(draws: Draws, items: list) -> list:
    """The items in any order, the reverse one first."""
    left, found = list(reversed(items)), []
    while left:
        found.append(left.pop(left.index(draws.choice(left))))
    return found


@inverse_of("transpose")
def _transpose(draws: Draws, palette: Palette, type: TensorType) -> Before:
    perm = shuffled(draws, list(range(type.rank)))
    shape = [0] * type.rank
    for place, axis in enumerate(perm):
        shape[axis] = type.shape[place]
    return [TensorType(shape, type.dtype)], {"perm": tuple(perm)}


@inverse_of("reshape")
def _reshape(draws: Draws, palette: Palette, type: TensorType) -> Before:
    return [TensorType(draws.choice([*reshapes(palette, type.shape), type.shape]), type.dtype)], {}


@inverse_of("broadcast_in_dim")
def _broadcast(draws: Draws, palette: Palette, type: TensorType) -> Before:
    dims = tuple(d for d in range(type.rank) if draws.chance(0.6))
    return [TensorType([1 if draws.chance(0.2) else type.shape[d] for d in dims], type.dtype)], {"dims": dims}


@inverse_of("rev")
def _rev(draws: Draws, palette: Palette, type: TensorType) -> Before:
    return [type], {"axes": tuple(a for a in range(type.rank) if draws.chance(0.6))}


@inverse_of("slice")
def _slice(draws: Draws, palette: Palette, type: TensorType) -> Before:
    """Each axis is whole, or cut out of a larger size of the palette."""
    shape, start, limit, strides = [], [], [], []
    for n in type.shape:
        step = draws.choice([1, 1, 2, 3]) if n > 1 else 1
        span = (n - 1) * step + 1 if n else 0
        larger = [s for s in palette.sizes if s >= span]
        size = draws.choice(larger) if larger and draws.chance(0.7) else span
        shape.append(size)
        start.append(draws.integer(0, size - span))
        limit.append(start[-1] + span)
        strides.append(step)
    return [TensorType(shape, type.dtype)], {"start": tuple(start), "limit": tuple(limit), "strides": tuple(strides)}


@inverse_of("pad")
def _pad(draws: Draws, palette: Palette, type: TensorType) -> Before:
    """Each axis is whole, grown from a smaller size or by a little, sometimes with elements between, or cropped."""
    shape, pads = [], []
    for n in type.shape:
        kind = draws.choice(["grown", "whole", "edged", "cropped", "inner"])
        options = [s for s in palette.sizes if (s >= n if kind == "cropped" else s <= n)]
        if kind == "edged":
            options = [max(n - draws.integer(1, 2), 0)]
        size = n if kind == "whole" or not options else draws.choice(options)
        inner = 1 if kind == "inner" and 2 * size - 1 <= n else 0
        rest = n - size - max(size - 1, 0) * inner
        low = draws.integer(min(0, rest), max(0, rest))
        shape.append(size)
        pads.append((low, rest - low, inner))
    return [TensorType(shape, type.dtype), TensorType((), type.dtype)], {"pads": tuple(pads)}


@inverse_of("concatenate")
def _concatenate(draws: Draws, palette: Palette, type: TensorType) -> Before | None:
    """One to three parts along an axis, empty ones included."""
    if not type.rank:
        return None
    axis = draws.integer(0, type.rank - 1)
    left, sizes = type.shape[axis], []
    for _ in range(draws.choice([1, 2, 0])):
        fitting = [s for s in palette.sizes if s <= left and left - s in palette.sizes] or list(range(min(left, 2) + 1))
        sizes.append(draws.choice(fitting))
        left -= sizes[-1]
    parts = [TensorType([n if a == axis else m for a, m in enumerate(type.shape)], type.dtype) for n in shuffled(draws, [*sizes, left])]
    return parts, {"axis": axis}


def before_reduction(draws: Draws, palette: Palette, type: TensorType, dtype: DType) -> Before | None:
    """A type of one or two axes more, of sizes of the palette or 1, and which they are."""
    shape, axes = list(type.shape), []
    for _ in range(draws.choice([1, 1, 2])):
        at = draws.integer(0, len(shape))
        sizes = [n for n in (*palette.sizes, 2) if palette.fits((*shape[:at], n, *shape[at:]))]
        size = 1 if draws.chance(0.2) or not sizes else draws.choice(sizes)
        wider = [*shape[:at], size, *shape[at:]]
        if palette.fits(tuple(wider)):
            shape, axes = wider, [a + (a >= at) for a in axes] + [at]
    return ([TensorType(shape, dtype)], {"axes": tuple(sorted(axes))}) if axes else None
