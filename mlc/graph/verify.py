"""The graph verifier: one function an invariant. It shares no code with the builder: types are inferred anew from the ops' rules."""

from __future__ import annotations

import re

from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.errors import VerifyError
from mlc.core.literal import Literal
from mlc.graph.graph import Graph
from mlc.ops.base import REGISTRY


def _where(graph: Graph, i: int) -> str:
    node = graph.nodes[i]
    return f"graph @{graph.name} node {i} ({node.op.name})"


def edges_point_backwards(graph: Graph) -> None:
    """Operands are earlier nodes: the graph is acyclic and ids are topological."""
    for i, node in enumerate(graph.nodes):
        for operand in node.inputs:
            if not (isinstance(operand, int) and 0 <= operand < i):
                raise VerifyError("edges_point_backwards", _where(graph, i), f"operand {operand}", f"an id in 0..{i - 1}")


def outputs_exist(graph: Graph) -> None:
    for output in graph.outputs:
        if not (isinstance(output, int) and 0 <= output < len(graph.nodes)):
            raise VerifyError("outputs_exist", f"graph @{graph.name}", f"output {output}", f"an id below {len(graph.nodes)}")
        if not isinstance(graph.nodes[output].type, TensorType):
            raise VerifyError("outputs_exist", _where(graph, output), "a tuple as an output", "a tensor")


def params_are_parameters(graph: Graph) -> None:
    """`params` lists every parameter node once, and names are unique."""
    found = [i for i, n in enumerate(graph.nodes) if n.op.name == "parameter"]
    if sorted(graph.params) != found:
        raise VerifyError("params_are_parameters", f"graph @{graph.name}", sorted(graph.params), found)
    names = [graph.nodes[p].attrs["name"] for p in graph.params]
    if len(set(names)) != len(names):
        raise VerifyError("params_are_parameters", f"graph @{graph.name}", names, "distinct names")


def ops_are_registered(graph: Graph) -> None:
    for i, node in enumerate(graph.nodes):
        if REGISTRY.get(node.op.name) is not node.op:
            raise VerifyError("ops_are_registered", _where(graph, i), node.op.name, "the registry's own definition")
        if node.op.arity is not None and len(node.inputs) != node.op.arity:
            raise VerifyError("ops_are_registered", _where(graph, i), f"{len(node.inputs)} operands", node.op.arity)
        if set(node.attrs) != set(node.op.attrs):
            raise VerifyError("ops_are_registered", _where(graph, i), sorted(node.attrs), sorted(node.op.attrs))


def _is_ints(value: object) -> bool:
    return isinstance(value, tuple) and all(type(i) is int for i in value)


# What a value of each attribute kind looks like; `bool` is no int here, because text and keys tell them apart.
_KINDS = {
    "int": ("an int", lambda v: type(v) is int),
    "ints": ("a tuple of ints", _is_ints),
    "axes": ("a sorted tuple of distinct axes", lambda v: _is_ints(v) and all(i >= 0 for i in v) and list(v) == sorted(set(v))),
    "pairs": ("a tuple of tuples of ints", lambda v: isinstance(v, tuple) and all(map(_is_ints, v))),
    "str": ("a string", lambda v: type(v) is str),
    "literal": ("a Literal", lambda v: isinstance(v, Literal)),
    "dtype": ("a DType", lambda v: isinstance(v, DType)),
}


def attributes_have_their_kinds(graph: Graph) -> None:
    """Each attribute is of the kind that its op declares, immutable and printable."""
    for i, node in enumerate(graph.nodes):
        for name, kind in node.op.attrs.items():
            wanted, holds = _KINDS.get(kind, (f"an attribute kind that is known, not {kind!r}", lambda v: False))
            if not holds(node.attrs[name]):
                raise VerifyError("attributes_have_their_kinds", _where(graph, i), f"{name}={node.attrs[name]!r}", wanted)


def regions_belong_to_calls(graph: Graph) -> None:
    """A call holds one graph, and no other node holds any; only calls have several results."""
    for i, node in enumerate(graph.nodes):
        wanted = 1 if node.op.name == "call" else 0
        if len(node.regions) != wanted or not all(isinstance(r, Graph) for r in node.regions):
            raise VerifyError("regions_belong_to_calls", _where(graph, i), f"regions {list(map(type, node.regions))}", f"{wanted} graphs")
        if isinstance(node.type, tuple) != bool(wanted):
            raise VerifyError("regions_belong_to_calls", _where(graph, i), node.type, "a tuple of types for a call only")


def _infer(graph: Graph, i: int) -> object:
    """The type by the op's rule; for a call, by its region's signature."""
    node = graph.nodes[i]
    types = [graph.nodes[k].type for k in node.inputs]
    if node.op.name == "call":
        region = node.regions[0]
        given = [region.nodes[p].type for p in region.params]
        if given != types:
            raise VerifyError("types_match_the_rules", _where(graph, i), f"operands {types}", f"the region's parameters {given}")
        return tuple(region.nodes[o].type for o in region.outputs)
    return node.op.infer(types, node.attrs, node.type if node.op.typed else None)


def types_match_the_rules(graph: Graph) -> None:
    """Every node's type is what its op's rule infers from its operands."""
    for i, node in enumerate(graph.nodes):
        try:
            expected = _infer(graph, i)
        except VerifyError:
            raise
        except Exception as error:  # a rule that crashes refuses, too
            raise VerifyError("types_match_the_rules", _where(graph, i), f"{type(error).__name__}: {error}", "operands the op accepts") from None
        if expected != node.type:
            raise VerifyError("types_match_the_rules", _where(graph, i), node.type, expected)


def constants_match_their_type(graph: Graph) -> None:
    for i, node in enumerate(graph.nodes):
        for value in node.attrs.values():
            if isinstance(value, Literal):
                if value.dtype is not node.type.dtype or value.array.dtype != node.type.dtype.numpy:
                    raise VerifyError("constants_match_their_type", _where(graph, i), value.dtype, node.type.dtype)
                if value.array.ndim and value.array.shape != node.type.shape:
                    raise VerifyError("constants_match_their_type", _where(graph, i), value.array.shape, node.type.shape)
                if value.array.flags.writeable:
                    raise VerifyError("constants_match_their_type", _where(graph, i), "writable data", "read-only data")


def names_can_be_printed(graph: Graph) -> None:
    """The names of the graph and its parameters read back as they print."""
    for where, name in [("graph", graph.name)] + [(f"parameter {p}", graph.nodes[p].attrs["name"]) for p in graph.params]:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
            raise VerifyError("names_can_be_printed", f"graph @{graph.name} {where}", repr(name), "letters, digits, _ and ., no digit first")


INVARIANTS = (edges_point_backwards, ops_are_registered, attributes_have_their_kinds, regions_belong_to_calls, outputs_exist, params_are_parameters,
              names_can_be_printed, types_match_the_rules, constants_match_their_type)


def verify(graph: Graph, stage: str = "") -> Graph:
    """Check every invariant of the graph and of its regions; returns the graph. VerifyError names stage, invariant and node."""
    todo = [graph]
    while todo:
        current = todo.pop()
        for invariant in INVARIANTS:
            try:
                invariant(current)
            except VerifyError as error:
                raise VerifyError(error.invariant, error.where, error.found, error.expected, stage) from None
        todo.extend(region for node in current.nodes for region in node.regions)
    return graph
