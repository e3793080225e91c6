"""Contractions of narrow numbers whose products are added several at a time: words of 32 bits hold two or four steps of k.

CPUs multiply the parts of two words and add all products to an i32 (vpdpbusd: four u8 times i8; vpdpwssd: two i16 times i16; before them
vpmaddwd: two i16 times i16, without the sum so far). Sums of integers wrap, so they have the same bits in any order. Where both sides are
u8, or both i8, the left one is moved by 128, which changes its sign bit only: a * b = (a - 128) * b + 128 * b for u8, and a sum over b
alone sets it right. Sums that wrap in bytes are the low bytes of those that wrap in words.

Two bf16 times two bf16 are added to an f32 (vdpbf16ps): the upper ones by one fma, then the lower ones by another, in f32. That instruction
takes subnormal numbers for zero, and makes zeros of subnormal sums. Neither can be where the least exponents of what is not zero on either
side, a and b, say so: all products, and so all sums, are multiples of 2^(a - 7 + b - 7), and those of at least the smallest normal number
2^-126 are zero or normal. Such a contraction looks at its operands first (`EXPONENTS`), and multiplies words by fmas where that proves
nothing. The bits are the same.

Matrix registers (AMX) hold 16 rows of 16 words, and multiply two of them: a block of 16 words of k is added to 16 x 16 sums. Bytes of any
sign are multiplied as they are. Of bf16 the sum of a block's upper halves, that of its lower halves, and then the two, are what is added
(Intel's manual, TDPBF16PS); subnormals are flushed, so the operands are looked at as well, and the same sums made by fmas where need be.
"""

from __future__ import annotations

from collections.abc import Collection

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dtype import DType
from mlc.core.expr import Expr
from mlc.kernel.ir import Dot, Kernel

Parts = tuple[DType, DType]
# The pairs of parts (left, right) that words may have; bytes of one kind on both sides are for matrix registers alone.
PARTS: tuple[Parts, ...] = ((dt.u8, dt.i8), (dt.i8, dt.u8), (dt.i16, dt.i16), (dt.bf16, dt.bf16), (dt.i8, dt.i8), (dt.u8, dt.u8))
INTEGERS = frozenset({dt.u8, dt.i8, dt.i16})
# Shallow and narrow products are not worth the copying.
LEAST_ROWS, LEAST_COLUMNS, LEAST_DEPTH = 8, 16, 16
# bf16 is looked at first, each element once; it is multiplied so often.
LEAST_USES = 32
# Rows and columns of a matrix register, and the words of k that one product of two adds up.
MATRIX, BLOCK = 16, 16
# Smaller products are not worth the setting up. Where sums of bf16 are deeper than this, chunks of k err less than blocks.
MATRIX_ROWS, MATRIX_DEPTH, MOST_BLOCKS = 8, 2 * BLOCK, 1024
# What the least exponents of both sides, as they are stored (biased by 127), must add up to.
EXPONENTS = 2 * 127 + 2 * 7 - 126
# Every sign bit of four bytes.
SIGNS = -0x7F7F7F80


def narrow(operand: Expr) -> Expr | None:
    """A byte, the narrow integer that an i32 operand is converted from, or the bf16 in memory that an f32 operand is."""
    if operand.dtype in (dt.i8, dt.u8):
        return operand
    if operand.op == "convert" and operand.dtype is dt.i32 and operand.args[0].dtype in (dt.i8, dt.u8, dt.i16):
        return operand.args[0]
    if operand.op == "convert" and operand.dtype is dt.f32 and operand.args[0].dtype is dt.bf16 and operand.args[0].op == "load":
        return operand.args[0]
    return None


def word_parts(dot: Dot, words: Collection[DType]) -> Parts | None:
    """The parts of words that hold the operands of a contraction, and that there are instructions for (`words`); None where they fit none."""
    sides = [narrow(operand) for operand in (dot.a, dot.b)]
    if dot.dtype not in (dt.i32, dt.i8, dt.u8, dt.f32) or None in sides:
        return None
    left, right = (side.dtype for side in sides)
    if dot.dtype is dt.f32:
        found = left, right
    elif dt.i16 in (left, right) or not {dt.u8, dt.i8} <= set(words):
        found = dt.i16, dt.i16
    elif left is right:
        found = (dt.i8, dt.u8) if left is dt.u8 else (dt.u8, dt.i8)
    else:
        found = left, right
    return found if set(found) <= set(words) else None


def matrix_parts(dot: Dot, numbers: Collection[DType]) -> Parts | None:
    """The parts of a contraction that matrix registers hold (`numbers`: those that the target's multiply), and that are worth it."""
    sides = [narrow(operand) for operand in (dot.a, dot.b)]
    if dot.dtype not in (dt.i32, dt.i8, dt.u8, dt.f32) or None in sides:
        return None
    found = sides[0].dtype, sides[1].dtype
    if not set(found) <= set(numbers) or found not in PARTS or (found[0] is dt.bf16) != dot.dtype.is_float:
        return None
    uses = LEAST_USES if dot.dtype is dt.f32 else 0
    words = dot.k[1] // per_word(found)
    deep = dot.dtype.is_float and words > BLOCK * MOST_BLOCKS
    return found if dot.m[1] >= max(uses, MATRIX_ROWS) and dot.n[1] >= max(uses, MATRIX) and words >= MATRIX_DEPTH and not deep else None


def worth_words(dot: Dot) -> bool:
    uses = LEAST_USES if dot.dtype is dt.f32 else 0
    return dot.m[1] >= max(uses, LEAST_ROWS) and dot.n[1] >= max(uses, LEAST_COLUMNS) and dot.k[1] >= LEAST_DEPTH


def looked_at(kernel: Kernel, dot: Dot) -> bool:
    """Whether the operands are there before the kernel runs, so that they can be looked at."""
    given = {p.name for p in kernel.params if p.role == "in"}
    loads = [e for e in ex.topological([dot.a, dot.b]) if e.op == "load"]
    return all(e.attr[0] in given and e.attr[1].coefficient(dot.k[0]) for e in loads)


def is_moved(dot: Dot, parts: Parts) -> bool:
    """Whether the left side is moved by 128."""
    return narrow(dot.a).dtype is narrow(dot.b).dtype and parts[0].bits == 8 and parts[0] is not parts[1]


def per_word(parts: Parts) -> int:
    return 32 // parts[0].bits


def reads_words(dot: Dot, parts: Parts) -> bool:
    """Whether words of the left side lie in memory: whole ones, contiguous along k."""
    side = narrow(dot.a)
    return side.op == "load" and side.attr[1].coefficient(dot.k[0]) == 1 and dot.k[1] % per_word(parts) == 0


def copies_rows(dot: Dot, parts: Parts) -> bool:
    """Whether words that lie in memory are not yet what is multiplied: they are moved by 128, or bytes that become i16."""
    return is_moved(dot, parts) or narrow(dot.a).dtype.bits < parts[0].bits


def word(pieces: list[Expr], parts: Parts) -> Expr:
    """An i32 with the pieces in it, the first lowest."""
    found = None
    for place, piece in enumerate(pieces):
        part, unsigned = parts[0], dt.u16 if parts[0].bits == 16 else dt.u8
        piece = ex.convert(piece, part) if part is dt.i16 else piece
        bits = piece if piece.dtype is unsigned else ex.make("bitcast", unsigned, (piece,))
        bits = ex.convert(bits, dt.i32)
        bits = ex.make("shl", dt.i32, (bits, ex.const(place * part.bits, dt.i32))) if place else bits
        found = bits if found is None else ex.make("or", dt.i32, (found, bits))
    return found
