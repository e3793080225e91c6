"""One thing changed: steps that nearly repeat an earlier one, and twins of whole programs.

What keys things by what they are (CSE, kernels shared by content, caches) must tell such pairs apart, and may merge them
only where nothing differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlc_strategies import values
from mlc_strategies.draws import Draws, RandomDraws
from mlc_strategies.recipe import LEAVES, Builder, Config, Program

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.errors import MlcError
from mlc.core.scalar_eval import convert
from mlc.graph.graph import Graph, Node, infer_type
from mlc.ops.base import REGISTRY

TRIES = 6
# Ops of one signature, any of which may stand for another.
FAMILIES = (
    ("add", "sub", "mul", "max", "min"), ("lt", "le", "gt", "ge", "eq", "ne"), ("and", "or", "xor"), ("sin", "cos", "tanh", "logistic", "erf"),
    ("floor", "ceil", "round"), ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), ("reduce_and", "reduce_or"), ("argmax", "argmin"),
    ("exp", "exp2", "expm1"), ("log", "log2", "log1p"),
    ("shift_left", "shift_right_logical", "shift_right_arithmetic"), ("div", "rem"), ("neg", "abs", "sign"),
)


# --------------------------------------------------------------------------- one node
def plain(node: Node) -> bool:
    """An op of its own: no leaf, no region, one result."""
    return node.op.name not in LEAVES and not node.regions and isinstance(node.type, TensorType) and node.op.name != "tuple_get"


def _ints(draws: Draws, value: tuple[int, ...]) -> tuple[int, ...]:
    """Two entries swapped, or one moved by one."""
    found = list(value)
    if len(found) > 1 and draws.chance(0.6):
        i = draws.integer(0, len(found) - 2)
        found[i], found[i + 1] = found[i + 1], found[i]
    elif found:
        found[draws.integer(0, len(found) - 1)] += draws.choice([1, -1])
    return tuple(found)


def _axes(draws: Draws, value: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Another set of axes: one exchanged, added or left out."""
    found = set(value)
    if found and draws.chance(0.7):
        found.discard(draws.choice(sorted(found)))
    others = [a for a in range(rank) if a not in value]
    if others and (len(found) < len(value) or draws.chance(0.5)):
        found.add(draws.choice(others))
    return tuple(sorted(found))


def _pairs(draws: Draws, value: tuple) -> tuple:
    """One tuple within changed; for two of equal length (dot_general), both reordered alike now and then."""
    if not value:
        return value
    if len(value) == 2 and len(value[0]) == len(value[1]) > 1 and draws.chance(0.5):
        return tuple(tuple(reversed(v)) for v in value)
    k = draws.integer(0, len(value) - 1)
    changed = list(value[k])
    if len(changed) == 3:  # pads: from one end to the other
        step = draws.choice([1, -1])
        changed[0], changed[1] = changed[0] + step, changed[1] - step
    elif changed:
        changed = list(_ints(draws, value[k]))
    return tuple(tuple(changed) if i == k else v for i, v in enumerate(value))


def _attribute(draws: Draws, node: Node, rank: int) -> dict[str, Any]:
    """The node's attributes with one changed; start and limit of a slice move together."""
    attrs = dict(node.attrs)
    name = draws.choice(list(attrs))
    kind, value = node.op.attrs[name], attrs[name]
    if kind == "axes":
        attrs[name] = _axes(draws, value, rank)
    elif kind == "int":
        # No step to below zero: powers of integers and axes don't go there.
        attrs[name] = value + draws.choice([1, -1] if value else [1])
    elif kind == "pairs":
        attrs[name] = _pairs(draws, value)
    elif kind == "ints" and {"start", "limit"} <= attrs.keys() and value and name != "strides":
        at, step = draws.integer(0, len(value) - 1), draws.choice([1, -1])
        for each in ("start", "limit") if draws.chance(0.7) else (name,):
            attrs[each] = tuple(n + step * (k == at) for k, n in enumerate(attrs[each]))
    elif kind == "ints":
        attrs[name] = _ints(draws, value)
    return attrs


