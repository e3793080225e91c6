"""What `mlc.numpy` knows of dtypes: promotion, classes, limits, and the array API's inspection functions."""

from __future__ import annotations

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dtype import asked_dtype
from mlc.core.errors import DtypeError
from mlc.frontend.array import Array
from mlc.frontend.promotion import kind_of

__array_api_version__ = "2024.12"
dtype = np.dtype
_PYTHON = {int: (dt.i64, True), float: (dt.f64, True), bool: (dt.bool_, False)}


def _kind(value: object) -> tuple[dt.DType, bool]:
    """(dtype, weak) of an array, a scalar or a dtype; Python's own types are weak, as in `jnp.result_type`."""
    found = kind_of(value)
    if found is not None:
        return found
    if isinstance(value, type) and value in _PYTHON:
        return _PYTHON[value]
    return asked_dtype(value), False


def result_type(*arrays_and_dtypes) -> np.dtype:
    """The dtype that arrays, scalars and dtypes promote to."""
    return dt.promote(*map(_kind, arrays_and_dtypes))[0].numpy


def promote_types(a, b) -> np.dtype:
    """The dtype that two dtypes promote to; Python's int and float are weak."""
    return dt.promote(_kind(a), _kind(b))[0].numpy


def can_cast(from_, to, /) -> bool:
    """Whether promotion with `to` gives `to`."""
    source, target = _kind(from_)[0], asked_dtype(to)
    return dt.promote_types(source, target) is target


_CLASSES = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f", "complex floating": "", "numeric": "iuf",
}


def isdtype(dtype, kind) -> bool:
    """Whether a dtype is one of a class ("integral", "real floating", ...), equals a dtype, or either of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in _CLASSES:
        return asked_dtype(dtype).kind in _CLASSES[kind]
    try:
        wanted = asked_dtype(kind)
    except DtypeError as error:
        raise DtypeError(f"isdtype: {error}; classes of dtypes are {', '.join(_CLASSES)}") from None
    return asked_dtype(dtype) is wanted


def issubdtype(a, b) -> bool:
    """`np.issubdtype` that counts bfloat16 among the floats."""
    a, b = (kind if _is_class(kind) else asked_dtype(kind) for kind in (a, b))
    if isinstance(b, dt.DType):
        return a is b
    return bool(np.issubdtype(np.float16 if a is dt.bf16 else getattr(a, "numpy", a), b))


_SCALARS = frozenset(d.numpy.type for d in dt.ALL if d is not dt.bf16)


def _is_class(kind: object) -> bool:
    """Whether it is a class of NumPy's scalars, as `np.floating`, or the type of a dtype that mlc does not have."""
    return isinstance(kind, type) and issubclass(kind, np.generic) and kind.__module__ == "numpy" and kind not in _SCALARS


def finfo(type, /):
    """Limits of a floating dtype."""
    found = asked_dtype(type.dtype if isinstance(type, Array) else type)
    if not found.is_float:
        raise DtypeError(f"finfo: {found} is not a floating dtype")
    if found is not dt.bf16:
        return np.finfo(found.numpy)
    import ml_dtypes
    return ml_dtypes.finfo(found.numpy)


def iinfo(type, /):
    """Limits of an integer dtype."""
    found = asked_dtype(type.dtype if isinstance(type, Array) else type)
    if not found.is_int:
        raise DtypeError(f"iinfo: {found} is not an integer dtype")
    return np.iinfo(found.numpy)


class _Info:
    """The array API's inspection object."""

    def capabilities(self) -> dict:
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> str:
        return "cpu"

    def devices(self) -> list[str]:
        return ["cpu"]

    def default_dtypes(self, *, device=None) -> dict:
        return {"real floating": np.dtype(np.float64), "integral": np.dtype(np.int64), "indexing": np.dtype(np.int64)}

    def dtypes(self, *, device=None, kind=None) -> dict:
        return {d.numpy.name: d.numpy for d in dt.ALL if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> _Info:
    """What devices, dtypes and capabilities there are."""
    return _Info()
