"""What a graph repeats is worked out once: layers of a model differ in the nodes they read, not in what they do with them.

All that a root's computation depends on is the graph from the root up to values in memory (its cone): ops, attributes, types,
who reads whom, and of what is in memory the type and whether it is constant data. Cones equal in all of that give equal expressions
but for the nodes named in them, and groups of equal roots that read each other alike equal kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.core.dataclass import replace
from mlc.graph.graph import Graph
from mlc.kernel.ir import Kernel
from mlc.ops.base import VIEW
from mlc.passes.access import Inliner, is_stored
from mlc.passes.attend import attend_root
from mlc.passes.attention import Attention
from mlc.passes.cse import comparable
from mlc.passes.rootexpr import RootExpr, build_root


class _Numbers(dict):
    """Equal keys have equal numbers, in order of first appearance."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class Roots:
    """The roots of a graph as `RootExpr`s."""

    def __init__(self, graph: Graph, is_root: Sequence[bool], attention: Mapping[int, Attention]):
        self.graph, self.attention = graph, attention
        self.inliner = Inliner(graph, is_root)
        self.numbers = _Numbers()
        self.stops = [(is_root[n] or is_stored(node)) and node.op.alias != VIEW for n, node in enumerate(graph.nodes)]
        self._inner: list[int | None] = [None] * len(graph)
        self._known: dict[int, RootExpr] = {}

    def root(self, n: int) -> RootExpr:
        """The computation of root `n`; its expressions are only made where no equal root has been met."""
        key, cone = self._cone(n)
        known = self._known.get(key)
        if known is None:
            found = self._known[key] = self._build(n)
            found.key, found.cone = key, cone
            return found
        moved = dict(zip(known.cone, cone))
        reads = {moved[k]: indices for k, indices in known.reads().items()}
        return replace(known, node=n, cone=cone, make=lambda: self._build(n), _reads=reads)

    def _build(self, n: int) -> RootExpr:
        if n in self.attention:
            return attend_root(self.graph, self.inliner, self.attention[n])
        return build_root(self.graph, self.inliner, n)

    def _cone(self, n: int) -> tuple[int, list[int]]:
        """The number of all roots like this one, and the nodes of its cone, in an order that equal cones share."""
        nodes, stops, inner = self.graph.nodes, self.stops, self._inner
        cone, place, rows = [n], {n: 0}, []
        attention = self.attention.get(n)
        if attention is not None:  # reads its operands behind movement that may be stored for others
            for m in attention.reads:
                if m not in place:
                    place[m] = len(cone)
                    cone.append(m)
        for k in cone:  # grows meanwhile
            node = nodes[k]
            if stops[k] and rows:
                rows.append((node.type, node.op.name == "constant"))
                continue
            number = inner[k]
            if number is None:
                number = inner[k] = self.numbers[node.op.name, comparable(node), node.type, tuple(map(id, node.regions))]
            row = [number]
            for operand in node.inputs:
                at = place.get(operand)
                if at is None:
                    at = place[operand] = len(cone)
                    cone.append(operand)
                row.append(at)
            rows.append(tuple(row))
        if attention is not None:
            a = attention
            rows.append((a.axes, tuple(a.sizes.items()), tuple([place[m] for m in a.reads]),
                         a.scores[1], a.query[1], a.key[1], a.value[1]))
        return self.numbers[tuple(rows)], cone


class Kernels:
    """The kernels of groups by what they are made of."""

    def __init__(self):
        self._known: dict[tuple, tuple[Kernel, list[int]]] = {}

    def of(self, group, escapes: set[int], build) -> tuple[Kernel, list[int]]:
        """The group's kernel and the nodes bound to it: `build(group)`, if that has not been called for an equal one."""
        place = _Numbers()
        key = (group.kind, group.shape, tuple([
            (m.key, m.node in escapes, tuple([place[n] for n in m.cone])) for m in group.members]))
        known = self._known.get(key)
        if known is None:
            group.members = [m.whole() for m in group.members]
            kernel, bound = build(group)
            self._known[key] = kernel, [place[n] for n in bound]
            return kernel, bound
        nodes = list(place)
        return known[0], [nodes[p] for p in known[1]]
