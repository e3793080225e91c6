"""The graph IR: an SSA DAG of tensor ops in a dense arena.

A node is an integer id into `graph.nodes`; ids are topological, so every walk is a loop over a list, and dropping the
graph drops everything. Nodes are never changed once added: a pass builds a new graph (`GraphRewriter`).
A node of a region op (`call`) has a tuple of types; `tuple_get` picks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mlc.core.aligned import Block
from mlc.core.dataclass import dataclass
from mlc.core.dims import TensorType, require_addressable
from mlc.core.dtype import DType
from mlc.core.errors import ShapeError
from mlc.core.literal import Literal
from mlc.core.text import printable_name
from mlc.ops.base import OpDef, op

NodeType = TensorType | tuple[TensorType, ...]


@dataclass(frozen=True)
class Meta:
    """Where a node comes from: the user's file and line, the enclosing function, and a name. Ignored by equality, keys and snapshots."""

    source: str = ""
    function: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} ({self.function})" if self.function else self.source


class Node:
    """One op applied: `op`, operand ids `inputs`, `attrs` (never mutated), result `type`, nested graphs `regions`, and `meta`."""

    __slots__ = ("attrs", "inputs", "meta", "op", "regions", "type")

    def __init__(self, op: OpDef, inputs: tuple[int, ...], attrs: Mapping[str, Any], type: NodeType,
                 regions: tuple[Graph, ...] = (), meta: Meta | None = None):
        self.op, self.inputs, self.attrs, self.type, self.regions, self.meta = op, inputs, attrs, type, regions, meta

    def key(self) -> tuple:
        """What makes two nodes compute the same value: op, operands, attributes by bits, type and regions' text."""
        from mlc.graph.text import print_graph
        return (self.op.name, self.inputs, tuple(self.attrs.items()), self.type, tuple(print_graph(r) for r in self.regions))

    @property
    def is_splat(self) -> bool:
        """A constant with one value everywhere."""
        return self.op.name == "constant" and self.attrs["value"].is_scalar

    @property
    def shape(self) -> tuple:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


class Graph:
    """A function on tensors: `params` (ids of parameter nodes), `nodes`, `outputs` (ids, repeats allowed)."""

    __slots__ = ("_block", "_constants", "_names", "name", "nodes", "outputs", "params")

    def __init__(self, name: str = "main"):
        self.name = printable_name(name)
        self.nodes: list[Node] = []
        self.params: list[int] = []
        self.outputs: tuple[int, ...] = ()
        self._constants: dict[tuple[Literal, TensorType], int] = {}
        self._block = Block()
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self.nodes)

    def __eq__(self, other: object) -> bool:
        from mlc.graph.text import print_graph
        return isinstance(other, Graph) and print_graph(self) == print_graph(other)

    __hash__ = None

    def __repr__(self) -> str:
        from mlc.graph.text import print_graph
        return print_graph(self)

    # ----------------------------------------------------------------- building
    def parameter(self, name: str, type: TensorType, meta: Meta | None = None) -> int:
        """Declare the next parameter; names are unique within a graph, and made printable (`printable_name`)."""
        name = printable_name(name)
        if name in self._names:
            raise ShapeError(f"graph {self.name}: two parameters are called {name!r}")
        self._names.add(name)
        node = self._append(Node(op("parameter"), (), {"name": name}, type, (), meta))
        self.params.append(node)
        return node

    def constant(self, value: object, type: TensorType | None = None, meta: Meta | None = None) -> int:
        """A constant node, shared by bits: an array or Literal; with `type`, a scalar splat to that type."""
        literal = value if isinstance(value, Literal) else Literal(value if type is None else np.asarray(value, type.dtype.numpy), self._block)
        type = type or TensorType(literal.array.shape, literal.dtype)
        array = literal.array
        if array.ndim and array.size and type.size and _is_splat(array):
            literal = Literal(array.reshape(-1)[0])
        return self.shared_constant(literal, type, meta)

    def shared_constant(self, literal: Literal, type: TensorType, meta: Meta | None = None) -> int:
        """The constant node of this literal, as it is: for data that another graph's `constant` has already looked at."""
        found = self._constants.get((literal, type))
        if found is None:
            found = self._constants[literal, type] = self.add("constant", (), {"value": literal}, type, meta=meta)
        return found

    def add(self, op_: OpDef | str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None, type: NodeType | None = None,
            regions: tuple[Graph, ...] = (), meta: Meta | None = None) -> int:
        """Append a node and return its id. `type` is demanded of typed ops and inferred for the others.

        Raises ShapeError or DtypeError when the op's rule refuses the operands.
        """
        definition = op(op_) if isinstance(op_, str) else op_
        attrs = attrs or {}
        if definition.arity is not None and len(inputs) != definition.arity:
            raise ShapeError(f"{definition.name}: takes {definition.arity} operands, got {len(inputs)}")
        if attrs.keys() != definition.attrs.keys():
            raise ShapeError(f"{definition.name}: attributes {sorted(attrs)} given, {sorted(definition.attrs)} needed")
        attrs = {name: attrs[name] for name in definition.attrs} if attrs else {}
        found = infer_type(definition, [self.nodes[i].type for i in inputs], attrs, type, regions)
        return self._append(Node(definition, tuple(inputs), attrs, found, regions, meta))

    def _append(self, node: Node) -> int:
        type = node.type
        if type.__class__ is TensorType and not type.addressable:
            require_addressable(node.op.name, type)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def set_outputs(self, outputs: Iterable[int]) -> Graph:
        self.outputs = tuple(outputs)
        return self

    # ----------------------------------------------------------------- reading
    def type(self, node: int) -> NodeType:
        return self.nodes[node].type

    def param_names(self) -> list[str]:
        return [self.nodes[p].attrs["name"] for p in self.params]

    def input_types(self) -> list[TensorType]:
        return [self.nodes[p].type for p in self.params]

    def output_types(self) -> list[TensorType]:
        return [self.nodes[o].type for o in self.outputs]

    def constants(self) -> dict[str, Literal]:
        """The literals that text prints by digest: the side file of this graph, regions included."""
        found: dict[str, Literal] = {}
        todo = [self]
        while todo:
            for node in todo.pop().nodes:
                todo.extend(node.regions)
                value = node.attrs.get("value")
                if isinstance(value, Literal) and not value.is_scalar and not value.is_inline:
                    found[value.digest] = value
        return found


