"""f16 and bf16 in registers: widening to f32, rounding back once, and rounding of wider sources.

bf16 is rounded with integer arithmetic, because `vcvtneps2bf16` flushes subnormals. f16 uses the CPU's conversion where the target
has one; elsewhere LLVM would call library functions that may not exist, so it is integer arithmetic, too (after F. Giesen,
"float->half variants", https://gist.github.com/rygorous/2156668).
"""

from __future__ import annotations

from mlc.codegen.builder import Builder, Value, splat_text, type_text, vector_text
from mlc.core import dtype as dt
from mlc.core.dtype import DType


def bits(b: Builder, v: Value) -> str:
    """The i16 (vector) of a half."""
    if not v.text:
        lanes, level = v.lanes, v.level
        i16, i32 = vector_text("i16", lanes), vector_text("i32", lanes)
        if v.dtype is dt.f16:
            v.text = _narrow_f16(b, v.wide)
        else:
            rounded = v.rounded or b.emit(level, f"bitcast {type_text(dt.f32, lanes)} {v.wide.text} to {i32}")
            v.text = b.emit(level, f"trunc {i32} {_shift(b, level, 'lshr', i32, rounded, 16, lanes)} to {i16}")
    return v.text


def wide(b: Builder, v: Value) -> Value:
    """A half as an f32 Value."""
    if v.wide is None:
        lanes, level = v.lanes, v.level
        f32, i32 = type_text(dt.f32, lanes), vector_text("i32", lanes)
        if v.dtype is dt.f16:
            text = _widen_f16(b, v)
        elif v.rounded:
            upper = b.emit(level, f"and {i32} {v.rounded}, {_i32(-65536, lanes)}")
            text = b.emit(level, f"bitcast {i32} {upper} to {f32}")
        else:
            long = b.emit(level, f"zext {vector_text('i16', lanes)} {v.text} to {i32}")
            text = b.emit(level, f"bitcast {i32} {_shift(b, level, 'shl', i32, long, 16, lanes)} to {f32}")
        v.wide = Value(text, dt.f32, lanes, level)
    return v.wide


def exact(value: Value, dtype: DType) -> Value:
    """The half that an f32 Value already is, to the bit."""
    return Value("", dtype, value.lanes, value.level, wide=value)


def rounded(b: Builder, value: Value, dtype: DType) -> Value:
    """An f32 Value rounded to a half, to nearest even; NaN stays NaN."""
    lanes, level = value.lanes, value.level
    if dtype is dt.f16:
        return Value(_narrow_f16(b, value), dtype, lanes, level)
    f32, i32, i1 = type_text(dt.f32, lanes), vector_text("i32", lanes), vector_text("i1", lanes)
    raw = b.emit(level, f"bitcast {f32} {value.text} to {i32}")
    last = b.emit(level, f"and {i32} {_shift(b, level, 'lshr', i32, raw, 16, lanes)}, {_i32(1, lanes)}")
    biased = b.emit(level, f"add {i32} {raw}, {_i32(0x7FFF, lanes)}")
    nearest = b.emit(level, f"add {i32} {biased}, {last}")
    quiet = b.emit(level, f"or {i32} {raw}, {_i32(0x400000, lanes)}")
    nan = b.emit(level, f"fcmp uno {f32} {value.text}, {value.text}")
    return Value("", dtype, lanes, level, rounded=b.emit(level, f"select {i1} {nan}, {i32} {quiet}, {i32} {nearest}"))


def from_f64(b: Builder, value: Value, dtype: DType) -> Value:
    """An f64 Value rounded to a half once: to f32 by round-to-odd first, after which rounding again is harmless
    (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008)."""
    lanes, level = value.lanes, value.level
    f32, f64 = type_text(dt.f32, lanes), type_text(dt.f64, lanes)
    nearest = b.emit(level, f"fptrunc {f64} {value.text} to {f32}")
    back = b.intrinsic(level, "fabs", "double", lanes, (b.emit(level, f"fpext {f32} {nearest} to {f64}"),))
    size = b.intrinsic(level, "fabs", "double", lanes, (value.text,))
    larger = b.emit(level, f"fcmp ogt {f64} {size}, {back}")
    smaller = b.emit(level, f"fcmp olt {f64} {size}, {back}")
    return rounded(b, Value(_make_odd(b, level, nearest, "float", "i32", lanes, larger, smaller), dt.f32, lanes, level), dtype)


