"""How a value is computed at an index: the inliner turns a node into one scalar expression over loads of stored values.

Elementwise ops apply their `scalar`, movement ops compose their index maps, reshapes of stored values are views (same flat
offset). Unit axes never get a loop variable, so that equal access patterns are equal expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.core import expr as ex
from mlc.core.affine import ZERO, Affine, variable
from mlc.core.dims import row_major_strides, static_shape
from mlc.core.expr import Expr, make
from mlc.graph.graph import Graph, Node
from mlc.ops.base import ELEMENTWISE, VIEW

Index = tuple[Affine, ...]


def view_base(graph: Graph, node: int) -> int:
    """The node whose buffer holds this node's elements: reshapes are views."""
    while graph.nodes[node].op.alias == VIEW:
        node = graph.nodes[node].inputs[0]
    return node


def flat_index(shape: Sequence[int], index: Index) -> Affine:
    """Row-major offset of a multi-index."""
    total = ZERO
    for affine, stride in zip(index, row_major_strides(shape)):
        total = total + affine * stride
    return total


def axes_of(shape: Sequence[int], prefix: str = "a") -> tuple[tuple[tuple[str, int], ...], Index]:
    """Loop axes for the non-unit dims of a shape, and the index that they make."""
    axes, index = [], []
    for d, size in enumerate(shape):
        if size == 1:
            index.append(ZERO)
        else:
            axes.append((f"{prefix}{d}", size))
            index.append(variable(f"{prefix}{d}"))
    return tuple(axes), tuple(index)


def is_stored(node: Node) -> bool:
    """Values that have a buffer before any kernel runs: parameters and dense constants."""
    return node.op.name == "parameter" or (node.op.name == "constant" and not node.is_splat)



class Inliner:
    """Expressions of nodes over loads of stored values and roots. Loads are named `v<node id>`."""

    def __init__(self, graph: Graph, is_root: Sequence[bool]):
        self.graph, self.is_root = graph, is_root
        self.memo: dict[tuple[int, Index], Expr] = {}

    def load(self, node: int, index: Index) -> Expr:
        value = self.graph.nodes[node]
        return make("load", value.type.dtype, (), (f"v{node}", flat_index(value.type.shape, index)))

    def read(self, node: int, index: Index) -> Expr:
        """The value of `node` at `index`: a load if it is stored, else its expression. Iterative: chains may be long."""
        return self._run(node, index, force=False)

    def compute(self, node: int, index: Index) -> Expr:
        """The expression that computes a root at `index`."""
        return self._run(node, index, force=True)

    def _run(self, node: int, index: Index, force: bool) -> Expr:
        stack = [(node, index, force, False)]
        while stack:
            n, at, forced, expanded = stack.pop()
            key = (n, at, forced)
            if key in self.memo:
                continue
            leaf = None if forced else self._leaf(n, at)
            if leaf is not None:
                self.memo[key] = leaf
                continue
            operands = self._operands(n, at)
            if expanded:
                self.memo[key] = self._apply(n, at, [self.memo[o, i, False] for o, i in operands])
            else:
                stack.append((n, at, forced, True))
                stack.extend((o, i, False, False) for o, i in operands if (o, i, False) not in self.memo)
        return self.memo[node, index, force]

    def _leaf(self, n: int, at: Index) -> Expr | None:
        node = self.graph.nodes[n]
        if node.op.alias == VIEW:
            base = view_base(self.graph, n)
            flat = flat_index(node.type.shape, at)
            return make("load", node.type.dtype, (), (f"v{base}", flat))
        if is_stored(node) or self.is_root[n]:
            return self.load(n, at)
        return None

    def _operands(self, n: int, at: Index) -> list[tuple[int, Index]]:
        node = self.graph.nodes[n]
        if node.op.fusion == ELEMENTWISE:
            return [(operand, at) for operand in node.inputs]
        if node.op.pieces is not None:
            types = [self.graph.nodes[i].type for i in node.inputs]
            (piece,) = node.op.pieces(types, node.attrs, node.type)
            source = tuple(sum((at[axis] * c for axis, c in terms), Affine(offset)) for offset, terms in piece.source)
            return [(node.inputs[0], source)]
        return []

    def _apply(self, n: int, at: Index, operands: list[Expr]) -> Expr:
        node = self.graph.nodes[n]
        if node.op.fusion == ELEMENTWISE:
            attrs = dict(node.attrs)
            if node.op.typed:
                attrs.update(shape=static_shape(node.type.shape), dtype=node.type.dtype)
            return node.op.scalar(*operands, **attrs)
        if node.op.generate is not None:
            return node.op.generate([ex.affine_value(a) for a in at], node.attrs, node.type)
        return operands[0]


def loads_of(roots: Sequence[Expr]) -> list[Expr]:
    """The distinct load leaves under these expressions, in a fixed order."""
    return [e for e in ex.topological(roots) if e.op == "load"]
