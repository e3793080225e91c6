"""Tiles of words by matrix registers (AMX): sums in two by two of them, 16 rows of 16 words each, to which blocks of 16 words of k are added.

A block reads two registers of a, 16 rows of 64 bytes, and two of b, 16 words of k for 16 columns each, by one register of either if they
have one shape: with all eight in use none is left to load into ahead where two threads share a core (measured: 30 ns a product on such a core of
an Emerald Rapids, 19 with six; where it is alone 8.3 either way, what the products take by themselves). Each register has the shape that
`ldtilecfg` gave it, so nothing beyond the last row, column or word is touched. What is left of the words is one more block, less deep:
that takes another configuration, over which the sums wait in the buffer where they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlc.codegen import memory
from mlc.codegen.lanes import Index
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.expr import Expr
from mlc.kernel.words import BLOCK, MATRIX, per_word, word
from mlc.loop.ir import Buffer, Store, Tile, load

if TYPE_CHECKING:
    from mlc.codegen.statements import KernelEmitter

# Registers of a and of b behind the four of sums.
_LEFT, _RIGHT = 4, 6
# Products of two registers, by the parts of their words.
_PRODUCTS = {(dt.u8, dt.u8): "tdpbuud", (dt.u8, dt.i8): "tdpbusd", (dt.i8, dt.u8): "tdpbsud", (dt.i8, dt.i8): "tdpbssd",
             (dt.bf16, dt.bf16): "tdpbf16ps"}


def fits(k: KernelEmitter, s: Tile) -> bool:
    """Whether the target multiplies such a tile by matrix registers, which read words of a and b from memory and leave sums there."""
    if s.block != BLOCK or k.numbers or max(s.m, s.n) > 2 * MATRIX or (s.dtype.is_float and not s.normal):
        return False
    if not {part.name for part in s.parts} <= k.b.target.matrix_parts:
        return False
    return _words(s.a, s) is not None and s.b.op == "load" and s.b.attr[1].coefficient(s.c) == 1 and _target(s) is not None


def _words(a: Expr, s: Tile) -> tuple[str, Affine] | None:
    """The buffer, and the index of the first part, that words lie at one behind the other; None if a is not just that."""
    if a.op == "load":
        return a.attr if a.attr[1].coefficient(s.k) == 1 else None
    per = per_word(s.parts)
    first = min((e for e in ex.topological([a]) if e.op == "load"), key=lambda e: e.attr[1].offset, default=None)
    if first is None or first.attr[1].coefficient(s.k) != per:
        return None
    name, index = first.attr
    return first.attr if a is word([load(name, first.dtype, index + i) for i in range(per)], s.parts) else None


def _target(s: Tile) -> Store | None:
    """Where all that follows is a store of the sums, column beside column: that store."""
    if len(s.body) != 1 or not isinstance(s.body[0], Store):
        return None
    (store,) = s.body
    return store if store.value.op == "var" and store.value.attr == s.name and store.index.coefficient(s.c) == 1 else None


def emit(k: KernelEmitter, s: Tile) -> None:
    """Emit a Tile that `fits`."""
    outer = {name: k.indices.get(name) for name in (s.r, s.c, s.k)}
    k.indices[s.r] = k.indices[s.c] = Index(None)
    whole, rest = divmod(s.depth, BLOCK)
    if whole:
        _configure(k, s, BLOCK)
        _clear(k, s)
        if whole == 1:
            k.indices[s.k] = Index(None)
            _block(k, s)
        else:
            k.loop(s.k, "0", str(whole * BLOCK), BLOCK, [], (), lambda: _block(k, s))
        _move(k, s, "tilestored64")
    if rest:
        _configure(k, s, rest)
        if whole:
            _move(k, s, "tileloadd64")
        else:
            _clear(k, s)
        k.indices[s.k] = Index(None, whole * BLOCK)
        _block(k, s)
        _move(k, s, "tilestored64")
    k.b.effect(f"call void @{k.b.declare('llvm.x86.tilerelease', 'void', '')}()")
    name = _target(s).buffer
    k.version[name] = k.version.get(name, 0) + 1
    k.restore_indices(outer)


def _sum(i: int, j: int) -> int:
    return 2 * i + j


def _left(s: Tile, i: int) -> int:
    """The register of rows i of a: the first one's, if they are as many."""
    return _LEFT + (i if s.m % MATRIX else 0)


