"""A whole program as one LLVM module in text, a function per distinct kernel; and the calls of them in order, as data.

No LLVM pass runs on this text (code generation only), so it is written as it should run: explicit vectors, invariant
code hoisted, equal values computed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mlc.codegen.builder import Value, type_text
from mlc.codegen.memory import ALIGNMENT
from mlc.codegen.numbers import Numbers
from mlc.codegen.statements import KernelEmitter
from mlc.codegen.target import Target
from mlc.core import options
from mlc.core.dataclass import dataclass
from mlc.loop.ir import Buffer, For, LoopKernel, Stmt
from mlc.loop.work import work

# (slot in the array of pointers that a call gets, byte offset)
Place = tuple[int, int]
# The support library's function that overwrites what is dead: (context of a pointer and a number of bytes).
POISON = "mlc_poison"

STACK_SCRATCH_LIMIT = 32 * 1024
# Loops of less work, some 20 us, are over before a thread that sleeps would be awake.
SHORT_WORK = 1 << 17


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


def _loop_bytes(kernel: LoopKernel, loop: For) -> int:
    """What the pool is told of a parallel loop: the scratch that a worker needs, and one more where it is short. Where everything is to be
    shared (fork_us=0), no loop is."""
    return worker_scratch(kernel) | (int(options.get("fork_us")) > 0 and work((loop,)) < SHORT_WORK)


@dataclass(frozen=True)
class Step:
    """A call of a kernel: the function's name; how many iterations its parallel loop has (0: it is called once) and the scratch that a
    worker needs for them, one more if it is short; the places that its context starts with, and the numbers that follow them."""

    function: str
    extent: int
    scratch: int
    places: tuple[Place, ...]
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        times = f" x {self.extent}" if self.extent else ""
        operands = [f"{slot}+{offset}" if offset else str(slot) for slot, offset in self.places] + [f"#{number}" for number in self.numbers]
        return f"{self.function}({', '.join(operands)}){times}"


@dataclass(frozen=True)
class Function:
    """LLVM IR of one function, `text`, and of what it needs declared. Its name says what its text is, and nothing else. `library`: its
    sizes are arguments, so that others will ask for it."""

    name: str
    text: str
    declares: tuple[str, ...]
    kernel: str
    library: bool


@dataclass(frozen=True)
class Module:
    """The functions of a program's kernels, and the calls that run them."""

    functions: tuple[Function, ...]
    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        """All functions as one module, numbered instead of named, and the steps as comments. To be read."""
        text = module_text(self.functions) + "\n".join(["", *(f"; {step}" for step in self.steps), ""])
        for number, function in enumerate(self.functions):
            text = text.replace(function.name, f"k{number}")
        return text


def module_text(functions: Sequence[Function]) -> str:
    """LLVM IR of some functions."""
    declares = sorted({line for function in functions for line in function.declares})
    return "\n\n".join(["\n".join(declares), *(f"; {function.kernel}\n{function.text}" for function in functions), ""])


def emit_module(calls: Sequence[tuple[LoopKernel, Sequence[Place]]], target: Target,
                poison: Sequence[Sequence[tuple[Place, int]]] = ()) -> Module:
    """The functions of the distinct kernels, and the steps that `mlc.runtime.support.call_table` makes a program of.

    `poison`, for checking: (place, bytes) to overwrite with 0xFF (NaN in every float dtype) before call number i, one list a call.

    A place is one of an array of pointers: the program's inputs, outputs, constants, arena and workspace. A call's places are
    those of `placed_buffers(kernel)`. A kernel object that occurs in several calls is emitted once, and so are kernels whose text is
    the same. All memory but that of buffers with role "in" must be aligned to 64 bytes.
    """
    functions: dict[str, Function] = {}
    kernels: dict[int, list[tuple[Function, int, int, tuple[int, ...]]]] = {}
    steps: list[Step] = []
    for number, (kernel, places) in enumerate(calls):
        parts = kernels.get(id(kernel))
        if parts is None:
            parts = kernels[id(kernel)] = _Emission(kernel, target).parts()
            functions.update((function.name, function) for function, *_ in parts if function.name not in functions)
        steps += [Step(POISON, 0, 0, (place,), (nbytes,)) for place, nbytes in (poison[number] if poison else ())]
        assert len(places) == len(placed_buffers(kernel)), (kernel.name, places)
        steps += [Step(function.name, extent, scratch, tuple(places), numbers) for function, extent, scratch, numbers in parts]
    return Module(tuple(functions.values()), tuple(steps))


