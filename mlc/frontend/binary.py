"""Elementwise functions of two arrays. Each decomposes into graph ops as `jax.numpy` does, so that special values agree.

Where `jax.numpy` itself is known to be wrong (integer powers past 63 and below 0), the mathematical result is given, truncated towards zero.
"""

from __future__ import annotations

import numpy as np

from mlc.core import dtype as dt
from mlc.core.errors import DtypeError
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.primitives import array_of, compare, like, need, refuse_out, select, sign_bit, to_bool
from mlc.frontend.promotion import promote, to_inexact, to_numeric
from mlc.frontend.record import emit


@public
def add(x1, x2, /):
    """x1 + x2; of bools, or."""
    x, y = promote(x1, x2)
    return emit("or" if x.type.dtype is dt.bool_ else "add", (x, y))


@public(aliases=("sub",))
def subtract(x1, x2, /):
    """x1 - x2; bools are refused."""
    x, y = promote(x1, x2)
    if x.type.dtype is dt.bool_:
        raise DtypeError("bools cannot be subtracted; use logical_xor")
    return emit("sub", (x, y))


@public(aliases=("mul",))
def multiply(x1, x2, /):
    """x1 * x2; of bools, and."""
    x, y = promote(x1, x2)
    return emit("and" if x.type.dtype is dt.bool_ else "mul", (x, y))


@public(name="true_divide", aliases=("divide", "div"))
def true_divide(x1, x2, /):
    """x1 / x2 in a floating dtype."""
    return emit("div", promote(x1, x2, to=to_inexact))


@public
def floor_divide(x1, x2, /):
    """The quotient rounded down; integer division by zero gives -1 or -2 (unsigned: all ones), as in XLA."""
    x, y = promote(x1, x2, to=to_numeric)
    kind = x.type.dtype.kind
    if kind == "u":
        return emit("div", (x, y))
    if kind == "f":
        return _float_divmod(x, y)[0]
    quotient = emit("div", (x, y))
    signs = compare("ne", emit("sign", (x,)), emit("sign", (y,)))
    inexact = compare("ne", emit("rem", (x, y)), like(x, 0))
    return select(emit("and", (signs, inexact), weak=False), emit("sub", (quotient, like(x, 1))), quotient)


def _float_divmod(x: Array, y: Array) -> tuple[Array, Array]:
    mod = emit("rem", (x, y))
    corrected = select(compare("eq", y, like(y, 0)), x, emit("sub", (x, mod)))
    div = emit("div", (corrected, y))
    signs = compare("ne", emit("sign", (y,)), emit("sign", (mod,)))
    adjust = emit("and", (compare("ne", mod, like(mod, 0)), signs), weak=False)
    mod = select(adjust, emit("add", (mod, y)), mod)
    div = select(adjust, emit("sub", (div, like(div, 1))), div)
    return round_half_away(div), mod


def round_half_away(x: Array) -> Array:
    """`lax.round`'s default: halves away from zero. Here x is a whole number up to rounding, or not finite."""
    whole = emit("floor", (emit("add", (emit("abs", (x,)), like(x, 0.5))),))
    # From 2**(mantissa - 1) on every float is whole, and adding 0.5 could move it.
    big = compare("ge", emit("abs", (x,)), like(x, 2.0 ** (dt.MANTISSA[x.type.dtype] - 1)))
    signed = select(compare("lt", x, like(x, 0)), emit("neg", (whole,)), whole)
    return select(emit("or", (big, compare("eq", x, like(x, 0))), weak=False), x, signed)


@public(aliases=("mod",))
def remainder(x1, x2, /):
    """The remainder with the sign of the divisor; 0 for an integer divided by zero."""
    x, y = promote(x1, x2, to=to_numeric)
    if x.type.dtype.is_int:
        y = select(compare("eq", y, like(y, 0)), like(y, 1), y)
    rest, zero = emit("rem", (x, y)), like(x, 0)
    differs = compare("ne", emit("lt", (rest, zero), weak=False), emit("lt", (y, zero), weak=False))
    return select(emit("and", (differs, compare("ne", rest, zero)), weak=False), emit("add", (rest, y)), rest)


