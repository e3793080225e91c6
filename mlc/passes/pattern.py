"""Rewrites as data: a pattern, a result, a reason, an exactness.

    rewrite("transpose-of-transpose", exact=BITWISE,
            match=transpose(transpose(x, perm=p), perm=q), to=transpose(x, perm=compose(p, q)), why="one movement instead of two")

Terms are made of ops (`term`), variables (`var`: one value; the same variable twice is the same value), attribute
variables (`attr`), splat constants (`splat`) and lifted functions (`lifted`: called with any of these, they are
evaluated once the pattern has matched; a variable in a call stands for its node). Commutative ops match in either order.
A result whose shape depends on sizes may be a function of the `Match` that returns a term, or None to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mlc.core.dataclass import dataclass
from mlc.core.dtype import DType
from mlc.core.locks import lazy
from mlc.graph.graph import Node
from mlc.ops.base import COMMUTATIVE, REGISTRY, OpDef

# Exactness classes: equal bits for every input (any NaN equals any NaN); within ulps; real-number algebra only.
BITWISE, ULP, REASSOCIATE = "bitwise", "ulp", "reassociate"


class Pattern:
    """Base of everything a term may hold that stands for something else."""

    __slots__ = ()


@dataclass(frozen=True)
class Var(Pattern):
    """Any value; with `rest`, all operands from here on, as a tuple."""

    name: str
    rest: bool = False

    def __repr__(self) -> str:
        return f"*{self.name}" if self.rest else self.name


@dataclass(frozen=True)
class Attr(Pattern):
    """Any attribute value."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call(Pattern):
    """A function of matched things, evaluated on demand."""

    function: Callable
    args: tuple

    def __repr__(self) -> str:
        return f"{self.function.__name__.strip('_')}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True)
class Splat(Pattern):
    """A constant with one value everywhere: a number, "lowest" or "highest" of the dtype, or "ones" (all bits set)."""

    value: object

    def __repr__(self) -> str:
        return str(self.value)


class Term(Pattern):
    """An op applied to patterns. `type` is what a typed op's result gets (the root's own type if left out)."""

    __slots__ = ("args", "attrs", "op", "type")

    def __init__(self, op: OpDef, args: tuple, attrs: dict[str, Any], type: object = None):
        assert attrs.keys() <= op.attrs.keys(), (op.name, attrs)
        self.op, self.args, self.attrs, self.type = op, args, attrs, type

    def __repr__(self) -> str:
        parts = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.attrs.items()]
        return f"{self.op.name}({', '.join(parts)})"


def term(name: str) -> Callable[..., Term]:
    """The constructor of terms of one op: `term("add")(x, y)`; attributes by name, and `type=` for typed ops."""
    definition = REGISTRY[name]

    def make(*args: Any, type: object = None, **attrs: Any) -> Term:
        return Term(definition, args, attrs, type)

    make.__name__ = name
    return make


def lifted(function: Callable) -> Callable[..., Call]:
    """A function whose call is delayed until the pattern has matched."""
    def make(*args: Any) -> Call:
        return Call(function, args)

    make.__name__ = function.__name__
    make.now = function
    return make


RESULT = Var("result")  # the matched root itself, in calls only


# --------------------------------------------------------------------------- splat values
_SPLAT_BYTES: dict[tuple[object, str], bytes | None] = {}


def splat_array(value: object, dtype: DType) -> np.ndarray | None:
    """The scalar that a `Splat(value)` means in `dtype`; None where the dtype has no such value."""
    if value == "lowest":
        return np.array(dtype.min, dtype.numpy)
    if value == "highest":
        return np.array(dtype.max, dtype.numpy)
    if value == "ones":
        return None if dtype.is_float else np.invert(np.zeros((), dtype.numpy))
    if dtype.is_float:
        return np.array(float(value), dtype.numpy)
    if isinstance(value, float) or not dtype.min <= int(value) <= dtype.max:
        return None  # 0.0 and -0.0 are meant for floats only
    return np.array(value, dtype.numpy)


def _splat_bytes(value: object, dtype: DType) -> bytes | None:
    key = (repr(value), dtype.name)
    if key not in _SPLAT_BYTES:
        array = splat_array(value, dtype)
        _SPLAT_BYTES[key] = None if array is None else array.tobytes()
    return _SPLAT_BYTES[key]


def is_splat_of(node: Node, value: object) -> bool:
    """Whether a node is the splat constant `value`, by bits."""
    if node.op.name != "constant":
        return False
    literal = node.attrs["value"]
    return literal.array.ndim == 0 and literal.array.tobytes() == _splat_bytes(value, literal.dtype)


# --------------------------------------------------------------------------- matching
class Match:
    """What the variables of a pattern stand for: `match["x"]` is an operand id or an attribute value."""

    __slots__ = ("bound", "nodes", "root")

    def __init__(self, nodes: Sequence[Node], root: Node):
        self.nodes, self.root, self.bound = nodes, root, {}

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def node(self, name: str) -> Node:
        return self.nodes[self.bound[name]]

    def value(self, part: Any) -> Any:
        """A part of a term outside operand position: attribute variables and calls become what they stand for."""
        if isinstance(part, Attr):
            return self.bound[part.name]
        if isinstance(part, Call):
            return part.function(*[self.value(a) for a in part.args])
        if isinstance(part, Var):
            if part is RESULT:
                return self.root
            found = self.bound[part.name]
            return [self.nodes[i] for i in found] if part.rest else self.nodes[found]
        return part


