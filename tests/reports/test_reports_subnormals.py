"""Numbers below the least normal one are kept: in arguments, between operations, in constants and in results."""

import numpy as np
import pytest
from report_values import BF16, F16, F32, F64, f32, same

import mlc.numpy as mnp


def test_subnormal_arguments_are_kept(run):
    # jax-ml/jax#26658, jax-ml/jax#16200, HypothesisWorks/hypothesis#3155
    x = f32(1e-45, -1e-40, 1.1754942e-38, 1e-37, -0.0)
    same(run(lambda x: (x + 0, x == 0, x * 2, mnp.abs(x) > 0, x / 1e-3, x * 1, mnp.sign(x[:4]), x != 0, mnp.max(x), mnp.sum(x[:2])), x),
         x + F32(0), x == 0, x * F32(2), np.abs(x) > 0, x / F32(1e-3), x, np.sign(x[:4]), x != 0, x.max(), x[0] + x[1])


def test_subnormal_values_between_operations_are_kept(run):
    # jax-ml/jax#38096
    x = f32(1e-20, 3e-21, 1.1e-19, -2e-20)
    y = x * x
    same(run(lambda x: (mnp.sqrt(x * x + 0.0), (x * x) * np.float32(1e30), (x * x) > 0, x * x, x * x / x), x),
         np.sqrt(y), y * F32(1e30), y > 0, y, y / x)


def test_subnormal_constants_are_kept(run):
    # jax-ml/jax#38096: folded and printed exactly
    tiny = f32(1e-45, 1e-40, -1.1754942e-38)
    same(run(lambda: (mnp.asarray(tiny) * 2, mnp.asarray(tiny) == 0, mnp.asarray(tiny) * mnp.asarray(tiny))), tiny * F32(2), tiny == 0, tiny * tiny)
    same(run(lambda x: x + 1e-40, f32(0, 1e-40)), f32(0, 1e-40) + F32(1e-40))


@pytest.mark.parametrize("dtype, least", [(F64, 5e-324), (F16, 6e-8), (BF16, 1e-40)])
def test_subnormals_of_other_floats_are_kept(run, dtype, least):
    # jax-ml/jax#26658
    x = np.array([least, -least * 3, least * 100], dtype)
    assert (x != 0).all()
    same(run(lambda x: (x + x, x == 0, x * 0.5, mnp.abs(x) > 0), x), x + x, x == 0, x * dtype(0.5), np.abs(x) > 0)


def test_functions_reach_subnormal_results(run):
    # jax-ml/jax#38096
    x = f32(-88, -95, -100, -103)
    found, = run(lambda x: mnp.exp(x), x)
    wide = np.exp(x.astype(F64))
    assert (np.abs(found - wide) <= np.maximum(2 * np.spacing(wide.astype(F32)), 2e-45)).all() and (found > 0).all()


def test_subnormals_survive_products_of_matrices(run):
    # jax-ml/jax#26658
    x = np.array([[1e-40, 2e-40], [-3e-40, 4e-45]], F32)
    same(run(lambda x: x @ mnp.eye(2, dtype=mnp.float32), x), x)
