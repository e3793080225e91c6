"""Every rule of simplify: fires on its example, keeps every bit there, and not on its near misses.

The judge is the NumPy meaning of the ops, on all pairs of a set of edge values (signed zeros, subnormals, infinities,
NaN, integer limits), and on distinct values where elements move.
"""

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.dtype import ALL, FLOATS, INTS, NUMERIC, SIGNED, UNSIGNED
from mlc.graph import evaluate, parse_graph, print_graph, verify
from mlc.ops.base import ELEMENTWISE, REGISTRY
from mlc.passes.manager import PassContext
from mlc.passes.pipeline import run_pipeline
from mlc.passes.simplify import RULES, SIMPLIFY

BITS = (dt.bool_, *INTS)
EXACT_TYPES = BITS
ONES = {d: {"b": "true", "i": "-1", "u": str(d.max)}[d.kind] for d in BITS}
COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")
COUNT = 13 * 13  # every pair of 13 edge values


def edge_values(dtype):
    if dtype is dt.bool_:
        return np.arange(13) % 3 == 0
    if dtype.is_int:
        return np.array([dtype.min, dtype.max, 0, 1, 2, 3, 5, 7, 100, dtype.max - 1, dtype.min + 1, 64, 31], object).astype(dtype.numpy)
    tiny = 2.0 ** (dt.MIN_EXPONENT[dtype] - 2)
    top = float(np.ldexp(1.5, dt.MAX_EXPONENT[dtype]))
    with np.errstate(all="ignore"):
        return np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, top, -top, 1.375, -2.75]).astype(dtype.numpy)


def argument(type, position):
    """Pairs of edge values over the first two arguments of COUNT elements; distinct values for other shapes."""
    size = type.size
    if size == COUNT:
        edges = edge_values(type.dtype)
        return (np.repeat(edges, 13) if position % 2 == 0 else np.tile(edges, 13)).reshape(type.shape)
    distinct = np.arange(size) * 3 + position + 1
    return (distinct % 2 == 0 if type.dtype is dt.bool_ else distinct.astype(type.dtype.numpy)).reshape(type.shape)


def graph_of(params, lines):
    """The graph with these parameters ("x: f32[3], y: f32[3]"), one node a line (%0, %1, ...), returning the last."""
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    named = ", ".join("%" + p.strip() for p in params.split(";")) if params else ""
    result = lines[-1].rsplit(" : ", 1)[1]
    return parse_graph(f"graph @g({named}) -> {result} {{\n{body}  return %{len(lines) - 1}\n}}")


