"""dot_general: the one contraction; matmul, einsum and linear are written on top of it."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import NUMERIC
from mlc.core.errors import DtypeError, ShapeError
from mlc.ops.base import CONTRACTION, FRESH, Domain, OpDef, register, require_dtype

# Result dtypes besides the operands' own: what `preferred_element_type` may ask for.
_WIDER = {dt.i8: (dt.i32,), dt.u8: (dt.i32, dt.u32), dt.i16: (dt.i32,), dt.f16: (dt.f32,), dt.bf16: (dt.f32,), dt.f32: (dt.f64,)}


def _check_axes(x: TensorType, y: TensorType, attrs) -> None:
    for which in ("contract", "batch"):
        left, right = attrs[which]
        if len(left) != len(right):
            raise ShapeError(f"dot_general: {which} names {len(left)} axes of {x} and {len(right)} of {y}")
        for a, b in zip(left, right):
            if not (0 <= a < x.rank and 0 <= b < y.rank):
                raise ShapeError(f"dot_general: {which} axes ({a}, {b}) are out of range for {x} and {y}")
            if x.shape[a] != y.shape[b]:
                doing = "contracting" if which == "contract" else "batching"
                raise ShapeError(f"dot_general: x is {x} and y is {y}; {doing} x's axis {a} ({x.shape[a]}) with y's axis {b} ({y.shape[b]})")
    for side, operand in ((0, x), (1, y)):
        named = attrs["contract"][side] + attrs["batch"][side]
        if len(set(named)) != len(named):
            raise ShapeError(f"dot_general: an axis of {operand} is named twice in contract {attrs['contract']} and batch {attrs['batch']}")


def free_axes(rank: int, attrs, side: int) -> list[int]:
    """Axes of operand `side` (0 or 1) that are neither contracted nor batched, in order."""
    return [a for a in range(rank) if a not in attrs["contract"][side] and a not in attrs["batch"][side]]


def _infer(types, attrs, given):
    x, y = types
    require_dtype("dot_general", x.dtype, NUMERIC)
    if x.dtype is not y.dtype:
        raise DtypeError(f"dot_general: operands are {x} and {y}; dtypes must be equal (convert first)")
    if given.dtype is not x.dtype and given.dtype not in _WIDER.get(x.dtype, ()):
        raise DtypeError(f"dot_general: {x.dtype} operands cannot give {given.dtype}")
    _check_axes(x, y, attrs)
    shape = [x.shape[a] for a in attrs["batch"][0]]
    shape += [x.shape[a] for a in free_axes(x.rank, attrs, 0)] + [y.shape[a] for a in free_axes(y.rank, attrs, 1)]
    return TensorType(shape, given.dtype)


def _numpy(x, y, *, contract, batch, shape, dtype):
    """Batched matmul in the result's dtype; half floats accumulate in float32 and round once."""
    attrs = {"contract": contract, "batch": batch}
    acc = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    left = np.transpose(x, [*batch[0], *free_axes(x.ndim, attrs, 0), *contract[0]])
    right = np.transpose(y, [*batch[1], *contract[1], *free_axes(y.ndim, attrs, 1)])
    nb, nk = len(batch[0]), len(contract[0])
    b = left.shape[:nb]
    m, k = left.shape[nb:left.ndim - nk], math.prod(left.shape[left.ndim - nk:])
    n = right.shape[nb + nk:]
    # C order whatever the axes' order was: BLAS sums in another order when it is told to transpose.
    with np.errstate(all="ignore"):
        left = np.ascontiguousarray(left.reshape(*b, math.prod(m), k), acc)
        right = np.ascontiguousarray(right.reshape(*b, k, math.prod(n)), acc)
        return np.matmul(left, right).reshape(shape).astype(dtype)


dot_general = register(OpDef(
    name="dot_general", version=1, arity=2, attrs={"contract": "pairs", "batch": "pairs"}, dtypes=NUMERIC, infer=_infer, numpy=_numpy,
    jax=lambda jnp, lax, x, y, *, contract, batch, shape, dtype: lax.dot_general(
        x, y, (contract, batch), precision="highest", preferred_element_type=dtype),
    fusion=CONTRACTION, alias=FRESH, facts=(), ulp={}, typed=True, inputs=(Domain(-4, 4), Domain(-4, 4)), cost=2.0))
