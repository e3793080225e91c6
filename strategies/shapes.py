"""Shapes: sizes around 0, 1, vector and tile widths, in small palettes that are closed under the ops that change sizes.

A fresh (op, shape, dtype) costs the reference tens of milliseconds, a known one microseconds: a palette holds two sizes
and their sum, so that slicing, padding and concatenating stay inside it, and a campaign moves from palette to palette.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Two sizes and their sum. Vector widths 4, 8, 16 and 32 lanes, register tiles, one less, one more; 0 and 1.
TRIPLES = (
    (1, 7, 8), (8, 9, 17), (15, 16, 31), (1, 16, 17), (16, 17, 33), (1, 31, 32), (3, 4, 7), (1, 32, 33), (2, 31, 33), (0, 5, 5),
    (31, 33, 64), (1, 64, 65), (7, 8, 15), (2, 3, 5), (1, 47, 48), (1, 48, 49), (1, 127, 128), (0, 17, 17), (6, 10, 16), (63, 65, 128), (5, 12, 17),
    (1, 255, 256), (24, 25, 49), (1, 1, 2),
)
# Beyond one chunk of a reduction, one tile of a contraction, or what one thread is worth.
LARGE_TRIPLES = ((1, 2049, 2050), (65, 130, 195), (1, 4097, 4098), (257, 256, 513), (1, 70001, 70002), (3, 1000, 1003), (127, 300, 427))
MAX_LARGE_ELEMENTS = 1 << 17
MAX_RANK = 5


@dataclass(frozen=True)
class Palette:
    """The sizes and shapes that one stretch of a campaign uses; `max_elements` bounds every tensor,
    `max_rank` those that graphs start from."""

    sizes: tuple[int, ...]
    max_elements: int = 4096
    max_rank: int = MAX_RANK

    @classmethod
    def number(cls, n: int) -> Palette:
        """Palette n (any integer: they repeat)."""
        a, b, c = TRIPLES[n % len(TRIPLES)]
        return cls(tuple(dict.fromkeys((a, b, c))))

    @classmethod
    def plain(cls, n: int) -> Palette:
        """Vectors and matrices in the sizes of palette n: for long graphs, which would else need very many references."""
        return cls(cls.number(n).sizes, max_rank=2)

    @classmethod
    def large(cls, n: int) -> Palette:
        """Palette n of the large ones."""
        return cls(LARGE_TRIPLES[n % len(LARGE_TRIPLES)], MAX_LARGE_ELEMENTS)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes graphs start from: ranks 0 to 5, simple ones first."""
        small, big = self.sizes[0], self.sizes[-1]
        middle = self.sizes[len(self.sizes) // 2]
        wanted = [(big,), (), (small, big), (middle, small), (middle, middle), (2, small, middle), (middle, 1, small), (2, 1, 3, middle),
                  (1, 2, 2, 1, big)]
        return tuple(s for s in dict.fromkeys(wanted) if len(s) <= self.max_rank and self.fits(s))

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) <= MAX_RANK and math.prod(shape) <= self.max_elements
