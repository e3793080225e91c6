"""The graph interpreter: own dtype is the meaning, widened is the referee."""

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.errors import UnsupportedError
from mlc.graph import evaluate, parse_graph
from mlc.graph.interpreter import evaluate_all, overflow_threshold, wide_dtype


def run(text, *args, wide=False):
    return evaluate(parse_graph(text), args, wide)


def one(op, kind, *args, wide=False):
    names = "xyz"[:len(args)]
    shape = ",".join(map(str, np.shape(args[0])))
    params = ", ".join(f"%{n}: {kind}[{shape}]" for n in names)
    text = f"graph @g({params}) -> {kind}[{shape}] {{\n  %0 = {op} {', '.join(f'%{n}' for n in names)} : {kind}[{shape}]\n  return %0\n}}"
    return run(text, *args, wide=wide)[0]


def test_calls_pass_their_operands_in_order():
    text = """graph @g(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
  %0 = call %y, %x {
    graph @f(%a: f32[2], %b: f32[2]) -> (f32[2], f32[2]) {
      %0 = sub %a, %b : f32[2]
      return %0, %a
    }
  } : (f32[2], f32[2])
  %1 = tuple_get %0 {index=0} : f32[2]
  %2 = tuple_get %0 {index=1} : f32[2]
  return %1, %2
}"""
    first, second = run(text, np.array([1, 2], np.float32), np.array([10, 30], np.float32))
    np.testing.assert_array_equal(first, [9, 28])
    np.testing.assert_array_equal(second, [10, 30])


def test_every_value_is_in_c_order_whatever_comes_in():
    text = """graph @g(%x: f32[3,4]) -> f32[4,3] {
  %0 = transpose %x {perm=[1,0]} : f32[4,3]
  %1 = add %0, %0 : f32[4,3]
  %2 = constant {value=2.0} : f32[4,3]
  %3 = mul %1, %2 : f32[4,3]
  return %3
}"""
    values = evaluate_all(parse_graph(text), [np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))])
    assert all(v.flags.c_contiguous for v in values)


def test_a_contraction_has_the_same_bits_in_any_axis_order():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 257)).astype(np.float32), rng.standard_normal((257, 48)).astype(np.float32)
    plain = run("graph @g(%x: f32[64,257], %y: f32[257,48]) -> f32[64,48] {\n"
                "  %0 = dot_general %x, %y {contract=([1],[0])} : f32[64,48]\n  return %0\n}", x, y)[0]
    turned = run("graph @g(%x: f32[257,64], %y: f32[48,257]) -> f32[64,48] {\n"
                 "  %0 = dot_general %x, %y {contract=([0],[1])} : f32[64,48]\n  return %0\n}", x.T, y.T)[0]
    np.testing.assert_array_equal(plain, turned)


# --------------------------------------------------------------------------- widened
@pytest.mark.parametrize("dtype, wide", [(dt.f16, "f8"), (dt.bf16, "f8"), (dt.f32, "f8"), (dt.f64, "g"), (dt.i32, "i4"), (dt.bool_, "?")], ids=str)
def test_wide_dtypes(dtype, wide):
    assert wide_dtype(dtype) == np.dtype(wide)


def test_widened_keeps_what_the_narrow_dtype_rounds_away():
    x = np.array([1.0], np.float32)
    tiny = np.array([1e-10], np.float32)
    assert one("add", "f32", x, tiny)[0] == 1.0
    assert one("add", "f32", x, tiny, wide=True)[0] == 1.0 + float(np.float32(1e-10))


@pytest.mark.parametrize("kind, largest", [("f16", 65504.0), ("f32", float(np.finfo(np.float32).max)), ("bf16", 2.0 ** 127 * (2 - 2.0 ** -7))])
def test_widened_overflows_where_the_narrow_dtype_rounds_to_infinity(kind, largest):
    dtype = dt.parse_dtype(kind)
    step = 2.0 ** (dt.MAX_EXPONENT[dtype] - dt.MANTISSA[dtype] + 1)
    assert overflow_threshold(dtype) == largest + step / 2
    big = np.array([largest, -largest, largest, largest / 2], dtype.numpy)
    more = np.array([step, -step, 0, largest / 2], np.float64).astype(dtype.numpy)
    np.testing.assert_array_equal(one("add", kind, big, more, wide=True), [np.inf, -np.inf, largest, largest])
    np.testing.assert_array_equal(np.asarray(one("add", kind, big, more)).astype(np.float64), [np.inf, -np.inf, largest, largest])


def test_f64_is_widened_to_longdouble_and_overflows_like_f64():
    big = np.array([1.7e308, 1.0])
    with np.errstate(all="ignore"):
        found = one("add", "f64", big, big, wide=True)
    assert found.dtype == np.longdouble and np.isinf(found[0]) and found[1] == 2


def test_integers_wrap_in_either_mode():
    x = np.array([127, -128], np.int8)
    for wide in (False, True):
        np.testing.assert_array_equal(one("add", "i8", x, np.array([1, -1], np.int8), wide=wide), [-128, 127])


def test_widened_reductions_see_what_narrow_ones_lose():
    x = np.concatenate([np.array([2.0 ** 24], np.float32), np.ones(4, np.float32)])
    text = "graph @g(%x: f32[5]) -> f32[] {\n  %0 = reduce_sum %x {axes=[0]} : f32[]\n  return %0\n}"
    assert run(text, x, wide=True)[0] == 2.0 ** 24 + 4


def test_symbolic_shapes_cannot_be_interpreted():
    text = "graph @g(%x: f32[B]) -> i32[B] {\n  %0 = convert_element_type %x : i32[B]\n  return %0\n}"
    with pytest.raises(UnsupportedError, match="symbolic dim 'B'"):
        run(text, np.zeros(3, np.float32))
