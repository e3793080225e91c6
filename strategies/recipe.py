"""Graphs that are valid by construction, with arguments: one recipe, driven by any source of choices.

A `Builder` grows a graph op by op and evaluates each node as it goes, so that a node that would drown the comparison (all
NaN, nothing known of it) is taken back at once. How one op finds its operands and attributes is `mlc_strategies.ingredients`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from mlc_strategies import values
from mlc_strategies.draws import Draws, RandomDraws
from mlc_strategies.shapes import Palette

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.graph.graph import Graph, Node
from mlc.graph.interpreter import apply_node, evaluate
from mlc.ops.base import CONTRACTION, REDUCTION, REGISTRY, Domain

MAX_PARAMETERS = 8
# Share of elements of a new node that may be NaN or infinite when arguments are dense.
MAX_SPECIAL = 0.2
# Share of steps that repeat an earlier one, exactly or nearly.
REPEATS = 1 / 7
LEAVES = ("parameter", "constant")


@dataclass(frozen=True)
class Config:
    """What may be drawn. `ops` None means all; `goal` is an (op name, dtype) that must be in the graph if it can be; so is
    `rule`, the name of a rewrite rule or of a temptation (`mlc_strategies.rule_goals`), with a near miss beside it. `long`:
    values are read again late and often, and contractions and reductions abound, so that memory has to be planned. `probes`: (op name,
    dtype) that are applied to their own edges (`mlc_strategies.probes`); `lengths`: something of a length at the compiler's boundaries;
    `path`: a way of computing to reach (`mlc_strategies.path_goals`)."""

    palette: Palette = field(default_factory=lambda: Palette.number(0))
    ops: tuple[str, ...] | None = None
    dtypes: tuple[DType, ...] = dt.ALL
    steps: tuple[int, int] = (1, 10)
    special: bool = False
    goal: tuple[str, DType] | None = None
    rule: str | None = None
    idioms: bool = True
    long: bool = False
    probes: tuple[tuple[str, DType], ...] = ()
    lengths: bool = False
    path: str = ""

    def allows(self, name: str) -> bool:
        return self.ops is None or name in self.ops


@dataclass
class Program:
    """A graph, arguments for it, and the evaluator's value of every node."""

    graph: Graph
    args: list[np.ndarray]
    values: list


class NumpyEvaluator:
    """Node values by the own-dtype interpreter; refuses nodes that are mostly NaN or infinite."""

    def leaf(self, type: TensorType, array: np.ndarray):
        return array

    def value(self, node: Node, operands: Sequence):
        if node.regions:
            return tuple(evaluate(node.regions[0], operands))
        if operands and isinstance(operands[0], tuple):
            return operands[0][node.attrs["index"]]
        return apply_node(node, operands)

    def array(self, value) -> np.ndarray:
        return value

    def acceptable(self, value, special: bool) -> bool:
        """Whether a node of this value is worth having; `special`: arguments hold NaN and infinities on purpose."""
        return special or special_share(value) <= MAX_SPECIAL


def special_share(array: np.ndarray) -> float:
    """The share of NaN and infinite elements."""
    if array.dtype.kind in "biu" or not array.size:
        return 0.0
    return 1.0 - float(np.isfinite(array.astype(np.float64, copy=False)).mean())


def _precision(dtype: DType) -> int:
    """Bits of a float's significand; 0 for integers and bools."""
    return dt.MANTISSA.get(dtype, 0)


