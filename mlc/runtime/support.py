"""The support library: the native code that programs may call, built once per process and never unloaded.

It holds the call that shields a program from the thread's floating-point settings and the worker pool; the f16/bf16
conversions that the CPU may lack are a library of their own. Programs link against it (see `mlc.runtime.orc`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from mlc.cache.store import Cache, cache_key, default_cache
from mlc.codegen.target import Target, compile_object, get_target
from mlc.core.errors import CodegenError, OptionError
from mlc.runtime import convert_ir, threads_ir
from mlc.runtime.once import once
from mlc.runtime.orc import Library

# `mlc_call(program, bufs)`: IEEE settings inside (round to nearest, subnormals kept, no traps), the caller's afterwards.
# `mlc_default_fp()`: those settings for a thread of our own.
_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
@mlc_default_mxcsr = internal constant i32 8064, align 4

define internal void @mlc_default_fp() nounwind {
  call void @llvm.x86.sse.ldmxcsr(ptr @mlc_default_mxcsr)
  ret void
}

define void @mlc_call(ptr %program, ptr %bufs) nounwind {
  %saved = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  call void @llvm.x86.sse.ldmxcsr(ptr @mlc_default_mxcsr)
  call void %program(ptr %bufs)
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

define void @mlc_call(ptr %program, ptr %bufs) nounwind {
  %saved = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 0)
  call void %program(ptr %bufs)
  call void @llvm.aarch64.set.fpcr(i64 %saved)
  ret void
}
"""
_PLAIN = """
define internal void @mlc_default_fp() nounwind {
  ret void
}

define void @mlc_call(ptr %program, ptr %bufs) nounwind {
  call void %program(ptr %bufs)
  ret void
}
"""


def support_text(target: Target) -> str:
    """The library as LLVM IR text."""
    call = _X86 if target.is_x86 else _AARCH64 if target.arch in ("aarch64", "arm64") else _PLAIN
    return "declare i64 @llvm.umin.i64(i64, i64)\n" + call + threads_ir.text(target.arch)


EXPORTS = ("mlc_call", *threads_ir.EXPORTS)


def load_library(text: str, exports: Sequence[str], dependencies: Sequence[Library] = (), level: int = 0) -> Library:
    """A library of mlc's own from IR text, for the baseline CPU; its object code is kept in the persistent cache.

    Level 0 of LLVM makes it in a fifth of the time, and calls take 5 ns longer.
    """
    target = get_target("generic")
    try:
        cache = default_cache()
    except OptionError:  # an unusable MLC_CACHE_DIR is for the compiler to report; saved programs run without a cache
        cache = Cache(None)
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
    """`mlc_call` as a ctypes function (program address, bufs address); it runs without the GIL."""
    return support().function("mlc_call", None, ctypes.c_void_p, ctypes.c_void_p)
