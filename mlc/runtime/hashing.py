"""The sums of `mlc.core.digest` by machine code, at the speed of memory."""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from mlc.core.aligned import address
from mlc.core.digest import BLOCK, keys, plain_sums
from mlc.runtime.once import once
from mlc.runtime.support import load_library

_UNROLLED = 4  # pairs of words a step


def _pair(number: int) -> str:
    """Add the products of one pair of words to both sums."""
    n, lines = number, []
    for word in (0, 1):
        lines += [f"  %at{n}.{word} = getelementptr i64, ptr %words, i64 {2 * n + word}", f"  %x{n}.{word} = load i64, ptr %at{n}.{word}, align 1"]
    for key in (0, 1):
        for word in (0, 1):
            name = f"{n}.{key}.{word}"
            lines += [f"  %kat{name} = getelementptr i64, ptr %key{key}, i64 {2 * n + word}", f"  %k{name} = load i64, ptr %kat{name}, align 8",
                      f"  %s{name} = add i64 %x{n}.{word}, %k{name}", f"  %w{name} = zext i64 %s{name} to i128"]
        lines += [f"  %p{n}.{key} = mul i128 %w{n}.{key}.0, %w{n}.{key}.1", f"  %sum{key}.{n + 1} = add i128 %sum{key}.{n}, %p{n}.{key}"]
    return "\n".join(lines)


def text() -> str:
    """`mlc_hash_blocks(data, blocks, keys, sums)` as LLVM IR."""
    step = 2 * _UNROLLED
    return f"""
define void @mlc_hash_blocks(ptr %data, i64 %blocks, ptr %keys, ptr %sums) nounwind {{
entry:
  %any = icmp ne i64 %blocks, 0
  br i1 %any, label %block, label %done
block:
  %b = phi i64 [ 0, %entry ], [ %b.next, %last ]
  %start = mul i64 %b, {BLOCK // 8}
  br label %step
step:
  %i = phi i64 [ 0, %block ], [ %i.next, %step ]
  %sum0.0 = phi i128 [ 0, %block ], [ %sum0.{_UNROLLED}, %step ]
  %sum1.0 = phi i128 [ 0, %block ], [ %sum1.{_UNROLLED}, %step ]
  %at = add i64 %start, %i
  %words = getelementptr i64, ptr %data, i64 %at
  %key0 = getelementptr i64, ptr %keys, i64 %i
  %second = add i64 %i, {BLOCK // 8}
  %key1 = getelementptr i64, ptr %keys, i64 %second
{chr(10).join(map(_pair, range(_UNROLLED)))}
  %i.next = add i64 %i, {step}
  %more = icmp ult i64 %i.next, {BLOCK // 8}
  br i1 %more, label %step, label %last
last:
  %place = mul i64 %b, 2
  %to0 = getelementptr i128, ptr %sums, i64 %place
  store i128 %sum0.{_UNROLLED}, ptr %to0, align 1
  %to1 = getelementptr i128, ptr %to0, i64 1
  store i128 %sum1.{_UNROLLED}, ptr %to1, align 1
  %b.next = add i64 %b, 1
  %again = icmp ult i64 %b.next, %blocks
  br i1 %again, label %block, label %done
done:
  ret void
}}
"""


@once
def _native():
    library = load_library(text(), ("mlc_hash_blocks",), level=1)
    return library.function("mlc_hash_blocks", None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)


def block_sums(data: np.ndarray) -> np.ndarray:
    """What `plain_sums` gives."""
    if sys.byteorder != "little":
        return plain_sums(data)
    found = np.empty((len(data) // BLOCK, 2, 16), np.uint8)
    _native()(address(data), len(found), address(keys()), address(found))
    return found
