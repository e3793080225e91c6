"""Which elements a set of stores reaches, for the verifier: each store is a set of runs of neighbours, and all runs are laid side by side.

The stores given are executed for all values of the loops around them (of a choice, the verifier gives one way at a time), so this
is exact; only where it would take too many runs nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

# Kernels whose stores fall into more runs than this are left undecided.
_MOST_RUNS = 1 << 18

# (coefficient, extent) of each loop variable in an index
Term = tuple[int, int]


def _runs(offset: int, terms: Sequence[Term]) -> tuple[int, int, list[Term]]:
    """(offset, length, rest): the elements offset + sum(c * x) are runs of this length, which begin at offset + sum over `rest`."""
    offset += sum(c * (extent - 1) for c, extent in terms if c < 0)
    length, rest = 1, []
    for c, extent in sorted((abs(c), extent) for c, extent in terms if c and extent > 1):
        if c <= length and not rest:
            length += c * (extent - 1)
        else:
            rest.append((c, extent))
    return offset, length, rest


def first_unwritten(size: int, stores: Iterable[tuple[int, Sequence[Term]]]) -> int | None:
    """The first element of 0..size-1 that no store reaches; None if there is none, or where that would take too long to say."""
    found: set[tuple[int, int, tuple[Term, ...]]] = set()
    for offset, terms in stores:
        if all(extent > 0 for _, extent in terms):
            start, length, rest = _runs(offset, terms)
            found.add((start, length, tuple(rest)))
    if sum(math.prod(extent for _, extent in rest) for _, _, rest in found) > _MOST_RUNS:
        return None
    starts, ends = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    for start, length, rest in found:
        each = np.array([start], np.int64)
        for c, extent in rest:
            each = (each[:, None] + c * np.arange(extent, dtype=np.int64)).reshape(-1)
        starts.append(each)
        ends.append(each + length)
    first, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(first, kind="stable")
    reached = np.maximum.accumulate(end[order])
    gaps = np.flatnonzero(first[order][1:] > reached[:-1])
    until = int(reached[gaps[0]]) if gaps.size else int(reached[-1])
    return until if until < size else None
