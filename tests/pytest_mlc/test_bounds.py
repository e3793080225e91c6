"""Derived bounds: what is exact, what is tolerated, what is unjudged; and that no honest evaluation falls outside."""

import random

import numpy as np
import pytest
from mlc_strategies import Config, Palette, build

from mlc.core import dtype as dt
from mlc.core.dims import parse_type
from mlc.graph import Graph, evaluate, parse_graph
from pytest_mlc.bounds import Value, analyse, spacing
from pytest_mlc.models import JAX, MLC, NUMPY
from pytest_mlc.oracle import compare

f32 = np.float32


def graph(text):
    return parse_graph(text)


def outputs(text, *args, model=MLC):
    g = graph(text)
    values = analyse(g, args, model)
    return [values[o] for o in g.outputs]


def unary(body, type="f32[5]", result=None):
    return f"graph @main(%x: {type}) -> {result or type} {{\n  {body}\n  return %y\n}}"


def test_correctly_rounded_ops_on_exact_operands_are_exact():
    x = np.array([0.1, 0.2, -3, 1e-30, 7], f32)
    text = "graph @main(%x: f32[5]) -> f32[5] {\n  %0 = mul %x, %x : f32[5]\n  %1 = div %0, 3.0 : f32[5]\n  %2 = sqrt %1 : f32[5]\n  return %2\n}"
    (y,) = outputs(text, x)
    assert y.exact and np.array_equal(y.own, np.sqrt(x * x / f32(3)))


def test_a_transcendental_is_within_its_own_ulp():
    x = np.linspace(-3, 3, 5).astype(f32)
    (y,) = outputs(unary("%y = tanh %x : f32[5]"), x)
    assert np.all(y.error <= 2.01 * spacing(np.abs(y.mid), dt.f32)) and np.all(y.error >= 2 * spacing(np.abs(y.mid), dt.f32))


def test_errors_pass_through_the_function_that_follows():
    x = np.array([1, 2, 3, 4, 5], f32)
    (y,) = outputs("graph @main(%x: f32[5]) -> f32[5] {\n  %0 = tanh %x : f32[5]\n  %1 = mul %0, 1024.0 : f32[5]\n  return %1\n}", x)
    assert np.all(y.error >= 2 * 1024 * spacing(np.tanh(x.astype(float)), dt.f32))


def test_a_divisor_whose_interval_holds_zero_is_unjudged():
    x = np.array([1, 2, 3, 4, 0], f32)
    text = "graph @main(%x: f32[5]) -> f32[5] {\n  %0 = sin %x : f32[5]\n  %1 = sub %0, %0 : f32[5]\n  %2 = div 1.0, %1 : f32[5]\n  return %2\n}"
    (y,) = outputs(text, x)
    assert np.all(np.isinf(y.error[:4]))


def test_a_dividend_of_zero_is_unjudged_where_the_divisor_may_be_zero():
    text = "graph @main(%x: f32[2], %y: f32[2]) -> f32[2] {\n  %0 = sin %x : f32[2]\n" \
           "  %1 = sub %0, %0 : f32[2]\n  %2 = div %y, %1 : f32[2]\n  return %2\n}"
    (y,) = outputs(text, np.array([1, 2], f32), np.array([0, 1], f32))
    assert np.isinf(y.error).all()


def test_the_terms_of_a_contraction_are_what_its_attributes_say():
    from pytest_mlc.bounds import _terms
    g = graph("graph @main(%x: f32[3,4,5], %y: f32[5,7,3]) -> f32[4,7] {\n  %0 = dot_general %x, %y {contract=([0,2],[2,0])} : f32[4,7]\n"
              "  return %0\n}")
    node, operands = g.nodes[-1], [Value(dt.f32, own=np.ones(s, f32)) for s in ((3, 4, 5), (5, 7, 3))]
    assert _terms(node, operands) == 15 == evaluate(g, [v.own for v in operands])[0].max()


