"""Fits the polynomials of `mlc/ops/vecmath.py` and prints `mlc/ops/vecmath_tables.py`; --check compares instead of printing.

Each table is a weighted minimax polynomial: the Remez exchange (Remez 1934; Cheney, "Introduction to Approximation
Theory", ch. 3) on a dense Chebyshev grid in 60-digit arithmetic. Coefficients are then rounded to the working dtype one
at a time, from the most important (lowest power) up, and the others refitted around them.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable

import mpmath as mp
import numpy as np

DIGITS = 60
mp.mp.dps = DIGITS  # for the constants below
ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "mlc" / "ops" / "vecmath_tables.py"
LN2, PI = mp.log(2), mp.pi


def rounded(value, bits: int):
    """An mpf rounded to the f32 (24) or f64 (53) grid."""
    return mp.mpf(float(np.float32(float(value)))) if bits == 24 else mp.mpf(float(value))


def horner(coefficients: list, x):
    """The polynomial's value; coefficients from the highest power down."""
    total = mp.mpf(0)
    for coefficient in coefficients:
        total = total * x + coefficient
    return total


def remez(function: Callable, weight: Callable, low, high, degree: int, fixed: list) -> list:
    """Coefficients (lowest power first) of the polynomial minimising max |weight * (function - polynomial)|; the first
    len(fixed) coefficients are given."""
    free = degree + 1 - len(fixed)
    count = 24 * (free + 1)
    middle, half = (low + high) / 2, (high - low) / 2
    grid = [middle + half * mp.cos(PI * (2 * i + 1) / (2 * count)) for i in range(count)][::-1]
    powers = [[x ** k for k in range(degree + 1)] for x in grid]
    weights = [weight(x) for x in grid]
    targets = [function(x) - sum(c * p for c, p in zip(fixed, row)) for x, row in zip(grid, powers)]
    rows = [row[len(fixed):] for row in powers]
    chosen = [round((count - 1) * (1 - mp.cos(PI * i / free)) / 2) for i in range(free + 1)]
    for _ in range(30):
        system = mp.matrix(free + 1, free + 1)
        right = mp.matrix(free + 1, 1)
        for r, i in enumerate(chosen):
            for k in range(free):
                system[r, k] = rows[i][k]
            system[r, free] = (-1) ** r / weights[i]
            right[r] = targets[i]
        solution = mp.lu_solve(system, right)
        errors = [w * (t - mp.fdot(zip(solution[:free], row))) for w, t, row in zip(weights, targets, rows)]
        following = extrema(errors, free + 1)
        if following == chosen:
            break
        chosen = following
    return list(fixed) + list(solution[:free])


