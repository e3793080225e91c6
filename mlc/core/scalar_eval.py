"""The slow, obvious NumPy interpreter of scalar expressions (`mlc.core.expr`): the bits that machine code must produce.

Every instruction is elementwise over arrays (NumPy broadcasting), total, and silent (no NumPy warning leaks).
All NaNs are one value here: payloads and signs of NaN results are unspecified, except that `neg`, `abs`, `select` and
`bitcast` move bits. `convert` is the one value conversion that interpreters, folding and codegen's tests share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dtype import DType
from mlc.core.expr import Expr


def evaluate(roots: Sequence[Expr], leaf: Callable[[Expr], np.ndarray], order: Sequence[Expr] | None = None) -> list[np.ndarray]:
    """The values of the roots. `leaf(node)` gives every arg, load, index and var as an array of the node's dtype; `order` is
    `ex.topological(roots)` where it is known already."""
    values: dict[Expr, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for node in ex.topological(roots) if order is None else order:
            if node.op == "const":
                values[node] = constant(node)
            elif node.op in ex.LEAVES:
                values[node] = np.asarray(leaf(node), node.dtype.numpy)
            else:
                values[node] = _checked(node.op, node.dtype, node.args[-1].dtype, [values[a] for a in node.args])
    return [values[root] for root in roots]


def constant(node: Expr) -> np.ndarray:
    """The 0-d array of a `const` expression."""
    if node.dtype.is_float:
        return np.array(node.attr, dt.uint_of(node.dtype).numpy).view(node.dtype.numpy)
    return np.array(node.attr, node.dtype.numpy)


def apply(op: str, dtype: DType, args: Sequence[np.ndarray], attr: object = None) -> np.ndarray:
    """One instruction with result `dtype` on arrays that already have their operand dtypes; KeyError on an unknown op.

    `attr` is there for symmetry with `Expr`: no instruction has one.
    """
    args = [np.asarray(a) for a in args]
    with np.errstate(all="ignore"):
        return _checked(op, dtype, dt.as_dtype(args[-1].dtype), args)


def _checked(op: str, dtype: DType, source: DType, args: Sequence[np.ndarray]) -> np.ndarray:
    result = np.asarray(_instruction(op, dtype, source)(*args))
    assert result.dtype == dtype.numpy, (op, result.dtype, dtype)
    return result


@functools.cache
def _instruction(op: str, dtype: DType, source: DType) -> Callable[..., np.ndarray]:
    """What computes an instruction whose last operand is of dtype `source`."""
    if op in _MOVES:
        return functools.partial(_MOVES[op], dtype, source)
    if not source.is_half:
        return {"f": _FLOAT, "b": _BOOL}.get(source.kind, _INT)[op]
    wide = _FLOAT[op]

    def rounded(*args: np.ndarray) -> np.ndarray:
        """Halves compute in f32 and round once an instruction; a compare's bool is not rounded."""
        result = np.asarray(wide(*(convert(a, source, dt.f32) for a in args)))
        return result if dtype is dt.bool_ else convert(result, dt.f32, dtype)
    return rounded


