"""exp, log, sin and friends as scalar expressions: no library calls; f32 and f64, halves through f32.

The shape of each: reduce the argument exactly (Cody and Waite, "Software Manual for the Elementary Functions", 1980; the
reduction constants are split so that the large part of each product is exact), evaluate one minimax polynomial with fma
(`vecmath_tables`, fitted by `ci/fit_vecmath.py`), put the exponent back with integer shifts. Integers come out of floats by
adding 1.5 * 2^(p-1), whose low mantissa bits then hold the rounded sum. Both sides of a select are always computed, so a
select is there only for special values and the ends of the range; `mostly`, which code jumps over, where these take more than the
usual way. `ci/scan_ulp.py` measures the errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dtype import DType, f32, f64
from mlc.core.expr import Expr, bitcast, const, convert, fma, in_f32, polynomial, select, shl, shr_arith, shr_logical
from mlc.ops import vecmath_tables as tables
from mlc.ops.angles import fold

inf, nan = math.inf, math.nan
# Whether what is made now is for a target with an instruction for x * 2^n and one for tables of 32 f32.
_scales: ContextVar[bool] = ContextVar("scales", default=False)


@contextmanager
def formulas(scales: bool) -> Iterator[None]:
    """Formulas for targets that have an instruction for x * 2^n and one for tables of 32 f32, or for others, where a table is 32 loads."""
    token = _scales.set(scales)
    try:
        yield
    finally:
        _scales.reset(token)


# --------------------------------------------------------------------------- pieces
def _bits(x: Expr) -> Expr:
    return bitcast(x, dt.sint_of(x.dtype))


def _float(bits: Expr) -> Expr:
    return bitcast(bits, f32 if bits.dtype.bits == 32 else f64)


def _field(dtype: DType) -> int:
    """Width of the mantissa field."""
    return dt.MANTISSA[dtype] - 1


def _bias(dtype: DType) -> int:
    return dt.MAX_EXPONENT[dtype]


def _magic(dtype: DType, integer: int = 0) -> float:
    """A float to which a small number is added to round it to an integer; its low bits hold `integer` plus that."""
    return 1.5 * 2.0 ** _field(dtype) + integer


def _power_of_two(shifted: Expr) -> Expr:
    """2^n from n + _magic(dtype, bias): the shift leaves only the exponent field."""
    return _float(shl(_bits(shifted), _field(shifted.dtype)))


def _at_most(x: Expr, limit: float) -> Expr:
    """min(x, limit) that keeps NaN in one machine instruction."""
    return select(x > limit, limit, x)


def _at_least(x: Expr, limit: float) -> Expr:
    return select(x < limit, limit, x)


def _sign_mask(dtype: DType) -> Expr:
    return const(1 << (dtype.bits - 1), dt.sint_of(dtype))


def _with_sign_of(magnitude: Expr, x: Expr) -> Expr:
    """copysign."""
    sign = _sign_mask(x.dtype)
    return _float((_bits(magnitude) & ~sign) | (_bits(x) & sign))


def _times_ln2(n: Expr, x: Expr, factor: float) -> Expr:
    """x + n * factor * ln 2 for a whole n: the high part leaves no rounding error because both terms are on its grid."""
    high, low = tables.LN2[x.dtype]
    return fma(n, factor * low, fma(n, factor * high, x))


# --------------------------------------------------------------------------- exponentials
_EXP_ENDS = {f32: (-105.0, 89.0), f64: (-746.0, 710.0)}


def _exp_clamped(x: Expr) -> Expr:
    """exp between the ends. n is twice a whole m, so that 2^n is applied as 2^m twice: the first product is exact, the
    second rounds once, into the subnormals or to infinity."""
    dtype = x.dtype
    magic = _magic(dtype, _bias(dtype))
    shifted = fma(x, 0.5 / math.log(2), magic)
    r = _times_ln2(shifted - magic, x, -2.0)
    scale = _power_of_two(shifted)
    return polynomial(r, (*tables.EXP[dtype], 1.0, 1.0)) * scale * scale


# exp(r) = 1 + r * EXP_NEAR(r), |r| <= ln(2)/64: the factor of r makes up for the best part of r^3 / 6.
EXP_NEAR = (0.5, 1 + (math.log(2) / 64) ** 2 / 8)


def _exp_by_scale(x: Expr) -> Expr:
    """exp of an f32 between the ends as 2^n exp(r), where n counts 32nds: the low bits of the sum that rounds n choose 2^(n - whole n) from
    a table."""
    magic = _magic(f32) / 32
    shifted = fma(x, 1 / math.log(2), magic)
    n = shifted - magic
    r = _times_ln2(n, x, -1.0)
    power = ex.table(_bits(shifted), [2.0 ** (i / 32) for i in range(32)], f32)
    return ex.scale(fma(r * polynomial(r, EXP_NEAR), power, power), n)


@in_f32
def exp(x: Expr) -> Expr:
    """e^x."""
    low, high = _EXP_ENDS[x.dtype]
    clamped = _at_most(_at_least(x, low), high)
    return _exp_by_scale(clamped) if x.dtype is f32 and _scales.get() else _exp_clamped(clamped)


@in_f32
def exp2(x: Expr) -> Expr:
    """2^x, exact for whole x: the exponent is split in two whole parts, the second of which rounds what is left."""
    dtype = x.dtype
    magic = _magic(dtype, _bias(dtype))
    ends = {f32: (-152.0, 129.0), f64: (-1077.0, 1025.0)}[dtype]
    x = _at_most(_at_least(x, ends[0]), ends[1])
    first = fma(x, 0.5, magic)
    rest = x - (first - magic)
    second = rest + magic
    r = rest - (second - magic)
    return polynomial(r, (*tables.EXP2[dtype], 1.0)) * _power_of_two(first) * _power_of_two(second)


def _reduce(x: Expr, more: int) -> tuple[Expr, Expr]:
    """(r, s) with exp(x) = 2^n exp(r), |r| <= ln(2)/2 and s = 2^(n + more)."""
    magic = _magic(x.dtype, _bias(x.dtype) + more)
    shifted = fma(x, 1 / math.log(2), magic)
    return _times_ln2(shifted - magic, x, -1.0), _power_of_two(shifted)


def _exp_parts(x: Expr, more: int = 0) -> tuple[Expr, Expr]:
    """(p, s) with exp(x) = 2^n p and s = 2^(n + more)."""
    r, s = _reduce(x, more)
    return polynomial(r, (*tables.EXP_SMALL[x.dtype], 1.0, 1.0)), s


def _expm1_parts(x: Expr, more: int = 0) -> tuple[Expr, Expr]:
    """(q, s) with exp(x) = 2^n (1 + q) and s = 2^(n + more)."""
    r, s = _reduce(x, more)
    return fma(r * r, polynomial(r, tables.EXPM1[x.dtype]), r), s


@in_f32
def expm1(x: Expr) -> Expr:
    """e^x - 1 = 2^n q + (2^n - 1); built at half size, because 2^n may be 2^(emax + 1)."""
    low, high = {f32: (-18.0, 89.0), f64: (-38.0, 710.0)}[x.dtype]
    q, half = _expm1_parts(_at_most(_at_least(x, low), high), -1)
    result = fma(half, q, half - 0.5)
    return select(ex.absolute(x) < 2.0 ** -(_field(x.dtype) + 2), x, result + result)


def _odd_by_segments(x: Expr, start: float, rows: tuple[tuple[float, ...], ...], limit: float, slope: bool = False) -> Expr:
    """An odd f32 function that is constant from `limit` on: a polynomial of |x| - centre, both chosen by the exponent and two bits of
    the mantissa. Up to `start` the centre and the constant are 0, so small results keep their precision; the last row, if `slope`, is
    a short float that enters last there, so that they keep it where the function's slope is no f32."""
    y = _at_most(ex.absolute(x), limit)
    lowest = const(ex.float_bits(start, f32), dt.i32)
    index = shr_logical(ex.maximum(_bits(y), lowest), 21)
    centre, *coefficients = (ex.table(index, row, f32) for row in rows)
    r = y - centre
    last = coefficients.pop() if slope else None
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = fma(total, r, coefficient)
    return _with_sign_of(fma(r, last, total) if slope else total, x)


