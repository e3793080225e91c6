"""Running emitted kernels in tests: arrays in, machine code, arrays out."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from mlc.codegen.module import emit_module, module_text, placed_buffers
from mlc.codegen.target import compile_object, get_target, host_lacks
from mlc.core import dtype as dt
from mlc.core.dataclass import replace
from mlc.core.dtype import DType
from mlc.loop.ir import LoopKernel
from mlc.runtime.orc import Library
from mlc.runtime.support import call_table, libraries, native_call

# For texts only: with narrower vectors nothing is asked for ahead of loads.
WIDE = replace(get_target("golden-v3"), vector_bits=512)


def runnable_targets() -> list[str]:
    """The targets whose code this machine can run."""
    names = ("native", "generic", "golden-v3")
    return [name for name in names if not host_lacks(get_target(name).triple, get_target(name).requires)]


def aligned(size: int, dtype: DType, shift: int = 0) -> np.ndarray:
    """A zeroed array whose data starts `shift` elements past a multiple of 64 bytes."""
    raw = np.zeros((size + shift) * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64 + shift * dtype.itemsize
    return raw[start:start + size * dtype.itemsize].view(dtype.numpy)


@functools.lru_cache(64)
def _compiled(text: str, target: str) -> bytes:
    return compile_object(text, get_target(target))


def run(kernels: list[LoopKernel], arrays: list[dict[str, np.ndarray]], target: str,
        share: dict[str, str] | None = None) -> list[dict[str, np.ndarray]]:
    """Run each kernel on copies of its arrays (by buffer name; the others are made), in one module; all buffers by name.

    Inputs lie unaligned by one element. `share` puts a buffer on the memory of another. Memory behind every buffer must stay untouched.
    """
    calls, pointers, results, guards, keep = [], [], [], [], []
    for kernel, given in zip(kernels, arrays, strict=True):
        places, made = [], {}
        for buffer in placed_buffers(kernel):
            if share and buffer.name in share:
                made[buffer.name] = made[share[buffer.name]]
                places.append((len(pointers), 0))
                pointers.append(made[buffer.name].ctypes.data)
                continue
            guard = 64 // buffer.dtype.itemsize
            array = aligned(buffer.size + guard, buffer.dtype, 1 if buffer.role == "in" and not share else 0)
            array.view(np.uint8)[:] = 0xA5
            if buffer.name in given:
                array[:buffer.size] = given[buffer.name]
            made[buffer.name] = array[:buffer.size]
            guards.append((kernel.name, buffer.name, array[buffer.size:]))
            places.append((len(pointers), 0))
            pointers.append(array.ctypes.data)
            keep.append(array)
        calls.append((kernel, places))
        results.append(made)
    module = emit_module(calls, get_target(target))
    code = _compiled(module_text(module.functions), target)
    library = Library(code, sorted({step.function for step in module.steps}), dependencies=libraries(code))
    table = call_table([(s.function, s.extent, s.scratch, s.places, s.numbers) for s in module.steps], library.address)
    native_call()(ctypes.addressof(table), (ctypes.c_void_p * max(1, len(pointers)))(*pointers))
    for kernel_name, name, guard in guards:
        assert (guard.view(np.uint8) == 0xA5).all(), f"kernel {kernel_name} wrote behind {name}"
    return results


def same_bits(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Elementwise: equal bit patterns, where any NaN equals any NaN."""
    dtype = dt.as_dtype(wanted.dtype)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    if dtype is dt.bool_:
        return found.view(np.uint8) == wanted.view(np.uint8)
    integer = dt.uint_of(dtype).numpy
    equal = np.ascontiguousarray(found).view(integer) == np.ascontiguousarray(wanted).view(integer)
    if dtype.is_float:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            equal = equal | (np.isnan(found.astype(np.float64)) & np.isnan(wanted.astype(np.float64)))
    return equal
