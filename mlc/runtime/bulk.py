"""Passes over much data by machine code, at the speed of memory: the sums of `mlc.core.digest`, and panels of `mlc.core.panels`."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np

from mlc.codegen.target import get_target
from mlc.core import panels
from mlc.core.aligned import address
from mlc.core.digest import BLOCK, KEYS, keys, plain_sums
from mlc.runtime.once import once
from mlc.runtime.support import load_library

_LANES = 16     # words of 32 bits in a vector
_UNROLLED = 2   # vectors a step
_ROWS = 8       # rows whose pieces of one panel follow each other
_UNIT = 64      # bytes: pieces of rows are copied in whole ones
_LEAST = 1 << 16  # bytes; less is packed by NumPy


def _products(vector: int) -> str:
    """Add the products of one vector of words to all sums."""
    v, half = vector, _LANES // 2
    lines = [f"  %at{v} = getelementptr i32, ptr %words, i64 %i{v}", f"  %x{v} = load <{_LANES} x i32>, ptr %at{v}, align 1"]
    for key in range(KEYS):
        n = f"{v}.{key}"
        lines += [f"  %kat{n} = getelementptr [{BLOCK // 4} x i32], ptr %keys, i64 {key}, i64 %i{v}",
                  f"  %k{n} = load <{_LANES} x i32>, ptr %kat{n}, align 4", f"  %s{n} = add <{_LANES} x i32> %x{v}, %k{n}",
                  f"  %w{n} = bitcast <{_LANES} x i32> %s{n} to <{half} x i64>", f"  %h{n} = lshr <{half} x i64> %w{n}, splat (i64 32)",
                  f"  %l{n} = and <{half} x i64> %w{n}, splat (i64 4294967295)", f"  %p{n} = mul <{half} x i64> %h{n}, %l{n}",
                  f"  %sum{n}.next = add <{half} x i64> %sum{n}, %p{n}"]
    return "\n".join(lines)


def _total(key: int) -> str:
    """Store a block's sum under one key."""
    half = _LANES // 2
    lines = [f"  %total0.{key} = add <{half} x i64> %sum0.{key}.next, zeroinitializer"]
    lines += [f"  %total{v}.{key} = add <{half} x i64> %total{v - 1}.{key}, %sum{v}.{key}.next" for v in range(1, _UNROLLED)]
    return "\n".join([
        *lines, f"  %one{key} = call i64 @llvm.vector.reduce.add.v{half}i64(<{half} x i64> %total{_UNROLLED - 1}.{key})",
        f"  %to{key} = getelementptr [{KEYS} x i64], ptr %sums, i64 %b, i64 {key}", f"  store i64 %one{key}, ptr %to{key}, align 8"])


def _hash_text() -> str:
    """`mlc_hash_blocks(data, blocks, keys, sums)` as LLVM IR."""
    half, step = _LANES // 2, _LANES * _UNROLLED
    starts = "\n".join(f"  %sum{v}.{k} = phi <{half} x i64> [ zeroinitializer, %block ], [ %sum{v}.{k}.next, %step ]"
                       for v in range(_UNROLLED) for k in range(KEYS))
    places = "\n".join(f"  %i{v} = add i64 %i, {v * _LANES}" for v in range(_UNROLLED))
    return f"""
declare i64 @llvm.vector.reduce.add.v{half}i64(<{half} x i64>)

define void @mlc_hash_blocks(ptr %data, i64 %blocks, ptr %keys, ptr %sums) nounwind {{
entry:
  %any = icmp ne i64 %blocks, 0
  br i1 %any, label %block, label %done
block:
  %b = phi i64 [ 0, %entry ], [ %b.next, %last ]
  %words = getelementptr [{BLOCK} x i8], ptr %data, i64 %b
  br label %step
step:
  %i = phi i64 [ 0, %block ], [ %i.next, %step ]
{starts}
{places}
{chr(10).join(map(_products, range(_UNROLLED)))}
  %i.next = add i64 %i, {step}
  %more = icmp ult i64 %i.next, {BLOCK // 4}
  br i1 %more, label %step, label %last
last:
{chr(10).join(map(_total, range(KEYS)))}
  %b.next = add i64 %b, 1
  %again = icmp ult i64 %b.next, %blocks
  br i1 %again, label %block, label %done
done:
  ret void
}}
"""


