"""Memory for programs: constants as calls read them, and arenas taken from a pool so that calls may overlap."""

from __future__ import annotations

import numpy as np

from mlc.core.aligned import ALIGNMENT, address, aligned_empty, lasting_bytes


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
            return lasting_bytes(max(self.size, 1))

    def give(self, arena: np.ndarray) -> None:
        """Return an arena that `take` gave."""
        if len(self._free) < self.KEPT:
            self._free.append(arena)
