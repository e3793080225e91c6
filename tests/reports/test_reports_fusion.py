"""What may not happen when producers and consumers share a loop: running values, reads past the end, lost terms, wrong identities."""

import numpy as np
from report_values import F32, F64, I8, I32, U8, f32, near, same

import mlc.numpy as mnp


def test_a_reduction_is_complete_before_it_is_used(run):
    # numba/numba#9139
    a = np.linspace(0, 3, 37).astype(F32)
    b = f32(3, 1, 4, 1, 5, 9, 2, 6)
    found = run(lambda a, b: (a / a.max(), b - b.min(), b / b.sum()), a, b)
    same(found, a / a.max(), b - b.min(), b / b.sum(dtype=F32))  # the sum is exact in any order


def test_rows_are_normalised_by_their_own_maximum(run):
    # numba/numba#9139, along one axis of two
    x = np.random.default_rng(7).integers(-50, 50, (9, 19)).astype(F32)
    same(run(lambda x: (x - x.max(1, keepdims=True), x - x.max(0), (x - x.min()) / mnp.max(x - x.min())), x),
         x - x.max(1, keepdims=True), x - x.max(0), (x - x.min()) / (x - x.min()).max())


def test_overlapping_windows_of_a_padded_array_add_up(run):
    # numba/numba#8007
    def windows(x):
        y = mnp.pad((x - x.min()).astype(mnp.int32), 5)
        total = mnp.zeros(x.shape, mnp.float32)
        for i in range(5):
            for j in range(5):
                total = total + y[i:i + x.shape[0], j:j + x.shape[1]]
        return total
    x = (np.arange(24, dtype=U8)[:, None] + np.arange(33, dtype=U8) * U8(3) + U8(4))
    y = np.pad((x - x.min()).astype(I32), 5)
    found, = run(windows, x)
    np.testing.assert_array_equal(found, sum(y[i:i + 24, j:j + 33] for i in range(5) for j in range(5)))


def test_lanes_past_the_end_add_nothing(run):
    # iree-org/iree#23952: exp(0) and cos(0) are not 0, and 625 is no multiple of a vector
    x = np.random.default_rng(8).normal(size=(6, 25, 25)).astype(F32)
    wide = x.astype(F64)
    near(run(lambda x: (mnp.sum(mnp.exp(x), axis=(1, 2)), mnp.sum(mnp.cos(x), axis=(0, 2))), x),
         np.exp(wide).sum((1, 2)), np.cos(wide).sum((0, 2)), rtol=1e-6, atol=1e-5)


def test_counts_of_lanes_are_exact_at_every_length(run):
    # iree-org/iree#23952: cos(0) = 1, so that one lane too many shows in an exact count
    lengths = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257)
    found = run(lambda: [mnp.sum(mnp.cos(mnp.zeros((2, n), mnp.float32)), axis=1) for n in lengths])
    same(found, *(np.full(2, n, F32) for n in lengths))
    zeros = [np.zeros((2, n), F32) for n in lengths]
    same(run(lambda *xs: [mnp.sum(mnp.cos(x), axis=1) for x in xs], *zeros), *(np.full(2, n, F32) for n in lengths))


def test_reductions_start_from_their_own_identity(run):
    # tinygrad/tinygrad#17895, tenstorrent/tt-metal#12662
    x = -1 - np.random.default_rng(9).random((5, 13)).astype(F32)
    y = np.random.default_rng(10).integers(-90, -5, (13, 3)).astype(I8)
    two = np.full(13, 2, I32)
    found = run(lambda x, y, two: (x.max(1), (-x).min(1), y.max(0), y.min(1), (y == 0).any(0), (y < 0).all(0), mnp.prod(two, dtype=mnp.int32)),
                x, y, two)
    same(found, x.max(1), (-x).min(1), y.max(0), y.min(1), np.zeros(3, bool), np.ones(3, bool), np.array(2 ** 13, I32))


