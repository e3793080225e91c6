"""Digests of constant data: SHA-256 of little data, and for much data SHA-256 of what each block of 4 KiB comes to under two keyed sums.

The sum of a block is NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999): for words x and keys k, 64 bits each,

    sum over i of ((x[2i] + k[2i]) mod 2^64) * ((x[2i+1] + k[2i+1]) mod 2^64)   mod 2^128

Two blocks that differ have equal sums for at most one in 2^64 keys, so both sums are equal for one in 2^128; SHA-256 then sees different
input. The keys are fixed (SHAKE-256 of a label), for a digest names the same data on every machine.
`sums` is the sum of blocks in NumPy, until the runtime puts machine code in its place (`mlc.runtime.hashing`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import numpy as np

BLOCK = 4096
LEAST = 1 << 16  # bytes; less is hashed as it is


@functools.cache
def keys() -> np.ndarray:
    """The words of both keys, one row each."""
    return np.frombuffer(hashlib.shake_256(b"mlc: digests of constants").digest(2 * BLOCK), "<u8").reshape(2, BLOCK // 8)


def plain_sums(data: np.ndarray) -> np.ndarray:
    """[blocks, 2, 16] bytes, little-endian: both sums of every block of contiguous bytes, whose number a multiple of BLOCK is."""
    words = data.view("<u8").reshape(-1, 1, BLOCK // 8)
    found = np.empty((len(words), 2, 2), "<u8")
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for at in range(0, len(words), 64):  # in pieces: what is between takes ten times the memory
        a, b = ((words[at:at + 64, :, first::2] + keys()[None, :, first::2]) for first in (0, 1))
        parts = [x * y for x in (a & low, a >> half) for y in (b & low, b >> half)]
        lowest, *middle = (np.sum(p & low, -1) for p in parts[:3])
        upper = [np.sum(p >> half, -1) for p in parts[:3]]
        carried = (lowest >> half) + middle[0] + middle[1] + upper[0]
        found[at:at + 64, :, 0] = (lowest & low) | (carried << half)
        found[at:at + 64, :, 1] = (carried >> half) + upper[1] + upper[2] + np.sum(parts[3], -1)
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
