"""Arrays that start a cache line."""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np

ALIGNMENT = 64  # a cache line, and the widest vector
_NOTHING = np.empty(0, np.uint8)
_PAGE = 2 << 20        # a large page
_WASTE = _PAGE // 2     # of the last page; a last piece that leaves more of it unused lies on small ones


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


def lasting_bytes(size: int) -> np.ndarray:
    """`aligned_bytes` for memory that stays: of large pages where there is enough to fill them. Touching a page for the first time
    takes 0.5 us, so 28 MB of small ones take as long as two copies."""
    if size < _PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_bytes(size)
    try:
        memory = mmap.mmap(-1, size + 2 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return aligned_bytes(size)  # which raises MemoryError
    raw = np.frombuffer(memory, np.uint8)
    start = -address(raw) % _PAGE
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE, start, (size + _WASTE) // _PAGE * _PAGE)
    return raw[start:start + size]


class Block:
    """Arrays that live as long as one another, side by side in memory of large pages. It is asked for `size` bytes at a time (or what an
    array needs), of which the system gives what is touched."""

    def __init__(self, size: int = 32 << 20):
        self._size, self._free = size, _NOTHING

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Like `aligned_empty`."""
        plain = np.dtype(dtype)
        count = math.prod(shape) * plain.itemsize
        padded = -(-count // ALIGNMENT) * ALIGNMENT
        if padded > len(self._free):
            self._free = lasting_bytes(max(self._size, padded))
        found, self._free = self._free[:count], self._free[padded:]
        return found.view(plain).reshape(shape)
