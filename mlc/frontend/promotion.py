"""From the user's operands to arrays of one dtype and one shape, by JAX's rules (x64 on).

Python scalars are weak: they take the dtype of what they meet. `np.float64` scalars are not, which widens float32
programs by accident; that warns, with the user's line.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Sequence

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, broadcast_shapes
from mlc.core.dtype import DType, as_dtype
from mlc.core.errors import DtypeError, TraceError, WideningWarning
from mlc.core.literal import Literal
from mlc.core.scalar_eval import convert as convert_data
from mlc.frontend.array import Array
from mlc.frontend.record import Tracer, emit, recorder
from mlc.frontend.source import warn

_BOOL, _INT, _FLOAT = (dt.bool_, False), (dt.i64, True), (dt.f64, True)


def numpy_dtype(array: np.ndarray | np.generic, what: str = "array") -> DType:
    """The DType of NumPy data; DtypeError (or TraceError for objects) says what is wrong with it."""
    try:
        return as_dtype(array.dtype)
    except DtypeError:
        pass
    kind = array.dtype.kind
    if kind == "V" and array.dtype.fields is None:
        kind = ""  # a number that another package has added to NumPy's, like ml_dtypes' int4
    if kind == "O":
        raise TraceError(f"{what} is a NumPy object array (ragged or mixed data); give it one numeric dtype")
    advice = {"c": "complex numbers are not supported: split real and imaginary parts", "U": "strings are not data", "S": "strings are not data",
              "M": "subtract a reference date and convert to a number first", "m": "divide by a unit, as np.timedelta64(1, 's'), first",
              "V": "take the fields of the structured array one by one"}.get(kind, "convert it with .astype first")
    raise DtypeError(f"{what} has the dtype {array.dtype}, which mlc does not have; {advice}")


def as_numpy(value: object, what: str = "array") -> np.ndarray | np.generic | None:
    """Array-like objects of other libraries (`jax.Array`, `__dlpack__`) and NumPy's own as NumPy data; None for anything else."""
    if isinstance(value, np.ma.MaskedArray if "numpy.ma" in sys.modules else ()):
        raise TraceError(f"{what} is a masked array, whose mask would be lost; pass .filled(value), or data and mask apart")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        # A jax.Array converts itself (also bfloat16, which NumPy's dlpack does not know).
        if hasattr(value, "__array__") and type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
            try:
                return np.asarray(value)
            except Exception as error:
                raise TraceError(f"{what} is being traced by JAX and has no data for mlc ({type(error).__name__}); call the mlc.jit function outside "
                                 "of jax.jit and jax.grad, or write it with mlc.numpy, whose functions JAX can trace") from None
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TraceError(f"{what} is a {type(value).__name__} that cannot be read through dlpack ({error}); pass a NumPy array") from None
    return None


def kind_of(value: object) -> tuple[DType, bool] | None:
    """(dtype, weak) of an operand without converting it; None when it is no array and no scalar."""
    if isinstance(value, Array):
        return value.type.dtype, value.weak
    if isinstance(value, (np.ndarray, np.generic)):
        return numpy_dtype(value), False
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INT
    if isinstance(value, float):
        return _FLOAT
    if isinstance(value, complex):
        raise DtypeError("mlc has no complex dtypes; split real and imaginary parts")
    return None


def is_operand(value: object) -> bool:
    """Whether an operator may take it: arrays and numbers; lists and strings may not."""
    return isinstance(value, (Array, bool, int, float, complex, np.ndarray, np.generic)) or hasattr(value, "__dlpack__")


def checked(value: object) -> object:
    """The operand itself, or its NumPy form; TraceError for what is no array."""
    if isinstance(value, (Array, bool, int, float, complex)) and not isinstance(value, np.generic):
        return value
    found = as_numpy(value)
    if found is None:
        hint = "; mlc.numpy.asarray turns nested lists into arrays" if isinstance(value, (list, tuple)) else ""
        raise TraceError(f"a {type(value).__name__} is not an array or a number{hint}")
    return found


def python_scalar(value: bool | int | float, dtype: DType) -> Literal:
    """A Python scalar as a rank-0 literal: first its weak 64-bit dtype, then converted as the `convert` op does (ints wrap)."""
    cls = value.__class__
    if cls is float or (cls is not bool and isinstance(value, float)):
        return _float_literal(_pack(value), dtype)
    return _int_literal(bool(value), dt.bool_, dtype) if cls is bool else _int_literal(int(value), dt.i64, dtype)


_pack, _unpack = struct.Struct("<d").pack, struct.Struct("<d").unpack


@functools.lru_cache(4096)
def _float_literal(bits: bytes, dtype: DType) -> Literal:
    # By bits, because 0.0 == -0.0.
    return Literal(convert_data(np.array(_unpack(bits)[0]), dt.f64, dtype))


@functools.lru_cache(4096, typed=True)
def _int_literal(value: int, source: DType, dtype: DType) -> Literal:
    if not source.min <= value <= source.max:
        if dtype is dt.u64 and 0 <= value <= dt.u64.max:
            return Literal(np.array(value, np.uint64))
        raise DtypeError(f"the Python int {value} does not fit in 64 bits")
    return Literal(convert_data(np.array(value, source.numpy), source, dtype))