def _is_splat(array: np.ndarray) -> bool:
    """Whether all elements have the same bits; few are looked at where the answer is no."""
    raw = array.reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((raw[:64] == raw[0]).all() and (raw[::max(1, array.size // 64)] == raw[0]).all() and (raw == raw[0]).all())


def infer_type(definition: OpDef, types: Sequence[NodeType], attrs: Mapping[str, Any], given: NodeType | None,
               regions: Sequence[Graph]) -> NodeType:
    """The result type by the op's rule. `given` is the declared type of a typed op."""
    if definition.name == "call":
        (region,) = regions
        if region.input_types() != list(types):
            raise ShapeError(f"call: region {region.name} takes {region.input_types()}, got {list(types)}")
        return tuple(region.output_types())
    if definition.typed and given is None:
        raise ShapeError(f"{definition.name}: the result type must be given")
    return definition.infer(types, attrs, given if definition.typed else None)


class GraphRewriter:
    """Builds a new graph from an old one, in order: `map[old id]` is the new id. Passes use it so that the input is never mutated.

    The first `shared` nodes are taken over with their ids: a pass that changes little copies little. Nodes are immutable,
    so both graphs hold the same ones.
    """

    def __init__(self, old: Graph, shared: int = 0):
        self.old, self.new = old, Graph(old.name)
        new = self.new
        new.nodes = old.nodes[:shared]
        new._names = set(old._names)
        new._constants = {key: i for key, i in old._constants.items() if i < shared}
        self.map: dict[int, int] = dict(zip(range(shared), range(shared)))
        for p in old.params:
            if p >= shared:
                self.map[p] = new._append(old.nodes[p])
            new.params.append(self.map[p])

    def copy(self, old_id: int) -> int:
        """Copy a node with its operands mapped; params are already there. Types are carried over, not inferred again."""
        node = self.old.nodes[old_id]
        if old_id not in self.map:
            if node.op.name == "constant":
                self.map[old_id] = self.new.shared_constant(node.attrs["value"], node.type, node.meta)
            else:
                inputs = tuple(self.map[i] for i in node.inputs)
                if inputs != node.inputs:
                    node = Node(node.op, inputs, node.attrs, node.type, node.regions, node.meta)
                self.map[old_id] = self.new._append(node)
        return self.map[old_id]

    def finish(self) -> Graph:
        return self.new.set_outputs(self.map[o] for o in self.old.outputs)


def inline_call(target: Graph, region: Graph, inputs: Sequence[int], emit: Callable[[Node, tuple[int, ...]], int] | None = None) -> list[int]:
    """Copy `region`'s nodes into `target` with its parameters bound to `inputs`; returns the ids of its outputs."""
    bound = dict(zip(region.params, inputs))
    for i, node in enumerate(region.nodes):
        if i in bound:
            continue
        operands = tuple(bound[k] for k in node.inputs)
        if emit is not None:
            bound[i] = emit(node, operands)
        elif node.op.name == "constant":
            bound[i] = target.shared_constant(node.attrs["value"], node.type, node.meta)
        else:
            bound[i] = target._append(Node(node.op, operands, node.attrs, node.type, node.regions, node.meta))
    return [bound[o] for o in region.outputs]
