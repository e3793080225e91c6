"""Whether contractions of bf16 are done in pairs, by `vdpbf16ps`, or in blocks, by matrix registers: where that is known to be faster, and
shown to compute what it should."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from mlc.codegen.target import Target, compile_object, get_target
from mlc.core import dtype as dt
from mlc.core import options
from mlc.core.scalar_eval import apply
from mlc.kernel.ir import Dot
from mlc.kernel.words import matrix_parts
from mlc.runtime.once import once
from mlc.runtime.orc import Library

# CPUs on which the instruction takes as long as one fma: measured. On Sapphire and Emerald Rapids it takes as long as four.
FAST = frozenset({"znver4", "znver5"})
_LANES = 16
_TEXT = """declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define void @pairs(ptr %sum, ptr %x, ptr %y) nounwind {
  %s = load <16 x float>, ptr %sum, align 4
  %a = load <32 x bfloat>, ptr %x, align 4
  %b = load <32 x bfloat>, ptr %y, align 4
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s, <32 x bfloat> %a, <32 x bfloat> %b)
  store <16 x float> %r, ptr %sum, align 4
  ret void
}
"""


# Per row of 16 sums: a block of 16 words of a row of x, and of 16 columns of y.
_BLOCK_TEXT = """declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilerelease()

define void @block(ptr %shapes, ptr %sum, ptr %x, ptr %y) nounwind {
  call void @llvm.x86.ldtilecfg(ptr %shapes)
  call void @llvm.x86.tileloadd64(i8 0, ptr %sum, i64 64)
  call void @llvm.x86.tileloadd64(i8 1, ptr %x, i64 64)
  call void @llvm.x86.tileloadd64(i8 2, ptr %y, i64 64)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 1, i8 2)
  call void @llvm.x86.tilestored64(i8 0, ptr %sum, i64 64)
  call void @llvm.x86.tilerelease()
  ret void
}
"""


def matrix_numbers(target: Target, dots: Iterable[Dot]) -> frozenset[dt.DType]:
    """The numbers that this target multiplies by matrix registers, unless an option says otherwise: bf16 only where they are added up as
    expected, which is tried (LLVM is loaded for that) for contractions that want it."""
    if target.name != "native" or not target.matrix_parts or options.get("matrix") == "off":
        return frozenset()
    numbers, halves = frozenset(map(dt.parse_dtype, target.matrix_parts)), {dt.bf16}
    wanted = options.get("bf16_pairs") == "auto" and any(matrix_parts(dot, halves) for dot in dots)
    return numbers if wanted and two_sums() else numbers - halves


def use_pairs(target: Target) -> bool:
    """Whether pairs are multiplied on this target: by the option, else where that is faster. Never where they are rounded otherwise."""
    wanted = str(options.get("bf16_pairs"))
    return target.bf16_dot and target.name == "native" and (wanted == "on" or (wanted == "auto" and target.cpu in FAST)) and two_fmas()


def _close_words(*shape: int) -> np.ndarray:
    """Words of bf16 (or f32) of similar size and any sign, so that every sum rounds."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, shape, dtype=np.uint32)
    return bits & np.uint32(0x81FF81FF) | np.uint32(0x3F003F00)


def _halves(words: np.ndarray) -> list[np.ndarray]:
    """The two bf16 of words as f32, the upper one first."""
    return [half.view(np.float32) for half in (words & np.uint32(0xFFFF0000), words << np.uint32(16))]


@once
def two_sums() -> bool:
    """Whether a product of matrix registers adds up the upper and the lower halves of a block by fmas, each from 0, and then both to the sums."""
    pointer = ctypes.POINTER(ctypes.c_uint32)
    block = Library(compile_object(_BLOCK_TEXT, get_target("native"), 0), ["block"]).function("block", None, *[pointer] * 4)
    shapes = np.zeros(64, np.uint8)
    shapes[0], shapes[16:22:2], shapes[48:51] = 1, 64, 16
    total, x, y = found = np.ascontiguousarray(_close_words(3, _LANES, _LANES))
    want, halves = total.view(np.float32).copy(), []
    for left, right in zip(_halves(x), _halves(y)):
        part = np.zeros_like(want)
        for step in range(_LANES):
            part = apply("fma", dt.f32, [left[:, step:step + 1], right[step:step + 1], part])
        halves.append(part)
    want = apply("add", dt.f32, [want, apply("add", dt.f32, halves)])
    block(shapes.view(np.uint32).ctypes.data_as(pointer), *(each.ctypes.data_as(pointer) for each in found))
    return np.array_equal(total.view(np.float32), want)


@once
def two_fmas() -> bool:
    """Whether this CPU adds the upper product of a pair by one fma and the lower one by another. Intel's manual says so; others might add
    the products first, which rounds otherwise."""
    pointer = ctypes.POINTER(ctypes.c_uint32)
    pairs = Library(compile_object(_TEXT, get_target("native"), 0), ["pairs"]).function("pairs", None, pointer, pointer, pointer)
    total, x, y = found = _close_words(3, 64, _LANES)
    (x_upper, x_lower), (y_upper, y_lower) = _halves(x), _halves(y)
    want = apply("fma", dt.f32, [x_lower, y_lower, apply("fma", dt.f32, [x_upper, y_upper, total.view(np.float32)])])
    for row in range(total.shape[0]):
        pairs(*(each[row].ctypes.data_as(pointer) for each in found))
    return np.array_equal(total.view(np.float32), want)
