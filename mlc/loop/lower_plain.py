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
    """for blocks, for tiles: unroll `down` { vector `axis` { the stage } }, which code generation loads along `down`. Staged: tiles of what
    is turned go to scratch, then for rows of it: vector `axis` { the stage }."""

    def __init__(self, stage: Stage, plan: TransposeSchedule, fresh: Fresh, buffer_name: Fresh):
        self.stage, self.plan, self.fresh = stage, plan, fresh
        self.extents = dict(stage.axes)
        self.turned: dict[Expr, Buffer] = {}
        if plan.staged:
            rows, columns = (plan.block, plan.staged) if plan.block_axis == plan.down else (plan.staged, plan.block)
            for e in ex.topological([p.value for p in stage.puts]):
                if e.op == "load" and abs(e.attr[1].coefficient(plan.axis)) > 1 and e.attr[1].coefficient(plan.down) == 1:
                    # A tile more a row, so that rows do not share cache sets.
                    self.turned[e] = Buffer(buffer_name("turned"), e.dtype, rows * (columns + plan.width), "scratch")
            self.pitch = columns + plan.width
        self.scratch = list(self.turned.values())

    def run(self, at: At) -> list[Stmt]:
        """The loops over both axes; `at` holds the other axes of the stage."""
        p = self.plan
        down, axis = (p.down, p.height), (p.axis, p.width)
        (inner, step), (outer, other) = (down, axis) if p.block_axis == p.down else (axis, down)

        def block(base: Affine, size: int) -> list[Stmt]:
            if self.turned:
                return self.cut(outer, self.extents[outer], p.staged, Affine(),
                                lambda o, count: self.through(at, {inner: (base, size), outer: (o, count)}))
            return self.cut(outer, self.extents[outer], other, Affine(), lambda o, count: self.cut(
                inner, size, step, base, lambda i, steps: self.tile(at, {inner: (i, steps), outer: (o, count)})))
        return self.cut(inner, self.extents[inner], p.block, Affine(), block)

    def cut(self, name: str, extent: int, size: int, start: Affine, body: Callable[[Affine, int], list[Stmt]]) -> list[Stmt]:
        return cut(self.fresh, name, extent, size, start, body)

    def nest(self, kind: str, height: int, width: int, body: Callable[[Affine, Affine], Sequence[Stmt]]) -> For:
        """Rows of lanes; `body` is given the row and the column."""
        r, c = self.fresh(self.plan.down), self.fresh(self.plan.axis)
        return For(r, height, (For(c, width, tuple(body(variable(r), variable(c))), "vector", self.plan.width),), kind)

    def stores(self, at: At, rows: Affine, columns: Affine, staged: Mapping[tuple, Expr]) -> list[Stmt]:
        """The stage at a place, where loads in `staged` are replaced."""
        here = {**at, self.plan.down: rows, self.plan.axis: columns}
        values = rebase([put.value for put in self.stage.puts], here, (lambda name, old, new: staged.get((name, old))) if staged else None)
        return [Store(p.target, p.index.substitute(here), v) for p, v in zip(self.stage.puts, values)]

    def tile(self, at: At, place: Mapping[str, tuple[Affine, int]]) -> list[Stmt]:
        (rows, height), (columns, width) = place[self.plan.down], place[self.plan.axis]
        return [self.nest("unroll", height, width, lambda r, c: self.stores(at, rows + r, columns + c, {}))]

    def through(self, at: At, place: Mapping[str, tuple[Affine, int]]) -> list[Stmt]:
        """A block through scratch: tiles along `down` first, as long pieces of what is turned are read."""
        p = self.plan
        (rows, height), (columns, width) = place[p.down], place[p.axis]

        def turn(r0: Affine, tall: int, c0: Affine, wide: int) -> list[Stmt]:
            def moved(r: Affine, c: Affine) -> list[Stmt]:
                here = {**at, p.down: rows + r0 + r, p.axis: columns + c0 + c}
                spot = (r0 + r) * self.pitch + c0 + c
                return [Store(b.name, spot, v) for b, v in zip(self.turned.values(), rebase(list(self.turned), here))]
            return [self.nest("unroll", tall, wide, moved)]
        tiles = self.cut(p.axis, width, p.width, Affine(), lambda c0, wide: self.cut(
            p.down, height, p.height, Affine(), lambda r0, tall: turn(r0, tall, c0, wide)))

        def stored(r: Affine, c: Affine) -> list[Stmt]:
            staged = {e.attr: load(b.name, e.dtype, r * self.pitch + c) for e, b in self.turned.items()}
            return self.stores(at, rows + r, columns + c, staged)
        return [*tiles, self.nest("serial", height, width, stored)]


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


