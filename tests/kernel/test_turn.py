"""Left operands that lie across: which are copied first, that no bit changes, and that every level agrees."""

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.kernel import turn
from mlc.kernel.ir import Dot
from mlc.passes.kernelize import partition
from mlc.stages import Stages

RNG = np.random.default_rng(8)


def stages(function, *args):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target("native"))


def product(a, b):
    return a.T @ b


def copies(m, n, k, vector_bytes, dtype="f32", function=product):
    """Whether a stage comes before the contraction, on a target with such vectors."""
    made = stages(function, mlc.spec(f"{dtype}[{k},{m}]"), mlc.spec(f"{dtype}[{k},{n}]"))
    (kernel,) = turn.turn_left(partition(made.optimized), vector_bytes).kernels()
    assert isinstance(kernel.stages[-1], Dot)
    return len(kernel.stages) == 2


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("shape, far", [((1024, 1024, 1024), True), ((1024, 256, 256), True), ((1024, 255, 1024), False), ((1024, 256, 100), False)])
def test_steps_on_pages_of_their_own_are_copied_on_all_targets(shape, far, vector_bytes):
    assert copies(*shape, vector_bytes) is far


@pytest.mark.parametrize("m, n, k, dtype, narrow", [
    (512, 512, 512, "f32", True), (500, 300, 400, "f32", True), (256, 256, 256, "f64", False), (256, 256, 257, "f64", True),
    (512, 255, 512, "f32", False), (100, 512, 512, "f32", False), (512, 512, 512, "i8", False), (512, 512, 512, "bf16", False),
    (512, 512, 512, "i32", False)])
def test_steps_on_lines_of_their_own_are_copied_where_vectors_are_narrow(m, n, k, dtype, narrow):
    assert copies(m, n, k, 32, dtype) is narrow and not copies(m, n, k, 64, dtype)


def test_rows_that_lie_along_k_are_read_where_they_lie():
    assert not copies(1024, 1024, 1024, 32, function=lambda a, b: a @ b)


@pytest.mark.parametrize("m, n, k", [(1, 16, 5), (6, 16, 33), (7, 17, 15), (13, 40, 64), (33, 9, 1100)])
@pytest.mark.parametrize("function", [product, lambda a, b: mlc.nn.relu(product(a, b) + 1), lambda a, b: mlc.numpy.einsum("kbm,kbn->bmn", a, b)],
                         ids=["bare", "epilogue", "batch"])
def test_no_bit_changes_and_every_level_agrees(monkeypatch, m, n, k, function):
    shapes = ((k, 3, m), (k, 3, n)) if "einsum" in function.__code__.co_names else ((k, m), (k, n))
    a, b = (RNG.normal(size=shape).astype("f4") for shape in shapes)
    with mlc.options(fork_us=0, check=2):
        (plain,) = stages(function, a, b).build().run([a, b])
        monkeypatch.setattr(turn, "turns", lambda dot, vector_bytes: True)
        made = stages(function, a, b)
        assert all(len(kernel.stages) == 2 for kernel in made.packed.kernels())
        (want,) = made.build().run([a, b])
        for level in (made.run_kernels([a, b]), made.run_loops([a, b]), made.run_planned([a, b])):
            np.testing.assert_array_equal(level[0], want)
    np.testing.assert_array_equal(want, plain)
