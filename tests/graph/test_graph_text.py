"""The graph's text: it reads back, keeps every bit, is the same in every process, and malformed text is a ParseError with its place."""

import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, parse_type
from mlc.core.errors import MlcError, ParseError
from mlc.core.literal import Literal
from mlc.graph import Graph, Meta, evaluate, parse_graph, print_graph

TEXT = """graph @mlp(%x: f32[4,6], %w: f32[6,3], %b1: f32[3]) -> (f32[4,3], bool[4,3]) {
  %0 = dot_general %x, %w {contract=([1],[0])} : f32[4,3]
  %1 = broadcast_in_dim %b1 {dims=[1]} : f32[4,3]
  %2 = add %0, %1 : f32[4,3]
  %3 = max %2, 0.0 : f32[4,3]
  %4 = constant {value=[1.0, -0.0, 0x1.99999a0000000p-4]} : f32[3]
  %5 = broadcast_in_dim %4 {dims=[1]} : f32[4,3]
  %6 = call %3, %5 {
    graph @scale(%a: f32[4,3], %s: f32[4,3]) -> (f32[4,3], f32[4,3]) {
      %0 = mul %a, %s : f32[4,3]
      %1 = clamp -1.0, %0, 1.0 : f32[4,3]
      return %1, %a
    }
  } : (f32[4,3], f32[4,3])
  %7 = tuple_get %6 {index=0} : f32[4,3]
  %8 = constant {value=2.5} : f32[]
  %9 = pad %7, %8 {pads=[[0,0,0],[-1,1,0]]} : f32[4,3]
  %10 = lt %9, inf : bool[4,3]
  %11 = select %10, %9, nan : f32[4,3]
  return %11, %10
}
"""


def round_trip(graph):
    text = print_graph(graph)
    again = parse_graph(text, graph.constants())
    assert print_graph(again) == text and again == graph
    return again


def test_text_reads_back_and_prints_the_same():
    graph = parse_graph(TEXT)
    assert print_graph(graph) == TEXT
    round_trip(graph)


def test_what_reads_back_means_the_same():
    graph = parse_graph(TEXT)
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(t.shape).astype(np.float32) for t in graph.input_types()]
    for a, b in zip(evaluate(graph, args), evaluate(round_trip(graph), args)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", range(120))
def test_random_graphs_read_back(seed):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "passes"))
    try:
        from random_graphs import random_graph
    finally:
        sys.path.pop(0)
    round_trip(random_graph(seed))


# --------------------------------------------------------------------------- bits of constants
def bits_of(dtype):
    """Bit patterns worth keeping: zeros, subnormals, ends, infinities, NaNs with signs and payloads; and random ones."""
    rng = np.random.default_rng(dtype.bits)
    width = dt.uint_of(dtype).numpy
    mantissa = dt.MANTISSA[dtype] - 1 if dtype.is_float else 3
    top = ((1 << (dtype.bits - 1 - mantissa)) - 1) << mantissa
    special = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, top - 1, top, top | 1, top | 1 << (mantissa - 1), top | (1 << mantissa) - 1]
    special += [s | 1 << (dtype.bits - 1) for s in special]
    drawn = rng.integers(0, 1 << 63, 40, dtype=np.uint64) * np.uint64(2) + rng.integers(0, 2, 40, dtype=np.uint64)
    return np.concatenate([np.array(special, np.uint64), drawn]).astype(width).view(dtype.numpy)


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d is not dt.bool_], ids=str)
def test_constants_keep_every_bit(dtype):
    values = bits_of(dtype)
    graph = Graph("g")
    nodes = [graph.constant(v, TensorType((3,), dtype)) for v in values]  # splats
    nodes += [graph.constant(values[k:k + 6].reshape(2, 3)) for k in range(0, len(values) - 6, 6)]  # printed in full
    nodes.append(graph.constant(values.reshape(-1)))  # printed by digest
    graph.set_outputs(nodes)
    again = round_trip(graph)
    for a, b in zip(graph.outputs, again.outputs):
        one, other = graph.nodes[a].attrs["value"], again.nodes[b].attrs["value"]
        assert one.array.tobytes() == other.array.tobytes() and one.digest == other.digest


