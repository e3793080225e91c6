"""Contractions that see to the next panel of b while they multiply one: register tiles take some of its rows along (`Tile.beside`).

    kt   chunks of k, if there are several: the sums of all columns stay in scratch
    s    pairs of panels
    i    a panel, in a slot of its own; the one that follows is copied to the other slot while all rows pass this one
    mt   m rows
         the register tile

The first panel is copied ahead of the others; what is left of the columns goes the usual way. Panels that weights were stored in are asked
for, not copied.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.expr import Expr
from mlc.kernel.ir import Dot
from mlc.kernel.tiling import TileSchedule
from mlc.loop.ir import For, If, Stmt
from mlc.loop.lower_dot import WIDE, DotLoops
from mlc.loop.spans import Span, along

# What is copied is asked for so many rows ahead.
AHEAD = 4


class BesideLoops(DotLoops):
    """Emits one `Dot` by panels that are copied, or asked for, beside others."""

    def __init__(self, dot: Dot, plan: TileSchedule, fresh: Callable[[str], str], buffer_name: Callable[[str], str]):
        super().__init__(dot, plan, fresh, buffer_name)
        self.height, self.size = min(plan.m, self.rows), min(plan.n, self.columns)
        self.steps = self.chunk if self.deep else self.depth  # of a panel in its slot
        self.slots = 2 if self.right else 1
        self.times = self.rows // self.height
        # Rows of a panel that a tile takes along: as few as suffice for as many steps of its own to each.
        self.each = next(e for e in range(-(-self.steps // self.times), self.steps + 1) if self.steps % e == 0)
        self.sets = self.columns // (self.slots * self.size) if self.times > 1 and self.depth % self.steps == 0 else 0
        if not self.sets:
            return
        self.done = self.sets * self.slots * self.size
        self.scratch = [b for b in self.scratch if b.name not in (self.right, self.sums if self.deep else "")]
        if self.right:
            self.right = self._buffer("b", max(2 * self.steps, self.depth if self.done < self.columns else 0) * self.size)
        if self.deep:
            self.sums = self._buffer("sums", self.rows * self.done)

    def run(self, kind: str = "serial") -> list[Stmt]:
        if not self.sets:
            return super().run(kind)
        found, self.held = self._all_sets(), self.depth
        return found + self._blocks("nt", self.columns - self.done, self.size, lambda columns: self._panels((columns[0] + self.done, columns[1])))

    def _all_sets(self) -> list[Stmt]:
        self.held, kt, s, i = self.steps, self.fresh("kt"), self.fresh("s"), self.fresh("i")
        columns = (along(s, self.slots * self.size) + along(i, self.size), self.size)
        start = along(kt, self.steps) if self.deep else Affine()

        def passed(rows: Span) -> list[Stmt]:
            place, beside = along(i, self.size), self._beside(s, i, columns[0], start, rows)
            if self.deep:
                at = columns[0] * self.rows + rows[0] * self.size
                return [self._chunk(self.fresh(self.dot.name + ".p"), rows, columns, place, (start, self.steps), at, beside)]
            return self._tile(rows, columns, place, beside)

        def finished(columns: Span) -> list[Stmt]:
            return self._finish((Affine(), self.rows), columns, columns[0] * self.rows)
        sets = [For(s, self.sets, (For(i, self.slots, tuple(self._blocks("mt", self.rows, self.height, passed))),))]
        if self.right:
            sets = [*self._pack_right((Affine(), self.size), start), *sets]
        if not self.deep:
            return sets
        return [self._zero(self.sums, self.rows * self.done), For(kt, self.depth // self.steps, tuple(sets)),
                *self._blocks("nt", self.done, self.size, finished)]

    def _beside(self, s: str, i: str, first: Affine, start: Affine, rows: Span) -> For | None:
        """Beside a tile: its rows of the panel that follows. Behind the last one they are only asked for: the next block begins with it."""
        if not rows[0].terms:
            return None
        o, (mt, _), panel = self.fresh("o"), rows[0].terms[0], (first + self.size, self.size)
        row = along(mt, self.each) + along(o)
        body: tuple[Stmt, ...] = (self._asked(panel, start + row + (AHEAD if self.right else 0)),)
        if self.right:
            copy = self._copied_row(row, panel, along(i, -self.size) + self.size, (Affine(), self.size), self.plan.width * WIDE, start)
            more = _below(i, 1)
            if self.sets > 1:
                more = ex.make("or", dt.bool_, (more, _below(s, self.sets - 1)))
            body = (*body, If(more, (copy,), ()))
        if self.each * self.times > self.steps:
            body = (If(_below(mt, self.steps // self.each), body, ()),)
        return For(o, self.each, body)


def _below(name: str, bound: int) -> Expr:
    return ex.make("lt", dt.bool_, (ex.index(name), ex.const(bound, dt.i64)))
