"""Elementwise rewrites that give equal bits for every input: NaN, infinities, -0.0 and subnormals included.

What is missing is missing on purpose: x + 0.0 (-0.0 + 0.0 is 0.0), x * 0 and x - x for floats (NaN, inf), x / x, exp(log x).
"""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dtype import DType
from mlc.core.literal import Literal
from mlc.graph.graph import Node
from mlc.ops.base import IDEMPOTENT, INVOLUTION, REGISTRY
from mlc.passes.pattern import BITWISE, RESULT, Attr, Match, RuleSet, Splat, Term, Var, lifted, term

RULES = RuleSet()
rewrite = RULES.rewrite

x, y, z, c = Var("x"), Var("y"), Var("z"), Var("c")
add, sub, mul, div, rem, neg, absolute = map(term, ("add", "sub", "mul", "div", "rem", "neg", "abs"))
maximum, minimum, clamp, select = map(term, ("max", "min", "clamp", "select"))
and_, or_, xor, not_ = map(term, ("and", "or", "xor", "not"))
eq, ne, lt, le, gt, ge = map(term, ("eq", "ne", "lt", "le", "gt", "ge"))
convert, integer_pow, power = map(term, ("convert_element_type", "integer_pow", "pow"))
ZERO, ONE, NEGATIVE_ZERO, ONES, LOWEST, HIGHEST = Splat(0), Splat(1), Splat(-0.0), Splat("ones"), Splat("lowest"), Splat("highest")
TRUE, FALSE = Splat(True), Splat(False)


@lifted
def is_int(node: Node) -> bool:
    """Of an integer dtype."""
    return node.type.dtype.is_int


@lifted
def is_float(node: Node) -> bool:
    """Of a float dtype."""
    return node.type.dtype.is_float


@lifted
def is_exact(node: Node) -> bool:
    """Integers and bools: no NaN, no signed zero, no rounding."""
    return not node.type.dtype.is_float


@lifted
def is_bool(node: Node) -> bool:
    """Of dtype bool."""
    return node.type.dtype is dt.bool_


@lifted
def is_unsigned(node: Node) -> bool:
    """Of an unsigned integer dtype."""
    return node.type.dtype.kind == "u"


@lifted
def is_signed(node: Node) -> bool:
    """Of a signed integer or float dtype."""
    return node.type.dtype.kind in "if"


# --------------------------------------------------------------------------- what the ops' own facts say
for _op in REGISTRY.values():
    if _op.arity == 1 and not _op.attrs and _op.has(INVOLUTION):
        rewrite(f"{_op.name}-of-{_op.name}", exact=BITWISE, match=term(_op.name)(term(_op.name)(x)), to=x, why="an involution undoes itself")
    if _op.arity == 1 and not _op.attrs and _op.has(IDEMPOTENT):
        rewrite(f"{_op.name}-of-{_op.name}", exact=BITWISE, match=term(_op.name)(term(_op.name)(x)), to=term(_op.name)(x),
                why="idempotent: once is enough")

# --------------------------------------------------------------------------- neutral elements
rewrite("add-zero", exact=BITWISE, match=add(x, ZERO), to=x, when=is_int(x), why="x + 0 is x for integers; floats: see add-negative-zero")
rewrite("add-negative-zero", exact=BITWISE, match=add(x, NEGATIVE_ZERO), to=x, when=is_float(x), why="x + -0.0 is x for every float, -0.0 too")
rewrite("sub-zero", exact=BITWISE, match=sub(x, ZERO), to=x, why="x - 0.0 is x + -0.0")
rewrite("mul-one", exact=BITWISE, match=mul(x, ONE), to=x, why="exact")
rewrite("div-one", exact=BITWISE, match=div(x, ONE), to=x, why="exact")
rewrite("mul-minus-one", exact=BITWISE, match=mul(x, Splat(-1)), to=neg(x), why="only the sign changes; integers wrap alike")
rewrite("div-minus-one", exact=BITWISE, match=div(x, Splat(-1)), to=neg(x), why="only the sign changes; INT_MIN / -1 wraps as -INT_MIN does")
rewrite("max-lowest", exact=BITWISE, match=maximum(x, LOWEST), to=x, why="NaN propagates anyhow, and -inf is below everything else")
rewrite("min-highest", exact=BITWISE, match=minimum(x, HIGHEST), to=x, why="NaN propagates anyhow, and inf is above everything else")
rewrite("and-ones", exact=BITWISE, match=and_(x, ONES), to=x, why="all bits kept")
rewrite("or-zero", exact=BITWISE, match=or_(x, ZERO), to=x, why="no bit set")
rewrite("xor-zero", exact=BITWISE, match=xor(x, ZERO), to=x, why="no bit flipped")
rewrite("xor-ones", exact=BITWISE, match=xor(x, ONES), to=not_(x), why="all bits flipped")
for _shift in ("shift_left", "shift_right_arithmetic", "shift_right_logical"):
    rewrite(f"{_shift}-by-zero", exact=BITWISE, match=term(_shift)(x, ZERO), to=x, why="nothing moves")