def _tanh_by_exp(x: Expr) -> Expr:
    """An odd polynomial up to 5/8, which gives +0 for -0, 1 - 2 / (e^2|x| + 1) beyond, where the quotient is small."""
    dtype = x.dtype
    square = x * x
    small = fma(x * square, polynomial(square, tables.TANH[dtype]), x)
    y = ex.absolute(x)
    near = _at_most(y, {f32: 10.0, f64: 20.0}[dtype])
    magic = _magic(dtype, _bias(dtype))
    shifted = fma(near, 2 / math.log(2), magic)
    # Half the argument, so e^2r is a polynomial of r with coefficients scaled by powers of two.
    r = _times_ln2(shifted - magic, near, -0.5)
    terms = (*tables.EXP_SMALL[dtype], 1.0, 1.0)
    p = polynomial(r, [c * 2.0 ** k for c, k in zip(terms, reversed(range(len(terms))))], waits=True)
    large = 1.0 - 2.0 / fma(p, _power_of_two(shifted), 1.0)
    return _float(_bits(select(y < 0.625, small, large)) | (_bits(x) ^ _bits(y)))


@in_f32
def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    by_segments = x.dtype is f32 and _scales.get()
    return _odd_by_segments(x, tables.TANH_SEGMENTS_START, tables.TANH_SEGMENTS, 9.5) if by_segments else _tanh_by_exp(x)


