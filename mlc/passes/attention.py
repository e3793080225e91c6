"""Recognition of attention: softmax(query . key, with scale, mask and bias) . value, on the optimized graph, before roots are chosen.

What is identified: a contraction of e / sum(e), or of e and divided afterwards, with e = exp(s - max(s)) and s any elementwise function
of one other contraction; every connection may move elements (broadcasts, transposes). What is not, with a note: halves, whose every
op must round by itself; scores or weights that something else reads, too; a single query or key. It runs before fusion chooses what
is stored, because scores and weights then never are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.core.affine import ZERO, Affine, variable
from mlc.core.dataclass import dataclass, replace
from mlc.core.dims import row_major_strides
from mlc.core.expr import Expr
from mlc.graph.analysis import live_nodes, users
from mlc.graph.graph import Graph
from mlc.kernel.tiling import DOT_CHUNK
from mlc.ops.base import CONTRACTION, INJECTIVE, OPAQUE, REDUCTION, op
from mlc.ops.contraction import free_axes
from mlc.passes.access import Index, Inliner, flat_index, is_stored, loads_of, view_base
from mlc.passes.cse import comparable

# Each query takes a lane: with fewer, most of a vector would idle, and the scores are as small as the queries.
FEWEST_QUERIES = 4

EXP, SUB, DIV, MAX, SUM = (op(name) for name in ("exp", "sub", "div", "reduce_max", "reduce_sum"))


class Refused(Exception):
    """This softmax and contraction cannot be one attention kernel; the text says why."""


@dataclass(frozen=True)
class Attention:
    """One attention: `sink` is the node that holds its result, over `axes` (all of them, unit ones too) in the order of its layout.

    Axes are called b0.. (batch), m0.. (queries), n0 (keys), k0 (contracted with a query), c0 (values); `sizes` has all extents.
    """

    sink: int
    hidden: frozenset[int]
    axes: tuple[str, ...]
    sizes: dict[str, int]
    dot: int
    scores: tuple[int, Index]
    query: tuple[int, Index]
    key: tuple[int, Index]
    value: tuple[int, Index]
    exp: int

    @property
    def reads(self) -> tuple[int, ...]:
        """The nodes that it is computed from, as they are named here."""
        return self.dot, self.exp, self.scores[0], self.query[0], self.key[0], self.value[0]

    def moved(self, to: Mapping[int, int]) -> Attention:
        """The same among other nodes."""
        places = {name: (to[n], index) for name in ("scores", "query", "key", "value") for n, index in (getattr(self, name),)}
        return replace(self, sink=to[self.sink], hidden=frozenset(map(to.__getitem__, self.hidden)), dot=to[self.dot], exp=to[self.exp], **places)


def _unflatten(flat: Affine, shape: Sequence[int], sizes: dict[str, int]) -> Index | None:
    """The index into `shape` that a flat one stands for, if its variables can be told apart by their steps."""
    parts = [ZERO] * len(shape)
    strides = row_major_strides(shape)
    rest = flat.offset
    for axis, (extent, stride) in enumerate(zip(shape, strides)):
        if extent > 1:
            parts[axis], rest = Affine(rest // stride), rest % stride
    for name, step in flat.terms:
        axis = next((a for a, (extent, stride) in enumerate(zip(shape, strides)) if extent > 1 and step > 0 and step % stride == 0), None)
        if axis is None:
            return None
        parts[axis] = parts[axis] + variable(name) * (step // strides[axis])
    if any(part.bounds(sizes)[1] >= max(1, extent) or part.bounds(sizes)[0] < 0 for part, extent in zip(parts, shape)):
        return None
    return tuple(parts)


def _through_view(graph: Graph, n: int, index: Index, sizes: dict[str, int]) -> Index | None:
    """The index into a reshape's operand, if it is one."""
    return _unflatten(flat_index(graph.nodes[n].type.shape, index), graph.nodes[graph.nodes[n].inputs[0]].type.shape, sizes)


def _source(graph: Graph, n: int, index: Index, sizes: dict[str, int]) -> tuple[int, Index]:
    """The node, and the index there, that this one takes its element from: movement is passed through."""
    while True:
        node = graph.nodes[n]
        if node.op.name == "reshape":
            inner = _through_view(graph, n, index, sizes)
            if inner is None:
                return n, index
            index = inner
        elif node.op.fusion == INJECTIVE and node.op.pieces is not None and len(node.inputs) == 1:
            (piece,) = node.op.pieces([graph.nodes[i].type for i in node.inputs], node.attrs, node.type)
            index = tuple(sum((index[axis] * c for axis, c in terms), Affine(offset)) for offset, terms in piece.source)
        else:
            return n, index
        n = node.inputs[0]


