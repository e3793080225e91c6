"""Which buffers lie in outputs instead of the arena: an output is free memory until it is written.

While the worst step (the one with most alive in the arena) has a box that fits into an output, the largest such box goes there;
of boxes alike, the one that lives longest. Moves that lowered nothing in the end are taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.core.dataclass import dataclass, field
from mlc.memory.place import Box, lowest

# More boxes than this are not moved.
_MOST_MOVES = 500


@dataclass
class Room:
    """An output's memory: how many bytes (and `unit` bytes a unit), and the segments in it, (first step, last step, low, high) in units."""

    nbytes: int
    unit: int
    taken: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, box: Box, offset: int) -> None:
        """Let a box lie here."""
        self.taken += [(first, last, offset, offset + size) for first, last, size in box]

    def offset_for(self, box: Box, nbytes: int) -> int:
        """The lowest offset at which a box of so many bytes fits; -1 if it does not."""
        clash = [(low - size, high) for begin, end, low, high in self.taken for first, last, size in box if begin <= last and first <= end]
        offset = lowest(clash, False)
        return offset if offset * self.unit + nbytes <= self.nbytes else -1


def house(boxes: Sequence[Box], nbytes: Sequence[int], rooms: Sequence[Room]) -> dict[int, tuple[int, int]]:
    """(room, offset) of each box that is to lie in a room; `nbytes` are those of the boxes. The rooms are filled on the way."""
    rows = np.array([(first, last, size, i) for i, box in enumerate(boxes) for first, last, size in box], np.int64).reshape(-1, 4)
    first, last, size, owner = rows.T
    level = np.zeros(int(last.max(initial=-1)) + 2, np.int64)
    np.add.at(level, first, size)
    np.subtract.at(level, last + 1, size)
    level = np.cumsum(level)
    life = {i: box[-1][1] - box[0][0] for i, box in enumerate(boxes) if box}
    homes: dict[int, tuple[int, int]] = {}
    least, kept = int(level.max()), 0
    by_room = sorted(range(len(rooms)), key=lambda k: (rooms[k].nbytes, k))
    while least and len(homes) < _MOST_MOVES:
        worst = int(level.argmax())
        there = np.flatnonzero((first <= worst) & (worst <= last) & (size > 0))
        choices = sorted((-int(size[row]), -life[i], i) for row, i in zip(there, owner[there].tolist()) if i not in homes)
        found = next(((i, k, at) for _, _, i in choices for k in by_room if (at := rooms[k].offset_for(boxes[i], nbytes[i])) >= 0), None)
        if found is None:
            break
        i, k, at = found
        homes[i] = (k, at)
        rooms[k].add(boxes[i], at)
        for begin, end, units in boxes[i]:
            level[begin:end + 1] -= units
        if level.max() < least:
            least, kept = int(level.max()), len(homes)
    return dict(list(homes.items())[:kept])