@in_f32
def logistic(x: Expr) -> Expr:
    """1 / (1 + e^-x), as e^x / (1 + e^x) for negative x, so that small results keep their bits. e^-|x| is scaled by an
    exponent that is too large by half the range and then by that half, which rounds once into the subnormals."""
    dtype = x.dtype
    half = _bias(dtype) // 2
    minus = _float(_bits(x) | _sign_mask(dtype))
    p, s = _exp_parts(_at_least(minus, _EXP_ENDS[dtype][0]), half)
    e = p * s * 2.0 ** -half
    return select(x >= 0.0, 1.0, e) / (e + 1.0)


# --------------------------------------------------------------------------- logarithms
# Exponents are lifted by this in an f64's integer, to be positive there, because AVX2 lacks arithmetic shifts and
# conversions of 64-bit integers.
_RISE = {f32: 0, f64: 2048}


def _above_sqrt_half(dtype: DType, less: int = 0) -> Expr:
    """What to take from the bits of x, so that above the mantissa field remains the n (+ rise) of x = 2^(n - less) m with
    sqrt(1/2) <= m < sqrt(2)."""
    return const(ex.float_bits(math.sqrt(0.5), dtype) + ((less - _RISE[dtype]) << _field(dtype)), dt.sint_of(dtype))


def _exponent(rest: Expr, dtype: DType) -> tuple[Expr, Expr]:
    """(n + rise, float n) of what remains."""
    if dtype is f32:
        n = shr_arith(rest, _field(dtype))
        return n, convert(n, f32)
    n, whole = shr_logical(rest, _field(dtype)), 2.0 ** _field(dtype)
    return n, _float(n | const(ex.float_bits(whole, dtype), rest.dtype)) - (whole + _RISE[dtype])


def _split(x: Expr, normal: bool = False) -> tuple[Expr, Expr]:
    """(e, f) with x = 2^e (1 + f) and sqrt(1/2) <= 1 + f < sqrt(2), for finite x > 0, subnormals too unless all are `normal`."""
    dtype, lift = x.dtype, dt.MANTISSA[x.dtype]
    start = _above_sqrt_half(dtype)
    if not normal:
        tiny = x < 2.0 ** dt.MIN_EXPONENT[dtype]
        start, x = select(tiny, _above_sqrt_half(dtype, lift), start), select(tiny, x * 2.0 ** lift, x)
    rest = _bits(x) - start
    mantissa = rest & const((1 << _field(dtype)) - 1, rest.dtype)
    f = _float(mantissa + const(ex.float_bits(math.sqrt(0.5), dtype), rest.dtype)) - 1.0
    return _exponent(rest, dtype)[1], f


