"""Deep contractions in blocks of k: which are split, that every level agrees, and what is left over."""

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.kernel.ir import Dot
from mlc.kernel.split_dot import block_of
from mlc.kernel.tiling import DOT_CHUNK
from mlc.passes.kernelize import partition
from mlc.stages import Stages

RNG = np.random.default_rng(3)


def stages(function, *args):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target("native"))


def whole(made):
    """The kernels before they are split."""
    return partition(made.optimized).kernels()


def operands(m, n, k, dtype="f4"):
    return [(RNG.normal(size=shape) * 3).astype(dtype) for shape in ((m, k), (k, n))]


@pytest.mark.parametrize("shape, split", [((16, 16, 100000), True), ((8, 8, 65536), True), ((64, 64, 65536), True), ((100, 100, 5000), True),
                                          ((512, 512, 8192), False), ((16, 16, 2000), False), ((2, 2, 5000), False), ((128, 128, 128), False)])
def test_deep_contractions_with_a_small_result_are_split(shape, split):
    m, n, k = shape
    made = stages(lambda a, b: a @ b, mlc.spec(f"f32[{m},{k}]"), mlc.spec(f"f32[{k},{n}]"))
    (kernel,) = whole(made)
    assert bool(block_of(kernel)) is split
    assert (len(made.kernels.steps) > 1) is split


@pytest.mark.parametrize("k", [5 * DOT_CHUNK, 5 * DOT_CHUNK + 3, 70 * DOT_CHUNK + 17])
def test_every_level_agrees(k):
    a, b = operands(6, 10, k)
    bias = RNG.normal(size=10).astype("f4")
    with mlc.options(fork_us=0, check=2):
        made = stages(lambda a, b, c: mlc.nn.relu(a @ b + c), a, b, bias)
        assert len(made.kernels.steps) > 1
        (want,) = made.build().run([a, b, bias])
        for level in (made.run_kernels([a, b, bias]), made.run_loops([a, b, bias]), made.run_planned([a, b, bias])):
            np.testing.assert_array_equal(level[0], want)
    np.testing.assert_allclose(want, np.maximum(a.astype("f8") @ b.astype("f8") + bias, 0), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "i1"])
def test_other_dtypes_are_split_too(dtype):
    a, b = operands(9, 17, 6000, dtype)
    with mlc.options(fork_us=0, check=1):
        made = stages(lambda a, b: a @ b, a, b)
        assert len(made.kernels.steps) > 1
        (want,) = made.build().run([a, b])
        np.testing.assert_array_equal(made.run_loops([a, b])[0], want)
        np.testing.assert_array_equal(made.run_kernels([a, b])[0], want)
    if dtype.startswith("i"):
        np.testing.assert_array_equal(want, a @ b)


def test_what_is_left_of_the_last_block_is_added_last():
    a, b = operands(4, 4, 5 * DOT_CHUNK - 2)
    with mlc.options(fork_us=0):
        made = stages(lambda a, b: a @ b, a, b)
        depths = [stage.k[1] for kernel in made.packed.kernels() for stage in kernel.stages if isinstance(stage, Dot)]
    assert depths[0] > depths[1] and sum(made_blocks(made)) == 5 * DOT_CHUNK - 2


def made_blocks(made):
    """Steps of k in all blocks."""
    return [stage.k[1] * int(np.prod([e for _, e in step.kernel.rows], dtype=int))
            for step in made.kernels.steps for stage in step.kernel.stages if isinstance(stage, Dot)]


def test_the_partial_sums_stay_small_beside_the_operands():
    made = stages(lambda a, b: a @ b, mlc.spec("f32[128,8192]"), mlc.spec("f32[8192,128]"))
    assert sum(v.type.nbytes for v in made.kernels.values.values() if v.role == "temp") <= 2 * 128 * 8192 * 4 // 16


@pytest.mark.parametrize("k, n, blocks", [(1024, 1024, 2), (768, 768, 2), (3072, 768, 2), (2048, 2048, 8), (1024, 4096, 8), (769, 768, 1),
                                          (512, 512, 1), (768, 3072, 1), (16, 1 << 18, 1)])
def test_a_row_times_a_large_matrix_is_split_into_whole_rows_of_it(k, n, blocks):
    made = stages(lambda a, b: a @ b, mlc.spec(f"f32[{k}]"), mlc.spec(f"f32[{k},{n}]"))
    (kernel,) = whole(made)
    assert block_of(kernel) == (k // blocks if blocks > 1 else 0) and made_blocks(made) == [k]
    assert len(made.kernels.steps) == 1 + (blocks > 1)


def test_a_constant_matrix_is_not_split():
    weights = RNG.normal(size=(768, 768)).astype("f4")
    made = stages(lambda a: a @ weights, mlc.spec("f32[768]"))
    assert len(made.kernels.steps) == 1 and block_of(whole(made)[0]) and not block_of(whole(made)[0], True)


def test_constants_that_are_not_the_matrix_do_not_change_the_order_of_summation():
    a, b = operands(1, 768, 1024)
    bias = RNG.normal(size=768).astype("f4")

    def run(function, *args):
        made = stages(function, *args)
        assert len(made.kernels.steps) == 2
        return made.build().run(list(args))[0]
    want = run(lambda a, b, c: a @ b + c, a, b, bias)
    assert run(lambda a, b: a @ b + bias, a, b).tobytes() == run(lambda b, c: a @ b + c, b, bias).tobytes() == want.tobytes()


def test_every_level_agrees_on_a_row_times_a_matrix():
    a, b = operands(1, 768, 1024)
    bias = RNG.normal(size=768).astype("f4")
    with mlc.options(check=1):
        made = stages(lambda a, b, c: mlc.nn.relu(a @ b + c), a, b, bias)
        assert len(made.kernels.steps) == 2
        (want,) = made.build().run([a, b, bias])
        for level in (made.run_kernels([a, b, bias]), made.run_loops([a, b, bias])):
            np.testing.assert_array_equal(level[0], want)
    np.testing.assert_allclose(want, np.maximum(a.astype("f8") @ b.astype("f8") + bias, 0), rtol=1e-3, atol=1e-2)
