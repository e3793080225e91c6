"""Idioms: the little programs that models are made of, as several steps of a builder. Each gives up quietly where nothing fits."""

from __future__ import annotations

from mlc_strategies.attention import attention
from mlc_strategies.recipe import Builder

from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.ops.base import Domain

_LOGITS = Domain(-6, 6)
_WEIGHTS = Domain(-1, 1)


def _spread(b: Builder, small: int, axes: tuple[int, ...], like: int) -> int | None:
    """A value reduced over `axes`, spread back."""
    type = b.type(like)
    return b.emit("broadcast_in_dim", [small], {"dims": tuple(a for a in range(type.rank) if a not in axes)}, type)


def _chain(b: Builder, *steps) -> int | None:
    """Run steps, each given the last result; stop at the first None."""
    result = None
    for step in steps:
        result = step(result)
        if result is None:
            return None
    return result


def softmax(b: Builder, dtype: DType) -> int | None:
    """exp(x - max) / sum, over the last axis or another."""
    x = b.any_operand(dtype, _LOGITS, min_rank=1)
    axes = (b.draws.choice(range(b.type(x).rank - 1, -1, -1)),)
    shifted = _chain(b, lambda _: b.emit("reduce_max", [x], {"axes": axes}), lambda m: _spread(b, m, axes, x),
                     lambda m: b.emit("sub", [x, m]), lambda s: b.emit("exp", [s]))
    if shifted is None:
        return None
    return _chain(b, lambda _: b.emit("reduce_sum", [shifted], {"axes": axes}), lambda s: _spread(b, s, axes, shifted),
                  lambda s: b.emit("div", [shifted, s]))


def layer_norm(b: Builder, dtype: DType) -> int | None:
    """(x - mean) * rsqrt(var + eps) * gain + bias over the last axis."""
    x = b.any_operand(dtype, _LOGITS, min_rank=1)
    type = b.type(x)
    axes = (type.rank - 1,)
    if type.shape[-1] < 2:
        return None

    def splat(value: float, of: TensorType) -> int:
        return b._evaluated(b.graph.constant(value, of))

    def mean(of: int) -> int | None:
        return _chain(b, lambda _: b.emit("reduce_sum", [of], {"axes": axes}),
                      lambda s: b.emit("mul", [s, splat(1.0 / type.shape[-1], b.type(s))]), lambda m: _spread(b, m, axes, of))
    centred = _chain(b, lambda _: mean(x), lambda m: b.emit("sub", [x, m]))
    if centred is None:
        return None
    scale = _chain(b, lambda _: b.emit("mul", [centred, centred]), mean, lambda v: b.emit("add", [v, splat(1e-3, type)]),
                   lambda v: b.emit("rsqrt", [v]))
    if scale is None:
        return None
    return _chain(b, lambda _: b.emit("mul", [centred, scale]), lambda y: b.emit("mul", [y, b.operand(type, _WEIGHTS)]),
                  lambda y: b.emit("add", [y, b.operand(type, _WEIGHTS)]))


def dense_layer(b: Builder, dtype: DType) -> int | None:
    """act(x @ w + b)."""
    x = b.any_operand(dtype, _LOGITS, min_rank=1)
    shape = b.type(x).shape
    width = b.draws.choice(b.config.palette.sizes)
    w_type = TensorType((shape[-1], width), dtype)
    if not b.config.palette.fits(w_type.shape):
        return None
    attrs = {"contract": ((len(shape) - 1,), (0,)), "batch": ((), ())}
    out = TensorType((*shape[:-1], width), dtype)
    act = b.draws.choice(["relu", "tanh", "logistic"])

    def activate(y: int) -> int | None:
        return b.emit("max", [y, b._evaluated(b.graph.constant(0.0, out))]) if act == "relu" else b.emit(act, [y])
    return _chain(b, lambda _: b.emit("dot_general", [x, b.operand(w_type, _WEIGHTS)], attrs, out),
                  lambda y: b.emit("add", [y, b.broadcast(out, _WEIGHTS) or b.operand(out, _WEIGHTS)]), activate)


def reduce_and_broadcast(b: Builder, dtype: DType) -> int | None:
    """x combined with a reduction of itself: the case that fusing must not confuse."""
    x = b.any_operand(dtype, _LOGITS, min_rank=1)
    rank = b.type(x).rank
    axes = tuple(sorted({b.draws.integer(0, rank - 1), b.draws.integer(0, rank - 1)}))
    kind = b.draws.choice(["reduce_sum", "reduce_max", "reduce_min"])
    combine = b.draws.choice(["sub", "mul", "max", "add"])
    return _chain(b, lambda _: b.emit(kind, [x], {"axes": axes}), lambda r: _spread(b, r, axes, x), lambda r: b.emit(combine, [x, r]))


