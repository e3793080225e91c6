"""Calls of public functions that a recording has seen before: their nodes are written down again, the function is not run.

What a public function records depends on its arguments alone: of a traced one on type and weakness, since its data are not there. So calls
with equal types, with one value twice at the same places, and with equal Python scalars add the same nodes; layers of a model repeat their calls.
Left out are arguments whose data do matter (constants, arrays of NumPy), those that may warn (NumPy's float64 scalars), objects, functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.core.dtype import DType
from mlc.frontend.record import Trace, Tracer
from mlc.frontend.source import here
from mlc.graph.graph import Node

# Classes whose instances are equal where they mean the same; floats are looked at (zeros have signs).
_PLAIN = frozenset({int, bool, str, type(None), type(Ellipsis), DType, np.dtype, type})


class Unknown(Exception):
    """What is recorded may depend on more than the key of a call tells."""


def _describe(value: Any, trace: Trace, tracers: list[Tracer]) -> Any:
    """What a call's nodes depend on of one argument; adds the traced values in it to `tracers`."""
    cls = value.__class__
    if cls is Tracer:
        node = value.node
        if value._trace is not trace or trace.graph.nodes[node].op.name == "constant" or node in trace.wide_scalars:
            raise Unknown
        before = [other.node for other in tracers]
        position = before.index(node) if node in before else len(before)
        tracers.append(value)
        return value.type, value.weak, position
    if cls in _PLAIN:
        return cls, value
    if cls is float:
        return cls, value or str(value)
    if cls is tuple or cls is list:
        return cls, tuple([_describe(v, trace, tracers) for v in value])
    raise Unknown


class _Recipe:
    """The nodes that a call added. Operands are numbered: the call's traced arguments, then constants, then the nodes themselves."""

    def __init__(self, trace: Trace, tracers: list[Tracer], start: int, result: Any):
        nodes = trace.graph.nodes
        place = {}
        for number, tracer in enumerate(tracers):
            place.setdefault(tracer.node, number)
        added = [n for n in range(start, len(nodes)) if nodes[n].op.name != "constant"]
        mine = set(added)
        self.constants: list[int] = []
        for n in added:
            for operand in nodes[n].inputs:
                if operand not in place and operand not in mine:
                    if nodes[operand].op.name != "constant":
                        raise Unknown
                    place[operand] = len(tracers) + len(self.constants)
                    self.constants.append(operand)
        first = len(tracers) + len(self.constants)
        place.update((n, first + k) for k, n in enumerate(added))
        self.steps = [(nodes[n], tuple([place[operand] for operand in nodes[n].inputs])) for n in added]
        self.many = result.__class__ if result.__class__ in (tuple, list) else None
        results = result if self.many else (result,)
        if not all(x.__class__ is Tracer and x.node in place for x in results):
            raise Unknown
        self.results = [(place[x.node], x.type, x.weak) for x in results]

    def again(self, trace: Trace, tracers: list[Tracer]) -> Any:
        """Add the nodes for other arguments, under the caller's line; returns what the call returns."""
        graph, meta = trace.graph, here()
        placed = [t.node for t in tracers] + self.constants
        for node, operands in self.steps:
            placed.append(graph._append(Node(node.op, tuple([placed[k] for k in operands]), node.attrs, node.type, node.regions, meta)))
        found = [Tracer(trace, placed[k], type, weak) for k, type, weak in self.results]
        return self.many(found) if self.many else found[0]


def replayed(trace: Trace, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)`, called by the user while `trace` records."""
    tracers: list[Tracer] = []
    try:
        key = (function, *[_describe(value, trace, tracers) for value in args],
               *[(name, _describe(value, trace, tracers)) for name, value in kwargs.items()])
    except Unknown:
        return function(*args, **kwargs)
    if not tracers or not trace.open:
        return function(*args, **kwargs)
    known = trace.calls.get(key)
    if known is not None:
        return known.again(trace, tracers)
    start, trace.inside = len(trace.graph.nodes), True
    try:
        result = function(*args, **kwargs)
    finally:
        trace.inside = False
    try:
        trace.calls[key] = _Recipe(trace, tracers, start, result)
    except Unknown:
        pass
    return result
