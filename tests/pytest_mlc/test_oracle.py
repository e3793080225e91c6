"""Verdicts: who is wrong, by how much, and what may be counted as covered."""

from collections import Counter

import numpy as np
import pytest

from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.graph import evaluate, parse_graph
from mlc.graph.analysis import live_nodes
from mlc.graph.interpreter import apply_node
from mlc.stages import Stages
from pytest_mlc.bounds import spacing
from pytest_mlc.oracle import Referee, judge
from pytest_mlc.settings import Settings
from pytest_mlc.stream import Stream

f32 = np.float32
TANH = parse_graph("graph @main(%x: f32[4]) -> f32[4] {\n  %0 = tanh %x : f32[4]\n  return %0\n}")
X = np.array([0.5, -1.25, 2.0, 0.1], f32)
TRUE = np.tanh(X.astype(np.float64))


def test_answers_within_the_bound_are_ok():
    verdict = judge(TANH, [X], [TRUE.astype(f32)], [TRUE.astype(f32)])
    assert verdict.kind == "ok" and verdict.coverage == {("tanh", "f32")} and verdict.unjudged == 0


def test_mlc_outside_the_bound_is_wrong_whatever_jax_says():
    bad = TRUE.astype(f32)
    bad[2] += f32(1e-6)
    verdict = judge(TANH, [X], [bad], [bad])
    assert verdict.kind == "wrong" and verdict.failed and verdict.outputs == (0,)
    worst = verdict.worst
    assert (worst.output, worst.index) == (0, (2,)) and worst.mlc == bad[2] and worst.jax == bad[2]
    assert worst.float64 == pytest.approx(TRUE[2], abs=1e-15) and worst.bound < worst.error < 1.1e-6
    assert "at out[2]" in str(worst)


def test_jax_outside_its_own_bound_is_a_finding_and_no_failure():
    jax = TRUE.astype(f32)
    jax[1] += f32(1e-4)
    verdict = judge(TANH, [X], [TRUE.astype(f32)], [jax])
    assert verdict.kind == "finding" and not verdict.failed and verdict.worst.index == (1,)


def test_jax_outside_mlcs_bound_but_inside_its_own_is_ok():
    jax = TRUE.astype(f32) + 4 * np.spacing(TRUE.astype(f32))
    assert judge(TANH, [X], [TRUE.astype(f32)], [jax]).kind == "ok"
    assert judge(TANH, [X], [jax]).kind == "wrong"


@pytest.mark.parametrize("shape, axes, big", [
    ((128, 4), (0,), np.s_[0]), ((4, 2048), (1,), np.s_[:, :16]), ((128, 2, 128), (0, 2), np.s_[0, :, :16]), ((64, 2, 64, 3), (0, 2), np.s_[0, :, 0]),
    ((128, 2, 128), (0, 2), np.s_[0, :, :64])])
def test_a_sum_that_loses_at_every_addition_is_within_its_bound(shape, axes, big):
    """2^24 + 1 is 2^24: every small term that meets a big one is lost, the worst that the order of summation allows."""
    kept = ",".join(str(n) for a, n in enumerate(shape) if a not in axes)
    graph = parse_graph(f"graph @main(%x: f32[{','.join(map(str, shape))}]) -> f32[{kept}] {{\n"
                        f"  %0 = reduce_sum %x {{axes=[{','.join(map(str, axes))}]}} : f32[{kept}]\n  return %0\n}}")
    x = np.ones(shape, f32)
    x[big] = 2.0**24
    for target in ("native", "generic", "golden-v3"):
        assert judge(graph, [x], Stages(graph, get_target(target)).run_kernels([x])).kind == "ok"


@pytest.mark.parametrize("got", [np.zeros(4, np.float64), np.zeros((4, 1), f32), np.zeros(3, f32)])
def test_another_dtype_or_shape_is_wrong(got):
    verdict = judge(TANH, [X], [got])
    assert verdict.kind == "wrong" and "the graph says f32[4]" in verdict.reason


def test_a_missing_output_is_wrong():
    assert judge(TANH, [X], []).kind == "wrong"


def test_exact_results_are_compared_bit_by_bit_but_for_nan():
    graph = parse_graph("graph @main(%x: f32[4]) -> f32[4] {\n  %0 = neg %x : f32[4]\n  return %0\n}")
    x = np.array([0.0, np.nan, np.inf, 1e-45], f32)
    assert judge(graph, [x], [-x]).kind == "ok"
    assert judge(graph, [x], [np.array([-0.0, -np.nan, -np.inf, -1e-45], f32)]).kind == "ok"
    assert judge(graph, [x], [np.array([0.0, np.nan, -np.inf, -1e-45], f32)]).kind == "wrong"  # the sign of zero
    assert judge(graph, [x], [np.array([-0.0, np.nan, -np.inf, -0.0], f32)]).kind == "wrong"   # a flushed subnormal


def test_graphs_that_touch_subnormals_are_judged_without_jax():
    graph = parse_graph("graph @main(%x: f32[2]) -> f32[2] {\n  %0 = mul %x, %x : f32[2]\n  %1 = mul %0, 1.0 : f32[2]\n  return %1\n}")
    x = np.array([1e-20, 3.0], f32)
    flushed = np.array([0, 9], f32)
    assert judge(graph, [x], [x * x], [flushed]).kind == "ok"
    assert judge(graph, [x], [flushed], [flushed]).kind == "wrong"