class _Emission:
    """The functions of one kernel. Each finds its arguments in a context, an array of words: pointers, numbers, variables. A parallel loop
    is a function of its own, (context, i64 lo, i64 hi, scratch) with lo < hi, which runs a range of it; the worker pool calls it. Each
    function costs LLVM 0.3 ms, however short it is; so loops that follow each other share one."""

    def __init__(self, kernel: LoopKernel, target: Target):
        self.kernel, self.target = kernel, target
        self.pointers = {b.name: f"%b{i}" for i, b in enumerate(kernel.buffers)}
        self.placed = placed_buffers(kernel)
        # Scratch does not outlive an iteration of a parallel loop, so each function may have its own.
        self.given = [b for b in kernel.buffers if b.role != "scratch" or b in self.placed]
        self.inner: list[str] = []
        self.context = 0

    def parts(self) -> list[tuple[Function, int, int, tuple[int, ...]]]:
        """(function, extent of its parallel loop or 0, scratch of a worker, numbers) of each step: one, unless nothing but memory joins the loops."""
        body = self.kernel.body
        if tuple(self.given) != self.placed or not all(isinstance(stmt, For) for stmt in body):
            return [self._serial(body, self._sizes())]
        found, serial = [], []
        for stmt in body:
            if stmt.kind == "parallel" and stmt.extent > 1:
                found += [self._serial(serial, self._sizes())] if serial else []
                found.append(self._parallel(stmt))
                serial = []
            else:
                serial.append(stmt)
        return found + ([self._serial(serial, self._sizes())] if serial or not found else [])

    def _sizes(self) -> Numbers | None:
        """What a function's sizes are collected in, where they are arguments."""
        return Numbers() if self.kernel.library else None

    def _serial(self, body: Sequence[Stmt], numbers: Numbers | None) -> tuple[Function, int, int, tuple[int, ...]]:
        declares: dict[str, str] = {}
        emitter = KernelEmitter(self.kernel, self.target, declares, self.pointers, self.outline, numbers)
        emitter.body(body)
        own = self._allocas([b for b in self.kernel.buffers if b not in self.placed])
        own += f"  %inner = alloca [{self.context} x i64], align {ALIGNMENT}\n" if self.context else ""
        arguments = self._arguments(["ptr"] * len(self.placed), [self.pointers[b.name] for b in self.placed], ())
        return self._function("(ptr %ctx)", arguments + own, emitter, declares), 0, 0, tuple(numbers.values if numbers else ())

    def _parallel(self, loop: For) -> tuple[Function, int, int, tuple[int, ...]]:
        declares, numbers = {}, self._sizes()
        emitter = KernelEmitter(self.kernel, self.target, declares, self.pointers, None, numbers)
        emitter.counted(loop, "%lo", "%hi", 1, lambda: emitter.body(loop.body))
        arguments = self._arguments(["ptr"] * len(self.placed), [self.pointers[b.name] for b in self.placed], self.given)
        own = self._allocas([b for b in self.kernel.buffers if b not in self.given])
        function = self._function("(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch)", arguments + own, emitter, declares)
        return function, loop.extent, _loop_bytes(self.kernel, loop), tuple(numbers.values if numbers else ())

    def _function(self, parameters: str, head: str, emitter: KernelEmitter, declares: dict[str, str]) -> Function:
        numbers = emitter.numbers.loads(len(self.placed)) if emitter.numbers else ""
        fence = self._fence(declares)
        text = f"{parameters} nounwind {{\nentry:\n{head}{numbers}{emitter.b.text()}\n{fence}  ret void\n}}"
        # The inner functions are called by the name that is made of all the text.
        whole = "\n\n".join([*self.inner, f"define void @NAME{text}"])
        name = "k" + hashlib.sha256(whole.encode()).hexdigest()[:16]
        return Function(name, whole.replace("@NAME", f"@{name}"), tuple(sorted(declares.values())), self.kernel.name, emitter.numbers is not None)

    def _fence(self, declares: dict[str, str]) -> str:
        """Stores past the caches are ordered by nothing else on x86: all must be seen before another thread is told that the work is done."""
        if not (self.kernel.streams and self.target.is_x86):
            return ""
        declares["llvm.x86.sse.sfence"] = "declare void @llvm.x86.sse.sfence()"
        return "  call void @llvm.x86.sse.sfence()\n"

    def _allocas(self, buffers: Sequence[Buffer]) -> str:
        sizes = [max(1, b.nbytes) for b in buffers]
        if self.kernel.library:  # rows of nearly the same length are one function
            sizes = [1 << (size - 1).bit_length() for size in sizes]
        return "".join([f"  {self.pointers[b.name]} = alloca [{size} x i8], align {ALIGNMENT}\n" for b, size in zip(buffers, sizes)])

    def outline(self, outer: KernelEmitter, loop: For, captured: Sequence[str]) -> None:
        """Emit the function of a parallel loop inside a serial function, and in `outer` the call that runs it; `captured` names the
        variables that it reads."""
        b = outer.b
        values = [outer.env[variable] for variable in captured]
        names = [*(self.pointers[b.name] for b in self.given), *(f"%c{i}" for i in range(len(values)))]
        types = [*("ptr" for _ in self.given), *(type_text(v.dtype, 1) for v in values)]
        operands = [*names[:len(self.given)], *map(outer.operand, values)]

        inner = KernelEmitter(self.kernel, self.target, b.declares, self.pointers)
        inner.env.update({variable: Value(f"%c{i}", v.dtype, 1, 0) for i, (variable, v) in enumerate(zip(captured, values))})
        inner.counted(loop, "%lo", "%hi", 1, lambda: inner.body(loop.body))
        own = self._allocas([buffer for buffer in self.kernel.buffers if buffer not in self.given])
        name = f"NAME.parallel{len(self.inner)}"
        arguments = self._arguments(types, names, self.given)
        self.inner.append(f"define internal void @{name}(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) nounwind {{\nentry:\n"
                          f"{arguments}{own}{inner.b.text()}\n{self._fence(b.declares)}  ret void\n}}")
        for i, (type_, operand) in enumerate(zip(types, operands)):
            place = b.emit(b.level, f"getelementptr i64, ptr %inner, i64 {i}")
            b.effect(f"store {type_} {operand}, ptr {place}, align 8")
        b.declare("mlc_parallel", "void", "ptr, ptr, i64, i64")
        b.effect(f"call void @mlc_parallel(ptr @{name}, ptr %inner, i64 {loop.extent}, i64 {_loop_bytes(self.kernel, loop)})")
        self.context = max(self.context, len(types), 1)

    def _arguments(self, types: Sequence[str], names: Sequence[str], given: Sequence[Buffer]) -> str:
        """Lines that take arguments from the context, but the scratch among `given` from the worker where the caller is one. They promise
        nothing of aliases: without LLVM's passes `noalias` changes nothing but the order of some instructions."""
        lines, offset = [], 0
        for i, (type_, name) in enumerate(zip(types, names)):
            scratch = given[i] if i < len(given) and given[i].role == "scratch" else None
            caller = f"{name}.caller" if scratch else name
            lines += [f"  {name}.at = getelementptr i64, ptr %ctx, i64 {i}", f"  {caller} = load {type_}, ptr {name}.at, align 8"]
            if scratch:
                if not offset:
                    lines.append("  %here = icmp eq ptr %scratch, null")
                lines.append(f"  {name}.worker = getelementptr i8, ptr %scratch, i64 {offset}")
                lines.append(f"  {name} = select i1 %here, ptr {caller}, ptr {name}.worker")
                offset += -(-scratch.nbytes // ALIGNMENT) * ALIGNMENT
        return "".join([line + "\n" for line in lines])
