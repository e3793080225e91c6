"""Instructions of x86 that work on whole registers of a value: it is cut into them, or made up to one.

What writes them (`mlc.codegen.instructions.At`) knows the lanes of the value.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

from mlc.codegen.builder import Builder, Value, constant_text, type_text, vector_text
from mlc.core import dtype as dt
from mlc.core.dtype import DType

NAN = {dt.f32: 0x7FC00000, dt.f64: 0x7FF8000000000000}


class Place(Protocol):
    """Where an instruction is written, and of how many lanes."""

    b: Builder
    lanes: int
    level: int

    def __call__(self, text: str) -> str: ...
    def type(self, dtype: DType) -> str: ...
    def const(self, bits: int, dtype: DType) -> str: ...


def registers(at: Place, dtype: DType, text: str, register: int) -> list[str]:
    """A value cut into (or made up to) whole registers, once."""
    if at.lanes == register:
        return [text]
    key = ("registers", text, dtype, at.lanes)
    found = at.b.tables[at.level].get(key)
    if found is None:
        if at.lanes == 1:
            found = [at(f"insertelement {vector_text(type_text(dtype, 1), register)} poison, {type_text(dtype, 1)} {text}, i64 0")]
        else:
            orders = [[start + i if start + i < at.lanes else -1 for i in range(register)] for start in range(0, at.lanes, register)]
            found = [at(f"shufflevector {at.type(dtype)} {text}, {at.type(dtype)} poison, <{register} x i32> <"
                        + ", ".join(f"i32 {i}" if i >= 0 else "i32 poison" for i in order) + ">") for order in orders]
        at.b.tables[at.level][key] = found
    return found


def joined(at: Place, scalar: str, parts: list[str], lanes: int) -> str:
    """Registers put together again, or cut down to the lanes that there are."""
    while len(parts) > 1:
        half, order = vector_text(scalar, lanes), ", ".join([f"i32 {i}" for i in range(2 * lanes)])
        parts = [at(f"shufflevector {half} {a}, {half} {b}, <{2 * lanes} x i32> <{order}>") for a, b in zip(parts[::2], parts[1::2])]
        lanes *= 2
    if lanes == at.lanes:
        return parts[0]
    whole = vector_text(scalar, lanes)
    if at.lanes == 1:
        return at(f"extractelement {whole} {parts[0]}, i64 0")
    return at(f"shufflevector {whole} {parts[0]}, {whole} poison, <{at.lanes} x i32> <{', '.join([f'i32 {i}' for i in range(at.lanes)])}>")


def ranged(at: Place, dtype: DType, register: int, x: str, y: str, larger: bool) -> str:
    """The larger or smaller numbers of two registers: zeros are ordered by sign, and numbers preferred to NaN."""
    rounding = ", i32 4" if register * dtype.bits == 512 else ""  # the current mode, which only this width asks for
    return _masked(at, f"range.{'ps' if dtype is dt.f32 else 'pd'}", dtype, register, f"{x}, {{}} {y}, i32 {5 if larger else 4}", rounding, ", i32")


def scaled(at: Place, x: str, n: str) -> str:
    """x * 2^floor(n), of f32."""
    register = max(4, min(at.lanes, 16))
    parts = [_masked(at, "scalef.ps", dt.f32, register, f"{a}, {{}} {b}", ", i32 4" if register == 16 else "", "")
             for a, b in zip(registers(at, dt.f32, x, register), registers(at, dt.f32, n, register))]
    return joined(at, "float", parts, register)


def _masked(at: Place, name: str, dtype: DType, register: int, operands: str, rounding: str, immediate: str) -> str:
    """Call an instruction of AVX-512 on two registers, all lanes of them."""
    one, mask, full = vector_text(type_text(dtype, 1), register), f"i{max(8, register)}", f"llvm.x86.avx512.mask.{name}.{register * dtype.bits}"
    at.b.declare(full, one, f"{one}, {one}{immediate}, {one}, {mask}{rounding[:5]}")
    return at(f"call {one} @{full}({one} {operands.format(one)}, {one} zeroinitializer, {mask} -1{rounding})")


def table(at: Place, dtype: DType, index: Value, *entries: Value) -> str:
    """A table of constants: permutes of registers that hold it where there are some, else loads from memory, an element a lane."""
    register, scalar = 512 // dtype.bits, type_text(dtype, 1)
    if not (at.b.target.avx512 and dtype is dt.f32 and len(entries) == 2 * register):
        return _in_memory(at, scalar, index, entries)
    type_, name = vector_text(scalar, register), "llvm.x86.avx512.vpermi2var.ps.512"
    at.b.declare(name, type_, f"{type_}, <{register} x i32>, {type_}")
    data, _ = _data(at, scalar, entries)
    low, high = (at.b.once((data, half), at.level, f"load {type_}, ptr getelementptr (i8, ptr {data}, i64 {64 * half}), align 64") for half in (0, 1))
    parts = []
    for part in registers(at, dt.i32, index.text, register):
        parts.append(at(f"call {type_} @{name}({type_} {low}, <{register} x i32> {part}, {type_} {high})"))
    return joined(at, scalar, parts, register)


def _data(at: Place, scalar: str, entries: Sequence[Value]) -> tuple[str, str]:
    """The name of the array that holds a table, and its type."""
    values = ", ".join([f"{scalar} {constant_text(e.const, e.dtype)}" for e in entries])
    name, whole = f"@table.{zlib.crc32(values.encode()):08x}.{len(entries)}", f"[{len(entries)} x {scalar}]"
    at.b.declares[name] = f"{name} = private unnamed_addr constant {whole} [{values}], align 64"
    return name, whole


def _in_memory(at: Place, scalar: str, index: Value, entries: Sequence[Value]) -> str:
    dtype = entries[0].dtype
    name, whole = _data(at, scalar, entries)
    inside = at(f"and {at.type(dt.i32)} {index.text}, {at.const(len(entries) - 1, dt.i32)}")
    text = "poison"
    for i in range(at.lanes):
        one = at(f"extractelement {at.type(dt.i32)} {inside}, i64 {i}") if at.lanes > 1 else inside
        loaded = at(f"load {scalar}, ptr {at(f'getelementptr {whole}, ptr {name}, i64 0, i32 {one}')}, align {dtype.itemsize}")
        if at.lanes == 1:
            return loaded
        text = at(f"insertelement {at.type(dtype)} {text}, {scalar} {loaded}, i64 {i}")
    return text