@public
def fmod(x1, x2, /):
    """The remainder with the sign of the dividend; 0 for an integer divided by zero."""
    x, y = promote(x1, x2, to=to_numeric)
    if x.type.dtype.is_int:
        y = select(compare("eq", y, like(y, 0)), like(y, 1), y)
    return emit("rem", (x, y))


@public(name="divmod")
def divmod_(x1, x2, /):
    """(floor_divide, remainder)."""
    x, y = promote(x1, x2, to=to_numeric)
    return _float_divmod(x, y) if x.type.dtype.is_float else (floor_divide(x, y), remainder(x, y))


@public
def modf(x, /, out=None):
    """(fractional part, integer part)."""
    refuse_out(out)
    (x,) = promote(x, to=to_inexact)
    whole = select(compare("ge", x, like(x, 0)), emit("floor", (x,)), emit("ceil", (x,)))
    return emit("sub", (x, whole)), whole


def _static_integer(value: object) -> int | None:
    if isinstance(value, Array) or (isinstance(value, np.ndarray) and value.ndim):
        return None
    try:
        return value.__index__()
    except (AttributeError, TypeError):
        return None


@public(aliases=("pow",))
def power(x1, x2, /):
    """x1 ** x2. A Python integer exponent multiplies; integers need a non-negative one."""
    exponent = _static_integer(x2)
    if exponent is not None:
        (x,) = promote(x1, to=to_numeric)
        if exponent < 0 and x.type.dtype.is_int:
            raise DtypeError(f"integers cannot be raised to the negative power {exponent}; convert to float first")
        return emit("integer_pow", (x,), {"y": int(exponent)})
    return emit("pow", promote(x1, x2, to=to_numeric))


@public
def float_power(x1, x2, /):
    """x1 ** x2 in a floating dtype."""
    return emit("pow", promote(x1, x2, to=to_inexact))


@public
def maximum(x1, x2, /):
    """The larger; NaN from either side, +0 over -0."""
    return emit("max", promote(x1, x2))


@public
def minimum(x1, x2, /):
    """The smaller; NaN from either side, -0 under +0."""
    return emit("min", promote(x1, x2))


@public
def fmax(x1, x2, /):
    """The larger; a number rather than NaN."""
    x, y = promote(x1, x2)
    return select(emit("or", (compare("gt", x, y), compare("ne", y, y)), weak=False), x, y)


@public
def fmin(x1, x2, /):
    """The smaller; a number rather than NaN."""
    x, y = promote(x1, x2)
    return select(emit("or", (compare("lt", x, y), compare("ne", y, y)), weak=False), x, y)


@public
def clip(arr, /, min=None, max=None, *, a_min=None, a_max=None):
    """minimum(maximum(min, x), max); a missing bound does not count. `a_min` and `a_max` are NumPy's names for them."""
    min, max = (a_min if min is None else min), (a_max if max is None else max)
    out = array_of(arr)
    if min is not None:
        out = maximum(min, out)
    return out if max is None else minimum(max, out)


@public
def logaddexp(x1, x2, /):
    """log(exp(x1) + exp(x2)) without overflow."""
    x, y = promote(x1, x2, to=to_inexact)
    top, delta = emit("max", (x, y)), emit("sub", (x, y))
    soft = emit("log1p", (emit("exp", (emit("neg", (emit("abs", (delta,)),)),)),))
    return select(compare("ne", delta, delta), emit("add", (x, y)), emit("add", (top, soft)))


@public
def logaddexp2(x1, x2, /):
    """log2(exp2(x1) + exp2(x2)) without overflow."""
    x, y = promote(x1, x2, to=to_inexact)
    top, delta = emit("max", (x, y)), emit("sub", (x, y))
    soft = emit("log1p", (emit("exp2", (emit("neg", (emit("abs", (delta,)),)),)),))
    soft = emit("mul", (like(top, float(1 / np.log(2))), soft))
    return select(compare("ne", delta, delta), emit("add", (x, y)), emit("add", (top, soft)))


