"""The kernel of a contraction: single m, n and k axes for the register tile, batch axes as rows, epilogue at the store.

Several m, n or k axes run as one where every access allows it. Where the epilogue does not, the outer axes become rows; an
operand that does not (axes of one group apart) is copied into scratch first. What else is copied is a matter of the schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.core.expr import Expr
from mlc.graph.graph import Graph
from mlc.kernel.axes import all_collapsible, collapsing, rebase, rebase_put, renaming
from mlc.kernel.ir import Axis, Dot, Put, Reduce, Stage
from mlc.kernel.turn import copied, row_major
from mlc.passes.rootexpr import RootExpr

# So few rows multiply a matrix along its own rows, if there is enough of it.
FEW_ROWS, FEW_LEAST, FEW_DEPTH = 8, 1 << 12, 32
# So many sums are added to at once.
SUMS = 16


def _epilogue(graph: Graph, group, escapes: set[int]) -> list[Put]:
    """Stores at each (batch, m, n), over the contraction's own axis names."""
    dot = group.members[0]
    kept = dot.kept
    acc = dot.a.dtype
    values: dict[int, Expr] = {dot.node: ex.convert(ex.var(f"acc{dot.node}", acc), graph.nodes[dot.node].type.dtype)}
    for root in group.members[1:]:
        names = {old: new for (old, _), (new, _) in zip(root.axes, kept)}
        (values[root.node],) = rebase([root.value], renaming(names), lambda name, index, moved: values.get(int(name[1:])))
    index = row_major(kept)
    return [Put(f"v{n}", index, value) for n, value in values.items() if n in escapes]


class _Axes:
    """The axis groups of one contraction while they shrink to single axes."""

    def __init__(self, dot: RootExpr):
        sizes = dict(dot.axes)
        self.batch, self.m, self.n, self.k = ([(name, sizes[name]) for name in group] for group in dot.groups)

    def split_outer(self, which: str) -> None:
        """Keep only the innermost axis of a group; the others become rows."""
        group = getattr(self, which)
        self.batch = self.batch + group[:-1]
        setattr(self, which, group[-1:])


def _one_loop(operand: Expr, *groups: Sequence[Axis]) -> bool:
    """Whether the axes of each group may run as one."""
    return all(all_collapsible([operand], (), group) for group in groups)


def _few_rows(graph: Graph, dot: Dot) -> bool:
    """Whether rows of a and columns of b, both contiguous along k, are better multiplied along k: few rows don't pay for turning b round.
    Constants are turned when the program is made."""
    (m, rows), (n, columns), (k, depth) = dot.axes
    if not 2 <= rows <= FEW_ROWS or columns * depth < FEW_LEAST or depth < FEW_DEPTH * max(4, rows) or not dot.dtype.is_float:
        return False
    for operand, own in ((dot.a, m), (dot.b, n)):
        if operand.op != "load" or operand.attr[1].coefficient(k) != 1 or operand.attr[1].coefficient(own) in (0, 1):
            return False
    name = dot.b.attr[0]
    return not (name[1:].isdigit() and graph.nodes[int(name[1:])].op.name == "constant")


def _row_sums(dot: Dot) -> tuple[Stage, Axis]:
    """The contraction as reductions along k, one for each row of a and a few columns of b, so that what is loaded is used often; and the axis
    of kernel rows that walks over the columns."""
    (m, rows), (n, columns), _ = dot.axes
    together = next(count for count in (4, 2, 1) if count * rows <= max(rows, SUMS) and columns % count == 0)
    reduces, puts = [], []
    added = ex.var("a.0", dot.dtype) + ex.var("b.0", dot.dtype)
    for column, row in itertools.product(range(together), range(rows)):
        at, name = {m: Affine(row), n: Affine(column, ((n, together),))}, f"{dot.name}.{column}.{row}"
        a, b = rebase([dot.a, dot.b], at)
        reduces.append(Reduce((name,), (dot.dtype,), (ex.const(0, dot.dtype),), (a * b,), (added,)))
        puts += [replace(moved, value=ex.replace([moved.value], {ex.var(dot.name, dot.dtype): ex.var(name, dot.dtype)})[0])
                 for moved in (rebase_put(put, at) for put in dot.puts)]
    return Stage((), (dot.k,), tuple(reduces), (), tuple(puts)), (n, columns // together)


def dot_kernel(graph: Graph, group, escapes: set[int]) -> tuple[list, tuple[Axis, ...], dict[str, TensorType]]:
    """Stages, row axes and scratch of the kernel of a contraction group."""
    dot = group.members[0]
    puts = _epilogue(graph, group, escapes)
    axes, a, b = _Axes(dot), dot.a, dot.b
    values, indices = [p.value for p in puts], [p.index for p in puts]
    for which in ("m", "n"):
        operand = [a] if which == "m" else []
        if not all_collapsible([*values, *operand], indices, getattr(axes, which)):
            axes.split_outer(which)
    stages, scratch = [], {}
    if not _one_loop(a, axes.k):
        stage, a, scratch["sa"] = copied(a, [*axes.m, *axes.k], "sa")
        stages.append(stage)
    if not _one_loop(b, axes.k, axes.n):
        stage, b, scratch["sb"] = copied(b, [*axes.k, *axes.n], "sb")
        stages.append(stage)
    names = {name: f"i{p}" for p, (name, _) in enumerate(axes.batch)}
    rows = renaming(names)
    stages = [Stage(s.axes, (), (), tuple(rebase_put(p, rows) for p in s.puts)) for s in stages]
    extents, moved = {}, dict(rows)
    for which in ("m", "n", "k"):
        old = getattr(axes, which)
        extents[which] = math.prod(e for _, e in old)
        moved.update(collapsing(old, which))
    a, b, *values = rebase([a, b, *values], moved)
    new_puts = tuple(Put(p.target, i.substitute(moved), v) for p, i, v in zip(puts, indices, values))
    stage = Dot(f"acc{dot.node}", a.dtype, ("m", extents["m"]), ("n", extents["n"]), ("k", extents["k"]), a, b, new_puts)
    batch = tuple((names[name], e) for name, e in axes.batch)
    if not stages and _few_rows(graph, stage):
        sums, walk = _row_sums(stage)
        return [sums], (*batch, walk), scratch
    return [*stages, stage], batch, scratch
