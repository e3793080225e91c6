"""`mlc.numpy`: the Python array API standard for recorded arrays, plus the names of `jax.numpy` that people use.

The functions take recorded arrays, NumPy arrays and scalars; outside `mlc.jit` they give lazy arrays. Given JAX arrays
or tracers they hand over to `jax.numpy`, so that one function can be captured both ways.
"""

from __future__ import annotations

import numpy as _np
from numpy import e, euler_gamma, float16, float32, float64, inf, int8, int16, int32, int64, nan, newaxis, pi, uint8, uint16, uint32, uint64

from mlc.frontend import einsum as _einsum  # noqa: F401  registers itself
from mlc.frontend import methods as _methods  # noqa: F401  gives arrays their operators
from mlc.frontend import unsupported as _unsupported  # noqa: F401  registers names
from mlc.frontend.api import NUMPY as _NUMPY
from mlc.frontend.array import Array as ndarray
from mlc.frontend.info import (
    __array_api_version__,
    __array_namespace_info__,
    can_cast,
    dtype,
    finfo,
    iinfo,
    isdtype,
    issubdtype,
    promote_types,
    result_type,
)

bool = bool_ = _np.bool_
globals().update(_NUMPY)

from mlc.numpy import linalg  # noqa: E402


def __getattr__(name: str):
    if name != "bfloat16":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ml_dtypes import bfloat16  # when it is first asked for, see `mlc.core.dtype`
    globals()[name] = bfloat16
    return bfloat16


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "__array_api_version__", "__array_namespace_info__", "bfloat16", "bool", "bool_", "can_cast", "dtype", "e", "euler_gamma", "finfo", "float16",
    "float32", "float64", "iinfo", "inf", "int8", "int16", "int32", "int64", "isdtype", "issubdtype", "linalg", "nan", "ndarray", "newaxis", "pi",
    "promote_types", "result_type", "uint8", "uint16", "uint32", "uint64", *sorted(_NUMPY),
]