def test_floats_print_short_where_exact_and_in_hex_elsewhere():
    def shown(value, dtype="f32"):
        g = Graph("g")
        x = g.parameter("x", parse_type(f"{dtype}[2]"))
        g.set_outputs([g.add("add", (x, g.constant(value, parse_type(f"{dtype}[2]"))))])
        return re.search(r"add %x, (\S+) ", print_graph(g))[1]
    assert [shown(v) for v in (1, -0.0, 0.1, np.inf, -np.inf, np.nan, 1e-45)] == [
        "1.0", "-0.0", "0x1.99999a0000000p-4", "inf", "-inf", "nan", "0x1.0000000000000p-149"]
    assert shown(np.array(0x7fc00001, np.uint32).view(np.float32)) == "nan:0x7fc00001"
    assert shown(0.1, "f64") == "0.1" and shown(7, "u8") == "7"


def test_large_constants_print_by_digest_and_come_from_the_side_file():
    g = Graph("g")
    data = np.arange(20, dtype=np.float32)
    g.set_outputs([g.constant(data)])
    text = print_graph(g)
    digest = Literal(data).digest
    assert f'{{value="{digest}"}} : f32[20]' in text and len(text) < 120
    assert list(g.constants()) == [digest]
    with pytest.raises(ParseError, match=f"constant {digest} is not in the side file"):
        parse_graph(text)


def test_constants_inside_regions_are_in_the_side_file():
    inner = Graph("f")
    a = inner.parameter("a", parse_type("f32[20]"))
    inner.set_outputs([inner.add("add", (a, inner.constant(np.arange(20, dtype=np.float32))))])
    g = Graph("g")
    g.set_outputs([g.add("tuple_get", (g.add("call", (g.parameter("x", parse_type("f32[20]")),), regions=(inner,)),), {"index": 0})])
    assert len(g.constants()) == 1
    round_trip(g)


def test_a_side_file_of_another_type_is_refused():
    g = Graph("g")
    g.set_outputs([g.constant(np.arange(20, dtype=np.float32))])
    wrong = {d: Literal(np.arange(20, dtype=np.int32)) for d in g.constants()}
    with pytest.raises(ParseError, match="constant"):
        parse_graph(print_graph(g), wrong)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (1,), (1, 1), ()])
def test_constants_of_any_shape_read_back(shape):
    g = Graph("g")
    g.set_outputs([g.constant(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) + 1)])
    assert round_trip(g).output_types() == [TensorType(shape, dt.f32)]


# --------------------------------------------------------------------------- names and locations
def test_names_that_cannot_be_printed_are_made_printable():
    g = Graph("<lambda>")
    for name in ("params['w']", "0", "a b", "naïve", ""):
        g.parameter(name, parse_type("f32[]"))
    g.set_outputs([0])
    assert g.name == "_lambda_" and g.param_names() == ["params_w_", "_0", "a_b", "na_ve", "_"]
    round_trip(g)


def test_a_parameter_named_like_a_node_does_not_clash():
    g = Graph("g")
    x = g.parameter("0", parse_type("f32[2]"))
    g.set_outputs([g.add("neg", (x,))])
    round_trip(g)


def test_locations_print_on_request_only_and_do_not_count():
    def make(line):
        g = Graph("g")
        return g.set_outputs([g.add("neg", (g.parameter("x", parse_type("f32[2]")),), meta=Meta(f"model.py:{line}", "loss"))])
    assert make(3) == make(4) and "model.py" not in print_graph(make(3))
    located = print_graph(make(3), locations=True)
    assert "%0 = neg %x : f32[2]  ; model.py:3 (loss)" in located
    assert parse_graph(located) == make(3), "comments are skipped"


