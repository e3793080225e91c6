"""Elementwise functions of one array, and `where`. Each decomposes into graph ops as `jax.numpy` does, so that special values agree."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import broadcast_shapes
from mlc.core.errors import DtypeError, UnsupportedError
from mlc.frontend.api import public
from mlc.frontend.primitives import array_of, compare, float_limits, full_bool, like, need, refuse_out, select, sign_bit, to_bool
from mlc.frontend.promotion import as_array, broadcast, convert, promote, to_inexact, to_numeric
from mlc.frontend.record import emit
from mlc.ops.base import REGISTRY


def _inexact(name: str, op: str = "", aliases: tuple[str, ...] = (), instead: str = ""):
    op = op or name

    def function(x, /):
        (x,) = promote(x, to=to_inexact)
        return emit(need(name, op, instead) if op not in REGISTRY else op, (x,))
    function.__name__ = function.__qualname__ = name
    known = f"Elementwise {name}; integers and bools become floats first (64-bit ones float64, others float32)."
    function.__doc__ = known if op in REGISTRY else f"Not available yet: {instead}."
    return public(function, aliases=aliases)


exp, exp2, expm1, log, log2, log1p = (_inexact(n) for n in ("exp", "exp2", "expm1", "log", "log2", "log1p"))
sin, cos, tanh, sqrt = (_inexact(n) for n in ("sin", "cos", "tanh", "sqrt"))
tan = _inexact("tan", instead="use sin(x) / cos(x)")
sinh = _inexact("sinh", instead="use (exp(x) - exp(-x)) / 2")
cosh = _inexact("cosh", instead="use (exp(x) + exp(-x)) / 2")
arcsin = _inexact("arcsin", "asin", ("asin",), instead="compute it outside the compiled function")
arccos = _inexact("arccos", "acos", ("acos",), instead="compute it outside the compiled function")
arctan = _inexact("arctan", "atan", ("atan",), instead="compute it outside the compiled function")
arcsinh = _inexact("arcsinh", "asinh", ("asinh",), instead="use log(x + sqrt(x * x + 1))")
arccosh = _inexact("arccosh", "acosh", ("acosh",), instead="use log(x + sqrt(x * x - 1))")
arctanh = _inexact("arctanh", "atanh", ("atanh",), instead="use (log1p(x) - log1p(-x)) / 2")
cbrt = _inexact("cbrt", instead="use sign(x) * abs(x) ** (1 / 3)")


@public
def log10(x, /):
    """log(x) times 1 / log(10)."""
    (x,) = promote(x, to=to_inexact)
    return emit("mul", (emit("log", (x,)), like(x, 0.4342944819032518)))


@public(aliases=("radians",))
def deg2rad(x, /):
    """x * (pi / 180)."""
    (x,) = promote(x, to=to_inexact)
    return emit("mul", (x, like(x, np.pi / 180)))


@public(aliases=("degrees",))
def rad2deg(x, /):
    """x * (180 / pi)."""
    (x,) = promote(x, to=to_inexact)
    return emit("mul", (x, like(x, 180 / np.pi)))


@public
def reciprocal(x, /):
    """1 / x, in a floating dtype."""
    (x,) = promote(x, to=to_inexact)
    return emit("integer_pow", (x,), {"y": -1})


@public(jax=lambda jax, x: jax.lax.rsqrt(x))
def rsqrt(x, /):
    """1 / sqrt(x), in a floating dtype (`lax.rsqrt`)."""
    (x,) = promote(x, to=to_inexact)
    return emit("rsqrt", (x,))


@public
def sinc(x, /):
    """sin(pi x) / (pi x), and 1 at 0."""
    (x,) = promote(x, to=to_inexact)
    zero = compare("eq", x, like(x, 0))
    pi_x = emit("mul", (like(x, math.pi), x))
    safe = select(zero, like(x, 1), pi_x)
    at_zero = emit("add", (emit("mul", (pi_x, like(x, 0))), like(x, 1)))
    return select(zero, at_zero, emit("div", (emit("sin", (safe,)), safe)))


# --------------------------------------------------------------------------- unary, any dtype
@public(aliases=("neg",))
def negative(x, /):
    """-x; integers wrap, bool is refused."""
    return emit("neg", (array_of(x),))


@public
def positive(x, /):
    """x itself."""
    return array_of(x)


@public(name="absolute", aliases=("abs",))
def absolute(x, /):
    """|x|; the smallest integer wraps to itself."""
    x = array_of(x)
    return x if x.type.dtype.kind in "bu" else emit("abs", (x,))


@public
def fabs(x, /):
    """|x| in a floating dtype."""
    (x,) = promote(x, to=to_inexact)
    return emit("abs", (x,))


@public
def sign(x, /):
    """-1, 0 or 1; zeros keep their sign, NaN stays."""
    return emit("sign", (array_of(x),))


@public
def square(x, /):
    """x * x."""
    (x,) = promote(x, to=to_numeric)
    return emit("mul", (x, x))


def _rounding(name: str, op: str):
    def function(x, /):
        x = array_of(x)
        return x if not x.type.dtype.is_float else emit(op, (x,))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {name}; integers and bools are returned as they are."
    return public(function)


floor, ceil = _rounding("floor", "floor"), _rounding("ceil", "ceil")


@public(aliases=("fix",))
def trunc(x, /):
    """The integer part, towards zero."""
    x = array_of(x)
    if not x.type.dtype.is_float:
        return x
    return select(compare("lt", x, like(x, 0)), emit("ceil", (x,)), emit("floor", (x,)))


@public
def rint(x, /):
    """Round half to even; integers become float64, as in `jax.numpy`."""
    x = array_of(x)
    return emit("round", (x,)) if x.type.dtype.is_float else convert(x, dt.f64)


@public(name="round", aliases=("around",))
def round_(a, decimals: int = 0, out=None):
    """Round half to even at `decimals` places; integers are returned as they are."""
    refuse_out(out)
    x, decimals = array_of(a), decimals.__index__()
    dtype = x.type.dtype
    if not dtype.is_float:
        if dtype is dt.bool_:
            raise DtypeError("a bool cannot be rounded")
        if decimals < 0:
            raise UnsupportedError("integers cannot be rounded to tens; convert to float first")
        return x
    if decimals == 0:
        return emit("round", (x,))
    if decimals > math.log10(2.0 ** min(dt.MAX_EXPONENT[dtype] + 1, 1023)):
        return x
    wide = convert(x, dt.f32, x.weak) if dtype is dt.f16 else x
    factor = like(wide, float(10 ** decimals) if decimals > 0 else 10.0 ** decimals)
    return convert(emit("div", (emit("round", (emit("mul", (wide, factor)),)), factor)), dtype, x.weak)


@public(aliases=("bitwise_not", "bitwise_invert"))
def invert(x, /):
    """Bitwise not; logical not of bools."""
    return emit("not", (array_of(x),))


@public
def logical_not(x, /):
    """x == 0."""
    return emit("not", (to_bool(array_of(x)),), weak=False)


@public
def isfinite(x, /):
    """Neither infinite nor NaN; integers always are."""
    x = array_of(x)
    return emit("is_finite", (x,), weak=False) if x.type.dtype.is_float else full_bool(x, True)


@public
def isnan(x, /):
    """x != x."""
    x = array_of(x)
    return compare("ne", x, x)


@public
def isinf(x, /):
    """Positive or negative infinity."""
    x = array_of(x)
    return compare("eq", emit("abs", (x,)), like(x, np.inf)) if x.type.dtype.is_float else full_bool(x, False)


@public
def isposinf(x, /):
    """Positive infinity."""
    x = array_of(x)
    return compare("eq", x, like(x, np.inf)) if x.type.dtype.is_float else full_bool(x, False)


@public
def isneginf(x, /):
    """Negative infinity."""
    x = array_of(x)
    return compare("eq", x, like(x, -np.inf)) if x.type.dtype.is_float else full_bool(x, False)


@public
def signbit(x, /):
    """Whether the sign bit is set (also of -0.0 and NaN)."""
    x = array_of(x)
    if not x.type.dtype.is_float:
        return compare("lt", x, like(x, 0)) if x.type.dtype.is_int else full_bool(x, False)
    return sign_bit(x)


@public
def nan_to_num(x, copy: bool = True, nan=0.0, posinf=None, neginf=None):
    """NaN and infinities replaced, by 0 and the dtype's largest numbers unless said otherwise."""
    x = array_of(x)
    if not x.type.dtype.is_float:
        return x
    info = float_limits(x.type.dtype)
    out = where(isnan(x), as_array(nan, x.type.dtype), x)
    out = where(isposinf(out), as_array(info if posinf is None else posinf, x.type.dtype), out)
    return where(isneginf(out), as_array(-info if neginf is None else neginf, x.type.dtype), out)


@public
def where(condition, x=None, y=None, /):
    """x where the condition is true (nonzero), y elsewhere."""
    if x is None or y is None:
        raise UnsupportedError("where with one argument has a shape that depends on data; give x and y")
    x, y = promote(x, y)
    condition = to_bool(array_of(condition))
    shape = broadcast_shapes(condition.type.shape, x.type.shape, what="condition and values")
    return select(broadcast(condition, shape), broadcast(x, shape), broadcast(y, shape))


@public(aliases=("conj",))
def conjugate(x, /):
    """x: there are no complex dtypes."""
    return array_of(x)


@public
def real(x, /):
    """x: there are no complex dtypes."""
    return array_of(x)


@public
def imag(x, /):
    """Zeros: there are no complex dtypes."""
    return like(array_of(x), 0)
