"""A referee that can judge deep models: where the worst-case bound says nothing, rounding errors are sampled.

Worst-case errors multiply from layer to layer, so that after one block of a transformer no element has a usable bound.
There the graph is run SAMPLES times, widened, with every node's result moved by a random part of the error that its
backend is allowed at that node; errors then cancel and grow as rounding errors do. The bound is FACTOR times the largest
deviation seen. (Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997.) Where the worst case judges, it still does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlc.core.dtype import DType
from mlc.graph.graph import Graph, Node
from mlc.graph.interpreter import overflow_threshold
from mlc.ops.base import DISCONTINUOUS
from pytest_mlc import models
from pytest_mlc.bounds import Value, error_dtype, local_error, run_op
from pytest_mlc.models import ErrorModel, min_normal
from pytest_mlc.oracle import Referee

# A correct element is refused only if all samples deviate less than a FACTOR-th of it: below 1e-9 for normal deviations.
SAMPLES, FACTOR = 8, 16.0


@dataclass(frozen=True)
class _RandomSums(ErrorModel):
    """A model whose sums err as independent roundings do: by the square root of their depth (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019)."""

    base: ErrorModel | None = None

    def ulp(self, node: Node) -> float:
        return self.base.ulp(node)

    def exact(self, node: Node) -> bool:
        return self.base.exact(node)

    def depth(self, terms: int) -> float:
        return math.sqrt(self.base.depth(terms))

    def contraction_depth(self, terms: int) -> float:
        return math.sqrt(self.base.contraction_depth(terms))

    def accumulator(self, dtype: DType) -> DType:
        return self.base.accumulator(dtype)


class SampledReferee(Referee):
    """A Referee whose outputs have sampled bounds where the derived ones are useless; graphs with regions keep the derived ones."""

    def outputs(self) -> list[Value]:
        return self._sampled_outputs

    def jax_outputs(self) -> list[Value]:
        return self._sampled_jax_outputs

    @cached_property
    def _sampled_outputs(self) -> list[Value]:
        return refine(self.graph, self.values, super().outputs(), models.MLC)

    @cached_property
    def _sampled_jax_outputs(self) -> list[Value]:
        derived = super().jax_outputs()
        return refine(self.graph, self._jax, derived, models.JAX)


def useless(value: Value) -> np.ndarray:
    """Elements of which the derived bound says nothing: it is infinite, or larger than the element."""
    if value.exact or not value.dtype.is_float:
        return np.isinf(value.error)
    return np.isinf(value.error) | ((value.error > np.abs(value.mid)) & (value.error > min_normal(value.dtype)))


def refine(graph: Graph, values: Sequence[Value], outputs: Sequence[Value], model: ErrorModel) -> list[Value]:
    """The outputs with sampled errors in place of useless ones."""
    masks = [useless(value) for value in outputs]
    if not any(mask.any() for mask in masks) or any(node.regions for node in graph.nodes):
        return list(outputs)
    with np.errstate(all="ignore"):
        deviations = sample(graph, values, model)
    return [_refined(value, mask, deviations[o]) if mask.any() else value for value, mask, o in zip(outputs, masks, graph.outputs)]


def _refined(value: Value, mask: np.ndarray, deviation: np.ndarray) -> Value:
    if not value.dtype.is_float:
        err = np.where(mask & (deviation == 0), 0, value.error)
        return Value(value.dtype, own=value.own, err=err)
    sampled = np.asarray(FACTOR * deviation, error_dtype(value.dtype))
    return Value(value.dtype, mid=value.mid, err=np.where(mask, np.minimum(sampled, value.error), value.error))


def sample(graph: Graph, values: Sequence[Value], model: ErrorModel) -> dict[int, np.ndarray]:
    """How far each output's elements moved in SAMPLES noisy runs, at most; inf where a run differed in kind (NaN, infinity, integers)."""
    random = _RandomSums(model.name, model.flush, model)
    noise = [_allowed(graph, i, values, random) for i in range(len(graph))]
    deviations: dict[int, np.ndarray] = {o: np.zeros(values[o].mid.shape) for o in graph.outputs}
    for number in range(SAMPLES):
        run = _noisy_run(graph, values, noise, np.random.default_rng([number, len(graph)]))
        for o in deviations:
            deviations[o] = np.maximum(deviations[o], _apart(run[o], values[o]))
    return deviations


def _allowed(graph: Graph, i: int, values: Sequence[Value], model: ErrorModel) -> np.ndarray | None:
    """The error that the backend may add at this node alone, its operands being right."""
    node, value = graph.nodes[i], values[i]
    if value.exact or not value.dtype.is_float or not node.inputs:
        return None
    error = local_error(node, [values[k] for k in node.inputs], value, model)
    return np.where(np.isfinite(error), error, 0) if error.any() else None


def _noisy_run(graph: Graph, values: Sequence[Value], noise: Sequence[np.ndarray | None], rng: np.random.Generator) -> list[np.ndarray]:
    run: list = [None] * len(graph)
    for i, node in enumerate(graph.nodes):
        value = values[i]
        if value.exact:
            run[i] = value.mid
            continue
        operands = [run[k] for k in node.inputs]
        if _decides(graph, node):
            # What an error could turn must turn in some run.
            operands = [_amplified(x, values[k]) for x, k in zip(operands, node.inputs)]
        result = run_op(node, operands)
        if noise[i] is not None:
            result = result + noise[i] * (2 * rng.random(result.shape, np.float32) - 1)
        run[i] = _overflowed(result, value) if value.dtype.is_float else result
    return run


def _decides(graph: Graph, node: Node) -> bool:
    """Whether the op takes a step: comparisons, floor, conversion to integers, but not of one float dtype to another."""
    return node.op.has(DISCONTINUOUS) and (not node.type.dtype.is_float or graph.nodes[node.inputs[0]].type.dtype is node.type.dtype)


def _amplified(x: np.ndarray, value: Value) -> np.ndarray:
    if not value.dtype.is_float or value.exact:
        return x
    moved = value.mid + FACTOR * (x - value.mid)
    return np.where(np.isfinite(moved), moved, x)


def _overflowed(result: np.ndarray, value: Value) -> np.ndarray:
    over = np.abs(result) >= result.dtype.type(overflow_threshold(value.dtype))
    return np.where(over, np.copysign(np.array(np.inf, result.dtype), result), result) if over.any() else result


def _apart(found: np.ndarray, value: Value) -> np.ndarray:
    if not value.dtype.is_float:
        return np.where(found == value.mid, 0.0, np.inf)
    same = (found == value.mid) | (np.isnan(found) & np.isnan(value.mid))
    apart = np.abs(found - value.mid)
    return np.where(same, 0, np.where(np.isnan(apart), np.inf, apart)).astype(np.float64)