class Builder:
    """A graph in the making. `closed` (inside a region) makes constants where parameters would be made."""

    def __init__(self, draws: Draws, config: Config, evaluator=None, seed: int = 0, closed: bool = False):
        self.draws, self.config, self.closed = draws, config, closed
        self.evaluator = evaluator or NumpyEvaluator()
        self.rng = np.random.default_rng(seed)
        self.graph = Graph()
        self.args: list[np.ndarray] = []
        self.values: list = []
        # Nodes that must reach an output.
        self.kept: list[int] = []
        # Left over from what did not succeed: no outputs of their own.
        self.shunned: set[int] = set()

    # ----------------------------------------------------------------- leaves
    def array(self, type: TensorType, domain: Domain) -> np.ndarray:
        return (values.special if self.config.special else values.dense)(self.rng, type, domain)

    def bind(self, type: TensorType, array: np.ndarray, value) -> int:
        """A parameter with a given argument."""
        node = self.graph.parameter(f"x{len(self.graph.params)}", type)
        self.args.append(array)
        self.values.append(value)
        return node

    def source(self, type: TensorType, domain: Domain) -> int:
        """A fresh value of this type: a parameter, sometimes a constant."""
        if self.closed or len(self.graph.params) >= MAX_PARAMETERS or self.draws.chance(0.1):
            return self.constant(type, domain)
        array = self.array(type, domain)
        if self.config.special and self.draws.chance(0.15):
            # An argument equal to an earlier one: comparisons, max and argmax meet ties between operands.
            alike = [a for a in self.args if a.shape == array.shape and a.dtype == array.dtype]
            array = self.draws.choice(alike).copy() if alike else array
        return self.bind(type, array, self.evaluator.leaf(type, array))

    def constant(self, type: TensorType, domain: Domain) -> int:
        """A splat mostly, half of them notable numbers; dense data sometimes."""
        splat = type.size == 0 or self.draws.chance(0.6)
        if splat and self.draws.chance(0.5):
            return self.splat(type, domain)
        array = self.array(TensorType((), type.dtype) if splat else type, domain)
        if not splat and not self.config.special and self.draws.chance(0.4):
            array = values.strewn(self.rng, type, domain)
        return self._evaluated(self.graph.constant(array, type))

    def splat(self, type: TensorType, domain: Domain = values.ORDINARY) -> int:
        """A constant with one notable value everywhere: 0, -0.0, 1, -1, a power of two, an extreme of the dtype, ..."""
        return self._evaluated(self.graph.constant(values.notable(self.rng, type.dtype, domain), type))

    def _evaluated(self, node: int) -> int:
        if node == len(self.values):
            self.values.append(self.evaluator.value(self.graph.nodes[node], []))
        return node

    # ----------------------------------------------------------------- nodes
    def emit(self, name: str, inputs: Sequence[int], attrs: dict | None = None, type: TensorType | None = None,
             regions: tuple[Graph, ...] = ()) -> int | None:
        """Add a node, or None when its value would be too large or of no use."""
        node = self.graph.add(name, inputs, attrs, type, regions)
        found = self.graph.nodes[node]
        single = isinstance(found.type, TensorType)
        if not single or self.config.palette.fits(found.type.shape):
            value = self.evaluator.value(found, [self.values[i] for i in inputs])
            if not single or self.evaluator.acceptable(value, self.config.special):
                self.values.append(value)
                return node
        self.graph.nodes.pop()
        return None

    def type(self, node: int) -> TensorType:
        return self.graph.nodes[node].type

    def pool(self, accept: Callable[[TensorType], bool]) -> list[int]:
        """Earlier tensor values whose type is accepted, latest first."""
        found = []
        for i in range(len(self.graph) - 1, -1, -1):
            type = self.graph.nodes[i].type
            if isinstance(type, TensorType) and accept(type):
                found.append(i)
        return found

    def _recent(self, accept: Callable[[TensorType], bool], count: int) -> list[int]:
        """The latest of the pool; in a long graph often the oldest instead, results before leaves."""
        found = self.pool(accept)
        if self.config.long and len(found) > count and self.draws.chance(0.4):
            results = [i for i in found if self.graph.nodes[i].op.name not in LEAVES]
            found = (results or found)[::-1]
        return found[:count]

    def inside(self, node: int, domain: Domain) -> bool:
        """Whether a value lies in the domain for nine elements of ten (floats; ints always do)."""
        array = self.evaluator.array(self.values[node])
        if self.config.special or array.dtype.kind in "biu" or not array.size:
            return True
        low, high = (-1e6, 1e6) if (domain.lo, domain.hi) == (values.ORDINARY.lo, values.ORDINARY.hi) else (domain.lo, domain.hi)
        return float(((array >= low) & (array <= high)).mean()) >= 0.9

    # ----------------------------------------------------------------- operands
    def shape(self, min_rank: int = 0) -> tuple[int, ...]:
        """A shape of the palette."""
        return self.draws.choice([s for s in self.config.palette.shapes if len(s) >= min_rank])

    def any_operand(self, dtype: DType, domain: Domain = values.ORDINARY, min_rank: int = 0) -> int:
        """An operand of any shape: an earlier value, one converted, or a fresh one."""
        known = self._recent(lambda t: t.dtype is dtype and t.rank >= min_rank, 8)
        if known and not self.draws.chance(0.15):
            node = self.draws.choice(known)
            if self.inside(node, domain):
                return node
            moved = self.into(node, domain)
            if moved is not None:
                return moved
        others = self.pool(lambda t: t.rank >= min_rank)[:6]
        if others and self.config.allows("convert_element_type") and self.draws.chance(0.5):
            node = self.draws.choice(others)
            made = self.emit("convert_element_type", [node], {}, self.type(node).with_dtype(dtype))
            if made is not None and self.inside(made, domain):
                return made
        return self.source(TensorType(self.shape(min_rank), dtype), domain)

    def into(self, node: int, domain: Domain) -> int | None:
        """The value moved into the domain, by scaling where that can do it, else by clamp."""
        type = self.type(node)
        if not type.dtype.is_float:
            return None
        if domain.lo < 0 < domain.hi and self.config.allows("mul"):
            top = np.abs(self.evaluator.array(self.values[node])).max(initial=0.0)
            if np.isfinite(top) and top > 0:
                factor = 2.0 ** np.floor(np.log2(float(min(-domain.lo, domain.hi)) / float(top)))
                if factor > 2.0 ** (dt.MIN_EXPONENT[type.dtype] // 2):
                    return self.emit("mul", [node, self._evaluated(self.graph.constant(factor, type))])
        if self.config.allows("clamp"):
            low, high = (self._evaluated(self.graph.constant(bound, type)) for bound in (domain.lo, domain.hi))
            return self.emit("clamp", [low, node, high])
        return None

    def operand(self, type: TensorType, domain: Domain = values.ORDINARY) -> int:
        """An operand of exactly this type: an earlier value, one broadcast, a constant or a fresh one."""
        known = [i for i in self._recent(lambda t: t == type, 6) if self.inside(i, domain)]
        if known and not self.draws.chance(0.2):
            return self.draws.choice(known)
        if type.rank and self.config.allows("broadcast_in_dim") and self.draws.chance(0.3):
            made = self.broadcast(type, domain)
            if made is not None:
                return made
        return self.constant(type, domain) if self.draws.chance(0.15) else self.source(type, domain)

    def broadcast(self, type: TensorType, domain: Domain) -> int | None:
        """A smaller value spread to this type: axes left out, or of size 1."""
        dims = tuple(d for d in range(type.rank) if self.draws.chance(0.6))
        shape = [1 if self.draws.chance(0.2) else type.shape[d] for d in dims]
        small = TensorType(shape, type.dtype)
        known = [i for i in self.pool(lambda t: t == small)[:4] if self.inside(i, domain)]
        node = self.draws.choice(known) if known else self.source(small, domain)
        return self.emit("broadcast_in_dim", [node], {"dims": dims}, type)

    # ----------------------------------------------------------------- the whole
    def step(self, name: str | None = None, dtype: DType | None = None) -> int | None:
        """Add one op (drawn if not named) over one of the dtypes it accepts."""
        from mlc_strategies.ingredients import ingredient, placeable
        name = name or self.draws.choice(self._heavy() if self.config.long and self.draws.chance(0.25) else placeable(self.config))
        options = [d for d in REGISTRY[name].dtypes if d in self.config.dtypes]
        if not options:
            return None
        if dtype is None:
            # Stay with the dtypes that are there, so that ops compose.
            present = [d for d in dict.fromkeys(self.type(i).dtype for i in self.pool(lambda t: True)[:6]) if d in options]
            dtype = self.draws.choice(present) if present and self.draws.chance(0.8) else self.draws.choice(options)
        return ingredient(name)(self, REGISTRY[name], dtype)

    def _heavy(self) -> list[str]:
        """The ops whose results are stored: contractions and reductions; all ops where the config allows none."""
        from mlc_strategies.ingredients import placeable
        names = placeable(self.config)
        return [n for n in names if REGISTRY[n].fusion in (CONTRACTION, REDUCTION)] + ["dot_general"] * 4 * ("dot_general" in names) or names

    def grow(self) -> None:
        """Reach the goals, then add steps and idioms."""
        from mlc_strategies.boundaries import reach
        from mlc_strategies.idioms import IDIOMS
        from mlc_strategies.path_goals import PATHS
        from mlc_strategies.probes import probe
        from mlc_strategies.variations import repeat
        if self.config.goal:
            for _ in range(3):
                made = self.step(*self.config.goal)
                if made is not None:
                    self.kept.append(made)
                    break
        if self.config.rule:
            self._reach_rule()
        made = [probe(self, *each) for each in self.config.probes]
        if self.config.lengths:
            made.append(reach(self))
        if self.config.path:
            made.append(PATHS[self.config.path](self))
        self.kept += [node for node in made if node is not None]
        for _ in range(self.draws.integer(*self.config.steps)):
            if self.config.idioms and self.config.ops is None and self.draws.chance(0.15):
                floats = [d for d in self.config.dtypes if d.is_float]
                if floats:
                    self.draws.choice(IDIOMS)(self, self.draws.choice(floats))
            elif self.draws.chance(REPEATS):
                repeat(self)
            else:
                self.step()
        if self.config.long:
            self._gather()

    def _gather(self) -> None:
        """Join values of one type that nothing reads yet, so that a long graph has few outputs and many values on the way."""
        names = [n for n in ("add", "max", "sub") if self.config.allows(n)]
        for _ in range(8 if names else 0):
            read = {k for node in self.graph.nodes for k in node.inputs}
            by_type: dict[TensorType, list[int]] = {}
            for i in self.pool(lambda t: True):
                if i not in read and i not in self.shunned and self.graph.nodes[i].op.name not in LEAVES:
                    by_type.setdefault(self.type(i), []).append(i)
            pairs = [(ends[-1], ends[0]) for type, ends in by_type.items() if len(ends) > 1]
            fitting = [(name, pair) for pair in pairs for name in names if self.type(pair[0]).dtype in REGISTRY[name].dtypes]
            if not fitting:
                return
            name, pair = self.draws.choice(fitting)
            self.emit(name, pair)

    def _reach_rule(self) -> None:
        """An instance of the rule, mostly a near miss of it, and often a temptation."""
        from mlc_strategies.rule_goals import named, place, temptations
        goal = named(self.config.rule)
        made = [place(self, goal), place(self, goal, miss=True) if self.draws.chance(0.6) else None]
        others = temptations(self.config)
        if others and self.draws.chance(0.4):
            made.append(place(self, self.draws.choice(others)))
        self.kept += [node for node in made if node is not None]

    def choose_outputs(self) -> list[int]:
        """Values that nothing reads, at most three of them, and now and then something unusual: an inner value, a repeat, a parameter."""
        read = {operand for node in self.graph.nodes for operand in node.inputs}
        tensors = [i for i in self.pool(lambda t: True) if self.graph.nodes[i].op.name not in LEAVES and i not in self.shunned]
        if not tensors:
            tensors = self.pool(lambda t: True) or [self.source(TensorType((), self.draws.choice(self.config.dtypes)), values.ORDINARY)]
        ends = [i for i in tensors if i not in read][:6 if self.config.long else 3] or tensors[:1]
        if self.draws.chance(0.4):
            ends.append(self.draws.choice(tensors))
        if self.draws.chance(0.03) and self.graph.params:
            ends.append(self.draws.choice(self.graph.params))
        return ends

    def _blunted(self, live: set[int], outputs: list[int]) -> list[int]:
        """Floats that are read by a comparison or a narrowing conversion, which hides small errors: most become outputs too."""
        found: list[int] = []
        for i in sorted(live):
            node = self.graph.nodes[i]
            if not isinstance(node.type, TensorType):
                continue
            for k in node.inputs:
                operand = self.graph.nodes[k]
                if (isinstance(operand.type, TensorType) and _precision(operand.type.dtype) > _precision(node.type.dtype)
                        and operand.op.name not in LEAVES and k not in outputs and k not in found and len(found) < 3 and self.draws.chance(0.75)):
                    found.append(k)
        return found

    def _needed(self, outputs: Sequence[int]) -> set[int]:
        live: set[int] = set()
        todo = list(outputs)
        while todo:
            node = todo.pop()
            if node not in live:
                live.add(node)
                todo.extend(self.graph.nodes[node].inputs)
        return live

    def program(self) -> Program:
        """The finished graph without what no output needs, its arguments and values."""
        outputs = self.choose_outputs()
        live = self._needed(outputs)
        for node in self.kept:
            if node not in live:
                outputs.append(node)
                live |= self._needed(outputs)
        blunted = self._blunted(live, outputs)
        if blunted:
            outputs += blunted
            live |= self._needed(outputs)
        if self.draws.chance(0.02):
            live.update(self.graph.params)
        new, ids, kept, args = Graph(), {}, [], []
        for i, node in enumerate(self.graph.nodes):
            if i not in live:
                continue
            if node.op.name == "parameter":
                ids[i] = new.parameter(f"x{len(new.params)}", node.type)
                args.append(self.args[self.graph.params.index(i)])
            elif node.op.name == "constant":
                ids[i] = new.constant(node.attrs["value"], node.type)
            else:
                ids[i] = new.add(node.op, [ids[k] for k in node.inputs], node.attrs, node.type, node.regions)
            kept.append(self.values[i])
        return Program(new.set_outputs(ids[o] for o in outputs), args, kept)


def build(source: random.Random | Draws, config: Config | None = None, evaluator=None) -> Program:
    """A random program. `source`: a `random.Random` (same seed, same program) or a `Draws`; `evaluator`: see NumpyEvaluator."""
    draws = RandomDraws(source) if isinstance(source, random.Random) else source
    with np.errstate(all="ignore"):
        builder = Builder(draws, config or Config(), evaluator, seed=draws.integer(0, 2**32 - 1))
        builder.grow()
        return builder.program()