@public
def hypot(x1, x2, /):
    """sqrt(x1**2 + x2**2) without overflow."""
    x, y = (emit("abs", (v,)) for v in promote(x1, x2, to=to_inexact))
    infinite = emit("or", (compare("eq", x, like(x, np.inf)), compare("eq", y, like(y, np.inf))), weak=False)
    x, y = emit("max", (x, y)), emit("min", (x, y))
    zero, one = compare("eq", x, like(x, 0)), like(x, 1)
    ratio = emit("div", (y, select(zero, one, x)))
    root = emit("sqrt", (emit("add", (one, emit("mul", (ratio, ratio)))),))
    return select(infinite, like(x, np.inf), select(zero, x, emit("mul", (x, root))))


@public(aliases=("atan2",))
def arctan2(x1, x2, /):
    """The angle of (x2, x1). Not available yet: compute it outside the compiled function."""
    need("arctan2", "atan2", "compute it outside the compiled function")
    return emit("atan2", promote(x1, x2, to=to_inexact))


@public
def nextafter(x1, x2, /):
    """The next float after x1 towards x2. Not available yet: compute it outside the compiled function."""
    need("nextafter", "nextafter", "compute it outside the compiled function")
    return emit("nextafter", promote(x1, x2, to=to_inexact))


@public
def heaviside(x1, x2, /):
    """0 below zero, 1 above, x2 at zero, NaN at NaN."""
    x, y = promote(x1, x2, to=to_inexact)
    zero = like(x, 0)
    at_zero = select(compare("ne", x, x), x, y)
    return select(compare("lt", x, zero), zero, select(compare("gt", x, zero), like(x, 1), at_zero))


def _logical(name: str, op: str):
    def function(x1, x2, /):
        x, y = promote(x1, x2)
        return emit(op, (to_bool(x), to_bool(y)), weak=False)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op} of the operands' truth (nonzero is true)."
    return public(function)


logical_and, logical_or, logical_xor = _logical("logical_and", "and"), _logical("logical_or", "or"), _logical("logical_xor", "xor")


def _bitwise(name: str, op: str):
    def function(x1, x2, /):
        return emit(op, promote(x1, x2))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Bitwise {op} of integers or bools."
    return public(function)


bitwise_and, bitwise_or, bitwise_xor = _bitwise("bitwise_and", "and"), _bitwise("bitwise_or", "or"), _bitwise("bitwise_xor", "xor")


@public(aliases=("bitwise_left_shift",))
def left_shift(x1, x2, /):
    """x1 << x2; 0 for a shift past the width."""
    return emit("shift_left", promote(x1, x2, to=to_numeric))


@public(aliases=("bitwise_right_shift",))
def right_shift(x1, x2, /):
    """x1 >> x2, with sign bits for signed integers."""
    x, y = promote(x1, x2, to=to_numeric)
    return emit("shift_right_logical" if x.type.dtype.kind == "u" else "shift_right_arithmetic", (x, y))


def _comparison(name: str, op: str):
    def function(x1, x2, /):
        return emit(op, promote(x1, x2), weak=False)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {name.replace('_', ' ')}, in the promoted dtype; false on NaN (not_equal: true)."
    return public(function)


equal, not_equal = _comparison("equal", "eq"), _comparison("not_equal", "ne")
less, less_equal = _comparison("less", "lt"), _comparison("less_equal", "le")
greater, greater_equal = _comparison("greater", "gt"), _comparison("greater_equal", "ge")


@public
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan: bool = False):
    """|a - b| <= atol + rtol * |b|, or equal."""
    x, y = promote(a, b, to=to_inexact)
    gap = emit("abs", (emit("sub", (x, y)),))
    allowed = emit("add", (like(x, float(atol)), emit("mul", (like(x, float(rtol)), emit("abs", (y,))))))
    near = emit("and", (emit("is_finite", (y,), weak=False), compare("le", gap, allowed)), weak=False)
    out = emit("or", (compare("eq", x, y), near), weak=False)
    if equal_nan:
        out = emit("or", (out, emit("and", (compare("ne", x, x), compare("ne", y, y)), weak=False)), weak=False)
    return out


@public
def copysign(x1, x2, /):
    """|x1| with the sign of x2."""
    x, y = promote(x1, x2, to=to_inexact)
    size = emit("abs", (x,))
    return select(sign_bit(y), emit("neg", (size,)), size)
