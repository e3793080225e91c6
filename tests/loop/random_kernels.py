"""Random small loop kernels that the verifier accepts, and inputs for them: what text, interpreter, verifier and machine code are tried on.

Every kernel is a few blocks (elementwise, row reduction, tile, recurrence, two passes over scratch, a choice), each writing a buffer of its own.
"""

from __future__ import annotations

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.expr import Expr
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, If, LoopKernel, Stmt, Store, Tile, load

WIDTHS = (1, 2, 4, 8, 16)
EXTENTS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33)


def edge_bits(dtype: DType) -> list[int]:
    """Bit patterns at the corners of a dtype: zeros, ends, subnormals, infinities, NaN."""
    top = 1 << (dtype.bits - 1)
    if not dtype.is_float:
        return [0, 1, 2, 3, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, dtype.bits, dtype.bits - 1, dtype.bits + 1]
    mantissa = dt.MANTISSA[dtype] - 1
    inf = ((1 << (dtype.bits - 1 - mantissa)) - 1) << mantissa
    one = ((1 << (dtype.bits - 2 - mantissa)) - 1) << mantissa
    plain = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, one + (1 << (mantissa - 1)), inf - 1, inf, inf + (1 << (mantissa - 1))]
    return plain + [bits | top for bits in plain]


def random_array(rng: np.random.Generator, size: int, dtype: DType) -> np.ndarray:
    """A quarter corner cases, a quarter any bits, half numbers of ordinary size."""
    if dtype is dt.bool_:
        return rng.integers(0, 2, size).astype(bool)
    integer = dt.uint_of(dtype).numpy
    bits = rng.integers(0, 1 << 64, size, np.uint64).astype(integer)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            plain = rng.normal(0, 4, size).astype(dtype.numpy)
        # A signalling NaN may come out of a move changed.
        values = bits.view(dtype.numpy)
        with np.errstate(all="ignore"):
            bits = np.where(np.isnan(values), integer.type(0), bits)
        plain = plain.view(integer)
    else:
        plain = rng.integers(-9, 10, size).astype(dt.sint_of(dtype).numpy).view(integer)
    edges = np.array(edge_bits(dtype), np.uint64).astype(integer)[rng.integers(0, len(edge_bits(dtype)), size)]
    return np.choose(rng.integers(0, 4, size), [edges, bits, plain, plain]).astype(integer).view(dtype.numpy)


