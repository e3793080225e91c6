"""Operands, attributes and values for every op of the registry, and how to compare what it makes of them."""

import itertools
import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.literal import Literal
from mlc.ops.base import ELEMENTWISE, REDUCTION, REGISTRY, Domain

OPS = list(REGISTRY.values())
COMPUTING = [op for op in OPS if op.numpy is not None]  # all but parameter, call, tuple_get
ELEMENTWISE_OPS = [op for op in OPS if op.fusion == ELEMENTWISE]
UNARY = [op for op in ELEMENTWISE_OPS if op.arity == 1 and not op.typed and not op.attrs]


def named(op):
    return op.name


# --------------------------------------------------------------------------- samples: operand shapes and attributes of the ops that need them
# name -> list of (operand shapes, attributes, result shape or None, result dtype or None for the operands' own)
SAMPLES = {
    "broadcast_in_dim": [([(3, 1)], {"dims": (1, 2)}, (2, 3, 4), None), ([()], {"dims": ()}, (2, 3), None)],
    "reshape": [([(4, 6)], {}, (3, 8), None), ([(2, 0)], {}, (0, 5), None)],
    "transpose": [([(2, 3, 4)], {"perm": (2, 0, 1)}, None, None), ([()], {"perm": ()}, None, None)],
    "slice": [([(7, 5)], {"start": (1, 0), "limit": (7, 4), "strides": (3, 2)}, None, None),
              ([(3,)], {"start": (2,), "limit": (2,), "strides": (1,)}, None, None)],
    "rev": [([(3, 4)], {"axes": (1,)}, None, None), ([(2, 3, 2)], {"axes": (0, 1, 2)}, None, None)],
    "concatenate": [([(2, 3), (2, 1), (2, 4)], {"axis": 1}, None, None), ([(2,), (0,)], {"axis": 0}, None, None)],
    "pad": [([(3, 4), ()], {"pads": ((1, 2, 0), (-1, 3, 2))}, None, None), ([(5,), ()], {"pads": ((-2, -1, 0),)}, None, None),
            ([(4,), ()], {"pads": ((-3, 1, 1),)}, None, None), ([(0, 2), ()], {"pads": ((1, 1, 3), (0, 0, 0))}, None, None),
            ([(), ()], {"pads": ()}, None, None)],
    "iota": [([], {"axis": 1}, (3, 5), None), ([], {"axis": 0}, (300,), None)],
    "constant": [([], {"value": "splat"}, (2, 3), None), ([], {"value": "data"}, (2, 3), None)],
    "dot_general": [([(4, 5), (5, 3)], {"contract": ((1,), (0,)), "batch": ((), ())}, (4, 3), None),
                    ([(2, 4, 5), (3, 2, 5)], {"contract": ((2,), (2,)), "batch": ((0,), (1,))}, (2, 4, 3), None),
                    ([(3, 4, 5), (5, 3)], {"contract": ((2, 0), (0, 1)), "batch": ((), ())}, (4,), None),
                    ([(4, 0), (0, 3)], {"contract": ((1,), (0,)), "batch": ((), ())}, (4, 3), None),
                    ([(4,), (3,)], {"contract": ((), ()), "batch": ((), ())}, (4, 3), None)],
    "integer_pow": [([(64,)], {"y": y}, None, None) for y in (3, 0, 1, 2, 7, -1, -2)],
    **{op.name: [([(3, 4, 5)], {"axes": axes}, tuple(n for i, n in enumerate((3, 4, 5)) if i not in axes), dt.i32 if op.typed else None)
                 for axes in ((1,), (0, 2), (0, 1, 2), *(() if op.typed else ((),)))] for op in OPS if op.fusion == REDUCTION},
}


def samples(op):
    """(operand types, attributes, result type given to a typed op) for every sample and every dtype the op takes."""
    if op.name == "convert_element_type":
        yield from (([TensorType((64,), a)], {}, TensorType((64,), b)) for a, b in itertools.product(dt.ALL, dt.ALL))
        return
    default = [([(64,)] * (op.arity or 1), {}, None, None)]
    for shapes, attrs, result, wanted in SAMPLES.get(op.name, default if op.fusion == ELEMENTWISE else []):
        for dtype in op.dtypes:
            if op.name == "integer_pow" and attrs["y"] < 0 and not dtype.is_float:
                continue  # jax refuses it, and so do the frontends
            types = [TensorType(s, dtype) for s in shapes]
            if op.name == "select":
                types[0] = types[0].with_dtype(dt.bool_)
            filled = dict(attrs)
            if op.name == "constant":
                data = values(Domain(), (2, 3), dtype, np.random.default_rng(5))
                filled["value"] = Literal(data if attrs["value"] == "data" else data[0, 0])
            yield types, filled, TensorType(result, wanted or dtype) if op.typed else None


def values(domain, shape, dtype, rng):
    """Random values of a domain, its edges first; subnormals are left out (JAX flushes them)."""
    size = math.prod(shape)
    if dtype is dt.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_int:
        drawn = rng.integers(max(math.ceil(domain.lo), dtype.min), min(math.floor(domain.hi), dtype.max), size, endpoint=True, dtype=np.int64)
        found = drawn.astype(dtype.numpy)
        ends = np.array([dtype.min, dtype.max, 0, 1], dtype.numpy)
    else:
        with np.errstate(all="ignore"):
            found = rng.uniform(domain.lo, domain.hi, size).astype(dtype.numpy)
            ends = np.array(domain.edges, np.float64).astype(dtype.numpy)
            smallest = 2.0 ** dt.MIN_EXPONENT[dtype]
            ends = ends[~((np.abs(ends.astype(np.float64)) < smallest) & (ends != 0))]
    rng.shuffle(ends)
    found[:len(ends)] = ends[:size]
    rng.shuffle(found)
    return found.reshape(shape)


def arguments(op, types, seed=0):
    rng = np.random.default_rng([seed, sum(map(ord, op.name))])
    domains = op.inputs if len(op.inputs) == len(types) else op.inputs * len(types)
    return [values(d, t.shape, t.dtype, rng) for d, t in zip(domains, types)]


def infer(op, types, attrs, given):
    return op.infer(types, attrs, given if op.typed else None)


def run_numpy(op, args, attrs, result):
    extra = {"shape": result.shape, "dtype": result.dtype.numpy} if op.typed else {}
    return np.asarray(op.numpy(*args, **attrs, **extra))


def wide(x):
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float64)


def ulps(found, want, dtype):
    """Distance in units of the last place of `want` (which may be wider); 0 where both are NaN or equal."""
    with np.errstate(all="ignore"):
        found, exact = wide(found), wide(want)
        overflow = 2.0 ** dt.MAX_EXPONENT[dtype] * (2 - 2.0 ** -dt.MANTISSA[dtype])
        exact = np.where(np.abs(exact) >= overflow, np.copysign(np.inf, exact), exact)
        exponent = np.maximum(np.frexp(exact)[1] - 1, dt.MIN_EXPONENT[dtype])
        distance = np.abs(found - exact) / np.ldexp(1.0, exponent - dt.MANTISSA[dtype] + 1)
        return np.where((found == exact) | (np.isnan(found) & np.isnan(exact)), 0.0, np.where(np.isnan(distance), np.inf, distance))


def same_values(found, want):
    """Equal values (zeros of either sign, any NaN), equal dtype and shape."""
    found, want = np.asarray(found), np.asarray(want)
    return found.dtype == want.dtype and found.shape == want.shape and bool(np.all((found == want) | ((found != found) & (want != want))))
