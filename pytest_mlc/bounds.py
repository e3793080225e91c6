"""Derived bounds: a graph is evaluated widened, and every element carries the error a backend is allowed there.

A `Value` is the middle `mid` and an absolute error `err` such that a faithful backend's element lies in
[mid - err, mid + err]. `err is None` means the backend must give exactly these bits. `err = inf` means *unjudged*:
anything is accepted. Integers and bools have err 0 or inf (tainted: derived from a discontinuity that may go either way).

How an op moves the error follows from its definition, never from its name:
  elementwise   the op is evaluated with its operands pushed to the ends of their intervals; plus its own rounding
  movement      errors move as the elements do
  reductions    a fold that adds: sum of errors + depth * u * sum|x|; that multiplies: likewise; exact ones as elementwise
  contractions  |x|ey + ex|y| + ex ey + depth * u * |x||y|
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dims import static_shape
from mlc.core.dtype import DType
from mlc.graph.graph import Graph, Node
from mlc.graph.interpreter import apply_node, overflow_threshold, wide_dtype
from mlc.ops.base import CONTRACTION, DISCONTINUOUS, ELEMENTWISE, EXACT, MONOTONE, op
from pytest_mlc.models import ErrorModel, min_normal, min_subnormal

# A function is far from linear when its moves at the full and at this share of the interval don't match (not a round
# fraction, because of periods); its error counts as small up to this share of the value.
SMALL_STEP, CROOKED = 1 / 17.3, 0.01
# Uncertainty of the referee's own functions, in ulp of the wide dtype.
REFEREE_ULP = 8.0


class Value:
    """One node's value: see the module's text. `own` is the array in the node's dtype when it is exact."""

    def __init__(self, dtype: DType, own: np.ndarray | None = None, mid: np.ndarray | None = None, err: np.ndarray | None = None):
        self.dtype, self.own, self.err = dtype, own, err
        if mid is not None:
            self.mid = mid

    @cached_property
    def mid(self) -> np.ndarray:
        """The value widened (integers and bools stay as they are)."""
        return self.own.astype(wide_dtype(self.dtype))

    @cached_property
    def error(self) -> np.ndarray:
        """`err` as an array, zeros where the value is exact."""
        return np.zeros(self.mid.shape, error_dtype(self.dtype)) if self.err is None else self.err

    @property
    def exact(self) -> bool:
        return self.err is None


def error_dtype(dtype: DType) -> np.dtype:
    return wide_dtype(dtype) if dtype.is_float else np.dtype(np.float64)