def same(a, b):
    """Equal bits, or both NaN."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    with np.errstate(all="ignore"):
        return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all())


def simplify(graph):
    before = print_graph(graph)
    result = SIMPLIFY.run(graph, PassContext())
    assert print_graph(graph) == before
    verify(result.graph)
    return result


def check_example(params, lines):
    """Something fires, every bit stays, and once is enough. Returns the names of what fired."""
    graph = graph_of(params, lines)
    result = simplify(graph)
    assert result.changed
    args = [argument(t, i) for i, t in enumerate(graph.input_types())]
    with np.errstate(all="ignore"):
        want, got = evaluate(graph, args), evaluate(result.graph, args)
    assert same(want[0], got[0]), print_graph(result.graph)
    assert not SIMPLIFY.run(result.graph, PassContext()).changed, "a pass leaves nothing for itself to do"
    return set(result.stats)


# --------------------------------------------------------------------------- elementwise rules, in every dtype they take
# "T" is the type of the parameters x, y, z (T[COUNT]), "B" is bool[COUNT]; a line without a type gives T.
def unary_twice(op):
    return (f"{op} %x", f"{op} %0")


def sym(op, a, b):
    """Both operand orders of a commutative op, each an example of its own."""
    return [(f"{op} {a}, {b}",), (f"{op} {b}, {a}",)]


SCALAR_RULES = [
    ("neg-of-neg", NUMERIC, unary_twice("neg")), ("abs-of-abs", NUMERIC, unary_twice("abs")), ("sign-of-sign", NUMERIC, unary_twice("sign")),
    ("floor-of-floor", FLOATS, unary_twice("floor")), ("ceil-of-ceil", FLOATS, unary_twice("ceil")),
    ("round-of-round", FLOATS, unary_twice("round")), ("not-of-not", BITS, unary_twice("not")),
    *(("add-zero", INTS, e) for e in sym("add", "%x", "0")), *(("add-negative-zero", FLOATS, e) for e in sym("add", "%x", "-0.0")),
    ("sub-zero", INTS, ("sub %x, 0",)), ("sub-zero", FLOATS, ("sub %x, 0.0",)),
    *(("mul-one", NUMERIC, e) for e in sym("mul", "%x", "1")), ("div-one", NUMERIC, ("div %x, 1",)),
    *(("mul-minus-one", SIGNED + FLOATS, e) for e in sym("mul", "%x", "-1")), ("div-minus-one", SIGNED + FLOATS, ("div %x, -1",)),
    *(("max-lowest", ALL, e) for e in sym("max", "%x", "LOWEST")), *(("min-highest", ALL, e) for e in sym("min", "%x", "HIGHEST")),
    *(("and-ones", BITS, e) for e in sym("and", "%x", "ONES")), *(("or-zero", BITS, e) for e in sym("or", "%x", "ZERO")),
    *(("xor-zero", BITS, e) for e in sym("xor", "%x", "ZERO")), *(("xor-ones", BITS, e) for e in sym("xor", "%x", "ONES")),
    ("shift_left-by-zero", INTS, ("shift_left %x, 0",)), ("shift_right_arithmetic-by-zero", INTS, ("shift_right_arithmetic %x, 0",)),
    ("shift_right_logical-by-zero", INTS, ("shift_right_logical %x, 0",)),
    *(("mul-zero", INTS, e) for e in sym("mul", "%x", "0")), *(("and-zero", BITS, e) for e in sym("and", "%x", "ZERO")),
    *(("or-ones", BITS, e) for e in sym("or", "%x", "ONES")), *(("max-highest", EXACT_TYPES, e) for e in sym("max", "%x", "HIGHEST")),
    *(("min-lowest", EXACT_TYPES, e) for e in sym("min", "%x", "LOWEST")),
    ("rem-one", INTS, ("rem %x, 1",)), ("rem-minus-one", SIGNED, ("rem %x, -1",)),
    ("max-of-same", ALL, ("max %x, %x",)), ("min-of-same", ALL, ("min %x, %x",)),
    ("and-of-same", BITS, ("and %x, %x",)), ("or-of-same", BITS, ("or %x, %x",)),
    *(("max-absorbs", ALL, ("max %x, %y", *e)) for e in sym("max", "%0", "%y") + sym("max", "%0", "%x")),
    *(("min-absorbs", ALL, ("min %x, %y", *e)) for e in sym("min", "%0", "%y") + sym("min", "%0", "%x")),
    *(("and-absorbs", BITS, ("and %x, %y", *e)) for e in sym("and", "%0", "%y") + sym("and", "%0", "%x")),
    *(("or-absorbs", BITS, ("or %x, %y", *e)) for e in sym("or", "%0", "%y") + sym("or", "%0", "%x")),
    ("xor-of-same", BITS, ("xor %x, %x",)), ("sub-of-same", INTS, ("sub %x, %x",)),
    ("select-of-same", ALL, ("lt %x, %y : B", "select %0, %x, %x")),
    *((f"{op}-of-same", EXACT_TYPES, (f"{op} %x, %x : B",)) for op in COMPARES),
    ("clamp-of-clamp", ALL, ("clamp %x, %y, %z", "clamp %x, %0, %z")), ("clamp-open", ALL, ("clamp LOWEST, %x, HIGHEST",)),
    *(("add-negated", NUMERIC, ("neg %y", *e)) for e in sym("add", "%x", "%0")), ("sub-negated", NUMERIC, ("neg %y", "sub %x, %0")),
    ("mul-negated-twice", NUMERIC, ("neg %x", "neg %y", "mul %0, %1")), ("div-negated-twice", FLOATS, ("neg %x", "neg %y", "div %0, %1")),
    ("abs-negated", SIGNED + FLOATS, ("neg %x", "abs %0")), ("abs-unsigned", UNSIGNED, ("abs %x",)),
    ("sub-swapped", INTS, ("sub %x, %y", "neg %0")),
    ("select-true", ALL, ("constant {value=true} : B", "select %0, %x, %y")), ("select-false", ALL, ("constant {value=false} : B",
      "select %0, %x, %y")),
    ("select-not", ALL, ("lt %x, %y : B", "add_not", "select %1, %x, %y")),
    ("select-of-bools", ALL, ("lt %x, %y : B", "select %0, true, false : B")),
    ("select-of-swapped-bools", ALL, ("lt %x, %y : B", "select %0, false, true : B")),
    ("not-eq", ALL, ("eq %x, %y : B", "not %0 : B")), ("not-ne", ALL, ("ne %x, %y : B", "not %0 : B")),
    *((f"not-{op}", EXACT_TYPES, (f"{op} %x, %y : B", "not %0 : B")) for op in ("lt", "le", "gt", "ge")),
    *(("eq-true", (dt.bool_,), e) for e in sym("eq", "%x", "true")), *(("eq-false", (dt.bool_,), e) for e in sym("eq", "%x", "false")),
    *(("ne-true", (dt.bool_,), e) for e in sym("ne", "%x", "true")), *(("ne-false", (dt.bool_,), e) for e in sym("ne", "%x", "false")),
    ("nonzero-of-converted-bool", NUMERIC, ("lt %x, %y : B", "convert_element_type %0", "ne %1, ZERO : B")),
    ("zero-of-converted-bool", NUMERIC, ("lt %x, %y : B", "convert_element_type %0", "eq %1, ZERO : B")),
    ("convert-to-same", ALL, ("convert_element_type %x",)),
    *(("division-by-power-of-two", FLOATS, (f"div %x, {c}",)) for c in (2.0, -4.0, 0.125, 0.5)),
    ("power-of-zero", NUMERIC, ("integer_pow %x {y=0}",)), ("power-of-one", NUMERIC, ("integer_pow %x {y=1}",)),
    ("power-of-two", NUMERIC, ("integer_pow %x {y=2}",)),
    *(("integer-power-by-constant", INTS, (f"pow %x, {c}",)) for c in (0, 1, 2, 3, 7, 100)),
]


def typed(line, dtype):
    """A template line for one dtype."""
    kind = f"{dtype.name}[{COUNT}]"
    if line == "add_not":
        return f"not %0 : bool[{COUNT}]"
    for word, value in (("LOWEST", {"f": "-inf", "b": "false"}.get(dtype.kind, str(dtype.min))), ("ONES", ONES.get(dtype, "")),
                        ("HIGHEST", {"f": "inf", "b": "true"}.get(dtype.kind, str(dtype.max))), ("ZERO", "false" if dtype is dt.bool_ else "0")):
        line = line.replace(word, value)
    return line.replace(": B", f": bool[{COUNT}]") if line.endswith(": B") else f"{line} : {kind}"


@pytest.mark.parametrize("case", SCALAR_RULES, ids=lambda c: f"{c[0]}:{'; '.join(c[2])}")
def test_an_elementwise_rule_keeps_every_bit(case):
    rule, dtypes, lines = case
    fired = set()
    for dtype in dtypes:
        params = "; ".join(f"{n}: {dtype.name}[{COUNT}]" for n in "xyz")
        fired |= check_example(params, [typed(line, dtype) for line in lines])
    assert rule in fired


# --------------------------------------------------------------------------- hoisting a broadcast over each elementwise op
HOISTED = [op for op in REGISTRY.values() if op.fusion == ELEMENTWISE]


@pytest.mark.parametrize("op", HOISTED, ids=lambda op: op.name)
@pytest.mark.parametrize("place", [None, 0, 1, 2], ids=["all", "first", "second", "third"])
def test_an_elementwise_op_of_broadcasts_runs_on_the_small_operand(op, place):
    """`place` is the operand that is a broadcast, the others being splats; None: all are."""
    if place is not None and place >= op.arity:
        return
    dtype = next(d for d in (dt.f32, dt.i32, dt.bool_) if d in op.dtypes)
    types = ["bool" if op.name == "select" and k == 0 else dtype.name for k in range(op.arity)]
    splat = {"bool": "true", "f32": "{}.5", "i32": "{}"}  # {}: unlike values, or select would not care for its condition
    lines = [f"broadcast_in_dim %p{k} {{dims=[1]}} : {t}[4,3]" if place in (None, k) else f"constant {{value={splat[t].format(k + 5)}}} : {t}[4,3]"
             for k, t in enumerate(types)]
    attrs = {"integer_pow": " {y=3}"}.get(op.name, "")
    result = {"convert_element_type": "i32", "is_finite": "bool"}.get(op.name, "bool" if op.name in COMPARES else dtype.name)
    lines.append(f"{op.name} {', '.join(f'%{k}' for k in range(op.arity))}{attrs} : {result}[4,3]")
    graph = graph_of("; ".join(f"p{k}: {t}[3]" for k, t in enumerate(types)), lines)
    after = simplify(graph)
    assert f"{op.name}-of-broadcast" in after.stats or "select-true" in after.stats
    args = [argument(t, i) for i, t in enumerate(graph.input_types())]
    assert same(evaluate(graph, args)[0], evaluate(after.graph, args)[0])
    assert all(n.type.shape != (4, 3) for n in after.graph.nodes if n.op is op)


def test_broadcasts_that_only_add_axes_move_up_to_the_next_one():
    graph = graph_of("x: f32[3]", ["reshape %x : f32[3,1]", "mul %0, 0.5 : f32[3,1]", "sqrt %1 : f32[3,1]",
                                   "broadcast_in_dim %2 {dims=[0,1]} : f32[3,4]"])
    after, _ = run_pipeline(graph)
    assert [(n.op.name, n.type.shape) for n in after.nodes if n.op.name not in ("constant", "parameter")] == [
        ("mul", (3,)), ("sqrt", (3,)), ("broadcast_in_dim", (3, 4))]


# --------------------------------------------------------------------------- movement rules
MOVEMENT = [
    ("transpose-of-transpose", "x: f32[2,3,4]", ("transpose %x {perm=[1,2,0]} : f32[3,4,2]", "transpose %0 {perm=[1,2,0]} : f32[4,2,3]")),
    ("transpose-identity", "x: f32[2,3,4]", ("transpose %x {perm=[1,2,0]} : f32[3,4,2]", "transpose %0 {perm=[2,0,1]} : f32[2,3,4]")),
    ("transpose-of-unit-axes", "x: f32[2,1,3]", ("transpose %x {perm=[1,0,2]} : f32[1,2,3]",)),
    ("reshape-to-same", "x: f32[2,3]", ("reshape %x : f32[2,3]",)),
    ("reshape-of-reshape", "x: f32[4,6]", ("reshape %x : f32[8,3]", "reshape %0 : f32[2,12]")),
    ("reshape-adding-units", "x: f32[2,3]", ("reshape %x : f32[1,2,1,3,1]",)),
    ("reshape-adding-units", "x: f32[]", ("reshape %x : f32[1,1]",)),
    ("reshape-of-broadcast", "x: f32[6]", ("broadcast_in_dim %x {dims=[1]} : f32[4,6]", "reshape %0 : f32[2,2,6]")),
    ("reshape-of-broadcast", "x: f32[4,1]", ("broadcast_in_dim %x {dims=[0,1]} : f32[4,6]", "reshape %0 : f32[4,2,3]")),
    ("reshape-of-broadcast", "x: f32[4,6]", ("broadcast_in_dim %x {dims=[1,3]} : f32[1,4,1,6]", "reshape %0 : f32[8,3]")),
    ("reshape-of-broadcast", "x: f32[2,3]", ("broadcast_in_dim %x {dims=[0,3]} : f32[2,4,6,3]", "reshape %0 : f32[2,24,3]")),
    ("broadcast-to-same", "x: f32[2,3]", ("broadcast_in_dim %x {dims=[0,1]} : f32[2,3]",)),
    ("broadcast-of-broadcast", "x: f32[3]", ("broadcast_in_dim %x {dims=[1]} : f32[1,3]", "broadcast_in_dim %0 {dims=[1,2]} : f32[5,4,3]")),
    ("transpose-of-broadcast", "x: f32[2,3]", ("broadcast_in_dim %x {dims=[0,2]} : f32[2,4,3]", "transpose %0 {perm=[1,0,2]} : f32[4,2,3]")),
    ("transpose-of-broadcast", "x: f32[2,3]", ("broadcast_in_dim %x {dims=[0,2]} : f32[2,4,3]", "transpose %0 {perm=[2,1,0]} : f32[3,4,2]")),
    ("slice-of-broadcast", "x: f32[5,1]",
     ("broadcast_in_dim %x {dims=[1,2]} : f32[4,5,6]", "slice %0 {start=[1,1,2], limit=[3,5,6], strides=[1,2,3]} : f32[2,2,2]")),
    ("rev-of-broadcast", "x: f32[5,2]", ("broadcast_in_dim %x {dims=[1,2]} : f32[4,5,2]", "rev %0 {axes=[0,1]} : f32[4,5,2]")),
    ("broadcast_in_dim-of-splat", "", ("constant {value=2.5} : f32[3]", "broadcast_in_dim %0 {dims=[1]} : f32[2,3]")),
    ("reshape-of-splat", "", ("constant {value=2.5} : f32[6]", "reshape %0 : f32[2,3]")),
    ("transpose-of-splat", "", ("constant {value=2.5} : f32[2,3]", "transpose %0 {perm=[1,0]} : f32[3,2]")),
    ("slice-of-splat", "", ("constant {value=2.5} : f32[6]", "slice %0 {start=[1], limit=[4], strides=[1]} : f32[3]")),
    ("rev-of-splat", "", ("constant {value=2.5} : f32[6]", "rev %0 {axes=[0]} : f32[6]")),
    ("pad-splat-with-itself", "", ("constant {value=2.5} : f32[6]", "constant {value=2.5} : f32[]", "pad %0, %1 {pads=[[1,2,0]]} : f32[9]")),
    ("concatenate-splats", "", ("constant {value=2.5} : f32[6]", "constant {value=2.5} : f32[2]", "concatenate %0, %1 {axis=0} : f32[8]")),
    ("slice-whole", "x: f32[2,3]", ("slice %x {start=[0,0], limit=[2,3], strides=[1,1]} : f32[2,3]",)),
    ("slice-of-slice", "x: f32[20]",
     ("slice %x {start=[1], limit=[18], strides=[3]} : f32[6]", "slice %0 {start=[1], limit=[6], strides=[2]} : f32[3]")),
    ("slice-of-slice", "x: f32[20,3]", ("slice %x {start=[2,0], limit=[20,3], strides=[5,1]} : f32[4,3]",
                                        "slice %0 {start=[3,1], limit=[4,3], strides=[4,1]} : f32[1,2]")),
    ("slice-of-slice", "x: f32[20]",
     ("slice %x {start=[19], limit=[20], strides=[7]} : f32[1]", "slice %0 {start=[1], limit=[1], strides=[1]} : f32[0]")),
    ("rev-of-rev", "x: f32[2,3]", ("rev %x {axes=[0,1]} : f32[2,3]", "rev %0 {axes=[1]} : f32[2,3]")),
    ("rev-of-units", "x: f32[1,3]", ("rev %x {axes=[0,1]} : f32[1,3]",)),
    ("rev-of-nothing", "x: f32[1,3]", ("rev %x {axes=[0]} : f32[1,3]",)),
    ("iota-of-one", "", ("iota {axis=1} : i32[3,1]",)),
    ("concatenate-fewer", "x: f32[2,3]", ("concatenate %x {axis=0} : f32[2,3]",)),
    ("concatenate-fewer", "x: f32[2]; y: f32[0]; z: f32[3]", ("concatenate %x, %y, %z {axis=0} : f32[5]",)),
    ("concatenate-fewer", "x: f32[2]; y: f32[1]; z: f32[3]", ("concatenate %x, %y {axis=0} : f32[3]", "concatenate %0, %z, %0 {axis=0} : f32[9]")),
    ("concatenate-fewer", "x: f32[9]",
     ("slice %x {start=[0], limit=[4], strides=[1]} : f32[4]", "slice %x {start=[4], limit=[7], strides=[1]} : f32[3]",
                                        "slice %x {start=[7], limit=[9], strides=[1]} : f32[2]", "concatenate %0, %1, %2 {axis=0} : f32[9]")),
    ("concatenate-fewer", "x: f32[10,2]", ("slice %x {start=[1,0], limit=[6,2], strides=[3,1]} : f32[2,2]",
                                           "slice %x {start=[7,0], limit=[8,2], strides=[3,1]} : f32[1,2]",
                                             "concatenate %0, %1 {axis=0} : f32[3,2]")),
    ("slice-of-concatenate", "x: f32[4]; y: f32[5]",
     ("concatenate %x, %y {axis=0} : f32[9]", "slice %0 {start=[4], limit=[8], strides=[3]} : f32[2]")),
    ("slice-of-pad", "x: f32[6]; v: f32[]", ("pad %x, %v {pads=[[2,1,0]]} : f32[9]", "slice %0 {start=[3], limit=[8], strides=[2]} : f32[3]")),
    ("pad-less", "x: f32[2,1]; v: f32[]", ("pad %x, %v {pads=[[0,0,0],[0,0,3]]} : f32[2,1]",)),
    ("pad-less", "x: f32[6]; v: f32[]", ("pad %x, %v {pads=[[-1,-2,0]]} : f32[3]",)),
    ("pad-less", "x: f32[0]; v: f32[]", ("pad %x, %v {pads=[[2,1,0]]} : f32[3]",)),
    ("dot-of-transposed-left", "x: f32[3,4]; y: f32[3,5]",
     ("transpose %x {perm=[1,0]} : f32[4,3]", "dot_general %0, %y {contract=([1],[0])} : f32[4,5]")),
    ("dot-of-transposed-right", "x: f32[4,3]; y: f32[5,3]",
     ("transpose %y {perm=[1,0]} : f32[3,5]", "dot_general %x, %0 {contract=([1],[0])} : f32[4,5]")),
    ("dot-of-transposed-right", "x: f32[2,4,3]; y: f32[5,2,3]",
     ("transpose %y {perm=[1,2,0]} : f32[2,3,5]", "dot_general %x, %0 {contract=([2],[1]), batch=([0],[0])} : f32[2,4,5]")),
    ("dot-of-transposed-left", "x: f32[3,2,4]; y: f32[2,3,5]",
     ("transpose %x {perm=[2,0,1]} : f32[4,3,2]", "dot_general %0, %y {contract=([2,1],[0,1])} : f32[4,5]")),
    *((f"{op}-of-one", f"x: {t}[2,1,3]", (f"{op} %x {{axes=[1]}} : {t}[2,3]",)) for op, t in (
        ("reduce_max", "f32"), ("reduce_min", "f32"), ("reduce_sum", "i32"), ("reduce_prod", "i32"), ("reduce_and", "i32"), ("reduce_or", "bool"))),
    *((f"{op}-of-one", "x: f32[2,1,3]", (f"{op} %x {{axes=[1]}} : i32[2,3]",)) for op in ("argmax", "argmin")),
    ("reduce_max-of-one", "x: f32[2,3]", ("reduce_max %x {axes=[]} : f32[2,3]",)),
    *((f"{op}-of-{op}", f"x: {t}[2,3,4,5]", (f"{op} %x {{axes=[1,3]}} : {t}[2,4]", f"{op} %0 {{axes=[1]}} : {t}[2]")) for op, t in (
        ("reduce_max", "f32"), ("reduce_min", "f32"), ("reduce_sum", "i8"), ("reduce_prod", "i8"), ("reduce_and", "i32"), ("reduce_or", "bool"))),
    *((f"{op}-of-transpose", f"x: {t}[2,3,4]", ("transpose %x {perm=[2,0,1]} : " + t + "[4,2,3]", f"{op} %0 {{axes=[0]}} : {t}[2,3]"))
      for op, t in (
        ("reduce_max", "f32"), ("reduce_min", "f32"), ("reduce_sum", "i8"), ("reduce_prod", "i8"), ("reduce_and", "i32"), ("reduce_or", "bool"))),
    *((f"{op}-of-splat", "", (f"constant {{value={c}}} : {t}[2,3]", f"{op} %0 {{axes=[1]}} : {t}[2]")) for op, t, c in (
        ("reduce_max", "f32", "-0.0"), ("reduce_min", "f32", "nan"), ("reduce_and", "i32", "6"), ("reduce_or", "bool", "true"))),
    ("convert-of-convert", "x: i8[5]", ("convert_element_type %x : i32[5]", "convert_element_type %0 : i8[5]")),
]


@pytest.mark.parametrize("case", MOVEMENT, ids=lambda c: f"{c[0]}:{'; '.join(c[2])}")
def test_a_movement_rule_moves_the_same_elements(case):
    rule, params, lines = case
    assert rule in check_example(params, lines)


def test_every_rule_has_an_example():
    shown = {case[0] for case in SCALAR_RULES} | {case[0] for case in MOVEMENT} | {f"{op.name}-of-broadcast" for op in HOISTED}
    assert {rule.name for rule in RULES.rules} == shown


# --------------------------------------------------------------------------- conversions, all triples
@pytest.mark.parametrize("middle", ALL, ids=str)
def test_conversion_chains_shrink_only_when_no_value_can_tell(middle):
    for first in ALL:
        for last in ALL:
            graph = graph_of(f"x: {first}[{COUNT + 256}]", [f"convert_element_type %x : {middle}[{COUNT + 256}]",
                                                          f"convert_element_type %0 : {last}[{COUNT + 256}]"])
            edges = np.resize(edge_values(first), COUNT)
            more = np.arange(256) - 128 if first.kind in "if" else np.arange(256)
            args = [np.concatenate([edges, more.astype(first.numpy)])]
            assert same(evaluate(graph, args)[0], evaluate(simplify(graph).graph, args)[0]), (first, middle, last)


def test_conversion_chains_that_lose_nothing_do_shrink():
    for chain in ("i8 i32 i8", "f32 f64 f32", "bf16 f32 f16", "i64 i32 i16", "bool f32 i8", "u8 f32 i16", "i32 f64 i64"):
        a, b, c = chain.split()
        graph = graph_of(f"x: {a}[3]", [f"convert_element_type %x : {b}[3]", f"convert_element_type %0 : {c}[3]"])
        assert "convert-of-convert" in simplify(graph).stats, chain


# --------------------------------------------------------------------------- near misses: nothing may happen
NEAR_MISSES = [
    ("x: f32[3]", ("add %x, 0.0 : f32[3]",)), ("x: f32[3]", ("sub %x, -0.0 : f32[3]",)), ("x: f32[3]", ("mul %x, 0.0 : f32[3]",)),
    ("x: f32[3]", ("mul %x, -0.0 : f32[3]",)), ("x: f32[3]", ("sub %x, %x : f32[3]",)), ("x: f32[3]", ("div %x, %x : f32[3]",)),
    ("x: i32[3]", ("div %x, %x : i32[3]",)), ("x: i32[3]", ("rem %x, %x : i32[3]",)), ("x: f32[3]", ("rem %x, 1.0 : f32[3]",)),
    *(("x: f32[3]", (f"{op} %x, %x : bool[3]",)) for op in COMPARES),
    *(("x: f32[3]; y: f32[3]", (f"{op} %x, %y : bool[3]", "not %0 : bool[3]")) for op in ("lt", "le", "gt", "ge")),
    ("x: f32[3]", ("max %x, inf : f32[3]",)), ("x: f32[3]", ("min %x, -inf : f32[3]",)), ("x: f32[3]", ("max %x, 0.0 : f32[3]",)),
    ("x: f32[3]; y: f32[3]", ("sub %x, %y : f32[3]", "neg %0 : f32[3]")), ("x: f32[3]", ("div %x, 3.0 : f32[3]",)),
    ("x: f32[3]", ("div 1.0, %x : f32[3]",)), ("x: f32[3]", ("sub 0.0, %x : f32[3]",)), ("x: i32[3]", ("sub 0, %x : i32[3]",)),
    ("x: i32[3]", ("div %x, 2 : i32[3]",)), ("x: f32[3]", ("div %x, 0.0 : f32[3]",)), ("x: f32[3]", ("div %x, inf : f32[3]",)),
    ("x: f32[3]", ("exp %x : f32[3]", "log %0 : f32[3]")), ("x: f32[3]", ("sqrt %x : f32[3]", "div %x, %0 : f32[3]")),
    ("x: f32[3]", ("pow %x, 2.0 : f32[3]",)), ("x: i32[3]", ("pow %x, -1 : i32[3]",)),
    ("x: i32[3]; y: i32[3]", ("neg %x : i32[3]", "neg %y : i32[3]", "div %0, %1 : i32[3]")),
    ("x: u8[3]",
     ("neg %x : u8[3]", "shift_left %0, 1 : u8[3]")), ("x: f32[3]", ("convert_element_type %x : bf16[3]", "convert_element_type %0 : f32[3]")),
    ("x: i8[3]", ("convert_element_type %x : f32[3]", "convert_element_type %0 : u8[3]")),
    ("x: f64[3]", ("convert_element_type %x : f32[3]", "convert_element_type %0 : f16[3]")),
    ("x: i32[3]", ("convert_element_type %x : f32[3]", "convert_element_type %0 : i32[3]")),
    ("x: f32[1]", ("reduce_sum %x {axes=[0]} : f32[]",)), ("x: f32[3]", ("reduce_sum %x {axes=[]} : f32[3]",)),
    ("x: f32[1]", ("reduce_prod %x {axes=[0]} : f32[]",)),
    ("x: f32[2,3]", ("reduce_sum %x {axes=[0]} : f32[3]", "reduce_sum %0 {axes=[0]} : f32[]")),
    ("x: f32[2,3]", ("transpose %x {perm=[1,0]} : f32[3,2]", "reduce_sum %0 {axes=[0,1]} : f32[]")),
    ("x: f32[2,3,4]", ("transpose %x {perm=[2,1,0]} : f32[4,3,2]", "reduce_max %0 {axes=[0]} : f32[3,2]")),
    ("x: f32[3,1,2]", ("transpose %x {perm=[1,2,0]} : f32[1,2,3]",)),
    ("x: f32[2,3]", ("transpose %x {perm=[1,0]} : f32[3,2]", "reshape %0 : f32[6]")),
    ("x: f32[1,3]", ("reshape %x : f32[3,1]",)), ("x: f32[2,3]", ("reshape %x : f32[1,6]",)), ("x: f32[1,3]", ("reshape %x : f32[3]",)),
    ("x: f32[6]", ("broadcast_in_dim %x {dims=[1]} : f32[4,6]", "reshape %0 : f32[8,3]")),
    ("x: f32[4]", ("broadcast_in_dim %x {dims=[0]} : f32[4,6]", "reshape %0 : f32[6,4]")),
    ("x: f32[4]; y: f32[5]", ("concatenate %x, %y {axis=0} : f32[9]", "slice %0 {start=[3], limit=[6], strides=[1]} : f32[3]")),
    ("x: f32[9]", ("slice %x {start=[0], limit=[4], strides=[1]} : f32[4]", "slice %x {start=[5], limit=[7], strides=[1]} : f32[2]",
                   "concatenate %0, %1 {axis=0} : f32[6]")),
    ("x: f32[9]", ("slice %x {start=[0], limit=[4], strides=[2]} : f32[2]", "slice %x {start=[4], limit=[7], strides=[1]} : f32[3]",
                   "concatenate %0, %1 {axis=0} : f32[5]")),
    ("x: f32[6]; v: f32[]", ("pad %x, %v {pads=[[2,1,0]]} : f32[9]", "slice %0 {start=[1], limit=[8], strides=[2]} : f32[4]")),
    ("x: f32[6]; v: f32[]", ("pad %x, %v {pads=[[0,0,1]]} : f32[11]", "slice %0 {start=[1], limit=[8], strides=[2]} : f32[4]")),
    ("x: f32[6]; v: f32[]", ("pad %x, %v {pads=[[-1,1,0]]} : f32[6]",)),
    ("x: f32[2,3,4]; y: f32[4,5]", ("transpose %x {perm=[1,0,2]} : f32[3,2,4]", "dot_general %0, %y {contract=([2],[0])} : f32[3,2,5]")),
    ("x: f32[3]; y: f32[4,3]", ("broadcast_in_dim %x {dims=[1]} : f32[4,3]", "add %0, %y : f32[4,3]")),
    ("x: f32[4]; y: f32[4]", ("broadcast_in_dim %x {dims=[0]} : f32[4,4]", "broadcast_in_dim %y {dims=[1]} : f32[4,4]", "add %0, %1 : f32[4,4]")),
]


@pytest.mark.parametrize("case", NEAR_MISSES, ids=lambda c: "; ".join(c[1]))
def test_a_near_miss_is_left_alone(case):
    result = simplify(graph_of(*case))
    assert not result.changed and not result.stats


def test_commutative_rules_see_nested_operands_in_either_order():
    graph = graph_of("x: f32[3]; y: f32[3]", ["max %y, %x : f32[3]", "max %x, %0 : f32[3]"])
    assert "max-absorbs" in simplify(graph).stats


def test_a_rule_prints_as_pattern_result_reason():
    rule = next(r for r in RULES.rules if r.name == "transpose-of-transpose")
    assert repr(rule) == ("transpose-of-transpose: transpose(transpose(x, perm=p), perm=q) -> transpose(x, perm=compose(p, q))"
                          "  (bitwise; one movement instead of two)")
