"""Machine code of a graph with its passes, against machine code without them: equal bits, or a rewrite is not `bitwise`."""

import numpy as np
import pytest
from random_graphs import random_graph

from mlc.compile import compile_graph
from mlc.core import options as opt
from mlc.graph import parse_graph, print_graph
from mlc.passes.checks import random_input, same_bits
from mlc.passes.pipeline import PIPELINE

OPTIONAL = ",".join(p.name for p in PIPELINE if not p.required)


def check(graph, seed, special):
    rng = np.random.default_rng(seed)
    args = [random_input(rng, t, special) for t in graph.input_types()]
    with opt.options(cache=False):
        with_passes = compile_graph(graph).run(args)
        with opt.options(disable_passes=OPTIONAL):
            without = compile_graph(graph).run(args)
    loose = by_layout(graph)
    for k, (a, b) in enumerate(zip(with_passes, without)):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert graph.outputs[k] in loose or same_bits(a, b).all(), (k, print_graph(graph))


def by_layout(graph) -> set[int]:
    """The nodes that depend on a product of floats: how one is summed depends on how its operands lie (docs/numerics.md), which passes change."""
    found: set[int] = set()
    for number, node in enumerate(graph.nodes):
        if found & set(node.inputs) or (node.op.name == "dot_general" and node.type.dtype.is_float):
            found.add(number)
    return found


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_graphs(first):
    for seed in range(first, first + 20):
        check(random_graph(seed, 20), seed, special=seed % 2 == 1)


@pytest.mark.nightly
def test_many_random_graphs():
    for seed in range(50_000, 53_000):
        check(random_graph(seed, 25), seed, special=seed % 2 == 1)


def test_a_splat_that_nothing_reads_after_all_is_no_kernel():
    """x ** 0 reads no x; without simplifying the graph still says it does."""
    check(parse_graph("""graph @g(%x: f32[1]) -> f32[6] {
  %0 = constant {value=4.0} : f32[2,1,3]
  %1 = reshape %0 : f32[6]
  %2 = integer_pow %1 {y=0} : f32[6]
  return %2
}
"""), 0, special=False)


# Sizes past vectors, tiles and panels, where another order of summation would show.
LARGE = {
    "left": ("%x: {t}[70,37], %y: {t}[70,130]", ["transpose %x {{perm=[1,0]}} : {t}[37,70]",
                                                  "dot_general %0, %y {{contract=([1],[0])}} : {t}[37,130]"]),
    "right": ("%x: {t}[37,70], %y: {t}[130,70]", ["transpose %y {{perm=[1,0]}} : {t}[70,130]",
                                                   "dot_general %x, %0 {{contract=([1],[0])}} : {t}[37,130]"]),
    "both": ("%x: {t}[70,37], %y: {t}[130,70]", ["transpose %x {{perm=[1,0]}} : {t}[37,70]", "transpose %y {{perm=[1,0]}} : {t}[70,130]",
                                                 "dot_general %0, %1 {{contract=([1],[0])}} : {t}[37,130]"]),
    "two axes": ("%x: {t}[9,11,37], %y: {t}[9,11,50]", ["transpose %x {{perm=[2,0,1]}} : {t}[37,9,11]",
                                                        "dot_general %0, %y {{contract=([1,2],[0,1])}} : {t}[37,50]"]),
    "batched": ("%x: {t}[40,3,37], %y: {t}[3,40,50]", ["transpose %x {{perm=[1,2,0]}} : {t}[3,37,40]",
                                                       "dot_general %0, %y {{contract=([2],[1]), batch=([0],[0])}} : {t}[3,37,50]"]),
    "sum of broadcasts": ("%x: {t}[50,1], %y: {t}[50,300]", [
        "broadcast_in_dim %x {{dims=[0,1]}} : {t}[50,300]", "mul %0, 0.25 : {t}[50,300]", "add %1, %y : {t}[50,300]",
        "reduce_sum %2 {{axes=[1]}} : {t}[50]"]),
    "sum of a reshaped tree": ("%x: {t}[60,110]", ["mul %x, 1.5 : {t}[60,110]", "reshape %0 : {t}[20,330]", "reduce_sum %1 {{axes=[1]}} : {t}[20]"]),
    "sum after a moved reshape": ("%x: {t}[40,70], %y: {t}[70,66]", [
        "dot_general %x, %y {{contract=([1],[0])}} : {t}[40,66]", "reshape %0 : {t}[20,132]", "max %1, 0.0 : {t}[20,132]",
        "reduce_sum %2 {{axes=[1]}} : {t}[20]"]),
    "layer norm": ("%x: {t}[33,100]", [
        "reduce_sum %x {{axes=[1]}} : {t}[33]", "reshape %0 : {t}[33,1]", "div %1, 64.0 : {t}[33,1]",
        "broadcast_in_dim %2 {{dims=[0,1]}} : {t}[33,100]",
        "sub %x, %3 : {t}[33,100]", "integer_pow %4 {{y=2}} : {t}[33,100]", "reduce_sum %5 {{axes=[1]}} : {t}[33]", "sqrt %6 : {t}[33]",
        "broadcast_in_dim %7 {{dims=[0]}} : {t}[33,100]", "div %4, %8 : {t}[33,100]"]),
}


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", LARGE)
def test_large_contractions_and_sums(name, dtype):
    params, lines = LARGE[name]
    result = lines[-1].rsplit(" : ", 1)[1]
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    text = "graph @g(" + params + ") -> " + result + " {{\n" + body + f"  return %{len(lines) - 1}\n" + "}}\n"
    check(parse_graph(text.format(t=dtype)), 5, special=False)