def _right(s: Tile, j: int) -> int:
    """The same of columns of b."""
    return _RIGHT + (j if s.n % MATRIX else 0)


def _pieces(extent: int) -> list[int]:
    """Rows, or columns, of each register."""
    return [min(MATRIX, extent - start) for start in range(0, extent, MATRIX)]


def _cells(s: Tile) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(len(_pieces(s.m))) for j in range(len(_pieces(s.n))))


def _configure(k: KernelEmitter, s: Tile, words: int) -> None:
    """The shapes of all registers, for blocks of so many words."""
    shapes = {_sum(i, j): (_pieces(s.m)[i], 4 * _pieces(s.n)[j]) for i, j in _cells(s)}
    shapes |= {_left(s, i): (rows, 4 * words) for i, rows in enumerate(_pieces(s.m))}
    shapes |= {_right(s, j): (words, 4 * columns) for j, columns in enumerate(_pieces(s.n))}
    data = bytearray(64)
    data[0] = 1  # the palette
    for register, (rows, width) in shapes.items():
        data[16 + 2 * register:18 + 2 * register] = width.to_bytes(2, "little")
        data[48 + register] = rows
    name = f"@matrix.{s.m}.{s.n}.{words}"
    k.b.declares[name] = f"{name} = private unnamed_addr constant [64 x i8] [{', '.join(f'i8 {byte}' for byte in data)}], align 64"
    k.b.effect(f"call void @{k.b.declare('llvm.x86.ldtilecfg', 'void', 'ptr')}(ptr {name})")


def _clear(k: KernelEmitter, s: Tile) -> None:
    """Sums of 0."""
    name = k.b.declare("llvm.x86.tilezero", "void", "i8 immarg")
    for i, j in _cells(s):
        k.b.effect(f"call void @{name}(i8 {_sum(i, j)})")


def _block(k: KernelEmitter, s: Tile) -> None:
    """Add one block, at the k that `k.indices` holds. Round the sums, so that only one operand is loaded for each product but the first."""
    (a, left), (b, right) = _words(s.a, s), s.b.attr
    product = k.b.declare(f"llvm.x86.{_PRODUCTS[s.parts]}", "void", "i8 immarg, i8 immarg, i8 immarg")
    before = None, None
    for i, j in sorted(_cells(s), key=lambda cell: (cell[0], cell[0] ^ cell[1])):
        if i != before[0]:
            _registers(k, "tileloadd64", k.buffers[a], left, s.r, [(_left(s, i), MATRIX * i, 0)])
        if j != before[1]:
            _registers(k, "tileloadd64", k.buffers[b], right, s.k, [(_right(s, j), 0, MATRIX * j)])
        k.b.effect(f"call void @{product}(i8 {_sum(i, j)}, i8 {_left(s, i)}, i8 {_right(s, j)})")
        before = i, j


def _move(k: KernelEmitter, s: Tile, move: str) -> None:
    """Load or store all sums."""
    store = _target(s)
    _registers(k, move, k.buffers[store.buffer], store.index, s.r, [(_sum(i, j), MATRIX * i, MATRIX * j) for i, j in _cells(s)])


def _registers(k: KernelEmitter, move: str, buffer: Buffer, index: Affine, down: str, places: list[tuple[int, int, int]]) -> None:
    """Load or store registers whose rows lie one step of `down` apart: each at some rows, and some elements beside, of where the index says."""
    apart = index.coefficient(down)
    name = k.b.declare(f"llvm.x86.{move}", "void", "i8 immarg, ptr, i64")
    for register, rows, beside in places:
        pointer = memory.address(k, buffer, index, rows * apart + beside)
        k.b.effect(f"call void @{name}(i8 {register}, ptr {pointer}, i64 {apart * buffer.dtype.itemsize})")
