"""The loop interpreter against sums written by hand: order of lanes, masks, folds and tiles, bit for bit."""

from fractions import Fraction

import numpy as np
import pytest
from random_kernels import make_inputs, random_kernel

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.loop.interp import garbage, run
from mlc.loop.ir import Buffer, LoopKernel, Store, load
from mlc.loop.text import parse_kernel


def f32_values(count: int, seed: int = 0) -> np.ndarray:
    """Numbers of very different size, so that another order of summation gives other bits."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=count) * 10.0 ** rng.integers(-4, 5, count)).astype(np.float32)


def test_a_masked_vector_loop_stores_only_its_elements():
    kernel = parse_kernel("""loops @k(%x: i32[17] in, %out: i32[20] out) {
      vector(8) i in 17 {
        %0 = add %x[i], 100 : i32
        %out[i + 1] = %0
      } }""")
    x, out = np.arange(17, dtype=np.int32), np.full(20, -1, np.int32)
    run(kernel, {"x": x, "out": out})
    assert out.tolist() == [-1, *range(100, 117), -1, -1]


SUM = """loops @k(%x: f32[{n}] in, %out: f32[1] out) {{
  var %acc: f32<{lanes}> = 0.0
  vector({lanes}) j in {n} {{
    %0 = add %acc, %x[j] : f32
    %acc = %0
  }}
  fold %s = %acc {{
    %0 = add %a.0, %b.0 : f32
    yield %0
  }}
  %out[0] = %s
}}"""


@pytest.mark.parametrize("n", [1, 7, 8, 9, 17, 40])
def test_sum_adds_lane_by_lane_then_folds_halves(n):
    x, out = f32_values(n), np.zeros(1, np.float32)
    run(parse_kernel(SUM.format(n=n, lanes=8)), {"x": x, "out": out})
    lanes = [np.float32(0)] * 8
    for j, value in enumerate(x):
        lanes[j % 8] = np.float32(lanes[j % 8] + value)
    a, b, c, d = (np.float32(lanes[i] + lanes[i + 4]) for i in range(4))
    assert out[0] == np.float32(np.float32(a + c) + np.float32(b + d))


def test_a_fold_of_several_values_sees_both_sides():
    """Argmax over lanes: greater value wins, on a tie the lower index."""
    kernel = parse_kernel("""loops @k(%x: i32[8] in, %value: i32[1] out, %place: i64[1] out) {
      var %v: i32<8> = 0
      var %i: i64<8> = 0
      vector(8) j in 8 {
        %v, %i = %x[j], j
      }
      fold %top, %at = %v, %i {
        %0 = gt %a.0, %b.0 : bool
        %1 = eq %a.0, %b.0 : bool
        %2 = lt %a.1, %b.1 : bool
        %3 = and %1, %2 : bool
        %4 = or %0, %3 : bool
        %5 = select %4, %a.0, %b.0 : i32
        %6 = select %4, %a.1, %b.1 : i64
        yield %5, %6
      }
      %value[0] = %top
      %place[0] = %at
    }""")
    for x in ([3, 9, 1, 9, 2, 9, 0, 4], [5, 1, 1, 1, 1, 1, 1, 5], [0, 0, 0, 0, 0, 0, 0, 7]):
        value, place = np.zeros(1, np.int32), np.zeros(1, np.int64)
        run(kernel, {"x": np.array(x, np.int32), "value": value, "place": place})
        assert (value[0], place[0]) == (max(x), x.index(max(x)))


def test_assignments_of_one_statement_read_before_they_write():
    kernel = parse_kernel("""loops @fibonacci(%out: u64[10] out) {
      var %a: u64 = 0
      var %b: u64 = 1
      for i in 10 {
        %0 = add %a, %b : u64
        %a, %b = %b, %0
        %out[i] = %a
      } }""")
    out = np.zeros(10, np.uint64)
    run(kernel, {"out": out})
    assert out.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]


def fused(x: np.float32, y: np.float32, z: np.float32) -> np.float32:
    """x * y + z rounded once, from rationals (inputs here are far from the ends of the range)."""
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return np.float32(0)
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length() - 1
    unit = Fraction(2) ** (exponent - 23)
    unit *= 2 if abs(exact) >= Fraction(2) ** (exponent + 1) else 1
    return np.float32(float(round(exact / unit) * unit))


@pytest.mark.parametrize("n,width", [(3, 4), (4, 4), (5, 2), (1, 8)])
def test_a_tile_takes_its_steps_in_order_with_fma(n, width):
    m, depth = 2, 9
    kernel = parse_kernel(f"""loops @k(%x: f32[{m * depth}] in, %w: f32[{depth * n}] in, %bias: f32[{n}] in, %out: f32[{m * n}] out) {{
      tile %acc: f32 r:{m} c:{n} k:{depth} vector({width}) {{
        %acc += %x[{depth}*r + k] * %w[{n}*k + c]
      }} then {{
        %0 = add %acc, %bias[c] : f32
        %out[{n}*r + c] = %0
      }} }}""")
    x, w, bias = f32_values(m * depth, 1), f32_values(depth * n, 2), f32_values(n, 3)
    out = np.zeros(m * n, np.float32)
    run(kernel, {"x": x, "w": w, "bias": bias, "out": out})
    for r in range(m):
        for c in range(n):
            total = np.float32(0)
            for k in range(depth):
                total = fused(x[depth * r + k], w[n * k + c], total)
            assert out[n * r + c] == np.float32(total + bias[c])


def test_an_integer_tile_wraps():
    kernel = parse_kernel("""loops @k(%x: i8[3] in, %w: i8[3] in, %out: i8[1] out) {
      tile %acc: i8 r:1 c:1 k:3 vector(4) {
        %acc += %x[k] * %w[k + c]
      } then {
        %out[0] = %acc
      } }""")
    out = np.zeros(1, np.int8)
    run(kernel, {"x": np.array([100, 100, -3], np.int8), "w": np.array([100, 7, 5], np.int8), "out": out})
    assert out[0] == (100 * 100 + 700 - 15 + 128) % 256 - 128


def test_half_precision_rounds_after_every_instruction():
    x = load("x", dt.f16, Affine())
    kernel = LoopKernel("k", (Buffer("x", dt.f16, 1, "in"), Buffer("out", dt.f16, 1, "out")),
                        (Store("out", Affine(), (x + ex.const(1, dt.f16)) - ex.const(1, dt.f16)),))
    out = np.zeros(1, np.float16)
    run(kernel, {"x": np.array([0.0004], np.float16), "out": out})
    assert out[0] == np.float16(0)


def test_in_place_runs_read_each_element_before_it_is_written():
    kernel = parse_kernel("""loops @k(%x: f32[19] in, %out: f32[19] out) alias(%x %out) {
      vector(8) i in 19 {
        %0 = mul %x[i], %x[i] : f32
        %out[i] = %0
      } }""")
    x = f32_values(19)
    memory = x.copy()
    run(kernel, {"x": memory, "out": memory})
    assert (memory == x * x).all()


def test_scratch_starts_as_garbage_and_belongs_to_the_run():
    kernel = parse_kernel("""loops @k(%out: f32[4] out, %t: f32[4] scratch) {
      vector(4) i in 4 {
        %out[i] = %t[i]
      } }""")
    out, scratch = np.zeros(4, np.float32), np.ones(4, np.float32)
    run(kernel, {"out": out, "t": scratch})
    assert np.isnan(out).all() and np.isnan(scratch).all()
    run(kernel, {"out": out})
    assert np.isnan(out).all()


def test_scratch_hands_nothing_from_one_parallel_iteration_to_another():
    kernel = parse_kernel("""loops @k(%out: f32[4] out, %t: f32[1] scratch) {
      parallel p in 4 {
        %out[p] = %t[0]
        %t[0] = 1.0
      } }""")
    out = np.zeros(4, np.float32)
    run(kernel, {"out": out})
    assert np.isnan(out).all()


@pytest.mark.parametrize("dtype", dt.ALL)
def test_garbage_is_nothing_one_would_compute(dtype):
    values = garbage(5, dtype)
    assert values.dtype == dtype.numpy and values.shape == (5,)
    if dtype is dt.bool_:
        assert values.tolist() == [True, False, True, False, True] and set(values.view(np.uint8)) == {0, 1}
    else:
        with np.errstate(invalid="ignore"):
            assert np.isnan(values).all() if dtype.is_float else (values != 0).all()


def test_empty_loops_do_nothing():
    kernel = parse_kernel("""loops @k(%x: f32[0] in, %out: f32[1] out) {
      parallel i in 0 {
        %out[i + 100] = %x[i]
      }
      vector(8) j in 0 {
        %out[j] = %x[j]
      } }""")
    out = np.array([3.0], np.float32)
    run(kernel, {"x": np.zeros(0, np.float32), "out": out})
    assert out[0] == 3


@pytest.mark.parametrize("line", ["%out[i] = %x[i + 1]", "%out[i - 1] = %x[i]", "%out[i + 1] = %x[i]", "%out[i] = %x[2*i - 4]"])
def test_an_access_out_of_bounds_is_an_error(line):
    kernel = parse_kernel(f"loops @k(%x: f32[8] in, %out: f32[8] out) {{ vector(4) i in 8 {{ {line} }} }}")
    with pytest.raises(IndexError, match=r"outside 0\.\.7"):
        run(kernel, {"x": np.zeros(8, np.float32), "out": np.zeros(8, np.float32)})


@pytest.mark.parametrize("arrays", [{}, {"out": np.zeros(2, np.float32)}, {"out": np.zeros(1)}, {"out": np.zeros((1, 1), np.float32)}])
def test_arrays_that_do_not_fit_are_refused(arrays):
    kernel = LoopKernel("k", (Buffer("out", dt.f32, 1, "out"),), (Store("out", Affine(), ex.const(1, dt.f32)),))
    with pytest.raises(ValueError, match=r"%out needs f32\[1\]"):
        run(kernel, arrays)


@pytest.mark.parametrize("seed", range(60))
def test_parallel_iterations_run_in_any_order(seed):
    kernel = random_kernel(seed)
    forward = make_inputs(kernel, np.random.default_rng(seed))
    backward = {name: array.copy() for name, array in forward.items()}
    run(kernel, forward)
    run(kernel, backward, reverse_parallel=True)
    for name, array in forward.items():
        assert array.tobytes() == backward[name].tobytes()


def test_a_vector_loop_is_its_iterations_one_by_one():
    """Elementwise kernels give the same bits at every width."""
    text = """loops @k(%x: f32[23] in, %out: f32[23] out) {{
      vector({width}) i in 23 {{
        var %v: f32<{width}> = %x[i]
        for k in 3 {{
          %0 = convert i : f32
          %1 = fma %v, %v, %0 : f32
          %v = %1
        }}
        %out[i] = %v
      }} }}"""
    x = np.random.default_rng(5).uniform(-2, 2, 23).astype(np.float32)
    expected = x.copy()
    for i in range(23):
        for _ in range(3):
            expected[i] = fused(expected[i], expected[i], np.float32(i))
    for width in (1, 2, 8, 32):
        out = np.zeros(23, np.float32)
        run(parse_kernel(text.format(width=width).replace("<1>", "")), {"x": x, "out": out})
        assert out.tobytes() == expected.tobytes()
