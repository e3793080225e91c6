"""Writing into a buffer that is still read: updates from shifted, rolled and previous rows, shared temporaries, long lifetimes."""

import numpy as np
from report_values import F32, F64, I32, near, same

import mlc.numpy as mnp


def test_rows_written_from_the_rows_above_in_the_same_buffer(run):
    # openxla/xla#49176
    def shift_down(x):
        base = x + np.int32(1)
        return base.at[1:, :].set(base[:3]).reshape(1, 4, 3)
    x = np.arange(12, dtype=I32).reshape(4, 1, 3) ** 2
    same(run(shift_down, x), np.concatenate([x[:1], x[:3]]).reshape(1, 4, 3) + I32(1))


def test_rows_written_from_the_rows_below_in_the_same_buffer(run):
    # openxla/xla#49176, the other way round
    def shift_up(x):
        base = x * np.int32(3)
        return base.at[:-2].set(base[2:])
    x = np.arange(35, dtype=I32).reshape(7, 5) ** 2
    same(run(shift_up, x), np.concatenate([x[2:], x[-2:]]) * I32(3))


def test_a_rolled_row_written_to_its_own_row(run):
    # jax-ml/jax#10129
    x = np.random.default_rng(1).random((2, 100)).astype(F32)
    for shift in (5, -17, 99):
        same(run(lambda x, s=shift: x.at[0].set(mnp.roll(x[0], s, axis=-1)), x), np.stack([np.roll(x[0], shift), x[1]]))


def test_each_row_written_from_the_row_before(run):
    # jax-ml/jax#10197, jax-ml/jax#40101 (the loop unrolled)
    def running_sums(x):
        p = mnp.zeros_like(x).at[0].set(x[0])
        for i in range(1, x.shape[0]):
            p = p.at[i].set(p[i - 1] + x[i])
        return p
    x = np.random.default_rng(3).integers(1, 5, (12, 3)).astype(I32)
    same(run(running_sums, x), np.cumsum(x, axis=0, dtype=I32))


def test_a_stencil_whose_input_is_read_again_after_the_update(run):
    # jax-ml/jax#10197: the old values are needed beside and after the new ones
    def stencil(x):
        y = x.at[1:-1].set(x[:-2] + x[2:])
        return y, x * y - x, y.at[:, 0].set(x[:, -1])
    x = np.random.default_rng(2).integers(-9, 9, (19, 6)).astype(I32)
    y = x.copy()
    y[1:-1] = x[:-2] + x[2:]
    w = y.copy()
    w[:, 0] = x[:, -1]
    same(run(stencil, x), y, x * y - x, w)


def test_a_temporary_that_two_results_need(run):
    # pytorch/pytorch#122457
    def shared(x):
        z = x + 1
        left, right = z[:, 0], z[:, 1]
        return mnp.stack([left, right], -1) + 1, mnp.stack([left + 1, right + 1], -1), z
    x = np.arange(8, dtype=F32).reshape(4, 2)
    same(run(shared, x), x + 2, x + 2, x + 1)


def test_a_row_added_to_itself_counts_twice(run):
    # pytorch/pytorch#138908 (the index known)
    y = np.random.default_rng(5).integers(-9, 9, (2, 32)).astype(I32)
    same(run(lambda y: (y.at[0].set(y[0] + y[0]), y.at[0].add(y[0]), y.at[1].multiply(y[1])), y),
         np.stack([y[0] * 2, y[1]]), np.stack([y[0] * 2, y[1]]), np.stack([y[0], y[1] ** 2]))


def test_overlapping_updates_apply_in_order(run):
    # openxla/xla#49176: each update reads what the one before wrote
    def updates(x, u):
        a = x.at[1:2, 0:3].set(u)
        b = a.at[0:2, 1:4].set(a[1:3, 0:3] + 1)
        c = b.at[:, ::2].add(b[:, 1::2])
        return a, b, c, c.at[::-1].set(c)
    x, u = np.arange(24, dtype=I32).reshape(4, 6) ** 2, np.array([[-5, 7, -9]], I32)
    a = x.copy()
    a[1:2, 0:3] = u
    b = a.copy()
    b[0:2, 1:4] = a[1:3, 0:3] + 1
    c = b.copy()
    c[:, ::2] += b[:, 1::2]
    same(run(updates, x, u), a, b, c, c[::-1])


def test_twelve_values_live_at_once_and_used_in_reverse(run):
    # apache/tvm#8918
    def crossed(x):
        keep = [x * (k + 1) for k in range(12)]
        sums = [mnp.sum(k, axis=0) for k in keep]
        total = mnp.zeros(17, mnp.float32)
        for k, s in zip(keep, reversed(sums)):
            total = total + mnp.max(k, axis=0) * s
        return total
    x = np.random.default_rng(4).normal(size=(33, 17)).astype(F32)
    keep = [x.astype(F64) * (k + 1) for k in range(12)]
    near(run(crossed, x), sum(k.max(0) * s.sum(0) for k, s in zip(keep, reversed(keep))), rtol=2e-5, atol=2e-5)


def test_results_do_not_share_memory_with_arguments_or_each_other(run):
    # apache/tvm#8918, pytorch/pytorch#122457: a returned view would be overwritten by the next call
    x = np.arange(6, dtype=F32)
    results = run(lambda x: (x, x.reshape(2, 3), x[:], x + 0), x)
    arrays = [x, *results]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
