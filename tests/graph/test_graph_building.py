"""Building graphs: what is inferred, shared and refused; rewriting without mutation; analyses."""

import numpy as np
import pytest

from mlc.core.dims import parse_type
from mlc.core.errors import DtypeError, ShapeError
from mlc.core.literal import Literal
from mlc.graph import Graph, GraphRewriter, parse_graph, print_graph, verify
from mlc.graph.analysis import last_uses, live_nodes, statistics, use_counts, users
from mlc.graph.graph import inline_call

F = parse_type("f32[2,3]")


def small():
    """x, y -> (x - y) * 2, with a dead exp and y used twice."""
    g = Graph("g")
    x, y = g.parameter("x", F), g.parameter("y", F)
    d = g.add("sub", (x, y))
    g.add("exp", (y,))
    two = g.constant(2.0, F)
    return g.set_outputs([g.add("mul", (d, two)), d])


# --------------------------------------------------------------------------- building
def test_types_are_inferred():
    g = small()
    assert g.output_types() == [F, F] and g.input_types() == [F, F] and g.param_names() == ["x", "y"]


@pytest.mark.parametrize("op, inputs, attrs, type, error, message", [
    ("sub", (0,), {}, None, ShapeError, "sub: takes 2 operands, got 1"),
    ("sub", (0, 2), {}, None, ShapeError, "shapes must be equal"),
    ("sub", (0, 3), {}, None, DtypeError, "dtypes must be equal"),
    ("not", (0,), {}, None, DtypeError, "not: operand is f32"),
    ("reduce_sum", (0,), {}, None, ShapeError, r"attributes \[\] given, \['axes'\] needed"),
    ("reduce_sum", (0,), {"axes": (1, 0)}, None, ShapeError, "sorted"),
    ("reshape", (0,), {}, None, ShapeError, "the result type must be given"),
    ("reshape", (0,), {}, "f32[7]", ShapeError, "has 6 elements"),
    ("transpose", (0,), {"perm": (0, 0)}, None, ShapeError, "not a permutation"),
    ("broadcast_in_dim", (0,), {"dims": (1, 0)}, "f32[3,2]", ShapeError, "increasing"),
    ("concatenate", (), {"axis": 0}, None, ShapeError, "at least one"),
    ("concatenate", (0, 2), {"axis": 0}, None, ShapeError, "differ outside axis 0"),
    ("slice", (0,), {"start": (0, 2), "limit": (2, 1), "strides": (1, 1)}, None, ShapeError, "need 0 <= start <= limit <= 3"),
    ("pad", (0, 1), {"pads": ((0, 0, 0), (0, 0, 0))}, None, ShapeError, "must be a scalar"),
    ("argmax", (4,), {"axes": (0,)}, "i32[2]", ShapeError, "no element to choose from"),
    ("iota", (), {"axis": 2}, "i32[2,3]", ShapeError, "out of range"),
    ("select", (0, 0, 0), {}, None, DtypeError, "the condition is f32"),
    ("dot_general", (0, 1), {"contract": ((1,), (0,)), "batch": ((), ())}, "f32[2,3]", ShapeError,
     r"contracting x.s axis 1 \(3\) with y.s axis 0 \(2\)"),
    ("tuple_get", (0,), {"index": 0}, None, ShapeError, "not a result"),
])
def test_operands_that_an_op_cannot_take_are_refused(op, inputs, attrs, type, error, message):
    g = Graph("g")
    for name, t in (("a", "f32[2,3]"), ("b", "f32[2,3]"), ("c", "f32[3]"), ("d", "f64[2,3]"), ("e", "f32[0,2]")):
        g.parameter(name, parse_type(t))
    with pytest.raises(error, match=message):
        g.add(op, inputs, attrs, parse_type(type) if type else None)
    assert len(g) == 5, "a refused node leaves nothing behind"


def test_constants_are_shared_by_bits_and_type():
    g = Graph("g")
    a = g.constant(0.0, F)
    assert g.constant(0.0, F) == a and g.constant(np.zeros((2, 3), np.float32)) == a, "an array of equal bits is a splat"
    assert len({a, g.constant(-0.0, F), g.constant(0.0, parse_type("f32[3]")), g.constant(0.0, parse_type("f64[2,3]"))}) == 4
    nans = [g.constant(np.array(bits, np.uint32).view(np.float32), F) for bits in (0x7fc00000, 0x7fc00001, 0xffc00000)]
    assert len(set(nans)) == 3


