"""Identities of real numbers that floats and wrapping integers do not have, and constants that must fold to what runs."""

import numpy as np
from report_values import F32, F64, I8, I32, INF, NAN, U8, f32, near, same

import mlc
import mlc.numpy as mnp


def quiet(function, *arrays):
    with np.errstate(all="ignore"):
        return function(*arrays)


def test_zero_times_minus_itself_and_over_itself_are_not_constants(run):
    # tinygrad/tinygrad#4982, tile-ai/tilelang#2638
    x = f32(1, INF, -INF, NAN, 0, -0.0, -2)
    zero, minus = F32(0), F32(-0.0)
    found = run(lambda x: (x * 0.0, 0.0 * x, x - x, 0.0 / x, x / x, x * -0.0, x + 0.0, x - 0.0, 0.0 - x, x + -0.0, -x + x), x)
    same(found, *quiet(lambda x: (x * zero, zero * x, x - x, zero / x, x / x, x * minus, x + zero, x - zero, zero - x, x + minus, -x + x), x))


def test_logarithms_do_not_cancel_exponentials(run):
    # openxla/xla#42732, jax-ml/jax#38099, jax-ml/jax#38100
    x = f32(1, 89, 100, -200, 0.5)
    found = run(lambda x: (mnp.log(mnp.exp(x)), mnp.log2(mnp.exp2(x)), mnp.log1p(mnp.expm1(x)), mnp.sqrt(x * x)), x * 1)
    near(found, f32(1, INF, INF, -INF, 0.5), f32(1, 89, 100, -INF, 0.5), f32(1, INF, INF, -INF, 0.5), np.abs(x), rtol=5e-7)


def test_exponentials_do_not_cancel_logarithms(run):
    # openxla/xla#42732, the other way round
    near(run(lambda x: (mnp.exp(mnp.log(x)), mnp.exp2(mnp.log2(x)), mnp.sqrt(x) * mnp.sqrt(x)), f32(-1, -INF, 3, 0, INF)),
         f32(NAN, NAN, 3, 0, INF), f32(NAN, NAN, 3, 0, INF), f32(NAN, NAN, 3, 0, INF), rtol=5e-7)


def test_scores_beside_a_huge_mask_term_keep_their_digits(run):
    # jax-ml/jax#6566
    def masked(m, s):
        t = s + (-1.0 * 1e30 * (1.0 - m))
        return t - t.max()
    s = f32(0.7, 0.5)
    same(run(masked, np.array(1.0, F32), s), s - s.max())


def test_sums_keep_their_order(run):
    # jax-ml/jax#6566: (a + b) - a, (a - b) + b and a + (b + c) are what they say
    a, b, c = f32(1e8, 1, -1e30, 3), f32(3, 1e-9, 1, -7), f32(-1e8, -1, 1e30, 1e-7)
    same(run(lambda a, b, c: ((a + b) - a, (a - b) + b, a + (b + c), (a + b) + c, (a * b) / b, (a + 1.0) - 1.0, a * b + c), a, b, c),
         (a + b) - a, (a - b) + b, a + (b + c), (a + b) + c, (a * b) / b, (a + F32(1)) - F32(1), a * b + c)


def test_division_by_a_constant_is_division(run):
    # apache/tvm#16819
    x = np.arange(1, 400, dtype=F32)
    same(run(lambda x: (x / 3.0, x / 10.0, x / 49.0, 1.0 / x, x / 4.0, x / 3e38), x),
         x / F32(3), x / F32(10), x / F32(49), F32(1) / x, x / F32(4), x / F32(3e38))


def test_division_by_a_square_root_is_correctly_rounded(run):
    # openxla/xla#40844, apache/tvm#16211
    x = f32(0, -0.0, INF, 4, 3, 2, 1e-30, 7, -1, 1e-45)
    same(run(lambda x: (1.0 / mnp.sqrt(x), x / mnp.sqrt(x), mnp.sqrt(x) / x), x),
         *quiet(lambda x: (F32(1) / np.sqrt(x), x / np.sqrt(x), np.sqrt(x) / x), x))


