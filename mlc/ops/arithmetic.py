"""Elementwise arithmetic, comparison, logic, bits, select and convert: everything that rounds at most once.

NumPy meanings that NumPy gets wrong or leaves undefined (min/max on signed zeros, division by zero, shifts past the
width, saturating conversion) go through `scalar_eval.apply`, the interpreter of the instruction set.
"""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dtype import ALL, BOOL, FLOATS, INTS, NUMERIC, DType, as_dtype
from mlc.core.scalar_eval import apply
from mlc.ops.base import (
    COMMUTATIVE,
    DISCONTINUOUS,
    EXACT,
    IDEMPOTENT,
    INVOLUTION,
    MONOTONE,
    ODD,
    Domain,
    Range,
    elementwise,
    require_dtype,
    require_same,
)

_BITS = BOOL + INTS


def _quiet(function):
    def wrapped(*args, **attrs):
        with np.errstate(all="ignore"):
            return function(*args, **attrs)
    return wrapped


def _machine(name):
    """The instruction `name` as a NumPy function; dtypes wider than the table's (longdouble) use plain NumPy."""
    def run(*args):
        return apply(name, as_dtype(args[0].dtype), list(args))
    return run


def _minmax(name, plain):
    """NaN propagates; -0 is below +0 in any operand order."""
    def run(a, b):
        with np.errstate(all="ignore"):
            result = plain(a, b)
        if result.dtype.kind in "biu":
            return result
        negative = np.signbit(a) | np.signbit(b) if name == "min" else np.signbit(a) & np.signbit(b)
        zeros = (a == 0) & (b == 0)
        signed = np.where(negative, np.array(-0.0, result.dtype), np.array(0.0, result.dtype))
        return np.where(zeros, signed, result).astype(result.dtype)
    return run


add = elementwise(
    "add", version=1, dtypes=NUMERIC, scalar=lambda x, y: x + y, numpy=_quiet(np.add),
    jax=lambda jnp, lax, x, y: lax.add(x, y), facts=(COMMUTATIVE,))
sub = elementwise(
    "sub", version=1, dtypes=NUMERIC, scalar=lambda x, y: x - y, numpy=_quiet(np.subtract), jax=lambda jnp, lax, x, y: lax.sub(x, y))
mul = elementwise(
    "mul", version=1, dtypes=NUMERIC, scalar=lambda x, y: x * y, numpy=_quiet(np.multiply),
    jax=lambda jnp, lax, x, y: lax.mul(x, y), facts=(COMMUTATIVE,))


def _div(x, y):
    return np.divide(x, y) if x.dtype.kind not in "iu" else _machine("div")(x, y)


def _rem(x, y):
    if x.dtype.kind in "iu":
        return _machine("rem")(x, y)
    wide = x.dtype if x.dtype.itemsize > 2 else np.dtype(np.float32)
    return np.fmod(x.astype(wide), y.astype(wide)).astype(x.dtype)


div = elementwise(
    "div", version=1, dtypes=NUMERIC, scalar=lambda x, y: x / y, numpy=_quiet(_div), jax=lambda jnp, lax, x, y: lax.div(x, y), cost=4.0)
rem = elementwise(
    "rem", version=1, dtypes=NUMERIC, scalar=lambda x, y: ex.binary("rem", x, y), numpy=_quiet(_rem),
    jax=lambda jnp, lax, x, y: lax.rem(x, y), facts=(DISCONTINUOUS,), cost=20.0)
maximum = elementwise(
    "max", version=1, dtypes=ALL, scalar=ex.maximum, numpy=_minmax("max", np.maximum),
    jax=lambda jnp, lax, x, y: lax.max(x, y), facts=(COMMUTATIVE, EXACT))
minimum = elementwise(
    "min", version=1, dtypes=ALL, scalar=ex.minimum, numpy=_minmax("min", np.minimum),
    jax=lambda jnp, lax, x, y: lax.min(x, y), facts=(COMMUTATIVE, EXACT))
clamp = elementwise(
    "clamp", version=1, dtypes=ALL, scalar=lambda lo, x, hi: ex.minimum(ex.maximum(x, lo), hi),
    numpy=lambda lo, x, hi: minimum.numpy(maximum.numpy(x, lo), hi), jax=lambda jnp, lax, lo, x, hi: lax.clamp(lo, x, hi), facts=(EXACT,))

neg = elementwise(
    "neg", version=1, dtypes=NUMERIC, scalar=lambda x: -x, numpy=_quiet(np.negative),
    jax=lambda jnp, lax, x: lax.neg(x), facts=(ODD, INVOLUTION, EXACT))
