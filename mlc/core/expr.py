"""Scalar expressions: what an op does to ONE element, as an immutable, hash-consed DAG.

Every op's `scalar` field builds these; kernels are stages of them; codegen prints each as one LLVM value (a vector in
a vector loop). The instruction set is small and total: no instruction traps or yields poison, whatever its operands.

    const arg load index var                                  leaves
    add sub mul neg abs min max div rem                       floats and ints (ints wrap; div/rem guarded as in XLA)
    fma sqrt floor ceil rint trunc                            floats (rint is half-to-even)
    and or xor not shl shr_arith shr_logical                  ints and bool (shifts past the width are defined)
    pow                                                       ints: x^n modulo 2^bits; n is read unsigned
    eq ne lt le gt ge                                         -> bool, ordered; `ne` is true on NaN
    scale                                                     f32: x * 2^n, rounded once; n is rounded down
    table                                                     f32 and f64: an i32, then a power of two of constants; the i32's low bits choose
    select mostly                                             a bool chooses; `mostly` is a select whose third operand is seldom needed
    convert bitcast                                           convert saturates float -> int, NaN -> 0; to bool is x != 0

`min`/`max` propagate NaN and order -0 below +0. f16/bf16 results are rounded after every instruction.
The NumPy interpreter of these instructions is `mlc.core.scalar_eval`.
"""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlc.core import dtype as dt
from mlc.core.affine import Affine
from mlc.core.dtype import DType


class Expr:
    """One instruction: `op`, its `dtype`, operand expressions `args`, and a hashable `attr` (constants, loads, names)."""

    __slots__ = ("__weakref__", "args", "attr", "below", "dtype", "often", "op")

    op: str
    dtype: DType
    args: tuple[Expr, ...]
    attr: object
    # What `topological` finds below, without the node itself, which would keep itself alive; set when asked for.
    below: tuple[Expr, ...]
    often: tuple[Expr, ...]

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype} {self.attr if self.attr is not None else ''}>"

    # Operators, so that polynomials read as formulas. Python numbers take the dtype of the other side.
    def __add__(self, other): return binary("add", self, other)
    def __radd__(self, other): return binary("add", other, self)
    def __sub__(self, other): return binary("sub", self, other)
    def __rsub__(self, other): return binary("sub", other, self)
    def __mul__(self, other): return binary("mul", self, other)
    def __rmul__(self, other): return binary("mul", other, self)
    def __truediv__(self, other): return binary("div", self, other)
    def __rtruediv__(self, other): return binary("div", other, self)
    def __and__(self, other): return binary("and", self, other)
    def __or__(self, other): return binary("or", self, other)
    def __xor__(self, other): return binary("xor", self, other)
    def __neg__(self): return unary("neg", self)
    def __invert__(self): return unary("not", self)
    def __lt__(self, other): return binary("lt", self, other)
    def __le__(self, other): return binary("le", self, other)
    def __gt__(self, other): return binary("gt", self, other)
    def __ge__(self, other): return binary("ge", self, other)


class _Interned(weakref.ref):
    """A weak reference that knows its key."""

    __slots__ = ("key",)


# Hash-consing makes structural equality identity; weak values let a dropped kernel free its expressions. (`WeakValueDictionary`
# does the same in three times the time.)
_interned: dict[tuple, _Interned] = {}

COMPARES = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
UNARY = frozenset({"neg", "abs", "sqrt", "floor", "ceil", "rint", "trunc", "not"})
BINARY = frozenset({"add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor",
                    "shl", "shr_arith", "shr_logical", "pow"}) | COMPARES
LEAVES = frozenset({"const", "arg", "load", "index", "var"})


def make(op: str, dtype: DType, args: tuple[Expr, ...] = (), attr: object = None) -> Expr:
    """The one node with these fields."""
    key = (op, dtype, tuple(map(id, args)), attr)
    reference = _interned.get(key)
    found = reference() if reference is not None else None
    if found is None:
        found = Expr()
        found.op, found.dtype, found.args, found.attr = op, dtype, args, attr
        reference = _interned[key] = _Interned(found, _forget)
        reference.key = key
    return found


