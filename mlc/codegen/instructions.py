"""Every instruction of `mlc.core.expr` as LLVM IR, for one lane or many: total, and bit for bit what `mlc.core.scalar_eval` computes.

LLVM's poison never reaches a result: where an LLVM instruction is undefined for some operands, a select chooses another
value for exactly those, or the operands are replaced beforehand. Fast-math flags are never set.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from mlc.codegen import halves, quotient
from mlc.codegen.builder import Builder, Value, splat_text, type_text, vector_text
from mlc.codegen.registers import NAN, joined, ranged, registers, scaled, table
from mlc.core import dtype as dt
from mlc.core.dtype import DType


class At:
    """Where an instruction is written: a level, with a number of lanes. Calling it writes one LLVM instruction."""

    __slots__ = ("b", "lanes", "level", "lines")

    def __init__(self, b: Builder, lanes: int, level: int):
        self.b, self.lanes, self.level = b, lanes, level
        self.lines = b.lines[level]

    def __call__(self, text: str) -> str:
        b = self.b
        b.serial += 1
        name = f"%v{b.serial}"
        self.lines.append(f"  {name} = {text}")
        return name

    def type(self, dtype: DType) -> str:
        return type_text(dtype, self.lanes)

    def const(self, bits: int, dtype: DType) -> str:
        return splat_text(bits, dtype, self.lanes)

    def select(self, condition: str, dtype: DType, x: str, y: str) -> str:
        type_ = type_text(dtype, self.lanes)
        return self(f"select {vector_text('i1', self.lanes)} {condition}, {type_} {x}, {type_} {y}")

    def intrinsic(self, name: str, dtype: DType, *operands: str, extra: str = "") -> str:
        return self.b.intrinsic(self.level, name, type_text(dtype, 1), self.lanes, operands, extra)


def splat(b: Builder, v: Value, lanes: int) -> Value:
    """A scalar in every one of `lanes` lanes."""
    if v.lanes == lanes:
        return v
    if v.const is not None:
        return b.constant(v.const, v.dtype, lanes)
    key = ("splat", v, lanes)
    found = b.tables[v.level].get(key)
    if found is None:
        if v.dtype.is_half and (v.wide is not None or v.rounded):
            found = halves.exact(splat(b, halves.wide(b, v), lanes), v.dtype)
        else:
            scalar, vector = type_text(v.dtype, 1), type_text(v.dtype, lanes)
            first = b.emit(v.level, f"insertelement {vector} poison, {scalar} {v.text}, i64 0")
            text = b.emit(v.level, f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")
            found = Value(text, v.dtype, lanes, v.level)
        b.tables[v.level][key] = found
    return found


def instruction(b: Builder, op: str, dtype: DType, args: Sequence[Value]) -> Value:
    """The Value of one instruction (not a leaf) with result `dtype`; scalars are splat to the lanes of the others."""
    lanes, level = 1, 0
    for a in args:
        if a.lanes > lanes:
            lanes = a.lanes
        if a.level > level:
            level = a.level
    if op == "pow":  # a loop of its own, so it stands where the code goes on
        level = b.level
    key = (op, dtype, *args)
    table = b.tables[level]
    found = table.get(key)
    if found is not None:
        return found
    if op == "div" and quotient.applies(b, dtype, *args):
        found = table[key] = quotient.by_invariant(b, *args)
        return found
    if lanes > 1:
        args = [a if a.lanes == lanes or (op == "table" and a.const is not None) else splat(b, a, lanes) for a in args]
    at = At(b, lanes, level)
    source = args[-1].dtype
    if op in _MOVES:
        found = _MOVES[op](at, dtype, *args)
    elif source.is_half:
        found = _half(at, op, dtype, source, args)
    else:
        function = {"f": _FLOAT, "b": _BOOL}.get(source.kind, _INT)[op]
        found = Value(function(at, source, *args), dtype, lanes, level)
    table[key] = found
    return found


# Of halves, these instructions give halves again: nothing to round.
_EXACT = frozenset({"min", "max", "floor", "ceil", "rint", "trunc", "rem"})


def _half(at: At, op: str, dtype: DType, source: DType, args: Sequence[Value]) -> Value:
    wide = [halves.wide(at.b, a) for a in args]
    text = _FLOAT[op](at, dt.f32, *wide)
    if dtype is dt.bool_:
        return Value(text, dtype, at.lanes, at.level)
    value = Value(text, dt.f32, at.lanes, at.level)
    return halves.exact(value, dtype) if op in _EXACT else halves.rounded(at.b, value, dtype)


def _plain(form: str) -> Callable:
    """An LLVM instruction of two operands."""
    return lambda at, dtype, x, y: at(f"{form} {at.type(dtype)} {x.text}, {y.text}")


def _by_sign(signed: str, unsigned: str) -> Callable:
    return lambda at, dtype, x, y: at(f"{signed if dtype.kind == 'i' else unsigned} {at.type(dtype)} {x.text}, {y.text}")


# --------------------------------------------------------------------------- moves
def _neg(at: At, dtype: DType, x: Value) -> Value:
    if dtype.is_half:
        return _on_half(at, x, f"xor {vector_text('i16', at.lanes)} {{}}, {at.const(-32768, dt.i16)}", "fneg")
    text = f"fneg {at.type(dtype)} {x.text}" if dtype.is_float else f"sub {at.type(dtype)} {at.const(0, dtype)}, {x.text}"
    return Value(at(text), dtype, at.lanes, at.level)


def _abs(at: At, dtype: DType, x: Value) -> Value:
    if dtype.is_half:
        return _on_half(at, x, f"and {vector_text('i16', at.lanes)} {{}}, {at.const(32767, dt.i16)}", "abs")
    if dtype.is_float:
        return Value(at.intrinsic("fabs", dtype, x.text), dtype, at.lanes, at.level)
    if dtype.kind == "u":
        return x
    return Value(at.intrinsic("abs", dtype, x.text, extra="false"), dtype, at.lanes, at.level)


def _on_half(at: At, x: Value, on_bits: str, on_wide: str) -> Value:
    """A sign operation on whichever form of a half there is."""
    if x.wide is None and not x.rounded:
        return Value(at(on_bits.format(x.text)), x.dtype, at.lanes, at.level)
    wide = halves.wide(at.b, x)
    return halves.exact((_neg if on_wide == "fneg" else _abs)(at, dt.f32, wide), x.dtype)


def _select(at: At, dtype: DType, condition: Value, x: Value, y: Value) -> Value:
    if dtype.is_half:
        if (x.wide or x.rounded) and (y.wide or y.rounded):
            text = at.select(condition.text, dt.f32, halves.wide(at.b, x).text, halves.wide(at.b, y).text)
            return halves.exact(Value(text, dt.f32, at.lanes, at.level), dtype)
        return Value(at.select(condition.text, dtype, halves.bits(at.b, x), halves.bits(at.b, y)), dtype, at.lanes, at.level)
    return Value(at.select(condition.text, dtype, x.text, y.text), dtype, at.lanes, at.level)


def every_lane(b: Builder, v: Value) -> str:
    """Whether a bool holds in all lanes, as an i1."""
    if v.lanes == 1:
        return v.text
    frozen = b.emit(b.level, f"freeze <{v.lanes} x i1> {v.text}")  # lanes that are not in use may be poison
    return b.emit(b.level, f"icmp eq i{v.lanes} {b.emit(b.level, f'bitcast <{v.lanes} x i1> {frozen} to i{v.lanes}')}, -1")


def _bitcast(at: At, dtype: DType, x: Value) -> Value:
    text = halves.bits(at.b, x) if x.dtype.is_half else x.text
    source, result = at.type(x.dtype), at.type(dtype)
    return Value(text if source == result else at(f"bitcast {source} {text} to {result}"), dtype, at.lanes, at.level)


def _convert(at: At, dtype: DType, x: Value) -> Value:
    source = x.dtype
    if source.is_half:
        wide = halves.wide(at.b, x)
        return wide if dtype is dt.f32 else _convert(at, dtype, wide)
    if dtype.is_half:
        if source is dt.bool_:
            return halves.exact(Value(at(f"uitofp {at.type(source)} {x.text} to {at.type(dt.f32)}"), dt.f32, at.lanes, at.level), dtype)
        return {dt.f32: halves.rounded, dt.f64: halves.from_f64}.get(source, halves.from_int)(at.b, x, dtype)
    return Value(_convert_text(at, source, dtype, x.text), dtype, at.lanes, at.level)


def _convert_text(at: At, source: DType, dtype: DType, x: str) -> str:
    given, wanted = at.type(source), at.type(dtype)
    if dtype is dt.bool_:
        return at(f"fcmp une {given} {x}, {at.const(0, source)}" if source.is_float else f"icmp ne {given} {x}, {at.const(0, source)}")
    if source.is_float:
        if dtype.is_float:
            return at(f"{'fpext' if dtype.bits > source.bits else 'fptrunc'} {given} {x} to {wanted}")
        return _saturate(at, source, dtype, x)
    if dtype.is_float:
        return at(f"{'sitofp' if source.kind == 'i' else 'uitofp'} {given} {x} to {wanted}")
    if source is not dt.bool_ and dtype.bits == source.bits:
        return x
    if source is not dt.bool_ and dtype.bits < source.bits:
        return at(f"trunc {given} {x} to {wanted}")
    return at(f"{'sext' if source.kind == 'i' else 'zext'} {given} {x} to {wanted}")


def _float_bits(number: int, dtype: DType) -> int:
    """The bit pattern of a power of two, its negative, or a small integer."""
    return struct.unpack("<I", struct.pack("<f", number))[0] if dtype is dt.f32 else struct.unpack("<Q", struct.pack("<d", number))[0]


def _saturate(at: At, source: DType, dtype: DType, x: str) -> str:
    """Float to integer: truncated, clamped to the range, NaN is 0. Faster on x86 than what `llvm.fptosi.sat` becomes."""
    type_ = at.type(source)
    signed = dtype.kind == "i"
    # max(x, low) with x on the left of the compare gives `low` for NaN: right when low is 0.
    if signed:
        x = at.select(at(f"fcmp uno {type_} {x}, {x}"), source, at.const(0, source), x)
    low = at.const(_float_bits(dtype.min, source), source)
    x = at.select(at(f"fcmp ogt {type_} {x}, {low}"), source, x, low)
    if dtype.bits < dt.MANTISSA[source]:  # the largest integer is a float, too: clamp, then convert
        high = at.const(_float_bits(dtype.max, source), source)
        x = at.select(at(f"fcmp olt {type_} {x}, {high}"), source, x, high)
        middle = dtype if dtype.bits == 32 else dt.i32
        whole = at(f"{'fptosi' if middle.kind == 'i' else 'fptoui'} {type_} {x} to {at.type(middle)}")
        return whole if middle is dtype else at(f"trunc {at.type(middle)} {whole} to {at.type(dtype)}")
    whole = at(f"{'fptosi' if signed else 'fptoui'} {type_} {x} to {at.type(dtype)}")
    above = at(f"fcmp oge {type_} {x}, {at.const(_float_bits(dtype.max + 1, source), source)}")
    return at.select(above, dtype, at.const(dtype.max if signed else -1, dtype), whole)


# --------------------------------------------------------------------------- floats
def _pick(larger: bool) -> Callable:
    """Float min or max: NaN from either side, -0 below +0."""
    order, ties, sign_of_tie = ("ogt", "oge", 0) if larger else ("olt", "ole", 1)

    def emit(at: At, dtype: DType, x: Value, y: Value) -> str:
        if x.const is not None and y.const is None:
            x, y = y, x  # both NaN handling and order of zeros are symmetric
        if y.const is None:
            return _pick_bits(at, dtype, x.text, y.text, larger)
        bits, sign = y.const, 1 << (dtype.bits - 1)
        if bits & (sign - 1) > (0x7F800000 if dtype is dt.f32 else 0x7FF0000000000000):
            return y.text
        # constant > x ? constant : x is one instruction and keeps a NaN in x. Only the zero that wins ties needs >=.
        compare = ties if bits & (sign - 1) == 0 and bits >> (dtype.bits - 1) == sign_of_tie else order
        return at.select(at(f"fcmp {compare} {at.type(dtype)} {y.text}, {x.text}"), dtype, y.text, x.text)
    return emit


def _pick_bits(at: At, dtype: DType, x: str, y: str, larger: bool) -> str:
    """Both orders of the CPU's min or max, which give the two operands where these are equal or one is NaN. Equal operands
    differ at most in the sign of zero: "or" makes it -0, "and" makes it +0. "or" with a NaN is a NaN. `llvm.minimum` and
    `llvm.maximum` become longer chains, up to 7 times slower in a reduction."""
    type_, integer = at.type(dtype), vector_text(f"i{dtype.bits}", at.lanes)
    if at.b.target.avx512 and at.lanes * dtype.bits >= 128:
        return _pick_range(at, dtype, x, y, larger)
    order = "ogt" if larger else "olt"
    first = at.select(at(f"fcmp {order} {type_} {x}, {y}"), dtype, x, y)
    second = at.select(at(f"fcmp {order} {type_} {y}, {x}"), dtype, y, x)
    first, second = at(f"bitcast {type_} {first} to {integer}"), at(f"bitcast {type_} {second} to {integer}")
    merged = at(f"{'and' if larger else 'or'} {integer} {first}, {second}")
    merged = at(f"bitcast {integer} {merged} to {type_}")
    if not larger:
        return merged
    return at.select(at(f"fcmp uno {type_} {x}, {y}"), dtype, at.const(NAN[dtype], dtype), merged)


def _pick_range(at: At, dtype: DType, x: str, y: str, larger: bool) -> str:
    """What `vrangeps` picks, but NaN where either operand is one: it prefers numbers."""
    register = min(at.lanes, 512 // dtype.bits)
    parts = [ranged(at, dtype, register, a, b, larger) for a, b in zip(registers(at, dtype, x, register), registers(at, dtype, y, register))]
    found = joined(at, type_text(dtype, 1), parts, register)
    return at.select(at(f"fcmp uno {at.type(dtype)} {x}, {y}"), dtype, at.const(NAN[dtype], dtype), found)


def _fma(at: At, dtype: DType, x: Value, y: Value, z: Value) -> str:
    return at.intrinsic("fma", dtype, x.text, y.text, z.text)


def _scale(at: At, dtype: DType, x: Value, n: Value) -> str:
    """x * 2^floor(n) for an n that is no infinity, by which `vscalefps` makes NaNs numbers."""
    return scaled(at, x.text, n.text) if at.b.target.avx512 else _scale_far(at, dtype, x, n)


def _scale_far(at: At, dtype: DType, x: Value, n: Value) -> str:
    """x * 2^floor(n) as a product in f64, where the power is made of bits."""
    single, double, integer = at.type(dtype), at.type(dt.f64), at.type(dt.i64)

    def wide(text: str) -> str:
        return at(f"fpext {single} {text} to {double}")
    whole = _round("floor", "floor")(at, dtype, n)
    for order, limit in (("ogt", 400), ("olt", -400)):
        whole = at.select(at(f"fcmp {order} {single} {whole}, {at.const(_float_bits(limit, dtype), dtype)}"), dtype,
                          at.const(_float_bits(limit, dtype), dtype), whole)
    # The sum's low bits are the exponent field of the power.
    shifted = at(f"fadd {double} {wide(whole)}, {at.const(_float_bits(3 * 2**51 + 1023, dt.f64), dt.f64)}")
    shifted = at(f"bitcast {double} {shifted} to {integer}")
    shifted = at(f"shl {integer} {shifted}, {at.const(52, dt.i64)}")
    power = at(f"bitcast {integer} {shifted} to {double}")
    finite = at(f"fcmp olt {single} {at.intrinsic('fabs', dtype, n.text)}, {at.const(0x7F800000, dtype)}")
    special = at.select(at(f"fcmp olt {single} {n.text}, {at.const(0, dtype)}"), dtype, at.const(0, dtype), n.text)
    product = at(f"fmul {double} {wide(x.text)}, {at.select(finite, dt.f64, power, wide(special))}")
    return at(f"fptrunc {double} {product} to {single}")


def _call(name: str) -> Callable:
    return lambda at, dtype, x: at.intrinsic(name, dtype, x.text)


def _round(kind: str, name: str) -> Callable:
    """floor, ceil, rint and trunc; without SSE4.1 they would be library calls, so they are built from additions."""
    def emit(at: At, dtype: DType, x: Value) -> str:
        if at.b.target.sse41:
            return at.intrinsic(name, dtype, x.text)
        type_, one = at.type(dtype), at.const(_float_bits(1, dtype), dtype)
        size = at.intrinsic("fabs", dtype, x.text)
        # From 2^mantissa on, floats are integers; adding and taking away that number rounds smaller ones, half to even.
        large = at.const(_float_bits(1 << (dt.MANTISSA[dtype] - 1), dtype), dtype)
        start = size if kind in ("rint", "trunc") else x.text
        near = at(f"fsub {type_} {at(f'fadd {type_} {size}, {large}')}, {large}")
        if kind != "rint":
            near = near if kind == "trunc" else at.intrinsic("copysign", dtype, near, x.text)
            past = at(f"fcmp {'olt' if kind == 'ceil' else 'ogt'} {type_} {near}, {start}")
            step = at.select(past, dtype, one, at.const(0, dtype))
            near = at(f"{'fadd' if kind == 'ceil' else 'fsub'} {type_} {near}, {step}")
        near = at.intrinsic("copysign", dtype, near, x.text)
        return at.select(at(f"fcmp olt {type_} {size}, {large}"), dtype, near, x.text)
    return emit


def _compare(predicate: str) -> Callable:
    return lambda at, dtype, x, y: at(f"fcmp {predicate} {at.type(dtype)} {x.text}, {y.text}")


# --------------------------------------------------------------------------- integers
def _quotient(at: At, dtype: DType, x: Value, y: Value) -> tuple[str, str]:
    """Quotient, and divisor, where the divisor is replaced by 1 for x/0 and for INT_MIN / -1 (whose results then are x)."""
    type_ = at.type(dtype)
    if y.const is not None and y.const not in (0, -1):
        return at(f"{'sdiv' if dtype.kind == 'i' else 'udiv'} {type_} {x.text}, {y.text}"), y.text
    bad = at(f"icmp eq {type_} {y.text}, {at.const(0, dtype)}")
    if dtype.kind == "i":
        lowest = at(f"icmp eq {type_} {x.text}, {at.const(dtype.min, dtype)}")
        minus = at(f"icmp eq {type_} {y.text}, {at.const(-1, dtype)}")
        i1 = vector_text("i1", at.lanes)
        bad = at(f"or {i1} {bad}, {at(f'and {i1} {lowest}, {minus}')}")
    divisor = at.select(bad, dtype, at.const(1, dtype), y.text)
    if at.lanes == 1 or dtype.bits == 64:
        return at(f"{'sdiv' if dtype.kind == 'i' else 'udiv'} {type_} {x.text}, {divisor}"), divisor
    # There is no vector division. A float with more than twice the bits gives the exact quotient once truncated:
    # x / d lies further from the next integer than rounding can move it.
    float_ = dt.f64 if dtype.bits == 32 else dt.f32
    convert, back = ("sitofp", "fptosi") if dtype.kind == "i" else ("uitofp", "fptoui")
    wide = at.type(float_)
    ratio = at(f"fdiv {wide} {at(f'{convert} {type_} {x.text} to {wide}')}, {at(f'{convert} {type_} {divisor} to {wide}')}")
    if dtype.bits == 32:
        return at(f"{back} {wide} {ratio} to {type_}"), divisor
    i32 = vector_text("i32", at.lanes)
    return at(f"trunc {i32} {at(f'fptosi {wide} {ratio} to {i32}')} to {type_}"), divisor


def _div(at: At, dtype: DType, x: Value, y: Value) -> str:
    quotient, divisor = _quotient(at, dtype, x, y)
    if divisor == y.text:
        return quotient
    by_zero = at(f"icmp eq {at.type(dtype)} {y.text}, {at.const(0, dtype)}")
    return at.select(by_zero, dtype, at.const(-1, dtype), quotient)


def _rem(at: At, dtype: DType, x: Value, y: Value) -> str:
    type_ = at.type(dtype)
    quotient, divisor = _quotient(at, dtype, x, y)
    rest = at(f"sub {type_} {x.text}, {at(f'mul {type_} {quotient}, {divisor}')}")
    if divisor == y.text:
        return rest
    return at.select(at(f"icmp eq {type_} {y.text}, {at.const(0, dtype)}"), dtype, x.text, rest)


def _shift(op: str) -> Callable:
    """Shifts whose count, read unsigned, may pass the width: then 0, or for shr_arith all sign bits."""
    llvm = {"shl": "shl", "shr_arith": "ashr", "shr_logical": "lshr"}[op]

    def emit(at: At, dtype: DType, x: Value, count: Value) -> str:
        type_, width = at.type(dtype), dtype.bits
        if count.const is not None:
            amount = count.const & ((1 << width) - 1)
            if amount >= width and op != "shr_arith":
                return at.const(0, dtype)
            return at(f"{llvm} {type_} {x.text}, {at.const(min(amount, width - 1), dtype)}")
        if op == "shr_arith":
            amount = at.intrinsic("umin", dtype, count.text, at.const(width - 1, dtype))
            return at(f"ashr {type_} {x.text}, {amount}")
        inside = at(f"icmp ult {type_} {count.text}, {at.const(width, dtype)}")
        return at.select(inside, dtype, at(f"{llvm} {type_} {x.text}, {count.text}"), at.const(0, dtype))
    return emit


def _int_pick(name: str) -> Callable:
    return lambda at, dtype, x, y: at.intrinsic(("s" if dtype.kind == "i" else "u") + name, dtype, x.text, y.text)


def _power(at: At, dtype: DType, x: Value, n: Value) -> str:
    """Square and multiply, as often as the longest of the exponents has bits."""
    b, type_, one = at.b, at.type(dtype), at.const(1, dtype)
    times = at(f"freeze {type_} {n.text}")  # lanes that are not in use may be poison
    b.serial += 1
    serial, before = b.serial, b.block
    total, square, left, more = (f"%{name}{serial}" for name in ("total", "square", "left", "more"))
    b.effect(f"br label %power{serial}")
    b.begin(f"power{serial}")
    b.effect(f"{total} = phi {type_} [ {one}, %{before} ], [ {total}.next, %power{serial} ]")
    b.effect(f"{square} = phi {type_} [ {x.text}, %{before} ], [ {square}.next, %power{serial} ]")
    b.effect(f"{left} = phi {type_} [ {times}, %{before} ], [ {left}.next, %power{serial} ]")
    odd = at(f"icmp ne {type_} {at(f'and {type_} {left}, {one}')}, {at.const(0, dtype)}")
    b.effect(f"{total}.next = mul {type_} {total}, {at.select(odd, dtype, square, one)}")
    b.effect(f"{square}.next = mul {type_} {square}, {square}")
    b.effect(f"{left}.next = lshr {type_} {left}, {one}")
    b.effect(f"{more} = icmp ne {type_} {left}.next, {at.const(0, dtype)}")
    some = more if at.lanes == 1 else at(f"icmp ne i{at.lanes} {at(f'bitcast <{at.lanes} x i1> {more} to i{at.lanes}')}, 0")
    b.effect(f"br i1 {some}, label %power{serial}, label %powered{serial}")
    b.begin(f"powered{serial}")
    return f"{total}.next"


def _not(at: At, dtype: DType, x: Value) -> str:
    return at(f"xor {at.type(dtype)} {x.text}, {at.const(1 if dtype is dt.bool_ else -1, dtype)}")


_MOVES = {"neg": _neg, "abs": _abs, "select": _select, "mostly": _select, "bitcast": _bitcast, "convert": _convert}
_FLOAT = {
    "add": _plain("fadd"), "sub": _plain("fsub"), "mul": _plain("fmul"), "div": _plain("fdiv"), "rem": _plain("frem"),
    "min": _pick(False), "max": _pick(True), "fma": _fma, "scale": _scale, "scale_far": _scale_far, "table": table, "sqrt": _call("sqrt"),
    "floor": _round("floor", "floor"), "ceil": _round("ceil", "ceil"), "rint": _round("rint", "roundeven"), "trunc": _round("trunc", "trunc"),
    "eq": _compare("oeq"), "ne": _compare("une"), "lt": _compare("olt"), "le": _compare("ole"), "gt": _compare("ogt"), "ge": _compare("oge"),
}
_LOGIC = {"and": _plain("and"), "or": _plain("or"), "xor": _plain("xor"), "not": _not}
_INT_COMPARE = {"eq": _plain("icmp eq"), "ne": _plain("icmp ne")} | {
    name: _by_sign(f"icmp s{name}", f"icmp u{name}") for name in ("lt", "le", "gt", "ge")}
_INT = _LOGIC | _INT_COMPARE | {
    "add": _plain("add"), "sub": _plain("sub"), "mul": _plain("mul"), "div": _div, "rem": _rem,
    "min": _int_pick("min"), "max": _int_pick("max"),
    "shl": _shift("shl"), "shr_arith": _shift("shr_arith"), "shr_logical": _shift("shr_logical"), "pow": _power,
}
_BOOL = _LOGIC | _INT_COMPARE | {"min": _plain("and"), "max": _plain("or")}
