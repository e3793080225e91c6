"""Fusion: roots are grouped so that each group becomes one kernel.

What is fused: elementwise roots of one shape (chains, diamonds, several outputs); elementwise roots and reductions that run
over the same rows (softmax, layer norm: one kernel over rows that stay in L1); elementwise roots at the store of a
contraction (bias, activation, residual). What is not, and each refusal is a note: a read at another index than the one being
computed, rows too long for the cache, a cycle between kernels. It runs last on the graph: every rewrite is done by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlc.core import options as opt
from mlc.core.affine import Affine
from mlc.core.dataclass import dataclass, field
from mlc.graph.graph import Graph
from mlc.passes.access import is_stored
from mlc.passes.attention import find_attention
from mlc.passes.repeat import Roots
from mlc.passes.rootexpr import ATTEND, DOT, MAP, PIECES, REDUCE, RootExpr
from mlc.passes.roots import choose_roots, every_root

FUSE_VERSION = 1
# A row whose stages keep values between them must stay in a core's L2.
MAX_ROW_BYTES = 256 * 1024
# Larger kernels gain nothing and their basic blocks compile in more than linear time.
MAX_KERNEL_INSTRUCTIONS = 1500
# Rows of so many elements that walk memory across are no rows to share: apart, each kernel tiles or sweeps what it reads.
ACROSS = 16


@dataclass
class Group:
    """Roots that become one kernel. `kind`: "map" (one shape, rows still free), "row" (fixed row extents), "dot", "attend", "pieces"."""

    id: int
    kind: str
    shape: tuple[int, ...]
    members: list[RootExpr] = field(default_factory=list)
    weight: int = 0
    before: int = 0  # bit set of the groups that must run earlier, transitively
    awaited: bool = False  # by a group that must run later

    def nodes(self) -> set[int]:
        return {m.node for m in self.members}


def space(root: RootExpr) -> tuple[int, ...]:
    """The extents a root's loops run over, unit axes dropped."""
    return tuple(extent for _, extent in root.axes)


def rows_of(root: RootExpr) -> tuple[int, ...]:
    """The row extents of a reduction: its axes before the first one that is folded away."""
    rows = []
    for name, extent in root.axes:
        if name in root.over:
            break
        rows.append(extent)
    return tuple(rows)


def result_extents(root: RootExpr) -> tuple[int, ...]:
    """Extents of the root's own value, unit axes dropped."""
    return tuple(extent for _, extent in root.kept)


def row_aligned(index: Affine, reader: RootExpr, producer: tuple[int, ...], rows: int) -> bool:
    """Does `index`, over the reader's axes, stay within the same row of the producer? Rows are the first `rows` axes of both."""
    inner = math.prod(producer[rows:])
    stride = inner
    rest = index
    for position in range(rows - 1, -1, -1):
        name, extent = reader.axes[position]
        if index.coefficient(name) != stride:
            return False
        rest = rest.without(name)
        stride *= extent
    low, high = rest.bounds(dict(reader.axes))
    return 0 <= low and high < max(inner, 1)


def walks_across(root: RootExpr, rows: int) -> bool:
    """Does a row of the root step through memory from row to row, where the rows lie side by side?"""
    if len(root.axes) <= rows or root.axes[-1][1] < ACROSS:
        return False
    last = root.axes[-1][0]
    beside = [name for name, extent in root.axes[:rows] if extent >= ACROSS]
    return any(abs(index.coefficient(last)) > 1 and any(index.coefficient(name) == 1 for name in beside)
               for indices in root.reads().values() for index in indices)


