"""Contractions of narrow integers as loops, see `mlc.kernel.words`: operands are copied into words of two or four steps of k.

The panel of b always is. a is read where it lies if it is contiguous along k, else copied once, before all panels; rows that are moved by
128 are copied a tile at a time, so that the tile spreads words of memory over lanes. The last word of a depth that is no multiple has zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.expr import Expr
from mlc.kernel.axes import rebase
from mlc.kernel.ir import Dot
from mlc.kernel.tiling import TileSchedule
from mlc.kernel.words import SIGNS, is_moved, narrow, per_word, reads_words, word
from mlc.loop.ir import Decl, For, Stmt, Store, Tile, load
from mlc.loop.lower_dot import DotLoops
from mlc.loop.spans import Span, along


class WordLoops(DotLoops):
    """Emits one `Dot` by words."""

    def __init__(self, dot: Dot, plan: TileSchedule, fresh: Callable[[str], str], buffer_name: Callable[[str], str]):
        super().__init__(dot, plan, fresh, buffer_name)
        self.sides = narrow(dot.a), narrow(dot.b)
        self.per = per_word(plan.parts)
        self.words = -(-self.depth // self.per)
        n = min(plan.n, self.columns)
        self.right = self._buffer("b", self.words * n * self.group)
        self.left = "" if reads_words(dot, plan.parts) else self._buffer("a", self.rows * self.words)
        self.moved = self._buffer("moved", n * self.group) if is_moved(dot) else ""
        self.bytes = self._buffer("bytes", min(plan.m, self.rows) * self.depth, self.sides[0].dtype) if self.moved and not self.left else ""

    def run(self, kind: str = "serial") -> list[Stmt]:
        copied = self._left_words() if self.left else []
        return copied + self._blocks("nt", self.columns, self.plan.n, self._panels, kind)

    # ----------------------------------------------------------------- words
    def _word(self, side: int, at: dict[str, Affine], step: Affine, count: int, place: tuple[Span, Affine] | None = None) -> Expr:
        """The word of steps of k from `step` words on; `count` are there. `place`: columns that may be a panel, and which of them."""
        found: list[Expr] = []
        for piece in range(count):
            k = step * self.per + piece
            loads = None
            if place and self.dot.panels:
                loads = lambda name, index, moved, k=k: self._in_panel(name, index, place[0], k, place[1])
            found += rebase([self.sides[side]], {**at, self.k: k}, loads)
        return word(found, self.plan.parts)

    def _steps(self, name: str, body: Callable[[Affine, int], list[Stmt]]) -> list[Stmt]:
        """body(word, how many pieces it has) for all words."""
        found: list[Stmt] = []
        if whole := self.depth // self.per:
            var = self.fresh(name)
            found.append(For(var, whole, tuple(body(along(var), self.per))))
        if rest := self.depth % self.per:
            found += body(Affine(whole), rest)
        return found

    def _across(self, side: int, axis: str) -> bool:
        """Whether an operand is contiguous along k and not along its other axis: then words are copied one by one."""
        loads = [e.attr[1] for e in ex.topological([self.sides[side]]) if e.op == "load"]
        return any(i.coefficient(self.k) == 1 and i.coefficient(axis) not in (0, 1) for i in loads) and not (side and self.dot.panels)

    def _copied(self, extent: int, side: int, axis: str, body: Callable[[Affine, Affine, int], list[Stmt]]) -> list[Stmt]:
        """body(word, place along the axis, pieces) for all of them."""
        if self._across(side, axis):
            var = self.fresh("c")
            return [For(var, extent, tuple(self._steps("k", lambda step, count: body(step, along(var), count))))]
        return self._steps("k", lambda step, count: [self._lanes("c", extent, lambda c: body(step, c, count), self.plan.width)])

    def _left_words(self) -> list[Stmt]:
        """All of a."""
        return self._copied(self.rows, 0, self.m, lambda step, r, count: [
            Store(self.left, self._left_place(r, step), self._word(0, {self.m: r}, step, count))])

    def _left_place(self, r: Affine, step: Affine) -> Affine:
        """Where a word of the copy of a lies: in the order that it is copied in."""
        return r * self.words + step if self._across(0, self.m) else step * self.rows + r

    def _pack_right(self, columns: Span) -> list[Stmt]:
        """Panels of b: word k of column c at k * columns + c; and what is to be added because a is moved."""
        return self._each_panel(columns, lambda part: self._pack_panel((columns[0] + part[0], part[1]), part[0]))

    def _pack_panel(self, columns: Span, place: Affine) -> list[Stmt]:
        found = self._copied(columns[1], 1, self.n, lambda step, c, count: [
            Store(self.right, place * self.words + step * columns[1] + c, self._word(1, {self.n: columns[0] + c}, step, count, (columns, c)))])
        if self.moved:
            name, dtype = self.fresh(self.dot.name + ".s"), self.dtype
            total = ex.make("neg", dtype, (ex.var(name, dtype),))
            found.append(self._words(name, 1, columns[1], place, ex.const(SIGNS, dtype), [Store(self.moved, place + along("c"), total)]))
        return found

    # ----------------------------------------------------------------- tiles
    def _words(self, name: str, rows: int, columns: int, place: Affine, a: Expr, body: list[Stmt]) -> Tile:
        b = self._load(self.right, place * self.words + along("k") * columns + along("c"))
        return Tile(name, self.dtype, "r", rows, "c", columns, "k", self.words, self.plan.width, a, b, tuple(body), self.plan.parts)

    def _copied_rows(self, rows: Span) -> list[Stmt]:
        """Bytes of rows of a, moved by 128."""
        if not self.bytes:
            return []
        var, dtype = self.fresh("r"), self.sides[0].dtype
        sign = ex.const(-128 if dtype.kind == "i" else 128, dtype)

        def body(k: Affine) -> list[Stmt]:
            (value,) = rebase([self.sides[0]], {self.m: rows[0] + along(var), self.k: k})
            return [Store(self.bytes, along(var, self.depth) + k, ex.make("xor", dtype, (value, sign)))]
        return [For(var, rows[1], (self._lanes("k", self.depth, body, self.plan.width * self.per),))]

    def _left_word(self, row: Affine) -> Expr:
        """A word of a row of the tile, moved or not."""
        step = along("k")
        if self.bytes:
            dtype = self.sides[0].dtype
            return word([load(self.bytes, dtype, along("r", self.depth) + step * self.per + piece) for piece in range(self.per)], self.plan.parts)
        found = self._load(self.left, self._left_place(row, step)) if self.left else self._word(0, {self.m: row}, step, self.per)
        return ex.make("xor", self.dtype, (found, ex.const(SIGNS, self.dtype))) if self.moved else found

    def _tile(self, rows: Span, columns: Span, place: Affine) -> list[Stmt]:
        dtype, row, own = self.dtype, rows[0] + along("r"), self.dtype is self.dot.dtype
        name = self.fresh(self.dot.name + ".p") if self.sums or self.moved or not own else self.dot.name
        total = ex.var(name, dtype)
        if self.moved:
            total = ex.make("add", dtype, (total, self._load(self.moved, place + along("c"))))
        if self.sums:
            body: list[Stmt] = [Store(self.sums, along("r", columns[1]) + along("c"), total)]
        else:
            body = [] if name == self.dot.name else [Decl(self.dot.name, self.dot.dtype, self.plan.width, ex.convert(total, self.dot.dtype))]
            body += self._stores(row, columns[0] + along("c"))
        tile = self._words(name, rows[1], columns[1], place, self._left_word(row), body)
        return [tile, *self._finish(rows, columns)] if self.sums else [tile]