def as_array(value: object, dtype: DType | None = None, weak: bool = False, shape: tuple = ()) -> Array:
    """Any operand as an array of `dtype` (its own when None); scalars are spread over `shape`."""
    if isinstance(value, Array):
        return value if dtype is None else convert(value, dtype, weak)
    if isinstance(value, (np.ndarray, np.generic)):
        data, own = np.asarray(value), numpy_dtype(value)
        if data.dtype != own.numpy:  # foreign byte order
            data = data.astype(own.numpy)
        if dtype is not None and dtype is not own and data.ndim == 0:
            data, own = np.asarray(convert_data(data, own, dtype)), dtype
        found = recorder().constant(data, TensorType(data.shape or shape, own), False)
        return found if dtype is None else convert(found, dtype, weak)
    kind = kind_of(value)
    if kind is None:
        return as_array(checked(value), dtype, weak, shape)
    if dtype is None:
        dtype, weak = kind
    return recorder().constant(python_scalar(value, dtype), TensorType(shape, dtype), weak, True)


def convert(x: Array, dtype: DType, weak: bool = False) -> Array:
    """x in another dtype; nothing is recorded when it has it already."""
    if x.type.dtype is not dtype:
        return emit("convert_element_type", (x,), None, TensorType(x.type.shape, dtype), weak)
    return x if x.weak == weak else with_weak(x, weak)


def with_weak(x: Array, weak: bool) -> Array:
    """The same node under another weakness."""
    found = object.__new__(type(x))
    for name in ("type", *type(x).__slots__):
        setattr(found, name, getattr(x, name))
    found.weak = weak
    return found


def broadcast(x: Array, shape: tuple) -> Array:
    """x spread over `shape` by NumPy's rules; nothing is recorded when it has that shape."""
    own = x.type.shape
    if own == shape:
        return x
    value = x.splat()
    if value is not None:
        return recorder().constant(value, TensorType(shape, x.type.dtype), x.weak, True)
    return emit("broadcast_in_dim", (x,), {"dims": tuple(range(len(shape) - len(own), len(shape)))}, TensorType(shape, x.type.dtype))


_TO_INEXACT = {dt.u64: dt.f64, dt.i64: dt.f64}


def to_inexact(dtype: DType) -> DType:
    """`jnp`'s floating dtype for integers and bools: float32, but float64 for 64-bit integers."""
    return dtype if dtype.is_float else _TO_INEXACT.get(dtype, dt.f32)


def to_numeric(dtype: DType) -> DType:
    return dt.i32 if dtype is dt.bool_ else dtype


def result_kind(values: Sequence[object]) -> tuple[DType, bool]:
    """(dtype, weak) that the operands promote to. Warns when an np.float64 scalar alone makes it float64."""
    kinds = [kind_of(v) for v in values]
    found = kinds[0] if len(kinds) == 1 else dt.promote(*kinds)
    if found[0] is dt.f64 and not found[1]:
        _warn_if_widened(values, kinds)
    return found


def _warn_if_widened(values: Sequence[object], kinds: Sequence[tuple[DType, bool]]) -> None:
    scalars = [v.node in v._trace.wide_scalars if isinstance(v, Tracer) else not isinstance(v, Array) and np.ndim(v) == 0 and kind == (dt.f64, False)
               for v, kind in zip(values, kinds)]
    if not any(scalars):
        return
    others = [kind for kind, scalar in zip(kinds, scalars) if not scalar]
    if not others:
        return
    narrow, weak = dt.promote(*others)
    if narrow.is_float and narrow is not dt.f64 and not weak:
        warn(f"a NumPy float64 scalar widens a {narrow} computation to f64; write float(value) or np.{narrow.numpy.name}(value) to stay in {narrow}",
             WideningWarning)


def promote(*values: object, to=None) -> list[Array]:
    """The operands as arrays of their common dtype (`to` maps it: `to_inexact`, `to_numeric`) and broadcast shape.

    Raises ShapeError when shapes do not broadcast, DtypeError and TraceError for what is no array.
    """
    values = [v if isinstance(v, Array) else checked(v) for v in values]
    dtype, weak = result_kind(values)
    if to is not None:
        dtype = to(dtype)
    shapes = [v.shape if isinstance(v, (Array, np.ndarray, np.generic)) else () for v in values]
    shape = shapes[0]
    if any(s != shape for s in shapes):
        shape = broadcast_shapes(*shapes)
    return [broadcast(as_array(v, dtype, weak, shape), shape) for v in values]


def promote_dtypes(*values: object, to=None) -> list[Array]:
    """The operands as arrays of their common dtype, each in its own shape."""
    values = [v if isinstance(v, Array) else checked(v) for v in values]
    dtype, weak = result_kind(values)
    if to is not None:
        dtype = to(dtype)
    return [as_array(v, dtype, weak) for v in values]
