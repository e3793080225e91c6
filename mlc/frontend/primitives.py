"""What the functions of `mlc.numpy` are written with: constants like an array, compares, select, truth, checks."""

from __future__ import annotations

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.errors import UnsupportedError
from mlc.frontend.array import Array
from mlc.frontend.promotion import as_array, checked, python_scalar
from mlc.frontend.record import emit, recorder
from mlc.ops.base import REGISTRY


def like(x: Array, value: object) -> Array:
    """A constant of x's shape and dtype, weak as x is."""
    return recorder().constant(python_scalar(value, x.type.dtype), x.type, x.weak, True)


def compare(name: str, x: Array, y: Array) -> Array:
    return emit(name, (x, y), weak=False)


def select(condition: Array, x: Array, y: Array) -> Array:
    """The select op on operands of one shape; weak when both sides are."""
    return emit("select", (condition, x, y), weak=x.weak and y.weak)


def need(name: str, op: str, instead: str) -> str:
    """The op's name if it exists; UnsupportedError that says what to do instead otherwise."""
    if op not in REGISTRY:
        raise UnsupportedError(f"{name} is not available yet; {instead}")
    return op


def array_of(x: object) -> Array:
    """Any operand as an array; TraceError for what is none."""
    return x if isinstance(x, Array) else as_array(checked(x))


def to_bool(x: Array) -> Array:
    """x != 0, or x itself when it is bool."""
    return x if x.type.dtype is dt.bool_ else compare("ne", x, like(x, 0))


def full_bool(x: Array, value: bool) -> Array:
    """A bool constant of x's shape."""
    return recorder().constant(np.array(value), TensorType(x.type.shape, dt.bool_), False, True)


def float_limits(dtype: dt.DType) -> float:
    """The largest finite number."""
    return float((2.0 - 2.0 ** (1 - dt.MANTISSA[dtype])) * 2.0 ** dt.MAX_EXPONENT[dtype])


def sign_bit(x: Array) -> Array:
    """Whether the sign bit of a float is set."""
    if "bitcast_convert_type" in REGISTRY:
        bits = emit("bitcast_convert_type", (x,), None, TensorType(x.type.shape, dt.sint_of(x.type.dtype)), False)
        return compare("lt", bits, like(bits, 0))
    # 1/x tells the zeros apart; the sign of a NaN cannot be seen without its bits.
    return emit("or", (compare("lt", x, like(x, 0)), compare("lt", emit("integer_pow", (x,), {"y": -1}), like(x, 0))), weak=False)


def refuse_out(out: object) -> None:
    """NumPy's `out=` has no meaning for immutable arrays."""
    if out is not None:
        raise UnsupportedError("out= cannot be given: arrays are immutable; use the result")


def full(shape: tuple, value: bool | int | float, dtype: dt.DType) -> Array:
    """A constant with one value everywhere."""
    return recorder().constant(python_scalar(value, dtype), TensorType(shape, dtype), False, True)