def spacing(magnitude: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance between neighbours of `dtype` at `magnitude` (an array of the wide dtype); 0 where it is not finite."""
    exponent = np.where(magnitude == 0, dt.MIN_EXPONENT[dtype], np.frexp(magnitude)[1] - 1)  # frexp gives 0 the exponent of 1/2
    exponent = np.maximum(exponent, dt.MIN_EXPONENT[dtype]) - (dt.MANTISSA[dtype] - 1)
    return np.where(np.isfinite(magnitude), np.ldexp(np.ones_like(magnitude), exponent), 0)


def run_op(node: Node, operands: Sequence[np.ndarray], dtype: np.dtype | None = None) -> np.ndarray:
    """The op's NumPy meaning on wide arrays, without the interpreter's overflow rule; `dtype` replaces the result's wide dtype."""
    attrs = dict(node.attrs)
    dtype = dtype or wide_dtype(node.type.dtype)
    if node.op.typed:
        attrs["shape"], attrs["dtype"] = static_shape(node.type.shape), dtype
    return np.asarray(node.op.numpy(*operands, **attrs)).astype(dtype, copy=False)


def analyse(graph: Graph, args: Sequence[np.ndarray], model: ErrorModel) -> list:
    """The `Value` of every node (a tuple of them for region ops)."""
    values: list = [None] * len(graph)
    for p, array in zip(graph.params, args, strict=True):
        dtype = graph.nodes[p].type.dtype
        values[p] = Value(dtype, own=np.asarray(array, dtype.numpy))
    with np.errstate(all="ignore"):
        return _walk(graph, values, model)


def _walk(graph: Graph, values: list, model: ErrorModel) -> list:
    for i, node in enumerate(graph.nodes):
        if values[i] is None:
            values[i] = value_of(node, [values[k] for k in node.inputs], model)
    return values


def value_of(node: Node, operands: Sequence, model: ErrorModel) -> Value | tuple[Value, ...]:
    """The value of any node; region ops evaluate their region and give a tuple."""
    if node.regions:
        inner = region_values(node.regions[0], operands, model)
        return tuple(inner[o] for o in node.regions[0].outputs)
    if operands and isinstance(operands[0], tuple):
        return operands[0][node.attrs["index"]]
    return node_value(node, operands, model)


def region_values(region: Graph, operands: Sequence, model: ErrorModel) -> list:
    """The values of a region's nodes, whose parameters are the operands."""
    inner: list = [None] * len(region)
    for p, operand in zip(region.params, operands):
        inner[p] = operand
    return _walk(region, inner, model)


def node_value(node: Node, operands: Sequence[Value], model: ErrorModel) -> Value:
    """The value of one node from those of its operands."""
    dtype = node.type.dtype
    if all(v.exact for v in operands) and _exactly_specified(node, operands, model):
        return Value(dtype, own=apply_node(node, [v.own for v in operands]))
    if node.op.fusion == ELEMENTWISE:
        mid, err = _elementwise(node, operands)
    elif node.op.fusion == CONTRACTION:
        mid, err = _contraction(node, operands, model)
    elif node.op.reduce is not None:
        mid, err = _reduction(node, operands, model)
    else:
        mid, err = _movement(node, operands)
    if _rounds(node, operands):
        err = err + _local_rounding(node, mid, err, model)
    return _finish(node, mid, err, model)


def local_error(node: Node, operands: Sequence[Value], value: Value, model: ErrorModel) -> np.ndarray:
    """The error that the backend may add at this node alone, its operands being right; `value` is the node's."""
    kind = error_dtype(value.dtype)
    if node.op.fusion == ELEMENTWISE:
        zero = np.zeros(value.mid.shape, kind)
        return _local_rounding(node, value.mid, zero, model) if _rounds(node, operands) else zero
    right = [Value(v.dtype, mid=v.mid, err=np.zeros(v.mid.shape, error_dtype(v.dtype))) if v.dtype.is_float else Value(v.dtype, own=v.mid)
             for v in operands]
    return node_value(node, right, model).error


def _rounds(node: Node, operands: Sequence[Value]) -> bool:
    """Whether an elementwise op rounds: exact ones don't, nor steps and remainders that stay in their dtype."""
    if node.op.fusion != ELEMENTWISE or not node.type.dtype.is_float or node.op.has(EXACT):
        return False
    return not (node.op.has(DISCONTINUOUS) and operands[0].dtype is node.type.dtype)


def _exactly_specified(node: Node, operands: Sequence[Value], model: ErrorModel) -> bool:
    if node.op.has(EXACT) or not (node.type.dtype.is_float or any(v.dtype.is_float for v in operands)):
        return True
    return node.op.fusion == ELEMENTWISE and model.exact(node)


def _local_rounding(node: Node, mid: np.ndarray, err: np.ndarray, model: ErrorModel) -> np.ndarray:
    dtype, ulp = node.type.dtype, model.ulp(node)
    magnitude = np.abs(mid) + np.where(np.isfinite(err), err, 0)
    local = ulp * spacing(magnitude, dtype) + REFEREE_ULP * np.abs(np.where(np.isfinite(mid), mid, 0)) * np.finfo(mid.dtype).eps
    if callable(node.op.ulp):
        # Several roundings: an intermediate may leave the normal range while the result is near its lower end; or, where the result is a
        # reciprocal, near its upper end. Two roundings of the subnormal p are 1 min_subnormal at most, that is min_subnormal / p^2 of 1 / p.
        local = np.where(magnitude <= 4 * min_normal(dtype), local + min_normal(dtype), local)
        large = np.isfinite(magnitude) & (magnitude >= 0.25 / min_normal(dtype))
        local = np.where(large, local + magnitude * magnitude * min_subnormal(dtype), local)
    return local


def _finish(node: Node, mid: np.ndarray, err: np.ndarray, model: ErrorModel) -> Value:
    """Overflow to infinity where the dtype overflows; unjudged where it may or may not."""
    dtype = node.type.dtype
    if not dtype.is_float:
        return Value(dtype, own=mid, err=err if err.any() else None)
    if model.flush:
        err = err + min_normal(dtype)
    err = np.where(np.isnan(err), np.inf, err)
    # In the values' own dtype: a longdouble would widen every comparison.
    limit, size = mid.dtype.type(overflow_threshold(dtype)), np.abs(mid)
    finite = np.isfinite(mid)
    unsure = finite & (size + err >= limit) & (size - err < limit)
    err = np.where(unsure, np.inf, err)
    over = size >= limit
    mid = np.where(over, np.copysign(np.array(np.inf, mid.dtype), mid), mid)
    err = np.where((over | np.isnan(mid)) & np.isfinite(err), 0, err)
    return Value(dtype, mid=mid, err=np.asarray(err, error_dtype(dtype)))


# --------------------------------------------------------------------------- elementwise, and folds that only choose
def _pushed(value: Value, share: float) -> list[np.ndarray]:
    """The operand at the ends of its interval; where nothing is known of it, at values that no function maps alike."""
    mid, err = value.mid, value.error
    unjudged = np.isinf(err)
    if value.dtype.is_float:
        low, high = mid - share * err, mid + share * err
        one = np.ones((), mid.dtype)
        return [np.where(unjudged, np.nan * one, low), np.where(unjudged, one, high)]
    if value.dtype is dt.bool_:
        return [np.where(unjudged, False, mid), np.where(unjudged, True, mid)]
    kind = value.dtype.numpy.type
    return [np.where(unjudged, kind(value.dtype.min), mid), np.where(unjudged, kind(value.dtype.max), mid)]


def _deviation(node: Node, operands: Sequence[Value], mid: np.ndarray) -> np.ndarray:
    """How far the result moves when the inexact operands go to the ends of their intervals, in every combination.

    A function that may turn inside the interval gets what its second difference suggests on top; where it is far from
    linear there (compared with a much smaller step) and the error is no longer small, nothing is known.
    """
    worst, results = _corners(node, operands, mid, 1.0)
    if _ends_suffice(node):
        return worst
    extrapolated = _corners(node, operands, mid, SMALL_STEP)[0] / SMALL_STEP
    bend = np.zeros_like(worst)
    for one, opposite in zip(results, reversed(results)):
        apart = np.abs(one + opposite - 2 * mid)
        bend = np.maximum(bend, np.where(np.isfinite(apart), apart, 0))
    err = np.maximum(worst, np.where(np.isfinite(extrapolated), extrapolated, np.inf)) + bend
    crooked = np.abs(worst - extrapolated) > 0.5 * np.maximum(worst, extrapolated)
    unknown = (crooked & (err > CROOKED * np.abs(mid))) | (err >= np.abs(mid))
    err = np.where(unknown & (err > 0), np.inf, err)
    if _instruction(node.op.name, node.type.dtype) == "div":
        # A quotient is monotone in both as long as the divisor keeps away from 0: corners suffice, also for a dividend near 0.
        # A divisor that may be 0 may give anything, also with a dividend of 0, which moves no corner.
        (_, y), finite = operands, np.isfinite(operands[1].mid)
        away = finite & (np.abs(np.where(finite, y.mid, 0)) > y.error)
        err = np.where(away, worst, np.where(finite & (y.error > 0), np.inf, err))
    return err


def _corners(node: Node, operands: Sequence[Value], mid: np.ndarray, share: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """The largest distance from `mid` over all corners of the operands' intervals (shrunk to `share`), and the results there."""
    moving = [k for k, v in enumerate(operands) if not v.exact]
    arrays = [v.mid for v in operands]
    worst = np.zeros(mid.shape, error_dtype(node.type.dtype))
    results = []
    for ends in itertools.product(*(_pushed(operands[k], share) for k in moving)):
        moved = list(arrays)
        for k, end in zip(moving, ends):
            moved[k] = end
        result = run_op(node, moved)
        if node.type.dtype.is_float:
            apart = np.abs(result - mid)
            same = (result == mid) | (np.isnan(result) & np.isnan(mid))
            apart = np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))
        else:
            apart = np.where(result == mid, 0.0, np.inf)
        worst = np.maximum(worst, apart)
        results.append(result)
    return worst, results


