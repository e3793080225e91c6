"""Constant data as an attribute value: compared by bits (so -0.0, NaN payloads and dtypes are part of identity)."""

from __future__ import annotations

import hashlib

import numpy as np

from mlc.core.dtype import DType, as_dtype
from mlc.core.text import Reader, format_scalar, read_scalar

INLINE_ELEMENTS = 16


class Literal:
    """An immutable array. A rank-0 `array` may stand for a splat of any shape; the node's type tells."""

    __slots__ = ("array", "digest", "dtype")

    def __init__(self, array: np.ndarray):
        array = np.asarray(array)
        self.dtype: DType = as_dtype(array.dtype)
        # A copy, so that the program does not change when the caller's array does.
        self.array = np.array(array, dtype=self.dtype.numpy, order="C")
        self.array.flags.writeable = False
        raw = self.array.tobytes() if self.array.nbytes <= 64 else memoryview(self.array.reshape(-1).view(np.uint8))
        head = f"{self.dtype.name}{self.array.shape}".encode()
        self.digest = hashlib.sha256(head + raw if isinstance(raw, bytes) else b"".join((head, raw))).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

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
