"""Products of `mlc.numpy`, all written with dot_general."""

from __future__ import annotations

import math

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, broadcast_shapes, normalize_axes, normalize_axis
from mlc.core.dtype import asked_dtype
from mlc.core.errors import ShapeError, UnsupportedError
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.binary import power
from mlc.frontend.creation import eye
from mlc.frontend.manipulation import _shaped, broadcast_to, expand_dims, moveaxis, part, permuted, ravel, squeeze, stack
from mlc.frontend.primitives import array_of, like, select
from mlc.frontend.promotion import broadcast, convert, promote, promote_dtypes, to_inexact
from mlc.frontend.record import emit
from mlc.frontend.reductions import max_, min_, sum_
from mlc.ops.contraction import _WIDER


def describe(x: Array, what: str) -> str:
    """`w (f32[784,512])` for a parameter, `the right operand (f32[784,512])` otherwise."""
    trace = getattr(x, "_trace", None)
    if trace is not None:
        node = trace.graph.nodes[x.node]
        if node.op.name == "parameter":
            what = node.attrs["name"]
    return f"{what} is {x.type}"


def dot_general(x: Array, y: Array, contract: tuple, batch: tuple = ((), ()), preferred: object = None) -> Array:
    """dot_general of operands of one dtype; sizes must already agree. bools are multiplied as and, summed as or."""
    free = [n for i, n in enumerate(x.type.shape) if i not in contract[0] + batch[0]]
    free += [n for i, n in enumerate(y.type.shape) if i not in contract[1] + batch[1]]
    shape = [x.type.shape[i] for i in batch[0]] + free
    weak = x.weak and y.weak
    own = x.type.dtype
    wanted = own if preferred is None else asked_dtype(preferred)
    if own.kind == "b":
        # There is no dot of bools: count in int32, and some count is nonzero exactly when some product was true.
        counts = dot_general(convert(x, dt.i32), convert(y, dt.i32), contract, batch)
        return convert(emit("ne", (counts, like(counts, 0)), weak=False), wanted)
    given = wanted
    if wanted not in _WIDER.get(own, ()):
        given = _dot_dtype(own, wanted)
        x, y = (v if given is own else convert(v, given) for v in (x, y))
    out = emit("dot_general", (x, y), {"contract": contract, "batch": batch}, TensorType(shape, given), weak)
    return convert(out, wanted, weak and wanted is own)


def _dot_dtype(own, wanted):
    """The dtype to multiply and add in where the op does not widen by itself: one that loses nothing of the operands or the preferred dtype.
    Integers wrap, so a preferred integer of as many bits or more is enough."""
    if own.is_int and wanted.is_int:
        return wanted if wanted.bits > own.bits else own
    return dt.promote_types(own, wanted)


@public
def dot(a, b, *, precision=None, preferred_element_type=None):
    """Sum over a's last axis and b's second last (or only) one; a scalar multiplies."""
    x, y = promote_dtypes(a, b)
    if not x.ndim or not y.ndim:
        return dot_general(x, y, ((), ()), preferred=preferred_element_type)
    left, right = x.ndim - 1, 0 if y.ndim == 1 else y.ndim - 2
    _check_contraction(x, y, left, right)
    return dot_general(x, y, ((left,), (right,)), preferred=preferred_element_type)


def _check_contraction(x: Array, y: Array, i: int, j: int) -> None:
    if x.type.shape[i] == y.type.shape[j]:
        return
    left, right = describe(x, "the left operand"), describe(y, "the right operand")
    advice = ""
    if y.ndim >= 2 and x.type.shape[i] == y.type.shape[-1] and j == y.ndim - 2:
        advice = f". Transpose the right operand, or contract its axis {y.ndim - 1}"
    raise ShapeError(f"{left} and {right}; contracting axis {i} of the left ({x.type.shape[i]}) "
                     f"with axis {j} of the right ({y.type.shape[j]}){advice}")


