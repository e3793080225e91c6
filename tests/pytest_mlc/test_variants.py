"""Other ways to run an executable: what they hand over, and that a difference is found and told."""

import warnings

import numpy as np
import pytest

from mlc.compile import compile_graph
from mlc.core.dtype import bf16
from mlc.graph import parse_graph
from pytest_mlc.executor import outcome
from pytest_mlc.variants import SAID, VARIANTS, affordable, interpreted_steps, relaid, same_bits

GRAPH = parse_graph("graph @main(%x: f32[5,9], %y: f32[5,9]) -> f32[9] {\n  %0 = mul %x, %y : f32[5,9]\n"
                    "  %1 = reduce_sum %0 {axes=[0]} : f32[9]\n  return %1\n}")


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (2, 1, 4)], ids=str)
def test_relaid_arrays_hold_the_same_values_in_other_memory(kind, shape):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) + 1
    moved = relaid(array, kind)
    assert moved.dtype == array.dtype and np.array_equal(moved, array)
    if array.size > 1 and (kind > 0 or array.ndim > 1):
        assert not moved.flags.c_contiguous or not moved.flags.aligned or array.shape[0] == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_gives_the_same_bits(variant):
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(5, 9)).astype(np.float32) for _ in range(2)]
    exe = compile_graph(GRAPH)
    assert VARIANTS[variant](exe, args)[0].tobytes() == exe.run(args)[0].tobytes()
    assert variant in SAID


def test_other_bits_are_told():
    found = outcome({"outputs": [np.array([0.0])], "varied": [np.array([-0.0])], "variant": "threads", "passes": []})
    assert found.kind == "unstable" and found.failed and "run on two threads" in found.detail
    assert outcome({"outputs": [np.array([np.nan])], "varied": [np.array([np.nan])], "variant": "again", "passes": []}).kind == "ran"


def test_bits_are_compared_and_nan_is_nan():
    a = np.array([0.0, np.nan, 1.0], np.float32)
    payload = np.array([0, 0x7FC00001, 0x3F800000], np.uint32).view(np.float32)
    assert same_bits([a], [payload]) and not same_bits([a], [-a]) and not same_bits([a], [a.astype(np.float64)])
    assert same_bits([np.array([True])], [np.array([True])]) and not same_bits([np.array([True])], [np.array([False])])


def test_signalling_nans_are_compared_without_a_warning():
    quiet, signalling = (np.array([bits, 0x3F80], np.uint16).view(bf16.numpy) for bits in (0x7FC0, 0x7F81))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same_bits([quiet], [signalling]) and not same_bits([quiet], [quiet[::-1].copy()])


def _erf(rows):
    return compile_graph(parse_graph(f"graph @main(%x: f64[63,{rows},3]) -> f64[{rows},63,3] {{\n"
                                     f"  %0 = transpose %x {{perm=[1,0,2]}} : f64[{rows},63,3]\n"
                                     f"  %1 = erf %0 : f64[{rows},63,3]\n  return %1\n}}"))


def test_the_loop_interpreter_is_spared_what_takes_it_seconds():
    assert affordable("loops", _erf(82)) == "kernels"  # 11 s
    assert affordable("loops", compile_graph(GRAPH)) == "loops"
    assert affordable("strided", _erf(82)) == "strided"


def test_work_is_estimated_from_the_loops_that_there_are():
    few, many = interpreted_steps(_erf(2)), interpreted_steps(_erf(8))
    assert many == 4 * few > 0
    dot = "graph @main(%x: f32[{0},64], %y: f32[64,32]) -> f32[{0},32] {{\n" \
          "  %0 = dot_general %x, %y {{contract=([1],[0])}} : f32[{0},32]\n  return %0\n}}"
    assert interpreted_steps(compile_graph(parse_graph(dot.format(96)))) > 3 * interpreted_steps(compile_graph(parse_graph(dot.format(8))))
