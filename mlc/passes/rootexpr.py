"""Each root's computation as data: the axes it runs over and its expressions, before roots are grouped into kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mlc.core import expr as ex
from mlc.core.affine import ZERO, Affine
from mlc.core.dataclass import dataclass, field
from mlc.core.expr import Expr
from mlc.graph.graph import Graph
from mlc.kernel.ir import Axis, Put, Reduce
from mlc.ops.base import CONTRACTION, REDUCTION
from mlc.ops.contraction import free_axes
from mlc.passes.access import Inliner, axes_of, flat_index, loads_of, view_base

MAP, REDUCE, DOT, PIECES, ATTEND = "map", "reduce", "dot", "pieces", "attend"


@dataclass
class RootExpr:
    """A root's axes (unit axes dropped), what it reads, and its expressions.

    MAP      value over `axes`
    REDUCE   `reduce.values` over `axes`; the axes in `over` are folded away, `finish` is the result over the rest
    DOT      a(b.., m.., k..) and b(b.., k.., n..); `axes` = batch + m + n, `over` = k
    PIECES   `puts`: (axes, Put) for each piece
    ATTEND   a(.., m, k) and b(.., n, k); `value` is the score over (.., m, n); `attend`: (weight, what is weighted over (.., n, c), Attention)

    `key` and `cone` are what `repeat.Roots` knows it by; with `make`, expressions are those of an equal root.
    """

    node: int
    kind: str
    axes: tuple[Axis, ...]
    over: tuple[str, ...] = ()
    value: Expr | None = None
    reduce: Reduce | None = None
    finish: Expr | None = None
    a: Expr | None = None
    b: Expr | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    pieces: list[tuple[tuple[Axis, ...], Put]] = field(default_factory=list)
    attend: tuple | None = None
    key: int = -1
    cone: list[int] = field(default_factory=list)
    make: Callable[[], RootExpr] | None = None
    _reads: dict[int, set[Affine]] | None = None
    _weight: int = 0

    def whole(self) -> RootExpr:
        """The root with expressions of its own."""
        return self if self.make is None else self.make()

    def expressions(self) -> list[Expr]:
        """Every expression over the root's axes."""
        if self.kind == PIECES:
            return [put.value for _, put in self.pieces]
        if self.kind == DOT:
            return [self.a, self.b]
        if self.kind == ATTEND:
            return [self.a, self.b, self.value, self.attend[1]]
        return [self.value] if self.kind == MAP else list(self.reduce.values)

    def reads(self) -> dict[int, set[Affine]]:
        """Stored values and roots that it loads: node id -> the flat indices."""
        if self._reads is None:
            self._scan()
        return self._reads

    def weight(self) -> int:
        """Instructions in its expressions."""
        if self._reads is None:
            self._scan()
        return self._weight

    def _scan(self) -> None:
        self._reads = {}
        order = ex.topological(self.expressions())
        for e in order:
            if e.op == "load":
                name, index = e.attr
                self._reads.setdefault(int(name[1:]), set()).add(index)
        self._weight = sum(1 for e in order if e.args)

    @property
    def kept(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a[0] not in self.over)


def _reduce_root(graph: Graph, inliner: Inliner, n: int) -> RootExpr:
    node = graph.nodes[n]
    (operand,), fold = node.inputs, node.op.reduce
    source = graph.nodes[operand].type
    axes, index = axes_of(source.shape)
    accumulators, first = fold.accumulator(source.dtype), fold.identity(source.dtype)
    if fold.needs_position and math.prod(source.shape[a] for a in node.attrs["axes"]) < ex.dt.i32.max:  # as many lanes as of f32
        accumulators, first = (*accumulators[:-1], ex.dt.i32), (*first[:-1], ex.const(ex.dt.i32.max, ex.dt.i32))
    element = ex.convert(inliner.read(operand, index), accumulators[0])
    reduced = node.attrs["axes"]
    position = flat_index([source.shape[a] for a in reduced], tuple(index[a] for a in reduced))
    names = tuple(f"r{n}.{k}" for k in range(len(accumulators)))
    sides = [tuple(ex.var(f"{side}.{k}", d) for k, d in enumerate(accumulators)) for side in "ab"]
    values = fold.lift(element, ex.convert(ex.affine_value(position), accumulators[-1])) if fold.needs_position else (element,)
    reduce = Reduce(names, accumulators, first, values, fold.combine(*sides))
    finish = fold.finish(tuple(ex.var(name, d) for name, d in zip(names, accumulators)), node.type.dtype)
    over = tuple(name for name, _ in axes if int(name[1:]) in reduced)
    return RootExpr(n, REDUCE, axes, over, reduce=reduce, finish=finish)


