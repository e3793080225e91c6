"""Where choices come from: one small interface over `random.Random` and over Hypothesis, so that recipes are written once.

Choices are ordered from simple to complicated: Hypothesis shrinks towards the first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Draws(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """An integer in low..high, both included."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""

    def chance(self, probability: float) -> bool:
        """True about this often."""


class RandomDraws:
    """Choices from a seeded generator: fast, and the same on every machine."""

    def __init__(self, source: random.Random):
        self.source = source

    def integer(self, low: int, high: int) -> int:
        return self.source.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self.source.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.source.random() < probability


class HypothesisDraws:
    """Choices from a Hypothesis `draw` function: shrinkable."""

    def __init__(self, draw: Callable):
        from hypothesis import strategies
        self.draw, self.st = draw, strategies

    def integer(self, low: int, high: int) -> int:
        return self.draw(self.st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return options[self.draw(self.st.integers(0, len(options) - 1))]

    def chance(self, probability: float) -> bool:
        return self.draw(self.st.integers(0, 99)) >= 100 - round(100 * probability)