Matcher = Callable[[Match, Node], bool]


def _operand(pattern: Any, position: int) -> Matcher:
    """The check of one operand of a node."""
    if isinstance(pattern, Var):
        name, rest = pattern.name, pattern.rest

        def variable(match: Match, node: Node) -> bool:
            found = node.inputs[position:] if rest else node.inputs[position]
            return match.bound.setdefault(name, found) == found
        return variable
    if isinstance(pattern, Splat):
        value = pattern.value
        return lambda match, node: is_splat_of(match.nodes[node.inputs[position]], value)
    inner = _node(pattern)
    return lambda match, node: inner(match, match.nodes[node.inputs[position]])


def _attribute(name: str, pattern: Any) -> Matcher:
    if isinstance(pattern, Attr):
        slot = pattern.name
        return lambda match, node: match.bound.setdefault(slot, node.attrs[name]) == node.attrs[name]
    return lambda match, node: node.attrs[name] == pattern


def _node(pattern: Term) -> Matcher:
    """The check of a node: its op, attributes and operands, in that order."""
    definition = pattern.op
    checks = [_attribute(k, v) for k, v in pattern.attrs.items()] + [_operand(a, i) for i, a in enumerate(pattern.args)]

    def check(match: Match, node: Node) -> bool:
        if node.op is not definition:
            return False
        for each in checks:
            if not each(match, node):
                return False
        return True
    return check


def _orders(pattern: Any) -> Iterator[Any]:
    """The pattern, with the operands of commutative ops in every order."""
    if not isinstance(pattern, Term):
        yield pattern
        return
    choices: list[tuple] = [()]
    for arg in pattern.args:
        choices = [(*chosen, order) for chosen in choices for order in _orders(arg)]
    for args in choices:
        yield Term(pattern.op, args, pattern.attrs, pattern.type)
        if pattern.op.has(COMMUTATIVE) and args[0] != args[1]:
            yield Term(pattern.op, args[::-1], pattern.attrs, pattern.type)


# --------------------------------------------------------------------------- rules
@dataclass(frozen=True, eq=False)
class Rule:
    """One rewrite."""

    name: str
    exact: str
    match: tuple[Term, ...]
    to: Any
    why: str
    when: tuple

    @lazy
    def variants(self) -> tuple[tuple[tuple[str | None, ...], Matcher], ...]:
        """The compiled patterns, each with the ops its operands must have (None: any)."""
        return tuple((tuple(map(_wanted, v.args)), _node(v)) for each in self.match for v in _orders(each))

    def __repr__(self) -> str:
        to = "computed" if callable(self.to) else repr(self.to)
        when = f"  when {', '.join(map(repr, self.when))}" if self.when else ""
        return f"{self.name}: {' or '.join(map(repr, self.match))} -> {to}{when}  ({self.exact}; {self.why})"


def _wanted(pattern: Any) -> str | None:
    if isinstance(pattern, Term):
        return pattern.op.name
    return "constant" if isinstance(pattern, Splat) else None


class RuleSet:
    """Rules in the order they are tried, found by a node's op and its operands' ops."""

    def __init__(self, *parts: RuleSet):
        self.rules: list[Rule] = []
        self._names: set[str] = set()
        self._by_root: dict[str, list[Rule]] = {}
        self._memo: dict[tuple, tuple[tuple[Rule, Matcher], ...]] = {}
        for rule in (rule for part in parts for rule in part.rules):
            self._enter(rule)

    def __str__(self) -> str:
        """The rules as text, one a line."""
        return "".join(f"{rule!r}\n" for rule in self.rules)

    def rewrite(self, name: str, *, exact: str, match: Term, to: Any, why: str, when: Any = ()) -> None:
        """Enter a rule. `match`: a term, or several of one op; `when`: calls that must all be true; `to`: a term, variable
        or splat, or a function of the Match."""
        self._enter(Rule(name, exact, match if isinstance(match, tuple) else (match,), to, why, when if isinstance(when, tuple) else (when,)))

    def _enter(self, rule: Rule) -> None:
        assert rule.name not in self._names, rule.name
        self._names.add(rule.name)
        self.rules.append(rule)
        self._by_root.setdefault(rule.match[0].op.name, []).append(rule)

    def candidates(self, nodes: Sequence[Node], node: Node) -> tuple[tuple[Rule, Matcher], ...]:
        """The rules whose roots and operands' ops fit, in order, with the matcher of the fitting variant."""
        name = node.op.name
        if name not in self._by_root:
            return ()
        inputs = node.inputs
        if len(inputs) == 1:
            key = (name, nodes[inputs[0]].op.name)
        elif len(inputs) == 2:
            key = (name, nodes[inputs[0]].op.name, nodes[inputs[1]].op.name)
        else:
            key = (name, *[nodes[i].op.name for i in inputs[:4]])
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = tuple(
                (rule, matcher) for rule in self._by_root[name] for wanted, matcher in rule.variants
                if all(w is None or w == given for w, given in zip(wanted, key[1:])))
        return found