def _log_specials(x: Expr, result: Expr) -> Expr:
    """The result, but inf and NaN give themselves, 0 gives -inf and negative numbers NaN."""
    return select(x <= 0.0, select(ex.eq(x, 0.0), const(-inf, x.dtype), nan), select(x < inf, result, x))


def _log_of(e: Expr, f: Expr) -> Expr:
    """e ln 2 + log(1 + f)."""
    high, low = tables.LN2[f.dtype]
    tail = f * f * polynomial(f, (*tables.LOG[f.dtype], -0.5))
    return fma(e, high, f + fma(e, low, tail))


def _log_by_segments(x: Expr) -> Expr:
    """log x for normal f32 x > 0 as n ln 2 - log c + log(m c), where c depends on the upper bits of m and n counts from 3/4 to 3/2. What
    of ln 2 and log c has few bits is added up exactly; c is 1 on both sides of 1, so that small results keep their precision."""
    (high, low), inverses, logs = tables.LOG_SEGMENTS
    bits = _bits(x)
    n = convert(shr_arith(bits - const(ex.float_bits(0.75, f32), dt.i32), 23), f32)
    m = _float(bits & 0x7FFFFF | ex.float_bits(1.0, f32))
    index = shr_logical(bits, 18)
    r = fma(m, ex.table(index, inverses, f32), -1.0)
    near = fma(r * r, polynomial(r, tables.LOG_NEAR[f32]), fma(n, low, r))
    return fma(n, high, ex.table(index, logs, f32)) + near


@in_f32
def log(x: Expr) -> Expr:
    """Natural logarithm."""
    whole = _log_specials(x, _log_of(*_split(x)))
    if x.dtype is f64:
        return whole
    smallest, above = (ex.float_bits(v, f32) for v in (2.0 ** dt.MIN_EXPONENT[f32], inf))
    normal = bitcast(x, dt.u32) - const(smallest, dt.u32) < above - smallest
    return ex.mostly(normal, _log_by_segments(x) if _scales.get() else _log_of(*_split(x, normal=True)), whole)


@in_f32
def log1p(x: Expr) -> Expr:
    """log(1 + x): the exponent is that of the rounded 1 + x, but f comes from x by one fma, so nothing of x is lost."""
    dtype, field = x.dtype, _field(x.dtype)
    u = x + 1.0
    n, e = _exponent(_bits(u) - _above_sqrt_half(dtype), dtype)
    # 2^(2 - e), which is normal for every e, against x / 4.
    scale = _float(shl(const(_bias(dtype) + 2 + _RISE[dtype], n.dtype) - n, field))
    f = fma(x * 0.25, scale, fma(scale, 0.25, -1.0))
    result = _log_of(e, f)
    return select(ex.absolute(x) < 2.0 ** -(field + 2), x, _log_specials(u, result))


@in_f32
def log2(x: Expr) -> Expr:
    """Base-2 logarithm, exact for powers of two."""
    e, f = _split(x)
    return _log_specials(x, e + fma(f, 1.4375, f * polynomial(f, tables.LOG2[x.dtype])))


# --------------------------------------------------------------------------- power
def _log2_for_pow(x: Expr) -> tuple[Expr, Expr]:
    """`_split` of x >= 0 with e = -inf at 0, inf at inf and NaN at NaN."""
    e, f = _split(x)
    return select(ex.eq(x, 0.0), const(-inf, x.dtype), select(x < inf, e, x)), f


def _exp2_two_steps(n: Expr, r: Expr) -> Expr:
    """2^(n + r) for |r| <= 1/2 and integer bits n that already hold twice the bias."""
    dtype, field = r.dtype, _field(r.dtype)
    half = shr_logical(n, 1)
    # In f64 the last two steps in pairs as well would be off by 2.05 ulp; f32 keeps its promise, in half the steps.
    return polynomial(r, (*tables.EXP2[dtype], 1.0), waits=dtype is f32) * _float(shl(half, field)) * _float(shl(n - half, field))