@public
def matmul(a, b, *, precision=None, preferred_element_type=None):
    """Matrix product over the last two axes, the others broadcast; arrays with one axis are vectors."""
    x, y = promote_dtypes(a, b)
    for v, what in ((x, "left"), (y, "right")):
        if not v.ndim:
            raise ShapeError(f"the {what} operand is rank 0; use *")
    _check_contraction(x, y, x.ndim - 1, max(y.ndim - 2, 0))
    if x.ndim <= 2 and y.ndim <= 2:
        return dot_general(x, y, ((x.ndim - 1,), (max(y.ndim - 2, 0),)), preferred=preferred_element_type)
    return _batched(x, y, preferred_element_type)


def _batched(x: Array, y: Array, preferred: object) -> Array:
    """Batch axes present on one side only (or of size 1 there) stay free on the other, so nothing is copied."""
    xb, yb = x.type.shape[:-2] if x.ndim > 1 else (), y.type.shape[:-2] if y.ndim > 1 else ()
    try:
        lead = broadcast_shapes(xb, yb)
    except ShapeError:
        raise ShapeError(f"{describe(x, 'the left operand')} and {describe(y, 'the right operand')}; "
                         f"batch axes {list(xb)} and {list(yb)} do not broadcast") from None
    count = len(lead)
    xb, yb = (None,) * (count - len(xb)) + xb, (None,) * (count - len(yb)) + yb
    x_axes, y_axes, batch_at, x_free, y_free = [], [], [], [], []
    for i, (p, q) in enumerate(zip(xb, yb)):
        both = p is not None and q is not None and p == q and p != 1
        if both:
            batch_at.append(i)
        elif p is not None and p != 1:
            x_free.append(i)
        elif q is not None and q != 1:
            y_free.append(i)
        x_axes += [i] if p is not None and p != 1 else []
        y_axes += [i] if q is not None and q != 1 else []
    x = _shaped(x, [lead[i] for i in x_axes] + list(x.type.shape[-2:] if x.ndim > 1 else x.type.shape))
    y = _shaped(y, [lead[i] for i in y_axes] + list(y.type.shape[-2:] if y.ndim > 1 else y.type.shape))
    rows, columns = x.ndim - len(x_axes) == 2, y.ndim - len(y_axes) == 2
    batch = (tuple(x_axes.index(i) for i in batch_at), tuple(y_axes.index(i) for i in batch_at))
    out = dot_general(x, y, ((x.ndim - 1,), (len(y_axes),)), batch, preferred)
    # The result's axes: batch, then what is free in x, then in y; where each belongs:
    order = [*batch_at, *x_free, *([count] if rows else []), *y_free, *([count + 1] if columns else [])]
    out = permuted(out, [order.index(i) for i in sorted(order)])
    return _shaped(out, [*lead, *([x.type.shape[-2]] if rows else []), *([y.type.shape[-1]] if columns else [])])


@public
def matvec(x1, x2, /):
    """Matrix times vector, the other axes broadcast."""
    return _squeeze_last(matmul(x1, expand_dims(x2, -1)))


@public
def vecmat(x1, x2, /):
    """Vector times matrix, the other axes broadcast."""
    out = matmul(expand_dims(x1, -2), x2)
    return _shaped(out, [*out.type.shape[:-2], out.type.shape[-1]])


def _squeeze_last(x: Array) -> Array:
    return _shaped(x, x.type.shape[:-1])


@public
def vdot(a, b, *, precision=None, preferred_element_type=None):
    """Dot of the flattened arrays."""
    return dot(ravel(a), ravel(b), preferred_element_type=preferred_element_type)


@public
def vecdot(x1, x2, /, *, axis=-1, precision=None, preferred_element_type=None):
    """Dot along an axis, the other axes broadcast."""
    x, y = array_of(x1), array_of(x2)
    x, y = moveaxis(x, normalize_axis(axis, x.ndim, "axis"), -1), moveaxis(y, normalize_axis(axis, y.ndim, "axis"), -1)
    if x.type.shape[-1] != y.type.shape[-1]:
        raise ShapeError(f"axis {axis} has {x.type.shape[-1]} elements on the left and {y.type.shape[-1]} on the right")
    out = matmul(expand_dims(x, -2), expand_dims(y, -1), preferred_element_type=preferred_element_type)
    return _shaped(out, out.type.shape[:-2])