def _ends_suffice(node: Node) -> bool:
    """Whether the extremes over a box lie at its corners: monotone or choosing ops, and + - * alone."""
    if node.op.has(MONOTONE) or node.op.has(EXACT) or not node.type.dtype.is_float:
        return True
    return not node.op.attrs and not node.op.ulp and _instruction(node.op.name, node.type.dtype) in ("add", "sub", "mul")


@functools.cache
def _instruction(name: str, dtype: DType) -> str:
    """The one instruction of its operands that the op's scalar code is; "" for longer code and ops with attributes."""
    definition = op(name)
    if definition.attrs or definition.ulp or definition.arity is None:
        return ""
    root = definition.scalar(*(ex.arg(k, dtype) for k in range(definition.arity)))
    return root.op if root.args and all(a.op == "arg" for a in root.args) else ""


def _elementwise(node: Node, operands: Sequence[Value]) -> tuple[np.ndarray, np.ndarray]:
    mid = run_op(node, [v.mid for v in operands])
    err = _deviation(node, operands, mid)
    unsure = np.zeros(mid.shape, bool)
    if not _chooses(node.op.name, operands[-1].dtype):
        # An unknown integer may be any: the ends of its range tell nothing about what lies between.
        for v in operands:
            if v.dtype.is_int and not v.exact:
                unsure |= np.isinf(v.error)
    if node.type.dtype is dt.bool_ and node.op.has(DISCONTINUOUS):
        unsure |= _near(operands)
    if node.type.dtype.is_float and len(operands) == 2 and not _ends_suffice(node):
        # NaN all around, but maybe not in between (pow of a negative number, at whole exponents).
        unsure |= np.isnan(mid) & ~np.isnan(operands[0].mid) & ~np.isnan(operands[1].mid)
        if node.op.has(DISCONTINUOUS):
            unsure |= _quotient_unsure(operands)
    return mid, np.where(unsure, np.inf, err)


