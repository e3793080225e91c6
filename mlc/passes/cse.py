"""Common subexpression elimination: a node that computes what an earlier one computes is replaced by it.

Identified: equal op, operands, attributes and type; operands of commutative ops in either order (equal bits: any NaN
equals any NaN). Not identified: constants that differ in a bit (-0.0, NaN payloads), types, region texts, parameters.
Runs after simplify and fold, which make equal things look equal, and before passes that count users.
"""

from __future__ import annotations

from mlc.core.text import format_attr
from mlc.graph.graph import Graph, GraphRewriter, Node
from mlc.graph.text import print_graph
from mlc.ops.base import COMMUTATIVE, REGISTRY, OpDef
from mlc.passes.manager import Pass, PassContext, PassResult

# Attribute kinds whose values compare as they should by ==; other kinds (floats: -0.0 and NaN) go by their text.
_COMPARABLE = frozenset({"axes", "ints", "int", "pairs", "str", "dtype", "literal"})
_traits: dict[str, tuple[bool, tuple[str, ...]]] = {}


def _traits_of(op: OpDef) -> tuple[bool, tuple[str, ...]]:
    """Whether the op is commutative, and the attributes that go by text."""
    found = _traits.get(op.name)
    if found is None:
        found = op.has(COMMUTATIVE), tuple(name for name, kind in op.attrs.items() if kind not in _COMPARABLE)
        if REGISTRY.get(op.name) is op:
            _traits[op.name] = found
    return found


def comparable(node: Node) -> tuple:
    """The attributes' values, which are the same where these are equal."""
    by_text = _traits_of(node.op)[1]
    if by_text:
        return tuple(format_attr(value) if name in by_text else value for name, value in node.attrs.items())
    return tuple(node.attrs.values())


def _key(node: Node, inputs: tuple[int, ...], texts: dict[int, str]) -> tuple:
    """What makes two nodes equal. `texts` keeps the text of each region for the length of the pass."""
    op = node.op
    if _traits_of(op)[0] and inputs[0] > inputs[1]:
        inputs = (inputs[1], inputs[0])
    attrs = comparable(node)
    if not node.regions:
        return (op.name, inputs, attrs, node.type)
    for region in node.regions:
        if id(region) not in texts:
            texts[id(region)] = print_graph(region)
    return (op.name, inputs, attrs, node.type, tuple(texts[id(r)] for r in node.regions))


def _run(graph: Graph, ctx: PassContext) -> PassResult:
    first: dict[tuple, int] = {}
    texts: dict[int, str] = {}
    merged: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        inputs = node.inputs
        if merged:
            inputs = tuple([merged.get(k, k) for k in inputs])
        found = first.setdefault(_key(node, inputs, texts), i)
        if found != i and node.op.name != "parameter" and ctx.permit("merge-equal-nodes"):
            merged[i] = found
    if not merged:
        return PassResult(graph, changed=False)
    return PassResult(_without(graph, merged), changed=True)


def _without(graph: Graph, merged: dict[int, int]) -> Graph:
    """The graph with each merged node dropped and its users reading the node it equals."""
    start = min(merged)
    rewriter = GraphRewriter(graph, shared=start)
    for i in range(start, len(graph)):
        if i in merged:
            rewriter.map[i] = rewriter.map[merged[i]]
        else:
            rewriter.copy(i)
    return rewriter.finish()


CSE = Pass("cse", 1, _run)