def _forget(reference: _Interned, interned: dict[tuple, _Interned] = _interned) -> None:
    if interned.get(reference.key) is reference:  # a new node may have taken the key
        del interned[reference.key]


_PACK = {16: "<H", 32: "<I", 64: "<Q"}


def float_bits(value: float, dtype: DType) -> int:
    """The bit pattern of `value` rounded to `dtype`."""
    if dtype is dt.f32:
        if abs(value) < 3.4e38:  # `struct` refuses what rounds to an infinity
            return struct.unpack("<I", struct.pack("<f", value))[0]
        with np.errstate(all="ignore"):
            return int(np.float32(value).view(np.uint32))
    if dtype is dt.f64:
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    with np.errstate(all="ignore"):
        return int(np.array(value, dtype.numpy).view(np.uint16))


def bits_float(bits: int, dtype: DType) -> float:
    """The value of a bit pattern, as a Python float."""
    return float(np.array(bits, dt.uint_of(dtype).numpy).view(dtype.numpy))


def const(value: object, dtype: DType) -> Expr:
    """A constant; its `attr` is the bit pattern for floats (so -0.0 and NaNs are told apart), the integer otherwise."""
    if dtype.is_float:
        return make("const", dtype, (), float_bits(float(value), dtype))
    number = int(value)
    if dtype.kind == "b":
        return make("const", dtype, (), int(number != 0))
    number &= (1 << dtype.bits) - 1
    if dtype.kind == "i" and number >> (dtype.bits - 1):
        number -= 1 << dtype.bits
    return make("const", dtype, (), number)


def const_bits(bits: int, dtype: DType) -> Expr:
    """A float constant from its bit pattern."""
    return make("const", dtype, (), bits)


def const_value(expr: Expr):
    """The Python value of a constant expression."""
    if expr.dtype.is_float:
        return bits_float(expr.attr, expr.dtype)
    return bool(expr.attr) if expr.dtype.kind == "b" else expr.attr


def arg(position: int, dtype: DType) -> Expr:
    """The op's operand number `position`."""
    return make("arg", dtype, (), position)


def var(name: str, dtype: DType) -> Expr:
    """A loop-IR variable (accumulator or temporary)."""
    return make("var", dtype, (), name)


def index(axis: str, dtype: DType = dt.i64) -> Expr:
    """The current value of the loop variable `axis`."""
    return make("index", dtype, (), axis)


def affine_value(affine: Affine) -> Expr:
    """An affine index as an i64 expression over `index` leaves."""
    total: Expr | None = None
    for name, coefficient in affine.terms:
        term = index(name) if coefficient == 1 else index(name) * coefficient
        total = term if total is None else total + term
    if total is None:
        return const(affine.offset, dt.i64)
    return total + affine.offset if affine.offset else total


def affine_of(root: Expr) -> Affine | None:
    """The affine form that an i64 expression over `index` leaves is (but for wrapping around); None where it is none."""
    found: dict[Expr, Affine | None] = {}
    for e in topological((root,)):
        parts = [found[a] for a in e.args]
        if e.op == "index":
            found[e] = Affine(0, ((e.attr, 1),))
        elif e.op == "const" and e.dtype is dt.i64:
            found[e] = Affine(e.attr)
        elif None in parts or not parts:
            found[e] = None
        elif e.op == "add":
            found[e] = parts[0] + parts[1]
        elif e.op == "mul" and not (parts[0].terms and parts[1].terms):
            found[e] = parts[0] * parts[1].offset if parts[0].terms else parts[1] * parts[0].offset
        else:
            found[e] = None
    return found[root]


def _operands(*values: object) -> tuple[Expr, ...]:
    dtype = next(v.dtype for v in values if isinstance(v, Expr))
    return tuple(v if isinstance(v, Expr) else const(v, dtype) for v in values)


def unary(op: str, x: Expr) -> Expr:
    """An instruction of one operand; the result has its dtype."""
    assert op in UNARY, op
    return make(op, x.dtype, (x,))


def binary(op: str, x: object, y: object) -> Expr:
    """An instruction of two operands of one dtype; compares give bool."""
    a, b = _operands(x, y)
    assert op in BINARY and a.dtype is b.dtype, (op, a.dtype, b.dtype)
    return make(op, dt.bool_ if op in COMPARES else a.dtype, (a, b))


