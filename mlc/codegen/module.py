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
    """The kernel's function, after one function for each outermost parallel loop: (pointers, i64 lo, i64 hi), lo < hi."""
    shared = {buffer for pair in kernel.may_alias for buffer in pair}
    placed = {b.name for b in placed_buffers(kernel)}
    pointers = {b.name: f"%b{i}" for i, b in enumerate(kernel.buffers)}
    parameters = ", ".join([f"ptr {'' if b.name in shared else 'noalias '}{pointers[b.name]}" for b in kernel.buffers if b.name in placed])
    # Scratch does not outlive an iteration of a parallel loop, so each function may have its own.
    scratch = "".join([f"  {pointers[b.name]} = alloca [{max(1, b.nbytes)} x i8], align {ALIGNMENT}\n"
                       for b in kernel.buffers if b.name not in placed])
    parts: list[str] = []

    def outline(loop: For) -> str:
        part = f"{name}.parallel{len(parts)}"
        inner = KernelEmitter(kernel, target, declares, pointers)
        inner.counted(loop, "%lo", "%hi", 1, lambda: inner.body(loop.body))
        given = [*parameters.split(", "), "i64 %lo", "i64 %hi"] if parameters else ["i64 %lo", "i64 %hi"]
        parts.append(f"define internal void @{part}({', '.join(given)}) nounwind {{\nentry:\n{scratch}{inner.b.text()}\n  ret void\n}}")
        operands = [f"ptr {pointers[b.name]}" for b in kernel.buffers if b.name in placed]
        return f"call void @{part}({', '.join([*operands, 'i64 0', f'i64 {loop.extent}'])})"

    emitter = KernelEmitter(kernel, target, declares, pointers, outline)
    emitter.body(kernel.body)
    parts.append(f"define internal void @{name}({parameters}) nounwind {{ ; {kernel.name}\nentry:\n{scratch}{emitter.b.text()}\n  ret void\n}}")
    return parts
