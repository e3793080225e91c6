"""Conversions: out of range, NaN, to bool, wrapping, and roundings that were asked for."""

import numpy as np
import pytest
from report_values import BF16, F16, F32, F64, I8, I16, I32, INF, NAN, U8, f32, i32, same

import mlc
import mlc.numpy as mnp

WILD = [NAN, INF, -INF, 3e9, -3e9, 1e20, 300, -300, 127.9, -128.9, 2147483520.0, -2147483648.0, 0.99, -0.99, 40000, -40000, 50, -50, 1.5, -0.0, 1e-45]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def saturated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Truncated towards zero and held to the range, in exact integers; NaN is 0."""
    info = np.iinfo(dtype)

    def one(value: float) -> int:
        if value != value:
            return 0
        return (info.max if value > 0 else info.min) if abs(value) == INF else min(max(int(value), info.min), info.max)
    return np.array([one(float(v)) for v in x], dtype)


@pytest.mark.parametrize("source", [F32, F64, F16, BF16])
def test_floats_out_of_an_integers_range_saturate(run, source):
    # tensorflow/tensorflow#126212, triton-lang/triton#10658
    with np.errstate(over="ignore"):
        x = np.array(WILD, source)
    same(run(lambda x: [x.astype(name) for name in INTEGERS], x), *(saturated(x, np.dtype(name)) for name in INTEGERS))


def test_constants_saturate_like_values(run):
    # triton-lang/triton#10658: the folder and the tail of a vector loop must do the same
    x = f32(*WILD)
    same(run(lambda: [mnp.asarray(x).astype(name) for name in INTEGERS]), *(saturated(x, np.dtype(name)) for name in INTEGERS))


def test_anything_but_zero_is_true(run):
    # openvinotoolkit/openvino#38073
    x = f32(NAN, 0.25, -0.0, 0.0, -1, INF, 1e-45)
    k = i32(0, 255, 256, -1, 300, 70000, -129)
    same(run(lambda x, k: (x.astype(bool), k.astype(bool), k.astype(bool).astype(mnp.float32), x.astype(bool).astype(mnp.int8), mnp.logical_not(x)),
             x, k),
         x != 0, k != 0, (k != 0).astype(F32), (x != 0).astype(I8), x == 0)


def test_integers_wrap_to_narrower_ones(run):
    # apache/tvm#19542
    k = i32(0, 255, 256, -1, 300, 70000, -129, 2 ** 31 - 1, -2 ** 31)
    same(run(lambda k: (k.astype(mnp.int8), k.astype(mnp.uint8), k.astype(mnp.int16).astype(mnp.int32), k.astype(mnp.uint8).astype(mnp.int32)), k),
         k.astype(I8), k.astype(U8), k.astype(I16).astype(I32), k.astype(U8).astype(I32))


def test_halves_round_to_even(run):
    # apache/tvm#18590
    x = f32(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609.0, -0.2, 1e20, NAN, -INF)
    same(run(lambda x: (mnp.round(x), mnp.rint(x), mnp.round(mlc.nn.sigmoid(x[:1] * 0))), x), np.round(x), np.round(x), f32(0))


def test_halves_of_other_floats_round_to_even(run):
    # apache/tvm#18590, in the dtypes that have kernels of their own
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0, 100.5, -0.25]
    for dtype in (F16, BF16, F64):
        x = np.array(values, dtype)
        same(run(lambda x: mnp.round(x), x), np.array([0, 2, 2, -0.0, -2, -2, 3, np.round(x[7].astype(F64)), -0.0], dtype))


def test_a_narrowing_conversion_and_back_is_kept(run):
    # openxla/xla#41605
    x = np.random.default_rng(23).normal(size=100).astype(F32) * F32(300)
    found = run(lambda x: (x.astype(mnp.bfloat16).astype(mnp.float32), x.astype(mnp.float16).astype(mnp.float32),
                           x.astype(mnp.float64).astype(mnp.float32), x.astype(mnp.int8).astype(mnp.float32)), x)
    same(found, x.astype(BF16).astype(F32), x.astype(F16).astype(F32), x, saturated(x, np.dtype(I8)).astype(F32))


def test_a_float64_detour_through_float32_is_kept(run):
    # openxla/xla#41605
    x = np.random.default_rng(24).normal(size=50)
    same(run(lambda x: (x.astype(mnp.float32).astype(mnp.float64), (x.astype(mnp.float32) * 3).astype(mnp.float64)), x),
         x.astype(F32).astype(F64), (x.astype(F32) * F32(3)).astype(F64))


def test_float16_overflows_where_its_rounding_says(run):
    # openxla/xla#41605
    x = f32(65504, 65519.996, 65520, 1e6, -65520, 6e-8, 2.9e-8)
    with np.errstate(over="ignore"):
        expected = x.astype(F16)
    same(run(lambda x: (x.astype(mnp.float16), mnp.asarray(f32(65504, 65520, 1e6)).astype(mnp.float16)), x),
         expected, np.array([65504, INF, INF], F16))


def test_every_half_float_operation_rounds_even_when_fused(run):
    # openxla/xla#41605: a chain kept in float32 gives other bits
    rng = np.random.default_rng(25)
    for dtype in (F16, BF16):
        x, y = rng.normal(size=(2, 77)).astype(dtype)
        with np.errstate(all="ignore"):
            expected = ((x + y).astype(dtype) * y).astype(dtype) - x, ((x * y).astype(dtype) + x).astype(dtype) / y
        same(run(lambda x, y: ((x + y) * y - x, (x * y + x) / y), x, y), *(e.astype(dtype) for e in expected))
