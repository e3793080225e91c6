"""Attention in the many ways it is written: layouts, groups of heads, scales, masks, divided early or late, read by others, too."""

from __future__ import annotations

import numpy as np
from mlc_strategies.recipe import Builder

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.ops.base import Domain

_OPERANDS = Domain(-2, 2)


class _Attention:
    """One attention: batch sizes, queries t, keys s, depth d, values c. `emit` raises _Stop where a value is of no use."""

    def __init__(self, b: Builder, dtype: DType):
        self.b, self.dtype = b, dtype
        sizes = b.config.palette.sizes
        self.batch = b.draws.choice([(), (), (2,), (1, 2), (2, 3)])
        # With a key or query or two it is no attention worth a kernel: mostly more.
        several = [n for n in sizes if n > 3] or sizes
        self.t, self.s = (b.draws.choice(several if b.draws.chance(0.85) else sizes) for _ in range(2))
        self.d, self.c = (b.draws.choice(sizes) for _ in range(2))
        if b.draws.chance(0.25):
            # Several blocks of keys: even ones, one with a rest, one key too many.
            self.batch, self.t, self.s = (), b.draws.choice([4, 7, 8, 12]), b.draws.choice([129, 130, 192, 200, 256, 257, 300, 333])
            self.d, self.c = b.draws.choice([1, 3, 8]), b.draws.choice([1, 5, 8])

    def emit(self, name: str, inputs: list[int], attrs: dict | None = None, shape=None, dtype: DType | None = None) -> int:
        made = self.b.emit(name, inputs, attrs, TensorType(shape, dtype or self.dtype) if shape is not None else None)
        if made is None:
            raise _Stop
        return made

    def splat(self, value: float, of: int) -> int:
        return self.b._evaluated(self.b.graph.constant(value, self.b.type(of)))

    def operand(self, rows: int, columns: int) -> tuple[int, tuple[int, ...], int, int]:
        """A [.., rows, columns] in some order of its axes: (node, batch axes, axis of rows, axis of columns)."""
        order = self.b.draws.choice(["plain", "swapped", "rows first"])
        n = len(self.batch)
        if order == "swapped":
            shape, places = (*self.batch, columns, rows), (tuple(range(n)), n + 1, n)
        elif order == "rows first" and n:
            shape, places = (*self.batch[:-1], rows, self.batch[-1], columns), ((*range(n - 1), n), n - 1, n + 1)
        else:
            shape, places = (*self.batch, rows, columns), (tuple(range(n)), n, n + 1)
        if not self.b.config.palette.fits(shape):
            raise _Stop
        make = self.b.source if self.b.draws.chance(0.6) else self.b.operand
        return make(TensorType(shape, self.dtype), _OPERANDS), *places

    def scaled(self, x: int) -> int:
        if self.b.draws.chance(0.5):
            return x
        return self.emit(self.b.draws.choice(["mul", "div"]), [x, self.splat(self.b.draws.choice([0.125, 0.3, 2.0]), x)])

    def scores(self) -> int:
        """[.., t, s], or as keys before queries and transposed."""
        q, q_batch, _, q_columns = self.operand(self.t, self.d)
        k, k_batch, _, k_columns = self.operand(self.s, self.d)
        if self.b.draws.chance(0.3):
            q = self.scaled(q)
        n = len(self.batch)
        if self.b.draws.chance(0.25):
            attrs = {"contract": ((k_columns,), (q_columns,)), "batch": (k_batch, q_batch)}
            turned = self.emit("dot_general", [k, q], attrs, (*self.batch, self.s, self.t))
            return self.emit("transpose", [turned], {"perm": (*range(n), n + 1, n)})
        attrs = {"contract": ((q_columns,), (k_columns,)), "batch": (q_batch, k_batch)}
        return self.emit("dot_general", [q, k], attrs, (*self.batch, self.t, self.s))

    def masked(self, x: int) -> int:
        """Scores with a bias, a boolean mask, a causal mask, or none of these."""
        b, type = self.b, self.b.type(x)
        kind = b.draws.choice(["none", "none", "bias", "mask", "causal"])
        if kind == "none":
            return x
        if kind == "bias":
            return self.emit("add", [x, b.broadcast(type, _OPERANDS) or b.operand(type, _OPERANDS)])
        if kind == "mask":
            seen = self.emit("lt", [b.operand(type, _OPERANDS), self.splat(1.5, x)])
        else:
            rows, columns = (self.emit("iota", [], {"axis": type.rank - 2 + axis}, type.shape, dt.i32) for axis in (0, 1))
            ahead = b._evaluated(b.graph.constant(np.int32(b.draws.choice([0, 1, self.s // 2])), b.type(rows)))
            seen = self.emit("ge", [self.emit("add", [rows, ahead]), columns])
        low = b.draws.choice([-1e4, float(-np.inf), float(np.finfo(np.float16).min)])
        return self.emit("select", [seen, x, self.splat(low, x)])

    def row(self, kind: str, x: int) -> int:
        """A reduction over keys, spread again."""
        rank = self.b.type(x).rank
        small = self.emit(kind, [x], {"axes": (rank - 1,)})
        return self.emit("broadcast_in_dim", [small], {"dims": tuple(range(rank - 1))}, self.b.type(x).shape)

    def weighted(self, weights: int) -> int:
        v, v_batch, v_rows, _ = self.operand(self.s, self.c)
        n = len(self.batch)
        if self.b.draws.chance(0.2):
            result = self.emit("dot_general", [v, weights], {"contract": ((v_rows,), (n + 1,)), "batch": (v_batch, tuple(range(n)))},
                               (*self.batch, self.c, self.t))
            return self.emit("transpose", [result], {"perm": (*range(n), n + 1, n)})
        attrs = {"contract": ((n + 1,), (v_rows,)), "batch": (tuple(range(n)), v_batch)}
        return self.emit("dot_general", [weights, v], attrs, (*self.batch, self.t, self.c))

    def build(self) -> int:
        scores = self.masked(self.scaled(self.scores()))
        powers = self.emit("exp", [self.emit("sub", [scores, self.row("reduce_max", scores)])])
        rank = self.b.type(powers).rank
        if self.b.draws.chance(0.3):
            total = self.emit("reduce_sum", [powers], {"axes": (rank - 1,)})
            result = self.weighted(powers)
            spread = self.emit("broadcast_in_dim", [total], {"dims": tuple(range(rank - 1))}, self.b.type(result).shape)
            result = self.emit("div", [result, spread])
        else:
            powers = self.emit("div", [powers, self.row("reduce_sum", powers)])
            result = self.weighted(powers)
        if self.b.draws.chance(0.1):
            self.b.kept.append(self.b.draws.choice([scores, powers]))  # what one kernel would not store is asked for
        if self.b.draws.chance(0.2) and self.batch:
            n = len(self.batch)
            result = self.emit("transpose", [result], {"perm": (*range(n - 1), n, n - 1, n + 1)})
        return result


class _Stop(Exception):
    """A value on the way was too large, or of no use."""


def attention(b: Builder, dtype: DType) -> int | None:
    """softmax(q . k) . v, as the compiler makes one kernel of it, and nearly so."""
    try:
        return _Attention(b, dtype).build()
    except _Stop:
        return None
