"""Facts about a graph that several passes read: use counts, users, liveness, which nodes are live at all."""

from __future__ import annotations

from mlc.graph.graph import Graph


def use_counts(graph: Graph) -> list[int]:
    """How often each node is an operand or an output."""
    counts = [0] * len(graph)
    for node in graph.nodes:
        for operand in node.inputs:
            counts[operand] += 1
    for output in graph.outputs:
        counts[output] += 1
    return counts


def users(graph: Graph) -> list[list[int]]:
    """The nodes that read each node, in order, each once."""
    found: list[list[int]] = [[] for _ in graph.nodes]
    for i, node in enumerate(graph.nodes):
        inputs = node.inputs
        for operand in inputs if len(inputs) == 1 else dict.fromkeys(inputs):
            found[operand].append(i)
    return found


def live_nodes(graph: Graph) -> list[bool]:
    """Whether a node's value can reach an output; parameters always count as live."""
    live = [False] * len(graph)
    for output in graph.outputs:
        live[output] = True
    for p in graph.params:
        live[p] = True
    for i in range(len(graph) - 1, -1, -1):
        if live[i]:
            for operand in graph.nodes[i].inputs:
                live[operand] = True
    return live


def last_uses(graph: Graph) -> list[int]:
    """The id of the last node that reads each node; `len(graph)` for outputs, its own id when nothing reads it."""
    last = list(range(len(graph)))
    for i, node in enumerate(graph.nodes):
        for operand in node.inputs:
            last[operand] = i
    for output in graph.outputs:
        last[output] = len(graph)
    return last


def statistics(graph: Graph) -> dict[str, int]:
    """How many nodes of each op, sorted by name."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op.name] = counts.get(node.op.name, 0) + 1
    return dict(sorted(counts.items()))
