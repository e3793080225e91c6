"""Sampled bounds: right answers of deep models stay inside, small errors do not, and what may go either way stays unjudged."""

import numpy as np
import pytest

import mlc
import mlc.numpy as mnp
from mlc.graph import evaluate, parse_graph
from pytest_mlc.oracle import Referee, judge
from pytest_mlc.sampled import SampledReferee


def deep(layers, dtype="f32"):
    """Layer normalisation, a product with a matrix and tanh, many times over: each layer multiplies the worst-case error."""
    def model(x, w):
        for _ in range(layers):
            centred = x - x.mean(axis=1, keepdims=True)
            x = mnp.tanh((centred / mnp.sqrt((centred * centred).mean(axis=1, keepdims=True))) @ w)
        return x
    return mlc.jit(model).lower(mlc.spec(f"{dtype}[8,32]"), mlc.spec(f"{dtype}[32,32]")).graph


def arguments(graph, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(t.shape) / (1 if k == 0 else 3)).astype(t.dtype.numpy) for k, t in enumerate(graph.input_types())]


@pytest.mark.parametrize("dtype, layers", [("f32", 6), ("f64", 14), ("bf16", 2)])
def test_a_deep_model_is_judged_where_the_worst_case_cannot(dtype, layers):
    graph = deep(layers, dtype)
    args = arguments(graph)
    right = evaluate(graph, args)
    assert judge(graph, args, right).kind == "vacuous"
    verdict = judge(graph, args, right, referee=SampledReferee.of(graph, args))
    assert verdict.kind == "ok" and verdict.unjudged < 0.2


@pytest.mark.parametrize("seed", range(6))
def test_rounding_in_own_dtype_stays_well_inside(seed):
    graph = deep(4)
    args = arguments(graph, seed)
    referee = SampledReferee.of(graph, args)
    (value,), (own,) = referee.outputs(), evaluate(graph, args)
    assert (np.abs(own - value.mid) / value.error).max() < 0.25


@pytest.mark.parametrize("size", [1e-3, -1e-3])
def test_a_small_error_in_one_element_is_found(size):
    graph = deep(6)
    args = arguments(graph)
    wrong = evaluate(graph, args)
    wrong[0][3, 7] += size
    verdict = judge(graph, args, wrong, referee=SampledReferee.of(graph, args))
    assert verdict.failed and verdict.worst.index == (3, 7)


def test_a_bound_that_judges_is_left_alone():
    graph = parse_graph("graph @f(%x: f32[9]) -> f32[9] {\n  %0 = tanh %x : f32[9]\n  return %0\n}\n")
    args = arguments(graph)
    derived, sampled = Referee.of(graph, args).outputs()[0], SampledReferee.of(graph, args).outputs()[0]
    np.testing.assert_array_equal(derived.error, sampled.error)


def test_what_an_error_could_turn_stays_unjudged():
    graph = parse_graph("graph @f(%x: f32[64]) -> bool[64] {\n  %0 = exp %x : f32[64]\n  %1 = gt %0, 2.0 : bool[64]\n  return %1\n}\n")
    args = [np.full(64, np.log(2), np.float32)]
    (value,) = SampledReferee.of(graph, args).outputs()
    assert np.isinf(value.error).all()


def test_the_same_bounds_every_time():
    graph = deep(3)
    args = arguments(graph)
    first, again = (SampledReferee.of(graph, args).outputs()[0].error for _ in range(2))
    np.testing.assert_array_equal(first, again)