def test_a_dividend_near_zero_is_judged_by_the_ends_of_both_intervals():
    """A weight that underflows, divided by the sum of all weights: what a mask leaves of a softmax."""
    x, total = np.array([-np.inf, -3e38, -1.0], f32), np.full(3, 2.0, f32)
    (y,) = outputs("graph @main(%x: f32[3], %t: f32[3]) -> f32[3] {\n  %0 = exp %x : f32[3]\n  %1 = exp %t : f32[3]\n"
                   "  %2 = div %0, %1 : f32[3]\n  return %2\n}", x, total)
    assert (y.error[:2] < 1e-43).all() and 1e-9 < y.error[2] < 1e-7


def test_a_comparison_of_touching_intervals_may_go_either_way():
    x = np.array([1, 2, 3, 4, 5], f32)
    text = ("graph @main(%x: f32[5]) -> (bool[5], bool[5]) {\n  %0 = exp %x : f32[5]\n  %1 = log %0 : f32[5]\n  %2 = lt %1, %x : bool[5]\n"
            "  %3 = lt %1, 100.0 : bool[5]\n  return %2, %3\n}")
    close, far = outputs(text, x)
    assert np.all(np.isinf(close.error)) and far.exact and far.own.all()


def test_select_takes_the_union_where_the_condition_is_unsure():
    x = np.array([1, 2, 3, 4, 5], f32)
    text = ("graph @main(%x: f32[5]) -> f32[5] {\n  %0 = exp %x : f32[5]\n  %1 = log %0 : f32[5]\n  %2 = lt %1, %x : bool[5]\n"
            "  %3 = select %2, %x, 7.5 : f32[5]\n  return %3\n}")
    (y,) = outputs(text, x)
    assert np.allclose(np.abs(y.mid - x) * np.abs(y.mid - 7.5), 0) and np.allclose(y.error, np.abs(7.5 - x))


def test_select_ignores_what_it_does_not_pick():
    x = np.array([1, 2, 3, 4, 5], f32)
    text = ("graph @main(%x: f32[5]) -> f32[5] {\n  %0 = sin %x : f32[5]\n  %1 = sub %0, %0 : f32[5]\n  %2 = div 1.0, %1 : f32[5]\n"
            "  %3 = gt %x, 3.0 : bool[5]\n  %4 = select %3, %2, %x : f32[5]\n  return %4\n}")
    (y,) = outputs(text, x)
    assert np.all(y.error[:3] == 0) and np.all(np.isinf(y.error[3:]))


def test_an_integer_from_an_unsure_step_is_tainted_and_taints():
    x = np.array([1, 2, 3, 4, 5], f32)
    text = ("graph @main(%x: f32[5]) -> (i32[5], i32[]) {\n  %0 = exp %x : f32[5]\n  %1 = log %0 : f32[5]\n  %2 = floor %1 : f32[5]\n"
            "  %3 = convert_element_type %2 : i32[5]\n  %4 = reduce_sum %3 {axes=[0]} : i32[]\n  return %3, %4\n}")
    each, total = outputs(text, x)
    assert np.all(np.isinf(each.error)) and np.isinf(total.error)


def test_a_step_far_from_its_edge_is_certain():
    x = np.array([1.5, 2.5, 3.5, 4.5, 5.5], f32)
    text = ("graph @main(%x: f32[5]) -> i32[5] {\n"
            "  %0 = exp %x : f32[5]\n  %1 = log %0 : f32[5]\n  %2 = convert_element_type %1 : i32[5]\n  return %2\n}")
    (y,) = outputs(text, x)
    assert y.exact and np.array_equal(y.own, [1, 2, 3, 4, 5])


def test_argmax_is_certain_only_beyond_the_errors():
    body = "graph @main(%x: f32[2,3]) -> i32[2] {\n  %0 = tanh %x : f32[2,3]\n  %1 = argmax %0 {axes=[1]} : i32[2]\n  return %1\n}"
    (y,) = outputs(body, np.array([[0, 1, 0.5], [1, np.nextafter(f32(1), f32(2)), 0]], f32))
    assert list(y.error) == [0, np.inf]


