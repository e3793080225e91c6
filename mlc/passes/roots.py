"""Which nodes get a buffer ("roots"). Everything else is recomputed where it is read.

A node is a root when something needs its memory (an output, a reshape's or contraction's operand, a reduction), when it
is expensive and several roots read it, when an expanding broadcast would repeat it, or when the expression it ends has
grown past `MAX_INSTRUCTIONS` (a basic block of many thousand vector instructions compiles slowly).
Roots of one kernel that only that kernel reads never reach memory: `kernelize` keeps them in registers or row scratch.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc.core import dtype as dt
from mlc.graph.analysis import live_nodes, users
from mlc.graph.graph import Graph
from mlc.ops.base import CONTRACTION, ELEMENTWISE, INJECTIVE, OPAQUE, REDUCTION, VIEW
from mlc.passes.access import is_stored, view_base
from mlc.passes.attention import Attention

MAX_INSTRUCTIONS = 400.0
# An inlined cone up to this cost is cheaper to recompute than to store and load.
CHEAP = 2.0
_NONE, _MANY = -1, -2


def _pure_movement(graph: Graph, node: int, roots: list[bool]) -> bool:
    """Only index maps between this node and a stored value."""
    while True:
        current = graph.nodes[node]
        if is_stored(current) or roots[node]:
            return True
        if current.op.alias == VIEW:
            return True
        if current.op.fusion != INJECTIVE or not current.inputs:
            return False
        node = current.inputs[0]


def _reads_as_is(graph: Graph, node: int, roots: list[bool]) -> bool:
    """Whether a contraction may read an operand where it is stored: through movement, and widening a narrow integer, which its copies do."""
    current = graph.nodes[node]
    if current.op.name == "convert_element_type" and not roots[node]:
        source = graph.nodes[current.inputs[0]].type.dtype
        if current.type.dtype is dt.i32 and source in (dt.i8, dt.u8, dt.i16):
            node = current.inputs[0]
    return _pure_movement(graph, node, roots)


def _required(graph: Graph, live: list[bool], attention: Mapping[int, Attention], hidden: set[int]) -> list[bool]:
    """Roots that something needs in memory whatever it costs."""
    roots = [False] * len(graph)

    def need(node: int) -> None:
        base = view_base(graph, node)
        if not is_stored(graph.nodes[base]):
            roots[base] = True

    for output in graph.outputs:
        need(output)
    for i, node in enumerate(graph.nodes):
        if not live[i] or i in hidden:
            continue
        if i in attention:
            roots[i] = True
            # Keys and values are read again for each block of queries, queries once.
            for operand, _ in (attention[i].key, attention[i].value):
                if not _pure_movement(graph, operand, roots):
                    roots[operand] = True
            continue
        if node.op.fusion in (REDUCTION, CONTRACTION, OPAQUE):
            roots[i] = True
        if node.op.alias == VIEW:
            need(node.inputs[0])
        if node.op.fusion == CONTRACTION:
            for operand in node.inputs:
                if not _reads_as_is(graph, operand, roots):
                    roots[operand] = True
    return roots


def _bound_cones(graph: Graph, live: list[bool], roots: list[bool]) -> list[float]:
    """Instructions inlined into each node; cuts cones that grow past the bound and operands of expanding broadcasts."""
    cost = [0.0] * len(graph)
    cones: list[frozenset[int]] = [frozenset()] * len(graph)
    for i, node in enumerate(graph.nodes):
        if not live[i] or is_stored(node):
            continue
        if node.op.fusion == INJECTIVE and node.inputs and node.op.alias != VIEW:
            (operand,) = node.inputs
            if node.type.size > graph.nodes[operand].type.size and cost[operand] > CHEAP and not is_stored(graph.nodes[operand]):
                roots[operand] = True
        inlined = [k for k in node.inputs if not roots[k] and not is_stored(graph.nodes[k])]
        own = node.op.cost if node.op.fusion == ELEMENTWISE else 0.0
        if len(set(inlined)) == 1:  # a chain: no need to add its cone up again
            merged, total = cones[inlined[0]], own + cost[inlined[0]]
        else:
            merged = frozenset().union(*(cones[k] for k in inlined))
            total = own + sum(graph.nodes[k].op.cost for k in merged)
        if total > MAX_INSTRUCTIONS and inlined:
            for k in inlined:
                roots[k] = True
            merged, total = frozenset(), own
        cost[i] = total
        cones[i] = merged | {i} if node.op.fusion == ELEMENTWISE else merged
    return cost


def _end_epilogues(graph: Graph, live: list[bool], roots: list[bool], attention: Mapping[int, Attention], hidden: set[int]) -> None:
    """An elementwise chain on a contraction is stored where it ends, instead of the contraction itself: it costs no traffic."""
    reads = users(graph)
    chain = [_NONE] * len(graph)
    for i, node in enumerate(graph.nodes):
        if i in hidden:
            continue
        if live[i] and (node.op.fusion == CONTRACTION or i in attention):
            chain[i] = i
        elif live[i] and node.op.fusion == ELEMENTWISE:
            carried = [k for k in dict.fromkeys(node.inputs) if chain[k] != _NONE and len(reads[k]) == 1 and k not in graph.outputs]
            if len(carried) == 1:
                chain[i] = chain[carried[0]]
    for i in range(len(graph)):
        if chain[i] not in (_NONE, i) and not (len(reads[i]) == 1 and chain[reads[i][0]] == chain[i]):
            roots[i] = True


def choose_roots(graph: Graph, attention: Mapping[int, Attention] | None = None) -> list[bool]:
    """The root flag of every node. What an attention (by the node of its result) hides is never one."""
    attention = attention or {}
    hidden = {n for each in attention.values() for n in each.hidden}
    live = live_nodes(graph)
    roots = _required(graph, live, attention, hidden)
    _end_epilogues(graph, live, roots, attention, hidden)
    cost = _bound_cones(graph, live, roots)
    for n in hidden:
        roots[n] = False
    reader = [_NONE] * len(graph)
    for i in range(len(graph) - 1, -1, -1):
        node = graph.nodes[i]
        if not live[i] or is_stored(node):
            continue
        if not roots[i] and reader[i] == _MANY and cost[i] > CHEAP and i not in hidden:
            roots[i] = True
        into = i if roots[i] else reader[i]
        if into == _NONE:
            continue
        for operand in node.inputs:
            reader[operand] = into if reader[operand] in (_NONE, into) else _MANY
    return roots


def every_root(graph: Graph) -> list[bool]:
    """Every op gets its own buffer: the program without fusion, for bisection."""
    live = live_nodes(graph)
    return [live[i] and not is_stored(n) and n.op.alias != VIEW and i not in graph.params for i, n in enumerate(graph.nodes)]