@functools.cache
def _chooses(name: str, dtype: DType) -> bool:
    """Whether the op only picks among its operands (min, max, clamp, select): then it is monotone in each."""
    definition = op(name)
    if definition.attrs or not definition.has(EXACT) or definition.scalar is None:
        return False
    types = [dtype] * definition.arity
    try:
        root = definition.scalar(*(ex.arg(k, d) for k, d in enumerate(types)))
    except AssertionError:
        types[0] = dt.bool_
        root = definition.scalar(*(ex.arg(k, d) for k, d in enumerate(types)))
    return all(e.op in ("arg", "min", "max", "select") for e in ex.topological([root]))


def _quotient_unsure(operands: Sequence[Value]) -> np.ndarray:
    """Where a remainder jumps: the whole quotient differs between the corners of the operands' intervals."""
    (x, ex_), (y, ey) = ((np.where(np.isfinite(v.mid), v.mid, 1), np.where(np.isfinite(v.error), v.error, 0)) for v in operands)
    quotients = [np.trunc((x + a * ex_) / (y + b * ey)) for a in (-1, 1) for b in (-1, 1)]
    return np.any([q != quotients[0] for q in quotients], axis=0) & ((ex_ > 0) | (ey > 0))


def _near(operands: Sequence[Value]) -> np.ndarray:
    """Where a yes-or-no question about floats may go either way: two operands whose intervals touch, one whose interval holds 0."""
    total = sum(v.error for v in operands)
    if any(not v.dtype.is_float for v in operands):
        return np.isinf(total)
    mids = [v.mid for v in operands]
    distance = np.abs(mids[0] - mids[1]) if len(mids) == 2 else np.abs(mids[0])
    return ((distance <= total) & (total > 0)) | np.isinf(total)