Changed = tuple[str, tuple[int, ...], dict, "TensorType | None"]


def altered(draws: Draws, graph: Graph, node: Node, others: Sequence[int] = (), family: bool = False) -> Changed | None:
    """A plain node with one thing changed, as (op, operands, attributes, declared type); None when nothing could be.

    An attribute, the operands' order, an operand (one of `others`), the declared type of a typed op; with `family` the op.
    """
    types = [graph.nodes[k].type for k in node.inputs]
    kinds = ["attribute"] * 3 * bool(node.attrs) + ["order"] * (len(node.inputs) > 1) + ["operand"] * bool(others and node.inputs)
    kinds += ["type"] * node.op.typed + ["op"] * family
    for _ in range(TRIES if kinds else 0):
        kind = draws.choice(kinds)
        name, inputs, attrs, given = node.op.name, list(node.inputs), dict(node.attrs), node.type if node.op.typed else None
        if kind == "attribute":
            attrs = _attribute(draws, node, types[0].rank if types else node.type.rank)
        elif kind == "order":
            inputs.reverse()
        elif kind == "operand":
            k = draws.integer(0, len(inputs) - 1)
            fitting = [i for i in others if graph.nodes[i].type == types[k] and i != inputs[k]]
            inputs[k] = draws.choice(fitting) if fitting else inputs[k]
        elif kind == "type":
            given = _retyped(draws, given)
        else:
            name = draws.choice(next((f for f in FAMILIES if name in f), (name,)))
        if (name, tuple(inputs), attrs, given) == (node.op.name, node.inputs, node.attrs, node.type if node.op.typed else None):
            continue
        try:
            infer_type(REGISTRY[name], [graph.nodes[k].type for k in inputs], attrs, given, ())
        except (MlcError, IndexError):
            continue
        return name, tuple(inputs), attrs, given
    return None


def _retyped(draws: Draws, type: TensorType) -> TensorType:
    """Another dtype, or two axes exchanged."""
    if type.rank > 1 and draws.chance(0.5):
        return TensorType(type.shape[::-1], type.dtype)
    return type.with_dtype(draws.choice(dt.ALL))


def repeat(b: Builder) -> None:
    """A step that repeats an earlier one on the same operands, exactly or with one thing changed. Both reach an output."""
    recent = [i for i in b.pool(lambda t: True)[:16] if plain(b.graph.nodes[i]) and i not in b.shunned]
    if not recent:
        return
    at = b.draws.choice(recent)
    node = b.graph.nodes[at]
    change: Changed | None = (node.op.name, node.inputs, dict(node.attrs), node.type if node.op.typed else None)
    if not b.draws.chance(0.35):
        change = altered(b.draws, b.graph, node, b.pool(lambda t: t.rank > 0)[:8])
    if change is None or (change[3] is not None and change[3].dtype not in b.config.dtypes):
        return
    made = b.emit(*change)
    if made is not None:
        b.kept += [at, made]


