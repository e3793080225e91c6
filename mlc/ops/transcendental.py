"""Elementwise transcendental functions; their scalar code is `mlc.ops.vecmath`, their ulp bounds are measured by `ci/scan_ulp.py`."""

from __future__ import annotations

import math

import numpy as np

from mlc.core import expr as ex
from mlc.core.dtype import FLOATS, INTS, bf16, f16, f32, f64
from mlc.ops import vecmath
from mlc.ops.base import ANY, EVEN, MONOTONE, ODD, Domain, Range, elementwise

inf, nan = np.inf, np.nan


def _wide(function):
    """f16/bf16 through float32; NumPy's own precision otherwise."""
    def run(*args):
        with np.errstate(all="ignore"):
            if args[0].dtype.itemsize == 2:
                return function(*(a.astype(np.float32) for a in args)).astype(args[0].dtype)
            return function(*args).astype(args[0].dtype)
    return run


def _ulp(single, double=2.0):
    return {f16: 1.0, bf16: 1.0, f32: single, f64: double}


def _unary(name, scalar, numpy, jax, ulp, facts=(), inputs=ANY, cost=12.0):
    return elementwise(
        name, version=1, dtypes=FLOATS, arity=1, scalar=scalar, numpy=_wide(numpy), jax=jax, facts=facts, ulp=ulp, inputs=inputs, cost=cost)


exp = _unary(
    "exp", vecmath.exp, np.exp, lambda jnp, lax, x: lax.exp(x), _ulp(2), (MONOTONE, Range(0, inf)),
    Domain(-20, 20, edges=(0.0, -0.0, 88.7, 89.0, -87.4, -103.9, -104.0, 709.7, -745.2, inf, -inf, nan)))
exp2 = _unary(
    "exp2", vecmath.exp2, np.exp2, lambda jnp, lax, x: lax.exp2(x), _ulp(2), (MONOTONE, Range(0, inf)),
    Domain(-20, 20, edges=(0.0, -0.0, 127.9, 128.0, -126.5, -149.5, 1023.5, -1074.5, inf, -inf, nan)))
log = _unary(
    "log", vecmath.log, np.log, lambda jnp, lax, x: lax.log(x), _ulp(2), (MONOTONE,),
    Domain(0, 100, edges=(0.0, -0.0, 1.0, -1.0, 1e-45, 0.70710677, 1.4142135, inf, -inf, nan)))
log2 = _unary(
    "log2", vecmath.log2, np.log2, lambda jnp, lax, x: jnp.log2(x), _ulp(2), (MONOTONE,),
    Domain(0, 100, edges=(0.0, -0.0, 1.0, -1.0, 8.0, 1e-45, 0.70710677, 1.4142135, inf, -inf, nan)))
log1p = _unary(
    "log1p", vecmath.log1p, np.log1p, lambda jnp, lax, x: lax.log1p(x), _ulp(3), (MONOTONE,),
    Domain(-0.99, 20, edges=(0.0, -0.0, -1.0, -2.0, -0.414, 1e-30, -1e-8, inf, -inf, nan)))
expm1 = _unary(
    "expm1", vecmath.expm1, np.expm1, lambda jnp, lax, x: lax.expm1(x), _ulp(3), (MONOTONE, Range(-1, inf)),
    Domain(-20, 20, edges=(0.0, -0.0, 1e-30, -1e-8, 0.35, -0.35, 88.8, -17.5, inf, -inf, nan)))
tanh = _unary(
    "tanh", vecmath.tanh, np.tanh, lambda jnp, lax, x: lax.tanh(x), _ulp(2), (ODD, MONOTONE, Range(-1, 1)),
    Domain(-10, 10, edges=(0.0, -0.0, 0.625, 9.01, -9.02, 1e-30, inf, -inf, nan)))
sin = _unary(
    "sin", vecmath.sin, np.sin, lambda jnp, lax, x: lax.sin(x), _ulp(2), (ODD, Range(-1, 1)),
    Domain(-10, 10, edges=(0.0, -0.0, 3.1415927, 1e5, -1e10, 1e30, inf, -inf, nan)))
cos = _unary(
    "cos", vecmath.cos, np.cos, lambda jnp, lax, x: lax.cos(x), _ulp(2), (EVEN, Range(-1, 1)),
    Domain(-10, 10, edges=(0.0, -0.0, 1.5707964, 1e5, -1e10, 1e30, inf, -inf, nan)))