def test_the_last_of_32769_rows_is_like_the_others(run_native):
    # jax-ml/jax#39103
    x = np.stack([np.arange(32769), np.zeros(32769), np.zeros(32769)], 1).astype(F32)
    near(run_native(lambda x: ((x @ mnp.eye(3, dtype=mnp.float32)) ** 2).sum(1), x), x[:, 0].astype(F64) ** 2, rtol=1e-6)


def test_a_rank_3_array_spread_over_rank_8_and_reduced(run_native):
    # jax-ml/jax#39257
    def likelihood(o, a):
        return mnp.log(mnp.maximum(mnp.sum(o[..., None, None, None, None, None] * a, axis=2), 2.22e-16))
    a = np.ones((10, 4, 6, 9, 9, 9, 9, 9), F32)
    near(run_native(likelihood, np.ones((10, 4, 6), F32), a), np.full((10, 4, 9, 9, 9, 9, 9), np.log(6.0)), rtol=1e-6)


def test_rank_8_with_unequal_values(run):
    # jax-ml/jax#39257, small enough to tell every element from the others
    rng = np.random.default_rng(11)
    o, a = rng.integers(-9, 9, (3, 2, 4)).astype(F32), rng.integers(-9, 9, (3, 2, 4, 2, 3, 1, 2, 3)).astype(F32)
    same(run(lambda o, a: mnp.sum(o[..., None, None, None, None, None] * a, axis=2), o, a),
         np.einsum("abc,abcdefgh->abdefgh", o, a))


def test_rank_7_with_axes_of_size_1(run):
    # jax-ml/jax#40412
    x = np.random.default_rng(13).integers(-99, 99, (3, 1, 4, 1, 5, 1, 2)).astype(I32)
    axes = [(1,), (0, 1), (1, 3, 5), (2, 3, 4), (0, 2, 4, 6), (0, 1, 2, 3, 4, 5, 6), (5, 6), (1, 6)]
    same(run(lambda x: [mnp.sum(x, axis=a, dtype=mnp.int32) for a in axes] + [mnp.max(x, axis=a, keepdims=True) for a in axes], x),
         *[x.sum(a, dtype=I32) for a in axes], *[x.max(a, keepdims=True) for a in axes])


def test_a_product_of_zeros_beside_another_leaves_it_alone(run_native):
    # openxla/xla#13054: the gradient of mean(d @ w + (d @ 0) . d) with respect to x, written out
    def loss_and_gradient(ys, w, x):
        zero = mnp.zeros((3, 3), mnp.float32)
        d = ys - x
        loss = mnp.mean(d @ w + ((d @ zero) * d).sum(1))
        return loss, mnp.mean(-(w + d @ zero + d @ zero.T), axis=0)
    ys = (np.arange(3 * 10 ** 6) % 7).reshape(-1, 3).astype(F32)
    w = f32(1, 2, 3)
    near(run_native(loss_and_gradient, ys, w, np.ones(3, F32)),
         ((ys.astype(F64) - 1) @ w.astype(F64)).mean(), -w.astype(F64), rtol=2e-6)


def test_columns_taken_from_one_slice_by_several_consumers(run):
    # openxla/xla#13054: common parts merged, each consumer its own answer
    def columns(c, y):
        x = c[..., 16]
        return mnp.stack([mnp.logaddexp(x, 0), mnp.tanh(x * y), x - mnp.logaddexp(y, 0)], -1)
    rng = np.random.default_rng(12)
    c, y = rng.normal(size=(4, 5, 33)).astype(F32), rng.normal(size=(4, 5)).astype(F32)
    x, z = c[..., 16].astype(F64), y.astype(F64)
    near(run(columns, c, y), np.stack([np.logaddexp(x, 0), np.tanh(x * z), x - np.logaddexp(z, 0)], -1), rtol=1e-6, atol=1e-6)
