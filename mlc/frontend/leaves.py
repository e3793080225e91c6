"""Leaves of an argument tree: their type, their guard key, and their data as a NumPy array. Errors name the argument."""

from __future__ import annotations

import sys

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, static_shape
from mlc.core.dtype import as_dtype
from mlc.core.errors import DtypeError, TraceError, UnsupportedError
from mlc.frontend.array import Array
from mlc.frontend.promotion import as_numpy, numpy_dtype
from mlc.frontend.record import Tracer, refuse_leaked

_WEAK = {bool: (TensorType((), dt.bool_), False), int: (TensorType((), dt.i64), True), float: (TensorType((), dt.f64), True)}


def guard(leaf: object) -> object:
    """What of a leaf selects the variant: (dtype, shape) of an array, the class of a Python scalar; None if it needs `normal` first."""
    cls = leaf.__class__
    if cls is np.ndarray:
        return leaf.dtype, leaf.shape
    if cls in _WEAK:
        return cls
    if isinstance(leaf, np.generic):
        return leaf.dtype, ()
    return None


def normal(leaf: object, what: str) -> object:
    """Any other leaf as NumPy data or a Python scalar; TraceError says what it is otherwise."""
    if isinstance(leaf, Tracer):
        refuse_leaked(leaf)
    if isinstance(leaf, Array):
        value = leaf.eval()
        return {"b": bool, "i": int, "f": float}[value.dtype.kind](value) if leaf.weak and not value.ndim else value
    for cls in (bool, int, float):
        if isinstance(leaf, cls) and not isinstance(leaf, np.generic):
            return cls(leaf)
    if isinstance(leaf, TensorType):
        raise TraceError(f"{what} is the spec {leaf}; specs go to .lower(), a call needs arrays")
    found = as_numpy(leaf, what)
    if found is None:
        advice = "make it static (static_argnums or static_argnames)"
        if isinstance(leaf, complex):
            raise DtypeError(f"{what} is complex, and mlc has no complex dtypes; split real and imaginary parts")
        raise TraceError(f"{what} is a {type(leaf).__name__}, which is neither an array nor a number nor a tree of them; {advice}")
    return found


def leaf_type(leaf: object, what: str, specs: bool = False) -> tuple[TensorType, bool]:
    """(type, weak) of a leaf; `specs` admits TensorType and objects with shape and dtype only."""
    weak = _WEAK.get(leaf.__class__)
    if weak is not None:
        return weak
    if specs and isinstance(leaf, TensorType):
        try:
            static_shape(leaf.shape, f"{what} ({leaf})")
        except UnsupportedError as error:
            raise UnsupportedError(str(error)) from None
        return leaf, False
    if specs and type(leaf).__name__ == "ShapeDtypeStruct":
        return TensorType(leaf.shape, as_dtype(leaf.dtype)), bool(getattr(leaf, "weak_type", False))
    if specs and isinstance(leaf, str):
        raise TraceError(f"{what} is a str; a spec is written mlc.spec({leaf!r})")
    if not isinstance(leaf, (np.ndarray, np.generic)):
        leaf = normal(leaf, what)
        return _WEAK.get(leaf.__class__) or leaf_type(leaf, what)
    if isinstance(leaf, np.ma.MaskedArray if "numpy.ma" in sys.modules else ()):
        as_numpy(leaf, what)
    return TensorType(leaf.shape, numpy_dtype(leaf, what)), False


def leaf_array(leaf: object, dtype: np.dtype, what: str) -> np.ndarray:
    """A leaf's data in the parameter's dtype."""
    if leaf.__class__ not in _WEAK and not isinstance(leaf, np.generic):
        leaf = normal(leaf, what)
    try:
        return np.asarray(leaf, dtype)
    except OverflowError:
        raise DtypeError(f"{what}: the Python int {leaf} does not fit in 64 bits; pass a float, or split it") from None
