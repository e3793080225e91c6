"""Recording: a `Trace` turns array operations into graph nodes; without one, operations become lazy arrays.

`emit` is the one door: everything in `mlc.numpy` ends here. The innermost trace of the thread receives the node.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlc.core.dims import TensorType
from mlc.core.errors import TraceError
from mlc.core.literal import Literal
from mlc.frontend.array import Array
from mlc.frontend.source import at_here, here
from mlc.graph.graph import Graph


class Tracer(Array):
    """The value of a node while a function is recorded: shape and dtype are known, data is not."""

    __slots__ = ("_trace", "node")

    def __init__(self, trace: Trace, node: int, type: TensorType, weak: bool):
        self._trace, self.node, self.type, self.weak = trace, node, type, weak

    def __repr__(self) -> str:
        return f"Tracer({self.type}{'*' if self.weak else ''})"

    def splat(self) -> Literal | None:
        node = self._trace.graph.nodes[self.node]
        return node.attrs["value"] if node.is_splat else None

    @property
    def origin(self) -> str:
        """Where it was made: ` made at model.py:3 (f)`, or which parameter it is."""
        node = self._trace.graph.nodes[self.node]
        if node.op.name == "parameter":
            return f"parameter {node.attrs['name']} of {self._trace.what}"
        return f"made{f' at {node.meta}' if node.meta else ''} while {self._trace.what} was recorded"

    def concrete(self, how: str, instead: str) -> None:
        """Refuse to become a Python or NumPy value."""
        self._trace.use(self)
        error = TraceError(
            f"{how}{at_here()}: the value {self.type} is traced (it stands for every input, so it has no data yet); {instead}")
        error.complete = True
        raise error


class Trace:
    """One function being recorded into `graph`. A context manager: entering makes it the thread's current trace."""

    def __init__(self, name: str, what: str):
        self.graph = Graph(name)
        self.what = what
        self.open = False
        self.calls: dict[tuple, Any] = {}  # of public functions, for `replay`
        self.inside = False  # such a call
        self.wide_scalars: set[int] = set()  # parameters that were np.float64 scalars: they warn when they widen something

    def __enter__(self) -> Trace:
        self.outer = getattr(_state, "trace", None)
        RECORDING.append(self)
        _state.trace = self
        self.open = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.open = False
        _state.trace = self.outer
        RECORDING.remove(self)

    def use(self, x: Tracer) -> int:
        """The node id of a tracer of this trace. TraceError for one that leaked out of another."""
        if x._trace is not self or not self.open:
            refuse_leaked(x)
        return x.node

    def operand(self, x: Array) -> int:
        """The node id of any array: foreign data becomes a constant."""
        if type(x) is Tracer:
            return x.node if x._trace is self and self.open else self.use(x)
        return self.graph.constant(x.eval(), meta=here())

    def emit(self, op: str, operands: Sequence[Array], attrs: Mapping[str, Any] | None, type: TensorType | None, weak: bool) -> Tracer:
        node = self.graph.add(op, [self.operand(x) for x in operands], attrs, type, meta=here())
        return Tracer(self, node, self.graph.nodes[node].type, weak)

    def constant(self, value: np.ndarray | Literal, type: TensorType, weak: bool, scalar: bool = False) -> Tracer:
        """A constant; a rank-0 `value` is spread over the type's shape. `scalar`: a Python scalar, which has no line of its own."""
        return Tracer(self, self.graph.constant(value, type, None if scalar else here()), type, weak)

    def parameter(self, name: str, type: TensorType, weak: bool) -> Tracer:
        return Tracer(self, self.graph.parameter(name, type), type, weak)


def refuse_leaked(x: Tracer) -> None:
    """Raise the TraceError of a tracer that is used outside of its own recording."""
    if not x._trace.open:
        when = "after that recording ended"
    elif current_trace() is None:
        when = "on a thread that does not record it"
    else:
        when = "while another function is recorded"
    error = TraceError(f"leaked traced value{at_here()}: {x.type}, {x.origin}, is used {when}; "
                       "return it from the function instead of storing it in a global, a closure or an object")
    error.complete = True
    raise error


_state = threading.local()
RECORDING: list[Trace] = []  # of all threads: native code only looks whether it is empty


def current_trace() -> Trace | None:
    """The trace that records on this thread, if any."""
    return getattr(_state, "trace", None)


def _own_recordings() -> None:
    """After a fork: the recordings of other threads are not in the child."""
    own, trace = [], current_trace()
    while trace is not None:
        own.append(trace)
        trace = trace.outer
    RECORDING[:] = own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_recordings)


def recorder():
    """What receives the next operation: the current trace, else the lazy recorder."""
    trace = getattr(_state, "trace", None)
    if trace is not None:
        return trace
    from mlc.frontend.lazy import LAZY
    return LAZY


def emit(op: str, operands: Sequence[Array], attrs: Mapping[str, Any] | None = None, type: TensorType | None = None,
         weak: bool | None = None) -> Array:
    """Record one op on arrays that already have the dtypes and shapes it wants; the result is weak when every operand is.

    Raises ShapeError or DtypeError from the op's rule, TraceError for a leaked tracer.
    """
    if weak is None:
        weak = bool(operands) and all(x.weak for x in operands)
    return recorder().emit(op, operands, attrs, type, weak)
