"""`mlc.nn`: activations, normalisations and layers, decomposed exactly as `jax.nn` does, so that special values agree."""

from __future__ import annotations

import functools
import math

import numpy as np

from mlc.core.dims import normalize_axis
from mlc.core.dtype import asked_dtype, f64
from mlc.core.errors import DtypeError, ShapeError
from mlc.frontend import methods as _methods  # noqa: F401  gives arrays their operators
from mlc.frontend.api import NN
from mlc.frontend.api import public as _public
from mlc.frontend.binary import logaddexp, maximum, minimum
from mlc.frontend.creation import iota
from mlc.frontend.linalg import matmul
from mlc.frontend.manipulation import expand_dims, split
from mlc.frontend.primitives import array_of, compare, like
from mlc.frontend.promotion import broadcast, convert, promote, to_inexact
from mlc.frontend.record import emit
from mlc.frontend.reductions import count, logsumexp, max_, mean, sum_
from mlc.frontend.reductions import mean as mean_
from mlc.frontend.unary import exp, log, rsqrt, where
from mlc.ops.base import REGISTRY

public = functools.partial(_public, namespace="nn")


@public
def identity(x):
    """x itself."""
    return array_of(x)


@public
def relu(x):
    """max(x, 0)."""
    return maximum(x, 0)


@public
def relu6(x):
    """min(max(x, 0), 6)."""
    return minimum(maximum(x, 0), 6.0)


@public
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    x = array_of(x)
    if not x.type.dtype.is_float:
        raise DtypeError(f"sigmoid takes floats, got {x.type}; convert first")
    return emit("logistic", (x,))


@public
def softplus(x):
    """log(1 + exp(x))."""
    return logaddexp(x, 0)


@public(aliases=("swish",))
def silu(x):
    """x * sigmoid(x)."""
    x = array_of(x)
    return x * sigmoid(x)


@public
def mish(x):
    """x * tanh(softplus(x))."""
    x = array_of(x)
    return x * emit("tanh", (softplus(x),))


@public
def log_sigmoid(x):
    """log(sigmoid(x))."""
    return -softplus(-array_of(x))


@public
def soft_sign(x):
    """x / (|x| + 1)."""
    x = array_of(x)
    return x / (abs(x) + 1)


@public
def squareplus(x, b=4):
    """(x + sqrt(x**2 + b)) / 2."""
    x = array_of(x)
    (root,) = promote(x * x + b, to=to_inexact)
    return (x + emit("sqrt", (root,))) / 2


