"""Motion: reshapes leave the middle of elementwise work, where they would force a value to be stored between two kernels.

Up: a tree of elementwise ops over stored values, read by one reshape only, is computed in the new shape from reshaped
leaves (a reshape of a stored value is a free view). Down: an elementwise op on reshaped results of other work is computed
in the old shape, so that it joins that work, and reshaped afterwards.
They cannot undo each other: up leaves reshapes of stored values only, and down moves only the others.
Bitwise exact: elementwise ops do not look at positions. Runs last: it needs exact use counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.core.dims import TensorType
from mlc.graph.analysis import users
from mlc.graph.graph import Graph, GraphRewriter, Node
from mlc.ops.base import ELEMENTWISE, LEAF, OPAQUE
from mlc.passes.manager import Pass, PassContext, PassResult
from mlc.passes.rules_movement import surviving_axes, unit_free

Shape = tuple[int, ...]


def is_stored(node: Node) -> bool:
    """Values that stand in memory whatever fusion does: parameters, constant data, results of opaque ops."""
    return node.op.fusion in (LEAF, OPAQUE) or (node.op.name == "constant" and not node.is_splat)


def joins_readers(node: Node) -> bool:
    """Values whose kernel an elementwise reader could join."""
    return not is_stored(node) and not node.is_splat and node.op.name != "reshape"


def takes_shape(nodes: Sequence[Node], value: int, shape: Shape) -> bool:
    """Whether the value costs nothing in another shape: stored values, splats, and broadcasts that can be made in that shape."""
    node = nodes[value]
    if node.op.name == "reshape":
        return is_stored(nodes[node.inputs[0]])
    if node.op.name == "broadcast_in_dim":
        source = nodes[node.inputs[0]].type.shape
        return surviving_axes(source, node.attrs["dims"], node.type.shape, shape) is not None
    return is_stored(node) or node.is_splat


class _Builder:
    """The new graph, and values brought into other shapes, each once."""

    def __init__(self, graph: Graph):
        self.nodes = graph.nodes
        self.rewriter = GraphRewriter(graph)
        self.new, self.placed = self.rewriter.new, self.rewriter.map
        self.reshaped: dict[tuple[int, Shape], int] = {}

    def in_shape(self, value: int, shape: Shape) -> int:
        """The new id of a value that `takes_shape`, in that shape."""
        key = value, shape
        if key not in self.reshaped:
            self.reshaped[key] = self._bring(self.nodes[value], value, shape)
        return self.reshaped[key]

    def _bring(self, node: Node, value: int, shape: Shape) -> int:
        dtype, meta = node.type.dtype, node.meta
        if node.is_splat:
            return self.new.shared_constant(node.attrs["value"], TensorType(shape, dtype), meta)
        if node.op.name != "broadcast_in_dim":
            return self.new.add("reshape", (self.placed[value],), {}, TensorType(shape, dtype), meta=meta)
        source = self.nodes[node.inputs[0]].type.shape
        operand, kept = self.placed[node.inputs[0]], unit_free(source)
        if kept != source:
            operand = self.new.add("reshape", (operand,), {}, TensorType(kept, dtype), meta=meta)
        dims = surviving_axes(source, node.attrs["dims"], node.type.shape, shape)
        return self.new.add("broadcast_in_dim", (operand,), {"dims": dims}, TensorType(shape, dtype), meta=meta)

    def elementwise(self, node: Node, operands: Sequence[int], shape: Shape) -> int:
        """The op on operands that are in `shape` already."""
        return self.new._append(Node(node.op, tuple(operands), node.attrs, TensorType(shape, node.type.dtype), (), node.meta))


class _Reads:
    """Who reads what, outputs included."""

    def __init__(self, graph: Graph):
        self.users, self.outputs = users(graph), frozenset(graph.outputs)

    def only(self, value: int, reader: int) -> bool:
        return self.users[value] == [reader] and value not in self.outputs


# --------------------------------------------------------------------------- up
def _tree_above(nodes: Sequence[Node], reads: _Reads, reshape: int) -> list[int] | None:
    """The elementwise ops that only this reshape reads, through each other, if all that they read takes its shape."""
    shape = nodes[reshape].type.shape
    tree: list[int] = []
    todo = [(nodes[reshape].inputs[0], reshape)]
    while todo:
        value, reader = todo.pop()
        if nodes[value].op.fusion == ELEMENTWISE and reads.only(value, reader):
            tree.append(value)
            todo.extend((operand, value) for operand in dict.fromkeys(nodes[value].inputs))
        elif not takes_shape(nodes, value, shape):
            return None
    return tree or None


def _up(graph: Graph, ctx: PassContext) -> Graph:
    nodes, reads = graph.nodes, _Reads(graph)
    shapes: dict[int, Shape] = {}
    for i, node in enumerate(nodes):
        if node.op.name == "reshape" and (tree := _tree_above(nodes, reads, i)) and ctx.permit("reshape-up"):
            shapes.update(dict.fromkeys(tree, node.type.shape))
    if not shapes:
        return graph
    build = _Builder(graph)
    placed = build.placed
    for i, node in enumerate(nodes):
        if i in shapes:
            operands = [placed[k] if k in shapes else build.in_shape(k, shapes[i]) for k in node.inputs]
            placed[i] = build.elementwise(node, operands, shapes[i])
        elif node.op.name == "reshape" and node.inputs[0] in shapes:
            placed[i] = placed[node.inputs[0]]
        else:
            build.rewriter.copy(i)
    return build.rewriter.finish()


# --------------------------------------------------------------------------- down
def _shape_below(node: Node, i: int, nodes: Sequence[Node], reads: _Reads, low: dict[int, tuple[int, Shape]]) -> Shape | None:
    """The one shape that this op's reshaped operands had before, if every other operand takes it, too."""
    shape = None
    rest = []
    for operand in dict.fromkeys(node.inputs):
        if operand not in low or not reads.only(operand, i):
            rest.append(operand)
        elif shape is not None and shape != low[operand][1]:
            return None
        else:
            shape = low[operand][1]
    return shape if shape is not None and all(takes_shape(nodes, operand, shape) for operand in rest) else None


def _down(graph: Graph, ctx: PassContext) -> Graph:
    nodes, reads = graph.nodes, _Reads(graph)
    build = _Builder(graph)
    placed, before = build.placed, ctx.applied
    low: dict[int, tuple[int, Shape]] = {}  # old id -> (new id of the same elements in the shape before the reshape, that shape)
    for i, node in enumerate(nodes):
        if node.op.fusion == ELEMENTWISE and low:
            shape = _shape_below(node, i, nodes, reads, low)
            if shape is not None and ctx.permit("reshape-down"):
                inner = build.elementwise(node, [low[k][0] if k in low else build.in_shape(k, shape) for k in node.inputs], shape)
                low[i] = inner, shape
                placed[i] = build.new.add("reshape", (inner,), {}, node.type, meta=node.meta)
                continue
        build.rewriter.copy(i)
        if node.op.name == "reshape" and joins_readers(nodes[node.inputs[0]]):
            source = node.inputs[0]
            low[i] = low[source] if source in low else (placed[source], nodes[source].type.shape)
    return graph if ctx.applied == before else build.rewriter.finish()


def _run(graph: Graph, ctx: PassContext) -> PassResult:
    if not any(node.op.name == "reshape" for node in graph.nodes):
        return PassResult(graph, changed=False)
    moved = _up(_down(graph, ctx), ctx)
    return PassResult(moved, changed=moved is not graph, settled=moved is graph)


MOTION = Pass("motion", 1, _run)
