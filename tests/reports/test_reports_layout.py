"""Transposes through axes of size 1, arguments of any strides and alignment, indices of narrow dtypes, padding that counts."""

import numpy as np
import pytest
from report_values import F32, F64, I16, I32, U8, near, same

import mlc.numpy as mnp


def test_transposes_through_an_axis_of_size_1(run):
    # openxla/xla#18441
    x, y = np.arange(6, dtype=F32).reshape(3, 1, 2), np.arange(24, dtype=I32).reshape(2, 3, 4)

    def answers(x, y):
        return (x.transpose(1, 2, 0).reshape(1, 6), y.transpose(2, 0, 1).reshape(4, 6).T.reshape(3, 8), y.reshape(6, 4).T.reshape(2, 12),
                x.transpose(2, 1, 0).reshape(3, 2), x.reshape(3, 2).T.reshape(1, 2, 3).transpose(1, 0, 2))
    same(run(answers, x, y), *answers(x, y))


def test_reversed_stepped_fortran_and_broadcast_arguments(run):
    # microsoft/onnxruntime#13548, AXERA-TECH/pyaxengine#47, scikit-learn/scikit-learn#34307
    a, b = np.arange(24, dtype=F32).reshape(4, 6)[::-1, ::2], np.asfortranarray(np.arange(12, dtype=F32).reshape(4, 3))
    c, d = np.broadcast_to(np.arange(3, dtype=F32), (4, 3)), np.arange(12, dtype=F32).reshape(3, 4).T
    same(run(lambda a, b, c, d: (a * 2 + b - c * d, a @ b.T, a.sum(0), d), a, b, c, d), a * 2 + b - c * d, a @ b.T, a.sum(0), d)


def test_one_compiled_function_takes_every_layout_in_turn(run_native):
    # microsoft/onnxruntime#13548: the code chosen for one call must not read the next one's array wrongly
    import mlc
    f = mlc.jit(lambda x: x * 2 + mnp.arange(20, dtype=mnp.float32).reshape(4, 5))
    base = np.random.default_rng(1).integers(0, 99, (8, 10)).astype(F32)
    layouts = [base[:4, :5].copy(), base[:4, :5], base[::2, ::2], base[::-2, ::-2], np.asfortranarray(base[4:, 5:]), base.T[:4, :5],
               np.broadcast_to(base[0, :5], (4, 5)), np.broadcast_to(base[:4, :1], (4, 5)), base[:4, :5].astype(">f4")]
    for x in [*layouts, *reversed(layouts)]:
        np.testing.assert_array_equal(f(x), x.astype(F32) * 2 + np.arange(20, dtype=F32).reshape(4, 5))


def misaligned(count: int, offset: int, dtype: type) -> np.ndarray:
    """0, 1, 2, ... that begin `offset` bytes past an aligned address."""
    size = count * np.dtype(dtype).itemsize
    memory = np.zeros(size + 128, U8)
    start = -memory.ctypes.data % 64 + offset
    array = memory[start:start + size].view(dtype)
    array[...] = np.arange(count)
    return array


@pytest.mark.parametrize("offset", [1, 2, 4, 7, 32])
def test_arguments_at_any_address(run, offset):
    # microsoft/onnxruntime#13548
    a, b, c = misaligned(67, offset, F32), misaligned(67, offset + 1, F64), misaligned(67, offset, I16)
    same(run(lambda a, b, c: (a * 2 + 1, b - 3, c * c, mnp.sum(a)), a, b, c), a * F32(2) + F32(1), b - 3, c * c, np.array(67 * 33, F32))


def test_a_static_index_of_128_in_eight_bits_is_not_negative(run):
    # jax-ml/jax#16836, jax-ml/jax#6122 (the index known)
    x = np.arange(200, dtype=I32)
    i = np.uint8(128)
    same(run(lambda x: (x[i], x[i:np.uint8(129)], mnp.take(x, np.array([199, 130, 5], U8)), x.at[i].set(-1)), x),
         x[128], x[128:129], x[[199, 130, 5]], np.where(x == 128, I32(-1), x))


def test_padded_zeros_count_in_an_average(run):
    # microsoft/onnxruntime#22177 (the windows as shifted slices)
    def averages(x):
        def windows(y):
            return sum(y[:, i:i + 5, j:j + 5] for i in range(3) for j in range(3))
        total = windows(mnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))))
        return total / 9.0, total / windows(mnp.pad(mnp.ones_like(x), ((0, 0), (1, 1), (1, 1), (0, 0))))
    x = np.random.default_rng(26).normal(size=(1, 5, 5, 2)).astype(F32)
    padded, ones = np.pad(x.astype(F64), ((0, 0), (1, 1), (1, 1), (0, 0))), np.pad(np.ones((1, 5, 5, 1)), ((0, 0), (1, 1), (1, 1), (0, 0)))
    total, number = (sum(y[:, i:i + 5, j:j + 5] for i in range(3) for j in range(3)) for y in (padded, ones))
    near(run(averages, x), total / 9, total / number, rtol=1e-5, atol=1e-6)


def test_the_largest_of_padded_windows_is_not_the_padding(run):
    # tinygrad/tinygrad#17895: windows of negative values, with -2^31 around them
    def largest(x):
        y = mnp.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-2 ** 31)
        tops = [y[:, i:i + 5:2, j:j + 5:2] for i in range(3) for j in range(3)]
        best = tops[0]
        for t in tops[1:]:
            best = mnp.maximum(best, t)
        return best
    x = np.random.default_rng(27).integers(-100, -1, (2, 5, 5)).astype(I32)
    y = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-2 ** 31)
    same(run(largest, x), np.array([[[p[2 * i:2 * i + 3, 2 * j:2 * j + 3].max() for j in range(3)] for i in range(3)] for p in y], I32))