@public
def sparse_plus(x):
    """0 up to -1, x from 1 on, (x + 1)**2 / 4 between."""
    x = array_of(x)
    return where(x <= -1.0, 0.0, where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


@public
def sparse_sigmoid(x):
    """(x + 1) / 2 clipped to [0, 1]."""
    return 0.5 * minimum(2.0, maximum(0.0, array_of(x) + 1.0))


@public
def elu(x, alpha=1.0):
    """x above 0, alpha * expm1(x) below."""
    x = array_of(x)
    above = x > 0
    (below,) = promote(where(above, 0.0, x), to=to_inexact)
    return where(above, x, alpha * emit("expm1", (below,)))


@public
def celu(x, alpha=1.0):
    """max(x, 0) + alpha * expm1(min(x, 0) / alpha)."""
    (below,) = promote(minimum(x, 0.0) / alpha, to=to_inexact)
    return maximum(x, 0.0) + alpha * emit("expm1", (below,))


@public
def selu(x):
    """elu scaled so that activations normalise themselves."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@public
def leaky_relu(x, negative_slope=1e-2):
    """x above 0, negative_slope * x below."""
    x = array_of(x)
    return where(x >= 0, x, negative_slope * x)


@public
def hard_tanh(x):
    """x clipped to [-1, 1]."""
    x = array_of(x)
    return where(x > 1, 1, where(x < -1, -1, x))


@public
def hard_sigmoid(x):
    """relu6(x + 3) / 6."""
    return relu6(array_of(x) + 3.0) / 6.0


@public(aliases=("hard_swish",))
def hard_silu(x):
    """x * hard_sigmoid(x)."""
    x = array_of(x)
    return x * hard_sigmoid(x)


@public
def gelu(x, approximate: bool = True):
    """x times the normal distribution function: approximated by tanh, or with `approximate=False` by erf. NaN for -inf, as in JAX."""
    (x,) = promote(x, to=to_inexact)
    if approximate:
        # (1 + tanh z) / 2 = logistic(2 z), which loses nothing where tanh is near -1.
        return x * emit("logistic", (like(x, math.sqrt(8 / math.pi)) * (x + 0.044715 * (x ** 3)),))
    scaled = -x * like(x, math.sqrt(0.5))
    # Without an erfc op: 1 - erf, which is exact to the last places of 1, not of the tail.
    tail = emit("erfc", (scaled,)) if "erfc" in REGISTRY else 1.0 - emit("erf", (scaled,))
    return 0.5 * x * tail


@public(jax=lambda jax, x: jax.scipy.special.erf(x))
def erf(x):
    """The error function (`jax.scipy.special.erf`)."""
    (x,) = promote(x, to=to_inexact)
    return emit("erf", (x,))


@public
def glu(x, axis=-1):
    """The first half times the sigmoid of the second."""
    x = array_of(x)
    axis = normalize_axis(axis, x.ndim, "axis")
    if x.type.shape[axis] % 2:
        raise ShapeError(f"axis {axis} of {x.type} must have an even size")
    left, right = split(x, 2, axis)
    return left * sigmoid(right)


# --------------------------------------------------------------------------- over an axis
def _shift(x, axis, where_):
    """x minus its maximum, which keeps exp in range; masked elements are -inf."""
    top = max_(x, axis, where=where_, initial=-np.inf, keepdims=True)
    return (x if where_ is None else where(where_, x, -np.inf)) - top


@public(name="softmax")
def softmax(x, axis=-1, where=None):
    """exp(x - max) / sum of it; elements that `where` leaves out give 0."""
    powers = exp(_shift(array_of(x), axis, where))
    result = powers / sum_(powers, axis, where=where, keepdims=True)
    return result if where is None else _where(where, result, 0)


_where = where


@public(name="log_softmax")
def log_softmax(x, axis=-1, where=None):
    """log(softmax(x)) without overflow; elements that `where` leaves out give -inf."""
    shifted = _shift(array_of(x), axis, where)
    result = shifted - log(sum_(exp(shifted), axis, where=where, keepdims=True))
    return result if where is None else _where(where, result, -np.inf)


@public(name="logmeanexp")
def logmeanexp(x, axis=None, where=None, keepdims=False):
    """log(mean(exp(x))) without overflow."""
    total = logsumexp(x, axis=axis, where=where, keepdims=keepdims)
    number = count(array_of(x), axis, keepdims, where, total.type.dtype)
    return total - emit("log", (number,))


@public(name="standardize")
def standardize(x, axis=-1, mean=None, variance=None, epsilon=1e-5, where=None, *, algorithm="fast"):
    """(x - mean) / sqrt(variance + epsilon); `algorithm` "fast" takes mean(x**2) - mean**2 as the variance, "stable" two passes."""
    x = array_of(x)
    if algorithm not in ("fast", "stable"):
        raise ShapeError(f"algorithm is 'fast' or 'stable', got {algorithm!r}")
    center = mean_(x, axis, keepdims=True, where=where) if mean is None else array_of(mean)
    if variance is None:
        if algorithm == "stable":
            distance = x - center
            variance = mean_(distance * distance, axis, keepdims=True, where=where)
        else:
            variance = maximum(0, mean_(x * x, axis, keepdims=True, where=where) - center * center)
    (spread,) = promote(array_of(variance) + epsilon, to=to_inexact)
    return (x - center) * emit("rsqrt", (spread,))


def _normalise(mean, rsqrt, x, scale, bias, axis, epsilon):
    """The formula of `layer_norm`, for arrays of mlc and of JAX."""
    wide = x.astype("float32") if x.dtype.itemsize == 2 else x
    distance = wide - mean(wide, axis=axis, keepdims=True)
    out = distance * rsqrt(mean(distance * distance, axis=axis, keepdims=True) + epsilon)
    out = out if scale is None else out * scale
    out = out if bias is None else out + bias
    return out.astype(x.dtype) if x.dtype.itemsize == 2 else out


def _jax_layer_norm(jax, x, scale=None, bias=None, axis=-1, epsilon=1e-5):
    return _normalise(jax.numpy.mean, jax.lax.rsqrt, jax.numpy.asarray(x), scale, bias, axis, epsilon)


@public(jax=_jax_layer_norm)
def layer_norm(x, scale=None, bias=None, axis=-1, epsilon=1e-5):
    """(x - mean) * rsqrt(var + epsilon) over an axis, then times scale plus bias; two passes. Half floats compute in float32."""
    (x,) = promote(x, to=to_inexact)
    return _normalise(mean, rsqrt, x, scale, bias, axis, epsilon)


@public(jax=lambda jax, x, weight, bias=None: jax.numpy.matmul(x, weight) + (0 if bias is None else bias))
def linear(x, weight, bias=None):
    """x @ weight + bias, with weight [in, out]."""
    out = matmul(x, weight)
    return out if bias is None else out + bias


@public
def one_hot(x, num_classes, *, dtype=None, axis=-1):
    """1 where the class is x, 0 elsewhere (and everywhere when x is out of range), along a new axis."""
    x, size = array_of(x), num_classes.__index__()
    at = normalize_axis(axis, x.ndim + 1, "axis")
    left = expand_dims(x, at)
    shape = (*x.type.shape[:at], size, *x.type.shape[at:])
    line = iota(tuple(size if i == at else 1 for i in range(x.ndim + 1)), at, x.type.dtype)
    return convert(compare("eq", broadcast(left, shape), broadcast(line, shape)), f64 if dtype is None else asked_dtype(dtype))


@public(jax=lambda jax, x, keep, mask: jax.numpy.where(mask, x / keep, 0))
def dropout(x, keep, mask):
    """x / keep where the given mask is true, 0 elsewhere: the randomness is the caller's."""
    return where(mask, array_of(x) / keep, 0)


__all__ = sorted(NN)
globals().update(NN)
