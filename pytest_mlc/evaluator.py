"""The campaign's evaluator for generated graphs: node values with the oracle's bounds, so that vacuous nodes are taken back at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mlc_strategies.recipe import MAX_SPECIAL, special_share

from mlc.core.dims import TensorType
from mlc.graph.graph import Node
from pytest_mlc import models
from pytest_mlc.bounds import Value, value_of

# Share of a new node's elements of which the referee may know nothing.
MAX_UNJUDGED = 0.1


class BoundsEvaluator:
    """Node values as `pytest_mlc.bounds.Value`; the finished program's values are the referee's own."""

    def leaf(self, type: TensorType, array: np.ndarray) -> Value:
        return Value(type.dtype, own=array)

    def value(self, node: Node, operands: Sequence):
        return value_of(node, operands, models.MLC)

    def array(self, value: Value) -> np.ndarray:
        return np.asarray(value.mid, np.float64) if value.dtype.is_float else value.mid

    def acceptable(self, value: Value, special: bool) -> bool:
        if not value.exact and value.error.size:
            loose = np.isinf(value.error)
            if value.dtype.is_float:
                loose |= (value.error > np.abs(value.mid)) & (value.error > models.min_normal(value.dtype))
            if loose.mean() > MAX_UNJUDGED:
                return False
        return special or special_share(self.array(value)) <= MAX_SPECIAL