def test_subnormals_inside_a_region_are_judged_without_jax():
    graph = parse_graph("graph @main(%x: bf16[2]) -> bf16[2] {\n  %0 = call %x {\n    graph @inner(%a: bf16[2]) -> bf16[2] {\n"
                        "      %0 = mul %a, %a : bf16[2]\n      %1 = sqrt %0 : bf16[2]\n      return %1\n    }\n  } : (bf16[2])\n"
                        "  %1 = tuple_get %0 {index=0} : bf16[2]\n  return %1\n}")
    x = np.array([1e-19, 4], dt.bf16.numpy)
    right, flushed = np.sqrt((x * x).astype(x.dtype)).astype(x.dtype), np.array([0, 4], x.dtype)
    assert judge(graph, [x], [right], [flushed]).kind == "ok"
    assert judge(graph, [x], [flushed], [flushed]).kind == "wrong"
    assert judge(graph, [x + 1], [x + 1], [flushed]).kind == "finding"  # without subnormals JAX is judged


def test_a_finding_of_the_sign_of_zero_is_not_made_of_jax():
    graph = parse_graph("graph @main(%x: f32[1], %y: f32[1]) -> f32[1] {\n  %0 = max %x, %y : f32[1]\n  return %0\n}")
    args = [np.array([-0.0], f32), np.array([0.0], f32)]
    assert judge(graph, args, [np.array([0.0], f32)], [np.array([-0.0], f32)]).kind == "ok"


def test_a_comparison_of_which_a_fifth_is_unknown_is_vacuous_and_covers_nothing():
    graph = parse_graph("graph @main(%x: f32[4]) -> f32[4] {\n  %0 = exp %x : f32[4]\n  %1 = log %0 : f32[4]\n"
                        "  %2 = sub %1, %x : f32[4]\n  return %2\n}")
    verdict = judge(graph, [X], [np.zeros(4, f32)])
    assert verdict.kind == "vacuous" and verdict.unjudged == 1 and not verdict.coverage
    # Loose as the bound is, it still holds.
    assert judge(graph, [X], [np.full(4, 0.5, f32)]).kind == "wrong"


def test_coverage_counts_only_what_reaches_a_judged_output():
    graph = parse_graph("graph @main(%x: f32[4]) -> (f32[4], f32[4]) {\n  %0 = exp %x : f32[4]\n  %1 = log %0 : f32[4]\n"
                        "  %2 = sub %1, %x : f32[4]\n  %3 = neg %x : f32[4]\n  return %2, %3\n}")
    verdict = judge(graph, [X], [np.zeros(4, f32), -X])
    assert verdict.coverage == {("neg", "f32")}


def test_regions_are_judged_through():
    graph = parse_graph("graph @main(%x: f32[4]) -> f32[4] {\n  %0 = call %x {\n    graph @inner(%a: f32[4]) -> f32[4] {\n"
                        "      %0 = tanh %a : f32[4]\n      return %0\n    }\n  } : (f32[4])\n  %1 = tuple_get %0 {index=0} : f32[4]\n  return %1\n}")
    assert judge(graph, [X], [TRUE.astype(f32)]).coverage >= {("tanh", "f32")}
    assert judge(graph, [X], [(TRUE * 1.001).astype(f32)]).kind == "wrong"


def _injected(graph, args, at, bad):
    """The graph's outputs with node `at` answering `bad`."""
    values = [None] * len(graph)
    for p, array in zip(graph.params, args):
        values[p] = array
    for i, node in enumerate(graph.nodes):
        operands = [values[k] for k in node.inputs]
        if values[i] is None:
            if node.regions:
                values[i] = tuple(evaluate(node.regions[0], operands))
            elif node.op.name == "tuple_get":
                values[i] = operands[0][node.attrs["index"]]
            else:
                values[i] = bad if i == at else apply_node(node, operands)
    return [values[o] for o in graph.outputs]


def test_an_error_of_four_bounds_at_a_random_op_is_caught_nine_times_in_ten():
    stream, rng, found = Stream(Settings(seed=1)), np.random.default_rng(0), Counter()
    for i in range(700):
        fresh = stream.case(i)
        graph, args, values = fresh.program.graph, fresh.program.args, fresh.program.values
        with np.errstate(all="ignore"):
            clean = judge(graph, args, evaluate(graph, args), referee=Referee(graph, args, values))
        live = live_nodes(graph)
        candidates = [k for k, n in enumerate(graph.nodes) if live[k] and n.inputs and isinstance(n.type, TensorType) and n.type.size
                      and n.op.name != "tuple_get"]
        if fresh.special or clean.kind != "ok" or not candidates:
            continue
        at = int(rng.choice(candidates))
        value, dtype = values[at], graph.nodes[at].type.dtype
        with np.errstate(all="ignore"):
            if dtype.is_float:
                finite = np.where(np.isfinite(value.mid) & (value.mid != 0), np.abs(value.mid), 1)
                bound = np.maximum(np.where(np.isfinite(value.error), value.error, 0), spacing(finite, dtype) / 2)
                bad = (value.mid + 4 * bound * rng.choice([-1, 1], size=value.mid.shape)).astype(dtype.numpy)
            else:
                bad = ~value.mid if dtype.kind == "b" else value.mid + dtype.numpy.type(1)
            caught = judge(graph, args, _injected(graph, args, at, np.asarray(bad)), referee=Referee(graph, args, values)).kind == "wrong"
        found[caught] += 1
    assert found[True] + found[False] > 400
    assert found[True] / (found[True] + found[False]) >= 0.9, found
