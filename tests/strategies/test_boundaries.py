"""Lengths around the compiler's boundaries, and ops probed at their edges: what the stream is to meet again and again."""

import random
from collections import Counter

import numpy as np
import pytest
from mlc_strategies import Config, Palette, boundaries, build, probes, values
from mlc_strategies.draws import RandomDraws
from mlc_strategies.recipe import Builder

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.graph import verify
from mlc.kernel.schedule import CHUNK, MANY_POINTS
from mlc.kernel.tiling import DOT_CHUNK
from mlc.ops.base import CONTRACTION, REDUCTION, REGISTRY, Domain

PALETTE = Palette((1, 7, 8), boundaries.MOST)


def drawn(function, count=4000):
    draws = RandomDraws(random.Random(0))
    return [function(draws) for _ in range(count)]


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
def test_reduced_axes_leave_every_kind_of_rest_over_chunks(lanes):
    kinds = Counter()
    for n in drawn(boundaries.reduced):
        steps = -(-n // lanes)
        if steps > 2 * CHUNK:
            kinds["whole chunks" if steps % CHUNK == 0 else "a rest of steps", "whole" if n % lanes == 0 else "partial"] += 1
    assert len(kinds) == 4 and min(kinds.values()) >= 20, kinds


def test_contracted_axes_end_on_both_sides_of_the_accumulators_run():
    found = Counter(drawn(boundaries.contracted))
    assert all(found[DOT_CHUNK + k] for k in (-1, 0, 1)) and sum(n > DOT_CHUNK + 1 for n in found.elements()) > 400
    assert sum(n < 64 and n % 2 for n in found.elements()) > 400


@pytest.mark.parametrize("width", [4, 8, 16, 32, 64, 128])
def test_vector_axes_are_a_whole_number_of_vectors_one_more_and_one_less(width):
    found = Counter(n % width for n in drawn(boundaries.minor) if n >= width - 1)
    assert min(found[0], found[1], found[width - 1]) > 30


def test_rows_leave_every_rest_over_a_tile():
    found = Counter(n % 8 for n in drawn(boundaries.rows) if n > 8)
    assert set(found) == set(range(8))


def test_programs_with_lengths_are_valid_and_of_every_kind():
    seen, heavy = Counter(), 0
    for seed in range(120):
        program = build(random.Random(seed), Config(PALETTE, steps=(0, 1), lengths=True))
        verify(program.graph)
        seen.update({REGISTRY[n.op.name].fusion for n in program.graph.nodes})
        heavy += max(a.size for a in program.args) >= MANY_POINTS // 2 if program.args else 0
    assert seen[REDUCTION] > 25 and seen[CONTRACTION] > 25 and heavy > 2, (seen, heavy)


def test_lengths_keep_to_the_ops_and_dtypes_allowed():
    for seed in range(20):
        graph = build(random.Random(seed), Config(PALETTE, ops=("dot_general", "neg"), dtypes=(dt.f64,), steps=(0, 1), lengths=True)).graph
        assert {n.op.name for n in graph.nodes} <= {"dot_general", "neg", "parameter", "constant"}
        assert {n.type.dtype for n in graph.nodes} == {dt.f64}


# --------------------------------------------------------------------------- probes
def test_every_probe_can_be_placed_or_its_result_cannot_be_judged():
    barren = []
    for name, dtype in probes.pairs(Config()):
        made = [build(random.Random(k), Config(PALETTE, special=True, steps=(0, 0), probes=((name, dtype),))) for k in range(6)]
        if not any(node.op.name == name and i in p.graph.outputs for p in made for i, node in enumerate(p.graph.nodes)):
            barren.append((name, dtype.name))
    assert not barren


def test_a_probes_operands_are_arguments_of_its_own():
    graph = build(random.Random(1), Config(PALETTE, special=True, steps=(0, 0), probes=(("log", dt.f32),))).graph
    (node,) = (n for n in graph.nodes if n.op.name == "log")
    assert graph.nodes[node.inputs[0]].op.name == "parameter"


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_probing_values_hold_subnormals_edges_and_their_neighbours(dtype):
    edge = 3.0
    array = values.probing(np.random.default_rng(0), TensorType((4000,), dtype), Domain(-1, 1, edges=(edge,)))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = array.astype(np.float64)
    tiny = 2.0 ** dt.MIN_EXPONENT[dtype]
    assert ((wide != 0) & (np.abs(wide) < tiny)).sum() > 200
    assert {edge - edge * dtype.eps / 2, edge, edge + dtype.eps * 2} & set(wide) and np.isnan(wide).any() and np.isinf(wide).any()
    assert (np.signbit(wide) & (wide == 0)).any() and ((np.abs(wide) <= 1) & (np.abs(wide) > 1e-3)).sum() > 800


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.is_int], ids=str)
def test_probing_integers_hold_both_extremes_and_any_bits(dtype):
    array = values.probing(np.random.default_rng(0), TensorType((2000,), dtype), Domain(-10, 10))
    assert {dtype.min, dtype.max} <= set(array.tolist()) and len(np.unique(array)) > 150


def test_a_question_about_floats_is_not_summed(monkeypatch):
    monkeypatch.setattr(boundaries, "_mapped", lambda b, x: b.emit("is_finite", [x]))
    for seed in range(20):
        b = Builder(RandomDraws(random.Random(seed)), Config(Palette.number(seed), dtypes=(dt.f32,)), seed=seed)
        boundaries._reduction(b, "reduce_sum", dt.f32)
