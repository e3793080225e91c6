"""Operators and methods of arrays, as a table: which function of `mlc.numpy` each one is."""

from __future__ import annotations

from collections.abc import Callable

from mlc.core.errors import ShapeError, UnsupportedError
from mlc.frontend import binary, creation, indexing, linalg, manipulation, reductions, unary
from mlc.frontend.array import Array
from mlc.frontend.promotion import is_operand
from mlc.frontend.source import locate

_OPERATORS = {
    "add": binary.add, "sub": binary.subtract, "mul": binary.multiply, "truediv": binary.true_divide, "floordiv": binary.floor_divide,
    "mod": binary.remainder, "divmod": binary.divmod_, "pow": binary.power, "matmul": linalg.matmul, "and": binary.bitwise_and,
    "or": binary.bitwise_or, "xor": binary.bitwise_xor, "lshift": binary.left_shift, "rshift": binary.right_shift,
}
_COMPARISONS = {
    "eq": binary.equal, "ne": binary.not_equal, "lt": binary.less, "le": binary.less_equal, "gt": binary.greater, "ge": binary.greater_equal,
}
_UNARY = {"neg": unary.negative, "pos": unary.positive, "abs": unary.absolute, "invert": unary.invert}

_METHODS = {
    "astype": creation.astype, "reshape": None, "transpose": None,
    "ravel": manipulation.ravel, "flatten": manipulation.ravel, "swapaxes": manipulation.swapaxes, "squeeze": manipulation.squeeze,
    "repeat": manipulation.repeat, "copy": creation.copy, "take": indexing.take, "dot": linalg.dot, "trace": linalg.trace,
    "diagonal": linalg.diagonal, "clip": binary.clip, "round": unary.round_, "conj": unary.conjugate, "conjugate": unary.conjugate,
    **{name: getattr(reductions, name) for name in ("prod", "mean", "var", "std", "ptp", "argmax", "argmin")},
    "sum": reductions.sum_, "max": reductions.max_, "min": reductions.min_, "all": reductions.all_, "any": reductions.any_,
}
_LATER = ("sort", "argsort", "cumsum", "cumprod", "nonzero", "searchsorted", "view", "compress", "choose", "argpartition", "partition")


def _operator(function: Callable, reflected: bool):
    if reflected:
        def method(self, other):
            return function(other, self) if is_operand(other) else NotImplemented
    else:
        def method(self, other):
            return function(self, other) if is_operand(other) else NotImplemented
    return method


def _equality(function: Callable, name: str):
    def method(self, other):
        if other is None or isinstance(other, str):
            return NotImplemented
        return function(self, other) if is_operand(other) else NotImplemented
    return method


def _method(function: Callable):
    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs)
    method.__doc__ = function.__doc__
    return method


def _reshape(self, *shape, **kwargs):
    """The elements in row-major order in another shape, given as a tuple or as ints."""
    return manipulation.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs) if shape else manipulation.reshape(self, **kwargs)


def _transpose(self, *axes):
    """The axes in another order (reversed by default), given as a tuple or as ints."""
    if len(axes) == 1 and (axes[0] is None or not hasattr(axes[0], "__index__")):
        axes = axes[0]
    return manipulation.transpose(self, axes or None)


def _getitem(self, index):
    try:
        return indexing.getitem(self, index)
    except (ShapeError, UnsupportedError) as error:
        locate(error, "indexing")
        raise


def _later(name: str):
    def method(self, *args, **kwargs):
        raise locate(UnsupportedError(f"arrays have no {name} yet"), name)
    return method


def _round(self, ndigits: int | None = None):
    """As Python's `round`: an integer unless digits are asked for."""
    rounded = unary.round_(self, ndigits or 0)
    return creation.astype(rounded, int) if ndigits is None and self.type.dtype.is_float else rounded


def install() -> None:
    """Give `Array` its operators and methods; once, when the package is imported."""
    for name, function in _OPERATORS.items():
        setattr(Array, f"__{name}__", _operator(function, False))
        setattr(Array, f"__r{name}__", _operator(function, True))
    for name, function in _COMPARISONS.items():
        setattr(Array, f"__{name}__", _equality(function, name))
    for name, function in _UNARY.items():
        setattr(Array, f"__{name}__", _method(function))
    for name, function in _METHODS.items():
        if function is not None:
            setattr(Array, name, _method(function))
    for name in _LATER:
        setattr(Array, name, _later(name))
    Array.__round__ = _round
    Array.__getitem__ = _getitem
    Array.reshape, Array.transpose = _reshape, _transpose
    Array.at = property(indexing.At)
    Array.T = property(manipulation.transpose)
    Array.mT = property(manipulation.matrix_transpose)
    Array.real, Array.imag = property(unary.real), property(unary.imag)
    Array.flat = property(lambda self: iter(manipulation.ravel(self)))
    Array.block_until_ready = lambda self: self
    Array.to_device = lambda self, device, stream=None: self
    Array.__hash__ = None


install()
