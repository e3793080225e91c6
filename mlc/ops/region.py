"""Ops that hold graphs. `call` applies its region to its operands; `tuple_get` picks one of a region op's results."""

from __future__ import annotations

from mlc.core import dtype as dt
from mlc.core.errors import ShapeError
from mlc.ops.base import FRESH, OPAQUE, VIEW, OpDef, register


def _infer_get(types, attrs, given):
    results = types[0]
    if not isinstance(results, tuple) or not 0 <= attrs["index"] < len(results):
        raise ShapeError(f"tuple_get: index {attrs['index']} is not a result of {results}")
    return results[attrs["index"]]


# The graph layer infers `call` from its region: the op itself cannot see graphs (imports go one way).
call = register(OpDef(
    name="call", version=1, arity=None, attrs={}, dtypes=dt.ALL, infer=lambda types, attrs, given: given, numpy=None, jax=None,
    fusion=OPAQUE, alias=FRESH, facts=(), ulp={}, inputs=()))
tuple_get = register(OpDef(
    name="tuple_get", version=1, arity=1, attrs={"index": "int"}, dtypes=dt.ALL, infer=_infer_get, numpy=None, jax=None,
    fusion=OPAQUE, alias=VIEW, facts=(), ulp={}, inputs=()))
