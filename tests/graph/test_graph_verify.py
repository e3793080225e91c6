"""The graph verifier refuses every hand-broken graph, naming stage, invariant and node."""

import numpy as np
import pytest

from mlc.core.dims import parse_type
from mlc.core.errors import VerifyError
from mlc.core.literal import Literal
from mlc.graph import Graph, Node, parse_graph, verify
from mlc.graph.verify import INVARIANTS
from mlc.ops.base import REGISTRY

TEXT = """graph @g(%x: f32[2,3], %w: f32[3,4], %p: f32[]) -> (f32[2,4], f32[2], i32[5]) {
  %0 = constant {value=[1.0, 2.0, 3.0]} : f32[3]
  %1 = broadcast_in_dim %0 {dims=[1]} : f32[2,3]
  %2 = sub %x, %1 : f32[2,3]
  %3 = dot_general %2, %w {contract=([1],[0])} : f32[2,4]
  %4 = reduce_sum %3 {axes=[1]} : f32[2]
  %5 = call %4 {
    graph @inner(%a: f32[2]) -> (f32[2]) {
      %0 = neg %a : f32[2]
      return %0
    }
  } : (f32[2])
  %6 = tuple_get %5 {index=0} : f32[2]
  %7 = pad %0, %p {pads=[[1,1,0]]} : f32[5]
  %8 = convert_element_type %7 : i32[5]
  return %3, %6, %8
}
"""
CONSTANT, BROADCAST, SUB, DOT, SUM, CALL, GET, PAD, CONVERT = range(3, 12)


def change(graph, index, **fields):
    old = graph.nodes[index]
    new = Node(old.op, old.inputs, old.attrs, old.type, old.regions, old.meta)
    for name, value in fields.items():
        setattr(new, name, value)
    graph.nodes[index] = new


def attrs(graph, at, /, **values):
    change(graph, at, attrs={**graph.nodes[at].attrs, **values})


def writable(graph):
    literal = Literal(np.array([1, 2, 3], np.float32))
    literal.array = np.array([1, 2, 3], np.float32)
    attrs(graph, CONSTANT, value=literal)


