"""The graph verifier: one function an invariant. It shares no code with the builder: types are inferred anew from the ops' rules."""

from __future__ import annotations

from mlc.core.dims import TensorType
from mlc.core.errors import MlcError, VerifyError
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


def types_match_the_rules(graph: Graph) -> None:
    """Every node's type is what its op's rule infers from its operands."""
    for i, node in enumerate(graph.nodes):
        if node.op.name == "call":
            expected = tuple(r.type for r in (node.regions[0].nodes[o] for o in node.regions[0].outputs))
            given = [node.regions[0].nodes[p].type for p in node.regions[0].params]
            if given != [graph.nodes[k].type for k in node.inputs]:
                raise VerifyError("types_match_the_rules", _where(graph, i), "operands unlike the region's parameters", given)
        else:
            try:
                expected = node.op.infer([graph.nodes[k].type for k in node.inputs], node.attrs, node.type if node.op.typed else None)
            except MlcError as error:
                raise VerifyError("types_match_the_rules", _where(graph, i), str(error), "operands the op accepts") from None
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


INVARIANTS = (edges_point_backwards, outputs_exist, ops_are_registered, params_are_parameters, types_match_the_rules,
              constants_match_their_type)


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