# --------------------------------------------------------------------------- movement
def _movement(node: Node, operands: Sequence[Value]) -> tuple[np.ndarray, np.ndarray]:
    """Elements and their errors move alike."""
    mid = run_op(node, [v.mid for v in operands])
    kind = error_dtype(node.type.dtype)
    err = run_op(node, [np.asarray(v.error, kind) for v in operands], dtype=kind)
    return mid, err


# --------------------------------------------------------------------------- reductions
def _fold_instruction(node: Node, dtype: DType) -> str | None:
    """What a one-member fold combines with: "add", "mul", "min", ...; None for folds with richer state."""
    members = node.op.reduce.accumulator(dtype)
    if len(members) != 1:
        return None
    (result,) = node.op.reduce.combine((ex.arg(0, members[0]),), (ex.arg(1, members[0]),))
    return result.op


def _reduction(node: Node, operands: Sequence[Value], model: ErrorModel) -> tuple[np.ndarray, np.ndarray]:
    (x,) = operands
    if node.op.has(DISCONTINUOUS):
        return _choosing_position(node, x)
    if node.op.has(EXACT) and (x.dtype.is_float or x.dtype is dt.bool_):
        mid = run_op(node, [x.mid])
        return mid, _deviation(node, operands, mid)
    if not x.dtype.is_float:
        # Wrapping integer folds: a tainted element taints the whole.
        tainted = _any_along(x.error > 0, node.attrs["axes"])
        return run_op(node, [x.mid]), np.where(tainted, np.inf, 0.0)
    fold = _fold_instruction(node, x.dtype)
    return (_product if fold == "mul" else _sum)(node, x, model)


