"""Make a failing case small while it keeps failing in the same way: fewer outputs, nodes, sizes, simpler values.

The caller's `still` decides what "the same way" is (kind of verdict and guilty level). Every accepted step is a valid
graph, so the result can be printed, stored and replayed like any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

from mlc.core.dims import TensorType
from mlc.core.literal import Literal
from mlc.graph.interpreter import evaluate_all
from pytest_mlc.corpus import Case
from pytest_mlc.rebuild import dropped, inlined, rebuild, resized

Step = Callable[[Case], Iterator[Case | None]]
# Nodes of a graph in which pairs are tried.
FEW = 9
# Elements of a tensor from which sizes are cut before anything else.
LARGE = 1 << 12


def reduce_case(case: Case, still: Callable[[Case], bool], seconds: float = 20.0) -> Case:
    """The smallest case found within the time. `still(candidate)` says whether it fails like the original."""
    deadline = time.monotonic() + seconds
    case = cut_sizes(case, still, seconds)  # each step asks interpreters, which are slow on what is large
    changed = True
    while changed and time.monotonic() < deadline:
        changed = False
        for step in STEPS:
            case, better = _exhaust(case, step, still, deadline)
            changed |= better
    return case


def cut_sizes(case: Case, still: Callable[[Case], bool], seconds: float) -> Case:
    """A large case with smaller sizes; another one as it is."""
    if max((node.type.size for node in case.graph.nodes if isinstance(node.type, TensorType)), default=0) <= LARGE:
        return case
    return _exhaust(case, smaller_sizes, still, time.monotonic() + seconds)[0]


def _exhaust(case: Case, step: Step, still: Callable[[Case], bool], deadline: float) -> tuple[Case, bool]:
    """Apply one kind of step as long as it succeeds."""
    better = False
    progress = True
    while progress:
        progress = False
        for candidate in step(case):
            if time.monotonic() > deadline:
                return case, better
            if candidate is not None and still(candidate):
                case, better, progress = candidate, True, True
                break
    return case, better


def _inner(case: Case) -> list[int]:
    """Nodes that are neither leaves nor results of regions."""
    return [i for i, n in enumerate(case.graph.nodes) if n.inputs and isinstance(n.type, TensorType)]


def one_output(case: Case) -> Iterator[Case | None]:
    """Each output alone."""
    if len(case.graph.outputs) > 1:
        for output in case.graph.outputs:
            yield rebuild(case, outputs=[output])


def without_regions(case: Case) -> Iterator[Case | None]:
    yield inlined(case)


def earlier_output(case: Case) -> Iterator[Case | None]:
    """An inner value as the output, earliest first."""
    if len(case.graph.outputs) == 1:
        for i in _inner(case):
            if i not in case.graph.outputs:
                yield rebuild(case, outputs=[i])


def values_as_parameters(case: Case) -> Iterator[Case | None]:
    """An inner value handed in as an argument, latest first."""
    with np.errstate(all="ignore"):
        values = evaluate_all(case.graph, case.args)
    for i in reversed(_inner(case)):
        if i not in case.graph.outputs:
            yield rebuild(case, {i: values[i]})


def bypassed(case: Case) -> Iterator[Case | None]:
    """A node replaced by an operand of its type, or by a splat."""
    for i in reversed(_inner(case)):
        node = case.graph.nodes[i]
        for operand in dict.fromkeys(node.inputs):
            if case.graph.nodes[operand].type == node.type:
                yield rebuild(case, {i: operand})
        if i not in case.graph.outputs:
            yield rebuild(case, {i: Literal(np.ones((), node.type.dtype.numpy))})


def left_out(case: Case) -> Iterator[Case | None]:
    """A node left out although its operand has another type (a movement, a conversion, a reduction): what follows is typed anew."""
    for i in reversed(_inner(case)):
        node = case.graph.nodes[i]
        for operand in dict.fromkeys(node.inputs):
            if case.graph.nodes[operand].type != node.type and isinstance(case.graph.nodes[operand].type, TensorType):
                yield dropped(case, {i: operand})


def two_left_out(case: Case) -> Iterator[Case | None]:
    """Two nodes at once, as of two transposes that undo each other. Quadratic, so in small graphs only."""
    inner = _inner(case)
    if len(inner) <= FEW:
        for i, j in itertools.combinations(inner, 2):
            for one, other in itertools.product(case.graph.nodes[i].inputs[:2], case.graph.nodes[j].inputs[:2]):
                yield dropped(case, {i: one, j: other})


def parameters_as_splats(case: Case) -> Iterator[Case | None]:
    """A parameter replaced by a constant, or two of one type made one."""
    graph = case.graph
    for k, p in enumerate(graph.params):
        for q in graph.params[:k]:
            if graph.nodes[q].type == graph.nodes[p].type:
                yield rebuild(case, {p: q})
    for p in graph.params:
        if len(graph.params) > 1:
            yield rebuild(case, {p: Literal(np.ones((), graph.nodes[p].type.dtype.numpy))})


def smaller_sizes(case: Case) -> Iterator[Case | None]:
    """Every size of the graph, cut everywhere it occurs."""
    sizes = {n for node in case.graph.nodes if isinstance(node.type, TensorType) for n in node.type.shape}
    for n in sorted(sizes, reverse=True):
        for size in sorted({1, 2, 3, 4, n // 4, n // 2, n - 1}):
            if 0 < size < n:
                yield resized(case, n, size)


def simpler_values(case: Case) -> Iterator[Case | None]:
    """Arguments of zeros, of ones, of small whole numbers, or with few digits."""
    for k, array in enumerate(case.args):
        pattern = (np.arange(array.size) * 7 % 11 - 5).reshape(array.shape)
        options = [np.zeros(array.shape), np.ones(array.shape), pattern]
        if array.dtype.kind not in "biu":
            options.append(np.round(array.astype(np.float64), 1))
        for option in options:
            with np.errstate(all="ignore"):
                simple = option.astype(array.dtype)
            if simple.tobytes() == array.tobytes():
                break
            yield Case(case.graph, [*case.args[:k], simple, *case.args[k + 1:]], case.facts)


STEPS: list[Step] = [one_output, without_regions, earlier_output, values_as_parameters, bypassed, left_out, parameters_as_splats, smaller_sizes,
                     two_left_out, simpler_values]


def threshold(case: Case, still: Callable[[Case], bool]) -> str:
    """Where the failure begins: "fails from size 17 on, passes at 16", for the largest size whose predecessor passes; or ""."""
    sizes = {n for node in case.graph.nodes if isinstance(node.type, TensorType) for n in node.type.shape if n > 1}
    for n in sorted(sizes, reverse=True):
        smaller = resized(case, n, n - 1)
        if smaller is not None and not still(smaller):
            return f"fails from size {n} on, passes at {n - 1}"
    return ""
