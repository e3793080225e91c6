"""A whole program as one LLVM module in text: an internal function per distinct kernel, and `mlc_main`, which calls them in order.

No LLVM pass runs on this text (code generation only), so it is written as it should run: explicit vectors, invariant
code hoisted, equal values computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.codegen.builder import Value, type_text
from mlc.codegen.memory import ALIGNMENT
from mlc.codegen.statements import KernelEmitter
from mlc.codegen.target import Target
from mlc.loop.ir import Buffer, For, LoopKernel

# (slot in the array of pointers that mlc_main gets, byte offset)
Place = tuple[int, int]

STACK_SCRATCH_LIMIT = 32 * 1024


def stack_scratch(kernel: LoopKernel) -> bool:
    """Whether the buffers that the kernel makes for itself live on the stack; if not, they are places like all other buffers."""
    return sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in kernel.buffers if b.own) <= STACK_SCRATCH_LIMIT


def placed_buffers(kernel: LoopKernel) -> tuple[Buffer, ...]:
    """The buffers that a call of the kernel gives places for, in order."""
    on_stack = stack_scratch(kernel)
    return tuple(b for b in kernel.buffers if not (on_stack and b.own))


def worker_scratch(kernel: LoopKernel) -> int:
    """Bytes that each worker needs beside the places of a call, which serve the caller's thread."""
    if stack_scratch(kernel) or not any(isinstance(s, For) and s.kind == "parallel" for s in kernel.body):
        return 0
    return sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in kernel.buffers if b.role == "scratch")


def emit_module(calls: Sequence[tuple[LoopKernel, Sequence[Place]]], target: Target,
                poison: Sequence[Sequence[tuple[Place, int]]] = ()) -> str:
    """LLVM IR of `void mlc_main(ptr bufs)`, which runs the calls in order.

    `poison`, for checking: (place, bytes) to overwrite with 0xFF (NaN in every float dtype) before call number i, one list a call.

    `bufs` points to an array of pointers: the program's inputs, outputs, constants and the arena. A call's places are
    those of `placed_buffers(kernel)`. A kernel object that occurs in several calls is emitted once. All memory but that
    of buffers with role "in" must be aligned to 64 bytes.
    """
    declares: dict[str, str] = {}
    functions: list[str] = []
    names: dict[int, str] = {}
    main = ["define void @mlc_main(ptr %bufs) nounwind {"]
    for number, (kernel, places) in enumerate(calls):
        name = names.get(id(kernel))
        if name is None:
            name = names[id(kernel)] = f"k{len(names)}"
            functions += _kernel_functions(kernel, name, target, declares)
        for i, ((slot, offset), nbytes) in enumerate(poison[number] if poison else ()):
            at = f"{number}.dead{i}"
            declares["memset"] = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
            main += [f"  %s{at} = getelementptr ptr, ptr %bufs, i64 {slot}", f"  %b{at} = load ptr, ptr %s{at}, align 8",
                     f"  %p{at} = getelementptr i8, ptr %b{at}, i64 {offset}",
                     f"  call void @llvm.memset.p0.i64(ptr %p{at}, i8 -1, i64 {nbytes}, i1 false)"]
        operands = []
        assert len(places) == len(placed_buffers(kernel)), (kernel.name, places)
        for i, (slot, offset) in enumerate(places):
            at = f"{number}.{i}"
            main.append(f"  %s{at} = getelementptr ptr, ptr %bufs, i64 {slot}")
            main.append(f"  %b{at} = load ptr, ptr %s{at}, align 8")
            if offset:
                main.append(f"  %p{at} = getelementptr i8, ptr %b{at}, i64 {offset}")
            operands.append(f"ptr %{'p' if offset else 'b'}{at}")
        main.append(f"  call void @{name}({', '.join(operands)})")
    main.append("  ret void\n}\n")
    return "\n\n".join(["\n".join(sorted(declares.values())), *functions, "\n".join(main)])


def _kernel_functions(kernel: LoopKernel, name: str, target: Target, declares: dict[str, str]) -> list[str]:
    """The kernel's function, after those of its outermost parallel loops."""
    return _Functions(kernel, name, target, declares).emit()


