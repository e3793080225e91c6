"""Few shapes for the reference: the same op on operands laid out, cut up, and padded with what changes nothing, to one of few sizes.

JAX compiles each op anew for each shape, for tens of milliseconds. Elementwise ops run flat, a block after the other; reductions
as rows by columns, some rows at a time, padded with the fold's identity; contractions as (batch, m, k) by (batch, k, n), in blocks
of batch, m and n, padded with zeros. Neither the elements that are combined nor their order is touched. Moving elements into place
is NumPy's work and exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core import expr as ex
from mlc.core.dtype import DType, as_dtype
from mlc.graph.graph import Node
from mlc.ops.base import CONTRACTION, ELEMENTWISE

# call(node, operands, attrs, shape of the result) -> array: runs the op itself.
Call = Callable[[Node, Sequence[np.ndarray], dict, tuple[int, ...]], np.ndarray]

FLAT = 4096
# Rows by columns.
ROWS = ((64, 64), (64, 4096), (4, 1 << 17))
# For at most so many terms, blocks of so many rows and columns.
BLOCKS = ((64, 64), (512, 64), (4096, 16))
BATCH = 8
# More calls than this cost more than compiling for the very shape.
MOST_CALLS = 96


def run(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    """The node's value through a canonical shape, or None when the op has none or is too large."""
    if node.type.size == 0:
        return np.empty(node.type.shape, node.type.dtype.numpy)
    if node.op.fusion == ELEMENTWISE:
        return _flat(node, operands, call)
    if node.op.reduce is not None and set(node.attrs) == {"axes"}:
        return _rows(node, operands, call)
    if node.op.fusion == CONTRACTION and set(node.attrs) == {"contract", "batch"}:
        return _matrices(node, operands, call)
    return None


def _flat(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    size = node.type.size
    if size > FLAT * MOST_CALLS:
        return None
    found = np.empty(size, node.type.dtype.numpy)
    flat = [o.reshape(-1) for o in operands]
    for begin in range(0, size, FLAT):
        end = min(size, begin + FLAT)
        full = [np.ones(FLAT, o.dtype) for o in flat]
        for block, o in zip(full, flat):
            block[:end - begin] = o[begin:end]
        found[begin:end] = call(node, full, dict(node.attrs), (FLAT,))[:end - begin]
    return found.reshape(node.type.shape)


def _identity(node: Node, dtype: DType) -> object:
    """The first member of the fold's identity, in the operand's dtype."""
    return np.asarray(ex.const_value(node.op.reduce.identity(dtype)[0]), dtype.numpy)


def _rows(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    (x,), axes = operands, node.attrs["axes"]
    kept = [a for a in range(x.ndim) if a not in axes]
    rows, columns = math.prod(x.shape[a] for a in kept), math.prod(x.shape[a] for a in axes)
    many, wide = next((shape for shape in ROWS if columns <= shape[1]), (0, 0))
    if not columns or rows > many * MOST_CALLS:
        return None
    if node.op.typed and wide - 1 > node.type.dtype.max:
        return None  # a position among the padding must not wrap
    found = np.empty(rows, node.type.dtype.numpy)
    flat, identity = np.transpose(x, [*kept, *axes]).reshape(rows, columns), _identity(node, as_dtype(x.dtype))
    for begin in range(0, rows, many):
        end = min(rows, begin + many)
        full = np.full((many, wide), identity, x.dtype)
        full[:end - begin, :columns] = flat[begin:end]
        found[begin:end] = call(node, [full], {"axes": (1,)}, (many,))[:end - begin]
    return found.reshape(node.type.shape)


def _matrices(node: Node, operands: Sequence[np.ndarray], call: Call) -> np.ndarray | None:
    x, y = operands
    (cx, cy), (bx, by) = node.attrs["contract"], node.attrs["batch"]
    free_x = [a for a in range(x.ndim) if a not in cx + bx]
    free_y = [a for a in range(y.ndim) if a not in cy + by]
    b, k = (math.prod(x.shape[a] for a in group) for group in (bx, cx))
    m, n = math.prod(x.shape[a] for a in free_x), math.prod(y.shape[a] for a in free_y)
    deep, side = next(((deep, side) for deep, side in BLOCKS if k <= deep), (0, 1))
    many = 1 if b == 1 else BATCH
    if not deep or not k or -(-b // many) * -(-m // side) * -(-n // side) > MOST_CALLS:
        return None
    left = np.transpose(x, [*bx, *free_x, *cx]).reshape(b, m, k)
    right = np.transpose(y, [*by, *cy, *free_y]).reshape(b, k, n)
    found = np.empty((b, m, n), node.type.dtype.numpy)
    attrs = {"contract": ((2,), (1,)), "batch": ((0,), (0,))}
    for at, row, column in itertools.product(range(0, b, many), range(0, m, side), range(0, n, side)):
        one, other = np.zeros((many, side, deep), x.dtype), np.zeros((many, deep, side), y.dtype)
        block = found[at:at + many, row:row + side, column:column + side]
        bb, mm, nn = block.shape
        one[:bb, :mm, :k] = left[at:at + many, row:row + side]
        other[:bb, :k, :nn] = right[at:at + many, :, column:column + side]
        block[...] = call(node, [one, other], attrs, (many, side, side))[:bb, :mm, :nn]
    return found.reshape(node.type.shape)
