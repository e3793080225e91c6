"""Angles to folded turns: x / (2 pi) less the nearest multiple of a fraction of a turn, for every finite f32 and f64.

Payne and Hanek, "Radian reduction for trigonometric functions" (1983): of the digits of 1/(2 pi), those that make only
whole turns of x are left out, and the product with the rest is kept exact until the whole turns are gone. Without tables:
the digits are constants chosen by selects on the size of x.
"""

from __future__ import annotations

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dtype import f32, f64, i64
from mlc.core.expr import Expr, bitcast, const, convert, fma, select, shl, shr_logical
from mlc.ops import vecmath_tables as tables

_MAGIC = 1.5 * 2.0 ** 52  # added to a small f64, leaves it rounded to an integer in the low bits
_DIGITS = 53  # of 1/(2 pi) in one of tables.TURN_DIGITS


def fold(x: Expr, parts: int, offset: float = 0.0) -> tuple[Expr, Expr]:
    """(t, n): x / (2 pi) + offset = whole turns + n/parts + t with |t| <= 1/(2 parts) as f64, and n in the low bits of an
    i64. NaN for infinite x. `parts` is a power of two, `offset` a short fraction."""
    return _fold_f32(x, parts, offset) if x.dtype is f32 else _fold_f64(x, parts, offset)


def _nearest(turns: Expr, parts: int) -> tuple[Expr, Expr]:
    """The nearest multiple of 1/parts, in parts: as a float and as low bits."""
    shifted = fma(turns, float(parts), _MAGIC)
    return shifted - _MAGIC, bitcast(shifted, i64)


def _fold_f32(x: Expr, parts: int, offset: float) -> tuple[Expr, Expr]:
    """Three f64 parts of 1/(2 pi), from one of two places. The first has 29 bits, so its product with the 24 of x is
    exact; the second product loses its whole turns inside an fma. What is rounded matters only within 2^-28 of a multiple
    of a quarter turn, to which few floats come; LARGE_ANGLE is where those few are within 2 ulp (all f32 were scanned)."""
    wide = convert(x, f64)
    large = ex.absolute(x) >= tables.LARGE_ANGLE
    first, second, third = (select(large, const(b, f64), a) for a, b in zip(*tables.INVERSE_TURN))
    product, middle = wide * first, wide * second
    turns = product - ex.unary("rint", product)
    if offset:
        turns = turns + offset
    turns = fma(wide, third, turns + fma(wide, second, -ex.unary("rint", middle)))
    n, bits = _nearest(turns, parts)
    return fma(n, -1.0 / parts, turns), bits


def _two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b and its exact rounding error (Knuth)."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def _window(x: Expr) -> tuple[Expr, list[Expr]]:
    """(x', four 53-digit words w) with x / (2 pi) = whole turns + x' * sum w[i] 2^(-53 i); x' is a whole number below 2^106
    for |x| >= 2^-53. The first word is that with number floor((E + 106) / 53), where 2^E is the last bit of x."""
    size = ex.absolute(x)
    size = select(size < 2.0 ** -53, 2.0 ** -53, size)
    field = shr_logical(bitcast(size, dt.u64), 52) | const(ex.float_bits(2.0 ** 52, f64), dt.u64)
    # The biased exponent less 969 + 26, so that rounding to the nearest 53rd is the floor.
    number = fma(bitcast(field, f64) - (2.0 ** 52 + 995), 1 / _DIGITS, _MAGIC)
    scale = fma(number - _MAGIC, -float(_DIGITS), _MAGIC + 1023 + 2 * _DIGITS)
    bits = bitcast(number, i64)
    words = [const(w, f64) for w in (0.0, 0.0, *tables.TURN_DIGITS)]
    for level in (4, 3, 2, 1, 0):
        step = 1 << level
        chosen = ex.ne(bits & const(step, i64), 0)
        words = [select(chosen, words[i + step], words[i]) if i + step < len(words) else words[i] for i in range(step + 3)]
    return x * bitcast(shl(bitcast(scale, i64), 52), f64), words


def _fold_f64(x: Expr, parts: int, offset: float) -> tuple[Expr, Expr]:
    """Exact products of x' with the words, reduced modulo 1 piece by piece, and summed with their errors, because the sum
    may cancel down to 2^-63 of a turn."""
    x0, (w0, w1, w2, w3) = _window(x)
    x1, x2, x3 = (x0 * 2.0 ** (-_DIGITS * i) for i in (1, 2, 3))
    first = fma(x0, w0, -ex.unary("rint", x0 * w0))
    first = first - ex.unary("rint", first)
    if offset:
        first = first + offset
    product = x1 * w1
    low = fma(x1, w1, -product)
    second = product - ex.unary("rint", product)
    third = x2 * w2
    rest = fma(x3, w3, fma(x2, w2, -third))

    small, small_error = _two_sum(low, third)
    n, bits = _nearest((first + second) + small, parts)
    total, error = _two_sum(fma(n, -1.0 / parts, first), second)
    total, more = _two_sum(total, small)
    error, tail = _two_sum(error, more)
    error, tail_more = _two_sum(error, small_error)
    return total + (error + ((tail + tail_more) + rest)), bits