def contract(left: np.ndarray, right: np.ndarray, total: np.ndarray) -> np.ndarray:
    """total[m, n] + left[m, k] @ right[k, n], all of one dtype and no bools, one step of k after the other: an fma of floats, of integers a sum
    that wraps, whose order is free."""
    dtype = dt.as_dtype(total.dtype)
    if dtype.is_half:
        for k in range(left.shape[1]):
            total = apply("fma", dtype, [left[:, k:k + 1], right[k:k + 1], total])
        return total
    with np.errstate(all="ignore"):
        if dtype.is_int:
            return np.asarray(total + left @ right)
        add = _add_f32_products if total.dtype == np.float32 else _add_f64_products
        chunk = max(1, _STEPS_AT_ONCE // max(1, total.size))
        for start in range(0, left.shape[1], chunk):
            total = add(left.T[start:start + chunk, :, None], right[start:start + chunk, None, :], total)
    return total


# --------------------------------------------------------------------------- conversion
def convert(values: np.ndarray, src: DType, dst: DType) -> np.ndarray:
    """Total value conversion: float -> int truncates and saturates, NaN is 0; int -> int wraps; to bool is x != 0.

    To a float dtype the value is rounded once, to nearest even, from any source (so f64 and i64 to halves, too).
    """
    values = np.asarray(values)
    assert values.dtype == src.numpy, (values.dtype, src)
    if src is dst:
        return values.copy()
    with np.errstate(all="ignore"):
        if src is dt.bf16:
            values, src = _bf16_to_f32(values), dt.f32
        if dst is dt.bool_:
            result = values != 0
        elif dst.is_half:
            result = (_f32_to_bf16 if dst is dt.bf16 else _f32_to_f16)(_to_f32_for_half(values))
        elif dst.is_int and src.is_float:
            result = _saturate(values.astype(np.float64), dst)
        else:
            result = values.astype(dst.numpy)
    return np.asarray(result)


def _bf16_to_f32(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _f32_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quieted = bits | np.uint32(0x400000)
    half = np.where(np.isnan(values), quieted, nearest) >> np.uint32(16)
    return np.asarray(half.astype(np.uint16)).view(dt.bf16.numpy)


def _f32_to_f16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)


def _to_f32_for_half(values: np.ndarray) -> np.ndarray:
    """f32 of anything, rounded to odd, so that rounding it to a half is as if rounded once (Boldo and Melquiond 2008)."""
    if values.dtype.itemsize == 8 and values.dtype.kind in "iu":
        high = (values >> values.dtype.type(32)).astype(np.float64) * 4294967296.0
        low = (values & values.dtype.type(0xFFFFFFFF)).astype(np.float64)
        values = _odd_sum(high, low)
    elif values.dtype.itemsize >= 4 and values.dtype != np.float32:
        values = values.astype(np.float64)
    if values.dtype != np.float64:
        return np.asarray(values.astype(np.float32))
    nearest = np.asarray(values.astype(np.float32))
    back = nearest.astype(np.float64)
    direction = np.sign(np.abs(values) - np.abs(back))
    return _make_odd(nearest, np.where(np.isfinite(values), direction, 0.0))


def _saturate(values: np.ndarray, dst: DType) -> np.ndarray:
    """f64 to an integer dtype. 2^bits bounds are exact in f64, so the clamped ends are chosen by compares."""
    upper, lower = float(dst.max + 1), float(dst.min)
    whole = np.trunc(values)
    inside = (whole >= lower) & (whole < upper)
    result = np.where(inside, whole, 0.0).astype(dst.numpy)
    result = np.where(whole >= upper, dst.numpy.type(dst.max), result)
    return np.where(whole < lower, dst.numpy.type(dst.min), result)


# --------------------------------------------------------------------------- exact float helpers
# The bits of an f64 past those of an f32, and the first of them alone.
_BELOW_F32, _HALF_ULP_F32 = np.uint64((1 << 29) - 1), np.uint64(1 << 28)
_LEAST_F32 = 2.0 ** -126
# Products that `contract` has in memory at once.
_STEPS_AT_ONCE = 1 << 16


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b as rounded sum and exact error (Knuth)."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a * b as rounded product and exact error (Dekker), for f64 of moderate size."""
    def split(x):
        big = 134217729.0 * x
        high = big - (big - x)
        return high, x - high
    (ah, al), (bh, bl) = split(a), split(b)
    product = a * b
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _make_odd(nearest: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """`nearest` as round-to-odd would have it; `direction` is the sign of |exact| - |nearest|, 0 where exact."""
    integer = dt.uint_of(dt.as_dtype(nearest.dtype)).numpy
    bits = np.asarray(nearest).view(integer)
    even = (bits & integer.type(1)) == 0
    moved = np.where(direction > 0, bits + integer.type(1), bits - integer.type(1))
    return np.asarray(np.where(even & (direction != 0), moved, bits)).view(nearest.dtype)


def _odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b rounded to odd (f64)."""
    total, error = _two_sum(a, b)
    direction = np.sign(error) * np.where(np.signbit(total), -1.0, 1.0)
    return _make_odd(np.asarray(total), np.where(np.isfinite(error), direction, 0.0))


def _half_way(wide: np.ndarray) -> bool:
    """Whether any of these f64 may lie half-way between two f32; of those below the normal f32 all are said to."""
    size = np.abs(wide)
    return bool(((size.view(np.uint64) & _BELOW_F32) == _HALF_ULP_F32).any() or ((size < _LEAST_F32) & (size > 0)).any())


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z with one rounding, for f32 and f64."""
    if x.dtype == np.float32:
        # The product of two f32 is exact in f64. Rounding its sum again is right unless that lies half-way between two f32, or sums rounded to odd.
        product, z = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
        total = np.asarray(product + z)
        return np.asarray(_odd_sum(product, z) if _half_way(total) else total).astype(np.float32)
    x, y, z = np.broadcast_arrays(x, y, z)
    return _fma_f64(x, y, z)


def _add_f32_products(x: np.ndarray, y: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The total after an fma for each x[k], y[k] in turn: as `_fma` does it, but what is half-way is looked for afterwards, in all at once."""
    products = x.astype(np.float64) * y.astype(np.float64)
    found, wide = total, np.empty_like(products)
    for product, place in zip(products, wide):
        np.add(product, found, out=place)
        found = place.astype(np.float32)
    if _half_way(wide):
        for product in products:
            total = np.asarray(_odd_sum(product, total.astype(np.float64))).astype(np.float32)
        return total
    return found


def _add_f64_products(x: np.ndarray, y: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The total after an fma for each x[k], y[k] in turn; where nothing is zero or can over- or underflow, without looking at each of them."""
    found = total
    if _moderate(x) and _moderate(y):
        for high, low in zip(*_two_product(x, y)):
            found = _two_product_sum(high, low, found)
        if (np.abs(found) < 2.0 ** 1000).all():  # so it was all the time: products are smaller, and what has overflowed stays so
            return found
    for left, right in zip(x, y):
        total = _fma(*np.broadcast_arrays(left, right, total))
    return total


def _moderate(x: np.ndarray) -> bool:
    """Whether no product of two such f64 is zero, special, or near the ends of the range."""
    size = np.abs(x)
    return bool(((size > 2.0 ** -400) & (size < 2.0 ** 400)).all())


def _two_product_sum(high: np.ndarray, low: np.ndarray, z: np.ndarray) -> np.ndarray:
    """high + low + z with one rounding, for an exact product high + low (Boldo and Melquiond)."""
    top, rest = _two_sum(z, low)
    value, error = _two_sum(high, top)
    return np.asarray(value + _odd_sum(rest, error))


def _fma_f64(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008), where no step can over- or underflow;
    exact integers elsewhere."""
    result = _two_product_sum(*_two_product(x, y), z)
    if _moderate(x) and _moderate(y) and (np.abs(z) < 2.0 ** 1000).all():
        return result

    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    zero = (x == 0) | (y == 0)
    # The naive formula is exact when the product is an exact zero or a special; a non-finite addend decides alone.
    result = np.where(zero | ~finite, x * y + z, result)
    result = np.where(np.isfinite(x) & np.isfinite(y) & ~np.isfinite(z), z, result)
    e_x, e_y, e_z = (np.frexp(a)[1] for a in (x, y, z))
    moderate = (np.abs(e_x) < 990) & (np.abs(e_y) < 990) & (np.abs(e_x + e_y - 60) < 960) & (e_z < 1020)
    hard = np.flatnonzero(finite & ~zero & ~moderate)
    if hard.size:
        result = np.array(result)
        flat = [np.ascontiguousarray(a).ravel() for a in (x, y, z)]
        for i in hard:
            result.reshape(-1)[i] = _fma_exact(*(float(a[i]) for a in flat))
    return result


def _fma_exact(x: float, y: float, z: float) -> float:
    """One finite fma through whole numbers: Python's int / int is correctly rounded, also to subnormals."""
    (a, b), (c, d), (e, f) = (v.as_integer_ratio() for v in (x, y, z))
    numerator, denominator = a * c * f + e * b * d, b * d * f
    try:
        return numerator / denominator
    except OverflowError:
        return float("inf") if numerator > 0 else float("-inf")


# --------------------------------------------------------------------------- instructions
def _pick(keep_larger: bool):
    """Float min or max: NaN from either side, -0 below +0."""
    def instruction(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x_first = (x > y) if keep_larger else (x < y)
        x_first |= (x == y) & (np.signbit(y) if keep_larger else np.signbit(x))
        return np.where(np.isnan(x) | (x_first & ~np.isnan(y)), x, y)
    return instruction


def _sign_bit(combine: Callable, invert: bool):
    """neg and abs of floats: the sign bit alone, also of NaN."""
    def instruction(dtype: DType, source: DType, x: np.ndarray) -> np.ndarray:
        if not source.is_float:
            return np.negative(x) if invert else np.abs(x)
        integer = dt.uint_of(source).numpy.type
        sign = integer(1 << (source.bits - 1))
        return np.asarray(combine(x.view(integer), sign if invert else integer(sign - 1))).view(x.dtype)
    return instruction


def _bitcast(dtype: DType, source: DType, x: np.ndarray) -> np.ndarray:
    return np.asarray(x).view(dtype.numpy)


def _select(dtype: DType, source: DType, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # As integers, because bfloat16 is a guest in NumPy.
    integer = np.bool_ if dtype is dt.bool_ else dt.uint_of(dtype).numpy
    return np.asarray(np.where(condition, x.view(integer), y.view(integer))).view(dtype.numpy)


def _quotient(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Truncating quotient and remainder; x/0 is all ones, x%0 is x, INT_MIN/-1 wraps."""
    dtype = dt.as_dtype(x.dtype)
    one = dtype.numpy.type(1)
    by_zero = y == 0
    # INT_MIN // 1 is what INT_MIN / -1 wraps to, and its remainder is 0 as well.
    overflow = (x == dtype.min) & (y == -1) if dtype.kind == "i" else np.False_
    divisor = np.where(by_zero | overflow, one, y)
    quotient = x // divisor
    inexact = quotient * divisor != x
    if dtype.kind == "i":
        quotient = quotient + (inexact & ((x < 0) != (divisor < 0))).astype(x.dtype)
    remainder = x - quotient * divisor
    return np.where(by_zero, ~dtype.numpy.type(0), quotient), np.where(by_zero, x, remainder)


def _shift(op: str):
    """Shifts whose count, read unsigned, may pass the width: then 0, or for shr_arith all sign bits."""
    def instruction(x: np.ndarray, count: np.ndarray) -> np.ndarray:
        dtype = dt.as_dtype(x.dtype)
        integer = (dt.sint_of(dtype) if op == "shr_arith" else dt.uint_of(dtype)).numpy
        bits, amount = x.view(integer), count.view(dt.uint_of(dtype).numpy)
        past = amount >= dtype.bits
        safe = np.where(past, dtype.bits - 1 if op == "shr_arith" else 0, amount).astype(integer)
        shifted = bits << safe if op == "shl" else bits >> safe
        if op != "shr_arith":
            shifted = np.where(past, integer.type(0), shifted)
        return np.asarray(shifted, integer).view(x.dtype)
    return instruction


def _power(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Square and multiply over the bits of n, read unsigned, modulo 2^bits."""
    x, left = np.broadcast_arrays(x, n.view(dt.uint_of(dt.as_dtype(n.dtype)).numpy))
    total, square = np.ones_like(x), x
    while left.any():
        total = np.where(left & left.dtype.type(1) != 0, total * square, total)
        square, left = square * square, left >> left.dtype.type(1)
    return total


def _table(index: np.ndarray, *entries: np.ndarray) -> np.ndarray:
    return np.array(entries)[index & np.int32(len(entries) - 1)]


def _scale(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """As a product in f64, which is exact; of f32 no power beyond 2^400 can be told from it, but infinite ones are factors like others."""
    power = np.ldexp(1.0, np.where(np.isfinite(n), np.clip(np.floor(n), -400, 400), 0).astype(np.int32))
    return (x.astype(np.float64) * np.where(np.isfinite(n), power, np.where(n < 0, 0.0, n))).astype(np.float32)


_MOVES = {
    "neg": _sign_bit(np.bitwise_xor, True), "abs": _sign_bit(np.bitwise_and, False),
    "select": _select, "mostly": _select, "bitcast": _bitcast, "convert": lambda dtype, source, x: convert(x, source, dtype),
}
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
_FLOAT = _COMPARE | {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod,
    "min": _pick(False), "max": _pick(True), "fma": _fma,
    "scale": _scale, "table": _table, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "trunc": np.trunc,
}
_INT = _COMPARE | {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "div": lambda x, y: _quotient(x, y)[0], "rem": lambda x, y: _quotient(x, y)[1],
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.bitwise_not,
    "shl": _shift("shl"), "shr_arith": _shift("shr_arith"), "shr_logical": _shift("shr_logical"), "pow": _power,
}
_BOOL = _COMPARE | {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "min": np.logical_and, "max": np.logical_or,
}
