"""A whole program as one LLVM module in text: an internal function per distinct kernel, and `mlc_main`, which calls them in order.

No LLVM pass runs on this text (code generation only), so it is written as it should run: explicit vectors, invariant
code hoisted, equal values computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.codegen.memory import ALIGNMENT
from mlc.codegen.statements import KernelEmitter
from mlc.codegen.target import Target
from mlc.loop.ir import Buffer, For, LoopKernel

# (slot in the array of pointers that mlc_main gets, byte offset)
Place = tuple[int, int]

STACK_SCRATCH_LIMIT = 32 * 1024


def stack_scratch(kernel: LoopKernel) -> bool:
    """Whether the kernel's scratch buffers live on its own stack; if not, they are places like all other buffers."""
    return sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in kernel.buffers if b.role == "scratch") <= STACK_SCRATCH_LIMIT


def placed_buffers(kernel: LoopKernel) -> tuple[Buffer, ...]:
    """The buffers that a call of the kernel gives places for, in order."""
    on_stack = stack_scratch(kernel)
    return tuple(b for b in kernel.buffers if not (on_stack and b.role == "scratch"))


def emit_module(calls: Sequence[tuple[LoopKernel, Sequence[Place]]], target: Target) -> str:
    """LLVM IR of `void mlc_main(ptr bufs)`, which runs the calls in order.

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


def _parameters(kernel: LoopKernel, buffers: Sequence[Buffer]) -> str:
    shared = {name for pair in kernel.may_alias for name in pair}
    return ", ".join(f"ptr {'' if b.name in shared else 'noalias '}%{_pointer(i)}" for i, b in enumerate(kernel.buffers) if b in buffers)


def _pointer(position: int) -> str:
    return f"b{position}"


def _kernel_functions(kernel: LoopKernel, name: str, target: Target, declares: dict[str, str]) -> list[str]:
    """The kernel's function, after one function for each outermost parallel loop: (pointers, i64 lo, i64 hi), lo < hi."""
    pointers = {b.name: f"%{_pointer(i)}" for i, b in enumerate(kernel.buffers)}
    parts: list[str] = []

    def outline(loop: For) -> str:
        part = f"{name}.parallel{len(parts)}"
        inner = KernelEmitter(kernel, target, declares, pointers)
        inner.counted(loop, "%lo", "%hi", 1, lambda: inner.body(loop.body))
        parts.append(f"define internal void @{part}({_parameters(kernel, kernel.buffers)}, i64 %lo, i64 %hi) nounwind {{\n"
                     f"entry:\n{inner.b.text()}\n  ret void\n}}")
        given = ", ".join(f"ptr {pointer}" for pointer in pointers.values())
        return f"call void @{part}({given}, i64 0, i64 {loop.extent})"

    placed = placed_buffers(kernel)
    emitter = KernelEmitter(kernel, target, declares, pointers, outline)
    for i, buffer in enumerate(kernel.buffers):
        if buffer not in placed:
            emitter.b.lines[0].append(f"  %{_pointer(i)} = alloca [{max(1, buffer.nbytes)} x i8], align {ALIGNMENT}")
    emitter.body(kernel.body)
    parts.append(f"define internal void @{name}({_parameters(kernel, placed)}) nounwind {{ ; {kernel.name}\n"
                 f"entry:\n{emitter.b.text()}\n  ret void\n}}")
    return parts