class _Functions:
    """The functions of one kernel. A parallel loop is two: (pointers, variables, i64 lo, i64 hi) with lo < hi, which runs a range of it,
    and (context, i64 lo, i64 hi, scratch), which the worker pool calls, and which takes the former's arguments out of the context."""

    def __init__(self, kernel: LoopKernel, name: str, target: Target, declares: dict[str, str]):
        self.kernel, self.name, self.target, self.declares = kernel, name, target, declares
        self.pointers = {b.name: f"%b{i}" for i, b in enumerate(kernel.buffers)}
        self.placed = {b.name for b in placed_buffers(kernel)}
        self.shared = {buffer for pair in kernel.may_alias for buffer in pair}
        # Scratch does not outlive an iteration of a parallel loop, so each function may have its own.
        self.given = [b for b in kernel.buffers if b.role != "scratch" or b.name in self.placed]
        self.parts: list[str] = []
        self.context = 0

    def emit(self) -> list[str]:
        emitter = KernelEmitter(self.kernel, self.target, self.declares, self.pointers, self.outline)
        emitter.body(self.kernel.body)
        parameters = self._parameters([b for b in self.given if b.name in self.placed])
        own = self._allocas([b for b in self.kernel.buffers if b.name not in self.placed])
        context = f"  %ctx = alloca [{self.context} x i64], align {ALIGNMENT}\n" if self.context else ""
        head = f"define internal void @{self.name}({', '.join(parameters)}) nounwind {{ ; {self.kernel.name}"
        return [*self.parts, f"{head}\nentry:\n{own}{context}{emitter.b.text()}\n{self._fence()}  ret void\n}}"]

    def _fence(self) -> str:
        """Stores past the caches are ordered by nothing else on x86: all must be seen before another thread is told that the work is done."""
        if not (self.kernel.streams and self.target.is_x86):
            return ""
        self.declares["llvm.x86.sse.sfence"] = "declare void @llvm.x86.sse.sfence()"
        return "  call void @llvm.x86.sse.sfence()\n"

    def _parameters(self, buffers: Sequence[Buffer]) -> list[str]:
        return [f"ptr {'' if b.name in self.shared else 'noalias '}{self.pointers[b.name]}" for b in buffers]

    def _allocas(self, buffers: Sequence[Buffer]) -> str:
        return "".join([f"  {self.pointers[b.name]} = alloca [{max(1, b.nbytes)} x i8], align {ALIGNMENT}\n" for b in buffers])

    def outline(self, outer: KernelEmitter, loop: For, captured: Sequence[str]) -> None:
        """Emit a parallel loop's functions, and in `outer` the call that runs it; `captured` names the variables that it reads."""
        part = f"{self.name}.parallel{len(self.parts) // 2}"
        values = [outer.env[variable] for variable in captured]
        names = [*(self.pointers[b.name] for b in self.given), *(f"%c{i}" for i in range(len(values)))]
        types = [*("ptr" for _ in self.given), *(type_text(v.dtype, 1) for v in values)]
        operands = [*names[:len(self.given)], *map(outer.operand, values)]

        inner = KernelEmitter(self.kernel, self.target, self.declares, self.pointers)
        inner.env.update({variable: Value(f"%c{i}", v.dtype, 1, 0) for i, (variable, v) in enumerate(zip(captured, values))})
        inner.counted(loop, "%lo", "%hi", 1, lambda: inner.body(loop.body))
        scalars = [f"{type_} {name}" for type_, name in zip(types, names) if type_ != "ptr"]
        parameters = ", ".join([*self._parameters(self.given), *scalars, "i64 %lo", "i64 %hi"])
        own = self._allocas([b for b in self.kernel.buffers if b not in self.given])
        self.parts.append(f"define internal void @{part}({parameters}) nounwind {{\nentry:\n{own}{inner.b.text()}\n{self._fence()}  ret void\n}}")
        self.parts.append(self._entry(part, types, names))

        b = outer.b
        for i, (type_, operand) in enumerate(zip(types, operands)):
            place = b.emit(b.level, f"getelementptr i64, ptr %ctx, i64 {i}")
            b.effect(f"store {type_} {operand}, ptr {place}, align 8")
        b.declare("mlc_parallel", "void", "ptr, ptr, i64, i64")
        b.effect(f"call void @mlc_parallel(ptr @{part}.entry, ptr %ctx, i64 {loop.extent}, i64 {worker_scratch(self.kernel)})")
        self.context = max(self.context, len(types), 1)

    def _entry(self, part: str, types: Sequence[str], names: Sequence[str]) -> str:
        """What the pool calls: arguments from the context, but scratch from the worker where the caller is one."""
        lines, offset = [f"define internal void @{part}.entry(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) nounwind {{"], 0
        lines.append("  %here = icmp eq ptr %scratch, null")
        for i, (type_, name) in enumerate(zip(types, names)):
            scratch = self.given[i] if i < len(self.given) and self.given[i].role == "scratch" else None
            given = f"{name}.caller" if scratch else name
            lines += [f"  {name}.at = getelementptr i64, ptr %ctx, i64 {i}", f"  {given} = load {type_}, ptr {name}.at, align 8"]
            if scratch:
                lines.append(f"  {name}.worker = getelementptr i8, ptr %scratch, i64 {offset}")
                lines.append(f"  {name} = select i1 %here, ptr {given}, ptr {name}.worker")
                offset += -(-scratch.nbytes // ALIGNMENT) * ALIGNMENT
        operands = [*(f"{type_} {name}" for type_, name in zip(types, names)), "i64 %lo", "i64 %hi"]
        return "\n".join([*lines, f"  call void @{part}({', '.join(operands)})", "  ret void", "}"])