class ScoreInliner(Inliner):
    """Inlines through reshapes of what is not stored, too, where `sizes` (extents of the index variables) tell axes apart."""

    def __init__(self, graph: Graph, is_root: Sequence[bool], sizes: dict[str, int]):
        super().__init__(graph, is_root)
        self.sizes = sizes

    def _leaf(self, n: int, at: Index) -> Expr | None:
        base = view_base(self.graph, n)
        if base != n and not is_stored(self.graph.nodes[base]) and not self.is_root[base] and self._inner(n, at) is not None:
            return None
        return super()._leaf(n, at)

    def _inner(self, n: int, at: Index) -> Index | None:
        return _through_view(self.graph, n, at, self.sizes) if self.graph.nodes[n].op.name == "reshape" else None

    def _operands(self, n: int, at: Index) -> list[tuple[int, Index]]:
        inner = self._inner(n, at)
        return super()._operands(n, at) if inner is None else [(self.graph.nodes[n].inputs[0], inner)]


class _Finder:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.live = live_nodes(graph)
        self.users = users(graph)
        self.outputs = frozenset(graph.outputs)
        self.roots = [n.op.fusion in (REDUCTION, CONTRACTION, OPAQUE) for n in graph.nodes]
        self.known: dict[tuple, tuple[Attention | Refused | None, list[int]]] = {}

    def node(self, n: int):
        return self.graph.nodes[n]

    def reads(self, score: tuple[int, Index], sizes: dict[str, int]) -> list[Expr]:
        """What the score loads when only reductions and contractions are stored."""
        return loads_of([ScoreInliner(self.graph, self.roots, sizes).read(*score)])

    # ----------------------------------------------------------------- the contraction with the values
    def at(self, n: int) -> Attention | None:
        """The attention whose contraction with the values is node n, if there is one. Raises Refused. Layers that repeat are looked at once."""
        if not any(map(self._may_be_weights, self.node(n).inputs)):
            return None
        key, around = self._surroundings(n)
        if key not in self.known:
            try:
                self.known[key] = self._found(n), around
            except Refused as refusal:
                self.known[key] = refusal, around
        found, first = self.known[key]
        if isinstance(found, Refused):
            raise found
        return found if found is None or first is around else found.moved(dict(zip(first, around)))

    def _surroundings(self, n: int) -> tuple[tuple, list[int]]:
        """All that decides what is found at node n, where equal graphs have equal keys, and the nodes in it, in an order that those share: what
        is computed from it alone by transposes and a division, and what that is computed from, to contractions and behind them through movement."""
        around, place = [n], {n: 0}
        while len(self.users[around[-1]]) == 1 and around[-1] not in self.outputs:
            user = self.users[around[-1]][0]
            if self.node(user).op.name != "transpose" and self.node(user).op is not DIV:
                break
            place[user] = len(around)
            around.append(user)
        def enter(k: int) -> None:
            if k not in place:
                place[k] = len(around)
                around.append(k)
        chain, todo, walked = len(around), list(around), set(around)
        for i, k in enumerate(todo):  # grows meanwhile
            node = self.node(k)
            for operand in () if is_stored(node) else node.inputs:
                enter(operand)
                if i < chain or node.op.fusion != CONTRACTION:
                    if operand not in walked:
                        walked.add(operand)
                        todo.append(operand)
                    continue
                while self._moves(operand):
                    operand = self.node(operand).inputs[0]
                    enter(operand)
        return tuple([self._row(k, place) for k in around]), around

    def _row(self, k: int, place: dict[int, int]) -> tuple:
        """What a node is and does among those that have a place."""
        node = self.node(k)
        if not node.inputs:  # who else reads a leaf is all the same
            return node.op.name, node.type, () if node.op.name == "parameter" else comparable(node)
        readers = tuple([place.get(u, -1) for u in self.users[k] if self.live[u] or u in place])
        return (node.op.name, node.type, comparable(node), k in self.outputs, len(self.users[k]), readers,
                tuple([place.get(i, -1) for i in node.inputs]), tuple(map(id, node.regions)))

    def _moves(self, n: int) -> bool:
        node = self.node(n)
        return node.op.name == "reshape" or (node.op.fusion == INJECTIVE and len(node.inputs) == 1)

    def _found(self, n: int) -> Attention | None:
        node = self.node(n)
        for side in (0, 1):
            if not self._may_be_weights(node.inputs[side]):
                continue
            sizes, index, axes = self._name_axes(n, side)
            found, at = _source(self.graph, node.inputs[side], index[side], sizes)
            rounded = self.node(found).op.name == "convert_element_type"
            if rounded:
                found, at = _source(self.graph, self.node(found).inputs[0], at, sizes)
            divided = self.node(found).op is DIV
            exp, exp_at = _source(self.graph, self.node(found).inputs[0], at, sizes) if divided else (found, at)
            if self.node(exp).op is not EXP:
                continue
            difference, inner = _source(self.graph, self.node(exp).inputs[0], exp_at, sizes)
            if self.node(difference).op is not SUB:
                continue
            (score, score_at), (top, top_at) = (_source(self.graph, i, inner, sizes) for i in self.node(difference).inputs)
            if self.node(top).op is not MAX or not self._folds(top, top_at, score, score_at, sizes):
                continue
            self._check_halves(exp)
            sink = n
            if divided:
                total, total_at = _source(self.graph, self.node(found).inputs[1], at, sizes)
            else:
                sink, axes, total, total_at = self._divided_later(n, axes, sizes)
            if total < 0 or self.node(total).op is not SUM or not self._folds(total, total_at, exp, exp_at, sizes):
                continue
            self._check_types(n, exp, rounded)
            sink, axes = self._transposed(sink, axes)
            return self._scores(n, side, sink, axes, sizes, index, (score, score_at), exp)
        return None

    def _may_be_weights(self, n: int) -> bool:
        """Whether a division or an exponential is at the end of all movement, whatever the index."""
        node = self.node(n)
        while node.op.name == "convert_element_type" or self._moves(n):
            n = node.inputs[0]
            node = self.node(n)
        return node.op is DIV or node.op is EXP

    def _name_axes(self, n: int, side: int) -> tuple[dict[str, int], list[Index], tuple[str, ...]]:
        """Extents by name, the index of each operand, where operand `side` holds the weights, and the result's axes."""
        node = self.node(n)
        shapes = [self.node(i).type.shape for i in node.inputs]
        names: list[list[str]] = [[""] * len(shape) for shape in shapes]
        sizes = {}
        for prefix, which in (("b", "batch"), ("n", "contract")):
            for position, pair in enumerate(zip(*node.attrs[which])):
                for operand, axis in enumerate(pair):
                    names[operand][axis] = f"{prefix}{position}"
                sizes[f"{prefix}{position}"] = shapes[0][pair[0]]
        for operand, prefix in ((side, "m"), (1 - side, "c")):
            for position, axis in enumerate(free_axes(len(shapes[operand]), node.attrs, operand)):
                names[operand][axis] = f"{prefix}{position}"
                sizes[f"{prefix}{position}"] = shapes[operand][axis]
        axes = [f"b{p}" for p in range(len(node.attrs["batch"][0]))]
        axes += [name for operand in names for name in operand if name[0] in "mc"]
        return sizes, [tuple(ZERO if sizes[name] == 1 else variable(name) for name in operand) for operand in names], tuple(axes)

    def _folds(self, reduce: int, at: Index, node: int, node_at: Index, sizes: dict[str, int]) -> bool:
        """Does the reduction, read at `at`, fold exactly the keys of the row that `node` is read in at `node_at`?"""
        keys = {name for name, extent in sizes.items() if name[0] == "n" and extent > 1}
        if any(index.coefficient(name) for index in at for name in keys):
            return False
        reduced = self.node(reduce).attrs["axes"]
        shape = self.node(self.node(reduce).inputs[0]).type.shape
        kept = iter(at)
        index = tuple((variable(f"r{a}") if shape[a] > 1 else ZERO) if a in reduced else next(kept) for a in range(len(shape)))
        folded = {f"r{a}": shape[a] for a in reduced if shape[a] > 1}
        found, found_at = _source(self.graph, self.node(reduce).inputs[0], index, sizes | folded)
        if found != node:
            return False
        named = {}
        for mine, wanted in zip(found_at, node_at):
            if len(mine.terms) == 1 and mine.terms[0][0][0] == "r" and len(wanted.terms) == 1:
                named[mine.terms[0][0]] = variable(wanted.terms[0][0])
        if {v.terms[0][0] for v in named.values()} != keys or set(named) != set(folded):
            return False
        return (all(sizes[named[r].terms[0][0]] == extent for r, extent in folded.items())
                and tuple(i.substitute(named) for i in found_at) == node_at)

    def _divided_later(self, n: int, axes: tuple[str, ...], sizes: dict[str, int]) -> tuple[int, tuple[str, ...], int, Index]:
        """The division that follows, its axes by name, and the sum it divides by: (node, axes, node of the sum or -1, index)."""
        while True:
            if len(self.users[n]) != 1 or n in self.graph.outputs:
                return n, axes, -1, ()
            user = self.users[n][0]
            if self.node(user).op.name == "transpose":
                n, axes = user, tuple(axes[p] for p in self.node(user).attrs["perm"])
            elif self.node(user).op is DIV and self.node(user).inputs[0] == n and self.node(user).inputs[1] != n:
                index = tuple(ZERO if extent == 1 else variable(name) for name, extent in zip(axes, self.node(user).type.shape))
                return user, axes, *_source(self.graph, self.node(user).inputs[1], index, sizes)
            else:
                return n, axes, -1, ()

    def _transposed(self, sink: int, axes: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        """A transpose that alone reads the result is stored instead of it."""
        while len(self.users[sink]) == 1 and sink not in self.graph.outputs and self.node(self.users[sink][0]).op.name == "transpose":
            sink = self.users[sink][0]
            axes = tuple(axes[p] for p in self.node(sink).attrs["perm"])
        return sink, axes

    def _check_halves(self, exp: int) -> None:
        dtype = self.node(exp).type.dtype
        if dtype.is_half:
            raise Refused(f"every op of its softmax rounds to {dtype} by itself, which a running sum cannot follow; compute it in f32")

    def _check_types(self, n: int, exp: int, rounded: bool) -> None:
        dtype = self.node(exp).type.dtype
        if rounded:
            raise Refused(f"its weights are rounded to {self.node(self.node(n).inputs[0]).type.dtype} when their sum is known")
        if self.node(n).type.dtype is not dtype:
            raise Refused(f"{dtype} weights are summed in {self.node(n).type.dtype}")

    # ----------------------------------------------------------------- the contraction of queries and keys
    def _scores(self, n: int, side: int, sink: int, axes: tuple[str, ...], sizes: dict[str, int], index: list[Index],
                score: tuple[int, Index], exp: int) -> Attention:
        many = [prefix for prefix in "nc" if sum(extent > 1 for name, extent in sizes.items() if name[0] == prefix) > 1]
        if many:
            raise Refused("several axes of keys or of values")
        if any(extent == 0 for extent in sizes.values()):
            raise Refused("it is empty")
        if all(extent == 1 for name, extent in sizes.items() if name[0] == "n"):
            raise Refused("one key")
        loads = self.reads(score, sizes)
        reads = sorted({int(e.attr[0][1:]) for e in loads})
        value = self.node(n).inputs[1 - side]
        dots = [d for d in reads if self.node(d).op.fusion == CONTRACTION]
        reason = "its scores are not made by a contraction"
        for dot in dots:
            try:
                query, key, wide = self._operands(dot, score, loads, dict(sizes))
                hidden = self._hidden(dot, sink)
                if value in hidden or not hidden.isdisjoint({*reads} - {dot}):
                    raise Refused("its values or its mask depend on its scores")
            except Refused as refusal:
                reason = str(refusal)
                continue
            operands = (query, key, (value, index[1 - side]))
            query, key, values = (_source(self.graph, i, place, wide) for i, place in operands)
            hidden |= self._bypassed([i for i, _ in operands], {query[0], key[0], values[0]}, hidden | {sink, n})
            return Attention(sink, hidden, axes, wide, dot, score, query, key, values, exp)
        raise Refused(reason)

    def _operands(self, dot: int, score: tuple[int, Index], loads: Sequence[Expr],
                  sizes: dict[str, int]) -> tuple[tuple[int, Index], tuple[int, Index], dict[str, int]]:
        """Queries and keys of the contraction `dot`, which the score loads, each as a node and the index it is read at, and all extents."""
        node = self.node(dot)
        wanted, own = self.node(score[0]).type.dtype, node.type.dtype
        if wanted is not (own if not own.is_half else wanted) or not own.is_float or (own.is_half and wanted.name != "f32"):
            raise Refused(f"scores of {own} for a softmax in {wanted}")
        flats = {e.attr[1] for e in loads if e.attr[0] == f"v{dot}"}
        result = _unflatten(next(iter(flats)), node.type.shape, sizes) if len(flats) == 1 else None
        if result is None:
            raise Refused("it reads its scores in an order of their own")
        shapes = [self.node(i).type.shape for i in node.inputs]
        indices: list[list[Affine]] = [[ZERO] * len(shape) for shape in shapes]
        for position, pair in enumerate(zip(*node.attrs["contract"])):
            name = f"k{position}"
            sizes[name] = shapes[0][pair[0]]
            for operand, axis in enumerate(pair):
                indices[operand][axis] = variable(name) if sizes[name] > 1 else ZERO
        places = iter(result)
        for pair in zip(*node.attrs["batch"]):
            place = next(places)
            for operand, axis in enumerate(pair):
                indices[operand][axis] = place
        for operand in (0, 1):
            for axis in free_axes(len(shapes[operand]), node.attrs, operand):
                indices[operand][axis] = next(places)
        return *self._sides(node, indices, sizes), sizes

    def _sides(self, node, indices: list[list[Affine]], sizes: dict[str, int]) -> tuple[tuple[int, Index], tuple[int, Index]]:
        keys, queries = ({name for name, e in sizes.items() if name[0] == prefix and e > 1} for prefix in "nm")
        uses = [{name for index in side for name, _ in index.terms} for side in indices]
        side = next((s for s in (0, 1) if uses[s] & keys and not uses[1 - s] & keys), None)
        if side is None:
            raise Refused("queries and keys are not told apart by its scores")
        free = [name for name in queries if name not in uses[side]]
        depth = [e for name, e in sizes.items() if name[0] == "k" and e > 1]
        lanes = 1
        for name in free:
            lanes *= sizes[name]
        if lanes < FEWEST_QUERIES:
            raise Refused(f"fewer than {FEWEST_QUERIES} queries a key")
        if len(depth) > 1 or any(e > DOT_CHUNK for e in depth) or any(sizes[name] == 0 for name in sizes):
            raise Refused(f"queries of several axes, or of more than {DOT_CHUNK} elements")
        return (node.inputs[1 - side], tuple(indices[1 - side])), (node.inputs[side], tuple(indices[side]))

    def _hidden(self, dot: int, sink: int) -> frozenset[int]:
        """What lies between the contractions, if nothing else reads it."""
        below, found = {sink}, {dot}
        for i in range(sink, dot, -1):
            if i in below:
                below.update(self.node(i).inputs)
        for i in range(dot + 1, sink):
            if i in below and not found.isdisjoint(self.node(i).inputs):
                found.add(i)
        for i in found:
            if i in self.graph.outputs:
                raise Refused(f"its {self.node(i).op.name} is an output")
            others = [u for u in self.users[i] if self.live[u] and u not in found and u != sink]
            if others:
                raise Refused(f"its {self.node(i).op.name} is read by {self.node(others[0]).op.name}, too")
        return frozenset(found)


    def _bypassed(self, operands: Sequence[int], sources: set[int], readers: frozenset[int]) -> frozenset[int]:
        """Movement between an operand and its source that nobody else reads: it needs no memory, although a reshape asks for some."""
        found: set[int] = set()
        for i in operands:
            while i not in sources and i not in self.graph.outputs and all(u in readers or u in found for u in self.users[i] if self.live[u]):
                found.add(i)
                i = self.node(i).inputs[0]
        return frozenset(found)


def find_attention(graph: Graph, names: Mapping[int, str]) -> tuple[dict[int, Attention], list[str]]:
    """Every attention by its sink, and notes on what looks like one but cannot be one kernel."""
    nodes = graph.nodes
    if not any(node.op is EXP for node in nodes) or not any(node.op is MAX for node in nodes):
        return {}, []
    finder = _Finder(graph)
    found: dict[int, Attention] = {}
    taken: set[int] = set()
    refused: dict[int, str] = {}
    for n, node in enumerate(nodes):
        if not finder.live[n] or node.op.fusion != CONTRACTION or not node.type.dtype.is_float:
            continue
        try:
            attention = finder.at(n)
        except Refused as refusal:
            refused[n] = str(refusal)
            continue
        if attention is not None and taken.isdisjoint((*attention.hidden, attention.sink)):
            found[attention.sink] = attention
            taken.update((*attention.hidden, attention.sink))
    return found, [f"{names[n]} (dot_general): no attention kernel: {why}" for n, why in refused.items()]
