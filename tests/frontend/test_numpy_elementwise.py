"""Elementwise functions against jax.numpy in x64, over dtypes."""

import numpy as np
import pytest
from frontend_samples import agree, agree_each, sample

import mlc

pytestmark = pytest.mark.usefixtures("x64")

FLOATING = ["exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sqrt", "log2", "log10", "deg2rad", "rad2deg", "reciprocal", "fabs"]
ANY = ["absolute", "square", "floor", "ceil", "trunc", "rint", "logical_not", "isfinite", "isnan", "isinf", "isposinf", "isneginf", "signbit",
       "nan_to_num", "positive", "real", "imag"]
BOOLS_REFUSED = ["negative", "sign", "round"]
ARITHMETIC = ["add", "multiply", "true_divide", "maximum", "minimum", "logaddexp", "logaddexp2", "hypot", "heaviside", "fmax", "fmin",
              "logical_and", "logical_or", "logical_xor", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "copysign",
              "floor_divide", "remainder", "fmod", "subtract", "isclose", "divmod"]
PAIRS = [("f32", "f32"), ("i8", "i8"), ("u8", "i16"), ("bf16", "f16"), ("i32", "f16"), ("u64", "u64"), ("u64", "i64")]


def unary(m, name, x):
    return getattr(m.numpy, name)(x)


def binary(m, name, x, y):
    return getattr(m.numpy, name)(x, y)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "i64", "u16", "bool"])
def test_floating_functions(dtype):
    agree_each(FLOATING, unary, sample(dtype))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
def test_sinc(dtype):
    x = np.array([0.0, -0.0, 0.25, -0.5, 1.5, 2, -20.25]).astype(sample(dtype).dtype)  # versions of JAX differ at whole numbers
    np.testing.assert_allclose(mlc.jit(mlc.numpy.sinc)(x), np.sinc(x.astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "bool"])
def test_exp2(dtype):
    x = sample(dtype)
    with np.errstate(invalid="ignore"):
        x = x if dtype == "bool" else x % 30  # JAX is off by 12 ulp at 2**127
    agree(lambda m, x: m.numpy.exp2(x), x, ulps=64)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i16", "u32", "bool"])
def test_functions_of_any_dtype(dtype):
    agree_each(ANY if dtype == "bool" else ANY + BOOLS_REFUSED, unary, sample(dtype))


@pytest.mark.parametrize("name", BOOLS_REFUSED)
def test_bools_are_refused(name):
    with pytest.raises(mlc.errors.DtypeError, match=name):
        mlc.jit(lambda x: getattr(mlc.numpy, name)(x))(sample("bool"))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_binary_functions(pair):
    agree_each(ARITHMETIC, binary, sample(pair[0]), sample(pair[1], (7,), seed=1))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_powers(pair):
    agree(lambda m, x, y: (m.numpy.power(x, abs(y) % 5), m.numpy.modf(x)), sample(pair[0]), sample(pair[1], (7,), seed=1), ulps=64)


@pytest.mark.parametrize("pair", [("i8", "i8"), ("u16", "i32"), ("bool", "u8"), ("i64", "i64")], ids="-".join)
def test_bit_functions(pair):
    agree_each(["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"], binary, sample(pair[0]), sample(pair[1], (7,), seed=1))


@pytest.mark.parametrize("dtype", ["f32", "i16"])
def test_divmod_of_whole_quotients_is_whole(dtype):
    agree(lambda m, x, y: m.numpy.divmod(x, y), sample(dtype, (5, 40)), sample(dtype, (40,), seed=3))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1, 40])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_round_to_decimals(dtype, decimals):
    agree(lambda m, x: m.numpy.round(x, decimals), sample(dtype))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, -1, -3])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_integer_powers_multiply(dtype, exponent):
    agree(lambda m, x: x ** exponent, sample(dtype), ulps=4)


def test_float_powers():
    agree(lambda m, x: (x ** 0.5, x ** 2.0, 2 ** x, 2.5 ** x), sample("f32"), ulps=16)


@pytest.mark.parametrize("bounds", [(-1, 2), (None, 1.5), (-0.5, None)])
@pytest.mark.parametrize("dtype", ["f32", "i8", "u8"])
def test_clip(dtype, bounds):
    agree(lambda m, x: m.numpy.clip(x, *bounds), sample(dtype))


@pytest.mark.parametrize("dtype", ["f32", "i8", "bool"])
def test_where_promotes_and_broadcasts(dtype):
    agree(lambda m, c, x, y: (m.numpy.where(c > 0, x, y), m.numpy.where(c, x, 2), m.numpy.where(c > 1, 1, 2.5)),
          sample("i32", (3, 1)), sample(dtype), sample("f16", (7,)))


@pytest.mark.parametrize("dtype", ["f32", "i8", "u16", "i64", "bf16"])
def test_operators_with_python_scalars(dtype):
    def function(m, x):
        return (x + 3, 2 - x, x * 1.5, 1 / x, x / 3, x // 2, 7 // x, x % 3, 5 % x, -x, abs(x), x > 1, 1 >= x, x == 1, x != 2.0, +x, x + True)
    agree(function, sample(dtype))


@pytest.mark.parametrize("dtype", ["i8", "u16", "bool"])
def test_bit_operators_with_python_scalars(dtype):
    agree(lambda m, x: (x & 3, 5 | x, x ^ 1, ~x, x << 2, x >> 1, 1 << x, 100 >> x), sample(dtype, positive=True))
