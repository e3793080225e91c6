"""The memory of the native entry as LLVM IR text: blocks for outputs and arenas, recycled.

64-byte-aligned blocks in size classes; freed ones wait on free lists, up to @mlc_retain_limit bytes in all (beyond it the
lists are emptied). Large outputs would otherwise cost a page fault every 4 KB on every call. Called with the GIL only.
@mlc_handler is the same as a NumPy memory handler (NEP 49), so that arrays own their blocks and give them back.
"""

from __future__ import annotations

import sys

CLASSES = 192  # 4 size classes an octave: enough for any address space
RETAIN_LIMIT = 256 << 20

EXPORTS = ("mlc_handler", "mlc_retained", "mlc_retain_limit")

_NAME = "mlc_pool"
_GLOBALS = f"""
@mlc_free = internal global [{CLASSES} x ptr] zeroinitializer, align 64
@mlc_retained = global i64 0, align 8
@mlc_retain_limit = global i64 {RETAIN_LIMIT}, align 8
@mlc_handler = global {{ [127 x i8], i8, ptr, ptr, ptr, ptr, ptr }} {{
  [127 x i8] c"{_NAME}{chr(92)}00{(chr(92) + '00') * (126 - len(_NAME))}", i8 1, ptr null,
  ptr @mlc_handler_malloc, ptr @mlc_handler_calloc, ptr @mlc_handler_realloc, ptr @mlc_handler_free }}, align 64

declare i64 @llvm.ctlz.i64(i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
"""