def test_exclusive_or_of_equal_comparisons_is_zero(run):
    # openxla/xla#44705, jax-ml/jax#38681
    a = np.arange(5, dtype=I32)
    same(run(lambda a: ((a != 0) ^ (a != 0), ((a != 0) ^ (a != 0)).astype(mnp.float32), a ^ a, a & ~a, a | ~a), a),
         np.zeros(5, bool), np.zeros(5, F32), a * 0, a * 0, a * 0 - I32(1))


def test_int8_products_wrap_before_they_are_used(run):
    # pytorch/pytorch#109105
    x, y = np.array([5, 100, -100, 127, -128, 64], I8), np.array([4, 100, -100, 127, -128, 64], I8)
    wide, other = x.astype(I32), y.astype(I32)
    six = np.int8(6)
    found = run(lambda x, y: (x * six * y, (x + y) * six, six * x + six * y, (x + y).astype(mnp.int32), (x + y) > 0, (x * y).astype(mnp.float32)),
                x, y)
    same(found, (wide * 6 * other).astype(I8), ((wide + other) * 6).astype(I8), ((wide + other) * 6).astype(I8),
         (wide + other).astype(I8).astype(I32), (wide + other).astype(I8) > 0, (wide * other).astype(I8).astype(F32))


def test_unsigned_differences_wrap(run):
    # pytorch/pytorch#109105, without a sign
    x, y = np.array([0, 5, 255, 128], U8), np.array([1, 250, 255, 129], U8)
    same(run(lambda x, y: (x - y, (x - y) > 0, (x + y) // np.uint8(2), (x - y).astype(mnp.float32), -x), x, y),
         x - y, (x - y) > 0, (x + y) // U8(2), (x - y).astype(F32), np.array([0, 251, 1, 128], U8))


def test_softmax_of_huge_scaled_scores_is_not_nan(run):
    # jax-ml/jax#37234: scale * score - max(scale * score) contracted to an fma is no longer <= 0
    scores = np.random.default_rng(15).integers(-10 ** 6, 10 ** 6, (14, 14)).astype(F32)
    found = run(lambda s: (mlc.nn.softmax(s * np.float32(1.1e18), axis=-1), mlc.nn.log_softmax(s * np.float32(0.1), axis=-1)), scores)
    scaled, tenth = (scores * F32(1.1e18)).astype(F64), (scores * F32(0.1)).astype(F64)
    e = np.exp(scaled - scaled.max(-1, keepdims=True))
    shifted = tenth - tenth.max(-1, keepdims=True)
    near(found, e / e.sum(-1, keepdims=True), shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), rtol=1e-6, atol=1e-6)


def test_a_product_minus_its_own_rounding_is_zero(run):
    # jax-ml/jax#37234: a * b - round(a * b) shows a contraction as what is left of the product
    a, b = np.random.default_rng(16).normal(size=(2, 50)).astype(F32)
    same(run(lambda a, b: (a * b - a * b, a * b + -(a * b), mnp.maximum(a * b, a * b) - a * b), a, b), *[np.zeros(50, F32)] * 3)


def test_folded_constants_equal_what_runs(run):
    # openxla/xla#44705: the folder and the machine code must agree, on special values too
    x = f32(0, -0.0, 1e-40, 0.3, 88.9, -104, INF, -INF, NAN, 2 ** 31)

    def answers(x):
        return (mnp.exp(x), mnp.tanh(x), mnp.log(x), mnp.sin(x), x.astype(mnp.int32), mnp.round(x), mnp.sign(x), mnp.sqrt(x), 1 / x, x % 2,
                mnp.power(x, x), mnp.max(x), mnp.argmin(x))
    same(run(lambda: answers(mnp.asarray(x))), *run(answers, x))
