"""Reductions over any axes. The order of combination belongs to the kernel (many lanes, then a tree), not to the op."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dims import TensorType
from mlc.core.dtype import ALL, BOOL, INTS, NUMERIC, as_dtype
from mlc.core.errors import DtypeError, ShapeError
from mlc.ops.base import DISCONTINUOUS, EXACT, Domain, Reduction, check_axes, reduction, require_dtype


def _accumulator(dtype):
    """Half floats accumulate in f32 and round once at the end."""
    return (dt.f32 if dtype.is_half else dtype,)


def _fold(identity, combine):
    def of(dtype):
        (acc,) = _accumulator(dtype)
        return (ex.const(identity(acc), acc),)
    return Reduction(accumulator=_accumulator, identity=of, combine=lambda a, b: (combine(a[0], b[0]),))


def _wide(function):
    def run(x, *, axes):
        with np.errstate(all="ignore"):
            if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":
                return function(x.astype(np.float32), axis=axes).astype(x.dtype)
            return np.asarray(function(x, axis=axes, dtype=x.dtype))
    return run


def _np_extreme(initial, ufunc_name):
    """Through the op's own NaN and signed-zero rules: halves are folded pairwise."""
    def run(x, *, axes):
        from mlc.ops.base import op
        kept = [i for i in range(x.ndim) if i not in axes]
        shape = [x.shape[i] for i in kept]
        flat = np.transpose(x, [*kept, *axes]).reshape(*shape, math.prod(x.shape[a] for a in axes))
        if flat.shape[-1] == 0:
            return np.full(shape, initial(as_dtype(x.dtype) if x.dtype != np.longdouble else dt.f64), x.dtype)
        while (n := flat.shape[-1]) > 1:
            half = n // 2
            paired = op(ufunc_name).numpy(flat[..., :half], flat[..., half:2 * half])
            flat = np.concatenate([paired, flat[..., 2 * half:]], axis=-1)
        return flat[..., 0]
    return run


reduce_sum = reduction(
    "reduce_sum", version=1, dtypes=NUMERIC, reduce=_fold(lambda d: 0, lambda a, b: a + b), numpy=_wide(np.sum),
    jax=lambda jnp, lax, x, *, axes: jnp.sum(x, axis=axes, dtype=x.dtype))
reduce_prod = reduction(
    "reduce_prod", version=1, dtypes=NUMERIC, reduce=_fold(lambda d: 1, lambda a, b: a * b), numpy=_wide(np.prod),
    jax=lambda jnp, lax, x, *, axes: jnp.prod(x, axis=axes, dtype=x.dtype), inputs=Domain(-2, 2))
reduce_max = reduction(
    "reduce_max", version=1, dtypes=ALL, reduce=_fold(lambda d: d.min, ex.maximum), numpy=_np_extreme(lambda d: d.min, "max"),
    jax=lambda jnp, lax, x, *, axes: jnp.max(x, axis=axes, initial=_limit(jnp, x.dtype, "min")), facts=(EXACT,))
reduce_min = reduction(
    "reduce_min", version=1, dtypes=ALL, reduce=_fold(lambda d: d.max, ex.minimum), numpy=_np_extreme(lambda d: d.max, "min"),
    jax=lambda jnp, lax, x, *, axes: jnp.min(x, axis=axes, initial=_limit(jnp, x.dtype, "max")), facts=(EXACT,))


def _limit(jnp, dtype, which):
    return np.asarray(getattr(as_dtype(np.dtype(dtype)), which), dtype)


reduce_and = reduction(
    "reduce_and", version=1, dtypes=BOOL + INTS, reduce=_fold(lambda d: -1 if d.kind == "i" else d.max, lambda a, b: a & b),
    numpy=lambda x, *, axes: np.bitwise_and.reduce(x, axis=axes),
    jax=lambda jnp, lax, x, *, axes: lax.reduce(x, _ones(x.dtype), lax.bitwise_and, axes), facts=(EXACT,), inputs=Domain(-128, 127))
reduce_or = reduction(
    "reduce_or", version=1, dtypes=BOOL + INTS, reduce=_fold(lambda d: 0, lambda a, b: a | b),
    numpy=lambda x, *, axes: np.bitwise_or.reduce(x, axis=axes),
    jax=lambda jnp, lax, x, *, axes: lax.reduce(x, np.zeros((), x.dtype), lax.bitwise_or, axes), facts=(EXACT,), inputs=Domain(-128, 127))


def _ones(dtype):
    return np.invert(np.zeros((), dtype))


def _arg(name, better, limit):
    """First NaN wins; otherwise the first best element. State: (best value, its position), at first the worst value at no position,
    which another worst value need not replace: if it stays, all are worst and the first one is the answer."""
    def combine(a, b):
        (x, i), (y, j) = a, b
        if x.dtype.is_float:
            number = ex.eq(x, x)
            wins = ~better(x, y, True) & number
            tie = ex.eq(x, y) | ~(number | ex.eq(y, y))
        else:
            wins, tie = better(y, x), ex.eq(x, y)
        take = wins | (tie & (j < i))
        return ex.select(take, y, x), ex.select(take, j, i)

    def finish(acc, dtype):
        position = acc[1]
        return ex.convert(ex.select(ex.eq(position, position.dtype.max), 0, position), dtype)

    fold = Reduction(
        accumulator=lambda dtype: (dtype, dt.i64), combine=combine, needs_position=True,
        identity=lambda dtype: (ex.const(limit(dtype), dtype), ex.const(dt.i64.max, dt.i64)),
        lift=lambda x, position: (x, position), finish=finish)

    def infer(types, attrs, given):
        (x,), axes = types, attrs["axes"]
        require_dtype(name, x.dtype, ALL)
        check_axes(name, axes, x.rank)
        if any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"{name}: no element to choose from along axes {list(axes)} of {x}")
        if given.dtype not in INTS:
            raise DtypeError(f"{name}: the index dtype must be an integer, got {given.dtype}")
        return TensorType([d for i, d in enumerate(x.shape) if i not in axes], given.dtype)

    def flatten(np_like, x, axes):
        kept = [i for i in range(x.ndim) if i not in axes]
        size = math.prod(x.shape[a] for a in axes)
        return np_like.transpose(x, [*kept, *axes]).reshape(*(x.shape[i] for i in kept), size)

    def numpy(x, *, axes, shape, dtype):
        flat = flatten(np, x, axes)
        pick = np.argmax if name == "argmax" else np.argmin
        if flat.dtype.kind not in "biu" and flat.dtype.itemsize == 2:
            flat = flat.astype(np.float32)
        return np.asarray(pick(flat, axis=-1)).astype(dtype)

    def jax(jnp, lax, x, *, axes, shape, dtype):
        return getattr(lax, name)(flatten(jnp, x, axes), flat_axis(x, axes), dtype)

    def flat_axis(x, axes):
        return x.ndim - len(axes)

    return reduction(name, version=1, dtypes=ALL, reduce=fold, numpy=numpy, jax=jax, infer=infer, typed=True, facts=(EXACT, DISCONTINUOUS))


argmax = _arg("argmax", lambda y, x, equal=False: y >= x if equal else y > x, lambda d: d.min)
argmin = _arg("argmin", lambda y, x, equal=False: y <= x if equal else y < x, lambda d: d.max)
