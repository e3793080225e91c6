"""The register tile: accumulators that stay in registers over the whole k loop, which is unrolled by two where there are few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlc.codegen import matrix
from mlc.codegen.builder import Builder, Value, type_text
from mlc.codegen.instructions import instruction, splat
from mlc.codegen.lanes import Index, Lane, last_lanes
from mlc.core import dtype as dt
from mlc.loop.ir import For, Tile

if TYPE_CHECKING:
    from mlc.codegen.statements import KernelEmitter

UNROLL = 2
# So many fmas hide what a loop costs by themselves; more code would only cost LLVM's time.
ENOUGH = 12
# The halves of words of bf16, whose sums are apart within a block.
_SIDES = ("upper", "lower")


def _columns(s: Tile) -> list[tuple[int, Lane]]:
    """First column and lanes of each column vector; the last is as narrow as it may be."""
    full, rest = divmod(s.n, s.width)
    columns = [(i * s.width, Lane(s.c, s.width, s.width, s.width)) for i in range(full)]
    if rest:
        last = last_lanes(s.c, rest, s.width)
        lanes = max(last.lanes, min(s.width, 4)) if s.parts else last.lanes  # words are multiplied four lanes at a time, and more
        columns.append((full * s.width, Lane(s.c, lanes, rest, s.width)))
    return columns


def emit_tile(k: KernelEmitter, s: Tile) -> None:
    """Emit a Tile: the sums, then its body for every row and column vector."""
    if matrix.fits(k, s):
        matrix.emit(k, s)
        return
    columns = _columns(s)
    cells = [(r, j) for r in range(s.m) for j in range(len(columns))]
    names = [f"{s.name}.{r}.{j}" for r, j in cells]
    outer = {name: k.indices.get(name) for name in (s.r, s.c, s.k)}
    for (_, j), name in zip(cells, names):
        k.env[name] = k.b.constant(0, s.dtype, columns[j][1].lanes)

    between = s.depth // s.beside.extent if s.beside else 0  # steps between two iterations of what runs beside
    unroll = 1 if len(cells) >= ENOUGH or between % UNROLL else UNROLL

    def step(offset: int, base: Index | None) -> None:
        k.indices[s.k] = Index(base.value if base else None, offset, unroll if base else 1)
        _step(k, s, columns)

    def body() -> None:
        base = k.indices[s.k]
        for offset in range(unroll):
            step(offset, base)

    rounds = s.depth // unroll if s.depth > UNROLL + 1 else 0
    done = k.number(rounds * unroll, "depth", s.name)
    if s.block and s.dtype.is_float:
        _blocks(k, s, columns, names)
    elif s.beside:
        _beside(k, s.beside, s.k, between, unroll, names, body)
    elif rounds:
        k.loop(s.k, "0", done, unroll, names, (), body)
        for i in range(s.depth % unroll):
            step(i, Index(Value(done, dt.i64, 1, 0)))
    else:
        for i in range(s.depth):
            step(i, None)

    for (r, j), name in zip(cells, names):
        first, k.lane = columns[j]
        k.indices[s.r], k.indices[s.c] = Index(None, r), Index(None, first)
        k.env[s.name] = k.env.pop(name)
        k.body(s.body)
        k.lane = None
    k.restore_indices(outer)


def _beside(k: KernelEmitter, other: For, var: str, between: int, unroll: int, names: list[str], body: Callable[[], None]) -> None:
    """The k loop, in pieces, before each of which the other loop runs once."""
    count, level = k.number(between, "between", other.var), k.b.level + 1

    def piece() -> None:
        k.body(other.body)
        first = k.b.emit(level, f"mul nuw nsw i64 {k.indices[other.var].value.text}, {count}")
        k.loop(var, first, k.b.emit(level, f"add nuw nsw i64 {first}, {count}"), unroll, names, (), body)
    outer = k.indices.get(other.var)
    k.loop(other.var, "0", k.number(other.extent, "extent", other.var), 1, names, k.effects(other)[1], piece)
    k.restore_indices({other.var: outer})


def _blocks(k: KernelEmitter, s: Tile, columns: list[tuple[int, Lane]], names: list[str]) -> None:
    """Sums of blocks of words, of their upper and of their lower halves apart, which are then added to those before."""
    halves = [f"{name}.{kind}" for name in names for kind in _SIDES]

    def block(first: str, last: str) -> None:
        for name in names:
            for kind in _SIDES:
                k.env[f"{name}.{kind}"] = k.b.constant(0, s.dtype, k.env[name].lanes)
        k.loop(s.k, first, last, 1, halves, (), lambda: _step(k, s, columns))
        for name in names:
            both = instruction(k.b, "add", s.dtype, [k.env.pop(f"{name}.{kind}") for kind in _SIDES])
            k.env[name] = instruction(k.b, "add", s.dtype, (k.env[name], both))

    def whole() -> None:
        first, level = k.indices[s.k].value.text, k.b.level
        block(first, k.b.emit(level, f"add nuw nsw i64 {first}, {s.block}"))
    count, rest = divmod(s.depth, s.block)
    if count:
        k.loop(s.k, "0", str(count * s.block), s.block, names, (), whole)
    if rest:
        block(str(count * s.block), str(s.depth))


def _step(k: KernelEmitter, s: Tile, columns: list[tuple[int, Lane]]) -> None:
    """acc[r, c] += a(r, k) * b(k, c) for all r and c, at the k that `k.indices` holds."""
    rights = []
    for first, k.lane in columns:
        k.indices[s.c] = Index(None, first)
        rights.append(k.value(s.b))
    k.lane = None
    # Of an f16 in memory, 16 bits are spread over the lanes and then widened: the scalar conversion would take twice the time of the fmas.
    early = s.a.op == "convert" and s.a.args[0].dtype is dt.f16 and k.b.target.f16c
    for r in range(s.m):
        k.indices[s.r] = Index(None, r)
        left = k.value(s.a.args[0] if early else s.a)
        for j, right in enumerate(rights):
            name = f"{s.name}.{r}.{j}"
            spread = instruction(k.b, "convert", s.dtype, (splat(k.b, left, columns[j][1].lanes),)) if early else left
            if s.block and s.dtype.is_float:
                for kind, one, other in zip(_SIDES, _halves(k, splat(k.b, left, right.lanes)), _halves(k, right)):
                    k.env[f"{name}.{kind}"] = instruction(k.b, "fma", s.dtype, (one, other, k.env[f"{name}.{kind}"]))
                continue
            k.env[name] = _accumulate(k, s, spread, right, k.env[name])


def _accumulate(k: KernelEmitter, s: Tile, left: Value, right: Value, total: Value) -> Value:
    if s.parts:
        return _add_parts(k, s, left, right, total)
    if s.dtype.is_float:
        return instruction(k.b, "fma", s.dtype, (left, right, total))
    return instruction(k.b, "add", s.dtype, (total, instruction(k.b, "mul", s.dtype, (left, right))))


def _add_parts(k: KernelEmitter, s: Tile, left: Value, right: Value, total: Value) -> Value:
    """The products of the parts of two words, all added: one instruction where the target has it."""
    b, lanes = k.b, total.lanes
    if s.dtype.is_float:
        return _add_halves(k, s, left, right, total)
    if b.target.int8_dot and lanes in (4, 8, 16):
        left = splat(b, left, lanes)
        pairs = s.parts[0] is dt.i16
        x, y = (right, left) if s.parts[0] is dt.i8 else (left, right)  # the unsigned one comes first
        type_ = type_text(s.dtype, lanes)
        name = b.declare(f"llvm.x86.avx512.{'vpdpwssd' if pairs else 'vpdpbusd'}.{32 * lanes}", type_, ", ".join([type_] * 3))
        level = max(v.level for v in (left, right, total))
        return Value(b.emit(level, f"call {type_} @{name}({type_} {total.text}, {type_} {x.text}, {type_} {y.text})"), s.dtype, lanes, level)
    if b.target.int16_dot and s.parts == (dt.i16, dt.i16) and lanes in _PAIRS and 32 * lanes <= b.target.vector_bits:
        return instruction(b, "add", s.dtype, (total, _products(b, splat(b, left, lanes), right)))
    for shift in range(0, 32, s.parts[0].bits):
        pieces = [_piece(k, word, part, shift) for word, part in zip((left, right), s.parts)]
        total = instruction(b, "add", s.dtype, (total, instruction(b, "mul", s.dtype, pieces)))
    return total


# By lanes: what adds the products of two i16 each, as LLVM names it.
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


def _products(b: Builder, left: Value, right: Value) -> Value:
    """Sums of two products of i16 each."""
    lanes = right.lanes
    type_, pairs = type_text(right.dtype, lanes), f"<{2 * lanes} x i16>"
    name = b.declare(f"llvm.x86.{_PAIRS[lanes]}", type_, f"{pairs}, {pairs}")
    x, y = (b.emit(v.level, f"bitcast {type_} {v.text} to {pairs}") for v in (left, right))
    level = max(left.level, right.level)
    return Value(b.emit(level, f"call {type_} @{name}({pairs} {x}, {pairs} {y})"), right.dtype, lanes, level)


def _add_halves(k: KernelEmitter, s: Tile, left: Value, right: Value, total: Value) -> Value:
    """The same for two bf16, the upper ones first. The instruction does just that, but flushes what is subnormal."""
    b, lanes = k.b, total.lanes
    left = splat(b, left, lanes)
    if s.normal and b.target.bf16_dot and lanes in (4, 8, 16):
        type_, pairs = type_text(s.dtype, lanes), f"<{2 * lanes} x bfloat>"
        name = b.declare(f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", type_, f"{type_}, {pairs}, {pairs}")
        level = max(v.level for v in (left, right, total))
        x, y = (b.emit(v.level, f"bitcast {type_text(v.dtype, lanes)} {v.text} to {pairs}") for v in (left, right))
        return Value(b.emit(level, f"call {type_} @{name}({type_} {total.text}, {pairs} {x}, {pairs} {y})"), s.dtype, lanes, level)
    for one, other in zip(_halves(k, left), _halves(k, right)):
        total = instruction(b, "fma", s.dtype, (one, other, total))
    return total


def _halves(k: KernelEmitter, word: Value) -> list[Value]:
    """The two bf16 of a word as f32, the upper one first."""
    up = instruction(k.b, "and", word.dtype, (word, k.b.constant(-0x10000, word.dtype, word.lanes)))
    low = instruction(k.b, "shl", word.dtype, (word, k.b.constant(16, word.dtype, word.lanes)))
    return [instruction(k.b, "bitcast", dt.f32, (half,)) for half in (up, low)]


def _piece(k: KernelEmitter, word: Value, part: dt.DType, shift: int) -> Value:
    """The integer that a word holds from a bit on."""
    up = instruction(k.b, "shl", word.dtype, (word, k.b.constant(32 - part.bits - shift, word.dtype, word.lanes)))
    down = k.b.constant(32 - part.bits, word.dtype, word.lanes)
    return instruction(k.b, "shr_arith" if part.kind == "i" else "shr_logical", word.dtype, (up, down))