def test_overflow_near_the_threshold_is_unjudged_and_beyond_it_infinite():
    x = np.array([11.0898, 11.2, 5, 11, -20], f32)  # exp(11.0898...) is 65504's neighbourhood
    text = "graph @main(%x: f32[5]) -> f16[5] {\n  %0 = exp %x : f32[5]\n  %1 = convert_element_type %0 : f16[5]\n  return %1\n}"
    edge = np.log(65520.0)
    (y,) = outputs(text, np.array([edge, *x[1:]], f32))
    assert np.isinf(y.error[0]) and np.isinf(y.mid[1]) and y.error[1] == 0 and np.isfinite(y.mid[2:]).all()


def test_a_sum_is_bounded_by_the_sum_of_magnitudes():
    x = np.array([1e6, -1e6, 1, 1e6, -1e6], f32)
    (y,) = outputs("graph @main(%x: f32[5]) -> f32[] {\n  %0 = reduce_sum %x {axes=[0]} : f32[]\n  return %0\n}", x)
    assert y.mid == 1 and 4e6 * 2**-24 <= y.error <= 6 * 4e6 * 2**-24


def test_halves_are_summed_in_f32_by_mlc_and_in_halves_by_jax():
    x = np.full(5, 1.5, np.float16)
    text = "graph @main(%x: f16[5]) -> f16[] {\n  %0 = reduce_sum %x {axes=[0]} : f16[]\n  return %0\n}"
    (mlc,), (jax,) = outputs(text, x), outputs(text, x, model=JAX)
    assert mlc.error <= 0.51 * 2**-8 and jax.error >= 5 * 7.5 * 2**-11


@pytest.mark.parametrize("values, expected", [([np.inf, 1], np.inf), ([np.inf, -np.inf], np.nan), ([np.nan, np.inf], np.nan)])
def test_infinities_in_a_sum_are_certain(values, expected):
    (y,) = outputs("graph @main(%x: f32[2]) -> f32[] {\n  %0 = reduce_sum %x {axes=[0]} : f32[]\n  return %0\n}", np.array(values, f32))
    assert np.array_equal(y.mid, expected, equal_nan=True) and y.error == 0


def test_a_sum_that_may_overflow_on_the_way_is_unjudged():
    text = "graph @main(%x: f32[4]) -> f32[] {\n  %0 = reduce_sum %x {axes=[0]} : f32[]\n  return %0\n}"
    (y,) = outputs(text, np.array([3e38, 3e38, -3e38, -3e38], f32))
    assert np.isinf(y.error)


def test_a_remainder_whose_quotient_is_unsure_is_unjudged():
    x = np.array([-7.0], np.float16)
    text = "graph @main(%x: f16[1]) -> f16[1] {\n  %0 = logistic %x : f16[1]\n  %1 = rem %x, %0 : f16[1]\n  return %1\n}"
    (y,) = outputs(text, x)
    assert np.isinf(y.error).all()


def test_integers_and_movement_are_exact():
    text = ("graph @main(%x: i8[2,3]) -> (i8[3,2], i8[2]) {\n  %0 = mul %x, %x : i8[2,3]\n  %1 = transpose %0 {perm=[1,0]} : i8[3,2]\n"
            "  %2 = reduce_sum %0 {axes=[1]} : i8[2]\n  return %1, %2\n}")
    x = np.array([[100, 50, -3], [7, 8, 9]], np.int8)
    moved, total = outputs(text, x)
    with np.errstate(all="ignore"):
        assert moved.exact and np.array_equal(moved.own, (x * x).T) and total.exact
        assert np.array_equal(total.own, (x * x).sum(1, dtype=np.int8))


