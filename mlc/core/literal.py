"""Constant data as an attribute value: compared by bits (so -0.0, NaN payloads and dtypes are part of identity)."""

from __future__ import annotations

import numpy as np

from mlc.core import digest
from mlc.core.aligned import Block, aligned_empty
from mlc.core.dtype import DType, as_dtype
from mlc.core.text import Reader, format_scalar, read_scalar

INLINE_ELEMENTS = 16
_SAMPLE = 64
_MUCH, _LARGE = 4096, 1 << 18  # bytes: what is aligned, what lies in a block


def _copy(array: np.ndarray, dtype: np.dtype, block: Block | None) -> np.ndarray:
    """A copy in C order; of much data as programs want it, so that they need no copy of their own."""
    if array.nbytes < _MUCH:
        return np.array(array, dtype=dtype, order="C")
    found = block.empty(array.shape, dtype) if block is not None and array.nbytes >= _LARGE else aligned_empty(array.shape, dtype)
    found[...] = array
    return found


class Literal:
    """An immutable array. A rank-0 `array` may stand for a splat of any shape; the node's type tells. Much data may lie in `block`."""

    __slots__ = ("_digest", "_sample", "array", "dtype")

    def __init__(self, array: np.ndarray, block: Block | None = None):
        array = np.asarray(array)
        self.dtype: DType = as_dtype(array.dtype)
        # A copy, so that the program does not change when the caller's array does.
        self.array = _copy(array, self.dtype.numpy, block)
        self.array.flags.writeable = False
        self._digest: str | None = None
        raw = self._bytes()
        # All bytes of a small array, some of a large one: most comparisons end here, and weights are not read again.
        small = self.array.nbytes <= 2 * _SAMPLE
        self._sample = (self.dtype.name, self.array.shape, raw.tobytes() if small else raw[:_SAMPLE].tobytes() + raw[-_SAMPLE:].tobytes())

    def _bytes(self) -> np.ndarray:
        return self.array.reshape(-1).view(np.uint8)

    @property
    def digest(self) -> str:
        """A hash of dtype, shape and bytes, found when it is first asked for."""
        if self._digest is None:
            self._digest = digest.digest(f"{self.dtype.name}{self.array.shape}", self._bytes())
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Literal) or self._sample != other._sample:
            return False
        if self.array.nbytes <= 2 * _SAMPLE:
            return True
        if self._digest is not None and other._digest is not None and self._digest != other._digest:
            return False
        # By the bytes, though digests are at hand: digests can be made to collide (`mlc.core.digest`).
        return np.array_equal(self._bytes(), other._bytes())

    def __hash__(self) -> int:
        return hash(self._sample)

    def __repr__(self) -> str:
        return self.text()

    @property
    def is_scalar(self) -> bool:
        return self.array.ndim == 0

    @property
    def is_inline(self) -> bool:
        """Small enough to be printed in full; larger data is printed by digest and travels in a side file."""
        return self.array.size <= INLINE_ELEMENTS

    def text(self) -> str:
        if self.is_scalar:
            return format_scalar(self.array[()], self.dtype)
        if self.is_inline:
            return "[" + ", ".join(format_scalar(v, self.dtype) for v in self.array.reshape(-1)) + "]"
        return f'"{self.digest}"'


def read_literal(reader: Reader, dtype: DType, shape: tuple[int, ...], side: dict[str, Literal]) -> Literal:
    """Read what `Literal.text` wrote; `side` maps digests to the literals of the side file. Raises ParseError."""
    if reader.peek_kind() == "string":
        digest = reader.string()
        if digest not in side:
            reader.fail(f"constant {digest} is not in the side file ({len(side)} constants given)")
        return side[digest]
    if not reader.accept("["):
        return Literal(read_scalar(reader, dtype))
    values = []
    while not reader.accept("]"):
        values.append(read_scalar(reader, dtype))
        if not reader.accept(","):
            reader.expect("]")
            break
    try:
        return Literal(np.array(values, dtype.numpy).reshape(shape))
    except (ValueError, TypeError):  # TypeError: a symbolic dim
        return reader.fail(f"{len(values)} values cannot fill shape {list(shape)}")
