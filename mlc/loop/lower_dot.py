"""Contractions as loops: groups of panels of columns, in them rows, in those panels, in those chunks of k, in those the register tile.

    ng   groups of panels               (the panels of b are copied here, if they are)
    mt   m rows of them                 (the rows of a are copied here, if they are)
    nt   panels of n columns
    kt   chunks of k, if there are several: their sums are added up in scratch
         the register tile

Remainders get tiles of their own size. Few rows have no tile: sums of a block of columns stay in scratch (L1), and b streams past them.
Sums start at zero; a chunk is one fma after the other in the order of k, and chunks are added in order, whatever the loops around them.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.expr import Expr
from mlc.kernel.axes import rebase
from mlc.kernel.ir import Dot
from mlc.kernel.tiling import TileSchedule, dot_chunk, grouped
from mlc.loop.ir import Ask, Buffer, Decl, For, Stmt, Store, Tile, load
from mlc.loop.spans import Span, along, blocks

# Loops that only copy or store take vectors of so many registers.
WIDE = 2


class DotLoops:
    """Emits one `Dot`. `fresh` makes names of variables, `buffer_name` those of scratch; `scratch` is what it needs."""

    def __init__(self, dot: Dot, plan: TileSchedule, fresh: Callable[[str], str], buffer_name: Callable[[str], str]):
        self.dot, self.plan, self.fresh, self.buffer_name = dot, plan, fresh, buffer_name
        self.dtype = dt.i32 if plan.parts and not dot.dtype.is_float else dot.dtype  # of the sums
        (self.m, self.rows), (self.n, self.columns), (self.k, self.depth) = dot.m, dot.n, dot.k
        self.chunk = dot_chunk(self.depth, plan.parts, plan.block)
        self.deep = self.depth > self.chunk and (not plan.parts or dot.dtype.is_float)
        self.scratch: list[Buffer] = []
        m, n = min(plan.m, self.rows), min(plan.n, self.columns)
        self.group = grouped(self.columns // n, plan.group) if n else 1
        tall, rest = (min(plan.rest[0], self.rows), plan.rest[1]) if plan.rest else (m, 0)
        staged = plan.staged or self.deep or plan.stream
        self.sums = self._buffer("sums", max(m * n, tall * rest)) if staged else ""
        self.part = self._buffer("part", m * n) if plan.stream and self.deep else self.sums
        self.left = self._buffer("a", max(m, tall) * self.depth) if "a" in plan.pack and not plan.parts else ""
        self.right = self._buffer("b", self.depth * n * self.group) if "b" in plan.pack and not plan.parts else ""
        self.held = self.depth  # steps of k of a panel that is copied

    def _buffer(self, name: str, size: int, dtype: DType | None = None) -> str:
        self.scratch.append(Buffer(self.buffer_name(name), dtype or self.dtype, size, "scratch"))
        return self.scratch[-1].name

    def run(self, kind: str = "serial") -> list[Stmt]:
        """The whole contraction; `kind` is that of the outermost loop."""
        block = self._stream if self.plan.stream else self._panels
        return self._blocks("nt", self.columns, self.plan.n * self.group, block, kind)

    # ----------------------------------------------------------------- helpers
    def _blocks(self, name: str, extent: int, size: int, body: Callable[[Span], list[Stmt]], kind: str = "serial") -> list[Stmt]:
        return blocks(lambda: self.fresh(name), extent, size, body, kind)

    def _lanes(self, name: str, count: int, body: Callable[[Affine], list[Stmt]], width: int) -> For:
        var = self.fresh(name)
        return For(var, count, tuple(body(along(var))), *(("vector", width) if width > 1 else ()))

    def _load(self, buffer: str, index: Affine) -> Expr:
        return load(buffer, self.dtype, index)

    def _stores(self, row: Affine, column: Affine) -> list[Stmt]:
        """What is stored of var(dot.name), which is the sum at this row and column."""
        at = {self.m: row, self.n: column}
        values = rebase([p.value for p in self.dot.puts], at)
        return [Store(p.target, p.index.substitute(at), v) for p, v in zip(self.dot.puts, values)]

    def _zero(self, buffer: str, size: int) -> For:
        zero = ex.const(0, self.dot.dtype)
        return self._lanes("z", size, lambda z: [Store(buffer, z, zero)], self.plan.width * WIDE)

    def _finish(self, rows: Span, columns: Span, first: Affine | int = 0) -> list[Stmt]:
        """Store what follows from the sums in scratch, from `first` on."""
        def at(row: Affine, width: int) -> For:
            def body(c: Affine) -> list[Stmt]:
                total = self._load(self.sums, row * columns[1] + c + first)
                return [Decl(self.dot.name, self.dot.dtype, width, ex.convert(total, self.dot.dtype)), *self._stores(rows[0] + row, columns[0] + c)]
            return self._lanes("c", columns[1], body, width)
        width = self.plan.width // WIDE if self.plan.stream else self.plan.width * WIDE  # two vectors: streams have four a lane loop
        if rows[1] == 1:
            return [at(Affine(), width)]
        var = self.fresh("r")
        return [For(var, rows[1], (at(along(var), width),))]

    # ----------------------------------------------------------------- tiles
    def _panels(self, columns: Span) -> list[Stmt]:
        """A group of panels, or one."""
        found = self._pack_right(columns) if self.right else []
        height = self.plan.rest[0] if self.plan.rest and columns[1] <= self.plan.rest[1] else self.plan.m

        def passed(rows: Span) -> list[Stmt]:
            return self._copied_rows(rows) + self._each_panel(columns, lambda part: self._tile(
                rows, (columns[0] + part[0], part[1]), part[0]))
        return found + self._blocks("mt", self.rows, height, passed)

    def _each_panel(self, columns: Span, body: Callable[[Span], list[Stmt]]) -> list[Stmt]:
        """body(columns within the group) for its panels."""
        return self._blocks("np", columns[1], self.plan.n, body) if columns[1] > self.plan.n else body((Affine(), columns[1]))

    def _copied_row(self, step: Affine, panel: Span, place: Affine, across: Span, width: int, start: Affine | int = 0) -> For:
        """Some columns of a row of a panel, of which steps from `start` on are copied from column `place` of the buffer on."""
        def store(c: Affine) -> list[Stmt]:
            (value,) = self._right(panel, step + start, across[0] + c)
            return [Store(self.right, place * self.held + step * panel[1] + across[0] + c, value)]
        return self._lanes("c", across[1], store, width)

    def _pack_right(self, columns: Span, start: Affine | int = 0) -> list[Stmt]:
        """Panels of b (from step `start` on), each contiguous: element (k, c) at k * n + c. Where b is contiguous along k, tiles of it are turned
        in registers."""
        def row(k: Affine, panel: Span, across: Span, width: int) -> For:
            return self._copied_row(k, (columns[0] + panel[0], panel[1]), panel[0], across, width, start)

        def turned(steps: Span, panel: Span, across: Span) -> list[Stmt]:
            k = self.fresh("k")
            return [For(k, steps[1], (row(steps[0] + along(k), panel, across, self.plan.width),), "unroll")]
        if self._turned(self.dot.b, self.n, self.k):
            side = max(1, self.plan.width)
            return self._each_panel(columns, lambda panel: self._blocks("cb", panel[1], side, lambda across: self._blocks(
                "kb", self.depth, side, lambda steps: turned(steps, panel, across))))
        k, width = self.fresh("k"), self.plan.width * WIDE
        asked = [self._asked(columns, along(k) + start + self.plan.ask)] if self.plan.ask else []
        copied = self._each_panel(columns, lambda panel: [row(along(k), panel, (Affine(), panel[1]), width)])
        return [For(k, self.held, (*asked, *copied))]

    def _asked(self, panel: Span, step: Affine) -> For:
        """Ask for a row of a panel."""
        def body(c: Affine) -> list[Stmt]:
            return [Ask(*e.attr) for e in ex.topological(self._right(panel, step, c)) if e.op == "load"]
        return self._lanes("c", panel[1], body, self.plan.width * WIDE)

    def _turned(self, operand: Expr, inner: str, outer: str) -> bool:
        """Whether an operand is contiguous along the axis that is the outer one of its copy."""
        loads = [e.attr[1] for e in ex.topological([operand]) if e.op == "load"]
        return any(index.coefficient(inner) not in (0, 1) and index.coefficient(outer) == 1 for index in loads)

    def _copied_rows(self, rows: Span) -> list[Stmt]:
        return self._pack_left(rows) if self.left else []

    def _pack_left(self, rows: Span) -> list[Stmt]:
        """Rows of a, contiguous: element (r, k) at r * depth + k. Where a is contiguous along its rows, tiles of it are turned in registers."""
        def row(steps: Span, width: int, kind: str) -> list[Stmt]:
            r = self.fresh("r")

            def store(k: Affine) -> list[Stmt]:
                (value,) = rebase([self.dot.a], {self.m: rows[0] + along(r), self.k: steps[0] + k})
                return [Store(self.left, along(r, self.depth) + steps[0] + k, value)]
            return [For(r, rows[1], (self._lanes("k", steps[1], store, width),), kind)]
        if self._turned(self.dot.a, self.k, self.m):
            side = max(1, self.plan.width)
            return self._blocks("kb", self.depth, side, lambda steps: row(steps, side, "unroll"))
        return row((Affine(), self.depth), self.plan.width * WIDE, "serial")

    def _operands(self, rows: Span, columns: Span, start: Affine, place: Affine) -> tuple[Expr, Expr]:
        """a(r, k) and b(k, c) of a tile, from step `start` on (of b that of what is held, if that is not all); columns are copied from `place` on."""
        r, c, k = along("r"), along("c"), start + along("k")
        inside = k if self.held == self.depth else along("k")
        (a,) = [self._load(self.left, r * self.depth + k)] if self.left else rebase([self.dot.a], {self.m: rows[0] + r, self.k: k})
        (b,) = [self._load(self.right, place * self.held + inside * columns[1] + c)] if self.right else self._right(columns, k, c)
        return a, b

    def _right(self, columns: Span, k: Affine, c: Affine) -> list[Expr]:
        """b(k, c) as it is in memory."""
        loads = (lambda name, index, moved: self._in_panel(name, index, columns, k, c)) if self.dot.panels else None
        return rebase([self.dot.b], {self.k: k, self.n: columns[0] + c}, loads)

    def _in_panel(self, name: str, index: Affine, columns: Span, k: Affine, c: Affine) -> Expr:
        """b(k, c) where b is stored in panels and these columns are one of them. `index` starts at the first column of a block, maybe."""
        dtype = next(e.dtype for e in ex.topological([self.dot.b]) if e.op == "load" and e.attr[0] == name)
        first = index.substitute({self.k: Affine(), self.n: columns[0]})
        return load(name, dtype, first * self.depth + k * columns[1] + c)

    def _part(self, name: str, rows: Span, columns: Span, place: Affine, steps: Span, body: list[Stmt], beside: For | None = None) -> Tile:
        """A register tile of some steps of k."""
        a, b = self._operands(rows, columns, steps[0], place)
        return Tile(name, self.dot.dtype, "r", rows[1], "c", columns[1], "k", steps[1], self.plan.width, a, b, tuple(body), beside=beside)

    def _chunk(self, name: str, rows: Span, columns: Span, place: Affine, steps: Span, first: Affine, beside: For | None = None) -> Tile:
        """A register tile whose sums are added to those in scratch, from `first` on."""
        at = first + along("r", columns[1]) + along("c")
        total = ex.make("add", self.dot.dtype, (self._load(self.sums, at), ex.var(name, self.dot.dtype)))
        return self._part(name, rows, columns, place, steps, [Store(self.sums, at, total)], beside)

    def _tile(self, rows: Span, columns: Span, place: Affine, beside: For | None = None) -> list[Stmt]:
        whole = (Affine(), self.depth)
        if not self.sums:
            return [self._part(self.dot.name, rows, columns, place, whole, self._stores(rows[0] + along("r"), columns[0] + along("c")), beside)]
        name = self.fresh(self.dot.name + ".p")
        if not self.deep:
            body: list[Stmt] = [Store(self.sums, along("r", columns[1]) + along("c"), ex.var(name, self.dot.dtype))]
            found: list[Stmt] = [self._part(name, rows, columns, place, whole, body, beside)]
        else:
            found = [self._zero(self.sums, rows[1] * columns[1])]
            found += self._blocks("kt", self.depth, self.chunk, lambda steps: [self._chunk(name, rows, columns, place, steps, Affine())])
        return found + self._finish(rows, columns)

    # ----------------------------------------------------------------- few rows
    def _stream(self, columns: Span) -> list[Stmt]:
        """Sums of all rows and of a block of columns, in scratch, while b streams past."""
        size = self.rows * columns[1]

        def chunk(steps: Span) -> list[Stmt]:
            found = [self._zero(self.part, size)]
            found += self._blocks("kb", steps[1], self.plan.stream, lambda span: self._pass((steps[0] + span[0], span[1]), columns))
            if self.deep:
                found.append(self._lanes("z", size, lambda z: [Store(self.sums, z, ex.make(
                    "add", self.dot.dtype, (self._load(self.sums, z), self._load(self.part, z))))], self.plan.width))
            return found
        begin = [self._zero(self.sums, size)] if self.deep else []
        return [*begin, *self._blocks("kt", self.depth, self.chunk, chunk), *self._finish((Affine(), self.rows), columns)]

    def _pass(self, steps: Span, columns: Span) -> list[Stmt]:
        """Some steps of k for all sums of the block."""
        dtype = self.dot.dtype

        def body(c: Affine) -> list[Stmt]:
            found: list[Stmt] = []
            for row in range(self.rows):
                place = c + row * columns[1]
                total = self._load(self.part, place)
                for step in range(steps[1]):
                    at = {self.m: Affine(row), self.n: columns[0] + c, self.k: steps[0] + step}
                    a, b = rebase([self.dot.a, self.dot.b], at)
                    total = (ex.make("fma", dtype, (a, b, total)) if dtype.is_float
                             else ex.make("add", dtype, (total, ex.make("mul", dtype, (a, b)))))
                found.append(Store(self.part, place, total))
            return found
        return [self._lanes("c", columns[1], body, self.plan.width)]