def eq(x, y) -> Expr: return binary("eq", x, y)
def ne(x, y) -> Expr: return binary("ne", x, y)
def minimum(x, y) -> Expr: return binary("min", x, y)
def maximum(x, y) -> Expr: return binary("max", x, y)
def absolute(x: Expr) -> Expr: return unary("abs", x)
def sqrt(x: Expr) -> Expr: return unary("sqrt", x)
def shl(x: Expr, count) -> Expr: return binary("shl", x, count)
def shr_arith(x: Expr, count) -> Expr: return binary("shr_arith", x, count)
def shr_logical(x: Expr, count) -> Expr: return binary("shr_logical", x, count)
def power(x: Expr, n) -> Expr: return binary("pow", x, n)


def fma(x: object, y: object, z: object) -> Expr:
    """x * y + z rounded once (floats)."""
    args = _operands(x, y, z)
    assert args[0].dtype is args[1].dtype is args[2].dtype and args[0].dtype.is_float
    return make("fma", args[0].dtype, args)


def select(condition: Expr, x: object, y: object) -> Expr:
    """x where condition, else y; both sides are evaluated."""
    a, b = _operands(x, y)
    assert condition.dtype is dt.bool_ and a.dtype is b.dtype, (condition.dtype, a.dtype, b.dtype)
    return make("select", a.dtype, (condition, a, b))


def mostly(condition: Expr, x: Expr, y: Expr) -> Expr:
    """`select`, where code may leave out what only y needs as long as the condition holds in all lanes."""
    return make("mostly", x.dtype, select(condition, x, y).args)


def scale(x: Expr, n: Expr) -> Expr:
    """x * 2^n rounded once, with n rounded down first (f32)."""
    assert x.dtype is n.dtype is dt.f32
    return make("scale", dt.f32, (x, n))


def interval(e: Expr) -> tuple[float, float]:
    """Between which numbers an f32 or f64 lies unless it is NaN, as far as constants, clamps and sums of them tell."""
    if e.op == "const" and e.dtype.is_float:
        value = const_value(e)
        return (-math.inf, math.inf) if math.isnan(value) else (value, value)
    if e.op == "select" and e.args[0].op in ("lt", "gt") and e.args[0].args == (e.args[2], e.args[1]):  # x < limit ? limit : x
        low, high = interval(e.args[2])
        limit, (least, most) = e.args[0].op, interval(e.args[1])
        return (max(low, least), max(high, most)) if limit == "lt" else (min(low, least), min(high, most))
    if e.op in ("add", "sub", "fma"):
        *factors, last = map(interval, e.args)
        one = factors[0] if len(factors) == 1 else _product(*factors)
        ends = (one[0] + last[0], one[1] + last[1]) if e.op != "sub" else (one[0] - last[1], one[1] - last[0])
        if all(map(math.isfinite, ends)):
            return (bits_float(float_bits(ends[0], e.dtype), e.dtype), bits_float(float_bits(ends[1], e.dtype), e.dtype))
    return -math.inf, math.inf