def gelu(b: Builder, dtype: DType) -> int | None:
    """x * (1 + erf(x / sqrt 2)) / 2."""
    x = b.any_operand(dtype, _LOGITS)
    type = b.type(x)

    def splat(value: float) -> int:
        return b._evaluated(b.graph.constant(value, type))
    return _chain(b, lambda _: b.emit("mul", [x, splat(0.70710678)]), lambda y: b.emit("erf", [y]), lambda y: b.emit("add", [y, splat(1.0)]),
                  lambda y: b.emit("mul", [x, y]), lambda y: b.emit("mul", [y, splat(0.5)]))


def diamond(b: Builder, dtype: DType) -> int | None:
    """One value, two ways from it, joined again."""
    x = b.any_operand(dtype, Domain(-3, 3))
    left = b.emit(b.draws.choice(["tanh", "sin", "abs", "neg"]), [x])
    right = b.emit("mul", [x, x])
    return None if left is None or right is None else b.emit(b.draws.choice(["add", "sub", "mul", "max"]), [left, right])


def _moved(b: Builder, x: int) -> int | None:
    """The elements of x in other places, the type being the same: reversed, rolled, shifted, transposed, reshaped and transposed back."""
    type = b.type(x)
    shape, axis = type.shape, b.draws.integer(0, type.rank - 1)
    n = shape[axis]
    kind = b.draws.choice(["transpose", "rev", "roll", "shift"])
    if kind == "rev":
        return b.emit("rev", [x], {"axes": (axis,)})
    if kind == "transpose":
        swapped = list(range(type.rank))
        other = b.draws.integer(0, type.rank - 1)
        swapped[axis], swapped[other] = other, axis
        turned = TensorType([shape[a] for a in swapped], type.dtype)
        return _chain(b, lambda _: x if turned == type else b.emit("reshape", [x], {}, turned),
                      lambda y: b.emit("transpose", [y], {"perm": tuple(swapped)}))
    cut = b.draws.integer(0, n)

    def part(start: int, limit: int) -> int | None:
        ends = [(start, limit) if a == axis else (0, size) for a, size in enumerate(shape)]
        return b.emit("slice", [x], {"start": tuple(e[0] for e in ends), "limit": tuple(e[1] for e in ends), "strides": (1,) * type.rank})
    if kind == "roll":
        low, high = part(0, cut), part(cut, n)
        return None if low is None or high is None else b.emit("concatenate", [high, low], {"axis": axis})
    zero = b._evaluated(b.graph.constant(0.0, TensorType((), type.dtype)))
    return _chain(b, lambda _: part(cut, n), lambda y: b.emit("pad", [y, zero], {"pads": tuple((cut * (a == axis), 0, 0) for a in range(type.rank))}))


def read_elsewhere(b: Builder, dtype: DType) -> int | None:
    """A result that is stored (a contraction, a reduction spread again, anything), read at other places than where its reader writes,
    beside the result itself or another value: what shares a kernel, and a buffer, must tell these places apart."""
    n = b.draws.choice(b.config.palette.sizes)
    square = TensorType((n, n), dtype)
    kind = b.draws.choice(["dot", "reduce", "any"])
    if kind == "dot" and b.config.palette.fits(square.shape):
        attrs = {"contract": ((1,), (b.draws.integer(0, 1),)), "batch": ((), ())}
        y = b.emit("dot_general", [b.operand(square, _LOGITS), b.operand(square, _WEIGHTS)], attrs, square)
    elif kind == "reduce":
        y = reduce_and_broadcast(b, dtype)
    else:
        y = b.any_operand(dtype, _LOGITS, min_rank=1)
    if y is None or not b.type(y).rank:
        return None
    moved = _moved(b, y)
    other = y if b.draws.chance(0.4) else b.operand(b.type(y), _WEIGHTS)
    return None if moved is None else b.emit(b.draws.choice(["sub", "add", "mul", "max"]), [moved, other] if b.draws.chance(0.5) else [other, moved])


IDIOMS = [diamond, reduce_and_broadcast, softmax, dense_layer, gelu, layer_norm, read_elsewhere, read_elsewhere, attention, attention]