def _pow_f32(x: Expr, y: Expr) -> Expr:
    """x^y for x >= 0 as 2^(y log2 x), where the product is in f64; of log2's series only five terms need to be."""
    e, f = _log2_for_pow(x)
    terms = tables.POW_LOG2[f64]
    series, wide = convert(polynomial(f, terms[:-5], waits=True), f64), convert(f, f64)
    for term in terms[-5:]:
        series = fma(series, wide, term)
    power = convert(y, f64) * fma(wide, series + 1.4375, convert(e, f64))
    power = _at_most(_at_least(power, -160.0), 160.0)
    magic = _magic(f64, 2 * _bias(f32))
    shifted = power + magic
    return _exp2_two_steps(convert(_bits(shifted), dt.i32), convert(power - (shifted - magic), f32))


def _pow_f64(x: Expr, y: Expr) -> Expr:
    """x^y for x >= 0 with log2 x to about 2^-66 of itself in double-double: s = f / (2 + f) and the series of atanh, whose
    first two terms are carried double (as in Dekker, 1971)."""
    e, f = _log2_for_pow(x)
    d = f + 2.0
    inverse = 1.0 / d
    s = f * inverse
    s_low = (fma(-s, d, f) - s * (f - (d - 2.0))) * inverse
    z = s * s
    z_low = fma(s, s, -z) + (s + s) * s_low
    third, third_low = tables.TWO_THIRDS_LOG2E[f64]
    first, first_low = tables.TWO_LOG2E[f64]

    tail = z * polynomial(z, tables.POW_ATANH[f64])
    v = tail + third
    v_low = (tail - (v - third)) + third_low
    w = z * v
    w_low = fma(z, v, -w) + fma(z, v_low, z_low * v)
    u = w + first
    u_low = (w - (u - first)) + (w_low + first_low)
    part = s * u
    part_low = fma(s, u, -part) + fma(s, u_low, s_low * u)

    log = e + part
    log_low = (part - (log - e)) + part_low
    power = y * log
    power_low = fma(y, log, -power) + y * log_low
    power_low = select(ex.absolute(power) < 1100.0, power_low, 0.0)
    power = _at_most(_at_least(power, -1100.0), 1100.0)
    magic = _magic(f64, 2 * _bias(f64))
    shifted = power + magic
    return _exp2_two_steps(_bits(shifted), (power - (shifted - magic)) + power_low)


@in_f32
def pow(x: Expr, y: Expr) -> Expr:
    """x^y with the special values of C99 Annex F."""
    dtype = x.dtype
    size = ex.absolute(x)
    result = (_pow_f64 if dtype is f64 else _pow_f32)(size, y)
    half = y * 0.5
    whole = ex.eq(ex.unary("rint", y), y)
    odd = whole & ex.ne(ex.unary("rint", half), half)
    result = _float(_bits(result) ^ select(odd, _bits(x) & _sign_mask(dtype), 0))
    result = select((x < 0.0) & (size < inf) & ~whole, nan, result)
    one = ex.eq(x, 1.0) | ex.eq(y, 0.0) | (ex.eq(size, 1.0) & ex.eq(ex.absolute(y), inf))
    return select(one, 1.0, result)


# --------------------------------------------------------------------------- error function
def _erf_f32(x: Expr) -> Expr:
    """1 - exp(g(|x|)), but for the sign, with g = log(erfc), which is smooth; near 0 its leading term is kept apart and exact."""
    y = _at_most(ex.absolute(x), 4.0)
    q, s = _expm1_parts(fma(y, -1.125, y * -polynomial(y, tables.ERF[f32])))
    return _with_sign_of(fma(s, q, s - 1.0), x)


def _erf_f64(x: Expr) -> Expr:
    """An odd polynomial up to 1, 1 - exp(g(|x|)) beyond."""
    y = _at_most(ex.absolute(x), 6.0)
    p, s = _exp_parts(polynomial(y - 1.0, tables.ERF_FAR[f64]))
    far = _with_sign_of(fma(p, -s, 1.0), x)
    return select(y < 1.0, fma(x, 1.125, x * polynomial(x * x, tables.ERF_NEAR[f64])), far)


