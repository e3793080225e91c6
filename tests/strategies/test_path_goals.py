"""Programs made for a way of computing: most of them reach it."""

import random
from dataclasses import replace

import pytest
from mlc_strategies import Config, Palette, boundaries, build
from mlc_strategies.path_goals import PATHS

import mlc
from mlc.codegen.target import get_target
from mlc.compile import compile_graph
from mlc.core import dtype as dt
from pytest_mlc.evaluator import BoundsEvaluator
from pytest_mlc.executor import paths_of, ways_of_pairs
from pytest_mlc.stream import targets


def _program(path, seed, **config):
    palette = replace(Palette.number(seed), max_elements=boundaries.MOST)
    return build(random.Random(seed), Config(palette, steps=(0, 0), path=path, **config), BoundsEvaluator())


@pytest.mark.parametrize("path, least", [("sweep", 10), ("matvec", 10), ("split", 7), ("attend", 2), ("beside", 8)])
def test_most_programs_reach_the_way_that_they_are_made_for(path, least):
    with mlc.options(fork_us=0, cache=False):
        found = [path in paths_of(compile_graph(_program(path, seed).graph)) for seed in range(12)]
    assert sum(found) >= least


@pytest.mark.skipif("golden-v3" not in targets(), reason="this CPU has no AVX2")
def test_long_rows_are_jammed_by_narrow_registers():
    with mlc.options(target="golden-v3", cache=False):
        assert sum("jam" in paths_of(compile_graph(_program("jam", seed).graph)) for seed in range(12)) >= 8


@pytest.mark.skipif(not get_target("native").bf16_dot, reason="this CPU has no such instruction")
def test_products_in_pairs_are_met_with_normal_and_with_subnormal_sums():
    found = set()
    with mlc.options(bf16_pairs="on", cache=False):
        for seed in range(12):
            program = _program("pairs", seed)
            made = compile_graph(program.graph)
            found.update([*paths_of(made), *ways_of_pairs(made, program.args)])
    assert {"pairs", "pairs flushed", "pairs kept"} <= found


@pytest.mark.parametrize("dtypes", [dt.ALL, (dt.i8, dt.u8, dt.i32), (dt.u8,), (dt.bf16,), (dt.i8, dt.u8)], ids=str)
def test_programs_for_matrix_registers_are_well_typed_whatever_is_drawn(dtypes):
    nodes = [node for seed in range(60) for node in _program("matrix", seed, dtypes=dtypes).graph.nodes if node.op.name == "dot_general"]
    assert {node.type.dtype for node in nodes} == {dt.i8, dt.u8, dt.i32, dt.bf16, dt.f32} & set(dtypes)


@pytest.mark.skipif(not get_target("native").matrix_parts, reason="this CPU has no such registers")
def test_matrix_registers_are_met_with_bytes_and_with_normal_and_subnormal_sums():
    found = set()
    with mlc.options(cache=False):
        for seed in range(16):
            program = _program("matrix", seed)
            made = compile_graph(program.graph)
            found.update([*paths_of(made), *ways_of_pairs(made, program.args)])
    assert {"matrix", "matrix flushed", "matrix kept"} <= found


def test_small_outputs_are_stored_past_the_caches_on_request():
    graph = _program("sweep", 1).graph
    with mlc.options(stream_kb=0, cache=False):
        assert "streamed" in paths_of(compile_graph(graph))
    with mlc.options(cache=False):
        assert "streamed" not in paths_of(compile_graph(graph))


@pytest.mark.parametrize("path", PATHS)
def test_a_way_whose_ops_are_not_allowed_leaves_a_program_without(path):
    graph = _program(path, 0, ops=("neg",)).graph
    assert not any(node.op.name in ("dot_general", "reduce_sum") for node in graph.nodes)
