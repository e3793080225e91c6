"""What becomes one kernel, what does not, and the reason the log gives."""

import time

import numpy as np
import pytest
from kernel_samples import Builder, chain, dense, diamond, layer_norm, softmax

import mlc
from mlc.codegen.target import get_target
from mlc.compile import compile_graph
from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.graph import evaluate
from mlc.kernel.ir import Dot
from mlc.passes.kernelize import partition
from mlc.stages import Stages


def kernels(graph):
    return [step.kernel for step in partition(graph).steps]


@pytest.mark.parametrize("make", [softmax, layer_norm, dense])
def test_a_whole_block_is_one_kernel(make):
    assert len(kernels(make())) == 1


def test_softmax_keeps_only_the_exponentials_of_a_row():
    (kernel,) = kernels(softmax(8, 37))
    assert [p.type.size for p in kernel.params if p.role == "scratch"] == [37]
    assert kernel.rows == (("i0", 8),)
    assert [s.over != () for s in kernel.stages] == [True, True, False]


def test_layer_norm_recomputes_the_centred_row_instead_of_keeping_it():
    (kernel,) = kernels(layer_norm())
    assert [p for p in kernel.params if p.role == "scratch"] == []


def test_bias_and_activation_happen_at_the_store_of_the_contraction():
    (kernel,) = kernels(dense())
    (stage,) = kernel.stages
    assert isinstance(stage, Dot) and len(stage.puts) == 1


def test_an_elementwise_diamond_with_two_outputs_is_one_loop():
    (kernel,) = kernels(diamond(30))
    assert len(kernel.stages) == 1 and len(kernel.stages[0].puts) == 2


def test_a_producer_of_a_reduction_is_not_stored():
    g = Builder("sum_of_squares")
    x = g.input("x", 5, 70)
    g.set_outputs([g.fold("reduce_sum", g.add("mul", (x, x)), 1)])
    program = partition(g)
    assert len(program.steps) == 1 and not [v for v in program.values.values() if v.role == "temp"]


def test_an_expensive_row_is_computed_once_when_it_is_broadcast():
    g = Builder("broadcast_exp")
    x, v = g.input("x", 64, 512), g.input("v", 512)
    g.set_outputs([g.add("add", (x, g.spread(g.add("exp", (v,)), (64, 512), (1,))))])
    assert len(kernels(g)) == 2


def test_a_reduction_over_a_contraction_says_why_it_is_not_fused():
    g = Builder("row_sums")
    x, w = g.input("x", 8, 8), g.input("w", 8, 8)
    g.set_outputs([g.fold("reduce_sum", g.matmul(x, w), 1)])
    (note,) = partition(g).notes
    assert "dot" not in note and "whole rows of the contraction" in note


def test_a_transposed_read_of_a_contraction_is_refused_with_its_reason():
    g = Builder("transposed")
    x, w = g.input("x", 8, 8), g.input("w", 8, 8)
    product = g.matmul(x, w)
    g.set_outputs([g.add("add", (product, g.add("transpose", (product,), {"perm": (1, 0)})))])
    program = partition(g)
    assert len(program.steps) == 2 and "another index" in program.notes[0]


def test_rows_that_would_walk_memory_across_are_not_shared():
    def steps(rows, columns):
        g = Builder("turned")
        turned = g.add("exp", (g.add("transpose", (g.input("x", rows, columns),), {"perm": (1, 0)}),))
        g.set_outputs([turned, g.fold("reduce_sum", turned, 1)])
        return len(kernels(g))
    assert steps(64, 48) == 2 and steps(64, 8) == 1 and steps(8, 48) == 1


def test_fusing_never_makes_a_cycle_between_kernels():
    # sub reads the map (row kernel) and a contraction that itself reads the map's reduction.
    g = Builder("cycle")
    x, w = g.input("x", 16, 16), g.input("w", 16, 16)
    e = g.add("exp", (x,))
    s = g.spread(g.fold("reduce_sum", e, 1), (16, 16), (0,))
    g.set_outputs([g.add("sub", (e, g.matmul(g.add("exp", (s,)), w))), s])
    args = [np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16), np.eye(16, dtype=np.float32)]
    with mlc.options(check=1, cache=False):
        for got, want in zip(compile_graph(g).run(args), evaluate(g, args)):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_equal_kernels_are_one_kernel():
    g = Builder("twice")
    x = g.input("x", 8, 8)
    w = [g.input(f"w{k}", 8, 8) for k in range(3)]
    for weight in w:
        x = g.add("tanh", (g.matmul(x, weight),))
    program = partition(g.set_outputs([x]))
    assert len(program.steps) == 3 and len(program.kernels()) == 1


def test_disabling_fusion_gives_each_op_its_kernel_and_the_same_bits():
    graph = layer_norm()
    args = [np.random.default_rng(0).normal(size=t.shape).astype(np.float32) for t in graph.input_types()]
    with mlc.options(cache=False):
        fused = compile_graph(graph).run(args)
        with mlc.options(disable_passes="fuse"):
            plain = compile_graph(graph)
            assert plain.as_text("kernels").count("kernel @") > 5
            np.testing.assert_allclose(plain.run(args)[0], fused[0], rtol=1e-5, atol=1e-6)


def test_the_pass_log_tells_what_fusion_and_the_planner_did():
    log = Stages(dense(), get_target("golden-v3")).pass_log
    assert [r.name for r in log[-2:]] == ["fuse", "plan"]
    assert log[-2].nodes_after == 1 and "arena 0 B" in str(log[-1])


@pytest.mark.parametrize(("graph", "limit"), [(chain(5000), 10), (diamond(30), 10)], ids=["chain of 5000", "diamond of 30 levels"])
def test_deep_graphs_compile_quickly(graph, limit):
    with mlc.options(cache=False):
        begun = time.process_time()
        executable = compile_graph(graph)
        assert time.process_time() - begun < limit
    args = [np.arange(t.size).reshape(t.shape).astype(t.dtype.numpy) % 3 for t in graph.input_types()]
    for got, want in zip(executable.run(args), evaluate(graph, args)):
        np.testing.assert_array_equal(got, want)


def test_outputs_that_are_inputs_constants_views_or_repeats_are_fresh_arrays():
    g = Builder("views")
    x = g.input("x", 2, 6)
    c = g.constant(np.arange(20, dtype=np.float32))
    y = g.add("neg", (x,))
    flat = g.add("reshape", (y,), {}, TensorType((12,), dt.f32))
    g.set_outputs([x, c, y, y, flat])
    x_value = np.arange(12, dtype=np.float32).reshape(2, 6)
    with mlc.options(cache=False):
        outputs = compile_graph(g).run([x_value])
    for k, want in enumerate((x_value, np.arange(20), -x_value, -x_value, -x_value.reshape(12))):
        np.testing.assert_array_equal(outputs[k], want)
    for k, one in enumerate(outputs):
        for other in [x_value, *outputs[k + 1:]]:
            assert not np.shares_memory(one, other)
