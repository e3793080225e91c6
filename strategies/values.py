"""Arguments: dense arrays of distinct ordinary numbers in an op's domain, or the same with special values strewn in."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.scalar_eval import convert
from mlc.ops.base import Domain

ORDINARY = Domain()


def _float_array(values: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return convert(np.asarray(values, np.float64), dt.f64, dtype)


def dense(rng: np.random.Generator, type: TensorType, domain: Domain = ORDINARY) -> np.ndarray:
    """An array of `type` with ordinary values in the domain: no NaN, infinity, zero sign or subnormal in floats."""
    dtype, shape = type.dtype, tuple(type.shape)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    if dtype.is_float:
        return _float_array(rng.uniform(domain.lo, domain.hi, shape), dtype)
    low, high = max(dtype.min, math.ceil(domain.lo)), min(dtype.max, math.floor(domain.hi))
    return np.asarray(rng.integers(low, high, shape, dtype.numpy, endpoint=True))


def _edges(dtype: DType, domain: Domain) -> np.ndarray:
    """The values an op's literal names, and the dtype's own corners."""
    if dtype.is_float:
        tiny = math.ldexp(1.0, dt.MIN_EXPONENT[dtype])
        top = float(np.finfo(np.float64).max) if dtype is dt.f64 else (2 - dtype.eps) * 2.0 ** dt.MAX_EXPONENT[dtype]
        corners = (np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny / 4, tiny * dtype.eps, top, -top, 1.0, 1 + dtype.eps, 0.5, -1.5)
        return _float_array(np.array(domain.edges + corners), dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    inside = [int(e) for e in domain.edges if math.isfinite(e) and dtype.min <= e <= dtype.max]
    return np.array([dtype.min, dtype.max, 0, 1, dtype.max - 1, *inside], dtype.numpy)


def special(rng: np.random.Generator, type: TensorType, domain: Domain = ORDINARY, share: float = 0.4) -> np.ndarray:
    """As `dense`, with about `share` of the elements replaced by NaN, infinities, signed zeros, subnormals, extremes and the domain's edges.

    One array in three has few distinct values, so that there are ties; one in twelve has one.
    """
    array = dense(rng, type, domain)
    edges = _edges(type.dtype, domain)
    replaced = rng.random(array.shape) < share
    picked = edges[rng.integers(0, len(edges), array.shape)]
    integer = np.bool_ if type.dtype is dt.bool_ else dt.uint_of(type.dtype).numpy
    found = np.asarray(np.where(replaced, picked.view(integer), array.view(integer)))
    if found.size > 1 and rng.random() < 1 / 3:
        kept = found.reshape(-1)[rng.integers(0, found.size, 1 if rng.random() < 1 / 4 else 4)]
        found = kept[rng.integers(0, len(kept), found.shape)]
    return found.view(type.dtype.numpy)


def probing(rng: np.random.Generator, type: TensorType, domain: Domain = ORDINARY) -> np.ndarray:
    """A third as `dense`; the others are the domain's edges and the dtype's corners, values a few bits beside them, subnormals, any bits."""
    dtype, shape = type.dtype, tuple(type.shape)
    array = dense(rng, type, domain)
    if dtype.kind == "b":
        return array
    bits = dt.uint_of(dtype).numpy
    edges = _edges(dtype, domain).view(bits)
    picked = edges[rng.integers(0, len(edges), shape)]
    anything = np.asarray(rng.integers(0, 2**dtype.bits - 1, shape, np.uint64, endpoint=True)).astype(bits)
    kinds = [picked, picked + rng.integers(-3, 4, shape).astype(bits), anything]
    if dtype.is_float:
        field = dt.MANTISSA[dtype] - 1
        small = rng.integers(0, 2 ** rng.integers(1, field, shape, endpoint=True)).astype(bits)
        kinds.append(small | (rng.integers(0, 2, shape).astype(bits) << bits.type(dtype.bits - 1)))
    which = rng.integers(-len(kinds) // 2, len(kinds), shape)
    return np.choose(which + 1, [array.view(bits), *kinds], mode="clip").astype(bits, copy=False).view(dtype.numpy)


def strewn(rng: np.random.Generator, type: TensorType, domain: Domain = ORDINARY) -> np.ndarray:
    """As `dense`, with about a third of the elements replaced by three notable numbers."""
    array = dense(rng, type, domain)
    marks = np.array([notable(rng, type.dtype, domain) for _ in range(3)])
    return np.where(rng.random(array.shape) < 1 / 3, marks[rng.integers(0, 3, array.shape)], array)


def nearest(value: float, dtype: DType) -> np.ndarray:
    """A number as a scalar of the dtype: clipped and truncated for integers, its truth for bools."""
    if dtype.is_float:
        return _float_array(np.array(float(value)), dtype)
    if dtype.kind == "b":
        return np.array(bool(value))
    return np.array(min(max(int(value), dtype.min), dtype.max), dtype.numpy)


def notable(rng: np.random.Generator, dtype: DType, domain: Domain = ORDINARY) -> np.ndarray:
    """A scalar that rewrites and code generators look for: zeros, ones, powers of two, the dtype's extremes, all bits set.

    Only values in the domain, when an op demands one; the extremes are rare for floats, because they drown what follows.
    """
    power = 2.0 ** int(rng.integers(-4, 8))
    if dtype.kind == "b":
        return np.array(bool(rng.integers(0, 2)))
    if dtype.is_float:
        options: list[float] = [0.0, 0.0, -0.0, -0.0, 1.0, 1.0, -1.0, 2.0, 0.5, power, power, -power, 3.0, 1 + dtype.eps]
        if (domain.lo, domain.hi) == (ORDINARY.lo, ORDINARY.hi):
            top = float(np.finfo(np.float64).max) if dtype is dt.f64 else (2 - dtype.eps) * 2.0 ** dt.MAX_EXPONENT[dtype]
            options += [top, -top, math.inf, -math.inf]
    else:
        bits = dtype.bits - (dtype.kind == "i")
        options = [0, 0, 1, 1, -1, 2, 1 << int(rng.integers(0, bits)), 3, dtype.min, dtype.max, (1 << bits) - 1, 7]
    inside = [v for v in options if domain.lo <= v <= domain.hi] or options
    if (domain.lo, domain.hi) == (ORDINARY.lo, ORDINARY.hi):
        inside = options
    value = inside[int(rng.integers(0, len(inside)))]
    if not dtype.is_float and value == -1 and dtype.kind == "u":
        value = dtype.max
    return nearest(value, dtype)
