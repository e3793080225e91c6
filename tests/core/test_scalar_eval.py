"""The scalar interpreter against exact rationals, Python integers and jax.lax."""

import itertools
import math
import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval as se

F = dt.FLOATS


def edge_floats(dtype):
    """Zeros, subnormals, ends, odd and even mantissas, NaN, with both signs."""
    mantissa = dt.MANTISSA[dtype] - 1
    one = (2 ** (dtype.bits - 2 - mantissa) - 1) << mantissa
    top = (2 ** (dtype.bits - 1 - mantissa) - 1) << mantissa
    half = 1 << (mantissa - 1)
    bits = [0, 1, 2, 3, half, (1 << mantissa) - 1, 1 << mantissa, (1 << mantissa) + 1, one - 1, one, one + 1, one + half,
            one + half + 1, one + (1 << mantissa), one + 3 * half + 5, top - 2, top - 1, top, top + half]
    bits += [b | 1 << (dtype.bits - 1) for b in bits]
    return np.array(bits, dt.uint_of(dtype).numpy).view(dtype.numpy)


def random_floats(dtype, count, seed=0):
    """Uniform over bit patterns."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << dtype.bits, count, dt.uint_of(dtype).numpy, endpoint=False).view(dtype.numpy) \
        if dtype.bits < 64 else rng.integers(0, 1 << 64, count, np.uint64).view(np.float64)


def round_exact(value: Fraction, dtype) -> float:
    """A rational rounded to nearest even in `dtype`, from the definition."""
    if value == 0:
        return 0.0
    precision, lowest, highest = dt.MANTISSA[dtype], dt.MIN_EXPONENT[dtype], dt.MAX_EXPONENT[dtype]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - precision + 1)
    rounded = round(magnitude / unit) * unit  # Fraction rounds half to even
    result = math.inf if rounded >= Fraction(2) ** (highest + 1) else float(rounded)
    return math.copysign(result, 1 if value > 0 else -1)


def wide(values):
    """float64 of any float array, silently (ml_dtypes warns on NaN)."""
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(np.float64)


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    wide_a, wide_b = wide(a), wide(b)
    bits = np.array_equal(np.signbit(wide_a) | np.isnan(wide_a), np.signbit(wide_b) | np.isnan(wide_b))
    return bits and np.array_equal(wide_a, wide_b, equal_nan=True)


@pytest.mark.parametrize("dtype", (dt.f32, dt.f64))
def test_fma_is_the_exact_value_rounded_once(dtype):
    values = list(edge_floats(dtype)[::2]) + list(random_floats(dtype, 6))
    x, y, z = (np.array(c, dtype.numpy) for c in zip(*itertools.product(values, repeat=3)))
    got = se.apply("fma", dtype, [x, y, z])
    for a, b, c, r in zip(x.tolist(), y.tolist(), z.tolist(), got.tolist()):
        if math.isfinite(a) and math.isfinite(b) and math.isfinite(c):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            assert r == round_exact(exact, dtype), (a, b, c)
        elif math.isnan(a) or math.isnan(b) or math.isnan(c) or (math.isinf(a) and b == 0) or (a == 0 and math.isinf(b)):
            assert math.isnan(r), (a, b, c)
        else:
            product = math.copysign(1, a) * math.copysign(1, b) * math.inf if math.inf in (abs(a), abs(b)) else 0.0
            assert same(np.float64(r), np.float64(product + c)), (a, b, c)


@pytest.mark.parametrize("dtype", (dt.f32, dt.f64))
def test_fma_keeps_what_cancellation_leaves(dtype):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 2000)).astype(dtype.numpy)
    z = -(x * y) * rng.choice([1, 1 + dtype.eps, 2.0 ** 30, 2.0 ** -30, 2.0**-53], 2000).astype(dtype.numpy)
    got = se.apply("fma", dtype, [x, y, z])
    for k, (a, b, c, r) in enumerate(zip(x.tolist(), y.tolist(), z.tolist(), got.tolist())):
        assert r == round_exact(Fraction(a) * Fraction(b) + Fraction(c), dtype) == se.apply("fma", dtype, [x[k], y[k], z[k]])


@pytest.mark.parametrize("dtype", (dt.f32, dt.f64))
@pytest.mark.parametrize("product", (0.99, 0.5, -0.5, -0.88, -0.97, -0.983, -0.99, -1.0, -1.02))
def test_fma_rounds_once_at_every_size_of_the_product(dtype, product):
    """Products near 2^(product * emax), also subnormal or past the end, almost cancelled by the addend."""
    rng = np.random.default_rng(2)
    first = rng.integers(-dt.MAX_EXPONENT[dtype] // 2, dt.MAX_EXPONENT[dtype] // 2, 300)
    x = np.ldexp(rng.uniform(1, 2, 300), first).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        y = np.ldexp(rng.uniform(-2, 2, 300), int(product * dt.MAX_EXPONENT[dtype]) - first).astype(dtype.numpy)
        z = (-x * y * rng.choice([0, 1, 1, 1, 1, 1 + dtype.eps, 2.0 ** 30, dtype.eps / 2], 300)).astype(dtype.numpy)
    x, y, z = (a[np.isfinite(y) & np.isfinite(z)] for a in (x, y, z))
    got = se.apply("fma", dtype, [x, y, z])
    for a, b, c, r in zip(x.tolist(), y.tolist(), z.tolist(), got.tolist()):
        assert r == round_exact(Fraction(a) * Fraction(b) + Fraction(c), dtype), (a, b, c)


@pytest.mark.parametrize("dtype", F)
@pytest.mark.parametrize("kind", ("normal", "half-way", "zeros", "subnormal", "huge", "infinite", "any"))
def test_contractions_are_fmas_in_a_row(dtype, kind):
    """One element at a time, so that each finds its own way; and all at once."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 40, 9)).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        if kind == "half-way":  # 1 and odd multiples of half its last place, of a quarter, and what decides between the neighbours
            x, y = (np.ldexp(rng.choice([1, 2, 3, 4, 8], x.shape), -rng.integers(0, dt.MANTISSA[dtype], x.shape)).astype(dtype.numpy) for _ in "xy")
            x[:, 0] = y[:, 0] = 1
        elif kind == "zeros":
            x[rng.random(x.shape) < 0.5] = 0
            y[rng.random(y.shape) < 0.5] *= -0.0
        elif kind == "subnormal":
            x = np.ldexp(x, dt.MIN_EXPONENT[dtype] - dtype.bits // 4).astype(dtype.numpy)
        elif kind == "huge":
            x = np.ldexp(x, dt.MAX_EXPONENT[dtype] - 1).astype(dtype.numpy)
        elif kind == "infinite":
            x[rng.random(x.shape) < 0.1] = np.inf
        elif kind == "any":
            x, y = (random_floats(dtype, 360, seed).reshape(40, 9) for seed in (4, 5))
    expected = np.zeros((40, 40), dtype.numpy)
    for k in range(9):
        expected = se.apply("fma", dtype, [*np.broadcast_arrays(x[:, k, None], y[None, :, k]), expected])
    assert same(se.contract(x, y.T, np.zeros((40, 40), dtype.numpy)), expected)
    for i in range(40):
        total, exact = np.zeros((1, 1), dtype.numpy), 0.0
        assert same(se.contract(x[i:i + 1], y[i:i + 1].T, total), expected[i:i + 1, i:i + 1]), (x[i], y[i])
        for a, b in zip(wide(x[i]).tolist(), wide(y[i]).tolist()):
            exact = round_exact(Fraction(a) * Fraction(b) + Fraction(exact), dtype) if all(map(math.isfinite, (a, b, exact))) else math.nan
        assert math.isnan(exact) or dtype.is_half or exact == expected[i, i]


@pytest.mark.parametrize("dtype", dt.INTS, ids=str)
def test_contractions_of_integers_wrap(dtype):
    x, y = np.random.default_rng(6).integers(dtype.min, dtype.max, (2, 5, 300), dtype.numpy, endpoint=True)
    exact = x.astype(object) @ y.T.astype(object) + 1
    got = se.contract(x, y.T, np.ones((5, 5), dtype.numpy))
    assert got.dtype == dtype.numpy and np.array_equal(got.astype(object) % (1 << dtype.bits), exact % (1 << dtype.bits))


def test_fma_of_signed_zeros():
    zero = np.float32(0)
    assert np.signbit(se.apply("fma", dt.f32, [-zero, np.float32(1), -zero]))
    assert not np.signbit(se.apply("fma", dt.f32, [-zero, np.float32(1), zero]))
    assert not np.signbit(se.apply("fma", dt.f64, [np.float64(2), np.float64(3), np.float64(-6)]))
    assert np.signbit(se.apply("fma", dt.f64, [np.float64(-1e-300), np.float64(1e-300), -np.float64(0)]))


@pytest.mark.parametrize("src", F)
@pytest.mark.parametrize("dst", F)
def test_float_to_float_rounds_once(src, dst):
    ties = [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-11, 1 + 3 * 2.0**-9, 65519.99999, 65520.0, 2.0**-25,
            2.0**-25 + 2.0**-60, 3.3895313892515355e38, 3.39e38, 2.0**-134, 2.0**-134 * (1 + 2.0**-50), 2.0**-150, 1e-320]
    with np.errstate(all="ignore"):
        ties = np.array(ties).astype(src.numpy)
    values = np.concatenate([edge_floats(src), random_floats(src, 1000), ties, -ties])
    got = wide(se.convert(values, src, dst))
    for v, r in zip(wide(values).tolist(), got.tolist()):
        if math.isfinite(v):
            assert r == round_exact(Fraction(v), dst) and math.copysign(1, r) == math.copysign(1, v), v
        else:
            assert same(np.float64(r), np.float64(v))


def edge_ints(dtype):
    values = {0, 1, 2, 3, 7, dtype.max, dtype.max - 1, dtype.min, dtype.min + 1, dtype.max // 2, dtype.max // 3}
    for bit in range(dtype.bits):
        values |= {1 << bit, (1 << bit) + 1, (1 << bit) - 1, (3 << bit) + 1}
    values |= {-v for v in values} | {(1 << 53) + 1, (1 << 62) + (1 << 51) + 1, (1 << 61) + (1 << 53), (1 << 61) + (1 << 53) + 1}
    return [v for v in sorted(values) if dtype.min <= v <= dtype.max]


@pytest.mark.parametrize("src", dt.INTS)
@pytest.mark.parametrize("dst", F)
def test_int_to_float_is_correctly_rounded(src, dst):
    values = edge_ints(src)
    got = wide(se.convert(np.array(values, src.numpy), src, dst))
    assert [round_exact(Fraction(v), dst) for v in values] == got.tolist()


@pytest.mark.parametrize("src", F)
@pytest.mark.parametrize("dst", dt.INTS)
def test_float_to_int_truncates_and_saturates(src, dst):
    ends = [float(dst.max), float(dst.min), dst.max + 1.0, dst.max - 0.5, dst.min - 0.5, -0.99, 0.99, -1.0, 127.9, 1e30]
    with np.errstate(all="ignore"):
        values = np.concatenate([edge_floats(src), random_floats(src, 500), np.array(ends).astype(src.numpy)])
    got = se.convert(values, src, dst).tolist()
    for v, r in zip(wide(values).tolist(), got):
        want = 0 if math.isnan(v) else dst.max if v > dst.max else dst.min if v < dst.min else int(v)
        assert r == want, v


@pytest.mark.parametrize("src", dt.INTS)
@pytest.mark.parametrize("dst", dt.INTS)
def test_int_to_int_wraps(src, dst):
    values = edge_ints(src)
    wrapped = [v & ((1 << dst.bits) - 1) for v in values]
    want = [w - (1 << dst.bits) if w > dst.max else w for w in wrapped]
    assert se.convert(np.array(values, src.numpy), src, dst).tolist() == want


@pytest.mark.parametrize("dtype", dt.ALL)
def test_conversion_to_and_from_bool(dtype):
    values = edge_floats(dtype) if dtype.is_float else np.array([0, 1] if dtype is dt.bool_ else edge_ints(dtype), dtype.numpy)
    assert se.convert(values, dtype, dt.bool_).tolist() == [bool(v != 0) for v in values.tolist()]
    back = se.convert(np.array([False, True]), dt.bool_, dtype)
    assert back.dtype == dtype.numpy and back.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", F)
def test_min_and_max_propagate_nan_and_order_zeros(dtype):
    values = edge_floats(dtype)
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    low, high = se.apply("min", dtype, [x, y]), se.apply("max", dtype, [x, y])
    rank = lambda v: (v, math.copysign(1, v))
    for a, b, lo, hi in zip(*(wide(v).tolist() for v in (x, y, low, high))):
        if math.isnan(a) or math.isnan(b):
            assert math.isnan(lo) and math.isnan(hi)
        else:
            assert rank(lo) == min(rank(a), rank(b)) and rank(hi) == max(rank(a), rank(b))


@pytest.mark.parametrize("dtype", F)
def test_neg_and_abs_touch_only_the_sign_bit(dtype):
    values, integer = edge_floats(dtype), dt.uint_of(dtype).numpy
    sign = 1 << (dtype.bits - 1)
    bits = values.view(integer).tolist()
    assert se.apply("neg", dtype, [values]).view(integer).tolist() == [b ^ sign for b in bits]
    assert se.apply("abs", dtype, [values]).view(integer).tolist() == [b & ~sign for b in bits]


@pytest.mark.parametrize("dtype", (dt.f16, dt.bf16))
@pytest.mark.parametrize("op", ("add", "sub", "mul", "div"))
def test_half_arithmetic_is_correctly_rounded(dtype, op):
    x, y = random_floats(dtype, 2000, 1), random_floats(dtype, 2000, 2)
    got = wide(se.apply(op, dtype, [x, y]))
    exact = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}[op]
    for a, b, r in zip(wide(x).tolist(), wide(y).tolist(), got.tolist()):
        if math.isfinite(a) and math.isfinite(b) and b != 0:
            assert r == round_exact(exact(Fraction(a), Fraction(b)), dtype), (a, b)


@pytest.mark.parametrize("dtype", F)
def test_rounding_instructions(dtype):
    values = np.array([-2.5, -1.5, -0.5, -0.25, -0.0, 0.0, 0.5, 1.5, 2.5, 2.75, np.inf, -np.inf, np.nan], dtype.numpy)
    want = {
        "floor": [-3, -2, -1, -1, -0.0, 0, 0, 1, 2, 2], "ceil": [-2, -1, -0.0, -0.0, -0.0, 0, 1, 2, 3, 3],
        "trunc": [-2, -1, -0.0, -0.0, -0.0, 0, 0, 1, 2, 2], "rint": [-2, -2, -0.0, -0.0, -0.0, 0, 0, 2, 2, 3],
    }
    for op, expected in want.items():
        assert same(se.apply(op, dtype, [values]), np.array([*expected, np.inf, -np.inf, np.nan], dtype.numpy)), op


@pytest.mark.parametrize("dtype", F)
def test_float_remainder_is_c_fmod(dtype):
    pairs = [(5.5, 2.0), (-5.5, 2.0), (5.5, -2.0), (1.0, 0.0), (np.inf, 1.0), (1.0, np.inf), (-0.0, 1.0), (65504.0, 0.0078125 * 3)]
    x, y = (np.array(c, dtype.numpy) for c in zip(*pairs))
    x, y = np.append(x, random_floats(dtype, 300, 3)), np.append(y, random_floats(dtype, 300, 4))
    got = wide(se.apply("rem", dtype, [x, y])).tolist()
    for a, b, r in zip(wide(x).tolist(), wide(y).tolist(), got):
        if math.isnan(a) or math.isnan(b) or b == 0 or math.isinf(a):
            assert math.isnan(r)
        else:
            assert r == math.fmod(a, b) and math.copysign(1, r) == math.copysign(1, a)


def wrap(value, dtype):
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.max else value


@pytest.mark.parametrize("dtype", dt.INTS)
def test_integer_arithmetic_against_python_integers(dtype):
    values = edge_ints(dtype)[:: max(1, dtype.bits // 8)] + [dtype.min, dtype.max, 0, 1, 3] + ([-1] if dtype.kind == "i" else [])
    x, y = (a.ravel() for a in np.meshgrid(np.array(values, dtype.numpy), np.array(values, dtype.numpy)))
    pairs = list(zip(x.tolist(), y.tolist()))

    def truncating(a, b):
        return wrap(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), dtype)
    want = {
        "add": [wrap(a + b, dtype) for a, b in pairs], "sub": [wrap(a - b, dtype) for a, b in pairs],
        "mul": [wrap(a * b, dtype) for a, b in pairs], "min": [min(p) for p in pairs], "max": [max(p) for p in pairs],
        "div": [wrap(-1, dtype) if b == 0 else truncating(a, b) for a, b in pairs],
        "rem": [a if b == 0 else abs(a) % abs(b) * (1 if a >= 0 else -1) for a, b in pairs],
        "and": [a & b for a, b in pairs], "or": [a | b for a, b in pairs], "xor": [a ^ b for a, b in pairs],
    }
    for op, expected in want.items():
        assert se.apply(op, dtype, [x, y]).tolist() == expected, op
    for op, rule in (("lt", int.__lt__), ("ge", int.__ge__), ("ne", int.__ne__)):
        assert se.apply(op, dt.bool_, [x, y]).tolist() == [rule(a, b) for a, b in pairs]
    assert se.apply("neg", dtype, [x]).tolist() == [wrap(-a, dtype) for a, _ in pairs]
    assert se.apply("abs", dtype, [x]).tolist() == [wrap(abs(a), dtype) for a, _ in pairs]
    assert se.apply("not", dtype, [x]).tolist() == [wrap(~a, dtype) for a, _ in pairs]


@pytest.mark.parametrize("dtype", dt.INTS)
def test_shifts_past_the_width_are_defined(dtype):
    values, width = edge_ints(dtype)[::5], dtype.bits
    counts = [0, 1, width - 1, width, width + 1, dtype.max] + ([-1, dtype.min] if dtype.kind == "i" else [])
    for count in counts:
        x, n = np.array(values, dtype.numpy), np.array(count, dtype.numpy)
        past = not 0 <= count < width
        unsigned = [v & ((1 << width) - 1) for v in values]
        signed = [u - (1 << width) if u >> (width - 1) else u for u in unsigned]
        assert se.apply("shl", dtype, [x, n]).tolist() == [0 if past else wrap(u << count, dtype) for u in unsigned]
        assert se.apply("shr_logical", dtype, [x, n]).tolist() == [0 if past else wrap(u >> count, dtype) for u in unsigned]
        arith = [wrap(s >> (width - 1 if past else count), dtype) for s in signed]
        assert se.apply("shr_arith", dtype, [x, n]).tolist() == arith


@pytest.mark.parametrize("dtype", dt.INTS)
def test_powers_wrap_and_read_every_bit_of_the_exponent(dtype):
    pairs = list(itertools.product(edge_ints(dtype), repeat=2))
    x, n = (np.array(column, dtype.numpy) for column in zip(*pairs))
    assert se.apply("pow", dtype, [x, n]).tolist() == [wrap(pow(a, b % (1 << dtype.bits), 1 << dtype.bits), dtype) for a, b in pairs]


@pytest.mark.parametrize("name", ("int8", "uint8", "int32", "uint32", "int64", "uint64"))
def test_integer_corner_cases_agree_with_lax(name):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        info = np.iinfo(name)
        values = np.array([info.min, info.max, 0, 1, 2, 5, info.max - 2], name)
        values = np.append(values, np.array([255 if info.min == 0 else -1, info.bits % 128, info.bits - 1], name))
        x, y = (a.ravel() for a in np.meshgrid(values, values))
        dtype = dt.as_dtype(x.dtype)
        lax = {"div": jax.lax.div, "rem": jax.lax.rem, "shl": jax.lax.shift_left,
               "shr_arith": jax.lax.shift_right_arithmetic, "shr_logical": jax.lax.shift_right_logical}
        for op, reference in lax.items():
            np.testing.assert_array_equal(se.apply(op, dtype, [x, y]), np.asarray(reference(x, y)), err_msg=op)


def test_bools_have_logic_and_order():
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    want = {"and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0], "min": [0, 0, 0, 1], "max": [0, 1, 1, 1],
            "eq": [1, 0, 0, 1], "lt": [0, 1, 0, 0], "ge": [1, 0, 1, 1]}
    for op, expected in want.items():
        assert se.apply(op, dt.bool_, [x, y]).tolist() == [bool(e) for e in expected]
    assert se.apply("not", dt.bool_, [x]).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", F)
def test_compares_are_ordered_and_ne_is_true_on_nan(dtype):
    x, y = np.array([np.nan, 1, -0.0], dtype.numpy), np.array([np.nan, 2, 0.0], dtype.numpy)
    want = {"eq": [0, 0, 1], "ne": [1, 1, 0], "lt": [0, 1, 0], "le": [0, 1, 1], "gt": [0, 0, 0], "ge": [0, 0, 1]}
    for op, expected in want.items():
        assert se.apply(op, dt.bool_, [x, y]).tolist() == [bool(e) for e in expected], op


@pytest.mark.parametrize("dtype", F)
def test_select_and_bitcast_move_bits(dtype):
    values, integer = edge_floats(dtype), dt.uint_of(dtype)
    condition = np.arange(values.size) % 2 == 0
    picked = se.apply("select", dtype, [condition, values, values[::-1]]).view(integer.numpy)
    bits = values.view(integer.numpy)
    assert picked.tolist() == np.where(condition, bits, bits[::-1]).tolist()
    assert se.apply("bitcast", integer, [values]).tolist() == bits.tolist()


def test_evaluate_shares_broadcasts_and_does_not_recurse():
    x = ex.arg(0, dt.f32)
    total = x
    for _ in range(5000):
        total = total * 0.5 + x
    got, twice = se.evaluate([total, x + x], lambda node: np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_allclose(got, 2 * np.arange(6).reshape(2, 3), rtol=1e-6)
    assert twice.tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("dtype", dt.ALL)
def test_constants_keep_their_bits(dtype):
    values = edge_floats(dtype).tolist() if dtype.is_float else [0, 1]
    for value in values:
        assert same(se.evaluate([ex.const(value, dtype)], None)[0], np.array(value, dtype.numpy))


def test_no_numpy_warning_leaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in F:
            x = edge_floats(dtype)
            for op in ("add", "sub", "mul", "div", "rem", "min", "max"):
                se.apply(op, dtype, [x[:, None], x[None, :]])
            for op in ("sqrt", "floor", "ceil", "rint", "trunc", "neg", "abs"):
                se.apply(op, dtype, [x])
            se.apply("fma", dtype, [x[:, None], x[None, :], x[None, :]])
            for target in dt.ALL:
                se.convert(x, dtype, target)
        for dtype in dt.INTS:
            scalar = np.array(dtype.min, dtype.numpy)
            for op in ("add", "mul", "div", "rem", "shl", "sub"):
                se.apply(op, dtype, [scalar, np.array(dtype.max, dtype.numpy)])


def test_bfloat16_rounding_agrees_with_ml_dtypes():
    values = random_floats(dt.f32, 20000, 5)
    with np.errstate(all="ignore"):
        want = values.astype(ml_dtypes.bfloat16)
    assert same(se.convert(values, dt.f32, dt.bf16), want)
