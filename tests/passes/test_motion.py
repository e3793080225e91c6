"""Reshapes leave the middle of elementwise work: up to stored values, down past their readers; and it ends."""

import numpy as np
import pytest

from mlc.core import options as opt
from mlc.graph import evaluate, parse_graph, print_graph
from mlc.passes.pipeline import run_pipeline


def optimized(params, lines, returned=None):
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    returned = returned or [len(lines) - 1]
    types = ", ".join(lines[i].rsplit(" : ", 1)[1] for i in returned)
    graph = parse_graph(f"graph @g({params}) -> ({types}) {{\n{body}  return {', '.join(f'%{i}' for i in returned)}\n}}")
    with opt.options(check=2):
        after, log = run_pipeline(graph)
    stats = {}
    for result in log:
        stats.update({k: v for k, v in result.stats.items() if result.name == "motion"})
    return graph, after, stats


def lines_of(graph):
    return [line.strip() for line in print_graph(graph).splitlines()[1:-2]]


def test_up_a_tree_over_stored_values_is_computed_in_the_new_shape():
    _, after, stats = optimized("%x: f32[6,4], %y: f32[6,4]", ["exp %x : f32[6,4]", "mul %0, %y : f32[6,4]", "max %1, 0.5 : f32[6,4]",
                                                              "reshape %2 : f32[8,3]", "reduce_sum %3 {axes=[1]} : f32[8]"])
    assert stats == {"reshape-up": 1}
    assert lines_of(after) == ["%0 = reshape %x : f32[8,3]", "%1 = exp %0 : f32[8,3]", "%2 = reshape %y : f32[8,3]", "%3 = mul %1, %2 : f32[8,3]",
                               "%4 = max %3, 0.5 : f32[8,3]", "%5 = reduce_sum %4 {axes=[1]} : f32[8]"]


def test_down_work_after_a_contraction_joins_it():
    _, after, stats = optimized("%x: f32[4,5], %w: f32[5,6], %b: f32[6], %r: f32[2,2,6]", [
        "dot_general %x, %w {contract=([1],[0])} : f32[4,6]", "broadcast_in_dim %b {dims=[1]} : f32[4,6]", "add %0, %1 : f32[4,6]",
        "reshape %2 : f32[2,2,6]", "add %3, %r : f32[2,2,6]", "tanh %4 : f32[2,2,6]"])
    assert stats == {"reshape-down": 2}
    assert after.nodes[-1].op.name == "reshape" and after.outputs == (len(after) - 1,)
    assert all(n.type.shape == (4, 6) for n in after.nodes if n.op.name in ("add", "tanh"))


def test_down_takes_broadcasts_along_when_their_axes_survive():
    _, after, stats = optimized("%x: f32[4,6], %b: f32[6]", [
        "reduce_sum %x {axes=[]} : f32[4,6]", "reshape %0 : f32[2,2,6]", "broadcast_in_dim %b {dims=[2]} : f32[2,2,6]", "mul %1, %2 : f32[2,2,6]"])
    assert stats == {"reshape-down": 1}
    assert "broadcast_in_dim %b {dims=[1]} : f32[4,6]" in print_graph(after)


@pytest.mark.parametrize("params, lines, returned", [
    # the tree has another reader
    ("%x: f32[6,4]", ["exp %x : f32[6,4]", "reshape %0 : f32[8,3]", "neg %0 : f32[6,4]"], [1, 2]),
    # a broadcast whose axis does not survive the reshape
    ("%x: f32[6,4], %b: f32[4]", ["broadcast_in_dim %b {dims=[1]} : f32[6,4]", "add %x, %0 : f32[6,4]", "reshape %1 : f32[8,3]"], None),
    # the reshape itself is read twice
    ("%x: f32[4,6]", ["reduce_sum %x {axes=[]} : f32[4,6]", "reshape %0 : f32[8,3]", "exp %1 : f32[8,3]"], [1, 2]),
    # two reshapes from different shapes
    ("%x: f32[4,6], %y: f32[3,8]", ["reduce_sum %x {axes=[]} : f32[4,6]", "reduce_sum %y {axes=[]} : f32[3,8]", "reshape %0 : f32[2,12]",
                                    "reshape %1 : f32[2,12]", "add %2, %3 : f32[2,12]"], None),
    # a reshape of a stored value is a view already
    ("%x: f32[4,6]", ["reshape %x : f32[8,3]", "exp %0 : f32[8,3]"], None),
])
def test_reshapes_that_would_cost_something_stay(params, lines, returned):
    _, _, stats = optimized(params, lines, returned)
    assert stats == {}


def test_both_directions_meet_and_end():
    lines = ["exp %x : f32[6,4]", "reshape %0 : f32[8,3]", "neg %1 : f32[8,3]", "reshape %2 : f32[24]", "sin %3 : f32[24]", "reshape %4 : f32[2,12]",
             "dot_general %5, %w {contract=([1],[0])} : f32[2,3]", "reshape %6 : f32[6]",
             "abs %7 : f32[6]", "reshape %8 : f32[3,2]", "neg %9 : f32[3,2]"]
    graph, after, _ = optimized("%x: f32[6,4], %w: f32[12,3]", lines)
    assert sum(n.op.name == "reshape" for n in after.nodes) == 2, print_graph(after)
    args = [np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4), np.linspace(2, 3, 36, dtype=np.float32).reshape(12, 3)]
    np.testing.assert_array_equal(evaluate(graph, args)[0], evaluate(after, args)[0])


def test_a_long_chain_with_reshapes_is_linear():
    lines, shape = [], ["6,4", "8,3"]
    for k in range(2000):
        source = "%x" if not lines else f"%{len(lines) - 1}"
        lines.append(f"{'exp' if k % 2 else 'neg'} {source} : f32[{shape[0]}]")
        if k % 5 == 0:
            lines.append(f"reshape %{len(lines) - 1} : f32[{shape[1]}]")
            shape.reverse()
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    graph = parse_graph(f"graph @g(%x: f32[6,4]) -> f32[{shape[0]}] {{\n{body}  return %{len(lines) - 1}\n}}")
    import time
    started = time.process_time()
    with opt.options(check=0):
        after, log = run_pipeline(graph)
    assert time.process_time() - started < 3.0 and not any("not converged" in n for r in log for n in r.notes)
    assert sum(n.op.name == "reshape" for n in after.nodes) <= 1
