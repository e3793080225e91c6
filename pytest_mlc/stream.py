"""The stream of fresh programs of one process: case i of lane k is the same program on every machine and in every run.

Each case has a goal, an (op, dtype) of the registry, so that every op is exercised over every dtype it accepts; palettes of
shapes rotate. One case in four is about a rewrite rule instead, one in four carries special values and probes three ops at their
edges, nearly one in four has a length at a boundary of the compiler's loops, one in twenty-four is long, one in forty has large
tensors, one in twelve is an earlier program with one thing changed, and one in twelve is made for a way of computing that
sizes alone rarely reach.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass, replace

from mlc_strategies import boundaries, probes
from mlc_strategies.ingredients import placeable
from mlc_strategies.path_goals import PATHS
from mlc_strategies.recipe import Config, Program, build
from mlc_strategies.rule_goals import goals as rule_goals
from mlc_strategies.shapes import TRIPLES, Palette
from mlc_strategies.variations import twin

import mlc.ops
from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.graph.graph import Graph
from mlc.ops.base import CONTRACTION
from pytest_mlc.evaluator import BoundsEvaluator
from pytest_mlc.settings import Settings
from pytest_mlc.variants import VARIANTS

# Cases that share a palette before the next one comes.
EPOCH = 12
# Steps beside a goal: most faults need few ops and every op costs time, the long cases are for what takes many.
PLAIN_STEPS, PROBED_STEPS, LENGTH_STEPS = (0, 5), (0, 2), (0, 2)
# Probes in a case with special values.
PROBES = 3
SPECIAL_EVERY, JIT_EVERY, VARIANT_EVERY, LARGE_EVERY, RULE_EVERY, LONG_EVERY, TWIN_EVERY, PATH_EVERY = 8, 20, 3, 40, 4, 16, 12, 12
# Which of SPECIAL_EVERY cases have lengths at the compiler's boundaries.
LENGTHS_AT = (3, 4)
# Options that take turns: everything checked, nothing checked as users run it (so are twins and what they are made from: only that uses the
# persistent cache; with two in five that is half of all cases, and the others verify after each stage), steps that are not fused (more of them,
# and more memory to plan), other targets, parallel loops however small, stores past the caches however small, bf16 in pairs and bytes without
# matrix registers.
CHECK_EVERY, UNFUSED_EVERY, TARGET_EVERY, FORKED_EVERY, STREAMED_EVERY, PAIRED_EVERY = 10, 6, 12, 7, 11, 3
# A rhythm of its own, so that it meets every kind of case.
UNCHECKED_EVERY, UNCHECKED_AT = 5, (1, 3)


# Variants that take microseconds for each vector of a program's elements, and how many elements they get.
INTERPRETERS, MOST_INTERPRETED = ("kernels", "loops"), 1 << 14


@dataclass
class Fresh:
    """A generated program, its number in the stream, and how it is to be run."""

    number: int
    program: Program
    special: bool
    jit: bool
    variant: str
    options: dict[str, str]


@functools.cache
def targets() -> tuple[str, ...]:
    """The targets besides the native one whose code runs here."""
    from mlc.codegen.target import get_target, host_lacks
    return tuple(name for name in ("generic", "golden-v3") if not host_lacks(get_target(name).triple, get_target(name).requires))


def options_for(i: int) -> dict[str, str]:
    """The options that case number i is compiled under; those that are not named have their defaults."""
    found = {"check": "2" if i % CHECK_EVERY == 5 else "0" if i % UNCHECKED_EVERY in UNCHECKED_AT else "1"}
    if i % UNFUSED_EVERY == 2:
        found["disable_passes"] = "fuse"
    if i % TARGET_EVERY == 7 and targets():
        found["target"] = targets()[i // TARGET_EVERY % len(targets())]
    if i % FORKED_EVERY == 3 or _large(i) or path_of(i) == "split":
        found["fork_us"] = "0"  # graphs are too small for parallel loops otherwise
    if i % STREAMED_EVERY == 5:
        found["stream_kb"] = "0"
    if i % PAIRED_EVERY == 1 or path_of(i) == "pairs":
        found |= {"bf16_pairs": "on", "matrix": "off"}  # also on CPUs where it is slower, or matrix registers do the same
    return found


def path_of(i: int) -> str:
    """The way of computing that case i is made for, or "" in most of them."""
    turns = [*PATHS, "attend"]  # which takes more than sizes, so that some miss it
    return turns[i // PATH_EVERY % len(turns)] if i % PATH_EVERY == PATH_EVERY // 2 else ""


def _probes(config: Config, seed: int) -> list[tuple[str, DType]]:
    """All that can be probed, in an order of the seed; floats, which have more edges, come as often as all others together."""
    found: dict[bool, list] = {True: [], False: []}
    for pair in probes.pairs(config):
        found[pair[1].is_float].append(pair)
    for each in found.values():
        random.Random(f"probes {seed}").shuffle(each)
    if not found[True] or not found[False]:
        return found[True] or found[False]
    return [each[k % len(each)] for k in range(max(map(len, found.values()))) for each in found.values()]


def _large(i: int) -> bool:
    return i % LARGE_EVERY == LARGE_EVERY // 2


def work(graph: Graph) -> int:
    """Elements that are computed; a contraction's count for each hundred terms, because its interpreter takes a tile at a time."""
    total = 0
    for node in graph.nodes:
        for region in node.regions:
            total += work(region)
        if node.inputs and isinstance(node.type, TensorType):
            operands = [graph.nodes[k].type for k in node.inputs]
            total += max([node.type.size, *(t.size for t in operands if isinstance(t, TensorType))])
            if node.op.fusion == CONTRACTION:
                terms = math.prod(operands[0].shape[a] for a in node.attrs.get("contract", ((),))[0])
                total += node.type.size * terms // 100
    return total


