"""An attention as a root of fusion, and its kernel: one axis each of queries, keys, depth and values; all others are rows."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.core import expr as ex
from mlc.core.dims import TensorType
from mlc.graph.graph import Graph
from mlc.kernel.axes import all_collapsible, collapsing, rebase, rebase_put, renaming
from mlc.kernel.ir import Attend, Axis, Put, Stage
from mlc.kernel.turn import copied
from mlc.passes.access import Inliner, loads_of
from mlc.passes.attention import Attention, ScoreInliner
from mlc.passes.contract import _epilogue
from mlc.passes.rootexpr import ATTEND, RootExpr

_DOT = "dot"


def attend_root(graph: Graph, inliner: Inliner, attention: Attention) -> RootExpr:
    """The computation of an attention, over the axes of its result."""
    exp = graph.nodes[attention.exp]
    acc, sizes = exp.type.dtype, attention.sizes
    query, key, value = (ex.convert(inliner.read(*place), acc) for place in (attention.query, attention.key, attention.value))
    dot = graph.nodes[attention.dot]
    product = ex.convert(ex.var(_DOT, acc), dot.type.dtype)
    stored = [flag or n == attention.dot for n, flag in enumerate(inliner.is_root)]
    score = ScoreInliner(graph, stored, sizes).read(*attention.scores)
    loads = {e: product for e in loads_of([score]) if e.attr[0] == f"v{attention.dot}"}
    (score,) = ex.replace([score], loads)
    axes = tuple((name, sizes[name]) for name in attention.axes if sizes[name] != 1)
    found = RootExpr(attention.sink, ATTEND, axes, value=score, a=query, b=key)
    found.attend = (exp.op.scalar(ex.var("distance", acc)), value, attention)
    return found


def _axis(sizes: dict[str, int], prefix: str) -> list[Axis]:
    return [(name, extent) for name, extent in sizes.items() if name[0] == prefix and extent != 1]


def _queries(root: RootExpr, puts: Sequence[Put]) -> tuple[list[Axis], list[Axis]]:
    """(axes that run as one axis of queries, axes that become rows)."""
    attention = root.attend[2]
    mine = {name for e in loads_of([root.b]) for name, _ in e.attr[1].terms}
    free = [axis for axis in root.axes if axis[0][0] == "m" and axis[0] not in mine]
    rows = [axis for axis in root.axes if axis[0][0] == "b" or (axis[0][0] == "m" and axis[0] in mine)]
    rows += [axis for axis in _axis(attention.sizes, "b") if axis not in rows]
    values = [p.value for p in puts]
    if not all_collapsible([root.a, root.value, *values], [p.index for p in puts], free):
        longest = max(free, key=lambda axis: axis[1])
        return [longest], [*rows, *(axis for axis in free if axis != longest)]
    return free, rows


def attend_kernel(graph: Graph, group, escapes: set[int]) -> tuple[list, tuple[Axis, ...], dict[str, TensorType]]:
    """Stages, row axes and scratch of the kernel of an attention group."""
    root = group.members[0]
    weight, value, attention = root.attend
    name, acc = f"acc{root.node}", root.a.dtype
    puts = _epilogue(graph, group, escapes)
    free, rows = _queries(root, puts)
    query, key, score = root.a, root.b, root.value
    values, indices = [p.value for p in puts], [p.index for p in puts]
    extent = 1
    for _, size in free:
        extent *= size
    axes: dict[str, Axis] = {"m": ("m", extent)}
    stages: list[Stage | Attend] = []
    scratch = {}
    if any(e.attr[1].coefficient(c) not in (0, 1) for e in loads_of([value]) for c, _ in _axis(attention.sizes, "c")):
        stage, value, scratch["sv"] = copied(value, [*_axis(attention.sizes, "n"), *_axis(attention.sizes, "c")], "sv")
        stages.append(stage)
    names = renaming({row: f"i{p}" for p, (row, _) in enumerate(rows)})
    moved = {**names, **collapsing(free, "m")}
    for prefix in "nkc":
        old = _axis(attention.sizes, prefix)
        moved.update(collapsing(old, prefix))
        axes[prefix] = (prefix, old[0][1] if old else 1)
    query, key, score, value, *values = rebase([query, key, score, value, *values], moved)
    (score,) = ex.replace([score], {ex.var(_DOT, acc): ex.var(f"{name}.s", acc)})
    (weight,) = ex.replace([weight], {ex.var("distance", acc): ex.var(f"{name}.x", acc)})
    stored = tuple(Put(p.target, i.substitute(moved), v) for p, i, v in zip(puts, indices, values))
    stages = [Stage(s.axes, (), (), tuple(rebase_put(p, names) for p in s.puts)) for s in stages]
    stages.append(Attend(name, acc, *(axes[a] for a in "mnkc"), query, key, score, weight, value, stored))
    return stages, tuple((f"i{p}", e) for p, (_, e) in enumerate(rows)), scratch


