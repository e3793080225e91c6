"""Loops of plain stages whose reads go across memory: transposes by tiles, and sums down columns that stream over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.expr import Expr
from mlc.kernel.axes import rebase
from mlc.kernel.ir import Stage
from mlc.kernel.plain import SweepSchedule, TransposeSchedule
from mlc.kernel.schedule import chunk_steps
from mlc.loop.ir import Buffer, Decl, For, Stmt, Store, load

At = Mapping[str, Affine]
Fresh = Callable[[str], str]


def variable(name: str, factor: int = 1) -> Affine:
    return Affine(0, ((name, factor),))


def cut(fresh: Fresh, name: str, extent: int, size: int, start: Affine, body: Callable[[Affine, int], list[Stmt]]) -> list[Stmt]:
    """A loop over pieces of `size` of an axis, and what is left over; `body` is given where a piece begins and its size."""
    found: list[Stmt] = []
    full, rest = divmod(extent, size)
    if full == 1:
        found += body(start, size)
    elif full:
        var = fresh(name)
        found.append(For(var, full, tuple(body(start + variable(var, size), size))))
    return found + (body(start + Affine(full * size), rest) if rest else [])


# --------------------------------------------------------------------------- transposes
class Transposed:
    """for blocks, for tiles: unroll `down` { vector `axis` { the stage } }, which code generation loads along `down`."""

    def __init__(self, stage: Stage, plan: TransposeSchedule, fresh: Fresh, buffer_name: Fresh):
        self.stage, self.plan, self.fresh, self.buffer_name = stage, plan, fresh, buffer_name
        self.extents = dict(stage.axes)
        self.turned: dict[Expr, Buffer] = {}
        self.scratch: list[Buffer] = []
        if plan.staged:
            for e in ex.topological([p.value for p in stage.puts]):
                if e.op == "load" and abs(e.attr[1].coefficient(plan.axis)) > 1 and e.attr[1].coefficient(plan.down) == 1:
                    self.turned[e] = Buffer(buffer_name("turned"), e.dtype, plan.height * plan.width, "scratch")
            self.scratch = list(self.turned.values())

    def run(self, at: At) -> list[Stmt]:
        """The loops over both axes; `at` holds the other axes of the stage."""
        p = self.plan
        down, axis = (p.down, p.height), (p.axis, p.width)
        (inner, step), (outer, other) = (down, axis) if p.block_axis == p.down else (axis, down)

        def block(base: Affine, size: int) -> list[Stmt]:
            return cut(self.fresh, outer, self.extents[outer], other, Affine(), lambda o, count: cut(
                self.fresh, inner, size, step, base, lambda i, steps: self.tile({**at}, {inner: (i, steps), outer: (o, count)})))
        return cut(self.fresh, inner, self.extents[inner], p.block, Affine(), block)

    def tile(self, at: dict[str, Affine], place: Mapping[str, tuple[Affine, int]]) -> list[Stmt]:
        (rows, height), (columns, width) = place[self.plan.down], place[self.plan.axis]
        found: list[Stmt] = []
        r, c = self.fresh(self.plan.down), self.fresh(self.plan.axis)
        spot = variable(r, self.plan.width) + variable(c)

        def nest(r: str, c: str, kind: str, body: Sequence[Stmt]) -> For:
            return For(r, height, (For(c, width, tuple(body), "vector", self.plan.width),), kind)
        if self.turned:
            here = {**at, self.plan.down: rows + variable(r), self.plan.axis: columns + variable(c)}
            found.append(nest(r, c, "unroll", [Store(b.name, spot, v) for b, v in zip(self.turned.values(), rebase(list(self.turned), here))]))
            r, c = self.fresh(self.plan.down), self.fresh(self.plan.axis)
            spot = variable(r, self.plan.width) + variable(c)
        here = {**at, self.plan.down: rows + variable(r), self.plan.axis: columns + variable(c)}
        staged = {e.attr: load(b.name, e.dtype, spot) for e, b in self.turned.items()}
        values = rebase([put.value for put in self.stage.puts], here, (lambda name, old, new: staged.get((name, old))) if staged else None)
        stores = [Store(p.target, p.index.substitute(here), v) for p, v in zip(self.stage.puts, values)]
        return [*found, nest(r, c, "serial" if self.turned else "unroll", stores)]


# --------------------------------------------------------------------------- sums down columns
class Swept:
    """Accumulators of a block of columns in scratch; rows stream by, some at a time. The order is that of one lane a column:
    `chunk_steps` rows make a partial sum."""

    def __init__(self, stage: Stage, plan: SweepSchedule, fresh: Fresh, buffer_name: Fresh, point: Callable[[str, At], list[Stmt]],
                 merge: Callable[[str, str], Stmt], finish: Callable[[At], list[Stmt]]):
        self.stage, self.plan, self.fresh, self.buffer_name = stage, plan, fresh, buffer_name
        self.point, self.merge, self.finish = point, merge, finish
        self.columns = dict(stage.axes)[plan.axis]
        self.scratch: list[Buffer] = []

    def accumulators(self, suffix: str) -> list[tuple[str, Buffer, Expr]]:
        """(variable, the scratch that holds it, its first value) for every accumulator of one level."""
        found = []
        for r in self.stage.reduces:
            for name, dtype, first in zip(r.names, r.dtypes, r.identity):
                buffer = Buffer(self.buffer_name("column"), dtype, min(self.plan.block, self.columns), "scratch")
                self.scratch.append(buffer)
                found.append((name + suffix, buffer, first))
        return found

    def run(self, at: At) -> list[Stmt]:
        (name, extent), = self.stage.over
        levels = [self.accumulators("")]
        steps = extent
        while chunk_steps(steps, 1):
            levels.append(self.accumulators(f".p{len(levels)}"))
            steps = chunk_steps(steps, 1)

        def block(base: Affine, size: int) -> list[Stmt]:
            body = [*self.clear(levels[0], size), *self.span(levels, 0, name, extent, Affine(), at, base, size)]
            var = self.fresh(self.plan.axis)
            done = [*self.declared(levels[0], var), *self.finish({**at, self.plan.axis: base + variable(var)})]
            return [*body, self.lanes(var, size, done)]
        return cut(self.fresh, self.plan.axis, self.columns, self.plan.block, Affine(), block)

    def lanes(self, var: str, size: int, body: Sequence[Stmt]) -> For:
        return For(var, size, tuple(body), "vector", self.plan.width)

    def declared(self, level, var: str) -> list[Stmt]:
        return [Decl(name, b.dtype, self.plan.width, load(b.name, b.dtype, variable(var))) for name, b, _ in level]

    def kept(self, level, var: str) -> list[Stmt]:
        return [Store(b.name, variable(var), ex.var(name, b.dtype)) for name, b, _ in level]

    def clear(self, level, size: int) -> list[Stmt]:
        var = self.fresh(self.plan.axis)
        return [self.lanes(var, size, [Store(b.name, variable(var), first) for _, b, first in level])]

    def span(self, levels, depth: int, name: str, extent: int, start: Affine, at: At, base: Affine, size: int) -> list[Stmt]:
        """Rows from `start` on added to the accumulators of `levels[depth]`."""
        block = chunk_steps(extent, 1)
        if not block:
            def rows(first: Affine, count: int) -> list[Stmt]:
                return self.rows(levels[depth], depth, name, first, count, at, base, size)
            return cut(self.fresh, name, extent, self.plan.rows, start, rows)

        def part(first: Affine, count: int) -> list[Stmt]:
            var = self.fresh(self.plan.axis)
            own, total = levels[depth + 1], levels[depth]
            joined = [*self.declared(total, var), *self.declared(own, var), self.merge(_suffix(depth), _suffix(depth + 1)), *self.kept(total, var)]
            return [*self.clear(own, size), *self.span(levels, depth + 1, name, count, first, at, base, size), self.lanes(var, size, joined)]
        return cut(self.fresh, name, extent, block, start, part)

    def rows(self, level, depth: int, name: str, first: Affine, rows: int, at: At, base: Affine, size: int) -> list[Stmt]:
        var, row = self.fresh(self.plan.axis), self.fresh(name)
        here = {**at, self.plan.axis: base + variable(var), name: first + variable(row)}
        added = For(row, rows, tuple(self.point(_suffix(depth), here)), "unroll")
        return [self.lanes(var, size, [*self.declared(level, var), added, *self.kept(level, var)])]


def _suffix(depth: int) -> str:
    return f".p{depth}" if depth else ""


