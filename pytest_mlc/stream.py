"""The stream of fresh programs of one process: case i of lane k is the same program on every machine and in every run.

Each case has a goal, an (op, dtype) of the registry, so that every op is exercised over every dtype it accepts; palettes of
shapes rotate, so that the reference stays warm; one case in eight carries special values, one in forty is large.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from mlc_strategies.ingredients import placeable
from mlc_strategies.recipe import Config, Program, build
from mlc_strategies.shapes import TRIPLES, Palette

import mlc.ops
from mlc.core import dtype as dt
from pytest_mlc.evaluator import BoundsEvaluator
from pytest_mlc.settings import Settings
from pytest_mlc.variants import VARIANTS

# Cases that share a palette before the next one comes.
EPOCH = 60
SPECIAL_EVERY, JIT_EVERY, VARIANT_EVERY, CHECK_EVERY, LARGE_EVERY = 8, 20, 3, 11, 40


@dataclass
class Fresh:
    """A generated program, its number in the stream, and how it is to be run."""

    number: int
    program: Program
    special: bool
    jit: bool
    variant: str
    check: int


class Stream:
    """Programs of one lane."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.lane, self.lanes = settings.lane
        self.dtypes = tuple(dt.parse_dtype(d) for d in settings.dtypes) if settings.dtypes else dt.ALL
        config = Config(ops=settings.ops, dtypes=self.dtypes)
        self.goals = [(name, d) for name in placeable(config) for d in mlc.ops.REGISTRY[name].dtypes if d in self.dtypes]
        random.Random(f"goals {settings.seed}").shuffle(self.goals)
        self.evaluator = BoundsEvaluator()

    def case(self, i: int) -> Fresh:
        """Case number i."""
        source = random.Random(f"{self.settings.seed} {self.lane}/{self.lanes} {i}")
        number = i * self.lanes + self.lane
        epoch = self.lane * (len(TRIPLES) // 3 + 1) + i // EPOCH
        special = i % SPECIAL_EVERY == SPECIAL_EVERY - 1
        large = i % LARGE_EVERY == LARGE_EVERY // 2
        palette = Palette.large(self.settings.seed + number // LARGE_EVERY) if large else Palette.number(self.settings.seed + epoch)
        config = Config(palette, self.settings.ops, self.dtypes, steps=(0, 3) if large else (0, 8), special=special,
                        goal=self.goals[number % len(self.goals)] if self.goals else None)
        names = list(VARIANTS)
        variant = "threads" if large else names[i // VARIANT_EVERY % len(names)] if i % VARIANT_EVERY == 1 else ""
        return Fresh(number, build(source, config, self.evaluator), special, i % JIT_EVERY == JIT_EVERY - 1, variant,
                     2 if i % CHECK_EVERY == 5 else 0)
