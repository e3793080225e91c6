"""Building and rewriting scalar expressions."""

import gc

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex


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