def _dot_root(graph: Graph, inliner: Inliner, n: int) -> RootExpr:
    node = graph.nodes[n]
    left, right = (graph.nodes[i].type for i in node.inputs)
    sizes: dict[str, int] = {}
    names: list[list[str]] = [[""] * left.rank, [""] * right.rank]
    groups: list[tuple[str, ...]] = []

    def name_axes(prefix: str, pairs: Sequence[tuple[int | None, int | None]]) -> None:
        group = []
        for position, (a, b) in enumerate(pairs):
            name = f"{prefix}{position}"
            sizes[name] = left.shape[a] if a is not None else right.shape[b]
            for side, axis in ((0, a), (1, b)):
                if axis is not None:
                    names[side][axis] = name
            if sizes[name] != 1:
                group.append(name)
        groups.append(tuple(group))

    name_axes("b", list(zip(*node.attrs["batch"])) if node.attrs["batch"][0] else [])
    name_axes("m", [(a, None) for a in free_axes(left.rank, node.attrs, 0)])
    name_axes("n", [(None, b) for b in free_axes(right.rank, node.attrs, 1)])
    name_axes("k", list(zip(*node.attrs["contract"])) if node.attrs["contract"][0] else [])

    def index(side: int) -> tuple[Affine, ...]:
        return tuple(ZERO if sizes[name] == 1 else Affine(0, ((name, 1),)) for name in names[side])

    acc = ex.dt.f32 if node.type.dtype.is_half else node.type.dtype
    a, b = (ex.convert(inliner.read(operand, index(side)), acc) for side, operand in enumerate(node.inputs))
    axes = tuple((name, sizes[name]) for group in groups for name in group)
    if _is_matvec(b, groups) or any(sizes[name] == 0 for name in groups[3]):
        names = (f"r{n}.0",)
        combine = (ex.var("a.0", acc) + ex.var("b.0", acc),)
        reduce = Reduce(names, (acc,), (ex.const(0, acc),), (a * b,), combine)
        return RootExpr(n, REDUCE, axes, groups[3], reduce=reduce, finish=ex.convert(ex.var(names[0], acc), node.type.dtype))
    return RootExpr(n, DOT, axes, groups[3], a=a, b=b, groups=tuple(groups))


def _is_matvec(b: Expr, groups: Sequence[tuple[str, ...]]) -> bool:
    """One side is a vector and the matrix is not contiguous along the free axis: a reduction of products streams it better than tiles."""
    _, m, n, _ = groups
    if not n:
        return True
    return not m and any(load.attr[1].coefficient(n[-1]) != 1 for load in loads_of([b]))


def _pieces_root(graph: Graph, inliner: Inliner, n: int) -> RootExpr:
    node = graph.nodes[n]
    found = RootExpr(n, PIECES, ())
    for piece in node.op.pieces([graph.nodes[i].type for i in node.inputs], node.attrs, node.type):
        axes, index = axes_of(piece.shape)
        target = tuple(i * s + o for i, s, o in zip(index, piece.stride, piece.start))
        source = tuple(sum((index[axis] * c for axis, c in terms), Affine(offset)) for offset, terms in piece.source)
        value = inliner.read(node.inputs[piece.operand], source)
        found.pieces.append((axes, Put(f"v{n}", flat_index(node.type.shape, target), value)))
    return found


def build_root(graph: Graph, inliner: Inliner, n: int) -> RootExpr:
    """The computation of root `n`."""
    node = graph.nodes[n]
    if node.op.fusion == REDUCTION:
        return _reduce_root(graph, inliner, n)
    if node.op.fusion == CONTRACTION:
        return _dot_root(graph, inliner, n)
    if node.op.fusion == "opaque":
        return _pieces_root(graph, inliner, n)
    axes, index = axes_of(node.type.shape)
    value = inliner.compute(n, index) if view_base(graph, n) == n else inliner.read(n, index)
    return RootExpr(n, MAP, axes, value=value)