def _wide_erf(x):
    """erf in longdouble, for the widened interpreter: 2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!, whose terms are all of one sign
    (Abramowitz and Stegun 7.1.6)."""
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(x), np.longdouble(7))  # beyond it the result rounds to 1
        term, total, n = size, size, 0
        while n < 250 and np.any(term > total * np.longdouble(2) ** -68):
            n += 1
            term = term * (2 * size * size / (2 * n + 1))
            total = total + term
        return np.copysign(2 / np.sqrt(np.longdouble(np.pi) + np.longdouble("1.2246467991473531772e-16")) * np.exp(-size * size) * total, x)


def np_erf(x):
    """erf through the C library in float64 (NumPy has none); longdouble by a series."""
    if np.asarray(x).dtype == np.longdouble:
        return np.where(np.isnan(x), x, np.where(np.abs(x) >= 7, np.copysign(np.longdouble(1), x), _wide_erf(x)))
    flat = [math.erf(v) for v in np.asarray(x, np.float64).reshape(-1)]
    return np.array(flat, np.float64).reshape(np.shape(x))


erf = _unary(
    "erf", vecmath.erf, np_erf, lambda jnp, lax, x: lax.erf(x), _ulp(2), (ODD, MONOTONE, Range(-1, 1)),
    Domain(-4, 4, edges=(0.0, -0.0, 0.84, 3.9, -4.0, 1e-30, inf, -inf, nan)))


def _np_logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


logistic = _unary(
    "logistic", vecmath.logistic, _np_logistic, lambda jnp, lax, x: lax.logistic(x), _ulp(3, 3), (MONOTONE, Range(0, 1)),
    Domain(-20, 20, edges=(0.0, -0.0, 17.5, -88.0, -103.9, inf, -inf, nan)), cost=16.0)
rsqrt = _unary(
    "rsqrt", vecmath.rsqrt, lambda x: 1 / np.sqrt(x), lambda jnp, lax, x: lax.rsqrt(x), _ulp(1.5, 1.5), (),
    Domain(0.01, 100, edges=(0.0, -0.0, 1.0, -1.0, 1e-45, inf, -inf, nan)), cost=10.0)


def _pow(x, y):
    """Floats: `vecmath.pow`. Ints: square and multiply over every bit of the exponent, modulo 2^n (`jnp.power` takes six bits only:
    jax-ml/jax#5987); a negative exponent gives the
    exact power truncated towards zero, as XLA's: 1 and -1 for those bases, 0 for all others (0 too)."""
    if x.dtype.is_float:
        return vecmath.pow(x, y)
    if x.dtype.kind == "u":
        return ex.power(x, y)
    one = ex.const(1, x.dtype)
    minus = ex.select(ex.ne(y & one, 0), -one, one)
    truncated = ex.select(ex.eq(x, 1), one, ex.select(ex.eq(x, -one), minus, ex.const(0, x.dtype)))
    return ex.select(y < 0, truncated, ex.power(x, ex.maximum(y, 0)))


def _np_pow(x, y):
    if x.dtype.kind not in "iu":
        return _wide(np.power)(x, y)
    total = np.power(x, np.maximum(y, np.array(0, y.dtype)))
    if x.dtype.kind == "u":
        return total
    one = np.array(1, x.dtype)
    truncated = np.where(x == 1, one, np.where(x == -1, np.where(y & one != 0, -one, one), np.array(0, x.dtype)))
    return np.where(y < 0, truncated, total)


def _jax_pow(jnp, lax, x, y):
    """JAX, with a defined answer where it has none for integers (it takes the low six bits of a negative exponent)."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return lax.pow(x, y)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return jnp.power(x, y)
    one, zero = lax.full_like(x, 1), lax.full_like(x, 0)
    minus = lax.select(lax.ne(lax.bitwise_and(y, one), zero), lax.neg(one), one)
    truncated = lax.select(lax.eq(x, one), one, lax.select(lax.eq(x, lax.neg(one)), minus, zero))
    return lax.select(lax.lt(y, zero), truncated, jnp.power(x, lax.max(y, zero)))


power = elementwise(
    "pow", version=2, dtypes=FLOATS + INTS, arity=2, scalar=_pow, numpy=_np_pow,
    jax=_jax_pow, ulp=_ulp(3),
    inputs=(Domain(0, 10, edges=(0.0, -0.0, 1.0, -1.0, -2.0, inf, -inf, nan)),
            Domain(-4, 4, edges=(0.0, -0.0, 1.0, -1.0, 3.0, 0.5, -2.0, inf, -inf, nan))),
    cost=40.0)