def from_int(b: Builder, value: Value, dtype: DType) -> Value:
    """An integer Value rounded to a half once."""
    lanes, level, source = value.lanes, value.level, value.dtype
    integer = type_text(source, lanes)
    signed = source.kind == "i"
    convert = "sitofp" if signed else "uitofp"
    if source.bits <= 16:
        return rounded(b, Value(b.emit(level, f"{convert} {integer} {value.text} to {type_text(dt.f32, lanes)}"), dt.f32, lanes, level), dtype)
    if dtype is dt.f16:
        # Everything from 65520 on is infinite, so clamping to 2^17 changes nothing, and f32 holds the rest exactly.
        limit = splat_text(1 << 17, source, lanes)
        text = b.intrinsic(level, "smin" if signed else "umin", f"i{source.bits}", lanes, (value.text, limit))
        if signed:
            text = b.intrinsic(level, "smax", f"i{source.bits}", lanes, (text, splat_text(-(1 << 17), source, lanes)))
        if source.bits == 64:
            text = b.emit(level, f"trunc {integer} {text} to {vector_text('i32', lanes)}")
        text = b.emit(level, f"sitofp {vector_text('i32', lanes)} {text} to {type_text(dt.f32, lanes)}")
        return rounded(b, Value(text, dt.f32, lanes, level), dtype)
    f64 = type_text(dt.f64, lanes)
    if source.bits == 32:
        return from_f64(b, Value(b.emit(level, f"{convert} {integer} {value.text} to {f64}"), dt.f64, lanes, level), dtype)
    return from_f64(b, Value(_odd_f64(b, value), dt.f64, lanes, level), dtype)


def _odd_f64(b: Builder, value: Value) -> str:
    """A 64-bit integer as f64, rounded to odd: the upper and lower halves are exact, their sum's error is too (Dekker)."""
    lanes, level, i64, f64 = value.lanes, value.level, vector_text("i64", value.lanes), type_text(dt.f64, value.lanes)
    i32, signed = vector_text("i32", lanes), value.dtype.kind == "i"
    top = b.emit(level, f"trunc {i64} {_shift(b, level, 'lshr', i64, value.text, 32, lanes)} to {i32}")
    high = b.emit(level, f"{'sitofp' if signed else 'uitofp'} {i32} {top} to {f64}")
    high = b.emit(level, f"fmul {f64} {high}, {splat_text(0x41F0000000000000, dt.f64, lanes)}")
    low = b.emit(level, f"uitofp {i32} {b.emit(level, f'trunc {i64} {value.text} to {i32}')} to {f64}")
    total = b.emit(level, f"fadd {f64} {high}, {low}")
    error = b.emit(level, f"fsub {f64} {low}, {b.emit(level, f'fsub {f64} {total}, {high}')}")
    negative = b.emit(level, f"fcmp olt {f64} {total}, zeroinitializer" if lanes > 1 else f"fcmp olt {f64} {total}, 0.0")
    outward = b.emit(level, f"select {vector_text('i1', lanes)} {negative}, {f64} {b.emit(level, f'fneg {f64} {error}')}, {f64} {error}")
    zero = "zeroinitializer" if lanes > 1 else "0.0"
    larger = b.emit(level, f"fcmp ogt {f64} {outward}, {zero}")
    smaller = b.emit(level, f"fcmp olt {f64} {outward}, {zero}")
    return _make_odd(b, level, total, "double", "i64", lanes, larger, smaller)


def _make_odd(b: Builder, level: int, nearest: str, scalar: str, integer: str, lanes: int, larger: str, smaller: str) -> str:
    """A float rounded to nearest, moved to its odd neighbour if its last bit is even and the exact number is larger or smaller in size."""
    type_, int_, i1 = vector_text(scalar, lanes), vector_text(integer, lanes), vector_text("i1", lanes)
    raw = b.emit(level, f"bitcast {type_} {nearest} to {int_}")
    # bits + larger - smaller, where the last bit is 0; a set last bit masks both.
    moved = b.emit(level, f"sext {i1} {smaller} to {int_}")
    moved = b.emit(level, f"add {int_} {moved}, {b.emit(level, f'zext {i1} {larger} to {int_}')}")
    dtype = dt.i32 if integer == "i32" else dt.i64
    odd = b.emit(level, f"and {int_} {raw}, {splat_text(1, dtype, lanes)}")
    even = b.emit(level, f"sub {int_} {odd}, {splat_text(1, dtype, lanes)}")
    result = b.emit(level, f"add {int_} {raw}, {b.emit(level, f'and {int_} {moved}, {even}')}")
    return b.emit(level, f"bitcast {int_} {result} to {type_}")


def _i32(number: int, lanes: int) -> str:
    return splat_text(number, dt.i32, lanes)