# --------------------------------------------------------------------------- absorbing elements (never for floats: NaN)
rewrite("mul-zero", exact=BITWISE, match=mul(x, ZERO), to=ZERO, when=is_int(x), why="integers only: NaN * 0 is NaN")
rewrite("and-zero", exact=BITWISE, match=and_(x, ZERO), to=ZERO, why="no bit survives")
rewrite("or-ones", exact=BITWISE, match=or_(x, ONES), to=ONES, why="every bit is set")
rewrite("max-highest", exact=BITWISE, match=maximum(x, HIGHEST), to=HIGHEST, when=is_exact(x), why="integers only: max(NaN, inf) is NaN")
rewrite("min-lowest", exact=BITWISE, match=minimum(x, LOWEST), to=LOWEST, when=is_exact(x), why="integers only: min(NaN, -inf) is NaN")
rewrite("rem-one", exact=BITWISE, match=rem(x, ONE), to=ZERO, when=is_int(x), why="integers only: rem(inf, 1.0) is NaN")
rewrite("rem-minus-one", exact=BITWISE, match=rem(x, Splat(-1)), to=ZERO, when=is_int(x), why="INT_MIN % -1 is 0, too")

# --------------------------------------------------------------------------- twice the same operand
for _op, _name in ((maximum, "max"), (minimum, "min"), (and_, "and"), (or_, "or")):
    rewrite(f"{_name}-of-same", exact=BITWISE, match=_op(x, x), to=x, why="idempotent")
    rewrite(f"{_name}-absorbs", exact=BITWISE, match=_op(_op(x, y), y), to=_op(x, y), why="a semilattice, NaN and signed zeros included")
rewrite("xor-of-same", exact=BITWISE, match=xor(x, x), to=ZERO, why="every bit flips itself")
rewrite("sub-of-same", exact=BITWISE, match=sub(x, x), to=ZERO, when=is_int(x), why="integers only: inf - inf is NaN")
rewrite("select-of-same", exact=BITWISE, match=select(c, x, x), to=x, why="either way x")
for _op, _name, _result in ((eq, "eq", TRUE), (ne, "ne", FALSE), (lt, "lt", FALSE), (le, "le", TRUE), (gt, "gt", FALSE), (ge, "ge", TRUE)):
    rewrite(f"{_name}-of-same", exact=BITWISE, match=_op(x, x), to=_result, when=is_exact(x), why="integers and bools only: NaN is unlike itself")
rewrite("clamp-of-clamp", exact=BITWISE, match=clamp(x, clamp(x, y, z), z), to=clamp(x, y, z), why="idempotent, even with low > high or NaN bounds")
rewrite("clamp-open", exact=BITWISE, match=clamp(LOWEST, x, HIGHEST), to=x, why="bounds that hold nothing back")

# --------------------------------------------------------------------------- signs
rewrite("add-negated", exact=BITWISE, match=add(x, neg(y)), to=sub(x, y), why="subtraction is addition of the negation, in IEEE and modulo 2^n")
rewrite("sub-negated", exact=BITWISE, match=sub(x, neg(y)), to=add(x, y), why="subtraction is addition of the negation")
rewrite("mul-negated-twice", exact=BITWISE, match=mul(neg(x), neg(y)), to=mul(x, y), why="signs cancel, in IEEE and modulo 2^n")
rewrite("div-negated-twice", exact=BITWISE, match=div(neg(x), neg(y)), to=div(x, y), when=is_float(x), why="floats only: -INT_MIN is INT_MIN")
rewrite("abs-negated", exact=BITWISE, match=absolute(neg(x)), to=absolute(x), when=is_signed(x), why="the sign is dropped anyhow")
rewrite("abs-unsigned", exact=BITWISE, match=absolute(x), to=x, when=is_unsigned(x), why="nothing is below zero")
rewrite("sub-swapped", exact=BITWISE, match=neg(sub(x, y)), to=sub(y, x), when=is_int(x), why="integers only: -(1.0 - 1.0) is -0.0")

# --------------------------------------------------------------------------- select and truth values
rewrite("select-true", exact=BITWISE, match=select(TRUE, x, y), to=x, why="decided")
rewrite("select-false", exact=BITWISE, match=select(FALSE, x, y), to=y, why="decided")
rewrite("select-not", exact=BITWISE, match=select(not_(c), x, y), to=select(c, y, x), why="swapping the sides is free")
rewrite("select-of-bools", exact=BITWISE, match=select(c, TRUE, FALSE), to=c, when=is_bool(RESULT), why="the condition itself")
rewrite("select-of-swapped-bools", exact=BITWISE, match=select(c, FALSE, TRUE), to=not_(c), when=is_bool(RESULT), why="the condition negated")
rewrite("not-eq", exact=BITWISE, match=not_(eq(x, y)), to=ne(x, y), why="ne is true exactly where eq is false, NaN included")
rewrite("not-ne", exact=BITWISE, match=not_(ne(x, y)), to=eq(x, y), why="eq is true exactly where ne is false, NaN included")
for _name, _opposite in (("lt", ge), ("le", gt), ("gt", le), ("ge", lt)):
    rewrite(f"not-{_name}", exact=BITWISE, match=not_(term(_name)(x, y)), to=_opposite(x, y), when=is_exact(x), why="integers and bools only: NaN")
