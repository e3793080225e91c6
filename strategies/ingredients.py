"""How one op finds operands and attributes: a function (builder, op, dtype) -> node id, or None when nothing fits.

Elementwise ops and reductions need no entry of their own: their literals say everything (arity, dtypes, domains, attributes).
An op with other attributes has an entry here; `placeable` and a test make sure that every op of the registry can be built.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from mlc_strategies import inverse, values
from mlc_strategies.recipe import Builder, Config

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.errors import MlcError
from mlc.graph.graph import Graph
from mlc.ops.base import ELEMENTWISE, REDUCTION, REGISTRY, OpDef

Ingredient = Callable[[Builder, OpDef, DType], "int | None"]
_OWN: dict[str, Ingredient] = {}


def ingredient_of(name: str) -> Callable[[Ingredient], Ingredient]:
    """Register the ingredient of one op."""
    def enter(function: Ingredient) -> Ingredient:
        _OWN[name] = function
        return function
    return enter


def ingredient(name: str) -> Ingredient:
    """The function that places an op. Raises KeyError when the op has none."""
    if name in _OWN:
        return _OWN[name]
    family = REGISTRY[name].fusion
    if family == ELEMENTWISE:
        return elementwise
    if family == REDUCTION and set(REGISTRY[name].attrs) == {"axes"}:
        return reduction
    raise KeyError(f"op {name!r} has no ingredient in mlc_strategies.ingredients")


def placeable(config: Config) -> list[str]:
    """The ops that a step may draw: all of the registry that the config allows, but leaves and `tuple_get` (which comes with `call`)."""
    return [name for name, op in REGISTRY.items() if config.allows(name) and name not in ("parameter", "tuple_get")
            and any(d in config.dtypes for d in op.dtypes)]


# --------------------------------------------------------------------------- families
def attributes(b: Builder, op: OpDef, dtype: DType) -> dict:
    """Attributes of an elementwise op: small integers, not negative for integer dtypes."""
    made = {}
    for name, kind in op.attrs.items():
        if kind != "int":
            raise KeyError(f"op {op.name!r}: attribute {name} of kind {kind!r} needs an ingredient of its own")
        made[name] = b.draws.integer(-3 if dtype.is_float else 0, 4)
    return made


def elementwise(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """Operands of one type; where the op's rule refuses that, the first is bool (select)."""
    at = b.draws.integer(0, op.arity - 1)
    anchor = b.any_operand(dtype, op.inputs[at])
    type = b.type(anchor)
    types = [type] * op.arity
    attrs = attributes(b, op, dtype)
    given = type.with_dtype(b.draws.choice(b.config.dtypes)) if op.typed else None
    try:
        op.infer(types, attrs, given)
    except MlcError:
        types = [type.with_dtype(dt.bool_)] + [type] * (op.arity - 1)
        op.infer(types, attrs, given)
    inputs = [anchor if k == at and types[k] == type else b.operand(t, op.inputs[k]) for k, t in enumerate(types)]
    return b.emit(op.name, inputs, attrs, given)


