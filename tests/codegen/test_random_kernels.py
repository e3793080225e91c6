"""Random loop nests: hoisting, value numbering, phis and tails in combinations that no one would write down."""

import random

import pytest
from machine import runnable_targets
from test_kernels import check

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine, variable
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, LoopKernel, Store, Tile, load

DTYPES = (dt.f32, dt.f32, dt.i32, dt.f64, dt.u8, dt.f16, dt.bf16, dt.i64, dt.bool_)
# Products of random values grow; these keep them finite often enough to tell right from wrong.
FLOAT = ("add", "sub", "mul", "min", "max", "div")
INT = ("add", "sub", "mul", "min", "max", "div", "rem", "xor", "and", "shl")
BOOL = ("and", "or", "xor", "eq", "lt")


class Maker:
    """One kernel from one seed. A buffer pair (in, out) per dtype; stores go to the place of the iteration, so nothing races."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.buffers: dict[str, Buffer] = {}
        self.names = 0
        self.scopes: list[dict[str, tuple[dt.DType, int]]] = [{}]
        self.loops: list[tuple[str, int]] = []
        self.lanes = 1
        self.body = tuple(self.statements(0))
        ins = [b for b in self.buffers.values() if b.role == "in"]
        self.kernel = LoopKernel(f"random{seed}", tuple(ins + [b for b in self.buffers.values() if b.role == "out"]), self.body)

    def fresh(self, base: str) -> str:
        self.names += 1
        return f"{base}{self.names}"

    def buffer(self, dtype: dt.DType, role: str, size: int) -> str:
        """A buffer that no one else has (out), or one of few of this dtype, made large enough (in)."""
        name = self.fresh("o") if role == "out" else f"x_{dtype}_{self.random.randrange(2)}"
        old = self.buffers.get(name)
        self.buffers[name] = Buffer(name, dtype, max(size, old.size if old else 0), role)
        return name

    def place(self) -> tuple[Affine, int]:
        """A place of its own for every iteration of the open loops, and how many there are."""
        index, size = Affine(), 1
        for var, extent in reversed(self.loops):
            index, size = index + variable(var) * size, size * extent
        return index, size

    def variables(self, dtype: dt.DType, lanes: tuple[int, ...]) -> list[str]:
        found = {name: shape for scope in self.scopes for name, shape in scope.items()}
        return [name for name, (d, n) in found.items() if d is dtype and n in lanes]

    def leaf(self, dtype: dt.DType):
        r, kind = self.random, self.random.random()
        names = self.variables(dtype, (1, self.lanes))
        if kind < 0.35 and names:
            return ex.var(r.choice(names), dtype)
        if kind < 0.85:
            terms = {var: r.choice((0, 1, 1, 2, 3, 7)) for var, _ in self.loops}
            index = Affine(r.randrange(3), terms)
            if self.loops and r.random() < 0.5:  # what other loops are likely to read as well
                index = variable(self.loops[-1][0])
            high = index.bounds(dict(self.loops))[1]
            if r.random() < 0.2:  # the same, backwards
                index = Affine(high) + index * -1
            return load(self.buffer(dtype, "in", high + 1), dtype, index)
        if self.loops and dtype is dt.i64:
            return ex.index(r.choice(self.loops)[0])
        return ex.const(r.choice((0, 1, 2, 3, 5)), dtype)

    def expression(self, dtype: dt.DType, depth: int):
        r = self.random
        if depth == 0 or r.random() < 0.2:
            return self.leaf(dtype)
        kind = r.random()
        if kind < 0.15:
            return ex.convert(self.expression(r.choice(DTYPES), depth - 1), dtype)
        if kind < 0.25:
            return ex.select(self.expression(dt.bool_, depth - 1), self.expression(dtype, depth - 1), self.expression(dtype, depth - 1))
        if dtype is dt.bool_:
            op = r.choice(BOOL)
            operand = r.choice((dt.f32, dt.i32)) if op in ("eq", "lt") else dtype
            return ex.binary(op, self.expression(operand, depth - 1), self.expression(operand, depth - 1))
        op = r.choice(FLOAT if dtype.is_float else INT)
        return ex.binary(op, self.expression(dtype, depth - 1), self.expression(dtype, depth - 1))

    def statements(self, depth: int):
        r, result = self.random, []
        self.scopes.append({})
        if depth < 3 and self.lanes == 1 and r.random() < 0.5:
            result += self.reduction()
        if depth < 3 and self.lanes == 1 and r.random() < 0.3:
            result.append(self.tile())
        for _ in range(r.randrange(1, 4)):
            kind, dtype = r.random(), r.choice(DTYPES)
            if kind < 0.25:
                name, lanes = self.fresh("v"), r.choice((1, self.lanes))
                saved = self.lanes
                init = self.scalar(dtype) if lanes == 1 else self.expression(dtype, 2)
                self.lanes = saved
                self.scopes[-1][name] = dtype, lanes
                result.append(Decl(name, dtype, lanes, init))
            elif kind < 0.45 and self.variables(dtype, (self.lanes,)) and not (self.lanes > 1 and not self.local(dtype)):
                names = self.local(dtype) if self.lanes > 1 else self.variables(dtype, (1,))
                result.append(Assign((r.choice(names),), (self.expression(dtype, 2),)))
            elif depth < 3 and kind < 0.75:
                result.append(self.loop(depth))
            else:
                index, size = self.place()
                result.append(Store(self.buffer(dtype, "out", size), index, self.expression(dtype, 3)))
        self.scopes.pop()
        index, size = self.place()
        result.append(Store(self.buffer(dt.f32, "out", size), index, self.expression(dt.f32, 2)))
        return result

    def scalar(self, dtype: dt.DType):
        """An expression without lanes: outside of the vector loop's variable and its variables."""
        return ex.const(self.random.choice((0, 1, 2)), dtype)

    def local(self, dtype: dt.DType) -> list[str]:
        """Variables with the lanes of the open vector loop."""
        return [n for n in self.variables(dtype, (self.lanes,)) if self.lanes > 1]

    def loop(self, depth: int):
        r, var = self.random, self.fresh("i")
        kinds = ["serial", "serial", "unroll"] + (["vector", "vector"] if self.lanes == 1 else []) + (["parallel"] if not self.loops else [])
        kind = r.choice(kinds)
        extent = r.choice((1, 2, 3, 5)) if kind != "vector" else r.choice((1, 3, 8, 13, 16, 21, 35))
        width = r.choice((4, 8, 16, 32)) if kind == "vector" else 1
        hidden = self.scopes
        if kind == "parallel":  # iterations share no variables
            self.scopes = [{}]
        elif kind == "vector":  # scalars of outside may be read, not assigned
            self.lanes = width
        self.loops.append((var, extent))
        body = self.statements(depth + 1)
        self.loops.pop()
        if kind == "vector":
            self.lanes = 1
        self.scopes = hidden
        return For(var, extent, tuple(body), kind, width)

    def reduction(self):
        """A lane accumulator over a vector loop, folded."""
        r, dtype = self.random, self.random.choice((dt.f32, dt.i32, dt.f16, dt.bool_))
        acc, total, var, width = self.fresh("acc"), self.fresh("t"), self.fresh("i"), r.choice((4, 16, 64))
        op = "xor" if dtype is dt.bool_ else r.choice(("add", "max"))
        decl = Decl(acc, dtype, width, self.expression(dtype, 1))
        self.loops.append((var, r.choice((1, 3, 7, 16, 40, 67))))
        self.lanes = width
        value = self.expression(dtype, 2)
        extent = self.loops.pop()[1]
        self.lanes = 1
        self.scopes[-1][total] = dtype, 1
        return [decl, For(var, extent, (Assign((acc,), (ex.binary(op, ex.var(acc, dtype), value),)),), "vector", width),
                Fold((total,), (acc,), (ex.binary(op, ex.var("a.0", dtype), ex.var("b.0", dtype)),))]


    def tile(self):
        """A register tile whose operands are converted loads or scalars, with a random epilogue."""
        r, dtype, stored = self.random, self.random.choice((dt.f32, dt.f64, dt.i32)), self.random.choice((dt.f32, dt.i8, dt.f16))
        name, row, column, k = (self.fresh(base) for base in ("acc", "r", "c", "k"))
        m, n, depth, width = r.choice((1, 2, 5)), r.choice((1, 3, 7, 16, 19, 21)), r.choice((1, 2, 3, 4, 7)), r.choice((4, 8, 16))
        self.loops += [(row, m), (k, depth)]
        a = ex.convert(self.leaf(stored), dtype)
        del self.loops[-2:]
        right = Affine(r.randrange(2), {k: r.choice((n, n + 3)), column: r.choice((0, 1, 1, 1)), **{v: r.choice((0, 1)) for v, _ in self.loops}})
        high = right.bounds(dict([*self.loops, (k, depth), (column, n)]))[1]
        b = ex.convert(load(self.buffer(stored, "in", high + 1), stored, right), dtype)
        self.loops += [(row, m), (column, n)]
        self.scopes.append({name: (dtype, width)})
        self.lanes, shown, body = width, self.fresh("v"), []
        if r.random() < 0.5:
            body.append(Decl(shown, dtype, width, self.expression(dtype, 2)))
            self.scopes[-1][shown] = dtype, width
        index, size = self.place()
        body.append(Store(self.buffer(dtype, "out", size), index, ex.var(name, dtype) + self.expression(dtype, 2)))
        self.lanes = 1
        self.scopes.pop()
        del self.loops[-2:]
        return Tile(name, dtype, row, m, column, n, k, depth, width, a, b, tuple(body))


@pytest.mark.parametrize("target", runnable_targets())
def test_random_kernels(target):
    check([Maker(seed).kernel for seed in range(25)], target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", runnable_targets())
def test_many_random_kernels(target):
    for start in range(25, 2000, 25):
        check([Maker(seed).kernel for seed in range(start, start + 25)], target, start)
