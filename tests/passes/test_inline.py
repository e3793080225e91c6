"""Inlining of `call`: nested, repeated, with several results, constants and metadata; as deep as one likes."""

import numpy as np

from mlc.core.dims import parse_type
from mlc.graph import Graph, Meta, evaluate, parse_graph, print_graph, verify
from mlc.passes.inline import INLINE
from mlc.passes.manager import PassContext

F = parse_type("f32[3]")


def inline(graph):
    result = INLINE.run(graph, PassContext())
    verify(result.graph)
    return result


def test_a_call_becomes_its_body_and_tuple_get_its_value():
    text = """graph @g(%x: f32[3], %y: f32[3]) -> (f32[3], f32[3]) {
  %0 = call %y, %x {
    graph @f(%a: f32[3], %b: f32[3]) -> (f32[3], f32[3]) {
      %0 = sub %a, %b : f32[3]
      %1 = mul %0, 2.0 : f32[3]
      return %1, %b
    }
  } : (f32[3], f32[3])
  %1 = tuple_get %0 {index=0} : f32[3]
  %2 = tuple_get %0 {index=1} : f32[3]
  %3 = add %1, %2 : f32[3]
  return %3, %1
}
"""
    graph = parse_graph(text)
    after = inline(graph).graph
    assert print_graph(after) == """graph @g(%x: f32[3], %y: f32[3]) -> (f32[3], f32[3]) {
  %0 = sub %y, %x : f32[3]
  %1 = mul %0, 2.0 : f32[3]
  %2 = add %1, %x : f32[3]
  return %2, %1
}
"""
    args = [np.array([1, 2, 4], np.float32), np.array([10, 20, 40], np.float32)]
    for want, got in zip(evaluate(graph, args), evaluate(after, args)):
        np.testing.assert_array_equal(want, got)
    assert print_graph(graph) == text


def nested(depth):
    """f_k calls f_{k-1} twice; the innermost negates."""
    inner = Graph("f0")
    a = inner.parameter("a", F)
    inner.set_outputs([inner.add("neg", (a,))])
    for k in range(1, depth):
        outer = Graph(f"f{k}")
        b = outer.parameter("b", F)
        call = outer.add("call", (b,), regions=(inner,))
        outer.set_outputs([outer.add("tuple_get", (call,), {"index": 0})])
        inner = outer
    return inner


def test_very_deeply_nested_calls_need_no_recursion():
    after = inline(nested(3000)).graph
    assert [n.op.name for n in after.nodes] == ["parameter", "neg"]


def test_a_region_called_twice_is_copied_twice_with_its_own_operands():
    f = Graph("f")
    a = f.parameter("a", F)
    f.set_outputs([f.add("sub", (a, f.constant(1.0, F)))])
    g = Graph("g")
    x = g.parameter("x", F)
    once = g.add("tuple_get", (g.add("call", (x,), regions=(f,)),), {"index": 0})
    twice = g.add("tuple_get", (g.add("call", (once,), regions=(f,)),), {"index": 0})
    g.set_outputs([once, twice])
    result = inline(g)
    assert result.stats == {"inline-call": 2}
    assert [n.op.name for n in result.graph.nodes] == ["parameter", "constant", "sub", "sub"], "the constant is shared"
    out = evaluate(result.graph, [np.array([5, 6, 7], np.float32)])
    np.testing.assert_array_equal(out[1], [3, 4, 5])


def test_an_output_that_is_a_parameter_of_the_region_needs_no_node():
    f = Graph("f")
    f.set_outputs([f.parameter("a", F)])
    g = Graph("g")
    x = g.parameter("x", F)
    g.set_outputs([g.add("tuple_get", (g.add("call", (x,), regions=(f,)),), {"index": 0})])
    after = inline(g).graph
    assert after.outputs == (0,) and len(after) == 1


def test_source_locations_of_the_region_survive():
    f = Graph("f")
    f.set_outputs([f.add("neg", (f.parameter("a", F),), meta=Meta("model.py:7"))])
    g = Graph("g")
    g.set_outputs([g.add("tuple_get", (g.add("call", (g.parameter("x", F),), regions=(f,)),), {"index": 0})])
    assert "model.py:7" in print_graph(inline(g).graph, locations=True)


def test_a_graph_without_calls_is_returned_itself():
    graph = parse_graph("graph @g(%x: f32[3]) -> f32[3] {\n  return %x\n}")
    assert inline(graph).graph is graph