def reduction(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """Any subset of the axes; a typed one (argmax) gives an integer index."""
    x = b.any_operand(dtype, op.inputs[0])
    axes = _some_axes(b, b.type(x).rank)
    given = None
    if op.typed:
        if not axes or any(b.type(x).shape[a] == 0 for a in axes):
            return None
        count = math.prod(b.type(x).shape[a] for a in axes)
        integers = [d for d in b.config.dtypes if d.is_int and count - 1 <= d.max] or [dt.i32]
        given = TensorType([n for a, n in enumerate(b.type(x).shape) if a not in axes], b.draws.choice(integers))
    return b.emit(op.name, [x], {"axes": axes}, given)


def _some_axes(b: Builder, rank: int) -> tuple[int, ...]:
    """One axis mostly, else a subset: all and none included."""
    if rank and b.draws.chance(0.7):
        return (b.draws.choice(range(rank - 1, -1, -1)),)
    return tuple(a for a in range(rank) if b.draws.chance(0.6))


# --------------------------------------------------------------------------- movement
@ingredient_of("broadcast_in_dim")
def _broadcast(b: Builder, op: OpDef, dtype: DType) -> int | None:
    return b.broadcast(TensorType(b.shape(1), dtype), values.ORDINARY)


@ingredient_of("reshape")
def _reshape(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """The same elements in another shape: axes merged, split off as 1, or swapped in size."""
    x = b.any_operand(dtype)
    shapes = inverse.reshapes(b.config.palette, b.type(x).shape)
    return b.emit("reshape", [x], {}, TensorType(b.draws.choice(shapes), dtype)) if shapes else None  # a path's goal may be larger than all others


@ingredient_of("transpose")
def _transpose(b: Builder, op: OpDef, dtype: DType) -> int | None:
    x = b.any_operand(dtype, min_rank=2 if b.draws.chance(0.9) else 0)
    left, perm = list(range(b.type(x).rank - 1, -1, -1)), []
    while left:
        perm.append(left.pop(left.index(b.draws.choice(left))))
    return b.emit("transpose", [x], {"perm": tuple(perm)})


@ingredient_of("slice")
def _slice(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """Each axis is kept or cut to a smaller size of the palette, with a stride where there is room."""
    x = b.any_operand(dtype)
    start, limit, strides = [], [], []
    for n in b.type(x).shape:
        smaller = [s for s in (*b.config.palette.sizes, 1) if s <= n]
        size = b.draws.choice(smaller) if smaller and b.draws.chance(0.6) else n
        step = b.draws.choice([1, 2, 3]) if size else 1
        if (size - 1) * step + 1 > n:
            step = 1
        span = (size - 1) * step + 1 if size else 0
        start.append(b.draws.integer(0, n - span))
        limit.append(start[-1] + span)
        strides.append(step)
    return b.emit("slice", [x], {"start": tuple(start), "limit": tuple(limit), "strides": tuple(strides)})


@ingredient_of("rev")
def _rev(b: Builder, op: OpDef, dtype: DType) -> int | None:
    x = b.any_operand(dtype)
    return b.emit("rev", [x], {"axes": _some_axes(b, b.type(x).rank)})


@ingredient_of("concatenate")
def _concatenate(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """Two or three parts, along an axis whose sizes add up to one of the palette's where possible; once in a while just one."""
    x = b.any_operand(dtype, min_rank=1)
    shape = b.type(x).shape
    axis = b.draws.integer(0, len(shape) - 1)
    sizes = b.config.palette.sizes
    parts = [x]
    for _ in range(0 if b.draws.chance(0.05) else b.draws.integer(1, 2)):
        fitting = [s for s in sizes if s + shape[axis] in sizes and b.config.palette.fits((*shape[:axis], s, *shape[axis + 1:]))] or [shape[axis]]
        part = list(shape)
        part[axis] = b.draws.choice(fitting)
        parts.append(b.operand(TensorType(part, dtype)))
    if b.draws.chance(0.5):
        parts.reverse()
    return b.emit("concatenate", parts, {"axis": axis})


@ingredient_of("pad")
def _pad(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """To a larger size of the palette; sometimes interior, sometimes cropping (negative)."""
    x = b.any_operand(dtype)
    pads = []
    for n in b.type(x).shape:
        larger = [s for s in b.config.palette.sizes if s >= n]
        interior = 1 if n > 1 and b.draws.chance(0.15) else 0
        grown = n + max(n - 1, 0) * interior
        size = b.draws.choice(larger or [n]) if b.draws.chance(0.7) else n
        low = b.draws.integer(min(0, size - grown), max(0, size - grown))
        if b.draws.chance(0.15):
            low = b.draws.integer(-2, 2)
        pads.append((low, size - grown - low, interior))
    value = b.operand(TensorType((), dtype))
    return b.emit("pad", [x, value], {"pads": tuple(pads)})


@ingredient_of("iota")
def _iota(b: Builder, op: OpDef, dtype: DType) -> int | None:
    shape = b.shape(1)
    return b.emit("iota", [], {"axis": b.draws.integer(0, len(shape) - 1)}, TensorType(shape, dtype))


@ingredient_of("constant")
def _constant(b: Builder, op: OpDef, dtype: DType) -> int | None:
    return b.constant(TensorType(b.shape(), dtype), values.ORDINARY)


# --------------------------------------------------------------------------- contraction
@ingredient_of("dot_general")
def _dot(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """x from the pool, some of its axes contracted, others batched; y made to fit, its axes in any order."""
    x = b.any_operand(dtype, op.inputs[0], min_rank=1 if b.draws.chance(0.95) else 0)
    plan = dot_fitting(b, b.type(x))
    if plan is None:
        return None
    y_type, attrs, shape = plan
    y = b.operand(y_type, op.inputs[1])
    return b.emit("dot_general", [x, y], attrs, TensorType(shape, _dot_dtype(b, op, dtype, x, y, attrs, shape)))


def dot_fitting(b: Builder, type: TensorType) -> tuple[TensorType, dict, list[int]] | None:
    """For a left operand of this type: a right operand's type, the attributes and the result's shape; None when too large."""
    shape = type.shape
    axes = list(range(len(shape) - 1, -1, -1))
    contract = [axes.pop(axes.index(b.draws.choice(axes)))] if axes and b.draws.chance(0.95) else []
    if axes and b.draws.chance(0.15):
        contract.append(axes.pop())
    batch = [axes.pop()] if axes and b.draws.chance(0.3) else []
    free = [b.draws.choice(b.config.palette.sizes)] if b.draws.chance(0.8) else []
    roles = [("batch", a, shape[a]) for a in batch] + [("contract", a, shape[a]) for a in contract] + [("free", -1, n) for n in free]
    if b.draws.chance(0.4):
        roles.reverse()
    y_type = TensorType([n for _, _, n in roles], type.dtype)
    if not b.config.palette.fits(y_type.shape):
        return None
    where = {(role, a): i for i, (role, a, _) in enumerate(roles)}
    attrs = {"contract": (tuple(contract), tuple(where["contract", a] for a in contract)),
             "batch": (tuple(batch), tuple(where["batch", a] for a in batch))}
    return y_type, attrs, [shape[a] for a in batch] + [n for a, n in enumerate(shape) if a not in batch + contract] + free


def _dot_dtype(b: Builder, op: OpDef, dtype: DType, x: int, y: int, attrs: dict, shape: list[int]) -> DType:
    """The operands' dtype, or now and then a wider one that the op accepts."""
    wider = []
    for other in b.config.dtypes if b.draws.chance(0.2) else ():
        try:
            op.infer([b.type(x), b.type(y)], attrs, TensorType(shape, other))
            wider.append(other)
        except MlcError:
            continue
    return b.draws.choice(wider) if wider else dtype


# --------------------------------------------------------------------------- regions
@ingredient_of("call")
def _call(b: Builder, op: OpDef, dtype: DType) -> int | None:
    """A region of a few steps over one to three earlier values; all its results are picked."""
    chosen = [b.any_operand(dtype)]
    chosen += [b.draws.choice(b.pool(lambda t: True)) for _ in range(b.draws.integer(0, 2))]
    config = Config(b.config.palette, tuple(n for n in placeable(b.config) if n != "call"), b.config.dtypes, special=b.config.special, idioms=False)
    inner = Builder(b.draws, config, b.evaluator, seed=b.draws.integer(0, 2**32 - 1), closed=True)
    for node in chosen:
        inner.bind(b.type(node), np.zeros(0), b.values[node])
    for _ in range(b.draws.integer(1, 3)):
        inner.step()
    outputs = inner.choose_outputs()
    region: Graph = inner.graph.set_outputs(outputs)
    region.name = f"region{len(b.graph)}"
    made = b.emit("call", chosen, {}, None, (region,))
    picked = None
    for k in range(len(outputs)):
        picked = b.emit("tuple_get", [made], {"index": k}, region.output_types()[k])
    return picked


@ingredient_of("tuple_get")
def _tuple_get(b: Builder, op: OpDef, dtype: DType) -> int | None:
    return _call(b, REGISTRY["call"], dtype)
