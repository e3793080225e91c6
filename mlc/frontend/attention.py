"""`mlc.nn.dot_product_attention`, decomposed as `jax.nn` does; the compiler makes one kernel of it where its softmax is in its own dtype."""

from __future__ import annotations

import functools
import math

import numpy as np

from mlc.core.dtype import as_dtype, bool_, f32
from mlc.core.errors import DtypeError, ShapeError, UnsupportedError
from mlc.frontend.api import public as _public
from mlc.frontend.array import Array
from mlc.frontend.creation import arange
from mlc.frontend.einsum import einsum
from mlc.frontend.manipulation import broadcast_to, reshape
from mlc.frontend.nn import softmax
from mlc.frontend.primitives import array_of
from mlc.frontend.promotion import convert
from mlc.frontend.unary import where

public = functools.partial(_public, namespace="nn")


def _positions(length: int, axis: int) -> Array:
    """0, 1, 2 .. along one of the two last axes of the scores."""
    return reshape(arange(length, dtype="int32"), (1, 1, length, 1) if axis == 2 else (1, 1, 1, length))


def _masks(shape: tuple[int, ...], mask, is_causal: bool, window, query_lengths, key_lengths) -> list[Array]:
    """What may be seen, as bools that broadcast to the scores [B, N, T, S]."""
    rows, columns = _positions(shape[2], 2), _positions(shape[3], 3)
    found = [] if mask is None else [mask]
    if is_causal:
        found.append(rows >= columns)
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        found += [rows >= columns - right, rows <= columns + left]
    for lengths, places in ((query_lengths, rows), (key_lengths, columns)):
        if lengths is not None:
            found.append(places < reshape(array_of(lengths), (-1, 1, 1, 1)))
    return found


def _grouped(x, groups: int):
    """[B, N or 1, T, S] as [B, K or 1, G or 1, T, S]."""
    b, n, t, s = x.type.shape
    return reshape(x, (b, n // groups if n > 1 else 1, groups if n > 1 else 1, t, s))


def _checked(query, key, value, bias, mask) -> None:
    (_, t, n, h), (b, s, k, depth) = query.type.shape, key.type.shape
    if value.type.shape[:3] != (b, s, k) or depth != h or n % k or query.type.shape[0] != b:
        raise ShapeError(f"query is {query.type}, key {key.type}, value {value.type}: they are [B, T, N, H], [B, S, K, H] and [B, S, K, H], "
                         "where K divides N")
    if len({x.type.dtype for x in (query, key, value)}) != 1 or not query.type.dtype.is_float:
        raise DtypeError(f"query is {query.type}, key {key.type}, value {value.type}: they need one float dtype")
    for name, x in (("bias", bias), ("mask", mask)):
        if x is not None and (x.ndim != 4 or any(size not in (1, full) for size, full in zip(x.type.shape, (b, n, t, s)))):
            raise ShapeError(f"{name} is {x.type}, but must broadcast to [B, N, T, S] = {[b, n, t, s]}")
    if mask is not None and mask.type.dtype is not bool_:
        raise DtypeError(f"mask is {mask.type}, but must be bool; add a bias instead")


@public
def dot_product_attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False, query_seq_lengths=None,
                          key_value_seq_lengths=None, local_window_size=None, implementation=None, return_residual=False):
    """softmax(query key^T * scale + bias, where masked) value, for [B, T, N, H], [B, S, K, H], [B, S, K, H] or without B; K divides N.

    The softmax runs in f32, as in JAX. `implementation` may be None or "xla"; the residual is not there.
    """
    if return_residual or implementation not in (None, "xla"):
        raise UnsupportedError("dot_product_attention: no residual, and no implementation but 'xla'")
    arrays = [array_of(x) for x in (query, key, value)]
    shape = arrays[0].type.shape
    if any(x.ndim not in (3, 4) or x.ndim != len(shape) for x in arrays):
        raise ShapeError(f"query is {arrays[0].type}, key {arrays[1].type}, value {arrays[2].type}: all have three axes, or four")
    query, key, value = (x if x.ndim == 4 else reshape(x, (1, *x.type.shape)) for x in arrays)
    bias, mask = (None if x is None else array_of(x) for x in (bias, mask))
    bias, mask = (reshape(x, (1,) * (4 - x.ndim) + x.type.shape) if x is not None and x.ndim < 4 else x for x in (bias, mask))
    _checked(query, key, value, bias, mask)
    (b, t, n, h), (_, s, k, _) = query.type.shape, key.type.shape
    dtype = query.type.dtype
    wide = f32 if dtype.is_half else dtype
    groups, letters = n // k, ("btkgh", "bkgts") if n > k else ("btkh", "bkts")
    if groups > 1:
        query = reshape(query, (b, t, k, groups, h))

    def fit(x):
        return _grouped(x, groups) if groups > 1 else x
    scores = einsum(f"{letters[0]},bskh->{letters[1]}", query, key, preferred_element_type=wide)
    scores = scores * convert(array_of(np.asarray(1 / math.sqrt(h) if scale is None else scale)), wide)
    if bias is not None:
        scores = convert(scores + fit(bias), wide)
    masks = [fit(m) for m in _masks((b, n, t, s), mask, is_causal, local_window_size, query_seq_lengths, key_value_seq_lengths)]
    if masks:
        seen = functools.reduce(lambda x, y: x & y, masks)
        least = -0.7 * min(float(np.finfo(np.float32).max), float(np.finfo(as_dtype(wide).numpy).max))
        scores = where(seen, scores, convert(array_of(np.asarray(least)), wide))
    weights = convert(softmax(convert(scores, f32), axis=-1), dtype)
    result = reshape(einsum(f"{letters[1]},bskh->{letters[0]}", weights, value), (b, t, n, value.type.shape[3]))
    if query_seq_lengths is not None:
        inside = reshape(_positions(t, 2), (1, t, 1, 1)) < reshape(array_of(query_seq_lengths), (-1, 1, 1, 1))
        result = result * broadcast_to(convert(inside, dtype), result.type.shape)
    return reshape(result, shape[:-1] + result.type.shape[3:])
