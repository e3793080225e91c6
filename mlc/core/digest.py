"""Digests of constant data: SHA-256 of little data, and for much data SHA-256 of what each block of 4 KiB comes to under four keyed sums.

The sum of a block is NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999): for words x and keys k, 32 bits each,

    sum over i of ((x[2i] + k[2i]) mod 2^32) * ((x[2i+1] + k[2i+1]) mod 2^32)   mod 2^64

Two blocks that differ have equal sums for at most one in 2^32 keys, so all four sums are equal for one in 2^128; SHA-256 then sees
different input. The keys are fixed (SHAKE-256 of a label), for a digest names the same data on every machine.
`sums` is the sum of blocks in NumPy, until the runtime puts machine code in its place (`mlc.runtime.bulk`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import numpy as np

BLOCK = 4096
KEYS = 4
LEAST = 1 << 16  # bytes; less is hashed as it is


@functools.cache
def keys() -> np.ndarray:
    """The words of the keys, one row each."""
    return np.frombuffer(hashlib.shake_256(b"mlc: digests of constants").digest(KEYS * BLOCK), "<u4").reshape(KEYS, BLOCK // 4)


def plain_sums(data: np.ndarray) -> np.ndarray:
    """[blocks, 8 * KEYS] bytes, little-endian: the sums of every block of contiguous bytes, whose number a multiple of BLOCK is."""
    words = data.view("<u4").reshape(-1, 1, BLOCK // 4)
    found = np.empty((len(words), KEYS), "<u8")
    for at in range(0, len(words), 64):  # in pieces: what is between takes ten times the memory
        a, b = ((words[at:at + 64, :, first::2] + keys()[:, first::2]).astype("<u8") for first in (0, 1))
        found[at:at + 64] = np.sum(a * b, -1)
    return found.view(np.uint8)


sums: Callable[[np.ndarray], np.ndarray] = plain_sums


def digest(header: str, data: np.ndarray) -> str:
    """32 hexadecimal digits for a header and contiguous bytes; how many bytes follows from the header."""
    found = hashlib.sha256(header.encode())
    whole = len(data) // BLOCK * BLOCK if len(data) >= LEAST else 0
    if whole:
        found.update(sums(data[:whole]))
    found.update(data[whole:])
    return found.hexdigest()[:32]
