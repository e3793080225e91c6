"""Small hand-written programs that the runtime's tests run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.codegen.target import compile_object, get_target
from mlc.runtime.executable import Manifest, Program


def pointers(count: int) -> str:
    """IR that loads the first `count` addresses of %bufs into %p0, %p1, ..."""
    return "".join(f"  %at{i} = getelementptr ptr, ptr %bufs, i64 {i}\n  %p{i} = load ptr, ptr %at{i}\n" for i in range(count))


def elementwise(instructions: str, count: int, ty: str, operands: int, result: str = "") -> str:
    """A program that runs `instructions` (from %v0, %v1, ... to %r) for each of `count` elements."""
    result = result or ty
    loads = "".join(f"  %e{i} = getelementptr {ty}, ptr %p{i}, i64 %n\n  %v{i} = load {ty}, ptr %e{i}\n" for i in range(operands))
    return f"""define void @mlc_main(ptr %bufs) {{
entry:
{pointers(operands + 1)}  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{loads}{instructions}  %out = getelementptr {result}, ptr %p{operands}, i64 %n
  store {result} %r, ptr %out
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {count}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def subtract(shape: tuple[int, ...] = (3, 4), *, target: str = "native", **fields: object) -> Program:
    """x - y, elementwise, f32: not symmetric, so that swapped arguments show."""
    return program(elementwise("  %r = fsub float %v0, %v1\n", int(np.prod(shape)), "float", 2),
                   [("x", shape, "f32"), ("y", shape, "f32")], [("out", shape, "f32")], target=target, **fields)


def program(text: str, inputs: Sequence[tuple], outputs: Sequence[tuple], constants: Sequence[np.ndarray] = (), *,
            target: str = "native", **fields: object) -> Program:
    """A program from IR text, whose one function `mlc_main` gets the address of every slot (of the workspace where there is one)."""
    chosen = get_target(target)
    code, residents = compile_object(text, chosen), fields.get("residents") or constants
    places = tuple((slot, 0) for slot in range(len(inputs) + len(outputs) + len(residents) + 1 + ("workspace_bytes" in fields)))
    manifest = Manifest.make(chosen, inputs, outputs, constants, steps=(("mlc_main", 0, 0, places, ()),),
                             objects=((len(code), ("mlc_main",)),), **fields)
    return Program(code, manifest, constants)


def matrix(shape: tuple[int, ...] = (3, 4), start: int = 1) -> np.ndarray:
    """Distinct, unsymmetric f32 values."""
    count = int(np.prod(shape))
    return (np.arange(start, start + count, dtype=np.float32) ** 2 / 4).reshape(shape)
