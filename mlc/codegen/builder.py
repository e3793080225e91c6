"""Building one LLVM function as text: values, types, constants, value numbering, and the nest of open loops.

Code is appended to a list of lines per open loop level. A value computed only from things of level L is written at the
end of level L's list, which lies in front of the loop at level L+1: that is how invariant code is hoisted. Every level
has a table of what it already computed; as no code of a level is jumped over, whatever the table holds dominates what follows.
A branch is a level, too: what does not vary in it is computed in front of the choice.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

from mlc.codegen.target import Target
from mlc.core import dtype as dt
from mlc.core.dtype import DType

_SCALAR = {"bool": "i1", "f32": "float", "f64": "double", "f16": "i16", "bf16": "i16"}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


@functools.cache
def type_text(dtype: DType, lanes: int) -> str:
    """The type of a value in registers: bool is i1, the bits of f16/bf16 are i16."""
    return vector_text(_SCALAR.get(dtype.name) or f"i{dtype.bits}", lanes)


@functools.cache
def memory_text(dtype: DType, lanes: int) -> str:
    """The type of a value in memory: bool is i8."""
    return vector_text("i8" if dtype is dt.bool_ else type_text(dtype, 1), lanes)


@functools.cache
def vector_text(scalar: str, lanes: int) -> str:
    """`lanes` of a scalar type; one lane is the scalar itself."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@functools.cache
def _suffix(scalar: str, lanes: int) -> str:
    name = _SUFFIX.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


@functools.lru_cache(maxsize=8192)
def constant_text(bits: int, dtype: DType) -> str:
    """A scalar constant from what `Expr.attr` holds: the bit pattern of a float, the integer otherwise."""
    if dtype is dt.bool_:
        return "true" if bits else "false"
    if dtype is dt.f64:
        return f"0x{bits:016X}"
    if dtype is not dt.f32:
        return str(bits)
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:  # LLVM writes floats as doubles; Python would quiet a NaN on the way
        return f"0x{sign << 63 | 0x7FF << 52 | mantissa << 29:016X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', struct.unpack('<f', struct.pack('<I', bits))[0]))[0]:016X}"


@functools.lru_cache(maxsize=8192)
def splat_text(bits: int, dtype: DType, lanes: int) -> str:
    """A constant in every lane."""
    text = constant_text(bits, dtype)
    return text if lanes == 1 else f"splat ({type_text(dtype, 1)} {text})"


class Value:
    """An SSA value or constant. `level`: the depth of the loop it is computed in.

    f16/bf16 have up to three forms, made when first asked for: `text` (the bits, i16), `wide` (the same number as an f32
    Value) and `rounded` (bf16 only: an i32 whose upper half is the bits). `const` is a constant's `Expr.attr`. `minus` is the
    negative number, if that was there first.
    """

    __slots__ = ("const", "dtype", "lanes", "level", "minus", "rounded", "text", "wide")

    def __init__(self, text: str, dtype: DType, lanes: int, level: int, const: int | None = None,
                 wide: Value | None = None, rounded: str = ""):
        self.text, self.dtype, self.lanes, self.level = text, dtype, lanes, level
        self.const, self.wide, self.rounded = const, wide, rounded
        self.minus: Value | None = None


class Phi:
    """A loop-carried value: its first value, its SSA name, and (set when the loop closes) its next value."""

    __slots__ = ("first", "following", "name", "type")

    def __init__(self, type_: str, name: str, first: str):
        self.type, self.name, self.first, self.following = type_, name, first, ""


class Loop:
    """An open loop: labels, its counter, and where its phis will be written."""

    __slots__ = ("before", "counter", "head", "label", "limit", "step")