def make_inputs(kernel: LoopKernel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays for the in and out buffers (out is random too: what is not written must stay)."""
    return {b.name: random_array(rng, b.size, b.dtype) for b in kernel.buffers if b.role != "scratch"}


def is_input(leaf: Expr) -> bool:
    """Whether this loads from an input: the names of those, and of no other buffer, begin with x."""
    return leaf.op == "load" and leaf.attr[0].startswith("x")


class Expressions:
    """Random well-typed expressions over the given leaves; parts are shared often."""

    _FLOAT2 = ("add", "sub", "mul", "div", "rem", "min", "max")
    _INT2 = (*_FLOAT2, "and", "or", "xor", "shl", "shr_arith", "shr_logical", "pow")

    def __init__(self, rng: np.random.Generator, leaves: list[Expr], ops: frozenset[str] | None = None):
        self.rng, self.leaves, self.ops = rng, leaves, ops
        self.made: dict[DType, list[Expr]] = {}
        for leaf in leaves:
            self.made.setdefault(leaf.dtype, []).append(leaf)

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def leaf(self, dtype: DType) -> Expr:
        made = self.made.get(dtype, [])
        if made and self.rng.random() < 0.8:
            return self.pick(made)
        if self.leaves and self.rng.random() < 0.6:
            return ex.convert(self.pick(self.leaves), dtype)
        if dtype is dt.bool_:
            return ex.const(int(self.rng.integers(2)), dtype)
        return ex.const_bits(self.pick(edge_bits(dtype)), dtype) if dtype.is_float else ex.const(int(self.rng.integers(-3, 40)), dtype)

    def make(self, dtype: DType, depth: int) -> Expr:
        """An expression of this dtype."""
        node = self.leaf(dtype) if depth <= 0 or self.rng.random() < 0.15 else self.instruction(dtype, depth - 1)
        self.made.setdefault(dtype, []).append(node)
        return node

    def instruction(self, dtype: DType, depth: int) -> Expr:
        rng, draw = self.rng, lambda t=dtype: self.make(t, depth)
        roll = rng.random()
        if roll < 0.1:
            return ex.select(draw(dt.bool_), draw(), draw())
        if roll < 0.25:
            other = self.pick(dt.ALL)
            return ex.convert(draw(other), dtype) if other is not dtype else draw()
        if dtype is dt.bool_:
            if roll < 0.4:
                return ex.unary("not", draw())
            if roll < 0.55:
                return ex.binary(self.pick(("and", "or", "xor", "min", "max")), draw(), draw())
            other = self.pick(dt.ALL)
            return ex.binary(self.pick(("eq", "ne", "lt", "le", "gt", "ge")), draw(other), draw(other))
        if dtype.is_float:
            if roll < 0.45:
                return ex.unary(self.pick(("neg", "abs", "sqrt", "floor", "ceil", "rint", "trunc")), draw())
            if roll < 0.6:
                return ex.fma(draw(), draw(), draw())
            return ex.binary(self.pick(self._FLOAT2), draw(), draw())
        if roll < 0.35:
            return ex.unary(self.pick(("neg", "abs", "not")), draw())
        same_size = [leaf for leaf in self.leaves if is_input(leaf) and leaf.dtype.is_float and leaf.dtype.bits == dtype.bits]
        if roll < 0.4 and same_size:
            return ex.bitcast(self.pick(same_size), dtype)  # only of what is given: the bits of a computed NaN are nobody's promise
        return ex.binary(self.pick(self._INT2), draw(), draw())


class KernelMaker:
    """Collects buffers and statements of one kernel."""

    def __init__(self, seed: int, dtypes: tuple[DType, ...] = dt.ALL):
        self.rng = np.random.default_rng(seed)
        self.dtypes = dtypes
        self.buffers: list[Buffer] = []
        self.names = 0

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def buffer(self, role: str, size: int, dtype: DType | None = None) -> Buffer:
        made = Buffer(self.name({"in": "x", "out": "y", "scratch": "t"}[role]), dtype or self.pick(self.dtypes), size, role)
        self.buffers.append(made)
        return made

    def read(self, loops: dict[str, int], dtype: DType | None = None) -> Expr:
        """A load of a fresh input at some affine function of the loops: dense, broadcast, strided or reversed."""
        index, size = Affine(), 1
        for var, extent in reversed(loops.items()):
            kind = self.rng.random()
            if kind < 0.2:
                continue
            stride = size if kind < 0.8 else size * 2
            if kind >= 0.93:
                index = index + Affine(stride * (extent - 1), ((var, -stride),))
            else:
                index = index + Affine(0, ((var, stride),))
            size += stride * (extent - 1)
        shift = int(self.rng.integers(0, 3))
        made = self.buffer("in", size + shift, dtype)
        return load(made.name, made.dtype, index + shift)

    def loop(self, var: str, extent: int, body: tuple[Stmt, ...], outermost: bool = False) -> For:
        kinds = ("serial", "unroll", "parallel") if outermost else ("serial", "unroll")
        return For(var, extent, body, self.pick(kinds))

    def dense(self, loops: dict[str, int]) -> tuple[Affine, int]:
        """The row-major index of some loops, and how many elements there are."""
        index, size = Affine(), 1
        for var, extent in reversed(loops.items()):
            index = index + Affine(0, ((var, size),))
            size *= extent
        return index, size

    # ----------------------------------------------------------------------- blocks
    def elementwise(self) -> Stmt:
        i, j = self.name("i"), self.name("j")
        loops = {i: self.pick((1, 2, 3)), j: self.pick(EXTENTS)}
        leaves = [self.read(loops) for _ in range(int(self.rng.integers(1, 4)))] + [ex.index(j)]
        made = Expressions(self.rng, leaves)
        index, size = self.dense(loops)
        out, temporary = self.buffer("out", size), self.name("v")
        width, dtype = self.pick(WIDTHS), self.pick(self.dtypes)
        body: list[Stmt] = [Decl(temporary, dtype, width, made.make(dtype, 3))]
        variable = ex.var(temporary, dtype)
        made.made.setdefault(dtype, []).extend([variable] * 3)
        if self.rng.random() < 0.5:
            body.append(Assign((temporary,), (made.make(dtype, 2),)))
        body.append(Store(out.name, index, made.make(out.dtype, 3)))
        if self.rng.random() < 0.3:
            other = self.buffer("out", size)
            body.append(Store(other.name, index, made.make(other.dtype, 3)))
        return self.loop(i, loops[i], (For(j, loops[j], tuple(body), "vector", width),), True)

    def reduction(self) -> Stmt:
        """A row reduction with one or two accumulators of many lanes, a fold, and an epilogue."""
        i, j = self.name("i"), self.name("j")
        loops = {i: self.pick((1, 2, 3)), j: self.pick(EXTENTS)}
        width, count = self.pick(WIDTHS), int(self.rng.integers(1, 3))
        types = [self.pick(self.dtypes) for _ in range(count)]
        names = [self.name("acc") for _ in types]
        starts = [Expressions(self.rng, []).make(t, 0) for t in types]
        leaves = [self.read(loops) for _ in range(2)] + [ex.var(n, t) for n, t in zip(names, types)]
        made = Expressions(self.rng, leaves)
        step = Assign(tuple(names), tuple(made.make(t, 2) for t in types))
        sides = [ex.var(f"{side}.{k}", t) for k, t in enumerate(types) for side in "ab"]
        combine = tuple(Expressions(self.rng, sides).make(t, 2) for t in types)
        totals = [self.name("s") for _ in types]
        final = Expressions(self.rng, [ex.var(n, t) for n, t in zip(totals, types)])
        out = self.buffer("out", loops[i])
        body = (*(Decl(n, t, width, s) for n, t, s in zip(names, types, starts)), For(j, loops[j], (step,), "vector", width),
                Fold(tuple(totals), tuple(names), combine), Store(out.name, Affine(0, ((i, 1),)), final.make(out.dtype, 2)))
        return self.loop(i, loops[i], body, True)

    def tile(self) -> Stmt:
        """A register tile under a row loop, with an epilogue that reads a bias."""
        o, r, c, k = (self.name(n) for n in "orck")
        m, n, depth, width = self.pick((1, 2, 4, 6)), self.pick(EXTENTS), self.pick((1, 2, 5, 16)), self.pick(WIDTHS)
        rows = {o: self.pick((1, 2)), r: m}
        dtype = self.pick([t for t in self.dtypes if t is not dt.bool_])
        left = Expressions(self.rng, [self.read({**rows, k: depth})]).make(dtype, int(self.rng.integers(2)))
        made = self.buffer("in", depth * n + 3)
        index = Affine(0, ((k, n),)) + self.pick((Affine(0, ((c, 1),)), Affine(1, ((c, 1),)), Affine(2)))
        right = Expressions(self.rng, [load(made.name, made.dtype, index)]).make(dtype, int(self.rng.integers(2)))
        name, (place, size) = self.name("acc"), self.dense({**rows, c: n})
        out = self.buffer("out", size)
        epilogue = Expressions(self.rng, [ex.var(name, dtype), self.read({**rows, c: n}), ex.index(r), ex.index(c)])
        body = (Store(out.name, place, epilogue.make(out.dtype, 2)),)
        return self.loop(o, rows[o], (Tile(name, dtype, r, m, c, n, k, depth, width, left, right, body),), True)

    def recurrence(self) -> Stmt:
        """Scalars carried through a serial loop, two assigned at once, and every state stored."""
        i, k = self.name("i"), self.name("k")
        loops = {i: self.pick((1, 2)), k: self.pick((1, 3, 9))}
        types = [self.pick(self.dtypes), self.pick(self.dtypes)]
        names = [self.name("p"), self.name("q")]
        starts = [Expressions(self.rng, []).make(t, 0) for t in types]
        made = Expressions(self.rng, [ex.var(n, t) for n, t in zip(names, types)] + [self.read(loops), ex.index(k)])
        index, size = self.dense(loops)
        out = self.buffer("out", size, types[1])
        step = Assign(tuple(names), tuple(made.make(t, 2) for t in types))
        inner = (step, Store(out.name, index, ex.var(names[1], types[1])))
        body = (*(Decl(n, t, 1, s) for n, t, s in zip(names, types, starts)), self.loop(k, loops[k], inner))
        return self.loop(i, loops[i], body, True)

    def two_passes(self) -> Stmt:
        """Scratch rows written by one vector loop and read backwards by the next; a serial loop inside a vector loop."""
        i, j, jj, k = (self.name(n) for n in ("i", "j", "jj", "k"))
        rows, columns, inner = self.pick((1, 3)), self.pick(EXTENTS), self.pick((1, 3))
        scratch = self.buffer("scratch", rows * columns)
        first = Expressions(self.rng, [self.read({i: rows, j: columns})]).make(scratch.dtype, 2)
        width, total = self.pick(WIDTHS), self.name("v")
        back = load(scratch.name, scratch.dtype, Affine(columns - 1, ((i, columns), (jj, -1))))
        dtype = self.pick(self.dtypes)
        step = Expressions(self.rng, [ex.var(total, dtype), back, self.read({i: rows, jj: columns, k: inner}), ex.index(k)]).make(dtype, 2)
        out = self.buffer("out", rows * columns, dtype)
        second = (Decl(total, dtype, width, Expressions(self.rng, []).make(dtype, 0)), self.loop(k, inner, (Assign((total,), (step,)),)),
                  Store(out.name, Affine(0, ((i, columns), (jj, 1))), ex.var(total, dtype)))
        body = (For(j, columns, (Store(scratch.name, Affine(0, ((i, columns), (j, 1))), first),), "vector", self.pick(WIDTHS)),
                For(jj, columns, second, "vector", width))
        return self.loop(i, rows, body, True)

    def choice(self) -> Stmt:
        """One of two ways to fill a row, chosen row by row, which is read again afterwards."""
        i, j, jj, k = (self.name(n) for n in ("i", "j", "jj", "k"))
        rows, columns, width = self.pick((1, 3)), self.pick(EXTENTS), self.pick(WIDTHS)
        chosen = Expressions(self.rng, [self.read({i: rows}), ex.index(i)]).make(dt.bool_, 2)
        out, last, total = self.buffer("out", rows * columns), self.buffer("out", rows * columns), self.name("v")
        made = Expressions(self.rng, [self.read({i: rows, j: columns})]).make(out.dtype, 2)
        one = (For(j, columns, (Store(out.name, Affine(0, ((i, columns), (j, 1))), made),), "vector", width),)
        step = Expressions(self.rng, [ex.var(total, out.dtype), self.read({i: rows, k: columns})]).make(out.dtype, 2)
        other = (Decl(total, out.dtype, 1, Expressions(self.rng, []).make(out.dtype, 0)),
                 self.loop(k, columns, (Assign((total,), (step,)), Store(out.name, Affine(0, ((i, columns), (k, 1))), ex.var(total, out.dtype)))))
        back = load(out.name, out.dtype, Affine(columns - 1, ((i, columns), (jj, -1))))
        again = Expressions(self.rng, [back, self.read({i: rows, jj: columns})]).make(last.dtype, 2)
        ways = (one, other) if self.rng.random() < 0.5 else (other, one)
        after = For(jj, columns, (Store(last.name, Affine(0, ((i, columns), (jj, 1))), again),), "vector", width)
        return self.loop(i, rows, (If(chosen, *ways), after), True)

    def kernel(self, name: str, blocks: int) -> LoopKernel:
        kinds = (self.elementwise, self.reduction, self.tile, self.recurrence, self.two_passes, self.choice)
        body = tuple(self.pick(kinds)() for _ in range(blocks))
        return LoopKernel(name, tuple(sorted(self.buffers, key=lambda b: b.role == "scratch")), body)


def random_kernel(seed: int, dtypes: tuple[DType, ...] = dt.ALL) -> LoopKernel:
    """The kernel of this seed: one to three blocks over these dtypes."""
    return KernelMaker(seed, dtypes).kernel(f"random#{seed}", 1 + seed % 3)
