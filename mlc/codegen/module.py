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
    kernels: dict[int, _Functions] = {}
    main: list[str] = []
    for number, (kernel, places) in enumerate(calls):
        emitted = kernels.get(id(kernel))
        if emitted is None:
            emitted = kernels[id(kernel)] = _Functions(kernel, f"k{len(kernels)}", target, declares)
        for i, ((slot, offset), nbytes) in enumerate(poison[number] if poison else ()):
            declares["memset"] = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
            lines, at = _address(f"{number}.dead{i}", slot, offset)
            main += [*lines, f"  call void @llvm.memset.p0.i64(ptr {at}, i8 -1, i64 {nbytes}, i1 false)"]
        assert len(places) == len(placed_buffers(kernel)), (kernel.name, places)
        operands = []
        for i, (slot, offset) in enumerate(places):
            lines, at = _address(f"{number}.{i}", slot, offset)
            main += lines
            operands.append(at)
        main += emitted.call(str(number), operands)
    context = max((each.context for each in kernels.values() if each.whole), default=0)
    if context:
        main.insert(0, _context(context))
    functions = [text for each in kernels.values() for text in each.texts]
    return "\n\n".join(["\n".join(sorted(declares.values())), *functions,
                        "\n".join(["define void @mlc_main(ptr %bufs) nounwind {", *main, "  ret void\n}\n"])])


def _address(at: str, slot: int, offset: int) -> tuple[list[str], str]:
    """Lines that find a place's address, and its name."""
    lines = [f"  %s{at} = getelementptr ptr, ptr %bufs, i64 {slot}", f"  %b{at} = load ptr, ptr %s{at}, align 8"]
    if not offset:
        return lines, f"%b{at}"
    return [*lines, f"  %p{at} = getelementptr i8, ptr %b{at}, i64 {offset}"], f"%p{at}"


def _context(words: int) -> str:
    return f"  %ctx = alloca [{words} x i64], align {ALIGNMENT}"


