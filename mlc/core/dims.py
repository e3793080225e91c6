"""Shapes. A dimension is an int or a named `Dim`; a `TensorType` is a shape and a dtype, printed as `f32[64,784]`.

Named dims travel through specs and the graph's types; code generation demands ints until it can specialise on a range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from mlc.core.dataclass import dataclass
from mlc.core.dtype import DType, parse_dtype
from mlc.core.errors import ParseError, ShapeError, UnsupportedError


@dataclass(frozen=True)
class Dim:
    """A size that is known by name only, as `B` in `f32[B,128]`."""

    name: str

    def __repr__(self) -> str:
        return self.name


Shape = tuple[int | Dim, ...]


class TensorType:
    """Shape and dtype of a value; immutable, hashable, printed as `f32[64,784]` (a scalar is `f32[]`)."""

    __slots__ = ("_hash", "addressable", "dtype", "shape")

    def __init__(self, shape: Sequence[int | Dim], dtype: DType):
        self.shape: Shape = tuple(shape)
        self.dtype = dtype
        self._hash = hash((self.shape, dtype.name))
        self.addressable = False  # known to be: see `require_addressable`

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TensorType) and self.dtype is other.dtype and self.shape == other.shape)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements; UnsupportedError if a dim is symbolic."""
        return math.prod(static_shape(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)


def static_shape(shape: Shape, where: str = "this shape") -> tuple[int, ...]:
    """The shape as ints; UnsupportedError names the symbolic dim otherwise."""
    for dim in shape:
        if isinstance(dim, Dim):
            raise UnsupportedError(f"{where} has the symbolic dim {dim.name!r}; give a number: code is generated for fixed sizes")
    return shape


# NumPy's own limits: arrays of more axes or bytes cannot exist, not even empty ones.
MAX_RANK, MAX_BYTES = 64, 2**63 - 1


def require_addressable(what: str, type: TensorType) -> None:
    """ShapeError if no array of this type can exist: over 64 axes, or 2^63 bytes (axes of length 0 counted as 1)."""
    if len(type.shape) > MAX_RANK:
        raise ShapeError(f"{what}: {len(type.shape)} axes; arrays have at most {MAX_RANK}")
    nbytes = type.dtype.itemsize
    for dim in type.shape:
        if dim.__class__ is int and dim > 1:
            nbytes *= dim
    if nbytes > MAX_BYTES:
        raise ShapeError(f"{what}: {type} would have {nbytes} bytes; an array has fewer than 2^63")
    type.addressable = True


_SPEC = re.compile(r"\s*([a-z]+[0-9]*)\s*\[([^\]]*)\]\s*")


def parse_type(text: str) -> TensorType:
    """`"f32[B,128]"` -> TensorType; as `mlc.spec` what stands for an argument in `lower` (all sizes numbers) and in `mlc.check` (names, too).

    Raises ParseError (form), DtypeError (name) or ShapeError (negative size).
    """
    if not isinstance(text, str):
        raise ParseError(f"a tensor type is written as a string like 'f32[64,784]', got {text!r}")
    match = _SPEC.fullmatch(text)
    if not match:
        raise ParseError(f"{text!r} is not a tensor type; write it like f32[64,784] or f32[]")
    dims: list[int | Dim] = []
    inner = match[2].strip()
    for part in (p.strip() for p in inner.split(",")) if inner else ():
        if re.fullmatch(r"-?[0-9]{1,18}", part):
            if int(part) < 0:
                raise ShapeError(f"{text!r}: a size cannot be negative")
            dims.append(int(part))
        elif part.isidentifier():
            dims.append(Dim(part))
        else:
            raise ParseError(f"{text!r}: {part!r} is neither a size nor a name")
    return TensorType(dims, parse_dtype(match[1]))


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a C-contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def normalize_axis(axis: int, rank: int, what: str) -> int:
    """A possibly negative axis as 0..rank-1; ShapeError names `what` otherwise."""
    try:
        axis = axis.__index__()
    except AttributeError:
        raise ShapeError(f"{what}: axis must be an int, got {axis!r}") from None
    if not -rank <= axis < rank:
        raise ShapeError(f"{what}: axis {axis} is out of range for rank {rank}")
    return axis % rank


def normalize_axes(axes: object, rank: int, what: str) -> tuple[int, ...]:
    """None (all), an int, or ints, possibly negative -> sorted unique axes; ShapeError otherwise."""
    if axes is None:
        return tuple(range(rank))
    try:
        given = (axes,) if hasattr(axes, "__index__") else tuple(axes)
    except TypeError:
        raise ShapeError(f"{what}: axis must be an int, several ints or None, got {axes!r}") from None
    found = tuple(sorted(normalize_axis(a, rank, what) for a in given))
    if len(set(found)) != len(found):
        raise ShapeError(f"{what}: axes {given} name one axis twice")
    return found


def broadcast_shapes(*shapes: Shape, what: str = "operands") -> Shape:
    """NumPy broadcasting; ShapeError shows the shapes that do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[int | Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if out[i] == 1:
                out[i] = dim
            elif dim not in (1, out[i]):
                raise ShapeError(f"{what}: shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast together")
    return tuple(out)
