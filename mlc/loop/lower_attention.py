"""Attention as loops: blocks of queries, each of which takes the keys block by block, with a running maximum and sum.

Scores lie transposed, `s[key][query]`: keys are then rows of the first tile and need no packing, a query is a lane of the
row passes, so that nothing is folded across lanes, and a broadcast of the second tile. Only a block of queries is packed.

    pack queries; top = -inf, total = 0, out = 0
    for each block of keys
      s = key . query                                          tiles of keys x queries
      for each query (a lane): top' = max(top, max s); base = top', or 0 where that is -inf; fade = w(top - base)
                               s = w(s - base) * 2^-bits; total = total * fade + sum s
      out = out * fade + s . value                             tiles of queries x values
    store out * (1 / total)

2^bits is at least the number of keys: sums of weights stay below 1, so that no sum of values overflows before it is divided.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.expr import Expr
from mlc.kernel.attention import AttendSchedule, weight_scale
from mlc.kernel.axes import rebase
from mlc.kernel.ir import Attend
from mlc.loop.ir import Assign, Buffer, Decl, For, Stmt, Store, Tile, load
from mlc.loop.spans import Span, along, blocks


class AttentionLoops:
    """Emits one `Attend` stage. `fresh` makes names of variables, `buffer_name` those of scratch; `scratch` is what it needs."""

    def __init__(self, stage: Attend, plan: AttendSchedule, fresh: Callable[[str], str], buffer_name: Callable[[str], str]):
        self.stage, self.plan, self.fresh = stage, plan, fresh
        (_, queries), (_, keys), (_, depth), (_, columns) = stage.axes
        self.rows, self.keys = min(plan.queries, queries), min(plan.keys, keys)
        self.single = self.keys == keys
        self.scratch: list[Buffer] = []

        def buffer(name: str, size: int) -> str:
            self.scratch.append(Buffer(buffer_name(name), stage.dtype, size, "scratch"))
            return self.scratch[-1].name
        self.packed, self.scores, self.total = buffer("q", depth * self.rows), buffer("s", self.keys * self.rows), buffer("total", self.rows)
        self.value = buffer("v", self.keys * columns) if plan.copied else ""
        self.staged = {e: Buffer(buffer_name("b"), e.dtype, self.keys * self.rows, "scratch") for e in self._across()}
        self.scratch += self.staged.values()
        if not self.single:
            self.top, self.fade, self.out = buffer("top", self.rows), buffer("fade", self.rows), buffer("out", self.rows * columns)

    def run(self, kind: str) -> list[Stmt]:
        """The whole stage: a loop of this kind over blocks of queries, and the queries left over."""
        return self._blocks("mb", self.stage.m[1], self.rows, self._query_block, kind)

    # ----------------------------------------------------------------- helpers
    def _blocks(self, name: str, extent: int, size: int, body: Callable[[Span], list[Stmt]], kind: str = "serial") -> list[Stmt]:
        return blocks(lambda: self.fresh(name), extent, size, body, kind)

    def load(self, buffer: str, index: Affine) -> Expr:
        return load(buffer, self.stage.dtype, index)

    def zero(self) -> Expr:
        return ex.const(0, self.stage.dtype)

    def lowest(self) -> Expr:
        return ex.const(float("-inf"), self.stage.dtype)

    def weight(self, distance: Expr) -> Expr:
        return ex.replace([self.stage.weight], {self.stage.distance: distance})[0]

    def lanes(self, count: int, body: Callable[[Affine], list[Stmt]]) -> For:
        """A loop over queries of the block, one a lane."""
        var = self.fresh("l")
        return For(var, count, tuple(body(along(var))), *(("vector", self.plan.width) if self.plan.width > 1 else ()))

    def puts(self, total: Expr, query: Affine, column: Affine, lanes: int) -> list[Stmt]:
        """Declare the result, and what is stored of it."""
        at = {self.stage.m[0]: query, self.stage.c[0]: column}
        values = rebase([p.value for p in self.stage.puts], at)
        return [Decl(self.stage.name, self.stage.dtype, lanes, total),
                *(Store(p.target, p.index.substitute(at), v) for p, v in zip(self.stage.puts, values))]

    def _across(self) -> list[Expr]:
        """What a score loads that is contiguous from key to key, not from query to query: turned before, block by block."""
        (m, queries), (n, keys) = self.stage.m, self.stage.n
        if min(queries, keys) < 4:
            return []
        loads = [e for e in ex.topological([self.stage.score]) if e.op == "load"]
        return [e for e in loads if e.attr[1].coefficient(n) == 1 and abs(e.attr[1].coefficient(m)) > 1]

    def turn(self, down: tuple[str, int], across: tuple[str, int], value: Callable[[Affine, Affine], Stmt]) -> list[Stmt]:
        """Tiles of `by` x `by` that code generation transposes in registers: `value(down, across)` is stored, `across` are lanes."""
        by = self.plan.by

        def tile(rows: Span, cols: Span) -> list[Stmt]:
            r, c = self.fresh("r"), self.fresh("c")
            return [For(r, rows[1], (For(c, cols[1], (value(rows[0] + along(r), cols[0] + along(c)),), "vector", by),), "unroll")]
        return self._blocks(down[0], down[1], by, lambda rows: self._blocks(across[0], across[1], by, lambda cols: tile(rows, cols)))

    # ----------------------------------------------------------------- one block of queries
    def _query_block(self, queries: Span) -> list[Stmt]:
        def block(keys: Span) -> list[Stmt]:
            return [*self._bring(queries, keys), *self._score(queries, keys), self._weigh(queries, keys), *self._sum(queries, keys)]
        body = self._pack(queries)
        if not self.single:
            body += self._begin(queries[1])
        body += self._blocks("nb", self.stage.n[1], self.keys, block)
        return body if self.single else [*body, *self._end(queries)]

    def _pack(self, queries: Span) -> list[Stmt]:
        """Queries as `packed[k][query]`."""
        def store(k: Affine, q: Affine) -> Stmt:
            (value,) = rebase([self.stage.query], {self.stage.m[0]: queries[0] + q, self.stage.k[0]: k})
            return Store(self.packed, k * self.rows + q, value)
        if not self.plan.turned:
            k, q = self.fresh("k"), self.fresh("q")
            return [For(k, self.stage.k[1], (For(q, queries[1], (store(along(k), along(q)),), "vector", self.plan.by),))]
        return self.turn(("k", self.stage.k[1]), ("q", queries[1]), store)

    def _bring(self, queries: Span, keys: Span) -> list[Stmt]:
        """What a block of keys needs in an order of its own: turned masks and biases, copied values."""
        found: list[Stmt] = []
        for node, buffer in self.staged.items():
            name, index = node.attr

            def store(n: Affine, q: Affine, name: str = name, index: Affine = index, buffer: Buffer = buffer) -> Stmt:
                place = index.substitute({self.stage.m[0]: queries[0] + q, self.stage.n[0]: keys[0] + n})
                return Store(buffer.name, n * self.rows + q, load(name, buffer.dtype, place))
            found += self.turn(("n", keys[1]), ("q", queries[1]), store)
        if self.value:
            n, c = self.fresh("n"), self.fresh("c")
            (value,) = rebase([self.stage.value], {self.stage.n[0]: keys[0] + along(n), self.stage.c[0]: along(c)})
            copy = Store(self.value, along(n, self.stage.c[1]) + along(c), value)
            found.append(For(n, keys[1], (For(c, self.stage.c[1], (copy,), "vector", self.plan.by),)))
        return found

    def _begin(self, count: int) -> list[Stmt]:
        var = self.fresh("z")
        return [self.lanes(count, lambda q: [Store(self.top, q, self.lowest()), Store(self.total, q, self.zero())]),
                For(var, count * self.stage.c[1], (Store(self.out, along(var), self.zero()),), "vector", self.plan.by)]

    def _score(self, queries: Span, keys: Span) -> list[Stmt]:
        m, n = self.plan.scores

        def tile(rows: Span, cols: Span) -> list[Stmt]:
            name = self.fresh(f"{self.stage.name}.s")
            (a,) = rebase([self.stage.key], {self.stage.n[0]: keys[0] + rows[0] + along("r"), self.stage.k[0]: along("k")})
            b = self.load(self.packed, along("k", self.rows) + cols[0] + along("c"))
            store = Store(self.scores, (rows[0] + along("r")) * self.rows + cols[0] + along("c"), ex.var(name, self.stage.dtype))
            return [Tile(name, self.stage.dtype, "r", rows[1], "c", cols[1], "k", self.stage.k[1], self.plan.by, a, b, (store,))]
        return self._blocks("rt", keys[1], m, lambda rows: self._blocks("ct", queries[1], n, lambda cols: tile(rows, cols)))

    def _weigh(self, queries: Span, keys: Span) -> For:
        """Scores become weights; the maximum, the sum and how much of the earlier sums stays are brought up to date."""
        dtype, width = self.stage.dtype, self.plan.width
        names = {what: self.fresh(f"{self.stage.name}.{what}") for what in ("top", "base", "fade", "sum")}
        top, base, fade, total = (ex.var(names[what], dtype) for what in names)

        def body(q: Affine) -> list[Stmt]:
            found: list[Stmt] = [Decl(names["top"], dtype, width, self.lowest() if self.single else self.load(self.top, q))]
            found.append(self._highest(queries, keys, q, names["top"]))
            found.append(Decl(names["base"], dtype, width, ex.select(ex.eq(top, self.lowest()), self.zero(), top)))
            if not self.single:
                found.append(Decl(names["fade"], dtype, width, self.weight(self.load(self.top, q) - base)))
            found.append(Decl(names["sum"], dtype, width, self.zero()))
            found.append(self._exponentials(keys[1], q, base, names["sum"]))
            if self.single:
                return [*found, Store(self.total, q, ex.const(1, dtype) / total)]
            return [*found, Store(self.fade, q, fade), Store(self.top, q, top), Store(self.total, q, self.load(self.total, q) * fade + total)]
        return self.lanes(queries[1], body)

    def _highest(self, queries: Span, keys: Span, q: Affine, top: str) -> For:
        dtype, n, name = self.stage.dtype, self.fresh("n"), self.fresh(f"{self.stage.name}.x")
        place = along(n, self.rows) + q
        brought = {e.attr: load(b.name, b.dtype, place) for e, b in self.staged.items()}
        (score,) = rebase([self.stage.score], {self.stage.m[0]: queries[0] + q, self.stage.n[0]: keys[0] + along(n)},
                          lambda name, old, new: brought.get((name, old)))
        x, so_far = ex.var(name, dtype), ex.var(top, dtype)
        body: list[Stmt] = [Decl(name, dtype, self.plan.width, ex.replace([score], {self.stage.dot: self.load(self.scores, place)})[0])]
        if score is not self.stage.dot:
            body.append(Store(self.scores, place, x))
        # A NaN leaves the maximum as it is, and makes the sum NaN.
        return For(n, keys[1], (*body, Assign((top,), (ex.select(x > so_far, x, so_far),))))

    def _exponentials(self, count: int, q: Affine, base: Expr, total: str) -> For:
        dtype, n, name = self.stage.dtype, self.fresh("n"), self.fresh(f"{self.stage.name}.w")
        place = along(n, self.rows) + q
        value = self.weight(self.load(self.scores, place) - base) * weight_scale(self.stage)
        return For(n, count, (Decl(name, dtype, self.plan.width, value), Store(self.scores, place, ex.var(name, dtype)),
                              Assign((total,), (ex.var(total, dtype) + ex.var(name, dtype),))))

    def _sum(self, queries: Span, keys: Span) -> list[Stmt]:
        m, n = self.plan.sums

        def tile(rows: Span, cols: Span) -> list[Stmt]:
            name, row, column = self.fresh(f"{self.stage.name}.o"), rows[0] + along("r"), cols[0] + along("c")
            a = self.load(self.scores, along("k", self.rows) + row)
            (b,) = rebase([self.stage.value], {self.stage.n[0]: keys[0] + along("k"), self.stage.c[0]: column})
            if self.value:
                b = self.load(self.value, along("k", self.stage.c[1]) + column)
            new, place = ex.var(name, self.stage.dtype), row * self.stage.c[1] + column
            if self.single:
                body = self.puts(new * self.load(self.total, row), queries[0] + row, column, self.plan.by)
            else:
                body = [Store(self.out, place, self.load(self.out, place) * self.load(self.fade, row) + new)]
            return [Tile(name, self.stage.dtype, "r", rows[1], "c", cols[1], "k", keys[1], self.plan.by, a, b, tuple(body))]
        return self._blocks("ct", self.stage.c[1], n, lambda cols: self._blocks("rt", queries[1], m, lambda rows: tile(rows, cols)))

    def _end(self, queries: Span) -> list[Stmt]:
        one = ex.const(1, self.stage.dtype)
        row, column = self.fresh("r"), self.fresh("c")
        total = self.load(self.out, along(row, self.stage.c[1]) + along(column)) * self.load(self.total, along(row))
        store = self.puts(total, queries[0] + along(row), along(column), self.plan.by)
        return [self.lanes(queries[1], lambda q: [Store(self.total, q, one / self.load(self.total, q))]),
                For(row, queries[1], (For(column, self.stage.c[1], tuple(store), "vector", self.plan.by),))]


