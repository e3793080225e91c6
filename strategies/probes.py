"""Probes: one op on operands of its own that are full of what it may trip over, its result an output.

Values that a graph passes from op to op are soon ordinary, or NaN. A probe brings the edges of an op's domain and their neighbours,
subnormals, zeros of both signs, infinities, NaN and any other bits to that very op.
"""

from __future__ import annotations

from mlc_strategies import values
from mlc_strategies.ingredients import attributes, placeable
from mlc_strategies.recipe import Builder, Config

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.errors import MlcError
from mlc.ops.base import ELEMENTWISE, REDUCTION, REGISTRY, OpDef

# Enough for every edge, with whole vectors and a rest.
SIZES = (67, 131, 261)
# Elements that a reduction takes together: of two of them, what it starts from shows in some results.
TOGETHER = (2, 3)


def pairs(config: Config) -> list[tuple[str, DType]]:
    """The (op, dtype) that can be probed."""
    return [(name, d) for name in placeable(config) for d in REGISTRY[name].dtypes if d in config.dtypes
            and (REGISTRY[name].fusion == ELEMENTWISE or (REGISTRY[name].fusion == REDUCTION and set(REGISTRY[name].attrs) == {"axes"}))]


def probe(b: Builder, name: str, dtype: DType) -> int | None:
    """Add a probe of the op over the dtype; None when the result could not be judged."""
    op, n = REGISTRY[name], b.draws.choice(SIZES)
    over = op.fusion == REDUCTION
    together = b.draws.choice(TOGETHER)
    type = TensorType((n // together, together) if over else (n,), dtype)
    types, attrs = [type] * op.arity, {"axes": (1,)} if over else attributes(b, op, dtype)
    results = [TensorType(type.shape[:1], d) for d in b.config.dtypes] if op.typed else [None]
    fitting = [given for given in results if _accepts(op, types, attrs, given)]
    if not fitting:
        types, fitting = [type.with_dtype(dt.bool_), *types[1:]], results[:1]  # select
    if not _accepts(op, types, attrs, fitting[0]):
        return None
    given = b.draws.choice(fitting)
    arrays = [values.probing(b.rng, t, domain) for t, domain in zip(types, op.inputs)]
    return b.emit(name, [b.bind(t, array, b.evaluator.leaf(t, array)) for t, array in zip(types, arrays)], attrs, given)


def _accepts(op: OpDef, types: list[TensorType], attrs: dict, given: TensorType | None) -> bool:
    try:
        op.infer(types, attrs, given)
    except MlcError:
        return False
    return True
