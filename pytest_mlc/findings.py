"""Findings about the reference: JAX wrong, raising, crashing or hanging where mlc is right. Recorded, never a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from mlc.core.dims import TensorType
from mlc.graph.graph import Graph
from pytest_mlc.bounds import analyse
from pytest_mlc.child import ChildError
from pytest_mlc.corpus import Case
from pytest_mlc.models import JAX
from pytest_mlc.oracle import compare
from pytest_mlc.rebuild import inlined, rebuild
from pytest_mlc.reference import Reference
from pytest_mlc.service import run_request
from pytest_mlc.tally import Failure


def _failure(what: str, detail: str, graph: Graph) -> Failure:
    return Failure(hashlib.sha256(what.encode()).hexdigest()[:6], f"{what}: {detail}" if detail else what, str(graph))


def guilty_node(reference: Reference, graph: Graph, args: Sequence[np.ndarray]) -> str:
    """The first node at which JAX leaves its own bound, as "pow u32"; "" when it can't be told. The graph is run with every value as output."""
    whole = Case(graph, list(args))
    flat = inlined(whole) or whole
    every = [i for i, n in enumerate(flat.graph.nodes) if n.inputs and isinstance(n.type, TensorType)]
    case = rebuild(flat, outputs=every)
    if case is None:
        return ""
    answer = reference.ask(run_request(case.graph, case.args), 60.0)
    if "error" in answer:
        return ""
    values = analyse(case.graph, case.args, JAX)
    with np.errstate(all="ignore"):
        for output, got in zip(case.graph.outputs, answer["outputs"]):
            node = case.graph.nodes[output]
            if compare(values[output], node.type.dtype, node.type.shape, got, JAX).wrong.any():
                return f"{node.op.name} {case.graph.nodes[node.inputs[-1]].type.dtype.name}"
    return ""


def wrong(reference: Reference, graph: Graph, args: Sequence[np.ndarray], detail: str, jitted: bool) -> Failure:
    """JAX gave a wrong value."""
    try:
        node = guilty_node(reference, graph, args)
    except ChildError:
        node = ""
    how = "under jit " if jitted and not node else ""
    return _failure(f"JAX is wrong {how}on {node or ', '.join(sorted({n.op.name for n in graph.nodes if n.inputs}))}", detail, graph)


def raised(answer: dict, graph: Graph) -> Failure:
    """JAX refused a graph that mlc accepts."""
    return _failure(f"JAX raised {answer['error']}: {(answer['message'].splitlines() or [''])[0][:120]}", "", graph)


def died(error: ChildError, graph: Graph) -> Failure:
    """The reference process crashed or hung."""
    return _failure(f"oracle crashed ({error.detail})" if error.kind == "crash" else f"oracle hung ({error.detail})", "", graph)
