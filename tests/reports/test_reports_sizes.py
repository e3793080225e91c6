"""Axes of length 0, programs thousands of operations deep, constants of megabytes."""

import time

import numpy as np
import pytest
from report_values import F32, I32, INF, NAN, i32, same

import mlc
import mlc.numpy as mnp


def test_axes_of_length_0(run):
    # jax-ml/jax#16418, xtensor-stack/xtensor#1625
    a, b, c = np.zeros((0, 3), F32), np.zeros((2, 0), F32), np.arange(6, dtype=F32).reshape(2, 3)
    found = run(lambda a, b, c: (a.sum(0), a.prod(0), b @ a, a @ c.T, mnp.concatenate([a, c]), mnp.exp(a) * 2, b[:, ::-1], mnp.all(a > 0),
                                 mnp.any(a > 0), mnp.mean(a, 0), mnp.max(a, axis=0, initial=-mnp.inf), a.sum(1), a.sum(), a.reshape(3, 0, 5), b.T),
                a, b, c)
    same(found, np.zeros(3, F32), np.ones(3, F32), np.zeros((2, 3), F32), np.zeros((0, 2), F32), c, a, b, np.array(True), np.array(False),
         np.full(3, NAN, F32), np.full(3, -INF, F32), np.zeros(0, F32), np.array(0, F32), np.zeros((3, 0, 5), F32), b.T)


def test_nothing_in_and_nothing_out(run):
    # jax-ml/jax#16418
    same(run(lambda a: (a + 1, mnp.sum(a)), np.zeros((4, 0, 2), I32)), np.zeros((4, 0, 2), I32), np.array(0, np.int64))


def test_the_largest_of_nothing_is_an_error():
    # jax-ml/jax#16418: not an uninitialised value
    with pytest.raises((ValueError, mlc.errors.MlcError), match=r"max|empty|identity"):
        mlc.jit(lambda a: a.max(0))(np.zeros((0, 3), F32))


def test_a_chain_of_1500_operations(run):
    # apache/tvm#5798, tinygrad/tinygrad#8457, pytorch/pytorch#32842
    def chain(x):
        for k in range(750):
            x = (x * np.int32(3) + np.int32(k)) ^ np.int32(5)
        return x
    x = np.arange(5, dtype=I32)
    with np.errstate(over="ignore"):
        expected = chain(x)
    same(run(chain, x), expected)


def test_a_chain_of_1500_reductions_and_broadcasts(run_native):
    # pytorch/pytorch#32842: as many kernels as operations
    def chain(x):
        for k in range(500):
            x = x - mnp.max(x, axis=0) + np.int32(k)
        return x
    x = i32(3, 1, 4, 1, 5, 9)
    expected = x
    for k in range(500):
        expected = expected - expected.max() + I32(k)
    same(run_native(chain, x), expected)


def test_thirty_levels_of_diamonds(run):
    # tinygrad/tinygrad#8457: 2^30 paths, 60 values
    def diamonds(a, b):
        for k in range(30):
            a, b = a + b * np.int32(2), (a - b) ^ np.int32(k)
        return a, b
    x, y = i32(1, -2, 3), i32(7, 5, -9)
    with np.errstate(over="ignore"):
        expected = diamonds(x, y)
    begun = time.monotonic()
    same(run(diamonds, x, y), *expected)
    assert time.monotonic() - begun < 30


def test_a_captured_constant_of_two_megabytes(run_native):
    # apache/tvm#6436
    big = np.random.default_rng(29).integers(-1000, 1000, (1024, 512)).astype(I32)

    def f(x):
        c = mnp.asarray(big)
        return mnp.sum(c * x[0], axis=1, dtype=mnp.int32) + x[1], c[::-1, 3] + x[1]
    x = i32(2, -3)
    begun = time.monotonic()
    same(run_native(f, x), (big.sum(1, dtype=I32) * x[0] + x[1]).astype(I32), big[::-1, 3] + x[1])
    assert time.monotonic() - begun < 10
    text = mlc.jit(f).lower(x).as_text()
    assert len(text) < 5000  # the numbers are not in the text
