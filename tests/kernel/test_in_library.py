"""Which kernels come from the library."""

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.stages import Stages

nn = mlc.nn


def shared(function, *shapes, dtype="f4", target="native"):
    args = [np.ones(shape, dtype) for shape in shapes]
    return [loop.library for loop in Stages(mlc.jit(function).lower(*args)._captured.graph, get_target(target)).loops.values()]


@pytest.mark.parametrize("target", ["native", "golden-v3", "generic"])
def test_contractions_do_with_what_follows(target):
    sizes = (64, 96), (96, 128)
    assert shared(lambda a, b: a @ b, *sizes, target=target) == [True]
    assert shared(lambda a, b: a.T @ b, (96, 64), (96, 128), target=target) == [True]
    assert shared(lambda a, b, c: nn.relu(a @ b + c), *sizes, (128,), target=target) == [True]
    assert shared(lambda a, b, c, r: r + a @ b + c, *sizes, (128,), (64, 128), target=target) == [True]
    assert shared(lambda a, b: a @ b, *sizes, dtype="f8", target=target) == [True]
    assert shared(lambda a, b: nn.gelu(a @ b), *sizes, target=target) == [True]


def test_a_row_times_a_matrix_does():
    assert shared(lambda a, b: a @ b, (1, 256), (256, 256)) == [True]


def test_attention_does():
    assert shared(lambda q, k, v: nn.softmax(q @ k.mT * 0.125, axis=-1) @ v, *[(4, 128, 64)] * 3) == [True]


def test_small_products_do_not():
    assert shared(lambda a, b: a @ b, (64, 64), (64, 64)) == [False]
    assert shared(lambda a, b: a @ b, (1, 150), (150, 200)) == [False]


def test_small_kernels_do_beside_others_where_all_of_a_program_does():
    layer = [(1, 300), (300, 200), (200, 10)]
    assert shared(lambda x, a, b: nn.softmax(nn.relu(x @ a) @ b), *layer) == [True] * 3
    assert shared(lambda x, a, b: nn.relu(x @ a) @ b, (4, 16), (16, 24), (24, 8)) == [False] * 2
    assert shared(lambda x, a, b: (nn.relu(x @ a) @ b, mlc.numpy.flip(x, 1)), *layer) == [True, False, False]


def test_reductions_of_rows_do():
    assert shared(lambda a: nn.softmax(a), (64, 96)) == [True]
    assert shared(lambda a, s, b: nn.layer_norm(a, s, b), (64, 96), (96,), (96,)) == [True]
    assert shared(lambda a: a.sum(axis=1), (64, 96)) == [True]


def test_tiles_of_few_rows_do_not():
    assert shared(lambda a, b: a @ b, (2, 256), (256, 256)) == [False]


def test_halves_integers_and_other_kernels_do_not():
    assert shared(lambda a, b: a @ b, (64, 96), (96, 128), dtype="f2") == [False]
    assert shared(lambda a, b: a @ b, (64, 96), (96, 128), dtype="i4") == [False]
    assert shared(lambda a: nn.softmax(a), (64, 96), dtype="f2") == [False]
    assert shared(lambda a: a.argmax(axis=1), (64, 96)) == [False]
    assert shared(lambda a: a + a.T, (64, 64)) == [False]
    assert shared(lambda a: a.sum(), (64, 96)) == [False]