@public
def tensordot(a, b, axes=2, *, precision=None, preferred_element_type=None):
    """Sum over the last `axes` axes of a and the first of b, or over pairs of named axes."""
    x, y = promote_dtypes(a, b)
    if hasattr(axes, "__index__"):
        count = axes.__index__()
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise ShapeError(f"axes={count} is more than {x.type} and {y.type} have")
        left, right = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    else:
        left, right = ((i,) if hasattr(i, "__index__") else tuple(i) for i in axes)
        if len(left) != len(right):
            raise ShapeError(f"axes {axes} name {len(left)} axes on the left and {len(right)} on the right")
        left, right = (tuple(normalize_axis(i, v.ndim, "axes") for i in which) for which, v in ((left, x), (right, y)))
    for i, j in zip(left, right):
        _check_contraction(x, y, i, j)
    return dot_general(x, y, (left, right), preferred=preferred_element_type)


@public
def inner(a, b, *, precision=None, preferred_element_type=None):
    """Sum over the last axes; a scalar multiplies."""
    x, y = promote_dtypes(a, b)
    if not x.ndim or not y.ndim:
        return emit("mul", promote(x, y))
    return tensordot(x, y, (-1, -1), preferred_element_type=preferred_element_type)


@public
def outer(a, b, out=None):
    """Every product of the flattened arrays."""
    x, y = promote_dtypes(ravel(a), ravel(b))
    shape = (x.size, y.size)
    return emit("and" if x.type.dtype.kind == "b" else "mul", (broadcast(_shaped(x, (x.size, 1)), shape), broadcast(y, shape)))


@public
def kron(a, b):
    """The Kronecker product."""
    x, y = promote_dtypes(a, b)
    rank = max(x.ndim, y.ndim)
    x, y = _shaped(x, (1,) * (rank - x.ndim) + x.type.shape), _shaped(y, (1,) * (rank - y.ndim) + y.type.shape)
    spread = [n for pair in zip(x.type.shape, y.type.shape) for n in pair]
    left = emit("broadcast_in_dim", (x,), {"dims": tuple(range(0, 2 * rank, 2))}, TensorType(spread, x.type.dtype))
    right = emit("broadcast_in_dim", (y,), {"dims": tuple(range(1, 2 * rank, 2))}, TensorType(spread, x.type.dtype))
    return _shaped(emit("mul", (left, right)), [p * q for p, q in zip(x.type.shape, y.type.shape)])


