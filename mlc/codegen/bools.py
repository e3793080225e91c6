"""Vectors of bool where code branches or shuffles: bytes, on targets that have no registers of single bits.

Inside a block LLVM keeps <32 x i1> as the bytes that compares leave. Across blocks, and where lanes move, it takes them apart, lane by lane.
"""

from __future__ import annotations

from mlc.codegen.builder import Builder, Value, type_text
from mlc.codegen.target import Target
from mlc.core import dtype as dt
from mlc.core.dtype import DType


def are_bytes(target: Target, dtype: DType, lanes: int) -> bool:
    """Whether a variable travels as bytes."""
    return dtype is dt.bool_ and lanes > 1 and not target.avx512


def to_bytes(b: Builder, value: Value) -> Value:
    """A byte a lane: 0 or -1."""
    key = ("bytes", value)
    table = b.tables[value.level]
    if key not in table:
        types = type_text(dt.bool_, value.lanes), type_text(dt.i8, value.lanes)
        table[key] = Value(b.emit(value.level, f"sext {types[0]} {value.text} to {types[1]}"), dt.i8, value.lanes, value.level)
    return table[key]


def from_bytes(b: Builder, value: Value) -> Value:
    """The bools of which these are the bytes."""
    type_ = type_text(dt.i8, value.lanes)
    return Value(b.emit(value.level, f"icmp slt {type_} {value.text}, zeroinitializer"), dt.bool_, value.lanes, value.level)