class Builder:
    """The text of one function body. `declares` collects the intrinsics that the module must declare."""

    def __init__(self, target: Target, declares: dict[str, str]):
        self.target = target
        self.declares = declares
        self.block = "entry"
        self.serial = 0
        first: list[str] = []
        self._chunks: list[list[str]] = [first]
        self.lines: list[list[str]] = [first]
        self.tables: list[dict] = [{}]
        self.level = 0
        self._constants: dict[tuple, Value] = {}

    def text(self) -> str:
        """The body so far."""
        return "\n".join(line for chunk in self._chunks for line in chunk)

    # ------------------------------------------------------------------ values
    def name(self) -> str:
        """A fresh SSA name."""
        self.serial += 1
        return f"%v{self.serial}"

    def emit(self, level: int, text: str) -> str:
        """Write an instruction at the end of a level's code; the name of its result."""
        self.serial += 1
        name = f"%v{self.serial}"
        self.lines[level].append(f"  {name} = {text}")
        return name

    def effect(self, text: str) -> None:
        """Write an instruction without a result, here."""
        self.lines[-1].append("  " + text)

    def once(self, key: tuple, level: int, text: str) -> str:
        """`emit`, unless the same key was emitted before."""
        table = self.tables[level]
        name = table.get(key)
        if name is None:
            name = table[key] = self.emit(level, text)
        return name

    def constant(self, bits: int, dtype: DType, lanes: int = 1) -> Value:
        """A constant, one lane or splat; equal constants are one Value."""
        key = (bits, dtype, lanes)
        value = self._constants.get(key)
        if value is None:
            if dtype.is_half:
                number = bits - 65536 if bits >= 32768 else bits
                value = Value(splat_text(number, dt.i16, lanes), dtype, lanes, 0, bits, wide=self.constant(_widen(bits, dtype), dt.f32, lanes))
            else:
                value = Value(splat_text(bits, dtype, lanes), dtype, lanes, 0, bits)
            self._constants[key] = value
        return value

    def integer(self, number: int) -> Value:
        """An i64 constant."""
        return self.constant(number, dt.i64)

    def declare(self, name: str, result: str, arguments: str) -> str:
        """Note that a function is used; its name."""
        if name not in self.declares:
            self.declares[name] = f"declare {result} @{name}({arguments})"
        return name

    def intrinsic(self, level: int, name: str, scalar: str, lanes: int, operands: tuple[str, ...], extra: str = "") -> str:
        """Call `llvm.<name>` overloaded on one type; `extra` is an i1 flag argument."""
        type_ = vector_text(scalar, lanes)
        full = f"llvm.{name}.{_suffix(scalar, lanes)}"
        if full not in self.declares:
            self.declare(full, type_, ", ".join([type_] * len(operands)) + (", i1" if extra else ""))
        given = ", ".join([f"{type_} {operand}" for operand in operands])
        return self.emit(level, f"call {type_} @{full}({given}{', i1 ' + extra if extra else ''})")

    def begin(self, label: str) -> None:
        """Go on here in a new block."""
        self.block = label
        self.lines[-1].append(f"{label}:")

    def either(self, condition: str, type_: str, usual: Callable[[], str], other: Callable[[], str]) -> str:
        """A value computed here in one of two ways, which only emit: nothing behind may use what they compute on the way."""
        self.serial += 1
        serial, found = self.serial, []
        self.effect(f"br i1 {condition}, label %usual{serial}, label %other{serial}, !prof !{{!\"branch_weights\", i32 99, i32 1}}")
        for label, way in (("usual", usual), ("other", other)):
            self.begin(f"{label}{serial}")
            found.append(f"[ {way()}, %{self.block} ]")
            self.effect(f"br label %joined{serial}")
        self.begin(f"joined{serial}")
        return self.emit(self.level, f"phi {type_} {found[0]}, {found[1]}")

    # ------------------------------------------------------------------ levels
    def _enter(self, label: str, body: list[str]) -> None:
        """Go one level in: what follows is emitted into `body`, the block `label`."""
        self.lines.append(body)
        self.tables.append({})
        self.level += 1
        self.block = label

    def _leave(self) -> None:
        """Forget the innermost level."""
        self.lines.pop()
        self.tables.pop()
        self.level -= 1

    def _go_on_at(self, label: str) -> None:
        """What follows at this level is emitted into the block `label`, behind all that was emitted so far."""
        after = [f"{label}:"]
        self._chunks.append(after)
        self.lines[-1] = after
        self.block = label

    # ------------------------------------------------------------------ choices
    def choose(self, condition: str, ways: Sequence[Callable[[], None]]) -> None:
        """Code of two ways, the first taken if the i1 is true, one level further in; afterwards it goes on at the outer level."""
        self.serial += 1
        labels = [f"{word}{self.serial}" for word in ("then", "else")]
        done = f"joined{self.serial}"
        # As with loops, the branch is no part of the outer level's list.
        self._chunks.append([f"  br i1 {condition}, label %{labels[0]}, label %{labels[1]}"])
        for label, way in zip(labels, ways):
            body = [f"{label}:"]
            self._chunks.append(body)
            self._enter(label, body)
            way()
            self.effect(f"br label %{done}")
            self._leave()
        self._go_on_at(done)

    # ------------------------------------------------------------------ loops
    def open_loop(self, phis: list[Phi], first: str, limit: str, step: int) -> Loop:
        """Start a loop whose i64 counter runs first, first+step, .. while below `limit`; its body runs at least once."""
        loop = Loop()
        self.serial += 1
        loop.label, loop.before, loop.limit, loop.step = f"loop{self.serial}", self.block, limit, step
        loop.counter = Phi("i64", f"%i{self.serial}", first)
        # The branch into the loop is no part of the outer level's list, which hoisted code may still be added to.
        head = [f"  br label %{loop.label}"]
        body: list[str] = []
        self._chunks += (head, body)
        loop.head = (head, [loop.counter, *phis])
        self._enter(loop.label, body)
        return loop

    def close_loop(self, loop: Loop) -> None:
        """End the innermost loop; the phis' `following` must be set. Code goes on at the outer level, behind the loop."""
        counter = loop.counter
        counter.following = self.emit(self.level, f"add nuw nsw i64 {counter.name}, {loop.step}")
        again = self.emit(self.level, f"icmp ult i64 {counter.following}, {loop.limit}")
        done = f"done{loop.label[4:]}"
        self.effect(f"br i1 {again}, label %{loop.label}, label %{done}")
        head, phis = loop.head
        head.append(f"{loop.label}:")
        for phi in phis:
            head.append(f"  {phi.name} = phi {phi.type} [ {phi.first}, %{loop.before} ], [ {phi.following}, %{self.block} ]")
        self._leave()
        self._go_on_at(done)


@functools.lru_cache(maxsize=1024)
def _widen(bits: int, dtype: DType) -> int:
    """The f32 bit pattern of a half's bit pattern."""
    if dtype is dt.bf16:
        return bits << 16
    sign, exponent, mantissa = bits >> 15 << 31, bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return sign | 0x7F800000 | mantissa << 13
    value = (mantissa / 1024 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 15)
    return sign | struct.unpack("<I", struct.pack("<f", value))[0]
