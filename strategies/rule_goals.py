"""Instances of rewrite rules: programs in which a rule fires, and near misses in which it must not.

A rule's `match` is data; an instance is built from it, from the root towards the operands. A near miss changes one thing:
the dtype to one that `when` refuses, a constant to its neighbour, a repeated variable to another one, the operands' order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from mlc_strategies import inverse, values
from mlc_strategies.ingredients import attributes, dot_fitting
from mlc_strategies.recipe import Builder, Config
from mlc_strategies.temptations import TEMPTATIONS

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.errors import MlcError
from mlc.graph.graph import Graph, Node
from mlc.ops.base import COMMUTATIVE, CONTRACTION, ELEMENTWISE, REDUCTION, REGISTRY, Domain, OpDef
from mlc.passes.driver import apply_rules
from mlc.passes.manager import PassContext
from mlc.passes.pattern import RESULT, Pattern, Rule, Splat, Term, Var, splat_array
from mlc.passes.simplify import RULES

# How often an instance is tried anew when the rule did not fire.
TRIES = 12
CONVERT = "convert_element_type"
# What a splat becomes in a near miss. Some are not near, but a rule that takes them for the same is wrong, too.
NEIGHBOURS = {"0": (-0.0, 1), "-0.0": (0, 1), "0.0": (-0.0, 1), "1": (-1, 2, 0), "-1": (1, -2), "lowest": ("highest", 0), "highest": ("lowest", 0),
              "ones": (0, 1, "highest"), "True": (False,), "False": (True,)}


@dataclass(frozen=True)
class Goal:
    """Something to instantiate: a rule, or a pattern that no rule has."""

    name: str
    match: tuple[Term, ...]
    rule: Rule | None = None

    @property
    def ops(self) -> set[str]:
        """The ops of its patterns."""
        return {t.op.name for each in self.match for t in subterms(each)}


def goals(config: Config) -> list[Goal]:
    """The rules and temptations whose ops the config allows."""
    return [g for g in _all_goals().values() if all(config.allows(name) for name in g.ops - {"constant"}) and any(_dtypes(config, g))]


def temptations(config: Config) -> list[Goal]:
    """The patterns without a rule whose ops the config allows."""
    if config.ops is None and config.dtypes is dt.ALL:
        return _all_temptations()
    return [g for g in goals(config) if g.rule is None]


@functools.cache
def _all_temptations() -> list[Goal]:
    return [g for g in _all_goals().values() if g.rule is None]


@functools.cache
def _all_goals() -> dict[str, Goal]:
    found = [Goal(rule.name, rule.match, rule) for rule in RULES.rules] + [Goal(name, (match,)) for name, match in TEMPTATIONS.items()]
    return {g.name: g for g in found}


def named(name: str) -> Goal:
    """The goal of this name. Raises KeyError."""
    return _all_goals()[name]


def _dtypes(config: Config, goal: Goal) -> list[DType]:
    return [d for d in config.dtypes if all(d in REGISTRY[name].dtypes or name == "not" for name in goal.ops)]


def subterms(pattern: object) -> Iterator[Term]:
    """The terms of a pattern, outermost first."""
    if isinstance(pattern, Term):
        yield pattern
        for arg in pattern.args:
            yield from subterms(arg)


def fires(rule: Rule, graph: Graph, node: int) -> bool:
    """Whether the rule applies where this node is computed, other rules having had their turn."""
    needed, todo = set(), [node]
    while todo:
        i = todo.pop()
        if i not in needed:
            needed.add(i)
            todo.extend(graph.nodes[i].inputs)
    part, ids = Graph(), {}
    for i in sorted(needed):
        found = graph.nodes[i]
        leaf = found.op.name == "parameter" or found.regions
        ids[i] = part.parameter(f"x{i}", found.type) if leaf else part.add(found.op, [ids[k] for k in found.inputs], found.attrs, found.type)
    context = PassContext()
    apply_rules(RULES, part.set_outputs([ids[node]]), context)
    return any(name == rule.name for _, name in context.trace)


def place(b: Builder, goal: Goal, miss: bool = False) -> int | None:
    """Add an instance of the goal, or with `miss` a near miss; None when nothing fits."""
    made = None
    for _ in range(TRIES):
        begun = len(b.graph)
        try:
            made = Instance(b, goal, miss).root()
        except MlcError:
            made = None
        if made is not None and (miss or goal.rule is None or fires(goal.rule, b.graph, made)):
            return made
        b.shunned.update(range(begun, len(b.graph)))
    return made


class Instance:
    """One try. `dtype` is that of the operands where the pattern leaves it open."""

    def __init__(self, b: Builder, goal: Goal, miss: bool):
        self.b, self.draws, self.goal = b, b.draws, goal
        self.term = self.draws.choice(goal.match)
        self.bound: dict[str, int] = {}
        # Of constants in a variable's place: the rule looks at them itself when its pattern names neither constants nor inner terms.
        self.open_constants = not any(isinstance(a, (Splat, Term)) for a in self.term.args)
        self.scalars: dict[DType, np.ndarray] = {}
        self.spoil = self.draws.choice(self._spoils()) if miss else ""
        self.result: TensorType | None = None
        self.dtype: DType | None = None

    # ----------------------------------------------------------------- near misses
    def _spoils(self) -> list[str]:
        """The ways in which this pattern can be missed."""
        terms = list(subterms(self.term))
        found = ["dtype"] if self.goal.rule is None or self.goal.rule.when else []
        found += ["splat"] if any(isinstance(a, Splat) for t in terms for a in t.args) else []
        names = [a.name for t in terms for a in t.args if isinstance(a, Var)]
        found += ["variable"] if len(set(names)) < len(names) else []
        found += ["order"] if any(len(t.args) > 1 and t.op.fusion == ELEMENTWISE and not t.op.has(COMMUTATIVE) for t in terms) else []
        return found or ["nothing"]

    def _once(self, spoil: str) -> bool:
        """Whether this is the place to spoil; there is one in an instance."""
        if self.spoil == spoil:
            self.spoil = ""
            return True
        return False

    # ----------------------------------------------------------------- dtypes
    def _conditions(self, known: dict[str, DType]) -> bool:
        """Whether the conditions on a single value's dtype hold, of those whose value's dtype is known."""
        for call in self.goal.rule.when if self.goal.rule else ():
            names = [a.name for a in call.args if isinstance(a, Var)]
            if len(call.args) == len(names) == 1 and names[0] in known:
                if not call.function(Node(REGISTRY["parameter"], (), {}, TensorType((2, 3), known[names[0]]))):
                    return False
        return True

    def _open_dtype(self) -> DType | None:
        """A dtype for the operands that conditions and constants allow; one that conditions refuse, to spoil them."""
        direct = {a.name for t in subterms(self.term) if t.op.name != CONVERT for a in t.args if isinstance(a, Var)}
        splats = [a.value for t in subterms(self.term) for a in t.args if isinstance(a, Splat)]
        fit, unfit = [], []
        for d in _dtypes(self.b.config, self.goal):
            result = self._root_type(d)
            if result is None:
                continue
            known = {name: d for name in direct} | {RESULT.name: result.dtype}
            good = self._conditions(known) and all(isinstance(v, bool) or splat_array(v, d) is not None for v in splats)
            (fit if good else unfit).append(d)
        if unfit and self._once("dtype"):
            return self.draws.choice(unfit)
        return self.draws.choice(fit or unfit) if fit or unfit else None

    def _root_type(self, dtype: DType, pattern: object = None) -> TensorType | None:
        """The scalar type of a part of the pattern (of its root if left out), the open dtype being this; None if it can't be."""
        pattern = self.term if pattern is None else pattern
        scalar = TensorType((), dtype)
        if not isinstance(pattern, Term) or not pattern.args or pattern.op.name == CONVERT:
            return scalar
        types = [self._root_type(dtype, arg) for arg in pattern.args]
        if None in types:
            return None
        if pattern.op.fusion != ELEMENTWISE:
            return types[0]
        for first in (types[0], scalar.with_dtype(dt.bool_)):
            try:
                return pattern.op.infer([first, *types[1:]], self._attrs(pattern, dtype), None)
            except MlcError:
                continue
        return None

    # ----------------------------------------------------------------- building
    def root(self) -> int | None:
        """The whole pattern; its root's id."""
        self.dtype = self._open_dtype()
        if self.dtype is None:
            return None
        if self.term.op.fusion == CONTRACTION:
            return self._dot(self.term)
        dtype = self._root_type(self.dtype).dtype
        if self.term.op.fusion == REDUCTION and self.term.op.typed:
            dtype = self.draws.choice([d for d in self.b.config.dtypes if d.is_int and d.bits >= 16] or [dt.i32])
        self.result = TensorType(self._root_shape(), dtype)
        return self._make(self.term, self.result, values.ORDINARY)

    def _root_shape(self) -> tuple[int, ...]:
        """A shape of the palette, with room for the axes that reductions below it add."""
        below = sum(t.op.fusion == REDUCTION for t in subterms(self.term))
        least = 0 if self.draws.chance(0.1) else 1 if below or self.draws.chance(0.3) else 2
        palette = self.b.config.palette
        shapes = [s for s in palette.shapes if least <= len(s) <= 5 - 2 * below and (not below or math.prod(s) * palette.sizes[0] ** below <= 256)]
        return self.draws.choice(shapes) if shapes else self.b.shape(1)

    def _make(self, pattern: object, type: TensorType, domain: Domain) -> int | None:
        """A value of this type for a part of the pattern."""
        if isinstance(pattern, Splat):
            return self._splat(pattern.value, type)
        if isinstance(pattern, Var):
            return self._variable(pattern, type, domain)
        if pattern.op.name == "constant":
            return self.b.splat(type, domain)
        if pattern.op.name == CONVERT:
            made = self._operands(pattern, [type.with_dtype(self._source(pattern, type))], [domain])
            return None if made is None else self.b.emit(CONVERT, made, {}, type)
        if pattern.op.fusion == ELEMENTWISE:
            return self._elementwise(pattern, type)
        if pattern.op.fusion == CONTRACTION:
            return None
        return self._moved(pattern, type, domain)

    def _splat(self, value: object, type: TensorType) -> int:
        if self._once("splat"):
            options = [v for v in NEIGHBOURS.get(str(value), (0, 1)) if splat_array(v, type.dtype) is not None]
            value = self.draws.choice(options) if options else value
        array = splat_array(value, type.dtype)
        if array is None:
            array = values.nearest(0 if isinstance(value, str) else value, type.dtype)
        return self.b._evaluated(self.b.graph.constant(array, type))

    def _variable(self, var: Var, type: TensorType, domain: Domain) -> int | None:
        node = self.bound.get(var.name)
        if node is not None and self.b.type(node) == type and not self._once("variable"):
            return node
        if self.draws.chance(0.4 if self.open_constants else 0.12):
            if type.dtype not in self.scalars or self.draws.chance(0.5):
                self.scalars[type.dtype] = values.notable(self.b.rng, type.dtype, domain)
            node = self.b._evaluated(self.b.graph.constant(self.scalars[type.dtype], type))
        else:
            node = self.b.operand(type, domain)
            if node in self.bound.values() and self.draws.chance(0.85):
                node = self.b.source(type, domain)  # two variables are two values, mostly
        self.bound.setdefault(var.name, node)
        return node

    def _operands(self, pattern: Term, types: list[TensorType], domains: list[Domain]) -> list[int] | None:
        """The operands of a term: inner terms first, because a variable beside one may be made in its likeness."""
        made: dict[int, int] = {}
        model = None
        for k in sorted(range(len(types)), key=lambda k: not isinstance(pattern.args[k], Term)):
            like = isinstance(pattern.args[k], Var) and model is not None and pattern.args[k].name not in self.bound and self.draws.chance(0.5)
            node = self._alike(model, domains[k]) if like and self.b.type(model) == types[k] else None
            if node is None:
                node = self._make(pattern.args[k], types[k], domains[k])
            if node is None:
                return None
            if isinstance(pattern.args[k], Term):
                model = node
            elif like:
                self.bound.setdefault(pattern.args[k].name, node)
            made[k] = node
        return [made[k] for k in range(len(types))]

    def _alike(self, model: int, domain: Domain) -> int | None:
        """The same op with the same attributes over another operand."""
        node = self.b.graph.nodes[model]
        if len(node.inputs) != 1:
            return None
        operand = self.b.operand(self.b.type(node.inputs[0]), domain)
        if operand == node.inputs[0]:
            operand = self.b.source(self.b.type(operand), domain)
        return self.b.emit(node.op.name, [operand], node.attrs, node.type if node.op.typed else None)

    def _attrs(self, pattern: Term, dtype: DType) -> dict:
        """What the pattern fixes; the rest of an elementwise op's is drawn."""
        fixed = {k: v for k, v in pattern.attrs.items() if not isinstance(v, Pattern)}
        return {**attributes(self.b, pattern.op, dtype), **fixed} if pattern.op.fusion == ELEMENTWISE else fixed

    def _elementwise(self, pattern: Term, type: TensorType) -> int | None:
        attrs = self._attrs(pattern, self.dtype)
        types = self._operand_types(pattern.op, attrs, type)
        if types is None:
            return None
        made = self._operands(pattern, types, list(pattern.op.inputs))
        if made is None:
            return None
        if len(made) > 1 and types[0] == types[-1] and not pattern.op.has(COMMUTATIVE) and self._once("order"):
            made.reverse()
        elif pattern.op.has(COMMUTATIVE) and self.draws.chance(0.4):
            made.reverse()
        return self.b.emit(pattern.op.name, made, attrs)

    def _operand_types(self, op: OpDef, attrs: dict, type: TensorType) -> list[TensorType] | None:
        """Operand types that give this result type: the open dtype (comparisons), the result's, bool first (select)."""
        for first, others in ((self.dtype, self.dtype), (type.dtype, type.dtype), (dt.bool_, type.dtype)):
            types = [type.with_dtype(first)] + [type.with_dtype(others)] * (op.arity - 1)
            try:
                if op.infer(types, attrs, None) == type:
                    return types
            except MlcError:
                continue
        return None

    def _source(self, pattern: Term, type: TensorType) -> DType:
        """What a conversion to this type may come from."""
        (arg,) = pattern.args
        options = list(self.b.config.dtypes)
        if isinstance(arg, Var):
            fit = [d for d in options if self._conditions({arg.name: d})]
            unfit = [d for d in options if d not in fit]
            options = unfit if unfit and self._once("dtype") else fit or options
            same = any(len(call.args) == 2 for call in self.goal.rule.when) if self.goal.rule else False
            if same and type.dtype in options:
                return type.dtype
        return self.draws.choice(options)

    # ----------------------------------------------------------------- movement, reductions, contractions
    def _moved(self, pattern: Term, type: TensorType, domain: Domain) -> int | None:
        op, palette = pattern.op, self.b.config.palette
        if op.fusion == REDUCTION:
            dtype = self.dtype if op.typed else type.dtype
            found = inverse.before_reduction(self.draws, palette, type, dtype)
        elif op.arity == 0:
            found = [], {name: self.draws.integer(0, max(type.rank - 1, 0)) for name in op.attrs}
        else:
            found = inverse.before(op.name, self.draws, palette, type)
        if found is None or not all(palette.fits(t.shape) for t in found[0]):
            return None
        types, attrs = found
        attrs = {**attrs, **self._attrs(pattern, type.dtype)}
        if any(isinstance(a, Var) and a.rest for a in pattern.args):
            made = self._parts(types, attrs, domain)
        else:
            made = self._operands(pattern, types, [domain] * len(types))
        return None if made is None else self.b.emit(op.name, made, attrs, type if op.typed else None)

    def _parts(self, types: list[TensorType], attrs: dict, domain: Domain) -> list[int] | None:
        """The parts of a concatenation: any, splats, neighbouring slices of one value, or concatenations themselves."""
        kind = self.draws.choice(["any", "splats", "slices", "nested", "splat"])
        axis, made, at = attrs["axis"], [], 0
        whole = sum(t.shape[axis] for t in types)
        source = None
        if kind == "slices" and self.b.config.allows("slice"):
            source = self.b.operand(TensorType([whole if a == axis else n for a, n in enumerate(types[0].shape)], types[0].dtype), domain)
        value = values.notable(self.b.rng, types[0].dtype, domain)
        for type in types:
            start = tuple(at if a == axis else 0 for a in range(type.rank))
            at += type.shape[axis]
            node = None
            if source is not None:
                limit = tuple(at if a == axis else n for a, n in enumerate(type.shape))
                node = self.b.emit("slice", [source], {"start": start, "limit": limit, "strides": (1,) * type.rank})
            elif kind == "splats" or (kind == "splat" and not made):
                node = self.b._evaluated(self.b.graph.constant(value, type))
            elif kind == "nested":
                found = inverse.before("concatenate", self.draws, self.b.config.palette, type)
                if found is not None:
                    node = self.b.emit("concatenate", [self.b.operand(t, domain) for t in found[0]], found[1])
            made.append(self.b.operand(type, domain) if node is None else node)
        return made

    def _dot(self, pattern: Term) -> int | None:
        """The left operand first; the right one's type follows from it."""
        x_type = TensorType(self.b.shape(1), self.dtype)
        plan = dot_fitting(self.b, x_type)
        if plan is None:
            return None
        y_type, attrs, shape = plan
        made = self._operands(pattern, [x_type, y_type], list(pattern.op.inputs))
        return None if made is None else self.b.emit("dot_general", made, attrs, TensorType(shape, self.dtype))


