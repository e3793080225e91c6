"""The support library: the native code that programs may call, built once per process and never unloaded.

It holds the call that shields a program from the thread's floating-point settings and the worker pool; the f16/bf16
conversions that the CPU may lack are a library of their own. Programs link against it (see `mlc.runtime.orc`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from mlc.cache.package import package_cache
from mlc.cache.store import cache_key
from mlc.codegen.target import Target, compile_object, get_target
from mlc.core.errors import CodegenError
from mlc.runtime import convert_ir, threads_ir
from mlc.runtime.once import once
from mlc.runtime.orc import Library

# `mlc_begin_fp(saved)` makes IEEE settings (round to nearest, subnormals kept, no traps) and keeps the caller's for `mlc_end_fp(saved)`.
# `mlc_default_fp()`: those settings for a thread of our own.
_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
@mlc_default_mxcsr = internal constant i32 8064, align 4

define internal void @mlc_default_fp() nounwind {
  call void @llvm.x86.sse.ldmxcsr(ptr @mlc_default_mxcsr)
  ret void
}

define internal void @mlc_begin_fp(ptr %saved) alwaysinline nounwind {
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  call void @llvm.x86.sse.ldmxcsr(ptr @mlc_default_mxcsr)
  ret void
}

define internal void @mlc_end_fp(ptr %saved) alwaysinline nounwind {
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret void
}
"""
_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal void @mlc_default_fp() nounwind {
  call void @llvm.aarch64.set.fpcr(i64 0)
  ret void
}

define internal void @mlc_begin_fp(ptr %saved) nounwind {
  %now = call i64 @llvm.aarch64.get.fpcr()
  store i64 %now, ptr %saved, align 8
  call void @llvm.aarch64.set.fpcr(i64 0)
  ret void
}

define internal void @mlc_end_fp(ptr %saved) nounwind {
  %then = load i64, ptr %saved, align 8
  call void @llvm.aarch64.set.fpcr(i64 %then)
  ret void
}
"""
_PLAIN = """
define internal void @mlc_default_fp() nounwind {
  ret void
}

define internal void @mlc_begin_fp(ptr %saved) nounwind {
  ret void
}

define internal void @mlc_end_fp(ptr %saved) nounwind {
  ret void
}
"""

# `mlc_call(table, bufs)` runs a program: the steps of a `call_table`, in order. `mlc_poison` overwrites what is dead.
_CALL = """
define void @mlc_call(ptr %table, ptr %bufs) nounwind {
entry:
  %saved = alloca i64, align 8
  %words = load i64, ptr %table, align 8
  %ctx = alloca i64, i64 %words, align 64
  call void @mlc_begin_fp(ptr %saved)
  %first = getelementptr i64, ptr %table, i64 1
  br label %step
step:
  %at = phi ptr [ %first, %entry ], [ %following, %ran ]
  %fn = load ptr, ptr %at, align 8
  %over = icmp eq ptr %fn, null
  br i1 %over, label %done, label %begin
begin:
  %extent.at = getelementptr i64, ptr %at, i64 1
  %bytes.at = getelementptr i64, ptr %at, i64 2
  %places.at = getelementptr i64, ptr %at, i64 3
  %numbers.at = getelementptr i64, ptr %at, i64 4
  %first.place = getelementptr i64, ptr %at, i64 5
  %places = load i64, ptr %places.at, align 8
  %direct = icmp slt i64 %places, 0
  br i1 %direct, label %launch, label %fill
fill:
  %numbers = load i64, ptr %numbers.at, align 8
  %placed = getelementptr i64, ptr %ctx, i64 %places
  %full = getelementptr i64, ptr %placed, i64 %numbers
  br label %place
place:
  %from = phi ptr [ %first.place, %fill ], [ %from.next, %give ]
  %to = phi ptr [ %ctx, %fill ], [ %to.next, %give ]
  %given = icmp eq ptr %to, %placed
  br i1 %given, label %number, label %give
give:
  %slot = load i64, ptr %from, align 8
  %offset.at = getelementptr i64, ptr %from, i64 1
  %offset = load i64, ptr %offset.at, align 8
  %buf.at = getelementptr ptr, ptr %bufs, i64 %slot
  %buf = load ptr, ptr %buf.at, align 8
  %address = getelementptr i8, ptr %buf, i64 %offset
  store ptr %address, ptr %to, align 8
  %from.next = getelementptr i64, ptr %from, i64 2
  %to.next = getelementptr i64, ptr %to, i64 1
  br label %place
number:
  %source = phi ptr [ %from, %place ], [ %source.next, %copy ]
  %target = phi ptr [ %to, %place ], [ %target.next, %copy ]
  %ready = icmp eq ptr %target, %full
  br i1 %ready, label %launch, label %copy
copy:
  %number.here = load i64, ptr %source, align 8
  store i64 %number.here, ptr %target, align 8
  %source.next = getelementptr i64, ptr %source, i64 1
  %target.next = getelementptr i64, ptr %target, i64 1
  br label %number
launch:
  %given.ctx = phi ptr [ %bufs, %begin ], [ %ctx, %number ]
  %following = phi ptr [ %first.place, %begin ], [ %source, %number ]
  %extent = load i64, ptr %extent.at, align 8
  %once = icmp eq i64 %extent, 0
  br i1 %once, label %alone, label %parallel
alone:
  call void %fn(ptr %given.ctx)
  br label %ran
parallel:
  %bytes = load i64, ptr %bytes.at, align 8
  call void @mlc_parallel(ptr %fn, ptr %given.ctx, i64 %extent, i64 %bytes)
  br label %ran
ran:
  br label %step
done:
  call void @mlc_end_fp(ptr %saved)
  ret void
}