def extrema(errors: list, count: int) -> list[int]:
    """Indices of `count` alternating extrema of the error that hold the largest."""
    runs: list[int] = []
    for i, e in enumerate(errors):
        if runs and (errors[runs[-1]] > 0) == (e > 0):
            if abs(e) > abs(errors[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > count:
        runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
    assert len(runs) == count, (len(runs), count)
    return runs


def fit(function, weight, low, high, degree: int, bits: int) -> list:
    """A minimax polynomial with coefficients on the dtype's grid, highest power first.

    Refitting the last few coefficients chases the rounding errors of the first; the best of all stopping places is kept.
    """
    grid = [low + (high - low) * (mp.mpf(i) + 0.5) / 400 for i in range(400)]
    targets, weights = [function(x) for x in grid], [weight(x) for x in grid]

    def worst(coefficients: list):
        return max(abs(w * (t - horner(coefficients, x))) for x, t, w in zip(grid, targets, weights))

    done: list = []
    candidates = []
    while len(done) <= degree:
        found = remez(function, weight, low, high, degree, done)
        candidates.append([*done, *(rounded(c, bits) for c in found[len(done):])][::-1])
        done.append(rounded(found[len(done)], bits))
    return min(candidates, key=worst)


def _exp_tail(r):
    return (mp.expm1(r) - r) / r ** 2


def _log_tail(f):
    return (mp.log1p(f) - f + f * f / 2) / f ** 3


def _sine_rest(w):
    """sin(2 pi t) / t less its leading constant, over w = t^2."""
    turn = mp.sqrt(w)
    return mp.sin(2 * PI * turn) / turn - LEAD_SINE


def _tangent_rest(w):
    turn = mp.sqrt(w)
    return mp.tan(2 * PI * turn) / turn - LEAD_TANGENT


def _minus_log_erfc(x):
    return -mp.log(mp.erfc(x))


SQRT2 = mp.sqrt(2)
# Short floats: x * LEAD enters the result by one fma, so the fitted rest carries little of the rounding error.
LEAD_ERF, LEAD_LOG2, LEAD_SINE, LEAD_TANGENT = mp.mpf(1.125), mp.mpf(1.4375), mp.mpf(5.125), mp.mpf(6.25)


def _log2_rest(f):
    return mp.log(1 + f, 2) / f - LEAD_LOG2


def _atanh_tail(z):
    """(2 atanh(s) / s - 2 - 2/3 s^2) / s^4 / ln 2 over z = s^2."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2 - 2 * z / 3) / z ** 2 / LN2


# name: (what it is, function, weight that turns its error into a relative error of the result, interval, {bits: degree})
TABLES = {
    "EXP": ("exp(r) = 1 + r + r^2 * EXP(r), |r| <= ln 2", _exp_tail, lambda r: r ** 2 / mp.exp(r), (-LN2, LN2), {24: 5, 53: 12}),
    "EXPM1": ("expm1(r) = r + r^2 * EXPM1(r), |r| <= ln(2)/2", _exp_tail, lambda r: r ** 2 / mp.expm1(r), (-LN2 / 2, LN2 / 2), {24: 5, 53: 11}),
    "EXP2": ("exp2(r) = 1 + r * EXP2(r), |r| <= 1/2", lambda r: mp.expm1(r * LN2) / r, lambda r: r / 2 ** r,
             (mp.mpf(-0.5), mp.mpf(0.5)), {24: 5, 53: 11}),
    "LOG": ("log(1 + f) = f - f^2/2 + f^3 * LOG(f), sqrt(1/2) <= 1 + f <= sqrt(2)", _log_tail, lambda f: f ** 3 / mp.log1p(f),
            (1 / SQRT2 - 1, SQRT2 - 1), {24: 8, 53: 19}),
    "LOG_NEAR": ("log(1 + r) = r + r^2 * LOG_NEAR(r), -1/64 <= r <= 1/32", lambda r: (mp.log1p(r) - r) / r ** 2, lambda r: r ** 2 / mp.log1p(r),
                 (-mp.mpf(1) / 64, mp.mpf(1) / 32), {24: 2}),
    "LOG2": ("log2(1 + f) = f * (1.4375 + LOG2(f)), sqrt(1/2) <= 1 + f <= sqrt(2)", _log2_rest, lambda f: f / mp.log(1 + f, 2),
             (1 / SQRT2 - 1, SQRT2 - 1), {24: 9, 53: 21}),
    "POW_LOG2": ("log2(1 + f) = f * (1.4375 + POW_LOG2(f)), for f32 pow, in f64 and the first terms in f32", _log2_rest,
                 lambda f: f / mp.log(1 + f, 2), (1 / SQRT2 - 1, SQRT2 - 1), {53: 12}),
    "POW_ATANH": ("log2(1 + f) = 2/ln2 (s + s^3/3) + s^5 * POW_ATANH(s^2), s = f / (2 + f), for f64 pow", _atanh_tail,
                  lambda z: z ** 2, (mp.mpf(0), mp.mpf(0.0295)), {53: 7}),
    "EXP_SMALL": ("exp(r) = 1 + r + r^2 * EXP_SMALL(r), |r| <= ln(2)/2", _exp_tail, lambda r: r ** 2 / mp.exp(r), (-LN2 / 2, LN2 / 2),
                  {24: 4, 53: 10}),
    "TANH": ("tanh(x) = x + x^3 * TANH(x^2), |x| <= 5/8", lambda w: (mp.tanh(mp.sqrt(w)) / mp.sqrt(w) - 1) / w,
             lambda w: w * mp.sqrt(w) / mp.tanh(mp.sqrt(w)), (mp.mpf(0), mp.mpf(0.390625)), {24: 4, 53: 10}),
    "SIN": ("sin(2 pi t) = t * (5.125 + SIN(t^2)), |t| <= 1/4", _sine_rest, lambda w: mp.sqrt(w) / mp.sin(2 * PI * mp.sqrt(w)),
            (mp.mpf(0), mp.mpf(1) / 16), {24: 4, 53: 8}),
    "TAN": ("tan(2 pi t) = t * (6.25 + TAN(t^2)), |t| <= 1/8", _tangent_rest, lambda w: mp.sqrt(w) / mp.tan(2 * PI * mp.sqrt(w)),
            (mp.mpf(0), mp.mpf(1) / 64), {24: 7, 53: 15}),
    "ERF": ("erf(x) = 1 - exp(-x * (1.125 + ERF(x))), 0 <= x <= 4", lambda x: _minus_log_erfc(x) / x - LEAD_ERF,
            lambda x: x * mp.erfc(x) / mp.erf(x), (mp.mpf(0), mp.mpf(4)), {24: 9}),
    "ERF_NEAR": ("erf(x) = x * (1.125 + ERF_NEAR(x^2)), |x| <= 1", lambda w: mp.erf(mp.sqrt(w)) / mp.sqrt(w) - LEAD_ERF,
                 lambda w: mp.sqrt(w) / mp.erf(mp.sqrt(w)), (mp.mpf(0), mp.mpf(1)), {53: 12}),
    "ERF_FAR": ("erf(x) = 1 - exp(ERF_FAR(x - 1)), 1 <= x <= 6", lambda u: -_minus_log_erfc(u + 1), lambda u: mp.erfc(u + 1) / mp.erf(u + 1),
                (mp.mpf(0), mp.mpf(5)), {53: 19}),
}


def literal(value, bits: int) -> str:
    """The shortest decimal that reads back as the same f32 or f64."""
    text = str(np.float32(float(value))) if bits == 24 else repr(float(value))
    assert mp.mpf(float(np.float32(float(text)) if bits == 24 else float(text))) == value
    return text


def table(name: str) -> str:
    """The source text of one table."""
    about, function, weight, (low, high), degrees = TABLES[name]
    lines = [f"# {about}", f"{name} = {{"]
    for bits, degree in degrees.items():
        values = [literal(c, bits) for c in fit(function, weight, low, high, degree, bits)]
        lines.append(f"    f{32 if bits == 24 else 64}: (")
        row = "       "
        for value in values:
            if len(row) + len(value) > 118:
                lines.append(row)
                row = "       "
            row += f" {value},"
        lines += [row, "    ),"]
    return "\n".join([*lines, "}"])


# Odd functions by segments of their positive half: name: (what is fitted, function, slope at 0 that is added apart if not 0, start, degree).
SEGMENTS = {
    "TANH_SEGMENTS": ("tanh(centre + r)", mp.tanh, mp.mpf(0), -4, 5),
    "ERF_SEGMENTS": ("erf(centre + r) - slope r", mp.erf, LEAD_ERF, -6, 5),
}


def centre(function, low, high):
    """The f32 near the middle of a segment whose value is closest to an f32: the polynomial's constant then has no rounding error."""
    middle, step = rounded((low + high) / 2, 24), mp.mpf(2) ** (mp.floor(mp.log(low, 2)) - 23)
    near = [middle + k * step for k in range(-200, 201)]
    return min(near, key=lambda c: abs(function(c) - rounded(function(c), 24)))


def fit_around(function, weight, low, high, degree: int, constant) -> list:
    """A polynomial with f32 coefficients, highest power first, and a given constant. The other powers vanish inside the interval, where
    the exchange does not work: least squares on Chebyshev nodes, which are as good here."""
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(PI * (2 * i + 1) / 96) for i in range(48)]
    done = [constant]
    while len(done) <= degree:
        rows = [[weight(x) * x ** k for k in range(len(done), degree + 1)] for x in nodes]
        right = [weight(x) * (function(x) - horner(done[::-1], x)) for x in nodes]
        done.append(rounded(mp.qr_solve(mp.matrix(rows), mp.matrix(right))[0][0], 24))
    return done[::-1]


def segments(name: str) -> str:
    """The source text of a table of 32 segments, four an octave from 2^start on: rows of centres, of coefficients, highest power
    first, and of slopes if there is one. Entry i is of the segment whose bits, shifted right by 21, end in i. The first reaches
    down to 0, where the error is relative."""
    about, function, lead, start, degree = SEGMENTS[name]
    columns = []
    for k in range(32):
        octave, quarter = divmod(k, 4)
        low, high = (mp.mpf(2) ** (start + octave) * (1 + mp.mpf(q) / 4) for q in (quarter, quarter + 1))
        at = centre(function, low, high) if k else mp.mpf(0)
        slope = mp.mpf(0) if k else lead
        found = fit_around(lambda r, at=at, slope=slope: function(at + r) - slope * r, lambda r, at=at: 1 / function(at + r),
                           low - at if k else mp.mpf(0), high - at, degree, rounded(function(at), 24))
        columns.append([at, *found, *([slope] if lead else [])])
    first = (int(np.float32(2.0 ** start).view(np.uint32)) >> 21) & 31
    ordered = [columns[(i - first) % 32] for i in range(32)]
    lines = [f"# {about} by segments, see `segments` in ci/fit_vecmath.py", f"{name}_START, {name} = {2.0 ** start!r}, ("]
    for row in zip(*ordered):
        texts = [literal(v, 24) for v in row]
        lines.append("    (" + ", ".join(texts[:8]) + ",")
        lines += ["     " + ", ".join(texts[i:i + 8]) + ("," if i < 24 else "),") for i in range(8, 32, 8)]
    return "\n".join([*lines, ")"])


def logarithms() -> str:
    """The source text of LOG_SEGMENTS: ln 2 in two parts, and for each value of the upper five bits of a mantissa m in [1, 2) an f32
    near 1/m and minus its logarithm, both of m/2 from 1.5 on. Among the f32 there it is the one whose logarithm is closest to a
    multiple of 2^-17: a whole multiple of ln 2's upper part, such a multiple too, is added to it without rounding."""
    unit = mp.mpf(2) ** -17
    high = mp.nint(LN2 / unit) * unit
    inverses, logs = [mp.mpf(1)], [mp.mpf(0)]
    for k in range(1, 31):
        scale = 2 if k >= 16 else 1
        middle = rounded(scale / (1 + (k + mp.mpf(0.5)) / 32), 24)
        step = mp.mpf(2) ** (mp.floor(mp.log(middle, 2)) - 23)
        near = (middle + i * step for i in range(-20000, 20001))
        inverse = min(near, key=lambda c: abs(mp.log(c) / unit - mp.nint(mp.log(c) / unit)))
        inverses.append(inverse / scale)
        logs.append(-mp.nint(mp.log(inverse) / unit) * unit)
    lines = ["# ln 2 in two parts, inverses of mantissas, and their logarithms, see `logarithms` in ci/fit_vecmath.py", "LOG_SEGMENTS = ("]
    for row in ([high, rounded(LN2 - high, 24)], [*inverses, mp.mpf(0.5)], [*logs, mp.mpf(0)]):
        texts = [literal(v, 24) for v in row]
        chunks = [", ".join(texts[i:i + 8]) for i in range(0, len(texts), 8)]
        lines.append("    (" + ",\n     ".join(chunks) + "),")
    return "\n".join([*lines, ")"])


def split_turn(drop: int) -> list[float]:
    """1/(2 pi) without its digits above 2^-drop, as three f64 parts; the first has 29 bits from the first possible place on."""
    digits = mp.mpf(1) / (2 * PI)
    digits = (digits * mp.mpf(2) ** drop) % 1 * mp.mpf(2) ** -drop
    unit = mp.mpf(2) ** -(max(drop, 2) + 29)
    first = mp.floor(digits / unit) * unit
    second = rounded(digits - first, 53)
    return [float(first), float(second), float(digits - first - second)]


def turn_digits(count: int) -> list[float]:
    """The binary digits of 1/(2 pi) after the point, 53 at a time, each as a fraction below 1."""
    with mp.workdps(600):
        digits = int(mp.floor(mp.mpf(2) ** (53 * count) / (2 * mp.pi)))
    return [((digits >> 53 * (count - 1 - i)) & (2 ** 53 - 1)) * 2.0 ** -53 for i in range(count)]


def constants() -> str:
    """The source text of what is not fitted: constants split in parts."""
    with mp.workdps(120):
        pairs = {name: {bits: (rounded(c, bits), rounded(c - rounded(c, bits), bits)) for bits in (24, 53)}
                 for name, c in (("LN2", mp.log(2)), ("TWO_LOG2E", 2 / mp.log(2)), ("TWO_THIRDS_LOG2E", 2 / mp.log(2) / 3))}
        lines = ["# sums of two floats: ln 2, 2/ln 2, 2/(3 ln 2)"]
        for name, parts in pairs.items():
            texts = (f"f{32 if b == 24 else 64}: ({', '.join(literal(v, b) for v in pair)})" for b, pair in parts.items())
            lines.append(f"{name} = {{{', '.join(texts)}}}")
        lines += [f"# 1/(2 pi) in parts: for |x| < LARGE_ANGLE, and for larger x, whose last bit is at least 2^{LARGE - 23}",
                  f"LARGE_ANGLE = 2.0 ** {LARGE}", "INVERSE_TURN = (", *(f"    {tuple(split_turn(d))!r}," for d in (0, LARGE - 23)), ")",
                  "# the binary digits of 1/(2 pi) after the point, 53 in each", "TURN_DIGITS = (",
                  *(f"    {', '.join(map(repr, turn_digits(22)[i:i + 5]))}," for i in range(0, 22, 5)), ")"]
    return "\n".join(lines)


LARGE = 75  # 72 to 81 have bits enough; with 75 the f32 closest to multiples of a quarter turn have the smallest errors
HEADER = '''"""Polynomial coefficients of `mlc.ops.vecmath`, highest power first. Written by `ci/fit_vecmath.py`; do not edit."""

from mlc.core.dtype import f32, f64
'''


def source() -> str:
    """The whole text of vecmath_tables.py."""
    with mp.workdps(DIGITS):  # whatever else in this process has set
        fitted = [*map(table, TABLES), *map(segments, SEGMENTS), logarithms()]
        return "\n".join([HEADER, constants(), *("\n" + text for text in fitted), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file in the repository")
    text = source()
    if not parser.parse_args().check:
        sys.stdout.write(text)
        return 0
    same = TARGET.read_text() == text
    print("vecmath_tables.py is what this script prints" if same else "vecmath_tables.py differs; run ci/fit_vecmath.py > mlc/ops/vecmath_tables.py")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