def _product(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    ends = [a * b for a in x for b in y]
    return (min(ends), max(ends)) if all(map(math.isfinite, ends)) else (-math.inf, math.inf)


def table(index: Expr, entries: Sequence[float], dtype: DType) -> Expr:
    """The entry (of a power of two of them) that the low bits of an i32 number."""
    assert index.dtype is dt.i32 and len(entries) & (len(entries) - 1) == 0
    return make("table", dtype, (index, *(const(e, dtype) for e in entries)))


def convert(x: Expr, dtype: DType) -> Expr:
    """Value conversion, total: float -> int truncates and saturates (NaN is 0), int -> int wraps, anything -> bool is x != 0."""
    return x if x.dtype is dtype else make("convert", dtype, (x,))


def bitcast(x: Expr, dtype: DType) -> Expr:
    """The same bits read as another dtype of the same width."""
    assert x.dtype.bits == dtype.bits and dt.bool_ not in (x.dtype, dtype)
    return x if x.dtype is dtype else make("bitcast", dtype, (x,))


# From so many terms on the steps of Horner's rule, each waiting for the last, cost more than the squares of the other way.
LONG_POLYNOMIAL = 9


def polynomial(x: Expr, coefficients: Sequence[float], waits: bool = False) -> Expr:
    """The polynomial with these coefficients, from the highest power down, by fma: Horner's rule for few terms; pairs, pairs of pairs and so on
    (Estrin, "Organization of computer systems: the fixed plus variable structure computer", 1960) where there are many, but for the last two
    steps, which round most, and where all else `waits` for the result."""
    terms = [const(coefficient, x.dtype) for coefficient in coefficients]
    total, last = terms[0], terms[1:]
    if waits:
        total, last = _in_pairs(x, terms[::-1]), []
    elif len(terms) >= LONG_POLYNOMIAL:
        total, last = _in_pairs(x, terms[-3::-1]), terms[-2:]
    for term in last:
        total = fma(total, x, term)
    return total


def _in_pairs(x: Expr, terms: Sequence[Expr]) -> Expr:
    """The sum of terms[i] x^i."""
    while len(terms) > 1:
        pairs = [fma(high, x, low) for low, high in zip(terms[::2], terms[1::2])]
        terms = [*pairs, *terms[2 * len(pairs):]]
        x = x * x
    return terms[0]


# Up to so many roots are walked apart; more share what is below, which would be walked for each.
FEW_ROOTS = 4


def topological(roots: Sequence[Expr], rare: bool = True) -> Sequence[Expr]:
    """Every expression under the roots, operands before users, each once; no recursion. `rare`: also what is seldom needed."""
    if len(roots) == 1:
        return (*_below(roots[0], rare), roots[0])
    if len(roots) <= FEW_ROOTS:
        return list(dict.fromkeys([e for root in roots for e in (*_below(root, rare), root)]))
    return list(_walk(roots, rare))


def _below(root: Expr, rare: bool) -> tuple[Expr, ...]:
    """What `topological` finds under a root, which remembers it: levels and their verifiers ask ten times."""
    if not root.args:
        return ()
    try:
        return root.below if rare else root.often
    except AttributeError:
        found = tuple(_walk((root,), rare))[:-1]
    if rare:
        root.below = found
    else:
        root.often = found
    return found


def _walk(roots: Sequence[Expr], rare: bool) -> dict[Expr, None]:
    order: dict[Expr, None] = {}
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        if node not in order:
            if node.args:
                args = node.args if rare or node.op != "mostly" else node.args[:2]
                pending = [a for a in args if a not in order]
                if pending:
                    stack.extend(pending[::-1])
                    continue
            order[node] = None
        stack.pop()
    return order


def substitute(roots: Sequence[Expr], leaf: Callable[[Expr], Expr | None]) -> list[Expr]:
    """The roots with each leaf for which `leaf(node)` is not None replaced by it; shared parts stay shared."""
    new: dict[Expr, Expr] = {}
    for node in topological(roots):
        args = node.args
        if args:
            moved = tuple([new[a] for a in args])
            new[node] = node if moved == args else make(node.op, node.dtype, moved, node.attr)
        else:
            replaced = leaf(node)
            new[node] = node if replaced is None else replaced
    return [new[root] for root in roots]


def replace(roots: Sequence[Expr], new: Mapping[Expr, Expr]) -> list[Expr]:
    """The roots with whole subexpressions replaced by others of their dtype; what is put in is not searched."""
    done: dict[Expr, Expr] = dict(new)
    for node in topological(roots):
        if node not in done:
            args = tuple(done[a] for a in node.args)
            done[node] = node if args == node.args else make(node.op, node.dtype, args, node.attr)
    return [done[root] for root in roots]


def in_f32(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """A scalar function written for f32 and f64, made to serve f16/bf16 by computing in f32 and rounding once."""
    def wrapped(*args: Expr, **attrs: object) -> Expr:
        dtype = args[0].dtype
        if not dtype.is_half:
            return function(*args, **attrs)
        return convert(function(*(convert(a, dt.f32) for a in args), **attrs), dtype)
    return wrapped