rewrite("eq-true", exact=BITWISE, match=eq(x, TRUE), to=x, when=is_bool(x), why="a bool equals true when it is true")
rewrite("ne-false", exact=BITWISE, match=ne(x, FALSE), to=x, when=is_bool(x), why="a bool differs from false when it is true")
rewrite("eq-false", exact=BITWISE, match=eq(x, FALSE), to=not_(x), when=is_bool(x), why="a bool equals false when it is not true")
rewrite("ne-true", exact=BITWISE, match=ne(x, TRUE), to=not_(x), when=is_bool(x), why="a bool differs from true when it is not true")
rewrite("nonzero-of-converted-bool", exact=BITWISE, match=ne(convert(x), ZERO), to=x, when=is_bool(x), why="false is 0, true is 1 in every dtype")
rewrite("zero-of-converted-bool", exact=BITWISE, match=eq(convert(x), ZERO), to=not_(x), when=is_bool(x), why="false is 0, true is 1 in every dtype")


# --------------------------------------------------------------------------- conversions
def embeds(source: DType, target: DType) -> bool:
    """Whether every value of `source` is a value of `target`, so that conversion there loses nothing."""
    if source is target or source is dt.bool_:
        return True
    if target is dt.bool_ or (source.is_float and not target.is_float):
        return False
    if source.is_float:
        return dt.MANTISSA[source] <= dt.MANTISSA[target] and dt.MAX_EXPONENT[source] <= dt.MAX_EXPONENT[target] \
            and dt.MIN_EXPONENT[source] - dt.MANTISSA[source] >= dt.MIN_EXPONENT[target] - dt.MANTISSA[target]
    magnitude = source.bits - (source.kind == "i")
    if target.is_float:
        return magnitude <= min(dt.MANTISSA[target], dt.MAX_EXPONENT[target])
    if source.kind == "i" and target.kind == "u":
        return False
    return magnitude <= target.bits - (target.kind == "i")


@lifted
def middle_loses_nothing(first: Node, last: Node, middle: Node) -> bool:
    """convert(convert(x: a -> b) -> c) is convert(x: a -> c)."""
    a, b, c = first.type.dtype, middle.type.dtype, last.type.dtype
    if a.is_int and b.is_int and c.is_int and c.bits <= b.bits:
        return True  # wrapping twice is wrapping once
    if not embeds(a, b):
        return False
    # Through a float an integer saturates where it would wrap: only equal if it does neither.
    return embeds(a, c) if b.is_float and c.is_int and not a.is_float else True


@lifted
def same_dtype(one: Node, other: Node) -> bool:
    """Equal dtypes."""
    return one.type.dtype is other.type.dtype


rewrite("convert-to-same", exact=BITWISE, match=convert(x), to=x, when=same_dtype(x, RESULT), why="the dtype it has already")


def _one_conversion(match: Match) -> Term | None:
    middle = match.nodes[match.root.inputs[0]]
    return convert(match["x"]) if middle_loses_nothing.now(match.node("x"), match.root, middle) else None


rewrite("convert-of-convert", exact=BITWISE, match=convert(convert(x)), to=_one_conversion,
        why="one conversion, where the middle dtype loses nothing (f32 -> bf16 -> f32 does)")


# --------------------------------------------------------------------------- cheaper forms of equal bits
def _reciprocal(match: Match) -> Term | None:
    """1 / c if that is exact: c is a power of two and 1/c neither overflows nor is rounded."""
    divisor = match.node("c")
    dtype = divisor.type.dtype
    if not (divisor.is_splat and dtype.is_float):
        return None
    value = float(divisor.attrs["value"].array)
    if value == 0 or not math.isfinite(value) or abs(math.frexp(value)[0]) != 0.5 or abs(value) < 2.0 ** -1000:
        return None
    with np.errstate(all="ignore"):
        inverse = np.array(1.0 / value, dtype.numpy)
    if float(inverse) * value != 1.0:
        return None
    return mul(match["x"], term("constant")(value=Literal(inverse), type=divisor.type))


rewrite("division-by-power-of-two", exact=BITWISE, match=div(x, c), to=_reciprocal, why="both round the same real number; other divisors differ")

n = Attr("n")
rewrite("power-of-zero", exact=BITWISE, match=integer_pow(x, y=0), to=ONE, why="1, even of NaN")
rewrite("power-of-one", exact=BITWISE, match=integer_pow(x, y=1), to=x, why="itself")
rewrite("power-of-two", exact=BITWISE, match=integer_pow(x, y=2), to=mul(x, x), why="what the op computes, with one rounding")


def _static_power(match: Match) -> Term | None:
    exponent = match.node("c")
    if not (exponent.is_splat and exponent.type.dtype.is_int) or exponent.attrs["value"].array < 0:
        return None
    return integer_pow(match["x"], y=int(exponent.attrs["value"].array))


rewrite("integer-power-by-constant", exact=BITWISE, match=power(x, c), to=_static_power, why="integers only: any order is exact modulo 2^n")
