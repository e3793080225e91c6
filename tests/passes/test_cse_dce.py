"""CSE merges what is equal by bits and nothing else; DCE drops what nobody reads and keeps the signature."""

import numpy as np
import pytest

from mlc.core.dims import parse_type
from mlc.core.literal import Literal
from mlc.graph import Graph, parse_graph, verify
from mlc.ops.base import COMMUTATIVE, REGISTRY
from mlc.passes.cse import CSE
from mlc.passes.dce import DCE
from mlc.passes.manager import PassContext

F = parse_type("f32[3]")


def run(each, graph):
    result = each.run(graph, PassContext())
    verify(result.graph)
    return result


def merged(lines, params="%x: f32[2,3], %y: f32[2,3]", returns=None):
    """How many nodes CSE merges in a graph of these lines, all of which are returned."""
    types = [line.rsplit(" : ", 1)[1] for line in lines]
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    graph = parse_graph(f"graph @g({params}) -> ({', '.join(types)}) {{\n{body}  return {', '.join(f'%{i}' for i in range(len(lines)))}\n}}")
    return run(CSE, graph).stats.get("merge-equal-nodes", 0)


def test_equal_nodes_merge_and_so_do_their_users():
    assert merged(["neg %x : f32[2,3]", "neg %x : f32[2,3]", "exp %0 : f32[2,3]", "exp %1 : f32[2,3]"]) == 2


@pytest.mark.parametrize("op", [o for o in REGISTRY.values() if o.has(COMMUTATIVE)], ids=lambda o: o.name)
def test_commutative_operands_may_be_swapped(op):
    kind = "f32" if parse_type("f32[]").dtype in op.dtypes else "i32"
    result = "bool" if op.name in ("eq", "ne") else kind
    lines = [f"{op.name} %x, %y : {result}[2,3]", f"{op.name} %y, %x : {result}[2,3]"]
    assert merged(lines, f"%x: {kind}[2,3], %y: {kind}[2,3]") == 1


@pytest.mark.parametrize("lines", [
    ["sub %x, %y : f32[2,3]", "sub %y, %x : f32[2,3]"],
    ["transpose %x {perm=[1,0]} : f32[3,2]", "transpose %x {perm=[0,1]} : f32[2,3]"],
    ["reshape %x : f32[3,2]", "reshape %x : f32[6]"],
    ["convert_element_type %x : f16[2,3]", "convert_element_type %x : bf16[2,3]"],
    ["integer_pow %x {y=3} : f32[2,3]", "integer_pow %x {y=-3} : f32[2,3]"],
    ["reduce_sum %x {axes=[0]} : f32[3]", "reduce_max %x {axes=[0]} : f32[3]"],
    ["add %x, 0.0 : f32[2,3]", "add %x, -0.0 : f32[2,3]"],
    ["add %x, nan : f32[2,3]", "add %x, nan:0x7fc00001 : f32[2,3]"],
    ["iota {axis=0} : i32[2,3]", "iota {axis=0} : i64[2,3]"],
    ["constant {value=1.0} : f32[2,3]", "constant {value=1.0} : f32[3,2]"],
    ["argmax %x {axes=[1]} : i32[2]", "argmax %x {axes=[1]} : i64[2]"],
], ids=lambda lines: lines[0].split(" : ")[0])
def test_what_differs_in_a_bit_is_not_merged(lines):
    assert merged(lines) == 0


def test_parameters_are_never_merged():
    assert merged(["neg %x : f32[2,3]", "neg %y : f32[2,3]"]) == 0


def region(op, name="f"):
    g = Graph(name)
    return g.set_outputs([g.add(op, (g.parameter("a", F),))])


@pytest.mark.parametrize("one, other, count", [("neg", "neg", 2), ("neg", "abs", 0)])
def test_regions_are_compared_by_text(one, other, count):
    g = Graph("g")
    x = g.parameter("x", F)
    g.set_outputs([g.add("tuple_get", (g.add("call", (x,), regions=(region(op),)),), {"index": 0}) for op in (one, other)])
    assert run(CSE, g).stats.get("merge-equal-nodes", 0) == count


def test_constants_appended_twice_by_a_pass_are_merged():
    g = Graph("g")
    value = Literal(np.array([1.5, -2, 3], np.float32))
    a, b = (g.add("constant", (), {"value": value}, F) for _ in range(2))
    g.set_outputs([a, b])
    assert run(CSE, g).graph.outputs == (0, 0)


def test_the_first_of_equal_nodes_stays_and_order_is_kept():
    g = parse_graph("graph @g(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  %1 = exp %x : f32[3]\n  %2 = neg %x : f32[3]\n"
                    "  %3 = sub %2, %1 : f32[3]\n  return %3\n}")
    assert [n.op.name for n in run(CSE, g).graph.nodes] == ["parameter", "neg", "exp", "sub"]


# --------------------------------------------------------------------------- dce
def test_dead_nodes_go_and_unused_parameters_stay():
    g = parse_graph("graph @g(%x: f32[3], %unused: f32[3], %y: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  %1 = exp %0 : f32[3]\n"
                    "  %2 = abs %y : f32[3]\n  return %2\n}")
    after = run(DCE, g).graph
    assert [n.op.name for n in after.nodes] == ["parameter"] * 3 + ["abs"] and after.param_names() == ["x", "unused", "y"]


def test_parameters_declared_late_keep_their_place_in_the_signature():
    g = Graph("g")
    x = g.parameter("x", F)
    dead = g.add("exp", (x,))
    live = g.add("neg", (x,))
    late = g.parameter("late", F)
    g.add("abs", (dead,))
    g.set_outputs([g.add("add", (live, late))])
    for each in (DCE, CSE):
        after = run(each, g).graph
        assert after.param_names() == ["x", "late"] and after.output_types() == [F]
    assert len(run(DCE, g).graph) == 4


def test_an_all_live_graph_is_returned_itself():
    g = parse_graph("graph @g(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  return %0\n}")
    assert run(DCE, g).graph is g and run(CSE, g).graph is g
