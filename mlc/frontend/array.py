"""`Array`: what tracers and lazy arrays have in common: type, weakness, properties, and the protocols of Python and NumPy.

The operators and methods themselves are installed by `mlc.frontend.methods`, from the functions of `mlc.numpy`.
There is no `__jax_array__` here: without it, `W @ t` with a JAX `W` reaches `__rmatmul__`.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mlc.core.dims import TensorType


class Array:
    """An array that is recorded, not computed: `type` is its TensorType, `weak` says it came from Python scalars only."""

    __slots__ = ("__weakref__", "type", "weak")

    type: TensorType
    weak: bool

    __hash__ = None  # == is elementwise, so arrays cannot be keys
    __array_priority__ = 1000

    # ----------------------------------------------------------------- properties
    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype.numpy

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> int:
        return math.prod(self.type.shape)

    @property
    def itemsize(self) -> int:
        return self.type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def weak_type(self) -> bool:
        return self.weak

    @property
    def device(self) -> str:
        return "cpu"

    # ----------------------------------------------------------------- data: refused by tracers, computed by lazy arrays
    def concrete(self, how: str, instead: str) -> np.ndarray:
        """The data, or TraceError: `how` says what was tried, `instead` what to do."""
        raise NotImplementedError

    def splat(self):
        """The one value (rank-0 data) of a constant that has the same everywhere; None for any other array."""
        return None

    def __bool__(self) -> bool:
        return bool(self.concrete("bool()", "Python's if, while, and, or, not, min, max and assert need a value now: use mlc.numpy.where, "
                                            "& | ~ or mlc.numpy.maximum, or make the argument static (static_argnums)"))

    def __int__(self) -> int:
        return int(self.concrete("int()", "use .astype(int), or make the argument static (static_argnums)"))

    def __float__(self) -> float:
        return float(self.concrete("float()", "use .astype(float) and the functions of mlc.numpy instead of math, or make the argument static "
                                              "(static_argnums)"))

    def __complex__(self) -> complex:
        return complex(self.concrete("complex()", "mlc has no complex dtypes"))

    def __index__(self) -> int:
        value = self.concrete("index", "sizes, axes and indices must be known when the function is recorded: make the argument static "
                                       "(static_argnums)")
        return operator.index(value[()])

    def item(self, *index: int):
        """A Python scalar; lazy arrays only."""
        return self.concrete("item()", "return the array and call .item() on the result").item(*index)

    def tolist(self):
        """Nested lists; lazy arrays only."""
        return self.concrete("tolist()", "return the array and call .tolist() on the result").tolist()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        found = self.concrete("np.asarray()", "use the array itself, or mlc.numpy functions, which record")
        return found if dtype is None and not copy else np.array(found, dtype)

    def __reduce__(self):
        return np.asarray, (self.concrete("pickle", "return the array and pickle the result"),)

    # ----------------------------------------------------------------- containers
    def __len__(self) -> int:
        if not self.type.shape:
            raise TypeError("len() of a rank-0 array")
        return self.type.shape[0]

    def __iter__(self):
        if not self.type.shape:
            raise TypeError("iteration over a rank-0 array")
        return (self[i] for i in range(self.type.shape[0]))

    def __contains__(self, value) -> bool:
        return bool((self == value).any())

    def __setitem__(self, index, value):
        from mlc.core.errors import TraceError
        from mlc.frontend.source import at_here
        raise TraceError(f"item assignment{at_here()}: arrays are immutable; write x = x.at[index].set(value)")

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo) -> Array:
        return self

    def __format__(self, spec: str) -> str:
        return repr(self)

    # ----------------------------------------------------------------- NumPy and the array API
    def __array_namespace__(self, api_version=None):
        import mlc.numpy
        return mlc.numpy

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        from mlc.frontend.protocols import call_ufunc
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        from mlc.frontend.protocols import call_function
        return call_function(function, args, kwargs)
