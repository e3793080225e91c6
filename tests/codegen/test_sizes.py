"""Functions whose sizes are arguments: the bits of those with constants, and one function for all sizes."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from machine import runnable_targets
from test_kernels import buffers, check
from test_random_kernels import Maker
from test_tile import K, R, blocked, matmul

import mlc
from mlc.codegen.module import emit_module
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core.affine import Affine, variable
from mlc.loop.ir import For, LoopKernel, Store, load
from mlc.loop.text import parse_kernel, print_kernel
from mlc.stages import Stages

sys.path.append(str(Path(__file__).parents[1] / "loop"))
from random_kernels import random_kernel

TARGETS = runnable_targets()


def sized(kernel):
    return replace(kernel, library=True)


def functions(kernel, target="native"):
    return emit_module([(kernel, [(i, 0) for i in range(len(kernel.buffers))])], get_target(target)).functions


@pytest.mark.parametrize("target", TARGETS)
def test_random_kernels_compute_the_same(target):
    check([sized(Maker(seed).kernel) for seed in range(3000, 3015)], target)
    check([sized(random_kernel(seed, dt.ALL)) for seed in range(3000, 3015)], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(2, 3, 2), (7, 16, 3), (64, 17, 10), (300, 129, 33)])
def test_small_kernels_with_sizes_as_arguments_have_the_same_bits(target, rows, sizes, monkeypatch):
    depth, inner, columns = sizes
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype("f4") for shape in ((rows, depth), (depth, inner), (inner, columns), (columns,))]
    monkeypatch.setattr("mlc.kernel.library.SMALL_STREAM", 0)
    made = Stages(mlc.jit(lambda x, a, b, c: mlc.nn.softmax(mlc.nn.relu(x @ a) @ b + c)).lower(*args)._captured.graph, get_target(target))
    assert all(loop.library for loop in made.loops.values())
    (found,), (wanted,) = made.build().run(args), made.run_loops(args)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_many_random_kernels_compute_the_same(target):
    for start in range(4000, 6000, 25):
        check([sized(Maker(seed).kernel) for seed in range(start, start + 25)], target, start)


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_compute_the_same(target):
    # Few accumulators are unrolled by two, over even and odd depths and over those that are all unrolled.
    shapes = [(1, 48, 9, 16), (3, 17, 3, 16), (8, 48, 5, 16), (2, 7, 6, 8), (7, 47, 17, 16), (16, 16, 8, 16), (13, 9, 21, 4)]
    check([sized(matmul(*shape)) for shape in shapes], target)
    check([sized(matmul(4, 20, 6, 16, a=a)) for a in (K * 4 + R, R, K, Affine(5))], target)
    check([sized(blocked(*shape)) for shape in ((19, 101, 11), (8, 96, 4), (24, 48, 7))], target)


def test_kernels_that_differ_in_sizes_are_one_function():
    small, large = (functions(sized(blocked(*shape))) for shape in ((16, 96, 20), (80, 480, 300)))
    assert [f.name for f in small] == [f.name for f in large] and all(f.library for f in small)
    assert [f.text for f in small] == [f.text for f in large]
    assert functions(blocked(16, 96, 20))[0].name != functions(blocked(80, 480, 300))[0].name


def test_what_shapes_the_code_makes_another_function():
    names = {functions(sized(kernel))[0].name for kernel in (
        blocked(16, 96, 20), blocked(16, 96 + 5, 20), blocked(16, 96, 3), matmul(4, 32, 20, 16), matmul(4, 32, 20, 16, a=K * 4 + R))}
    assert len(names) == 5


def test_sizes_that_are_equal_by_chance_stay_two():
    def copy(rows, columns, apart):
        index = variable("i") * apart + variable("j")
        body = For("i", rows, (For("j", columns, (Store("o", index, load("x", dt.f32, index)),)),))
        return LoopKernel("copy", buffers(("x", dt.f32, rows * apart, "in"), ("o", dt.f32, rows * apart, "out")), (body,), library=True)
    assert functions(copy(7, 7, 7))[0].name == functions(copy(3, 5, 9))[0].name


def test_text_says_so_and_parses_back():
    kernel = sized(blocked(8, 96, 4))
    assert ") library {" in print_kernel(kernel) and parse_kernel(print_kernel(kernel)) == kernel
    assert parse_kernel(print_kernel(replace(kernel, library=False))) == replace(kernel, library=False)
