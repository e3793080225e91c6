"""Whether contractions of bf16 are done in pairs, by `vdpbf16ps`: where it is known to be faster, and shown to compute what it should."""

from __future__ import annotations

import ctypes

import numpy as np

from mlc.codegen.target import Target, compile_object, get_target
from mlc.core import dtype as dt
from mlc.core import options
from mlc.core.scalar_eval import apply
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


def use_pairs(target: Target) -> bool:
    """Whether pairs are multiplied on this target: by the option, else where that is faster. Never where they are rounded otherwise."""
    wanted = str(options.get("bf16_pairs"))
    return target.bf16_dot and target.name == "native" and (wanted == "on" or (wanted == "auto" and target.cpu in FAST)) and two_fmas()


@once
def two_fmas() -> bool:
    """Whether this CPU adds the upper product of a pair by one fma and the lower one by another. Intel's manual says so; others might add
    the products first, which rounds otherwise."""
    pointer = ctypes.POINTER(ctypes.c_uint32)
    pairs = Library(compile_object(_TEXT, get_target("native"), 0), ["pairs"]).function("pairs", None, pointer, pointer, pointer)
    bits = np.random.default_rng(1).integers(0, 1 << 32, (3, 64, _LANES), dtype=np.uint32)
    # Of similar size, so that every sum rounds; of any sign.
    total, x, y = found = bits & np.uint32(0x81FF81FF) | np.uint32(0x3F003F00)
    upper, lower = ([w.view(np.float32) for w in (x & 0xFFFF0000, y & 0xFFFF0000)], [w.view(np.float32) for w in (x << 16, y << 16)])
    want = apply("fma", dt.f32, [*lower, apply("fma", dt.f32, [*upper, total.view(np.float32)])])
    for row in range(total.shape[0]):
        pairs(*(each[row].ctypes.data_as(pointer) for each in found))
    return np.array_equal(total.view(np.float32), want)
