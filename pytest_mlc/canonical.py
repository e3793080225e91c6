"""Few shapes for the reference: the same op on operands laid out, and padded with what changes nothing, to one of few sizes.

JAX compiles each op anew for each shape, for tens of milliseconds. Elementwise ops run flat; reductions as rows by columns,
padded with the fold's identity; contractions as (batch, m, k) by (batch, k, n), padded with zeros. Moving elements into
place is NumPy's work and exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core import expr as ex
from mlc.core.dtype import DType, as_dtype
from mlc.graph.graph import Node
from mlc.ops.base import CONTRACTION, ELEMENTWISE

# call(node, operands, attrs, shape of the result) -> array: runs the op itself.
Call = Callable[[Node, Sequence[np.ndarray], dict, tuple[int, ...]], np.ndarray]

FLAT = (1024, 16384)
ROWS, COLUMNS = (64, 4096), (64, 4096)
BATCH, SIDE = (1, 8, 64), (16, 64, 256, 4096)
MAX_ELEMENTS, MAX_PRODUCTS = 1 << 18, 1 << 24


def _up(size: int, sizes: Sequence[int]) -> int | None:
    return next((s for s in sizes if size <= s), None)


def run(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    """The node's value through a canonical shape, or None when the op has none or is too large."""
    if node.op.fusion == ELEMENTWISE:
        return _flat(node, operands, call)
    if node.op.reduce is not None and set(node.attrs) == {"axes"}:
        return _rows(node, operands, call)
    if node.op.fusion == CONTRACTION and set(node.attrs) == {"contract", "batch"}:
        return _matrices(node, operands, call)
    return None


def _flat(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    size = node.type.size
    padded = _up(size, FLAT)
    if padded is None:
        return None
    full = []
    for o in operands:
        flat = np.ones(padded, o.dtype)
        flat[:size] = o.reshape(-1)
        full.append(flat)
    return call(node, full, dict(node.attrs), (padded,))[:size].reshape(node.type.shape)


def _identity(node: Node, dtype: DType) -> object:
    """The first member of the fold's identity, in the operand's dtype."""
    return np.asarray(ex.const_value(node.op.reduce.identity(dtype)[0]), dtype.numpy)


def _rows(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    (x,), axes = operands, node.attrs["axes"]
    kept = [a for a in range(x.ndim) if a not in axes]
    rows, columns = math.prod(x.shape[a] for a in kept), math.prod(x.shape[a] for a in axes)
    high, wide = _up(rows, ROWS), _up(columns, COLUMNS)
    if not columns or high is None or wide is None or high * wide > MAX_ELEMENTS:
        return None
    if node.op.typed and wide - 1 > node.type.dtype.max:
        return None  # a position among the padding must not wrap
    full = np.full((high, wide), _identity(node, as_dtype(x.dtype)), x.dtype)
    full[:rows, :columns] = np.transpose(x, [*kept, *axes]).reshape(rows, columns)
    return call(node, [full], {"axes": (1,)}, (high,))[:rows].reshape(node.type.shape)


def _matrices(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    x, y = operands
    (cx, cy), (bx, by) = node.attrs["contract"], node.attrs["batch"]
    free_x = [a for a in range(x.ndim) if a not in cx + bx]
    free_y = [a for a in range(y.ndim) if a not in cy + by]
    b, k = (math.prod(x.shape[a] for a in group) for group in (bx, cx))
    m, n = math.prod(x.shape[a] for a in free_x), math.prod(y.shape[a] for a in free_y)
    sizes = (_up(b, BATCH), _up(m, SIDE), _up(k, SIDE), _up(n, SIDE))
    if None in sizes or not k or math.prod(sizes) > MAX_PRODUCTS:
        return None
    bb, mm, kk, nn = sizes
    left, right = np.zeros((bb, mm, kk), x.dtype), np.zeros((bb, kk, nn), y.dtype)
    left[:b, :m, :k] = np.transpose(x, [*bx, *free_x, *cx]).reshape(b, m, k)
    right[:b, :k, :n] = np.transpose(y, [*by, *cy, *free_y]).reshape(b, k, n)
    attrs = {"contract": ((2,), (1,)), "batch": ((0,), (0,))}
    return call(node, [left, right], attrs, (bb, mm, nn))[:b, :m, :n].reshape(node.type.shape)