class Stream:
    """Programs of one lane."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.lane, self.lanes = settings.lane
        self.dtypes = tuple(dt.parse_dtype(d) for d in settings.dtypes) if settings.dtypes else dt.ALL
        config = Config(ops=settings.ops, dtypes=self.dtypes)
        self.goals = [(name, d) for name in placeable(config) for d in mlc.ops.REGISTRY[name].dtypes if d in self.dtypes]
        self.rules = [goal.name for goal in rule_goals(config) if goal.rule]
        for each in (self.goals, self.rules):
            random.Random(f"goals {settings.seed}").shuffle(each)
        self.probes = _probes(config, settings.seed)
        self.evaluator = BoundsEvaluator()
        self.latest: dict[int, Program] = {}

    def _goal(self, i: int) -> dict:
        """The goal of case i as a field of its config: a rewrite rule in every fourth case, else an (op, dtype)."""
        rules = (i + RULE_EVERY - 2) // RULE_EVERY  # how many came before
        if i % RULE_EVERY == 1 and self.rules:
            return {"rule": self.rules[(rules * self.lanes + self.lane) % len(self.rules)]}
        return {"goal": self.goals[((i - rules) * self.lanes + self.lane) % len(self.goals)]} if self.goals else {}

    def _probed(self, i: int) -> tuple[tuple[str, DType], ...]:
        """The probes of case i, whose turn it is among the cases with special values."""
        before = PROBES * (i // SPECIAL_EVERY * 2 + (i % SPECIAL_EVERY > 1))
        return tuple(self.probes[((before + k) * self.lanes + self.lane) % len(self.probes)] for k in range(PROBES if self.probes else 0))

    def _config(self, i: int) -> Config:
        """What case i may be made of."""
        epoch = self.lane * (len(TRIPLES) // 3 + 1) + i // EPOCH
        # Every other case with a rule is special, too: rules differ in NaN, infinities and signed zeros.
        common = {"special": i % SPECIAL_EVERY in (1, SPECIAL_EVERY - 1), **self._goal(i)}
        if common["special"]:
            common["probes"] = self._probed(i)
        if _large(i):
            palette = Palette.large(self.settings.seed + (i * self.lanes + self.lane) // LARGE_EVERY)
            return Config(palette, self.settings.ops, self.dtypes, steps=(0, 3), **common)
        if path_of(i):
            palette = replace(Palette.number(self.settings.seed + epoch), max_elements=boundaries.MOST)
            return Config(palette, self.settings.ops, self.dtypes, steps=LENGTH_STEPS, path=path_of(i), **common)
        if i % LONG_EVERY == LONG_EVERY - 2:
            # Three dtypes and few shapes, because the reference pays for each op in each of them.
            some = (dt.ALL[(i // (LONG_EVERY * EPOCH)) % len(dt.ALL)], dt.f32, dt.i32)
            dtypes = tuple(d for d in self.dtypes if d in some) or self.dtypes[:1]
            if "goal" in common and common["goal"][1] not in dtypes:
                del common["goal"]
            palette = Palette.plain(self.settings.seed + self.lane + i // (LONG_EVERY * EPOCH))
            return Config(palette, self.settings.ops, dtypes, (15, 32), idioms=False, long=True, **common)
        palette = Palette.number(self.settings.seed + epoch)
        if i % SPECIAL_EVERY in LENGTHS_AT:
            palette = replace(palette, max_elements=boundaries.MOST)
            return Config(palette, self.settings.ops, self.dtypes, steps=LENGTH_STEPS, lengths=True, **common)
        return Config(palette, self.settings.ops, self.dtypes, steps=PROBED_STEPS if common["special"] else PLAIN_STEPS, **common)

    def _program(self, i: int) -> Program:
        """The program of case i, if it is none of the twins; the last ones are kept."""
        if i not in self.latest:
            source = random.Random(f"{self.settings.seed} {self.lane}/{self.lanes} {i}")
            self.latest[i] = build(source, self._config(i), self.evaluator)
            while len(self.latest) > TWIN_EVERY:
                del self.latest[next(iter(self.latest))]
        return self.latest[i]

    def _model(self, i: int) -> tuple[int, random.Random]:
        """The case before number i that this one is a twin of, and what the change is drawn from."""
        source = random.Random(f"{self.settings.seed} {self.lane}/{self.lanes} {i}")
        older = i - source.randint(1, TWIN_EVERY - 2)
        return older - _large(older), source

    def _twin(self, i: int) -> tuple[int, Program]:
        """A case before number i, and its program with one thing changed."""
        older, source = self._model(i)
        return older, twin(source, self._program(older), self._config(older), self.evaluator)

    def _options(self, i: int, model: int) -> dict[str, str]:
        """A twin has the options of its model, and both are compiled without checks: so that a persistent cache that takes one for the other is
        seen."""
        next_twin = i // TWIN_EVERY * TWIN_EVERY + TWIN_EVERY - 1
        return options_for(model) | ({"check": "0"} if self._model(next_twin)[0] == model else {})

    def case(self, i: int) -> Fresh:
        """Case number i."""
        model, program = self._twin(i) if i % TWIN_EVERY == TWIN_EVERY - 1 else (i, self._program(i))
        names = list(VARIANTS)
        variant = "threads" if _large(i) else names[i // VARIANT_EVERY % len(names)] if i % VARIANT_EVERY == 1 else ""
        if variant in INTERPRETERS and work(program.graph) > MOST_INTERPRETED:
            variant = "again"  # on a busy machine they would take long enough to count as hanging
        return Fresh(i * self.lanes + self.lane, program, self._config(model).special, i % JIT_EVERY == JIT_EVERY - 1, variant,
                     self._options(i, model))