# --------------------------------------------------------------------------- a whole program
class _Twin:
    """A program written anew with one thing changed: `dtypes` and `sizes` everywhere, or one node's `change`."""

    def __init__(self, draws: Draws, program: Program, config: Config, evaluator):
        self.draws, self.program = draws, program
        self.b = Builder(draws, config, evaluator, seed=draws.integer(0, 2**32 - 1))
        self.dtypes: dict[DType, DType] = {}
        self.sizes: dict[int, int] = {}
        self.change: dict[int, Changed] = {}
        self.constant = -1

    def _type(self, type: TensorType) -> TensorType:
        return TensorType([self.sizes.get(n, n) for n in type.shape], self.dtypes.get(type.dtype, type.dtype))

    def _attrs(self, node: Node) -> Mapping[str, Any]:
        """Attributes that speak of sizes follow them: a slice of everything stays one."""
        if not self.sizes or "limit" not in node.attrs:
            return node.attrs
        sizes = self.program.graph.nodes[node.inputs[0]].type.shape
        return {**node.attrs, "limit": tuple(self.sizes.get(n, n) if end == n else end for end, n in zip(node.attrs["limit"], sizes))}

    def _array(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """The same values in another dtype; in another size, the old ones repeated."""
        with np.errstate(all="ignore"):
            found = convert(np.asarray(array), dt.as_dtype(array.dtype), type.dtype) if array.dtype != type.dtype.numpy else array
        if found.ndim and found.shape != tuple(type.shape):
            if not found.size:
                return values.dense(self.b.rng, type)
            found = np.resize(found, tuple(type.shape))
        return np.asarray(found)

    def _leaf(self, i: int, node: Node) -> int:
        type = self._type(node.type)
        if node.op.name == "parameter":
            array = self._array(self.program.args[self.program.graph.params.index(i)], type)
            return self.b.bind(type, array, self.b.evaluator.leaf(type, array))
        array = self._array(node.attrs["value"].array, type)
        if i == self.constant:
            array = np.array(array)
            at = () if not array.ndim else tuple(self.draws.integer(0, n - 1) for n in array.shape)
            array[at] = values.notable(self.b.rng, type.dtype)
        return self.b._evaluated(self.b.graph.constant(array, type))

    def write(self) -> Program | None:
        """The twin; None when the change does not fit."""
        graph, ids = self.program.graph, {}
        for i, node in enumerate(graph.nodes):
            if node.op.name in LEAVES:
                ids[i] = self._leaf(i, node)
                continue
            if node.regions and (self.dtypes or self.sizes):
                return None
            name, inputs, attrs, given = self.change.get(i, (node.op.name, node.inputs, self._attrs(node), node.type))
            typed = node.op.typed and isinstance(given, TensorType)
            if i not in self.change and typed:
                given = self._type(given)
            try:
                made = self.b.emit(name, [ids[k] for k in inputs], dict(attrs), given if typed else None, node.regions)
            except (MlcError, IndexError):
                return None
            if made is None:
                return None
            ids[i] = made
        new = self.b.graph
        if len(new) != len(graph):
            return None  # a constant has become like another one
        return Program(new.set_outputs(ids[o] for o in graph.outputs), self.b.args, self.b.values)


def twin(source, program: Program, config: Config, evaluator=None) -> Program:
    """The program with one thing changed: one dtype everywhere, one size everywhere, one constant, one attribute, operand or op.

    Structure and names stay. When no change fits (and now and then on purpose) the program itself.
    """
    draws = RandomDraws(source) if not hasattr(source, "chance") else source
    graph = program.graph
    inner = [i for i, n in enumerate(graph.nodes) if plain(n)]
    constants = [i for i, n in enumerate(graph.nodes) if n.op.name == "constant" and n.type.size]
    present = list(dict.fromkeys(n.type.dtype for n in graph.nodes if isinstance(n.type, TensorType)))
    sizes = sorted({int(d) for n in graph.nodes if isinstance(n.type, TensorType) for d in n.type.shape if d > 1})
    kinds = ["dtype"] * 2 + ["size"] * 2 * bool(sizes) + ["constant"] * 2 * bool(constants) + ["node"] * 4 * bool(inner)
    for _ in range(TRIES):
        new = _Twin(draws, program, config, evaluator)
        kind = draws.choice(kinds)
        if kind == "dtype":
            old = draws.choice(present)
            alike = [d for d in config.dtypes if d is not old and (d.is_float, d.kind == "b") == (old.is_float, old.kind == "b")]
            new.dtypes = {old: draws.choice(alike)} if alike else {}
        elif kind == "size":
            size = draws.choice(sizes)
            new.sizes = {size: size + draws.choice([1, -1])}
        elif kind == "constant":
            new.constant = draws.choice(constants)
        else:
            at = draws.choice(inner)
            change = altered(draws, graph, graph.nodes[at], [i for i in range(at) if isinstance(graph.nodes[i].type, TensorType)], family=True)
            if change is None or not config.allows(change[0]) or (change[3] is not None and change[3].dtype not in config.dtypes):
                continue
            new.change = {at: change}
        with np.errstate(all="ignore"):
            made = new.write()
        if made is not None:
            return made
    return program