def test_text_is_the_same_in_every_process():
    code = "from mlc.graph import parse_graph, print_graph; import sys; t = sys.stdin.read(); print(print_graph(parse_graph(t)), end='')"
    for seed in ("0", "1", "77"):
        done = subprocess.run([sys.executable, "-c", code], input=TEXT, capture_output=True, text=True, timeout=60, check=True,
                              env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.stdout == TEXT


def test_symbolic_dims_print_and_read_back():
    text = "graph @g(%x: f32[B,128], %y: f32[B,128]) -> f32[B,128] {\n  %0 = add %x, %y : f32[B,128]\n  return %0\n}\n"
    assert print_graph(parse_graph(text)) == text


# --------------------------------------------------------------------------- malformed text
MALFORMED = [
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = frob %x : f32[2]\n  return %0\n}", "line 2, column 13: unknown op 'frob'"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = neg %y : f32[2]\n  return %0\n}", "line 2, column 12: '%y' is not a value defined above"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[3]\n  return %0\n}", "line 3, column 3: neg gives f32[2], the text says f32[3]"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  %0 = neg %x : f32[2]\n  return %0\n}", "%0 is defined twice"),
    ("graph @g(%x: f32[2]) -> f32[3] {\n  return %x\n}", "the graph returns [f32[2]], its head says f32[3]"),
    ("graph @g(%x: f32[2], %x: f32[2]) -> f32[2] {\n  return %x\n}", "two parameters are called %x"),
    ("graph @g(%x: f31[2]) -> f31[2] {\n  return %x\n}", "unknown dtype 'f31'"),
    ("graph @g(%x: f32[-2]) -> f32[2] {\n  return %x\n}", "a size cannot be negative"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  return %x\n}\nmore", "expected the end, found 'more'"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  return %x\n", "line 3, column 1: 'the end' is not a value"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = add %x, $ : f32[2]\n", "unexpected character '$'"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = add 1.0, 2.0 : f32[2]\n  return %0\n}", "at least one operand must be a value"),
    ("graph @g(%x: i8[2]) -> i8[2] {\n  %0 = add %x, 300 : i8[2]\n  return %0\n}", "300 does not fit i8"),
    ("graph @g(%x: i8[2]) -> i8[2] {\n  %0 = add %x, 1.5 : i8[2]\n  return %0\n}", "expected an integer, found '1.5'"),
    ("graph @g() -> f32[2] {\n  %0 = constant {value=[1.0, 2.0, 3.0]} : f32[2]\n  return %0\n}", "3 values cannot fill shape [2]"),
    ("graph @g(%x: f32[2]) -> f32[] {\n  %0 = reduce_sum %x {axes=[1]} : f32[]\n  return %0\n}", "axes (1,) must be sorted"),
    ("graph @g(%x: f32[2]) -> f32[1] {\n  %0 = slice %x {start=[0], limit=[1.0], strides=[1]} : f32[1]\n  return %0\n}", "takes integers, got [1.0]"),
    ("graph @g(%x: f32[2]) -> f32[] {\n  %0 = reduce_sum %x : f32[]\n  return %0\n}", "attributes [] given, ['axes'] needed"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = neg %x, %x : f32[2]\n  return %0\n}", "takes 1 operands, got 2"),
    ("", "expected 'graph', found 'the end'"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = call %x { } : (f32[2])\n  return %x\n}", "call"),
    ("graph @g() -> f32[] {\n  %0 = constant {value=" + "[" * 5000 + "} : f32[]\n  return %0\n}", "expected '}'"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n  %0 = pad %x, %x {pads=" + "[" * 5000 + "} : f32[2]\n  return %0\n}", "nested"),
    ("graph @g(%x: f32[2]) -> f32[2] {\n" + "  %0 = call %x { graph @g(%x: f32[2]) -> f32[2] {\n" * 2000, "nested"),
    ("graph @g(%x: f32[99999999999999999999999]) -> f32[2] {\n  return %x\n}", "neither a size nor a name"),
]


@pytest.mark.parametrize("text, message", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_text_is_a_parse_error_with_its_place(text, message):
    with pytest.raises(ParseError) as caught:
        parse_graph(text, what="model.mlc")
    assert message in str(caught.value)
    assert re.match(r"model\.mlc, line \d+, column \d+: ", str(caught.value))


def tokens(text):
    return re.findall(r"\s+|%?[A-Za-z0-9_.]+|.", text)


WORDS = ("-1", "99999999999", "1.0", "[", "]", "{", "}", "nan", "inf", "true", "none", "f32", '"', "%0", "((", ";", "1e999", "\x00", "é")


def damaged(rng, parts):
    """The tokens with one deleted, doubled, swapped with another, replaced by another, or cut in two."""
    parts = list(parts)
    for _ in range(rng.randint(1, 2)):
        i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
        match rng.randrange(6):
            case 0: del parts[i]
            case 1: parts.insert(i, parts[j])
            case 2: parts[i], parts[j] = parts[j], parts[i]
            case 3: parts[i] = parts[j]
            case 4: parts[i] = parts[i][:rng.randint(0, len(parts[i]))]
            case 5: parts[i] = rng.choice(WORDS)
    return "".join(parts)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_text_gives_a_graph_or_an_mlc_error(seed):
    rng = random.Random(seed)
    parts = tokens(TEXT)
    refused = 0
    for _ in range(250):
        text = damaged(rng, parts)
        try:
            parsed = parse_graph(text)
        except MlcError:
            refused += 1
        else:
            assert print_graph(parse_graph(print_graph(parsed))) == print_graph(parsed)
    assert refused > 100


def test_text_cut_anywhere_gives_a_parse_error():
    for end in range(len(TEXT) - 2):
        with pytest.raises(MlcError):
            parse_graph(TEXT[:end])
