"""Building and rewriting scalar expressions."""

import gc

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval


@pytest.mark.parametrize("value", [0.0, -0.0, 1.1, -3.4e38, 3.4028234663852886e38, 3.4028235677973362e38, 3.4028235677973370e38, -1e300, 1e-45, 7e-46,
                                   -7.1e-46, 1 + 2**-24, 1 + 3 * 2**-24, float("inf"), float("-inf"), float("nan")])
def test_constants_round_to_f32_as_numpy_does(value):
    with np.errstate(all="ignore"):
        assert ex.float_bits(value, dt.f32) == int(np.float64(value).astype(np.float32).view(np.uint32))


def test_equal_expressions_are_one_object():
    x, y = ex.var("x", dt.f32), ex.var("y", dt.f32)
    assert x * y + 1.0 is ex.var("x", dt.f32) * y + 1.0
    assert x * y is not y * x and ex.const(0.0, dt.f32) is not ex.const(-0.0, dt.f32)


def test_dropped_expressions_are_forgotten():
    before = len(ex._interned)
    kept = ex.var("kept for now", dt.f32) + 1.25
    assert len(ex._interned) > before
    del kept
    gc.collect()
    assert not any(reference() is None for reference in ex._interned.values()) and len(ex._interned) <= before


def test_substitution_keeps_shared_parts_shared_and_what_is_not_touched():
    x, y = ex.var("x", dt.f32), ex.var("y", dt.f32)
    untouched, shared = ex.sqrt(y), ex.sqrt(x)
    first, second = ex.substitute([shared * shared + untouched, shared], lambda e: y if e is x else None)
    assert first is untouched * untouched + untouched and second is untouched
    assert ex.substitute([untouched], lambda e: None)[0] is untouched


def test_substitution_asks_about_each_leaf_once_in_the_order_of_operands():
    a, b, c = (ex.var(n, dt.f32) for n in "abc")
    asked = []
    ex.substitute([ex.fma(a, b, c) + b * a], lambda e: asked.append(e.attr))
    assert asked == ["a", "b", "c"]


def test_substitution_walks_long_chains():
    chain = x = ex.var("x", dt.f32)
    for _ in range(20_000):
        chain = -chain
    (moved,) = ex.substitute([chain], lambda e: ex.var("y", dt.f32) if e is x else None)
    assert ex.topological([moved])[0] is ex.var("y", dt.f32)


@pytest.mark.parametrize("terms", range(1, 26))
@pytest.mark.parametrize("waits", [False, True])
def test_polynomials_have_their_value_in_whatever_order_they_are_summed(terms, waits):
    coefficients = [(-2.0) ** i for i in range(terms)]
    root = ex.polynomial(ex.arg(0, dt.f64), coefficients, waits)
    (found,) = scalar_eval.evaluate([root], lambda leaf: np.array([0.5, -1.0, 3.0]))
    np.testing.assert_array_equal(found, [np.polyval(coefficients, x) for x in (0.5, -1.0, 3.0)])


def test_steps_of_long_polynomials_do_not_all_wait_for_each_other():
    def depth(root):
        depths = {}
        for e in ex.topological([root]):
            depths[e] = 1 + max(map(depths.get, e.args)) if e.args else 0
        return depths[root]
    x = ex.arg(0, dt.f64)
    assert [depth(ex.polynomial(x, range(1, n + 1))) for n in (ex.LONG_POLYNOMIAL - 1, 16)] == [ex.LONG_POLYNOMIAL - 2, 6]
    assert depth(ex.polynomial(x, range(1, 9), waits=True)) == 3


def test_what_lies_below_is_in_order_and_once_for_one_root_few_and_many():
    x = ex.arg(0, dt.f32)
    roots = [x]
    for _ in range(9):
        roots.append(roots[-1] * roots[-1] + 1.0)
    for chosen in (roots[-1:], roots[-2:], roots, roots[::-1], [x, x]):
        order = list(ex.topological(chosen))
        assert order == list(ex.topological(chosen)) and len(set(order)) == len(order) and set(chosen) <= set(order)
        assert all(order.index(a) < order.index(e) for e in order for a in e.args)


def test_what_is_seldom_needed_is_left_out_where_it_is_not_asked_for():
    x, y = ex.arg(0, dt.f32), ex.arg(1, dt.f32)
    root = ex.mostly(x < y, x + y, x / y)
    assert [e.op for e in ex.topological([root]) if e.args] == ["lt", "add", "div", "mostly"]
    assert [e.op for e in ex.topological([root], rare=False) if e.args] == ["lt", "add", "mostly"]


def test_an_expression_that_was_walked_can_be_dropped():
    before = len(ex._interned)
    root = ex.arg(0, dt.f32) * 1234.5 + 6.0
    ex.topological([root])
    del root
    assert len(ex._interned) <= before