def test_errors_move_with_their_elements():
    x = np.array([[1, 2, 3], [4, 5, 6]], f32)
    text = ("graph @main(%x: f32[2,3]) -> (f32[2,3], f32[3,2]) {\n  %0 = exp %x : f32[2,3]\n"
            "  %1 = transpose %0 {perm=[1,0]} : f32[3,2]\n  return %0, %1\n}")
    before, after = outputs(text, x)
    assert np.array_equal(before.error.T, after.error) and len(set(after.error.reshape(-1))) == 6


def test_an_unknown_integer_makes_what_is_computed_from_it_unknown():
    """The ends of i64 shifted left by themselves are 0, as 0 is; 1 is not."""
    x = np.array([1.0], f32)
    text = ("graph @main(%x: f32[1]) -> (i64[1], i64[1]) {\n  %0 = exp %x : f32[1]\n  %1 = log %0 : f32[1]\n  %2 = convert_element_type %1 : i64[1]\n"
            "  %3 = shift_left %2, %2 : i64[1]\n  %4 = min %2, -5 : i64[1]\n  return %3, %4\n}")
    shifted, least = outputs(text, x)
    assert np.isinf(shifted.error).all()
    assert np.isinf(least.error).all()  # i64's least is below -5


def test_a_power_that_is_nan_all_around_a_whole_exponent_is_unjudged():
    text = "graph @main(%x: f32[1]) -> f32[1] {\n  %0 = tanh %x : f32[1]\n  %1 = mul %0, 3.0 : f32[1]\n  %2 = pow -2.0, %1 : f32[1]\n  return %2\n}"
    (y,) = outputs(text, np.array([1.0], f32))
    assert np.isnan(y.mid).all() and np.isinf(y.error).all()


def test_a_reciprocal_power_may_have_rounded_a_subnormal():
    x = np.geomspace(0.0041, 0.0158, 500).astype(np.float16)  # whose squares are subnormal
    (y,) = outputs("graph @main(%x: f16[500]) -> f16[500] {\n  %0 = integer_pow %x {y=-2} : f16[500]\n  return %0\n}", x)
    computed = 1 / (x * x)
    off = np.abs(computed.astype(float) - x.astype(float) ** -2)
    assert np.all(off <= y.error) and np.any(off > 2 * spacing(y.mid, dt.f16)) and np.all(y.error < 0.01 * y.mid)


def test_spacing_is_that_of_the_dtype():
    for dtype in dt.FLOATS[:3]:
        for value in (1.0, 1.5, 0.01, 0.0, 2.0 ** dt.MIN_EXPONENT[dtype], 2.0 ** (dt.MIN_EXPONENT[dtype] - 3)):
            step = float(spacing(np.array(value), dtype))
            up = np.array(value, dtype.numpy)
            next_bits = (up.view(np.uint32 if dtype.bits == 32 else np.uint16) + 1).view(dtype.numpy)
            assert step == float(next_bits) - float(up), (dtype, value)


@pytest.mark.parametrize("special", [False, True])
def test_the_interpreter_stays_within_its_own_bound(special):
    """The own-dtype interpreter is a faithful backend with NumPy's error model: it must never be found wrong."""
    for seed in range(250):
        program = build(random.Random(seed), Config(Palette.number(seed), special=special))
        with np.errstate(all="ignore"):
            values = analyse(program.graph, program.args, NUMPY)
            for output, got in zip(program.graph.outputs, evaluate(program.graph, program.args)):
                type = program.graph.nodes[output].type
                assert not compare(values[output], type.dtype, type.shape, got, NUMPY).wrong.any(), (seed, str(program.graph))


def test_deep_chains_need_no_recursion():
    g = Graph()
    x = g.parameter("x", parse_type("f32[3]"))
    for _ in range(3000):
        x = g.add("sin", [x])
    value = analyse(g.set_outputs([x]), [np.ones(3, f32)], MLC)[x]
    assert isinstance(value, Value) and np.isfinite(value.error).all()
