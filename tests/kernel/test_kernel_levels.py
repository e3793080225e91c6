"""Kernel interpreter, loop interpreter and machine code give the same bits."""

import random

import numpy as np
import pytest
from kernel_samples import Builder, dense, layer_norm, softmax
from mlc_strategies import Config, Palette, build

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.ops.base import REGISTRY
from mlc.stages import Stages

GOALS = [(op.name, dtype) for op in REGISTRY.values() if op.name != "parameter" for dtype in op.dtypes]
random.Random(0).shuffle(GOALS)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    unsigned = f"u{got.dtype.itemsize}"
    a, b = np.ascontiguousarray(got), np.ascontiguousarray(want)
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    np.testing.assert_array_equal(np.where(nan, 0, a.view(unsigned)), np.where(nan, 0, b.view(unsigned)))


def assert_levels_agree(graph, args, target="native", optimize=True):
    off = "" if optimize else "simplify,fold,cse,dce,motion"
    with mlc.options(check=1, cache=False, disable_passes=off), np.errstate(all="ignore"):
        stages = Stages(graph, get_target(target))
        machine = stages.build().run(args)
        for level in (stages.run_loops(args), stages.run_kernels(args), stages.run_planned(args)):
            for got, want in zip(machine, level, strict=True):
                assert_same_bits(got, want)


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_generated_programs(start):
    for seed in range(start, start + 20):
        program = build(random.Random(seed), Config(Palette.number(seed // 60), goal=GOALS[seed % len(GOALS)], special=seed % 3 == 0))
        assert_levels_agree(program.graph, program.args, optimize=seed % 2 == 0)


@pytest.mark.parametrize("target", ["generic", "golden-v3"])
def test_generated_programs_on_other_targets(target):
    for seed in range(500, 510):
        program = build(random.Random(seed), Config(Palette.number(seed // 60), goal=GOALS[seed % len(GOALS)], special=seed % 3 == 0))
        assert_levels_agree(program.graph, program.args, target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["native", "generic", "golden-v3"])
def test_many_generated_programs(target):
    for seed in range(1000, 2500):
        program = build(random.Random(seed), Config(Palette.number(seed // 60), goal=GOALS[seed % len(GOALS)], special=seed % 3 == 0))
        assert_levels_agree(program.graph, program.args, target)


@pytest.mark.parametrize("width", [1, 7, 15, 16, 17, 33, 129])
@pytest.mark.parametrize("make", [softmax, layer_norm, lambda rows, width: dense(rows, width, width + 3)], ids=["softmax", "layer_norm", "dense"])
def test_row_kernels_at_vector_boundaries(make, width):
    graph = make(5, width)
    rng = np.random.default_rng(width)
    assert_levels_agree(graph, [rng.normal(size=t.shape).astype(np.float32) for t in graph.input_types()])


@pytest.mark.parametrize(("shape", "axes"), [
    ((20000,), (0,)), ((60, 700), (0,)), ((60, 700), (1,)), ((60, 700), (0, 1)), ((2, 9000), (1,)), ((900, 3), (0,)), ((900, 3), (1,)),
    ((7, 11, 13), (0, 2)), ((300, 2, 3), (0,)), ((130, 2, 5), (0, 2)), ((70, 2, 3000), (0, 2)),
    ((3, 2, 65, 2, 200), (0, 2, 4)), ((40, 2, 50, 3), (0, 2))])
@pytest.mark.parametrize("op", ["reduce_sum", "argmax"])
def test_long_reductions_combine_in_the_written_order(op, shape, axes):
    for dtype in (dt.f32, dt.bf16):
        g = Builder("reduce")
        x = g.input("x", *shape, dtype=dtype)
        kept = TensorType([n for i, n in enumerate(shape) if i not in axes], dt.i32)
        g.set_outputs([g.add(op, (x,), {"axes": axes}, kept if op == "argmax" else None)])
        assert_levels_agree(g, [np.random.default_rng(1).normal(size=shape).astype(dtype.numpy)])


@pytest.mark.parametrize("depth", [1024, 1025, 2048, 2049, 3500])
@pytest.mark.parametrize("dtype", [dt.f32, dt.bf16, dt.i8], ids=str)
def test_deep_contractions_add_the_sums_of_their_chunks_in_order(depth, dtype):
    rows, cols = 9, 19
    g = Builder("deep")
    product = g.matmul(g.input("x", rows, depth, dtype=dtype), g.input("y", depth, cols, dtype=dtype))
    g.set_outputs([g.add("max", (g.add("add", (product, g.input("z", rows, cols, dtype=dtype))), g.splat(0, (rows, cols), dtype)))])
    rng = np.random.default_rng(depth)
    shapes = (rows, depth), (depth, cols), (rows, cols)
    draws = [rng.integers(-128, 128, s) if dtype.is_int else rng.normal(size=s) for s in shapes]
    assert_levels_agree(g, [d.astype(dtype.numpy) for d in draws])


def test_the_error_of_a_million_products_stays_small():
    g = Builder("products")
    g.set_outputs([g.matmul(g.input("x", 2, 10**6), g.input("y", 10**6, 3))])
    tenths = np.full((2, 10**6), 0.1, np.float32)
    (total,) = Stages(g, get_target("native")).build().run([tenths, np.full((10**6, 3), 0.3, np.float32)])
    exact = float(np.float32(0.1)) * float(np.float32(0.3)) * 10**6
    assert (np.abs(total.astype(np.float64) - exact) < 1e-4 * exact).all()


def test_the_error_of_a_sum_over_apart_axes_grows_with_the_logarithm():
    g = Builder("tenths")
    g.set_outputs([g.add("reduce_sum", (g.input("x", 1000, 2, 1000),), {"axes": (0, 2)})])
    (total,) = Stages(g, get_target("native")).build().run([np.full((1000, 2, 1000), 0.1, np.float32)])
    exact = float(np.float32(0.1)) * 10**6
    assert (np.abs(total.astype(np.float64) - exact) < 1e-6 * exact).all()


def test_the_error_of_a_million_tenths_grows_with_the_logarithm():
    g = Builder("tenths")
    g.set_outputs([g.fold("reduce_sum", g.input("x", 10**6), 0)])
    (total,) = Stages(g, get_target("native")).build().run([np.full(10**6, 0.1, np.float32)])
    exact = float(np.float32(0.1)) * 10**6
    assert abs(float(total) - exact) < 1e-6 * exact


@pytest.mark.parametrize("rows,width,dtype", [(1, 256, dt.f32), (4, 96, dt.f32), (33, 70, dt.f32), (130, 100, dt.f32), (4, 1100, dt.f32),
                                              pytest.param(16, 1100, dt.f32, marks=pytest.mark.nightly),
                                              (64, 48, dt.f64), (40, 64, dt.bf16), (24, 128, dt.i8)])
@pytest.mark.parametrize("target", ["native", "golden-v3"])
def test_a_contraction_writes_over_what_it_adds_in_the_output(rows, width, dtype, target):
    g = Builder("residual")
    x, w, v = (g.input("x", rows, width, dtype=dtype), *(g.input(name, width, width, dtype=dtype) for name in "wv"))
    first = g.add("add", (g.matmul(x, w), x))
    g.set_outputs([g.add("add", (g.matmul(g.matmul(first, w), v), first))])
    rng = np.random.default_rng(rows)
    args = [(rng.integers(-9, 9, s) if dtype.is_int else rng.normal(size=s)).astype(dtype.numpy) for s in ((rows, width), *[(width, width)] * 2)]
    plan = Stages(g, get_target(target)).plan.memory
    assert [(p.home, p.name) for p in plan.placements if p.in_place_of] == [("out.0", "out.0")]
    assert_levels_agree(g, args, target)


def test_dead_regions_of_the_arena_are_poisoned_under_check_and_only_there():
    g = Builder("two_products")
    x, w = g.input("x", 32, 32), g.input("w", 32, 32)
    y = x
    for _ in range(4):
        y = g.matmul(y, w)
    g.set_outputs([y])
    args = [np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32) for _ in range(2)]
    with mlc.options(cache=False):
        plain = Stages(g, get_target("native"))
        result = plain.build().run(args)
        assert "mlc_poison" not in plain.llvm
        with mlc.options(check=1):
            checked = Stages(g, get_target("native"))
            assert_same_bits(checked.build().run(args)[0], result[0])
    # Before the third product the first one is dead, which lay in the output or in the arena; both are, whole, before the first kernel.
    assert checked.llvm.count("; mlc_poison(") == len(checked.kernels.steps)
    assert f"; mlc_poison(3, #{checked.plan.memory.arena_bytes})" in checked.llvm and "; mlc_poison(2, #4096)" in checked.llvm


def test_an_early_end_of_a_lifetime_is_seen_in_the_answer():
    from dataclasses import replace as change

    from mlc.memory.plan import MemoryPlan
    g = Builder("long_lived")
    x, w = g.input("x", 32, 32), g.input("w", 32, 32)
    first = g.matmul(x, w)
    g.set_outputs([g.add("add", (g.matmul(g.matmul(first, w), w), first))])
    args = [np.ones((32, 32), np.float32)] * 2
    with mlc.options(check=1, cache=False):
        stages = Stages(g, get_target("native"))
        placements = [change(p, last=p.first + 1) if p.last - p.first > 1 else p for p in stages.plan.memory.placements]
        stages.plan.memory = MemoryPlan(tuple(placements), stages.plan.memory.arena_bytes, stages.plan.memory.lower_bound)
        (result,) = stages.build().run(args)
    assert np.isnan(result).all()