def _any_along(mask: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    return np.asarray(np.any(mask, axis=tuple(axes)))


def _sum(node: Node, x: Value, model: ErrorModel) -> tuple[np.ndarray, np.ndarray]:
    mid = run_op(node, [x.mid])
    finite_error = np.where(np.isinf(x.error), 0, x.error)
    size = np.where(np.isfinite(x.mid), np.abs(x.mid), 0) + finite_error
    total, moved = run_op(node, [size]), run_op(node, [finite_error])
    terms = max(1, x.mid.size // max(1, mid.size))
    acc = model.accumulator(x.dtype)
    err = moved + model.depth(terms) * acc.eps / 2 * total
    err = err + _last_rounding(node, acc, mid, err)
    unsure = (total >= overflow_threshold(acc)) | _any_along(np.isinf(x.error), node.attrs["axes"])
    if model.flush:
        err = err + terms * min_normal(acc)
    return mid, np.where(unsure, np.inf, np.where(np.isfinite(mid), err, 0))


def _product(node: Node, x: Value, model: ErrorModel) -> tuple[np.ndarray, np.ndarray]:
    mid = run_op(node, [x.mid])
    axes, acc = node.attrs["axes"], model.accumulator(x.dtype)
    finite_error = np.where(np.isinf(x.error), 0, x.error)
    size = np.where(np.isfinite(x.mid), np.abs(x.mid), 1)
    terms = max(1, x.mid.size // max(1, mid.size))
    largest, smallest = run_op(node, [np.maximum(size + finite_error, 1)]), run_op(node, [np.minimum(size, 1)])
    upper, exact = run_op(node, [size + finite_error]), run_op(node, [size])
    tiny = min_normal(acc) if model.flush else min_subnormal(acc)
    err = (upper - exact) + (model.depth(terms) + 1) * acc.eps / 2 * upper + terms * tiny * largest
    err = err + _last_rounding(node, acc, mid, err)
    special = ~np.isfinite(x.mid)
    near_zero = (np.abs(x.mid) <= x.error) & (x.error > 0)
    unsure = (largest >= overflow_threshold(acc)) | _any_along(np.isinf(x.error), axes)
    unsure |= _any_along(special, axes) & (_any_along(near_zero, axes) | (smallest < terms * min_normal(acc)))
    return mid, np.where(unsure, np.inf, np.where(np.isfinite(mid), err, 0))


def _last_rounding(node: Node, acc: DType, mid: np.ndarray, err: np.ndarray) -> np.ndarray:
    """Rounding of the accumulator to the result's dtype, and the referee's own summation error."""
    magnitude = np.where(np.isfinite(mid), np.abs(mid), 0)
    slack = REFEREE_ULP * magnitude * np.finfo(mid.dtype).eps
    return slack if acc is node.type.dtype else slack + 0.5 * spacing(magnitude + np.where(np.isfinite(err), err, 0), node.type.dtype)


def _choosing_position(node: Node, x: Value) -> tuple[np.ndarray, np.ndarray]:
    """argmax and its kin: certain when the chosen element stays chosen although it moves against and all others towards the choice."""
    own = run_op(node, [x.mid])
    if x.exact or not own.size:
        return own, np.zeros(own.shape)
    axes = node.attrs["axes"]
    kept = [i for i in range(x.mid.ndim) if i not in axes]
    flat = np.transpose(x.mid, [*kept, *axes]).reshape((*own.shape, -1))
    error = np.transpose(x.error, [*kept, *axes]).reshape(flat.shape)
    chosen = np.arange(flat.shape[-1]) == np.asarray(own, np.int64)[..., None]
    unsure = np.isinf(error).any(-1)
    if x.dtype.is_float:
        error = np.where(np.isinf(error), 0, error)
        for sign in (1, -1):
            moved = flat + sign * np.where(chosen, -error, error)
            # Back in the operand's own layout, so that the op itself answers.
            shape = [x.mid.shape[i] for i in [*kept, *axes]]
            unsure |= run_op(node, [np.transpose(moved.reshape(shape), np.argsort([*kept, *axes]))]) != own
    return own, np.where(unsure, np.inf, 0.0)


# --------------------------------------------------------------------------- contractions
def _contraction(node: Node, operands: Sequence[Value], model: ErrorModel) -> tuple[np.ndarray, np.ndarray]:
    """dot and its kin: bilinear, so absolute values and errors go through the op itself."""
    x, y = operands
    mid = run_op(node, [x.mid, y.mid])
    kind = error_dtype(node.type.dtype)

    def through(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not a.any() or not b.any():
            return np.zeros(mid.shape, kind)  # most operands are exact
        return run_op(node, [np.asarray(a, kind), np.asarray(b, kind)], dtype=kind)

    unjudged_x, unjudged_y = np.isinf(x.error), np.isinf(y.error)
    unsure = (through(unjudged_x, np.ones_like(y.error)) + through(np.ones_like(x.error), unjudged_y)) > 0
    if not node.type.dtype.is_float:
        return mid, np.where(unsure, np.inf, 0.0)
    ex_, ey = np.where(unjudged_x, 0, x.error), np.where(unjudged_y, 0, y.error)
    ax, ay = (np.where(np.isfinite(v.mid), np.abs(v.mid), 0) for v in operands)
    acc = model.accumulator(node.type.dtype)
    total = through(ax + ex_, ay + ey)
    terms = max(1, _terms(node, operands))
    err = (through(ax, ey) + through(ex_, ay + ey)) + (model.contraction_depth(terms) + 1) * acc.eps / 2 * total
    err = err + terms * (min_normal(acc) if model.flush else min_subnormal(acc))
    err = err + _last_rounding(node, acc, mid, err)
    unsure |= total >= overflow_threshold(acc)
    special_x, special_y = ~np.isfinite(x.mid), ~np.isfinite(y.mid)
    if special_x.any() or special_y.any():
        near_x, near_y = ((np.abs(v.mid) <= v.error) & (v.error > 0) for v in operands)
        unsure |= (through(special_x, near_y) + through(near_x, special_y)) > 0
    return mid, np.where(unsure, np.inf, np.where(np.isfinite(mid), err, 0))


def _terms(node: Node, operands: Sequence[Value]) -> int:
    """How many products one result element sums: what its attributes say, else found by contracting ones."""
    if "contract" in node.attrs:
        return math.prod(operands[0].mid.shape[a] for a in node.attrs["contract"][0])
    ones = [np.ones(v.mid.shape) for v in operands]
    counted = run_op(node, ones, dtype=np.dtype(np.float64))
    return int(counted.max()) if counted.size else 0