def test_constant_data_is_a_read_only_copy():
    data = np.arange(6, dtype=np.float32)
    g = Graph("g")
    node = g.nodes[g.constant(data)]
    data[0] = 99
    assert node.attrs["value"].array[0] == 0
    with pytest.raises(ValueError):
        node.attrs["value"].array[0] = 1


def test_two_parameters_of_one_name_are_refused():
    g = Graph("g")
    g.parameter("x", F)
    with pytest.raises(ShapeError, match="two parameters are called 'x'"):
        g.parameter("x", F)


def test_many_parameters_are_declared_in_linear_time():
    import time
    started = time.process_time()
    g = Graph("g")
    for k in range(20_000):
        g.parameter(f"p{k}", F)
    assert time.process_time() - started < 3.0


def test_equality_is_by_text():
    assert small() == small() and small() != parse_graph("graph @g(%x: f32[2,3]) -> f32[2,3] {\n  return %x\n}") and small() != 7
    with pytest.raises(TypeError):
        hash(small())


# --------------------------------------------------------------------------- rewriting
@pytest.mark.parametrize("shared", range(7))
def test_a_copy_equals_its_original_whatever_prefix_is_shared(shared):
    g = small()
    text = print_graph(g)
    rewriter = GraphRewriter(g, shared=shared)
    for i in range(len(g)):
        rewriter.copy(i)
    after = rewriter.finish()
    assert print_graph(after) == text == print_graph(g) and verify(after) is after
    after.add("neg", (0,))
    after.constant(3.0, F)
    after.parameter("z", F)
    assert print_graph(g) == text and len(g) == 6, "what is added to the copy does not show in the original"


def test_copies_share_constants_with_the_prefix():
    g = small()
    rewriter = GraphRewriter(g, shared=5)
    assert rewriter.new.constant(2.0, F) == 4
    early = GraphRewriter(g, shared=3)
    assert early.new.constant(2.0, F) == 3, "a constant after the prefix is not there yet"


def test_the_copy_knows_the_names_of_its_parameters():
    with pytest.raises(ShapeError, match="two parameters"):
        GraphRewriter(small()).new.parameter("x", F)


def test_inline_call_binds_parameters():
    f = small()
    g = Graph("outer")
    a, b = g.parameter("a", F), g.parameter("b", F)
    first, second = inline_call(g, f, (b, a))
    g.set_outputs([first, second])
    verify(g)
    assert "sub %b, %a" in print_graph(g)


# --------------------------------------------------------------------------- analyses
def test_analyses_of_a_small_graph():
    g = small()  # 0 x, 1 y, 2 sub, 3 exp, 4 const, 5 mul; outputs 5, 2
    assert use_counts(g) == [1, 2, 2, 0, 1, 1]
    assert users(g) == [[2], [2, 3], [5], [], [5], []]
    assert live_nodes(g) == [True, True, True, False, True, True]
    assert last_uses(g) == [2, 3, 6, 3, 5, 6]
    assert statistics(g) == {"constant": 1, "exp": 1, "mul": 1, "parameter": 2, "sub": 1}


def test_a_node_that_reads_a_value_twice_is_one_user():
    g = Graph("g")
    x = g.parameter("x", F)
    g.set_outputs([g.add("mul", (x, x))])
    assert use_counts(g) == [2, 1] and users(g) == [[1], []]


def test_unused_parameters_are_live():
    g = Graph("g")
    g.parameter("x", F)
    g.set_outputs([])
    assert live_nodes(g) == [True]


def test_literals_compare_by_dtype_shape_and_bits():
    assert Literal(np.float32(0.0)) != Literal(np.float32(-0.0))
    assert Literal(np.float32(1)) != Literal(np.float64(1)) and Literal(np.int32(1)) != Literal(np.uint32(1))
    assert Literal(np.zeros((2, 3), np.float32)) != Literal(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("at", [None, 0, 1, 63, 64, 100, 9998, 9999])
def test_an_array_is_a_splat_only_if_every_element_has_the_same_bits(at):
    data = np.full(10_000, 3.0, np.float32)
    if at is not None:
        data[at] = 4.0
    graph = Graph()
    node = graph.nodes[graph.constant(data)]
    assert node.is_splat == (at is None) and node.shape == (10_000,)
