"""A few rows times a transposed matrix: reductions along k, several sums at a time, where turning the matrix would cost more."""

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.kernel.ir import Dot
from mlc.stages import Stages

RNG = np.random.default_rng(2)


def stages(function, *args, target="native"):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target(target))


def contracts(made):
    return any(isinstance(stage, Dot) for kernel in made.packed.kernels() for stage in kernel.stages)


def linear(x, w):
    return x @ w.T


def operands(m, n, k, dtype="f4"):
    return RNG.normal(size=(m, k)).astype(dtype), RNG.normal(size=(n, k)).astype(dtype)


@pytest.mark.parametrize("target", ["native", "golden-v3"])
@pytest.mark.parametrize("m, n, k", [(2, 64, 130), (3, 51, 257), (4, 33, 128), (5, 34, 300), (8, 20, 256)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_level_agrees(m, n, k, dtype, target):
    x, w = operands(m, n, k, dtype)
    bias = RNG.normal(size=n).astype(dtype)
    with mlc.options(check=2):
        made = stages(lambda x, w, b: mlc.nn.relu(linear(x, w) + b), x, w, bias, target=target)
        assert not contracts(made)
        (want,) = made.build().run([x, w, bias])
        for level in (made.run_kernels([x, w, bias]), made.run_loops([x, w, bias]), made.run_planned([x, w, bias])):
            np.testing.assert_array_equal(level[0], want)
    np.testing.assert_allclose(want, np.maximum(x.astype("f8") @ w.astype("f8").T + bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("m, n, k", [(9, 64, 256), (8, 64, 128), (2, 8, 128), (2, 64, 96)])
def test_more_rows_and_small_or_shallow_matrices_get_a_tile(m, n, k):
    assert contracts(stages(linear, *operands(m, n, k)))


def test_a_matrix_that_is_contiguous_along_its_columns_gets_a_tile():
    x, w = operands(4, 64, 256)
    assert contracts(stages(lambda x, w: x @ w, x, w.T.copy()))


def test_a_left_side_that_jumps_gets_a_tile():
    x, w = operands(4, 64, 256)
    assert contracts(stages(lambda x, w: x.T @ w.T, x.T.copy(), w))


def test_constant_weights_are_turned_when_the_program_is_made():
    x, w = operands(4, 64, 256)
    made = stages(lambda x: linear(x, mlc.numpy.asarray(w)), x)
    assert contracts(made) and any(v.packing for v in made.kernels.values.values())


def test_batches_are_rows_of_the_same_kernel():
    q, keys = RNG.normal(size=(3, 2, 128)).astype("f4"), RNG.normal(size=(3, 40, 128)).astype("f4")
    made = stages(lambda q, keys: q @ mlc.numpy.matrix_transpose(keys), q, keys)
    assert not contracts(made)
    np.testing.assert_allclose(made.build().run([q, keys])[0], q.astype("f8") @ keys.astype("f8").transpose(0, 2, 1), rtol=1e-4, atol=1e-4)
