"""Errors that must not grow with the length, and functions at the arguments where they were once wrong."""

import numpy as np
import pytest
from report_values import BF16, F16, F32, F64, near, same

import mlc.numpy as mnp


def test_a_million_tenths(run_native):
    # jax-ml/jax#585, numba/numba#2855
    a, b = np.full(10 ** 6, 0.1, F32), np.random.default_rng(16).random(200_001).astype(F32) * F32(100)
    near(run_native(lambda a, b: (mnp.sum(a), mnp.sum(b), mnp.mean(a), mnp.var(b)), a, b),
         a.astype(F64).sum(), b.astype(F64).sum(), a.astype(F64).mean(), b.astype(F64).var(), rtol=2e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_long_sums_along_either_axis(run, axis):
    # numba/numba#2855: the accumulators of a column sum are lanes of their own
    x = np.random.default_rng(17).random((3000, 5) if axis == 0 else (5, 3000)).astype(F32) * F32(100)
    near(run(lambda x: (mnp.sum(x, axis=axis), mnp.mean(x, axis=axis)), x), x.astype(F64).sum(axis), x.astype(F64).mean(axis), rtol=5e-7)


def test_a_long_product_of_matrices(run):
    # jax-ml/jax#585, in a contraction
    a, b = np.full((2, 20_000), 0.1, F32), np.full((20_000, 3), 0.3, F32)
    near(run(lambda a, b: a @ b, a, b), a.astype(F64) @ b.astype(F64), rtol=2e-5)


def test_the_mean_of_a_million_tiny_halves(run_native):
    # jax-ml/jax#17792
    for dtype, value in ((F16, 1e-5), (F16, 300.0), (BF16, 0.1)):
        a = np.full((2 ** 20, 1), value, dtype)
        same(run_native(lambda a: mnp.mean(a), a), a[0, 0])


def test_a_sum_of_halves_is_accumulated_wider(run):
    # jax-ml/jax#17792: 4096 ones in float16 stop at 2048 when added one by one
    for dtype in (F16, BF16):
        same(run(lambda x: (mnp.sum(x), x @ x, mnp.sum(x.reshape(64, 64), axis=0)), np.ones(4096, dtype)),
             np.array(4096, dtype), np.array(4096, dtype), np.full(64, 64, dtype))


def test_log1p_in_float64_near_the_point_where_it_was_wrong(run):
    # jax-ml/jax#39707
    x = np.linspace(-0.53, -0.28, 501)
    wide = x.astype(np.longdouble)
    near(run(lambda x: (mnp.log1p(x), (mnp.log1p(x) - mnp.log1p(-x)) / 2), x), np.log1p(wide).astype(F64), np.arctanh(wide).astype(F64), rtol=1e-15)


def test_log1p_and_expm1_of_tiny_numbers(run):
    # jax-ml/jax#39707: what is left after the cancellation
    x = np.array([1e-20, -1e-20, 3e-8, -3e-8, 1e-3, -1e-3], F32)
    near(run(lambda x: (mnp.log1p(x), mnp.expm1(x), mnp.tanh(x), mnp.sin(x)), x),
         *(f(x.astype(F64)) for f in (np.log1p, np.expm1, np.tanh, np.sin)), rtol=4e-7)
