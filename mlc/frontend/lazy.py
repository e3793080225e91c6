"""Lazy arrays: operations outside `mlc.jit` are recorded and run when a value is asked for.

A lazy array holds its expression until it is evaluated, then only its value. Programs of the same graph text share one
executable.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlc.core import options as opt
from mlc.core.dims import TensorType
from mlc.core.literal import Literal
from mlc.core.locks import ForkSafeLock
from mlc.frontend.array import Array
from mlc.frontend.record import Tracer, refuse_leaked
from mlc.frontend.source import here
from mlc.graph.graph import Graph, infer_type
from mlc.graph.text import print_graph
from mlc.ops.base import op as find_op


class LazyArray(Array):
    """An array that is not computed yet (`_expr` = op, operands, attrs, meta) or is (`_value`, read-only).

    `_literal` marks a Python scalar's value: it stays a constant of the program instead of becoming an input."""

    __slots__ = ("_expr", "_literal", "_value")

    def __init__(self, type: TensorType, weak: bool, expr: tuple | None = None, value: np.ndarray | None = None, literal: bool = False):
        self.type, self.weak, self._expr, self._value, self._literal = type, weak, expr, value, literal

    def eval(self) -> np.ndarray:
        """The value, computed now if it was not before; a read-only NumPy array."""
        value = self._value
        if value is None:
            value = _evaluate(self)
            value.flags.writeable = False
            # The value first: a thread that finds no expression must find a value.
            self._value = value
            self._expr = None
        return value if value.shape == self.type.shape else np.broadcast_to(value, self.type.shape)

    def splat(self) -> np.ndarray | None:
        return self._value if self._literal else None

    def concrete(self, how: str, instead: str) -> np.ndarray:
        return self.eval()

    def __repr__(self) -> str:
        return f"mlc.{np.array_repr(self.eval())}"

    def __str__(self) -> str:
        return str(self.eval())

    def __format__(self, spec: str) -> str:
        return format(self.eval()[()], spec) if not self.type.shape else format(str(self), spec)

    def __dlpack__(self, **kwargs):
        return np.array(self.eval()).__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return (1, 0)

    def __jax_array__(self):
        # A lazy array has a value, so JAX may have it; tracers define nothing of the kind.
        import sys
        return sys.modules["jax"].numpy.asarray(self.eval())


class _LazyRecorder:
    """Has the interface of `Trace`, and makes lazy arrays."""

    def emit(self, op: str, operands: Sequence[Array], attrs: Mapping[str, Any] | None, type: TensorType | None, weak: bool) -> LazyArray:
        for x in operands:
            if isinstance(x, Tracer):
                refuse_leaked(x)
        definition, attrs = find_op(op), attrs or {}
        found = infer_type(definition, [x.type for x in operands], attrs, type, ())
        return LazyArray(found, weak, (op, tuple(operands), attrs, here()))

    def constant(self, value: np.ndarray | Literal, type: TensorType, weak: bool, scalar: bool = False) -> LazyArray:
        # A literal's array is a copy: a later write to the caller's array does not change the result.
        data = (value if isinstance(value, Literal) else Literal(value)).array
        return LazyArray(type, weak, None, data, scalar or data.ndim < type.rank)


LAZY = _LazyRecorder()


def asarray(value: object, dtype: object = None) -> LazyArray:
    """A lazy array of the value (array, Python scalar, nested list, `jax.Array`, anything with `__dlpack__`).

    Operations on it are recorded, and run at `.eval()`, `np.asarray()`, `float()`, `bool()` or printing. While a function
    is being recorded the result is a traced constant. Raises DtypeError for what no dtype of mlc can hold.
    """
    from mlc.frontend.creation import asarray as from_value
    return from_value(value, dtype)


def _order(root: LazyArray) -> list[LazyArray]:
    """Every array under `root` that has no value, operands first; no recursion."""
    order, done, stack = [], set(), [(root, root._expr)]
    while stack:
        array, expr = stack.pop()
        if id(array) in done or array._value is not None:
            continue
        todo = [x for x in expr[1] if x._value is None and id(x) not in done]
        if todo:
            stack.append((array, expr))
            stack.extend((x, x._expr) for x in todo if x._expr is not None)
        else:
            done.add(id(array))
            order.append(array)
    return order


def _evaluate(root: LazyArray) -> np.ndarray:
    exprs = _snapshot(root)
    if exprs is None:
        return root._value
    graph, ids, args = Graph("lazy"), {}, []
    for array, (op, operands, attrs, meta) in exprs:
        for x in operands:
            if id(x) not in ids:
                value = x._value
                if x._literal:
                    ids[id(x)] = graph.constant(value, x.type)
                else:
                    ids[id(x)] = graph.parameter(f"a{len(args)}", x.type)
                    args.append(value)
        node = graph.add(op, [ids[id(x)] for x in operands], attrs, array.type if find_op(op).typed else None, meta=meta)
        ids[id(array)] = node
    graph.set_outputs([ids[id(root)]])
    (result,) = _executable(graph).run(args)
    return result if result.flags.owndata else result.copy()


def _snapshot(root: LazyArray) -> list[tuple[LazyArray, tuple]] | None:
    """(array, expression) pairs to run; another thread may finish any of them meanwhile. None when the root is done."""
    while root._value is None:
        try:
            found = [(array, array._expr) for array in _order(root)]
        except TypeError:  # an expression vanished because another thread evaluated it
            continue
        known = {id(array) for array, _ in found}
        if found and all(expr is not None for _, expr in found) and all(
                id(x) in known or x._value is not None for _, expr in found for x in expr[1]):
            return found
    return None


_LIMIT = 256
_executables: OrderedDict[tuple, Any] = OrderedDict()
_lock = ForkSafeLock()


def _executable(graph: Graph):
    """The compiled form of a graph, shared by text and by the options that affect code."""
    from mlc.compile import compile_graph
    key = (print_graph(graph), tuple(opt.affecting_code().items()))
    with _lock:
        if key in _executables:
            _executables.move_to_end(key)
            return _executables[key]
    found = compile_graph(graph)
    with _lock:
        _executables[key] = found
        while len(_executables) > _LIMIT:
            _executables.popitem(last=False)
    return found
