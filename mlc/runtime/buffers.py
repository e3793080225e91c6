"""Aligned memory for programs: output arrays, and arenas taken from a pool so that calls may overlap."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64  # a cache line, and the widest vector


def aligned_bytes(size: int) -> np.ndarray:
    """A fresh uint8 array of `size` bytes whose address is a multiple of 64; contents are arbitrary."""
    raw = np.empty(size + ALIGNMENT - 1, np.uint8)
    start = -address(raw) % ALIGNMENT
    return raw[start:start + size]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """`np.empty` whose address is a multiple of 64."""
    plain = np.dtype(dtype)
    count = 1
    for extent in shape:
        count *= extent
    return np.empty(shape, plain) if count == 0 else aligned_bytes(count * plain.itemsize).view(plain).reshape(shape)


def address(array: np.ndarray) -> int:
    """The address of an array's first byte."""
    return array.__array_interface__["data"][0]


def frozen(array: np.ndarray, own: bool) -> np.ndarray:
    """The array as a program keeps it: contiguous, native byte order, 64-byte aligned, read-only. With `own` nobody
    else will write to `array`, so that it is copied only if it has to be."""
    native = array.dtype.newbyteorder("=")
    if own and array.flags.c_contiguous and array.dtype == native and address(array) % ALIGNMENT == 0:
        kept = array.view()
    else:
        kept = aligned_empty(array.shape, native)
        kept[...] = array
    kept.flags.writeable = False
    return kept


class ArenaPool:
    """Scratch memory of one program: one arena a running call.

    Taking and returning are single list operations, atomic in CPython; a forked child inherits a consistent list.
    """

    KEPT = 4  # more calls than this at once is rare; their arenas are freed afterwards

    def __init__(self, size: int):
        self.size = size
        self._free: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """An arena of at least `size` bytes, 64-byte aligned."""
        try:
            return self._free.pop()
        except IndexError:
            return aligned_bytes(max(self.size, 1))

    def give(self, arena: np.ndarray) -> None:
        """Return an arena that `take` gave."""
        if len(self._free) < self.KEPT:
            self._free.append(arena)
