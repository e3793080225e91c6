"""Loads and stores: addresses, and how the lanes of a vector loop map to memory.

Neighbouring lanes in neighbouring elements are one vector access; reversed ones a vector access and a shuffle; small
strides a few vector loads and shuffles; any other stride is an access per lane, or a gather where that is faster. A last
block that is not full touches exactly its own elements: by mask registers where the target has them, else by a vector of
just so many lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from math import gcd
from typing import TYPE_CHECKING

from mlc.codegen import ahead, halves
from mlc.codegen.builder import Builder, Value, memory_text, splat_text, vector_text
from mlc.codegen.instructions import splat
from mlc.core import dtype as dt
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.expr import Expr
from mlc.loop.ir import Ask, Buffer, Store

if TYPE_CHECKING:
    from mlc.codegen.statements import KernelEmitter

# What the memory plan, constants and our own outputs are aligned to. Arrays of users are only aligned to their elements.
ALIGNMENT = 64

# Up to this stride, loading everything and shuffling beats a load per lane.
SHUFFLED_STRIDE = 4


def _address(k: KernelEmitter, buffer: Buffer, index: Affine, shift: int = 0) -> tuple[str, int, int]:
    """Pointer to buffer[index + shift] (at lane 0), its alignment in bytes, and the level it is computed at.

    One pointer addition per loop level, outer first, so that only the innermost part varies; constants last, where they
    become displacements.
    """
    b, size = k.b, buffer.dtype.itemsize
    if k.numbers and not buffer.own:
        return _numbered_address(k, buffer, index, shift)
    offset = index.offset + shift
    grain = size if buffer.role == "in" else ALIGNMENT
    parts = []
    for name, factor in index.terms:
        place = k.indices[name]
        offset += factor * place.offset
        if place.value is not None:
            parts.append((place.value.level, place.value, str(factor)))
            grain = gcd(grain, factor * place.step * size)
    pointer, level = _stepped(b, k.pointers[buffer.name], memory_text(buffer.dtype, 1), parts)
    return _displaced(b, pointer, level, memory_text(buffer.dtype, 1), offset), gcd(grain, offset * size), level


def address(k: KernelEmitter, buffer: Buffer, index: Affine, shift: int = 0) -> str:
    """Pointer to buffer[index + shift], at lane 0."""
    return _address(k, buffer, index, shift)[0]


def _numbered_address(k: KernelEmitter, buffer: Buffer, index: Affine, shift: int) -> tuple[str, int, int]:
    """The same where distances are arguments. Unrolled steps of a distance come next to last, as a few of its odd multiples, which x86
    scales by up to 8 as it adds them. No alignment is promised: distances would have to be multiples of something."""
    b, size, type_ = k.b, buffer.dtype.itemsize, memory_text(buffer.dtype, 1)
    offset, parts, apart = shift, [], []
    for name, factor in index.terms:
        place = k.indices[name]
        distance = str(factor) if factor == 1 else k.number(factor, buffer.name, name)
        if factor == 1:
            offset += place.offset
        elif place.offset:
            apart.append((distance, place.offset))
        if place.value is not None:
            parts.append((place.value.level, place.value, distance))
    pointer, level = k.pointers[buffer.name], 0
    if index.offset:
        start = k.number(index.offset, buffer.name, "start")
        pointer = b.once(("element", pointer, start), 0, f"getelementptr {type_}, ptr {pointer}, i64 {start}")
    pointer, level = _stepped(b, pointer, type_, parts)
    for distance, steps in apart:
        scale = min(8, steps & -steps)
        odd = b.once(("times", distance, steps // scale), 0, f"mul nsw i64 {distance}, {steps // scale * size}")
        pointer = b.once(("element", pointer, odd, scale), level, f"getelementptr [{scale} x i8], ptr {pointer}, i64 {odd}")
    return _displaced(b, pointer, level, type_, offset), size, level


def _stepped(b: Builder, pointer: str, type_: str, parts: list[tuple[int, Value, str]]) -> tuple[str, int]:
    """The pointer moved by each (level, value, factor), outer levels first, and the level where that is known."""
    level = 0
    if len(parts) > 1:
        parts.sort(key=_by_level)
    for level, value, factor in parts:
        table, key = b.tables[level], ("step", pointer, value, factor)
        moved = table.get(key)  # one look for both instructions, and no text where they are there
        if moved is None:
            scaled = value.text
            if factor != "1":
                scaled = b.once(("times", value, factor), level, f"mul nsw i64 {value.text}, {factor}")
            moved = table[key] = b.once(("element", pointer, scaled), level, f"getelementptr {type_}, ptr {pointer}, i64 {scaled}")
        pointer = moved
    return pointer, level


def _displaced(b: Builder, pointer: str, level: int, type_: str, offset: int) -> str:
    if not offset:
        return pointer
    table, key = b.tables[level], ("element", pointer, offset)
    found = table.get(key)
    if found is None:
        found = table[key] = b.emit(level, f"getelementptr {type_}, ptr {pointer}, i64 {offset}")
    return found


def _by_level(part: tuple) -> int:
    return part[0]


def load(k: KernelEmitter, node: Expr) -> Value:
    """buffer[index]: a scalar if the index does not depend on the lane, else a vector."""
    name, index = node.attr
    buffer = k.buffers[name]
    lane, stride = k.lane, 0
    if lane is not None:
        stride = index.coefficient(lane.var)
    lanes, active = (lane.lanes, lane.active) if stride else (1, 1)
    shift = -(active - 1) if stride == -1 else 0
    pointer, grain, level = _address(k, buffer, index, shift)
    level = max(level, k.dirty.get(name, 0))
    key = ("load", pointer, k.version.get(name, 0), lanes, active, stride)
    table = k.b.tables[level]
    found = table.get(key)
    if found is None:
        b, dtype = k.b, node.dtype
        if lanes == 1:
            text = b.emit(level, f"load {memory_text(dtype, 1)}, ptr {pointer}, align {grain}")
        elif down := _turned_loop(k, name, index, stride):
            text = _turned_load(k, level, buffer, index, down)
        elif stride in (1, -1):
            far = stride == 1 and active == lanes and buffer.role == "in" and level == b.level
            if far and (distance := _distance(k, name, index, dtype.itemsize)):
                ahead.ask(b, level, pointer, lanes * dtype.itemsize, distance)
            text = _vector_load(b, level, memory_text(dtype, 1), pointer, grain, lanes, active, stride)
        else:
            text = _strided_load(b, level, memory_text(dtype, 1), pointer, dtype.itemsize, lanes, active, stride)
        if dtype is dt.bool_:  # bytes other than 0 and 1 come in through views
            text = b.emit(level, f"icmp ne {memory_text(dtype, lanes)} {text}, {splat_text(0, dt.u8, lanes)}")
        found = table[key] = Value(text, dtype, lanes, level)
    return found


def ask(k: KernelEmitter, stmt: Ask) -> None:
    """Ask memory for what lanes would load here."""
    buffer = k.buffers[stmt.buffer]
    lanes = k.lane.active if k.lane and stmt.index.coefficient(k.lane.var) else 1
    pointer, _, _ = _address(k, buffer, stmt.index)
    ahead.ask(k.b, k.b.level, pointer, lanes * buffer.dtype.itemsize, 0)


def _distance(k: KernelEmitter, name: str, index: Affine, size: int) -> int:
    """How many bytes ahead of a load lies what is worth asking for; 0: nothing, or another loop asks for it."""
    if k.b.target.vector_bits < ahead.LEAST_BITS and not k.ahead.get(name):
        return 0
    far = k.buffers[name].nbytes >= ahead.FAR_BYTES
    rows = [index.coefficient(var) * extent * size for var, extent in k.unrolled.items() if far and extent > 1 and index.coefficient(var)]
    usual = k.ahead.get(name, ahead.READ_AHEAD if far else 0)
    if rows or not usual:
        return rows[0] if rows else 0
    # Pieces of rows that lie apart: what comes next is not what lies behind them.
    steps = [(at.value.level, abs(c) * at.step * size) for var, c in index.terms if var != k.lane.var and (at := k.indices[var]).value]
    piece = k.piece * size
    return max(steps)[1] * (usual // piece) if steps and piece <= usual and max(steps)[1] > piece else usual


def _vector_load(b: Builder, level: int, scalar: str, pointer: str, grain: int, lanes: int, active: int, stride: int) -> str:
    vector = vector_text(scalar, lanes)
    if active == lanes and stride == 1:
        return b.emit(level, f"load {vector}, ptr {pointer}, align {grain}")
    if stride == 1 and active > 1 and b.target.avx512:
        name = _masked(b, "load", scalar, lanes)
        return b.emit(level, f"call {vector} @{name}(ptr {pointer}, i32 {grain}, {mask_text(lanes, active)}, {vector} zeroinitializer)")
    exact = vector_text(scalar, active)
    text = b.emit(level, f"load {exact}, ptr {pointer}, align {grain}")
    order = list(range(active))[::stride]
    if active == 1:
        return b.emit(level, f"insertelement {vector} zeroinitializer, {scalar} {text}, i64 0")
    return shuffle(b, level, exact, text, "zeroinitializer", order + [active] * (lanes - active))


def _strided_load(b: Builder, level: int, scalar: str, pointer: str, size: int, lanes: int, active: int, stride: int) -> str:
    vector = vector_text(scalar, lanes)
    if active == lanes and abs(stride) <= SHUFFLED_STRIDE and lanes >= 4:
        return _shuffled_load(b, level, scalar, pointer, size, lanes, stride)
    if b.target.avx512 and size >= 4 and abs(stride) * size >= 64 and lanes >= 4:
        # Every lane in a cache line of its own: a gather keeps more misses in flight than loads and inserts.
        suffix = {"float": "f32", "double": "f64"}.get(scalar, scalar)
        name = b.declare(f"llvm.masked.gather.v{lanes}{suffix}.v{lanes}p0", vector, f"<{lanes} x ptr>, i32, <{lanes} x i1>, {vector}")
        steps = ", ".join([f"i64 {i * stride}" for i in range(lanes)])
        elements = b.emit(level, f"getelementptr {scalar}, ptr {pointer}, <{lanes} x i64> <{steps}>")
        return b.emit(level, f"call {vector} @{name}(<{lanes} x ptr> {elements}, i32 {size}, {mask_text(lanes, active)}, {vector} zeroinitializer)")
    text = "zeroinitializer" if active < lanes else "poison"
    for i in range(active):
        element = b.emit(level, f"getelementptr {scalar}, ptr {pointer}, i64 {i * stride}") if i else pointer
        one = b.emit(level, f"load {scalar}, ptr {element}, align {size}")
        text = b.emit(level, f"insertelement {vector} {text}, {scalar} {one}, i64 {i}")
    return text


def _shuffled_load(b: Builder, level: int, scalar: str, pointer: str, size: int, lanes: int, stride: int) -> str:
    """Small strides: contiguous vectors over the whole range, the last one moved back to end at the last element."""
    vector, count = vector_text(scalar, lanes), abs(stride)
    lowest = stride * (lanes - 1) if stride < 0 else 0
    starts = [i * lanes for i in range(count - 1)] + [count * (lanes - 1) + 1 - lanes]
    positions = [i * stride - lowest for i in range(lanes)]
    result = ""
    for start in starts:
        element = b.emit(level, f"getelementptr {scalar}, ptr {pointer}, i64 {lowest + start}") if lowest + start else pointer
        part = b.emit(level, f"load {vector}, ptr {element}, align {size}")
        # Lanes found in this part come from it, the others from what there is.
        order = [lanes + p - start if start <= p < start + lanes else i for i, p in enumerate(positions)]
        result = shuffle(b, level, vector, result or "poison", part, order)
    return result


# --------------------------------------------------------------------------- transposes in registers
def _turned_loop(k: KernelEmitter, name: str, index: Affine, stride: int) -> str:
    """The unrolled loop along which a load that jumps from lane to lane is contiguous: "" if there is none."""
    if abs(stride) > 1 and k.unrolled and k.lane.lanes >= 4 and k.buffers[name].role in ("in", "scratch") and not k.dirty.get(name):
        for var, extent in k.unrolled.items():
            if extent > 1 and index.coefficient(var) == 1 and var != k.lane.var:
                return var
    return ""


def _turned_load(k: KernelEmitter, level: int, buffer: Buffer, index: Affine, down: str) -> str:
    """A load of a tile: what each lane reads in all iterations of the unrolled loop `down` is contiguous, so it is loaded as a
    vector, and the square of them (or one for each register of the lanes) is transposed once for all of those iterations."""
    b, lane, here = k.b, k.lane, k.indices[down].offset
    side, stride = min(lane.lanes, max(1, 64 // buffer.dtype.itemsize)), index.coefficient(lane.var)
    first = here // side * side
    pointer, _, _ = _address(k, buffer, index, first - here)
    key = ("turned", pointer, k.version.get(buffer.name, 0), side, lane.active, stride)
    found = b.tables[level].get(key)
    if found is None:
        squares = [_turned_square(k, level, buffer, index, first - here, min(side, k.unrolled[down] - first), start)
                   for start in range(0, lane.lanes, side)]
        while len(squares) > 1:
            type_, wide = vector_text(memory_text(buffer.dtype, 1), lane.lanes // len(squares)), range(2 * lane.lanes // len(squares))
            squares = [[shuffle(b, level, type_, *pair, wide) for pair in zip(*both)] for both in zip(squares[::2], squares[1::2])]
        found = b.tables[level][key] = squares[0]
    return found[here - first]


def _turned_square(k: KernelEmitter, level: int, buffer: Buffer, index: Affine, shift: int, count: int, start: int) -> list[str]:
    """What the lanes of a register, from `start` on, read in `count` iterations: a vector for each iteration."""
    b, lane, item = k.b, k.lane, buffer.dtype.itemsize
    side, at = min(lane.lanes, max(1, 64 // item)), k.indices[lane.var]
    active, group, scalar = min(side, max(0, lane.active - start)), min(side, max(1, 16 // item)), memory_text(buffer.dtype, 1)
    # Two registers of lanes are stored as they are, past the caches: from there on, shuffles are what waits. Reading so many rows at
    # once, the core is ahead of what it could ask for.
    type_, whole = vector_text(scalar, side), lane.lanes > side > group and active == count == side
    rows: list[str] = []
    for i in range(active):
        k.indices[lane.var] = replace(at, offset=at.offset + start + i)
        row, grain, _ = _address(k, buffer, index, shift)
        if buffer.role == "in" and buffer.nbytes >= ahead.TURNED_BYTES and level == b.level and lane.lanes == side:
            ahead.ask(b, level, row, side * item, ahead.TURNED_AHEAD, 2)
        rows.append(row if whole else _vector_load(b, level, scalar, row, grain, side, count, 1))
    k.indices[lane.var] = at
    if not whole:
        return _transpose(b, level, type_, [*rows, *["zeroinitializer"] * (side - active)], group)
    grouped = [_grouped(b, level, scalar, rows[i::group], side, g * group, item) for g in range(side // group) for i in range(group)]
    return _mixed(b, level, type_, grouped, group)


def _grouped(b: Builder, level: int, scalar: str, rows: list[str], side: int, column: int, item: int) -> str:
    """The 16 bytes from a column on of each row, side by side: loaded so, they need no port that shuffles need."""
    group, found = side // len(rows), ""
    part, whole = vector_text(scalar, group), vector_text(scalar, side)
    rest: tuple = ("poison",) * (side - group)
    for q, row in enumerate(rows):
        pointer = b.emit(level, f"getelementptr {scalar}, ptr {row}, i64 {column}") if column else row
        loaded = b.emit(level, f"load {part}, ptr {pointer}, align {item}")
        wide = shuffle(b, level, part, loaded, "poison", (*range(group), *rest))
        keep = (*range(q * group), *range(side, side + group), *("poison",) * (side - (q + 1) * group))
        found = shuffle(b, level, whole, found, wide, keep) if found else wide
    return found


def _mixed(b: Builder, level: int, type_: str, rows: list[str], group: int) -> list[str]:
    """Squares of `group` rows and as many lanes transposed where they lie, by unpack instructions."""
    side = len(rows)
    halves_ = [[start + i for start in range(0, side, group) for i in range(first, first + group // 2)] for first in (0, group // 2)]
    orders = [[i for at in half for i in (at, side + at)] for half in halves_]
    for _ in range(group.bit_length() - 1):
        rows = [shuffle(b, level, type_, rows[start + i], rows[start + i + group // 2], order)
                for start in range(0, side, group) for i in range(group // 2) for order in orders]
    return rows


def _transpose(b: Builder, level: int, type_: str, rows: list[str], group: int) -> list[str]:
    """The columns of a square of vectors: first within groups of lanes (of 16 bytes, which unpack instructions interleave), then whole groups."""
    side, rows = len(rows), _mixed(b, level, type_, rows, group)
    if side >= 4 * group:
        rows = [_fenced(b, level, type_, row) for row in rows]
    columns: list[str] = [""] * side
    for c in range(group):
        for q, text in enumerate(_gather_groups(b, level, type_, rows[c::group], group)):
            columns[q * group + c] = text
    return columns


def _fenced(b: Builder, level: int, type_: str, text: str) -> str:
    """The value, opaque to instruction selection. It tries to make one shuffle of each tree of them, which takes half of the time of
    a whole kernel and finds nothing; a fence is no instruction."""
    count, _, scalar = type_[1:-1].partition(" x ")
    if scalar in ("float", "double"):
        return b.intrinsic(level, "arithmetic.fence", scalar, int(count), (text,))
    lanes = int(count) * int(scalar[1:]) // 32
    floats = vector_text("float", lanes)
    text = b.emit(level, f"bitcast {type_} {text} to {floats}")
    text = b.intrinsic(level, "arithmetic.fence", "float", lanes, (text,))
    return b.emit(level, f"bitcast {floats} {text} to {type_}")


def _gather_groups(b: Builder, level: int, type_: str, rows: list[str], group: int) -> list[str]:
    """Vector q: group q of every row, where a row has as many groups as there are rows; by even and odd groups of pairs."""
    if len(rows) == 1:
        return rows
    lists = [rows]
    while len(lists[0]) > 1:
        side = len(rows) * group
        picks = [[start + i for start in range(odd * group, 2 * side, 2 * group) for i in range(group)] for odd in (0, 1)]
        pairs = [list(zip(one[::2], one[1::2])) for one in lists]
        lists = [[shuffle(b, level, type_, x, y, pick) for x, y in pair] for pick in picks for pair in pairs]
    return [one[0] for one in lists]


def store(k: KernelEmitter, stmt: Store) -> None:
    """buffer[index] = value, for every active lane."""
    b, buffer, lane = k.b, k.buffers[stmt.buffer], k.lane
    value = k.value(stmt.value)
    stride = stmt.index.coefficient(lane.var) if lane is not None else 0
    if stride:
        value = splat(b, value, lane.lanes)
    lanes, active = value.lanes, lane.active if value.lanes > 1 else 1
    text, scalar = _to_memory(b, value), memory_text(buffer.dtype, 1)
    vector = vector_text(scalar, lanes)
    shift = -(active - 1) if stride == -1 else 0
    pointer, grain, _ = _address(k, buffer, stmt.index, shift)
    if lanes == 1:
        b.effect(f"store {scalar} {text}, ptr {pointer}, align {grain}")
    elif not stride:  # all lanes write one place: the last stays
        last = b.emit(b.level, f"extractelement {vector} {text}, i64 {active - 1}")
        b.effect(f"store {scalar} {last}, ptr {pointer}, align {grain}")
    elif stride in (1, -1):
        past_caches = stmt.buffer in k.kernel.streams and grain >= min(ALIGNMENT, lanes * buffer.dtype.itemsize) >= 16
        _vector_store(b, scalar, text, pointer, grain, lanes, active, stride, past_caches, buffer.dtype.itemsize)
    elif var := _interleaving_loop(k, stmt, stride, lanes, active):
        _interleaved_store(k, stmt, var, text, vector)
    else:
        for i in range(active):
            element = b.emit(b.level, f"getelementptr {scalar}, ptr {pointer}, i64 {i * stride}") if i else pointer
            one = b.emit(b.level, f"extractelement {vector} {text}, i64 {i}")
            b.effect(f"store {scalar} {one}, ptr {element}, align {buffer.dtype.itemsize}")
    k.version[stmt.buffer] = k.version.get(stmt.buffer, 0) + 1


def _interleaving_loop(k: KernelEmitter, stmt: Store, stride: int, lanes: int, active: int) -> str:
    """The unrolled loop whose steps fill what a store leaves between its lanes; "" if there is none, or someone may read in between."""
    if active < lanes or lanes < 4 or k.buffers[stmt.buffer].role != "out" or stmt.buffer in k.loaded:
        return ""
    var = next(reversed(k.unrolled), "")
    direct = var and k.unrolled_at == k.b.level and k.unrolled[var] == stride <= SHUFFLED_STRIDE and stmt.index.coefficient(var) == 1
    return var if direct else ""


def _interleaved_store(k: KernelEmitter, stmt: Store, var: str, text: str, vector: str) -> None:
    """Keep what a step of the loop stores; the last step stores all of it, as contiguous vectors."""
    pending, steps = k.pending.setdefault(id(stmt), []), k.unrolled[var]
    pending.append(text)
    if len(pending) < steps:
        return
    del k.pending[id(stmt)]
    lanes = k.lane.lanes
    for part in range(steps):
        places = [divmod(part * lanes + i, steps) for i in range(lanes)]  # (lane, step) of each element
        found = shuffle(k.b, k.b.level, vector, pending[0], pending[1], [lane + lanes * (step == 1) for lane, step in places])
        for step in range(2, steps):
            order = [lanes + lane if step == here else i for i, (lane, here) in enumerate(places)]
            found = shuffle(k.b, k.b.level, vector, found, pending[step], order)
        pointer, grain, _ = _address(k, k.buffers[stmt.buffer], stmt.index, 1 - steps + part * lanes)
        streamed = stmt.buffer in k.kernel.streams and grain >= ALIGNMENT
        k.b.effect(f"store {vector} {found}, ptr {pointer}, align {grain}{', !nontemporal !{i32 1}' if streamed else ''}")


def _to_memory(b: Builder, value: Value) -> str:
    if value.dtype.is_half:
        return halves.bits(b, value)
    if value.dtype is dt.bool_:
        if value.const is not None:
            return splat_text(value.const, dt.u8, value.lanes)
        return b.emit(b.level, f"zext {vector_text('i1', value.lanes)} {value.text} to {vector_text('i8', value.lanes)}")
    return value.text


def _vector_store(b: Builder, scalar: str, text: str, pointer: str, grain: int, lanes: int, active: int, stride: int,
                  past_caches: bool, size: int) -> None:
    vector = vector_text(scalar, lanes)
    # LLVM 22 makes of a truncation and a masked store of one lane a scalar store as wide as before the truncation.
    if stride == 1 and 1 < active < lanes and b.target.avx512:
        name = _masked(b, "store", scalar, lanes)
        b.effect(f"call void @{name}({vector} {text}, ptr {pointer}, i32 {grain}, {mask_text(lanes, active)})")
        return
    if active == 1:
        vector, text = scalar, b.emit(b.level, f"extractelement {vector} {text}, i64 0")
    elif active < lanes or stride == -1:
        text = shuffle(b, b.level, vector, text, "poison", range(active)[::stride])
        vector = vector_text(scalar, active)
    if past_caches and active == lanes and lanes * size > ALIGNMENT:  # line after line, as LLVM would not: it is faster so
        line = ALIGNMENT // size
        for start in range(0, lanes, line):
            part = shuffle(b, b.level, vector, text, "poison", range(start, start + line))
            place = b.emit(b.level, f"getelementptr {scalar}, ptr {pointer}, i64 {start}") if start else pointer
            b.effect(f"store {vector_text(scalar, line)} {part}, ptr {place}, align {grain}, !nontemporal !{{i32 1}}")
        return
    # Only stores of whole cache lines gain.
    hint = ", !nontemporal !{i32 1}" if past_caches and active == lanes else ""
    b.effect(f"store {vector} {text}, ptr {pointer}, align {grain}{hint}")


def shuffle(b: Builder, level: int, type_: str, first: str, second: str, order: Iterable[int]) -> str:
    """The lanes `order` of two vectors."""
    return b.emit(level, f"shufflevector {type_} {first}, {type_} {second}, {_order_text(tuple(order))}")


@functools.lru_cache(maxsize=1024)
def _order_text(order: tuple[int, ...]) -> str:
    return f"<{len(order)} x i32> <{', '.join([f'i32 {i}' for i in order])}>"


@functools.lru_cache(maxsize=1024)
def mask_text(lanes: int, active: int) -> str:
    """A mask operand whose first `active` lanes are on."""
    return f"<{lanes} x i1> <{', '.join(['i1 1'] * active + ['i1 0'] * (lanes - active))}>"


def _masked(b: Builder, kind: str, scalar: str, lanes: int) -> str:
    vector = vector_text(scalar, lanes)
    suffix = {"float": "f32", "double": "f64"}.get(scalar, scalar)
    name = f"llvm.masked.{kind}.v{lanes}{suffix}.p0"
    if kind == "load":
        return b.declare(name, vector, f"ptr, i32, <{lanes} x i1>, {vector}")
    return b.declare(name, "void", f"{vector}, ptr, i32, <{lanes} x i1>")