@in_f32
def erf(x: Expr) -> Expr:
    """The error function."""
    if x.dtype is f64 or not _scales.get():
        return _erf_f64(x) if x.dtype is f64 else _erf_f32(x)
    return _odd_by_segments(x, tables.ERF_SEGMENTS_START, tables.ERF_SEGMENTS, 3.99, slope=True)


# --------------------------------------------------------------------------- circular functions
def _sine_of_turns(x: Expr, offset: float) -> Expr:
    """sin(x + 2 pi offset): folded to a quarter turn either side of a half turn, whose parity gives the sign."""
    folded, halves = fold(x, 2, offset)
    t = convert(_float(_bits(folded) ^ shl(halves, 63)), x.dtype)
    return fma(t, 5.125, t * polynomial(t * t, tables.SIN[x.dtype]))


def _tiny_as_is(x: Expr, result: Expr) -> Expr:
    """x itself where x^3 is beyond its precision: keeps -0 and the subnormals."""
    return select(ex.absolute(x) < 2.0 ** (-dt.MANTISSA[x.dtype] // 2), x, result)


@in_f32
def sin(x: Expr) -> Expr:
    """Sine over the whole range."""
    return _tiny_as_is(x, _sine_of_turns(x, 0.0))


@in_f32
def cos(x: Expr) -> Expr:
    """Cosine over the whole range: the sine a quarter turn later, of |x|, so that it is even to the last bit."""
    return _sine_of_turns(ex.absolute(x), 0.25)


@in_f32
def tan(x: Expr) -> Expr:
    """Tangent over the whole range: folded to an eighth of a turn either side; -1/tan a quarter turn later."""
    folded, quarters = fold(x, 4)
    t = convert(folded, x.dtype)
    tangent = fma(t, 6.25, t * polynomial(t * t, tables.TAN[x.dtype]))
    odd = ex.ne(quarters & const(1, dt.i64), 0)
    return _tiny_as_is(x, select(odd, -1.0 / tangent, tangent))


# --------------------------------------------------------------------------- roots
@in_f32
def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x)."""
    return 1.0 / ex.sqrt(x)


# (1 - e)^(-1/3) = 1 + e/3 + 2/9 e^2 + 14/81 e^3 + ...
_CBRT_STEPS = {f32: ((14 / 81, 2 / 9, 1 / 3),), f64: ((14 / 81, 2 / 9, 1 / 3), (1 / 3,))}


@in_f32
def cbrt(x: Expr) -> Expr:
    """Cube root: the inverse root by a linear guess on the bits (a third of the exponent) and Newton's method of higher
    order on 1 - x z^3, without divisions."""
    dtype, field = x.dtype, _field(x.dtype)
    integer = dt.uint_of(dtype)
    drop = dtype.bits - field
    unit = 2.0 ** (field - drop)
    y = ex.absolute(x)
    tiny = y < 2.0 ** dt.MIN_EXPONENT[dtype]
    lift = 3 * (dt.MANTISSA[dtype] // 3 + (dtype is f64))
    scaled = select(tiny, y * 2.0 ** lift, y)
    number = _float(shr_logical(bitcast(scaled, integer), drop) | const(ex.float_bits(2.0 ** field, dtype), integer))
    guess = fma(number, -1 / 3, 2.0 ** field * 4 / 3 + unit * (_bias(dtype) * 4 / 3 - 0.068))
    z = _float(shl(bitcast(guess, integer), drop))
    for terms in _CBRT_STEPS[dtype]:
        e = fma(scaled * z, -(z * z), 1.0)
        z = fma(z * e, polynomial(e, terms), z)
    square = z * z
    root = scaled * square
    root = fma(root * fma(root, -z, 1.0), 2 / 3, root)
    root = root * select(tiny, const(2.0 ** (-lift // 3), dtype), 1.0)
    return select(ex.eq(x + x, x), x, _with_sign_of(root, x))
