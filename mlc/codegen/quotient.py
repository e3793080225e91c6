"""A vector divided by what a loop does not change: three multiplications instead of a division, and every bit of its result.

A division of 16 f32 takes a divider ten cycles on some CPUs, as long as all of exp. With y = 1/b rounded, q = x * y is less than 1.5
units in the last place off, and one more step, q + (x - q b) * y, is off by less than 3 * 2^-24 units before it is rounded (P. Markstein,
"Computation of elementary functions on the IBM RISC System/6000 processor", 1990), as long as nothing overflows or becomes subnormal.
So it rounds to x/b unless that lies as close to the middle between two floats: of all divisors, these dividends have been listed and
tried (`tests/codegen/test_quotient.py`). Whether nothing overflows is seen from the exponents: of the divisor once, of the dividends by
two instructions each. Otherwise the vectors are divided.
"""

from __future__ import annotations

from mlc.codegen.builder import Builder, Value, constant_text, vector_text
from mlc.core import dtype as dt

# Divisors between 2^-30 and 2^30, and dividends between 2^-63 and 2^65: exponents whose two upper bits differ.
SMALLEST, LARGEST = 0x30800000, 0x4E800000
UPPER_BIT = 1 << 30


def applies(b: Builder, dtype: dt.DType, x: Value, y: Value) -> bool:
    """Whether x is a vector of f32 computed here, y a scalar of further outside, and the target has what it takes."""
    return dtype is dt.f32 and x.level == b.level > y.level and y.lanes == 1 and x.lanes % _lanes(b) == 0 and b.target.is_x86 and b.target.fma


def _lanes(b: Builder) -> int:
    """f32 in a register."""
    return b.target.vector_bits // dt.f32.bits


def by_invariant(b: Builder, x: Value, y: Value) -> Value:
    """x / y."""
    v, i = vector_text("float", x.lanes), vector_text("i32", x.lanes)
    wanted, *parts = _reciprocal(b, y)
    inverse, minus, divisor = (_splat(b, y.level, "float", text, x.lanes) for text in (*parts, y.text))
    bits = b.emit(b.level, f"bitcast {v} {x.text} to {i}")
    differ = b.emit(b.level, f"xor {i} {bits}, {b.emit(b.level, f'add {i} {bits}, {bits}')}")
    good = _all_set(b, differ, _splat(b, y.level, "i32", wanted, _lanes(b)), x.lanes)

    def multiplied() -> str:
        near = b.emit(b.level, f"fmul {v} {x.text}, {inverse}")
        rest = b.intrinsic(b.level, "fma", "float", x.lanes, (near, minus, x.text))
        return b.intrinsic(b.level, "fma", "float", x.lanes, (rest, inverse, near))
    return Value(b.either(good, v, multiplied, lambda: b.emit(b.level, f"fdiv {v} {x.text}, {divisor}")), dt.f32, x.lanes, b.level)


def _reciprocal(b: Builder, y: Value) -> tuple[str, str, str]:
    """Of a divisor, where it is computed: the bit that tells of a dividend whether it is in range, or none if the divisor is not; 1/y; -y."""
    key = ("reciprocal", y)
    found = b.tables[y.level].get(key)
    if found is None:
        def at(text: str) -> str:
            return b.emit(y.level, text)
        one = constant_text(0x3F800000, dt.f32)
        size = b.intrinsic(y.level, "fabs", "float", 1, (y.text,))
        large = at(f"fcmp oge float {size}, {constant_text(SMALLEST, dt.f32)}")
        fine = at(f"and i1 {large}, {at(f'fcmp ole float {size}, {constant_text(LARGEST, dt.f32)}')}")
        wanted = at(f"select i1 {fine}, i32 {UPPER_BIT}, i32 0")
        found = b.tables[y.level][key] = wanted, at(f"fdiv float {one}, {y.text}"), at(f"fneg float {y.text}")
    return found


def _splat(b: Builder, level: int, scalar: str, text: str, lanes: int) -> str:
    vector = vector_text(scalar, lanes)
    first = b.once(("first lane", text, lanes), level, f"insertelement {vector} poison, {scalar} {text}, i64 0")
    return b.once(("all lanes", text, lanes), level, f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")


def _all_set(b: Builder, text: str, wanted: str, lanes: int) -> str:
    """Whether a bit of the wanted ones is set in all lanes."""
    count = _lanes(b)
    whole, register, one = (vector_text("i32", n) for n in (lanes, count, 1))
    parts = []
    for start in range(0, lanes, count):
        order = ", ".join([f"{one} {start + n}" for n in range(count)])
        parts.append(b.emit(b.level, f"shufflevector {whole} {text}, {whole} poison, <{count} x i32> <{order}>"))
    while len(parts) > 1:
        parts = [b.emit(b.level, f"and {register} {parts[0]}, {parts[1]}"), *parts[2:]]
    inside = b.emit(b.level, f"and {register} {parts[0]}, {wanted}")
    lanes_set = b.emit(b.level, f"icmp ne {register} {inside}, zeroinitializer")
    return b.emit(b.level, f"icmp eq i{count} {b.emit(b.level, f'bitcast <{count} x i1> {lanes_set} to i{count}')}, -1")