BROKEN = [
    ("edges_point_backwards", SUB, lambda g: change(g, SUB, inputs=(0, SUB))),
    ("edges_point_backwards", SUB, lambda g: change(g, SUB, inputs=(0, DOT))),
    ("edges_point_backwards", SUB, lambda g: change(g, SUB, inputs=(0, -1))),
    ("edges_point_backwards", SUB, lambda g: change(g, SUB, inputs=(0, "x"))),
    ("outputs_exist", None, lambda g: g.set_outputs([99])),
    ("outputs_exist", None, lambda g: g.set_outputs([-1])),
    ("outputs_exist", CALL, lambda g: g.set_outputs([CALL])),
    ("ops_are_registered", SUB, lambda g: change(g, SUB, inputs=(0,))),
    ("ops_are_registered", SUM, lambda g: change(g, SUM, attrs={})),
    ("ops_are_registered", SUM, lambda g: attrs(g, SUM, keepdims=1)),
    ("ops_are_registered", SUB, lambda g: change(g, SUB, op=type("Op", (), {"name": "sub", "arity": 2, "attrs": {}})())),
    ("params_are_parameters", None, lambda g: g.params.pop()),
    ("params_are_parameters", None, lambda g: g.params.append(SUB)),
    ("params_are_parameters", None, lambda g: attrs(g, 1, name="x")),
    ("attributes_have_their_kinds", SUM, lambda g: attrs(g, SUM, axes=[1])),
    ("attributes_have_their_kinds", SUM, lambda g: attrs(g, SUM, axes=(1, 1))),
    ("attributes_have_their_kinds", SUM, lambda g: attrs(g, SUM, axes=(True,))),
    ("attributes_have_their_kinds", SUM, lambda g: attrs(g, SUM, axes=(-1,))),
    ("attributes_have_their_kinds", SUM, lambda g: attrs(g, SUM, axes=1)),
    ("attributes_have_their_kinds", GET, lambda g: attrs(g, GET, index=np.int64(0))),
    ("attributes_have_their_kinds", DOT, lambda g: attrs(g, DOT, contract=((1,), [0]))),
    ("attributes_have_their_kinds", CONSTANT, lambda g: attrs(g, CONSTANT, value=np.zeros(3, np.float32))),
    ("attributes_have_their_kinds", 0, lambda g: attrs(g, 0, name=7)),
    ("regions_belong_to_calls", CALL, lambda g: change(g, CALL, regions=())),
    ("regions_belong_to_calls", CALL, lambda g: change(g, CALL, regions=("graph",))),
    ("regions_belong_to_calls", CALL, lambda g: change(g, CALL, type=parse_type("f32[2]"))),
    ("regions_belong_to_calls", SUB, lambda g: change(g, SUB, regions=g.nodes[CALL].regions)),
    ("regions_belong_to_calls", SUB, lambda g: change(g, SUB, type=(parse_type("f32[2,3]"),))),
    ("names_can_be_printed", None, lambda g: attrs(g, 0, name="a b")),
    ("names_can_be_printed", None, lambda g: attrs(g, 0, name="0")),
    ("names_can_be_printed", None, lambda g: setattr(g, "name", "<lambda>")),
    ("types_match_the_rules", SUB, lambda g: change(g, SUB, type=parse_type("f32[3,2]"))),
    ("types_match_the_rules", SUB, lambda g: change(g, SUB, type=parse_type("f16[2,3]"))),
    ("types_match_the_rules", SUB, lambda g: change(g, SUB, inputs=(0, 1))),
    ("types_match_the_rules", DOT, lambda g: attrs(g, DOT, contract=((0,), (0,)))),
    ("types_match_the_rules", DOT, lambda g: attrs(g, DOT, contract=((1,),))),
    ("types_match_the_rules", BROADCAST, lambda g: attrs(g, BROADCAST, dims=(0,))),
    ("types_match_the_rules", BROADCAST, lambda g: change(g, BROADCAST, type=parse_type("f32[2,4]"))),
    ("types_match_the_rules", SUM, lambda g: attrs(g, SUM, axes=(2,))),
    ("types_match_the_rules", CALL, lambda g: change(g, CALL, inputs=(SUB,))),
    ("types_match_the_rules", CALL, lambda g: change(g, CALL, type=(parse_type("f32[3]"),))),
    ("types_match_the_rules", GET, lambda g: attrs(g, GET, index=1)),
    ("types_match_the_rules", GET, lambda g: change(g, GET, inputs=(SUM,))),
    ("types_match_the_rules", PAD, lambda g: attrs(g, PAD, pads=((1, 1),))),
    ("types_match_the_rules", PAD, lambda g: change(g, PAD, inputs=(CONSTANT, CALL))),
    ("types_match_the_rules", CONVERT, lambda g: change(g, CONVERT, type=parse_type("i32[4]"))),
    ("types_match_the_rules", CONSTANT, lambda g: attrs(g, CONSTANT, value=Literal(np.zeros(3, np.float64)))),
    ("types_match_the_rules", CONSTANT, lambda g: attrs(g, CONSTANT, value=Literal(np.zeros((1, 3), np.float32)))),
    ("constants_match_their_type", CONSTANT, writable),
]


@pytest.mark.parametrize("invariant, node, breaks", BROKEN, ids=[f"{k}-{b[0]}" for k, b in enumerate(BROKEN)])
def test_a_broken_graph_is_refused_by_name(invariant, node, breaks):
    graph = parse_graph(TEXT)
    verify(graph)
    breaks(graph)
    with pytest.raises(VerifyError) as caught:
        verify(graph, "pass sabotage")
    assert caught.value.invariant == invariant
    assert caught.value.stage == "pass sabotage" and "after pass sabotage" in str(caught.value)
    if node is not None:
        assert f"node {node} " in caught.value.where


def test_every_invariant_has_a_graph_that_breaks_it():
    assert {i.__name__ for i in INVARIANTS} == {invariant for invariant, _, _ in BROKEN}


def test_a_constant_whose_data_changed_type_is_refused():
    graph = parse_graph(TEXT)
    literal = Literal(np.array([1, 2, 3], np.float32))
    literal.array = literal.array.astype(np.float64)
    attrs(graph, CONSTANT, value=literal)
    with pytest.raises(VerifyError, match="constants_match_their_type"):
        verify(graph)


def test_regions_are_verified_too():
    graph = parse_graph(TEXT)
    change(graph.nodes[CALL].regions[0], 1, op=REGISTRY["abs"], inputs=(1,))
    with pytest.raises(VerifyError, match="graph @inner node 1"):
        verify(graph)


def test_verify_errors_survive_pickling():
    import pickle
    error = VerifyError("edges_point_backwards", "graph @g node 4 (sub)", "operand 9", "an id in 0..3", "pass cse")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.invariant == error.invariant and again.stage == "pass cse"


def test_a_sound_graph_is_returned():
    graph = parse_graph(TEXT)
    assert verify(graph) is graph
    assert len(verify(Graph("empty"))) == 0


def test_an_invariant_does_not_change_the_graph():
    graph = parse_graph(TEXT)
    text = repr(graph)
    verify(graph)
    assert repr(graph) == text