absolute = elementwise(
    "abs", version=1, dtypes=NUMERIC, scalar=lambda x: x if x.dtype.kind == "u" else ex.absolute(x), numpy=_quiet(np.absolute),
    jax=lambda jnp, lax, x: x if x.dtype.kind == "u" else lax.abs(x), facts=(IDEMPOTENT, Range(0, np.inf), EXACT))


def _sign(x):
    """NaN stays NaN, zeros keep their sign; unsigned: 0 or 1."""
    one = ex.const(1, x.dtype)
    positive = ex.select(x > 0, one, x)
    return positive if x.dtype.kind == "u" else ex.select(x < 0, -one, positive)


def _np_sign(x):
    one = np.array(1, x.dtype)
    return np.where(x > 0, one, np.where(x < 0, -one, x)) if x.dtype.kind != "u" else np.where(x > 0, one, x)


sign = elementwise(
    "sign", version=1, dtypes=NUMERIC, scalar=_sign, numpy=_quiet(_np_sign), jax=lambda jnp, lax, x: lax.sign(x),
    facts=(ODD, IDEMPOTENT, MONOTONE, Range(-1, 1), DISCONTINUOUS))
sqrt = elementwise(
    "sqrt", version=1, dtypes=FLOATS, scalar=ex.sqrt, numpy=_quiet(np.sqrt), jax=lambda jnp, lax, x: lax.sqrt(x),
    facts=(MONOTONE,), inputs=Domain(0, 100), cost=6.0)

_ROUNDING = dict(version=1, dtypes=FLOATS, facts=(MONOTONE, IDEMPOTENT, DISCONTINUOUS), inputs=Domain(-100, 100, edges=(
    0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, np.inf, -np.inf, np.nan)))
floor = elementwise(
    "floor", scalar=lambda x: ex.unary("floor", x), numpy=np.floor, jax=lambda jnp, lax, x: lax.floor(x), **_ROUNDING)
ceil = elementwise(
    "ceil", scalar=lambda x: ex.unary("ceil", x), numpy=np.ceil, jax=lambda jnp, lax, x: lax.ceil(x), **_ROUNDING)
round_ = elementwise(
    "round", scalar=lambda x: ex.unary("rint", x), numpy=np.rint,
    jax=lambda jnp, lax, x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), **_ROUNDING)

is_finite = elementwise(
    "is_finite", version=1, dtypes=FLOATS, scalar=lambda x: ex.absolute(x) < np.inf, numpy=np.isfinite,
    jax=lambda jnp, lax, x: lax.is_finite(x), result=dt.bool_, alias="fresh", facts=(DISCONTINUOUS,))


def _compare(name, numpy, jax, facts=()):
    return elementwise(
        name, version=1, dtypes=ALL, scalar=lambda x, y: ex.binary(name, x, y), numpy=_quiet(numpy), jax=jax,
        result=dt.bool_, alias="fresh", facts=(DISCONTINUOUS, *facts), inputs=Domain(-3, 3))


eq = _compare("eq", np.equal, lambda jnp, lax, x, y: lax.eq(x, y), (COMMUTATIVE,))
ne = _compare("ne", np.not_equal, lambda jnp, lax, x, y: lax.ne(x, y), (COMMUTATIVE,))
lt = _compare("lt", np.less, lambda jnp, lax, x, y: lax.lt(x, y))
le = _compare("le", np.less_equal, lambda jnp, lax, x, y: lax.le(x, y))
gt = _compare("gt", np.greater, lambda jnp, lax, x, y: lax.gt(x, y))
ge = _compare("ge", np.greater_equal, lambda jnp, lax, x, y: lax.ge(x, y))

_LOGIC = dict(version=1, dtypes=_BITS, facts=(COMMUTATIVE, EXACT), inputs=Domain(-128, 127))
and_ = elementwise(
    "and", scalar=lambda x, y: x & y, numpy=np.bitwise_and, jax=lambda jnp, lax, x, y: lax.bitwise_and(x, y), **_LOGIC)
or_ = elementwise(
    "or", scalar=lambda x, y: x | y, numpy=np.bitwise_or, jax=lambda jnp, lax, x, y: lax.bitwise_or(x, y), **_LOGIC)
xor = elementwise(
    "xor", scalar=lambda x, y: x ^ y, numpy=np.bitwise_xor, jax=lambda jnp, lax, x, y: lax.bitwise_xor(x, y), **_LOGIC)
not_ = elementwise(
    "not", version=1, dtypes=_BITS, scalar=lambda x: ~x, numpy=np.invert, jax=lambda jnp, lax, x: lax.bitwise_not(x),
    facts=(INVOLUTION, EXACT))