# A block is a 64-byte header (next free block, class, capacity) and the payload behind it. Sizes count in units of 64
# bytes: up to 16 units a class each, then four classes an octave, so that at most a fifth of a block is unused.
_FUNCTIONS = """
define internal ptr @mlc_alloc(i64 %size) nounwind {
entry:
  %raw = alloca ptr, align 8
  %padded = add i64 %size, 63
  %some = lshr i64 %padded, 6
  %none = icmp eq i64 %some, 0
  %units = select i1 %none, i64 1, i64 %some
  %small = icmp ule i64 %units, 16
  br i1 %small, label %exact, label %octave

exact:
  %exact.class = sub i64 %units, 1
  br label %lookup

octave:
  %less = sub i64 %units, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %less, i1 true)
  %power = sub i64 63, %zeros
  %shift = sub i64 %power, 2
  %top = lshr i64 %less, %shift
  %quarter = and i64 %top, 3
  %octaves = sub i64 %power, 4
  %octave4 = shl i64 %octaves, 2
  %octave16 = add i64 %octave4, 16
  %octave.class = add i64 %octave16, %quarter
  %fifth = add i64 %quarter, 5
  %octave.units = shl i64 %fifth, %shift
  br label %lookup

lookup:
  %class = phi i64 [ %exact.class, %exact ], [ %octave.class, %octave ]
  %whole = phi i64 [ %units, %exact ], [ %octave.units, %octave ]
  %capacity = shl i64 %whole, 6
  %head = getelementptr ptr, ptr @mlc_free, i64 %class
  %block = load ptr, ptr %head, align 8
  %empty = icmp eq ptr %block, null
  br i1 %empty, label %fresh, label %reuse

reuse:
  %next = load ptr, ptr %block, align 8
  store ptr %next, ptr %head, align 8
  %kept = load i64, ptr @mlc_retained, align 8
  %rest = sub i64 %kept, %capacity
  store i64 %rest, ptr @mlc_retained, align 8
  %reused = getelementptr i8, ptr %block, i64 64
  ret ptr %reused

fresh:
  %total = add i64 %capacity, 64
  %status = call i32 @posix_memalign(ptr %raw, i64 64, i64 %total)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %fail, label %made

made:
  %new = load ptr, ptr %raw, align 8
  %new.class = getelementptr i8, ptr %new, i64 8
  store i64 %class, ptr %new.class, align 8
  %new.capacity = getelementptr i8, ptr %new, i64 16
  store i64 %capacity, ptr %new.capacity, align 8
  %large = icmp uge i64 %capacity, 4194304
  br i1 %large, label %advise, label %ready
advise:
  call void @mlc_use_huge_pages(ptr %new, i64 %total)
  br label %ready
ready:
  %payload = getelementptr i8, ptr %new, i64 64
  ret ptr %payload

fail:
  ret ptr null
}

define internal void @mlc_trim() nounwind {
entry:
  br label %class
class:
  %c = phi i64 [ 0, %entry ], [ %c.next, %emptied ]
  %head = getelementptr ptr, ptr @mlc_free, i64 %c
  br label %pop
pop:
  %block = load ptr, ptr %head, align 8
  %empty = icmp eq ptr %block, null
  br i1 %empty, label %emptied, label %drop
drop:
  %next = load ptr, ptr %block, align 8
  store ptr %next, ptr %head, align 8
  call void @free(ptr %block)
  br label %pop
emptied:
  %c.next = add i64 %c, 1
  %more = icmp ult i64 %c.next, CLASSES
  br i1 %more, label %class, label %done
done:
  store i64 0, ptr @mlc_retained, align 8
  ret void
}

define internal void @mlc_release(ptr %payload) nounwind {
entry:
  %missing = icmp eq ptr %payload, null
  br i1 %missing, label %nothing, label %some
nothing:
  ret void
some:
  %block = getelementptr i8, ptr %payload, i64 -64
  %block.class = getelementptr i8, ptr %block, i64 8
  %class = load i64, ptr %block.class, align 8
  %block.capacity = getelementptr i8, ptr %block, i64 16
  %capacity = load i64, ptr %block.capacity, align 8
  %limit = load i64, ptr @mlc_retain_limit, align 8
  %huge = icmp ugt i64 %capacity, %limit
  br i1 %huge, label %return, label %fits
return:
  call void @free(ptr %block)
  ret void
fits:
  %kept = load i64, ptr @mlc_retained, align 8
  %more = add i64 %kept, %capacity
  %over = icmp ugt i64 %more, %limit
  br i1 %over, label %trim, label %push
trim:
  call void @mlc_trim()
  br label %push
push:
  %total = phi i64 [ %more, %fits ], [ %capacity, %trim ]
  store i64 %total, ptr @mlc_retained, align 8
  %head = getelementptr ptr, ptr @mlc_free, i64 %class
  %first = load ptr, ptr %head, align 8
  store ptr %first, ptr %block, align 8
  store ptr %block, ptr %head, align 8
  ret void
}

define internal ptr @mlc_handler_malloc(ptr %context, i64 %size) nounwind {
  %payload = call ptr @mlc_alloc(i64 %size)
  ret ptr %payload
}

define internal ptr @mlc_handler_calloc(ptr %context, i64 %count, i64 %each) nounwind {
  %size = mul i64 %count, %each
  %payload = call ptr @mlc_alloc(i64 %size)
  %failed = icmp eq ptr %payload, null
  br i1 %failed, label %done, label %clear
clear:
  call void @llvm.memset.p0.i64(ptr %payload, i8 0, i64 %size, i1 false)
  br label %done
done:
  ret ptr %payload
}

define internal ptr @mlc_handler_realloc(ptr %context, ptr %old, i64 %size) nounwind {
entry:
  %missing = icmp eq ptr %old, null
  br i1 %missing, label %plain, label %some
plain:
  %fresh = call ptr @mlc_alloc(i64 %size)
  ret ptr %fresh
some:
  %capacity.at = getelementptr i8, ptr %old, i64 -48
  %capacity = load i64, ptr %capacity.at, align 8
  %fits = icmp ule i64 %size, %capacity
  br i1 %fits, label %same, label %grow
same:
  ret ptr %old
grow:
  %new = call ptr @mlc_alloc(i64 %size)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %fail, label %move
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %new, ptr %old, i64 %capacity, i1 false)
  call void @mlc_release(ptr %old)
  ret ptr %new
fail:
  ret ptr null
}

define internal void @mlc_handler_free(ptr %context, ptr %payload, i64 %size) nounwind {
  call void @mlc_release(ptr %payload)
  ret void
}
""".replace("CLASSES", str(CLASSES))

# As NumPy does for its large arrays: a tenth of the page faults, and fewer TLB misses ever after.
_HUGE_PAGES_LINUX = """
declare i32 @madvise(ptr, i64, i32)

define internal void @mlc_use_huge_pages(ptr %block, i64 %size) nounwind {
  %start = ptrtoint ptr %block to i64
  %up = add i64 %start, 4095
  %page = and i64 %up, -4096
  %skipped = sub i64 %page, %start
  %rest = sub i64 %size, %skipped
  %first = getelementptr i8, ptr %block, i64 %skipped
  %ignored = call i32 @madvise(ptr %first, i64 %rest, i32 14)
  ret void
}
"""
_HUGE_PAGES_ELSEWHERE = """
define internal void @mlc_use_huge_pages(ptr %block, i64 %size) nounwind {
  ret void
}
"""


def text() -> str:
    """Internal `mlc_alloc(bytes) -> ptr or null` and `mlc_release(ptr)`, and the globals of EXPORTS."""
    return _GLOBALS + _FUNCTIONS + (_HUGE_PAGES_LINUX if sys.platform == "linux" else _HUGE_PAGES_ELSEWHERE)
