"""NaN, infinities and signed zeros in comparisons, extrema, positions of extrema, powers and masked rows."""

import numpy as np
import pytest
from report_values import F32, I64, INF, NAN, f32, near, same

import mlc
import mlc.numpy as mnp

LANES = 37  # more than two vectors of any width and a tail


def test_nan_and_infinity_can_be_asked_for(run):
    # numba/numba#2919, numba/numba#6217
    x = np.resize(f32(1, NAN, INF, -INF, 0), LANES)
    found = run(lambda x: (mnp.isnan(x), mnp.isfinite(x), mnp.isinf(x), x != x, ~(x <= 0), ~(x > 0), x == x, mnp.isnan(x + x),
                           mnp.any(mnp.isnan(x))), x)
    same(found, np.isnan(x), np.isfinite(x), np.isinf(x), x != x, ~(x <= 0), ~(x > 0), x == x, np.isnan(x), np.array(True))


def test_positions_of_extrema_with_nan_are_the_first_nan(run):
    # jax-ml/jax#3193, jax-ml/jax#4640
    x = np.array([[NAN] * 6, [NAN, 0, 1, NAN, 3, 2], [0, 5, 1, NAN, 5, 2], [1, 5, 5, -INF, 5, -1], [-INF] * 6, [INF] * 6], F32)
    same(run(lambda x: (mnp.argmax(x, 1), mnp.argmin(x, 1), mnp.argmax(x), mnp.argmax(x[2:], 0), mnp.argmin(x[3:], 0)), x),
         np.argmax(x, 1), np.argmin(x, 1), np.array(0, I64), np.argmax(x[2:], 0), np.argmin(x[3:], 0))


@pytest.mark.parametrize("at", [0, 1, 7, 15, 16, 31, 32, 36])
def test_the_first_of_equal_extrema_wins_in_every_lane(run, at):
    # jax-ml/jax#3193: ties between lanes of a vector and between vectors
    x = np.zeros((3, LANES), F32)
    x[0, at:] = 5
    x[1, at::3] = -7
    x[2, at] = NAN
    x[2, at + 1:] = INF
    same(run(lambda x: (mnp.argmax(x, 1), mnp.argmin(x, 1)), x), np.array([at, np.argmax(x[1]), at]), np.array([np.argmin(x[0]), at, at]))


def test_maximum_and_minimum_propagate_nan_from_either_side(run):
    # pytorch/pytorch#9319
    a, b = np.resize(f32(NAN, 1, NAN, -0.0, 0, INF, 2), LANES), np.resize(f32(1, NAN, NAN, 0, -0.0, NAN, 3), LANES)
    up = np.where((a == 0) & (b == 0), F32(0), np.maximum(a, b))  # the larger of two zeros is +0, whichever comes first
    down = np.where((a == 0) & (b == 0), F32(-0.0), np.minimum(a, b))
    found = run(lambda a, b: (mnp.maximum(a, b), mnp.minimum(a, b), mnp.maximum(b, a), mnp.minimum(b, a), mlc.nn.relu(a),
                              mnp.clip(a, -1.0, 1.5), mnp.maximum(a, mnp.nan)), a, b)
    same(found, up, down, up, down, np.where(a == 0, F32(0), np.maximum(a, F32(0))), np.clip(a, F32(-1), F32(1.5)), np.full(LANES, NAN, F32))


def test_one_nan_anywhere_reaches_the_extremum(run):
    # elixir-nx/nx#1499
    rows = [np.where(np.arange(LANES) == k, NAN, np.arange(LANES)) for k in (0, 1, 7, 8, 15, 16, 17, 31, 32, 36, 99)]
    x = np.stack(rows).astype(F32)
    found = run(lambda x: (x.max(1), x.min(1), x.max(0), x.min(0), mnp.sum(x, 1), mnp.prod(x[:, 30:], 1), x.max()), x)
    with np.errstate(over="ignore"):
        near(found, x.max(1), x.min(1), x.max(0), x.min(0), x.sum(1), x[:, 30:].prod(1), np.array(NAN), rtol=1e-6)


def test_extrema_of_infinities_and_zeros(run):
    # tinygrad/tinygrad#17895: -inf is a value, not an absent one; zeros are ordered by sign
    x = np.full((4, LANES), -INF, F32)
    x[1] = INF
    x[2] = -0.0
    x[2, 33] = 0.0
    x[3] = 0.0
    x[3, 20] = -0.0
    same(run(lambda x: (x.max(1), x.min(1), mnp.max(x[:2], axis=0), mnp.argmax(x[:2], 1)), x),
         f32(-INF, INF, 0, 0), f32(-INF, INF, -0.0, -0.0), np.full(LANES, INF, F32), np.zeros(2, I64))


def test_a_fully_masked_row_has_no_softmax_but_a_log_sum(run):
    # tinygrad/tinygrad#17853
    x = np.array([[-INF] * 4, [0, -INF, -INF, 0], [-INF, -INF, 0, 1], [INF, 0, 0, 0]], F32)
    e = np.e
    near(run(lambda x: (mlc.nn.softmax(x, axis=1), mlc.nn.logsumexp(x, axis=1)), x),
         np.array([[NAN] * 4, [0.5, 0, 0, 0.5], [0, 0, 1 / (1 + e), e / (1 + e)], [NAN, NAN, NAN, NAN]]),
         np.array([-INF, np.log(2), np.log1p(e), INF]), rtol=3e-7, atol=1e-7)


def test_powers_at_zero_one_and_infinity(run):
    # ekzhang/jax-js#221
    a = f32(0, 0, -0.0, 1, 1, -1, -1, -2, -2, -0.0, -0.0, INF, -INF, NAN, 1, -8, 0, -0.0, -INF, INF)
    b = f32(0, -0.0, 0, INF, NAN, INF, -INF, 3, 0.5, -1, -2, 0, 3, 0, NAN, 1 / 3, -1, 3, -3, -INF)
    half = np.full_like(a, 0.5)
    with np.errstate(all="ignore"):
        expected = np.power(a, b), np.power(a, F32(2)), np.power(a, F32(-1)), np.power(a, half)
    found = run(lambda a, b: (mnp.power(a, b), a ** 2, a ** -1, mnp.power(a, mnp.full_like(a, 0.5)), mnp.power(a, b * 1), a ** 0), a, b)
    near(found, *expected, expected[0], np.ones_like(a), rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(found[0][found[0] == 0]), np.signbit(expected[0][expected[0] == 0]))


def test_square_roots_by_power_differ_from_sqrt_at_minus_zero_and_minus_infinity(run):
    # ekzhang/jax-js#221: pow(-0, 0.5) is +0 and pow(-inf, 0.5) is inf
    x = f32(-0.0, -INF, 0, 4, -1)
    same(run(lambda x: (x ** 0.5, mnp.sqrt(x)), x), f32(0, INF, 0, 2, NAN), f32(-0.0, NAN, 0, 2, NAN))


def test_selects_do_not_mix_in_the_branch_not_taken(run):
    # numba/numba#6217: a select turned into arithmetic lets NaN through
    x = np.resize(f32(NAN, 1, INF, -INF, -0.0, 4), LANES)
    with np.errstate(all="ignore"):
        same(run(lambda x: (mnp.where(mnp.isnan(x), 0.0, x), mnp.where(x > 0, mnp.log(x), 0.0) * 0.0, mnp.where(x == x, x, 7.0)), x),
             np.where(np.isnan(x), F32(0), x), np.where(x > 0, np.log(x), F32(0)) * F32(0), np.where(x == x, x, F32(7)))
