"""The graph interpreter: NumPy, op by op, slow and obvious. In own dtype it is the meaning of a graph; widened it is the referee.

Widened: f16, bf16 and f32 run in float64, f64 in longdouble; integers and bools keep their dtype. A widened value past
its dtype's rounding threshold becomes inf after each op, so that overflow happens where the narrow program overflows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import static_shape
from mlc.core.dtype import DType
from mlc.graph.graph import Graph, Node


def wide_dtype(dtype: DType) -> np.dtype:
    """The NumPy dtype that stands for `dtype` in the widened interpreter."""
    if not dtype.is_float:
        return dtype.numpy
    return np.dtype(np.longdouble if dtype is dt.f64 else np.float64)


def overflow_threshold(dtype: DType) -> float:
    """Magnitudes at or above it round to infinity in `dtype`."""
    top = np.longdouble(2) ** dt.MAX_EXPONENT[dtype]
    return top * (2 - np.longdouble(2) ** -dt.MANTISSA[dtype])


def _narrow(value: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        over = np.abs(value) >= overflow_threshold(dtype)
    return np.where(over, np.copysign(np.array(np.inf, value.dtype), value), value) if over.any() else value


def apply_node(node: Node, operands: Sequence[np.ndarray], wide: bool = False) -> np.ndarray:
    """One op on NumPy arrays; in own dtype the result's dtype and shape are the node's."""
    attrs = dict(node.attrs)
    if node.op.typed:
        attrs["shape"] = static_shape(node.type.shape)
        attrs["dtype"] = wide_dtype(node.type.dtype) if wide else node.type.dtype.numpy
    # C order throughout: NumPy's vectorised functions and sums round otherwise on other strides.
    result = np.asarray(node.op.numpy(*operands, **attrs), order="C")
    if not wide:
        assert result.dtype == node.type.dtype.numpy and result.shape == node.type.shape, (node.op.name, result.dtype, result.shape, node.type)
        return result
    result = result.astype(wide_dtype(node.type.dtype), copy=False)
    return _narrow(result, node.type.dtype) if node.type.dtype.is_float else result


def evaluate_all(graph: Graph, args: Sequence[np.ndarray], wide: bool = False) -> list:
    """The value of every node (a tuple for region ops)."""
    values: list = [None] * len(graph)
    for p, value in zip(graph.params, args, strict=True):
        dtype = graph.nodes[p].type.dtype
        values[p] = np.asarray(value).astype(wide_dtype(dtype) if wide else dtype.numpy, order="C")
    for i, node in enumerate(graph.nodes):
        if node.op.name == "parameter":
            continue
        operands = [values[k] for k in node.inputs]
        if node.op.name == "call":
            values[i] = tuple(evaluate(node.regions[0], operands, wide))
        elif node.op.name == "tuple_get":
            values[i] = operands[0][node.attrs["index"]]
        else:
            values[i] = apply_node(node, operands, wide)
    return values


def evaluate(graph: Graph, args: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """The graph's outputs for these arguments (in parameter order)."""
    values = evaluate_all(graph, args, wide)
    return [values[o] for o in graph.outputs]