class _Functions:
    """The functions of one kernel: `texts`. A parallel loop is one of its own, (context, i64 lo, i64 hi, scratch) with lo < hi, which runs a
    range of it; the worker pool calls it. The context holds pointers and variables. A kernel that is nothing but such a loop has no
    other function (`whole`): each costs LLVM 0.3 ms, however short it is."""

    def __init__(self, kernel: LoopKernel, name: str, target: Target, declares: dict[str, str]):
        self.kernel, self.name, self.target, self.declares = kernel, name, target, declares
        self.pointers = {b.name: f"%b{i}" for i, b in enumerate(kernel.buffers)}
        self.placed = placed_buffers(kernel)
        self.shared = {buffer for pair in kernel.may_alias for buffer in pair}
        # Scratch does not outlive an iteration of a parallel loop, so each function may have its own.
        self.given = [b for b in kernel.buffers if b.role != "scratch" or b in self.placed]
        self.texts: list[str] = []
        self.context = 0
        emitter = KernelEmitter(kernel, target, declares, self.pointers, self.outline)
        emitter.body(kernel.body)
        self.whole = len(kernel.body) == 1 and bool(self.texts) and tuple(self.given) == self.placed
        if not self.whole:
            own = self._allocas([b for b in kernel.buffers if b not in self.placed])
            context = f"{_context(self.context)}\n" if self.context else ""
            parameters = ", ".join(f"ptr {'' if b.name in self.shared else 'noalias '}{self.pointers[b.name]}" for b in self.placed)
            self.texts.append(f"define internal void @{name}({parameters}) nounwind {{ ; {kernel.name}\n"
                              f"entry:\n{own}{context}{emitter.b.text()}\n{self._fence()}  ret void\n}}")

    def call(self, at: str, operands: Sequence[str]) -> list[str]:
        """Lines that run the kernel on these addresses. `at` makes names unique."""
        if not self.whole:
            return [f"  call void @{self.name}({', '.join(f'ptr {x}' for x in operands)})"]
        (loop,) = self.kernel.body
        self.declares["mlc_parallel"] = "declare void @mlc_parallel(ptr, ptr, i64, i64)"
        lines = []
        for i, x in enumerate(operands):
            lines += [f"  %c{at}.{i} = getelementptr i64, ptr %ctx, i64 {i}", f"  store ptr {x}, ptr %c{at}.{i}, align 8"]
        return [*lines, f"  call void {self._launch(0, loop)}"]

    def _launch(self, part: int, loop: For) -> str:
        return f"@mlc_parallel(ptr @{self.name}.parallel{part}, ptr %ctx, i64 {loop.extent}, i64 {worker_scratch(self.kernel)})"

    def _fence(self) -> str:
        """Stores past the caches are ordered by nothing else on x86: all must be seen before another thread is told that the work is done."""
        if not (self.kernel.streams and self.target.is_x86):
            return ""
        self.declares["llvm.x86.sse.sfence"] = "declare void @llvm.x86.sse.sfence()"
        return "  call void @llvm.x86.sse.sfence()\n"

    def _allocas(self, buffers: Sequence[Buffer]) -> str:
        return "".join([f"  {self.pointers[b.name]} = alloca [{max(1, b.nbytes)} x i8], align {ALIGNMENT}\n" for b in buffers])

    def outline(self, outer: KernelEmitter, loop: For, captured: Sequence[str]) -> None:
        """Emit a parallel loop's function, and in `outer` the call that runs it; `captured` names the variables that it reads."""
        part, b = len(self.texts), outer.b
        values = [outer.env[variable] for variable in captured]
        names = [*(self.pointers[b.name] for b in self.given), *(f"%c{i}" for i in range(len(values)))]
        types = [*("ptr" for _ in self.given), *(type_text(v.dtype, 1) for v in values)]
        operands = [*names[:len(self.given)], *map(outer.operand, values)]

        inner = KernelEmitter(self.kernel, self.target, self.declares, self.pointers)
        inner.env.update({variable: Value(f"%c{i}", v.dtype, 1, 0) for i, (variable, v) in enumerate(zip(captured, values))})
        inner.counted(loop, "%lo", "%hi", 1, lambda: inner.body(loop.body))
        own = self._allocas([buffer for buffer in self.kernel.buffers if buffer not in self.given])
        head = f"define internal void @{self.name}.parallel{part}(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) nounwind {{ ; {self.kernel.name}"
        self.texts.append(f"{head}\nentry:\n{self._arguments(types, names)}\n{own}{inner.b.text()}\n{self._fence()}  ret void\n}}")

        for i, (type_, operand) in enumerate(zip(types, operands)):
            place = b.emit(b.level, f"getelementptr i64, ptr %ctx, i64 {i}")
            b.effect(f"store {type_} {operand}, ptr {place}, align 8")
        b.declare("mlc_parallel", "void", "ptr, ptr, i64, i64")
        b.effect(f"call void {self._launch(part, loop)}")
        self.context = max(self.context, len(types), 1)

    def _arguments(self, types: Sequence[str], names: Sequence[str]) -> str:
        """Lines that take arguments from the context, but scratch from the worker where the caller is one. They promise nothing of
        aliases: without LLVM's passes `noalias` changes nothing but the order of some instructions."""
        lines, offset = [], 0
        for i, (type_, name) in enumerate(zip(types, names)):
            scratch = self.given[i] if i < len(self.given) and self.given[i].role == "scratch" else None
            given = f"{name}.caller" if scratch else name
            lines += [f"  {name}.at = getelementptr i64, ptr %ctx, i64 {i}", f"  {given} = load {type_}, ptr {name}.at, align 8"]
            if scratch:
                if not offset:
                    lines.append("  %here = icmp eq ptr %scratch, null")
                lines.append(f"  {name}.worker = getelementptr i8, ptr %scratch, i64 {offset}")
                lines.append(f"  {name} = select i1 %here, ptr {given}, ptr {name}.worker")
                offset += -(-scratch.nbytes // ALIGNMENT) * ALIGNMENT
        return "\n".join(lines)
