"""Contractions of narrow numbers as loops, see `mlc.kernel.words`: operands are copied into words of two or four steps of k.

The panel of b always is. a is read where it lies if it is contiguous along k, else copied once, before all panels; rows that are moved by
128, or whose bytes become i16, are copied a tile at a time, so that the tile spreads words of memory over lanes. The last word of a depth
that is no multiple has zeros. Tiles of bf16 are there twice: which of them run is found out in front of all loops (`look`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.expr import Expr
from mlc.kernel.axes import rebase
from mlc.kernel.ir import Axis, Dot
from mlc.kernel.tiling import TileSchedule
from mlc.kernel.words import EXPONENTS, SIGNS, copies_rows, is_moved, narrow, per_word, reads_words, word
from mlc.loop.ir import Assign, Decl, Fold, For, If, Stmt, Store, Tile, load
from mlc.loop.lower_dot import DotLoops
from mlc.loop.spans import Span, along

# Rows of tiles of two vectors, of which each sum is three.
LOW_TILE = 4


class WordLoops(DotLoops):
    """Emits one `Dot` by words."""

    def __init__(self, dot: Dot, plan: TileSchedule, fresh: Callable[[str], str], buffer_name: Callable[[str], str]):
        super().__init__(dot, plan, fresh, buffer_name)
        self.sides = narrow(dot.a), narrow(dot.b)
        self.per = per_word(plan.parts)
        self.words = -(-self.depth // self.per)
        n = min(plan.n, self.columns)
        self.right = self._buffer("b", self.words * n * self.group, dt.i32)
        self.left = "" if reads_words(dot, plan.parts) else self._buffer("a", self.rows * self.words, dt.i32)
        self.moved = self._buffer("moved", n * self.group) if is_moved(dot, plan.parts) else ""
        copies = copies_rows(dot, plan.parts) and not self.left
        self.row_dtype = self.sides[0].dtype if self.moved else plan.parts[0]
        self.bytes = self._buffer("bytes", min(plan.m, self.rows) * self.depth, self.row_dtype) if copies else ""

    def run(self, kind: str = "serial") -> list[Stmt]:
        copied = self._left_words() if self.left else []
        return copied + self._blocks("nt", self.columns, self.plan.n * self.group, self._panels, kind)

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
        """Where a word of the copy of a lies: in the order that it is copied in, but matrix registers read rows."""
        return r * self.words + step if self.plan.block or self._across(0, self.m) else step * self.rows + r

    def _pack_right(self, columns: Span) -> list[Stmt]:
        """Panels of b: word k of column c at k * columns + c; and what is to be added because a is moved."""
        return self._each_panel(columns, lambda part: self._pack_panel((columns[0] + part[0], part[1]), part[0]))

    def _pack_panel(self, columns: Span, place: Affine) -> list[Stmt]:
        found = self._copied(columns[1], 1, self.n, lambda step, c, count: [
            Store(self.right, place * self.words + step * columns[1] + c, self._word(1, {self.n: columns[0] + c}, step, count, (columns, c)))])
        if self.moved:
            name, dtype = self.fresh(self.dot.name + ".s"), self.dtype
            total = ex.make("neg", dtype, (ex.var(name, dtype),))
            found += self._words(name, 1, columns[1], place, lambda k: ex.const(SIGNS, dtype), [Store(self.moved, place + along("c"), total)])
        return found

    # ----------------------------------------------------------------- tiles
    def _words(self, name: str, rows: int, columns: int, place: Affine, a: Callable[[Affine], Expr], body: list[Stmt],
               span: Span | None = None) -> list[Stmt]:
        """Sums over all words, or some of them; a(word) are those of the left side."""
        start, count = span or (Affine(), self.words)
        k = start + along("k")
        b = load(self.right, dt.i32, place * self.words + k * columns + along("c"))
        tile = Tile(name, self.dtype, "r", rows, "c", columns, "k", count, self.plan.width, a(k), b, tuple(body), self.plan.parts,
                    block=self.plan.block)
        if not self.dtype.is_float:
            return [tile]
        other = self._low_tiles(tile) if self.plan.block else [tile]
        return [If(ex.var(normal(self.dot), dt.bool_), (replace(tile, normal=True),), tuple(other))]

    def _low_tiles(self, tile: Tile) -> list[Stmt]:
        """The same sums in tiles that vector registers hold: three for each, for the halves of a block have their own."""
        def part(rows: Span) -> list[Stmt]:
            at = {tile.r: along(tile.r) + rows[0]}
            (a,) = rebase([tile.a], at)
            body = [Store(s.buffer, s.index.substitute(at), rebase([s.value], at)[0]) for s in tile.body]
            return [replace(tile, m=rows[1], a=a, body=tuple(body))]
        return self._blocks("rt", tile.m, LOW_TILE, part)

    def _copied_rows(self, rows: Span) -> list[Stmt]:
        """Bytes of rows of a, moved by 128 or as i16."""
        if not self.bytes:
            return []
        var, dtype = self.fresh("r"), self.row_dtype
        sign = ex.const(-128 if dtype.kind == "i" else 128, dtype)

        def body(k: Affine) -> list[Stmt]:
            (value,) = rebase([self.sides[0]], {self.m: rows[0] + along(var), self.k: k})
            copied = ex.make("xor", dtype, (value, sign)) if self.moved else ex.convert(value, dtype)
            return [Store(self.bytes, along(var, self.depth) + k, copied)]
        return [For(var, rows[1], (self._lanes("k", self.depth, body, self.plan.width * self.per),))]

    def _left_word(self, row: Affine) -> Callable[[Affine], Expr]:
        """The words of a row of the tile, moved or not."""
        def at(step: Affine) -> Expr:
            if self.bytes:
                pieces = [along("r", self.depth) + step * self.per + piece for piece in range(self.per)]
                return word([load(self.bytes, self.row_dtype, place) for place in pieces], self.plan.parts)
            found = load(self.left, dt.i32, self._left_place(row, step)) if self.left else self._word(0, {self.m: row}, step, self.per)
            return ex.make("xor", dt.i32, (found, ex.const(SIGNS, dt.i32))) if self.moved else found
        return at

    def _deep(self, rows: Span, columns: Span, place: Affine) -> list[Stmt]:
        """The sums of chunks, added up in scratch."""
        name, at = self.fresh(self.dot.name + ".p"), along("r", columns[1]) + along("c")
        total = ex.make("add", self.dtype, (self._load(self.sums, at), ex.var(name, self.dtype)))

        def part(span: Span) -> list[Stmt]:
            return self._words(name, rows[1], columns[1], place, self._left_word(rows[0] + along("r")), [Store(self.sums, at, total)], span)
        return [self._zero(self.sums, rows[1] * columns[1]), *self._blocks("kt", self.words, self.chunk // self.per, part)]

    def _tile(self, rows: Span, columns: Span, place: Affine) -> list[Stmt]:
        if self.deep:
            return [*self._deep(rows, columns, place), *self._finish(rows, columns)]
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
        return [*tile, *self._finish(rows, columns)] if self.sums else tile


# --------------------------------------------------------------------------- what bf16 are
def normal(dot: Dot) -> str:
    """The variable that says whether all sums of a contraction are zero or normal."""
    return f"{dot.name}.normal"


def look(dot: Dot, rows: Sequence[Axis], width: int, fresh: Callable[[str], str]) -> list[Stmt]:
    """Declare `normal(dot)`. Of what is not zero the number that its bits are, less 1, is least: an exponent not above the least one, and 0
    for subnormal numbers. Of a zero that is the largest there is."""
    found: list[Stmt] = []
    least: list[Expr] = []
    for side in (dot.a, dot.b):
        found += _least(narrow(side), dict((*rows, *dot.axes)), width, name := fresh(f"{dot.name}.least"), fresh)
        least.append(ex.make("shr_logical", dt.i32, (ex.convert(ex.var(name, dt.u16), dt.i32), ex.const(7, dt.i32))))
    enough = ex.make("ge", dt.bool_, (ex.make("add", dt.i32, tuple(least)), ex.const(EXPONENTS, dt.i32)))
    own = ex.make("ge", dt.bool_, (ex.make("min", dt.i32, tuple(least)), ex.const(1, dt.i32)))
    return [*found, Decl(normal(dot), dt.bool_, 1, ex.make("and", dt.bool_, (enough, own)))]


def _least(element: Expr, extents: dict[str, int], width: int, name: str, fresh: Callable[[str], str]) -> list[Stmt]:
    """Declare the least of an operand's bits without sign, less 1."""
    buffer, index = element.attr
    steps: list[tuple[int, int]] = []  # (elements apart, how many), outer first; what lies side by side is one
    for step, count in sorted(((index.coefficient(axis), count) for axis, count in extents.items() if index.coefficient(axis)), reverse=True):
        if steps and steps[-1][0] == step * count:
            step, count = step, count * steps.pop()[1]
        steps.append((step, count))
    lanes = 8 * width
    while lanes > 2 and lanes > 2 * steps[-1][1]:
        lanes //= 2
    names = [fresh("s") for _ in steps]
    place = Affine(index.offset, tuple((var, step) for var, (step, _) in zip(names, steps)))
    bits = ex.make("bitcast", dt.u16, (load(buffer, element.dtype, place),))
    bits = ex.make("sub", dt.u16, (ex.make("and", dt.u16, (bits, ex.const(0x7FFF, dt.u16))), ex.const(1, dt.u16)))
    some, best = f"{name}.v", ex.make("min", dt.u16, (ex.var("a.0", dt.u16), ex.var("b.0", dt.u16)))
    body: tuple[Stmt, ...] = (Assign((some,), (ex.make("min", dt.u16, (ex.var(some, dt.u16), bits)),)),)
    for k, (var, (_, count)) in enumerate(zip(reversed(names), reversed(steps))):
        body = (For(var, count, body, *(() if k else ("vector", lanes))),)
    return [Decl(some, dt.u16, lanes, ex.const(0xFFFF, dt.u16)), *body, Fold((name,), (some,), (best,))]