_SHIFT = dict(version=1, dtypes=INTS, facts=(EXACT,), inputs=(Domain(-128, 127), Domain(-2, 70)))
shift_left = elementwise(
    "shift_left", scalar=ex.shl, numpy=_machine("shl"), jax=lambda jnp, lax, x, y: lax.shift_left(x, y), **_SHIFT)
shift_right_arithmetic = elementwise(
    "shift_right_arithmetic", scalar=ex.shr_arith, numpy=_machine("shr_arith"),
    jax=lambda jnp, lax, x, y: lax.shift_right_arithmetic(x, y), **_SHIFT)
shift_right_logical = elementwise(
    "shift_right_logical", scalar=ex.shr_logical, numpy=_machine("shr_logical"),
    jax=lambda jnp, lax, x, y: lax.shift_right_logical(x, y), **_SHIFT)


def _infer_select(types, attrs, given):
    require_dtype("select", types[0].dtype, BOOL, "the condition")
    require_same("select", types, shapes_only=True)
    require_same("select", types[1:])
    return types[1]


select = elementwise(
    "select", version=1, dtypes=ALL, scalar=ex.select, arity=3, numpy=lambda c, x, y: np.where(c, x, y),
    jax=lambda jnp, lax, c, x, y: lax.select(c, x, y), infer=_infer_select, facts=(EXACT,))


def _np_convert(x, *, shape, dtype):
    """`dtype` may be wider than the graph says (the float64 interpreter): floats then only widen."""
    from mlc.core.scalar_eval import convert
    if dtype == np.longdouble:
        return x.astype(np.longdouble)
    if x.dtype == np.longdouble:
        x = x.astype(np.float64)
    return convert(x, as_dtype(x.dtype), as_dtype(dtype))


convert_element_type = elementwise(
    "convert_element_type", version=1, dtypes=ALL, arity=1, scalar=lambda x, *, shape, dtype: ex.convert(x, dtype), numpy=_np_convert,
    jax=lambda jnp, lax, x, *, shape, dtype: lax.convert_element_type(x, dtype), typed=True, alias="fresh",
    infer=lambda types, attrs, given: types[0].with_dtype(given.dtype), facts=(MONOTONE, DISCONTINUOUS), inputs=Domain(-300, 300, edges=(
        0.0, -0.0, 0.25, np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, 127.9, -128.9, 2147483520.0, -2147483648.0, 65504.0, 65520.0)))


def _positive_power(x, n: int):
    """Square and multiply, lowest bit first."""
    total, square = None, x
    while True:
        if n & 1:
            total = square if total is None else total * square
        n >>= 1
        if not n:
            return total
        square = square * square


def _integer_pow(x, *, y):
    """A negative power is the reciprocal of the positive one. Where that is no normal number, the reciprocal may still be one that a dtype
    holds (subnormal, or just below the largest): then 1 is divided twice, by about half the power each time."""
    if y == 0:
        return ex.const(1, x.dtype)
    power = _positive_power(x, abs(y))
    if y > 0:
        return power
    if y == -1:
        return 1 / power
    half = -y // 2
    twice = 1 / _positive_power(x, half) / _positive_power(x, -y - half)
    size = ex.absolute(power)
    return ex.mostly((size >= 2.0 ** dt.MIN_EXPONENT[x.dtype]) & (size < np.inf), 1 / power, twice)


def _np_integer_pow(x, *, y):
    one = np.ones_like(x)
    if y >= 0:
        return _positive_power(x, y) if y else one
    power = _positive_power(x, -y)
    if y == -1:
        return one / power
    half = -y // 2
    size, twice = np.abs(power), one / _positive_power(x, half) / _positive_power(x, -y - half)
    least = np.finfo(x.dtype).smallest_normal if x.dtype == np.longdouble else 2.0 ** dt.MIN_EXPONENT[as_dtype(x.dtype)]
    return np.where((size >= least) & (size < np.inf), one / power, twice)


def _infer_integer_pow(types, attrs, given):
    require_dtype("integer_pow", types[0].dtype, NUMERIC if attrs["y"] >= 0 else FLOATS)
    return types[0]


def _power_ulp(dtype: DType, y: int) -> float:
    """About 0.75 y: y - 1 roundings of half a unit at most. Their errors multiply, which dtypes of few bits notice."""
    return max(0.5, math.expm1(min(0.75 * y * dtype.eps, 700.0)) / dtype.eps)


integer_pow = elementwise(
    "integer_pow", version=2, dtypes=NUMERIC, arity=1, attrs={"y": "int"}, infer=_infer_integer_pow, scalar=_integer_pow,
    numpy=_quiet(_np_integer_pow),
    jax=lambda jnp, lax, x, *, y: lax.integer_pow(x, y),
    ulp=lambda attrs: {d: _power_ulp(d, abs(attrs["y"])) for d in FLOATS}, inputs=Domain(-3, 3))

