"""Dtypes of mixed operands, of Python scalars and of constants that the library makes."""

import jax.numpy as jnp
import numpy as np
from report_values import BF16, F16, F32, I8, INF, NAN, U8, eager_jax, same

import mlc.numpy as mnp


def test_python_scalars_take_the_arrays_dtype_and_mixed_types_follow_the_lattice(run):
    # jax-ml/jax#31396
    arrays = np.array([100, -100], I8), np.array([200, 7], U8), np.array([1.5, 2.5], F16), np.array([1.5, 2.5], BF16)

    def mixed(np_, a, b, h, g):
        return [a + 100, a + b, a * 2.5, h + g, b - 1, a // 3, b / 2, h * 3, np_.where(a > 0, a, 1.0), g + 1, a + h, b * g, h - True, 2 ** b, a @ b]
    same(run(lambda *xs: mixed(mnp, *xs), *arrays), *eager_jax(lambda *xs: mixed(jnp, *xs), *arrays))


def test_python_scalar_arguments_are_weak_too(run):
    # jax-ml/jax#31396
    a, h = np.array([100, -100], I8), np.array([1.25, -5], F16)  # quotients that are exact: eager JAX multiplies by 1 / x

    def mixed(a, h, n, x):
        return [a + n, a * x, h * n, h / x, n + x, a > n]
    same(run(mixed, a, h, 3, 2.5), *eager_jax(mixed, a, h, 3, 2.5))


def test_constants_that_replace_infinity_fit_the_dtype(run):
    # jax-ml/jax#683
    x, h = np.array([NAN, INF, -INF, 1], F32), np.array([NAN, INF, -INF, 1], F16)
    same(run(lambda x, h: (mnp.nan_to_num(x), mnp.nan_to_num(h)), x, h), np.nan_to_num(x), np.nan_to_num(h))


def test_literals_beyond_a_dtype_round_to_it(run):
    # jax-ml/jax#683: a double constant in a float32 or float16 program
    x, h = np.array([0, 1, -1], F32), np.array([0, 1, -1], F16)
    with np.errstate(all="ignore"):
        same(run(lambda x, h: (x + 0.1, x * 1e39, h + 0.1, h * 1e5, h * 1e-9), x, h),
             x + F32(0.1), x * F32(INF), h + F16(0.1), h * F16(INF), h * F16(0))
