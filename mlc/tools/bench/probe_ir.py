"""Code whose speed is the machine's: loops of independent multiply-adds, and of loads and stores, as LLVM IR text.

Every function is `void f(ptr to, ptr from, i64 bytes, i64 repeats)`. The memory loops touch `bytes` bytes, `repeats` times; the
compute loops ignore the pointers but for their result, which keeps LLVM from dropping the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.codegen.target import Target

UNROLL = 8


@dataclass(frozen=True)
class Peak:
    """A multiply-add instruction: types of accumulator and operands, the call, and the operations (two a product) of one."""

    dtype: str
    accumulator: str
    operand: str
    call: str
    declare: str
    operations: int
    first: str


def peaks(target: Target) -> list[Peak]:
    """The multiply-adds this target has: f32, f64, and the dot products of bf16 and int8 where the CPU has them."""
    found = []
    for dtype, ty, bits in (("f32", "float", 32), ("f64", "double", 64)):
        lanes = target.vector_bits // bits
        v = f"<{lanes} x {ty}>"
        name = f"@llvm.fma.v{lanes}f{bits}"
        call = f"call {v} {name}({v} %acc, {v} %x, {v} %x)" if target.fma else ""
        found.append(Peak(dtype, v, v, call, f"declare {v} {name}({v}, {v}, {v})" if target.fma else "", 2 * lanes, "1.0"))
    v, h, b = "<16 x float>", "<32 x bfloat>", "<64 x i8>"
    if target.bf16_dot:
        name = "@llvm.x86.avx512bf16.dpbf16ps.512"
        found.append(Peak("bf16", v, h, f"call {v} {name}({v} %acc, {h} %x, {h} %x)", f"declare {v} {name}({v}, {h}, {h})", 64, "1.0"))
    if target.int8_dot:
        name, v = "@llvm.x86.avx512.vpdpbusd.512", "<16 x i32>"
        found.append(Peak("int8", v, b, f"call {v} {name}({v} %acc, {b} %x, {b} %x)", f"declare {v} {name}({v}, {b}, {b})", 128, "1"))
    return found


def _accumulators(target: Target) -> int:
    """As many as hide the latency of an fma (4 cycles, 2 a cycle) with registers to spare."""
    return 20 if target.vector_registers >= 32 else 12


def compute(peak: Peak, target: Target) -> tuple[str, int]:
    """The text of a loop of `repeats` rounds of independent multiply-adds, and the operations of one round."""
    count, v, element = _accumulators(target), peak.accumulator, peak.operand.split(" x ")[1][:-1]
    lines = [peak.declare, f"define void @peak_{peak.dtype}(ptr %to, ptr %from, i64 %bytes, i64 %n) nounwind {{", "entry:",
             f"  %s = load {element}, ptr %from", f"  %i = insertelement {peak.operand} poison, {element} %s, i32 0",
             f"  %x = shufflevector {peak.operand} %i, {peak.operand} poison, <{peak.operand[1:].split(' ')[0]} x i32> zeroinitializer",
             "  br label %loop", "loop:", "  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]"]
    lines += [f"  %a{j} = phi {v} [ zeroinitializer, %entry ], [ %b{j}, %loop ]" for j in range(count)]
    for j in range(count):
        if peak.call:
            lines.append(f"  %b{j} = {peak.call.replace('%acc', f'%a{j}')}")
        else:
            lines += [f"  %p{j} = fmul {v} %a{j}, %x", f"  %b{j} = fadd {v} %p{j}, %x"]
    lines += ["  %k1 = add i64 %k, 1", "  %more = icmp ult i64 %k1, %n", "  br i1 %more, label %loop, label %done", "done:"]
    for j in range(count):
        lines += [f"  %q{j} = getelementptr {v}, ptr %to, i64 {j}", f"  store {v} %b{j}, ptr %q{j}"]
    return "\n".join([*lines, "  ret void", "}"]) + "\n", count * peak.operations


# Matrix registers: one of 16 rows of 64 bytes times another, into one of four.
_MATRIX = {"bf16": ("bf16", "tdpbf16ps", 2 * 16 * 16 * 32), "int8": ("i8", "tdpbssd", 2 * 16 * 16 * 64)}


def products(dtype: str, target: Target) -> tuple[str, int] | None:
    """The same of independent products of matrix registers; None where the target has none for the dtype."""
    number, name, operations = _MATRIX.get(dtype, ("", "", 0))
    if number not in target.matrix_parts:
        return None
    shapes = ", ".join(f"i8 {1 if k == 0 else 64 if 16 <= k < 32 and k % 2 == 0 else 16 if 48 <= k < 56 else 0}" for k in range(64))
    lines = [f"@shapes.{dtype} = private unnamed_addr constant [64 x i8] [{shapes}], align 64", "declare void @llvm.x86.ldtilecfg(ptr)",
             "declare void @llvm.x86.tilezero(i8 immarg)", "declare void @llvm.x86.tilerelease()",
             f"declare void @llvm.x86.{name}(i8 immarg, i8 immarg, i8 immarg)",
             f"define void @peak_{dtype}(ptr %to, ptr %from, i64 %bytes, i64 %n) nounwind {{", "entry:",
             f"  call void @llvm.x86.ldtilecfg(ptr @shapes.{dtype})"]
    lines += [f"  call void @llvm.x86.tilezero(i8 {k})" for k in range(6)]
    lines += ["  br label %loop", "loop:", "  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]"]
    lines += [f"  call void @llvm.x86.{name}(i8 {k}, i8 4, i8 5)" for k in range(4)]
    lines += ["  %k1 = add i64 %k, 1", "  %more = icmp ult i64 %k1, %n", "  br i1 %more, label %loop, label %done", "done:",
              "  call void @llvm.x86.tilerelease()", "  ret void", "}"]
    return "\n".join(lines) + "\n", 4 * operations


def computing(target: Target) -> dict[str, tuple[str, int]]:
    """By dtype: the text of the loop that computes most, and the operations of one round."""
    found = {peak.dtype: compute(peak, target) for peak in peaks(target)}
    return found | {dtype: made for dtype in _MATRIX if (made := products(dtype, target))}


# name -> (reads, writes, what else): the better of the variants of a name counts. Non-temporal stores go past the cache; prefetching
# 1 KiB ahead reads L3 up to a tenth faster.
MEMORY = {"read": (True, False, ""), "read_ahead": (True, False, "ahead"), "write": (False, True, ""), "copy": (True, True, ""),
          "write_nt": (False, True, "nt"), "copy_nt": (True, True, "nt")}
AHEAD = 1024


def memory(name: str, target: Target) -> str:
    """The text of a loop over memory, eight vectors a step."""
    reads, writes, extra = MEMORY[name]
    streaming = extra == "nt"
    lanes = target.vector_bits // 32
    v, step = f"<{lanes} x i32>", UNROLL * lanes * 4
    hint = ", !nontemporal !{i32 1}" if streaming else ""
    lines = [f"define void @{name}(ptr %to, ptr %from, i64 %bytes, i64 %n) nounwind {{", "entry:", "  br label %outer", "outer:",
             "  %r = phi i64 [ 0, %entry ], [ %r1, %next ]", "  br label %loop", "loop:",
             "  %at = phi i64 [ 0, %outer ], [ %at1, %loop ]"]
    kept = reads and not writes
    if kept:
        lines += [f"  %a{j} = phi {v} [ zeroinitializer, %outer ], [ %b{j}, %loop ]" for j in range(UNROLL)]
    for j in range(UNROLL):
        lines.append(f"  %o{j} = add i64 %at, {j * lanes * 4}")
        if reads:
            lines += [f"  %p{j} = getelementptr i8, ptr %from, i64 %o{j}", f"  %v{j} = load {v}, ptr %p{j}, align 64"]
        if kept:
            lines.append(f"  %b{j} = xor {v} %a{j}, %v{j}")
        if extra == "ahead":
            lines += [f"  %f{j} = getelementptr i8, ptr %p{j}, i64 {AHEAD}", f"  call void @llvm.prefetch.p0(ptr %f{j}, i32 0, i32 3, i32 1)"]
    for j in range(UNROLL if writes else 0):
        value = f"%v{j}" if reads else "zeroinitializer"
        lines += [f"  %q{j} = getelementptr i8, ptr %to, i64 %o{j}", f"  store {v} {value}, ptr %q{j}, align 64{hint}"]
    lines += [f"  %at1 = add i64 %at, {step}", "  %more = icmp ult i64 %at1, %bytes", "  br i1 %more, label %loop, label %next", "next:"]
    for j in range(UNROLL if kept else 0):
        lines += [f"  %q{j} = getelementptr {v}, ptr %to, i64 {j}", f"  store {v} %b{j}, ptr %q{j}, align 64"]
    lines += ["  %r1 = add i64 %r, 1", "  %again = icmp ult i64 %r1, %n", "  br i1 %again, label %outer, label %done", "done:"]
    if streaming and target.is_x86:
        lines.append("  call void @llvm.x86.sse.sfence()")
    text = "\n".join([*lines, "  ret void", "}"]) + "\n"
    if extra == "ahead":
        text += "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
    return text + ("declare void @llvm.x86.sse.sfence()\n" if streaming and target.is_x86 else "")