def _shift(b: Builder, level: int, op: str, type_: str, text: str, count: int, lanes: int) -> str:
    amount = str(count) if lanes == 1 else f"splat ({type_.rsplit(' ', 1)[1][:-1]} {count})"
    return b.emit(level, f"{op} {type_} {text}, {amount}")


def _narrow_f16(b: Builder, value: Value) -> str:
    lanes, level = value.lanes, value.level
    f32, i16 = type_text(dt.f32, lanes), vector_text("i16", lanes)
    if b.target.f16c:
        half = vector_text("half", lanes)
        return b.emit(level, f"bitcast {half} {b.emit(level, f'fptrunc {f32} {value.text} to {half}')} to {i16}")
    e = lambda text: b.emit(level, text)
    i32, i1 = vector_text("i32", lanes), vector_text("i1", lanes)
    raw = e(f"bitcast {f32} {value.text} to {i32}")
    size = e(f"and {i32} {raw}, {_i32(0x7FFFFFFF, lanes)}")
    # Subnormal halves: adding 0.5 aligns and rounds the mantissa.
    magic = splat_text(0x3F000000, dt.f32, lanes)
    small = e(f"fadd {f32} {e(f'bitcast {i32} {size} to {f32}')}, {magic}")
    small = e(f"sub {i32} {e(f'bitcast {f32} {small} to {i32}')}, {_i32(0x3F000000, lanes)}")
    last = e(f"and {i32} {_shift(b, level, 'lshr', i32, size, 13, lanes)}, {_i32(1, lanes)}")
    normal = e(f"add {i32} {size}, {_i32(((15 - 127) << 23) + 0xFFF, lanes)}")
    normal = _shift(b, level, "lshr", i32, e(f"add {i32} {normal}, {last}"), 13, lanes)
    result = e(f"select {i1} {e(f'icmp slt {i32} {size}, {_i32(113 << 23, lanes)}')}, {i32} {small}, {i32} {normal}")
    special = e(f"select {i1} {e(f'icmp sgt {i32} {size}, {_i32(0x7F800000, lanes)}')}, {i32} {_i32(0x7E00, lanes)}, {i32} {_i32(0x7C00, lanes)}")
    result = e(f"select {i1} {e(f'icmp sge {i32} {size}, {_i32(143 << 23, lanes)}')}, {i32} {special}, {i32} {result}")
    sign = e(f"and {i32} {_shift(b, level, 'lshr', i32, raw, 16, lanes)}, {_i32(0x8000, lanes)}")
    return e(f"trunc {i32} {e(f'or {i32} {result}, {sign}')} to {i16}")


def _widen_f16(b: Builder, v: Value) -> str:
    lanes, level = v.lanes, v.level
    f32, i16 = type_text(dt.f32, lanes), vector_text("i16", lanes)
    if b.target.f16c:
        half = vector_text("half", lanes)
        return b.emit(level, f"fpext {half} {b.emit(level, f'bitcast {i16} {v.text} to {half}')} to {f32}")
    e = lambda text: b.emit(level, text)
    i32, i1 = vector_text("i32", lanes), vector_text("i1", lanes)
    long = e(f"zext {i16} {v.text} to {i32}")
    body = _shift(b, level, "shl", i32, e(f"and {i32} {long}, {_i32(0x7FFF, lanes)}"), 13, lanes)
    rebiased = e(f"add {i32} {body}, {_i32((127 - 15) << 23, lanes)}")
    # Infinity and NaN get the largest exponent; subnormals are normalised by a subtraction.
    special = e(f"add {i32} {rebiased}, {_i32((128 - 16) << 23, lanes)}")
    above = e(f"add {i32} {rebiased}, {_i32(1 << 23, lanes)}")
    small = e(f"fsub {f32} {e(f'bitcast {i32} {above} to {f32}')}, {splat_text(113 << 23, dt.f32, lanes)}")
    small = e(f"bitcast {f32} {small} to {i32}")
    result = e(f"select {i1} {e(f'icmp uge {i32} {body}, {_i32(31 << 23, lanes)}')}, {i32} {special}, {i32} {rebiased}")
    result = e(f"select {i1} {e(f'icmp ult {i32} {body}, {_i32(1 << 23, lanes)}')}, {i32} {small}, {i32} {result}")
    sign = _shift(b, level, "shl", i32, e(f"and {i32} {long}, {_i32(0x8000, lanes)}"), 16, lanes)
    return e(f"bitcast {i32} {e(f'or {i32} {result}, {sign}')} to {f32}")