class Fuser:
    """Greedy, in topological order: each root joins the latest group that may take it, else starts its own."""

    def __init__(self, graph: Graph, enabled: bool = True):
        self.graph, self.enabled = graph, enabled
        self.groups: list[Group] = []
        self.group_of: dict[int, Group] = {}
        self.root_of: dict[int, RootExpr] = {}
        self.last_reader: dict[int, Group] = {}
        self.notes: list[tuple[int, int, str]] = []

    def add(self, root: RootExpr) -> None:
        reads = root.reads()
        producers = {self.group_of[n].id: self.group_of[n] for n in reads if n in self.group_of}
        candidates = dict(sorted(producers.items(), reverse=True))
        for n in reads:
            if is_stored(self.graph.nodes[n]) and n in self.last_reader:
                other = self.last_reader[n]
                candidates.setdefault(other.id, other)
        chosen = None
        for group in candidates.values() if self.enabled else ():
            refusal = self._refusal(root, group, reads, producers)
            if refusal is None:
                chosen = group
                break
            if group.id in producers:
                source = next(n for n in reads if n in self.group_of and self.group_of[n] is group)
                self.notes.append((source, root.node, refusal))
        if chosen is None:
            chosen = Group(len(self.groups), {MAP: "map", REDUCE: "row", DOT: "dot", PIECES: "pieces", ATTEND: "attend"}[root.kind],
                           rows_of(root) if root.kind == REDUCE else result_extents(root))
            self.groups.append(chosen)
        self._join(root, chosen, reads, producers)

    def _join(self, root: RootExpr, group: Group, reads: dict, producers: dict[int, Group]) -> None:
        if root.kind == REDUCE and group.kind == "map":
            group.kind, group.shape = "row", rows_of(root)
        group.members.append(root)
        group.weight += root.weight()
        self.group_of[root.node] = group
        self.root_of[root.node] = root
        before = group.before
        for other in producers.values():
            if other is not group:
                before |= other.before | (1 << other.id)
                other.awaited = True
        if before != group.before:
            group.before = before
            for later in self.groups if group.awaited else ():
                if later.before >> group.id & 1:
                    later.before |= before
        for n in reads:
            if is_stored(self.graph.nodes[n]):
                self.last_reader[n] = group

    def _refusal(self, root: RootExpr, group: Group, reads: dict[int, set[Affine]], producers: dict[int, Group]) -> str | None:
        """Why `root` may not join `group`; None if it may."""
        for other in producers.values():
            if other is not group and (other.before >> group.id) & 1:
                return "a cycle between kernels"
        if group.weight + root.weight() > MAX_KERNEL_INSTRUCTIONS:
            return f"the kernel would grow past {MAX_KERNEL_INSTRUCTIONS} instructions"
        if root.kind in (DOT, PIECES, ATTEND) or group.kind == "pieces":
            return "the kernels have different loop structures"
        inside = {n: indices for n, indices in reads.items() if self.group_of.get(n) is group}
        if group.kind in ("dot", "attend"):
            return self._refuse_epilogue(root, group, inside)
        if group.kind == "map" and root.kind == MAP:
            if space(root) != group.shape:
                return f"shapes {list(group.shape)} and {list(space(root))} differ"
            rows = len(group.shape)
        else:
            row_extents = rows_of(root) if root.kind == REDUCE else group.shape
            if group.kind == "row" and row_extents != group.shape:
                return f"rows {list(group.shape)} and {list(row_extents)} differ"
            if space(root)[:len(row_extents)] != row_extents or any(space(m)[:len(row_extents)] != row_extents for m in group.members):
                return "the rows differ"
            rows = len(row_extents)
            if self._row_bytes(root, group, rows) > MAX_ROW_BYTES:
                return "a row is too long to stay in cache"
            if any(walks_across(m, rows) for m in (root, *group.members)):
                return "a row would walk memory across"
        for n, indices in inside.items():
            if not all(row_aligned(i, root, result_extents(self.root_of[n]), rows) for i in indices):
                return "it reads another row than the one it computes"
        return None

    def _row_bytes(self, root: RootExpr, group: Group, rows: int) -> int:
        sizes = (math.prod(space(m)[rows:]) * self.graph.nodes[m.node].type.dtype.itemsize for m in (*group.members, root))
        return sum(sizes)

    def _refuse_epilogue(self, root: RootExpr, group: Group, inside: dict[int, set[Affine]]) -> str | None:
        if root.kind != MAP:
            return "a reduction needs whole rows of the contraction"
        dot = group.members[0]
        if space(root) != result_extents(dot):
            return f"shapes {list(result_extents(dot))} and {list(space(root))} differ"
        for n, indices in inside.items():
            if not all(row_aligned(i, root, result_extents(self.root_of[n]), len(space(root))) for i in indices):
                return "it reads the contraction at another index than the one it computes"
        return None


def fuse(graph: Graph, names: Mapping[int, str]) -> tuple[list[Group], list[str]]:
    """Group the roots of a graph, whose nodes have these names in its text: (groups in creation order, notes on refused edges)."""
    off = {name.strip() for name in str(opt.get("disable_passes")).split(",")}
    enabled = "fuse" not in off
    attention, refused = find_attention(graph, names) if enabled and "attention" not in off else ({}, [])
    roots = choose_roots(graph, attention) if enabled else every_root(graph)
    made, fuser = Roots(graph, roots, attention), Fuser(graph, enabled)
    for n, is_root in enumerate(roots):
        if is_root:
            fuser.add(made.root(n))
    notes = [f"{names[a]} -> {names[b]} ({graph.nodes[b].op.name}): {refusal}" for a, b, refusal in fuser.notes]
    return fuser.groups, refused + notes


def order_groups(groups: Sequence[Group]) -> list[Group]:
    """Groups so that each comes after those it reads; ties by creation."""
    return sorted(groups, key=lambda g: (g.before.bit_count(), g.id))