# Rows are read as they lie, some at a time, so that what goes to one panel is a long enough run of it.
_PACK = f"""
declare i64 @llvm.umin.i64(i64, i64)

define void @mlc_pack(ptr %matrix, ptr %to, i64 %depth, i64 %panels, i64 %piece, i64 %row) nounwind {{
entry:
  %panel.bytes = mul i64 %depth, %piece
  br label %rows
rows:
  %first = phi i64 [ 0, %entry ], [ %last, %rows.end ]
  %left = icmp ult i64 %first, %depth
  br i1 %left, label %some, label %done
some:
  %full = add i64 %first, {_ROWS}
  %last = call i64 @llvm.umin.i64(i64 %full, i64 %depth)
  br label %panel
panel:
  %p = phi i64 [ 0, %some ], [ %p.next, %panel.end ]
  %more.panels = icmp ult i64 %p, %panels
  br i1 %more.panels, label %each, label %rows.end
each:
  %r = phi i64 [ %first, %panel ], [ %r.next, %copied ]
  %row.at = mul i64 %r, %row
  %piece.at = mul i64 %p, %piece
  %from = add i64 %row.at, %piece.at
  %panel.at = mul i64 %p, %panel.bytes
  %in.panel = mul i64 %r, %piece
  %into = add i64 %panel.at, %in.panel
  br label %unit
unit:
  %u = phi i64 [ 0, %each ], [ %u.next, %unit ]
  %source.at = add i64 %from, %u
  %target.at = add i64 %into, %u
  %source = getelementptr i8, ptr %matrix, i64 %source.at
  %target = getelementptr i8, ptr %to, i64 %target.at
  %v = load <{_UNIT} x i8>, ptr %source, align 1
  store <{_UNIT} x i8> %v, ptr %target, align {_UNIT}
  %u.next = add i64 %u, {_UNIT}
  %more = icmp ult i64 %u.next, %piece
  br i1 %more, label %unit, label %copied
copied:
  %r.next = add i64 %r, 1
  %again = icmp ult i64 %r.next, %last
  br i1 %again, label %each, label %panel.end
panel.end:
  %p.next = add i64 %p, 1
  br label %panel
rows.end:
  br label %rows
done:
  ret void
}}
"""


@once
def _native() -> tuple[Callable, Callable]:
    """Both functions, made for this machine's vectors."""
    library = load_library(_hash_text() + _PACK, ("mlc_hash_blocks", "mlc_pack"), level=1, target=get_target("native"))
    word, pointer = ctypes.c_size_t, ctypes.c_void_p
    return (library.function("mlc_hash_blocks", None, pointer, word, pointer, pointer),
            library.function("mlc_pack", None, pointer, pointer, word, word, word, word))


def block_sums(data: np.ndarray) -> np.ndarray:
    """What `plain_sums` gives."""
    if sys.byteorder != "little":
        return plain_sums(data)
    found = np.empty((len(data) // BLOCK, KEYS), np.uint64)
    _native()[0](address(data), len(found), address(keys()), address(found))
    return found.view(np.uint8)


def pack(constant: np.ndarray, depth: int, columns: int, width: int, transposed: bool,
         empty: Callable[[tuple[int, ...], np.dtype], np.ndarray]) -> np.ndarray:
    """What `panels.pack` gives, for contiguous data and an `empty` whose arrays start at cache lines."""
    whole, piece = columns // width * width, width * constant.itemsize
    if transposed or not whole or piece % _UNIT or constant.nbytes < _LEAST:
        return panels.pack(constant, depth, columns, width, transposed, empty)
    found = empty((depth * columns,), constant.dtype)
    _native()[1](address(constant), address(found), depth, columns // width, piece, columns * constant.itemsize)
    if whole < columns:
        found[depth * whole:].reshape(depth, columns - whole)[...] = constant.reshape(depth, columns)[:, whole:]
    return found
