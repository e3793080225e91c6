"""The support library: the native code that every program may call, built once per process and never unloaded.

It holds the call that shields a program from the thread's floating-point settings, and the f16/bf16 conversions that
the CPU may lack. Programs link against it (see `mlc.runtime.orc`).
"""

from __future__ import annotations

import ctypes
import functools

from mlc.codegen.target import Target, compile_object, get_target
from mlc.runtime import convert_ir
from mlc.runtime.orc import Library

# `mlc_call(program, bufs)`: IEEE settings inside (round to nearest, subnormals kept, no traps), the caller's afterwards.
_CALL_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define void @mlc_call(ptr %program, ptr %bufs) nounwind {
  %saved = alloca i32, align 4
  %default = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  store i32 8064, ptr %default, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %default)
  call void %program(ptr %bufs)
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret void
}
"""
_CALL_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define void @mlc_call(ptr %program, ptr %bufs) nounwind {
  %saved = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 0)
  call void %program(ptr %bufs)
  call void @llvm.aarch64.set.fpcr(i64 %saved)
  ret void
}
"""
_CALL_PLAIN = """
define void @mlc_call(ptr %program, ptr %bufs) nounwind {
  call void %program(ptr %bufs)
  ret void
}
"""


def support_text(target: Target) -> str:
    """The library as LLVM IR text."""
    call = _CALL_X86 if target.is_x86 else _CALL_AARCH64 if target.arch in ("aarch64", "arm64") else _CALL_PLAIN
    return call + convert_ir.text()


EXPORTS = ("mlc_call", *convert_ir.EXPORTS)


@functools.cache
def support() -> Library:
    """The library, compiled for the baseline CPU at first use."""
    target = get_target("generic")
    return Library(compile_object(support_text(target), target), EXPORTS)


@functools.cache
def native_call():
    """`mlc_call` as a ctypes function (program address, bufs address); it runs without the GIL."""
    return support().function("mlc_call", None, ctypes.c_void_p, ctypes.c_void_p)
