"""Constant weights, stored once in panels of columns."""

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.core.errors import VerifyError
from mlc.kernel.ir import Packing
from mlc.kernel.packing import pack
from mlc.kernel.program_text import parse_kernel_graph, print_kernel_graph
from mlc.kernel.verify import verify_program
from mlc.stages import Stages

RNG = np.random.default_rng(7)


def stages(function, *args, target="native"):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target(target))


def weights(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def by_hand(matrix, width):
    return np.concatenate([matrix[:, p:p + width].reshape(-1) for p in range(0, matrix.shape[1], width)])


@pytest.mark.parametrize("columns", [12, 13, 4, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_panels_lie_one_after_the_other(columns, transposed):
    matrix = np.arange(5 * columns, dtype=np.int32).reshape(5, columns)
    given = np.ascontiguousarray(matrix.T) if transposed else matrix
    assert np.array_equal(pack(given, Packing("w", 5, columns, 4, transposed)), by_hand(matrix, 4))


@pytest.mark.parametrize("target", ["native", "golden-v3"])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("shape, flip", [((96, 200), False), ((200, 96), True), ((1100, 130), False)])
def test_every_level_reads_packed_weights_alike(rows, shape, flip, target):
    w = weights(*shape)
    x = weights(rows, shape[1] if flip else shape[0])
    made = stages(lambda x: mlc.nn.relu(x @ (w.T if flip else w)), x, target=target)
    made_in = [name for name in made.kernels.residents() if made.kernels.values[name].role == "packed"]
    assert len(made_in) == 1
    want = made.build().run([x])[0]
    assert np.allclose(want, np.maximum(x @ (w.T if flip else w), 0), rtol=1e-4, atol=1e-4)
    for level in (made.run_kernels([x]), made.run_loops([x]), made.run_planned([x])):
        assert np.array_equal(level[0], want)


def test_a_weight_is_packed_once_for_two_readers_and_kept_plain_for_a_third():
    w, x, y = weights(96, 128), weights(8, 96), weights(8, 96)
    made = stages(lambda x, y: (x @ w, y @ w, mlc.numpy.sum(w * 2.0)), x, y)
    roles = [made.kernels.values[name].role for name in made.kernels.residents()]
    assert roles.count("packed") == 1
    outs = made.build().run([x, y])
    assert np.allclose(outs[0], x @ w, atol=1e-4) and np.allclose(outs[1], y @ w, atol=1e-4)


def test_constants_that_are_only_packed_are_not_resident():
    w = weights(96, 128)
    memory = mlc.jit(lambda x: x @ w).lower(weights(8, 96)).compile().memory_analysis()
    assert (memory["constants"], memory["packed"]) == (0, w.nbytes)


def test_a_saved_program_packs_when_it_is_loaded(tmp_path):
    w, x = weights(96, 1000), weights(4, 96)
    compiled = mlc.jit(lambda x: x @ w).lower(x).compile()
    want = np.asarray(compiled(x))
    compiled.save(tmp_path / "first.mlc")
    loaded = mlc.load(tmp_path / "first.mlc")
    loaded.save(tmp_path / "again.mlc")
    assert np.array_equal(np.asarray(loaded(x)), want)
    assert np.array_equal(np.asarray(mlc.load(tmp_path / "again.mlc")(x)), want)
    assert (tmp_path / "first.mlc").stat().st_size < 1.5 * w.nbytes


def test_the_text_of_a_packed_program_comes_back():
    w = weights(96, 200)
    made = stages(lambda x: x @ w, weights(8, 96))
    text = print_kernel_graph(made.kernels, made.schedules)
    assert "panels:" in text and " of %c.1 k:96 n:200" in text
    assert parse_kernel_graph(text) == (made.kernels, made.schedules)


@pytest.mark.parametrize("edit", [("k:96 n:200 panels:", "k:48 n:400 panels:"), ("{\n    %t0 += %a0[96*m + k]", "{\n    %t0 += %a1[96*m + k]")])
def test_panels_that_do_not_fit_are_refused(edit):
    w = weights(96, 200)
    made = stages(lambda x: x @ w, weights(8, 96))
    text = print_kernel_graph(made.kernels, made.schedules)
    assert edit[0] in text
    with pytest.raises(VerifyError, match="packings_fit"):
        verify_program(parse_kernel_graph(text.replace(*edit))[0])