define void @mlc_poison(ptr %ctx) nounwind {
  %at = load ptr, ptr %ctx, align 8
  %count.at = getelementptr i64, ptr %ctx, i64 1
  %count = load i64, ptr %count.at, align 8
  call void @llvm.memset.p0.i64(ptr %at, i8 -1, i64 %count, i1 false)
  ret void
}
"""


# Instead of a number of places: the context is what the call gives.
AS_GIVEN = -1


def call_table(steps: Sequence[tuple], addresses: Callable[[str], int]) -> ctypes.Array:
    """What `mlc_call` runs: (function, extent of its parallel loop or 0, bytes of scratch a worker, places, numbers) a step, as words in
    memory. A place is (slot, offset): the address in that slot of the array that a call gives, plus so many bytes."""
    words = [max((len(places) + len(numbers) for *_, places, numbers in steps), default=0)]
    for name, extent, scratch, places, numbers in steps:
        if not numbers and all(place == (slot, 0) for slot, place in enumerate(places)):
            words += [addresses(name), extent, scratch, AS_GIVEN, 0]
            continue
        words += [addresses(name), extent, scratch, len(places), len(numbers)]
        for place in places:
            words += place
        words += numbers
    return (ctypes.c_int64 * (len(words) + 1))(*words, 0)


def support_text(target: Target) -> str:
    """The library as LLVM IR text."""
    call = _X86 if target.is_x86 else _AARCH64 if target.arch in ("aarch64", "arm64") else _PLAIN
    return call + _CALL + threads_ir.text(target.arch)


EXPORTS = ("mlc_call", "mlc_poison", *threads_ir.EXPORTS)


def load_library(text: str, exports: Sequence[str], dependencies: Sequence[Library] = (), level: int = 0, target: Target | None = None) -> Library:
    """A library of mlc's own from IR text, for the baseline CPU or `target`; its object code is kept beside the package's bytecode.

    Level 0 of LLVM makes it in a fifth of the time, and calls take 5 ns longer.
    """
    target, cache = target or get_target("generic"), package_cache()
    key = cache_key(text, pipeline="runtime library", target=target.key, extra=level)
    stored = cache.get(key)
    if stored is not None:
        try:
            return Library(stored, exports, dependencies=dependencies)
        except CodegenError as error:
            cache.refuse(key, str(error))
    code = compile_object(text, target, level)
    cache.put(key, code)
    return Library(code, exports, dependencies=dependencies)


@once
def support() -> Library:
    """The library, loaded at first use."""
    library = load_library(support_text(get_target("generic")), EXPORTS)
    reset = library.function("mlc_threads_reset", None)
    reset()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)  # the parent's workers are not in the child
    return library


@once
def conversions() -> Library:
    """The f16/bf16 conversions, for programs that need them."""
    return load_library(convert_ir.text(), convert_ir.EXPORTS, level=1)


def libraries(object_code: bytes) -> tuple[Library, ...]:
    """What a program of this code links against."""
    return (support(), conversions()) if any(name.encode() in object_code for name in convert_ir.EXPORTS) else (support(),)


@once
def native_call():
    """`mlc_call` as a ctypes function (address of a table, of the array of pointers); it runs without the GIL."""
    return support().function("mlc_call", None, ctypes.c_void_p, ctypes.c_void_p)