@public
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """Cross product of vectors with 2 or 3 elements."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    if x.type.shape[-1] not in (2, 3) or y.type.shape[-1] not in (2, 3):
        raise ShapeError(f"vectors have 2 or 3 elements, got {x.type} and {y.type}")
    a0, a1, b0, b1 = x[..., 0], x[..., 1], y[..., 0], y[..., 1]
    flat = a0 * b1 - a1 * b0
    if x.type.shape[-1] == 2 and y.type.shape[-1] == 2:
        return flat
    a2 = x[..., 2] if x.type.shape[-1] == 3 else like(a0, 0)
    b2 = y[..., 2] if y.type.shape[-1] == 3 else like(b0, 0)
    return moveaxis(stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, flat]), 0, axisc)


@public
def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    """Sum of a diagonal."""
    x = moveaxis(a, (axis1, axis2), (-2, -1))
    n, m = x.type.shape[-2:]
    mask = broadcast(eye(n, m, offset, dtype=bool), x.type.shape)
    return sum_(select(mask, x, like(x, 0)), axis=(-2, -1), dtype=dtype)


@public
def diagonal(a, offset=0, axis1=0, axis2=1):
    """The elements with column - row = offset, along a new last axis."""
    x = array_of(a)
    if x.ndim < 2:
        raise ShapeError(f"a diagonal needs two axes or more, got {x.type}")
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    n, m = x.type.shape[-2:]
    lead, offset = x.type.shape[:-2], offset.__index__()
    size = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    # A diagonal is every (m + 1)-th element of the flattened matrix.
    flat = _shaped(x, (*lead, n * m))
    start = offset if offset >= 0 else -offset * m
    return part(flat, len(lead), start, start + (size - 1) * (m + 1) + 1, m + 1) if size else part(flat, len(lead), 0, 0)


@public
def diag(v, k=0):
    """The diagonal of a matrix, or a matrix with this diagonal."""
    x = array_of(v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"one or two axes are needed, got {x.type}")
    k = k.__index__()
    size = x.size + abs(k)
    padded = emit("pad", (x, convert(like(array_of(0), 0), x.type.dtype)), {"pads": ((max(k, 0), max(-k, 0), 0),)}, weak=x.weak)
    # Column j of the result holds the element that lies on the diagonal there.
    return select(eye(size, size, k, dtype=bool), broadcast_to(padded, (size, size)), like(broadcast(padded, (size, size)), 0))


# --------------------------------------------------------------------------- norms
def _root_of_squares(x: Array, axis, keepdims: bool) -> Array:
    return emit("sqrt", (sum_(emit("mul", (x, x)), axis, keepdims=keepdims),))


@public(namespace="linalg")
def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    """(sum of |x| ** ord) ** (1 / ord) over axes; inf, -inf and 0 as in NumPy."""
    (x,) = promote(x, to=to_inexact)
    axes = normalize_axes(axis, x.ndim, "axis")
    size = emit("abs", (x,))
    if ord is None or ord == 2:
        return _root_of_squares(x, axes, keepdims)
    if ord in (math.inf, -math.inf):
        return (max_ if ord > 0 else min_)(size, axes, keepdims=keepdims, initial=0 if ord > 0 else None)
    if ord == 0:
        return sum_(emit("ne", (x, like(x, 0)), weak=False), axes, dtype=x.type.dtype, keepdims=keepdims)
    if isinstance(ord, str):
        raise ShapeError(f"order {ord!r} is not one of a vector's; use a number, or mlc.numpy.inf")
    if ord == 1:
        return sum_(size, axes, keepdims=keepdims)
    return power(sum_(power(size, float(ord)), axes, keepdims=keepdims), 1.0 / ord)


@public(namespace="linalg")
def matrix_norm(x, /, *, keepdims=False, ord="fro"):
    """The norm of the last two axes: "fro", 1, -1, inf or -inf."""
    return norm(x, ord, (-2, -1), keepdims)


@public(namespace="linalg")
def norm(x, ord=None, axis=None, keepdims=False):
    """A vector norm over one axis, a matrix norm over two; over all axes the root of the sum of squares."""
    (x,) = promote(x, to=to_inexact)
    if axis is None and ord is None:
        return _root_of_squares(x, None, keepdims)
    axes = [normalize_axis(a, x.ndim, "axis") for a in (range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,))]
    if len(axes) == 1:
        return vector_norm(x, ord=2 if ord is None else ord, axis=axes[0], keepdims=keepdims)
    if len(axes) != 2:
        raise ShapeError(f"axis={axis!r} of {x.type} names {len(axes)} axes; one gives a vector norm, two a matrix norm")
    if ord in (None, "f", "fro"):
        return _root_of_squares(x, tuple(axes), keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise UnsupportedError(f"the matrix norm of order {ord!r} needs singular values, which are not available")
    row, column = axes if abs(ord) == 1 else axes[::-1]
    sums = sum_(emit("abs", (x,)), row, keepdims=True)
    out = (max_ if ord > 0 else min_)(sums, column, keepdims=True, initial=0 if ord > 0 else None)
    return out if keepdims else squeeze(out, tuple(axes))
