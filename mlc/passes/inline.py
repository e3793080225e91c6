"""Inline: `call` regions become part of the graph, and each `tuple_get` of one becomes the value it picks.

Nothing is identified or dropped. Runs first: every later pass and the kernels see one flat graph. Required, because
code generation knows no `call`. A stack of frames, not recursion: calls may nest as deep as they like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlc.graph.graph import Graph, GraphRewriter, Node
from mlc.passes.manager import Pass, PassContext, PassResult


class _Frame:
    """One graph being copied: `bound[id]` is the new id of a node, or the list of new ids of a call's results."""

    def __init__(self, graph: Graph, bound: dict[int, int | list[int]], result: tuple[_Frame, int] | None = None):
        self.graph, self.bound, self.result = graph, bound, result
        self.left: Iterator[tuple[int, Node]] = iter(enumerate(graph.nodes))


def _enter(frame: _Frame, call: int, region: Graph, inputs: Sequence[int]) -> _Frame:
    return _Frame(region, dict(zip(region.params, inputs)), (frame, call))


def _run(graph: Graph, ctx: PassContext) -> PassResult:
    if not any(node.op.name == "call" for node in graph.nodes):
        return PassResult(graph, changed=False)
    rewriter = GraphRewriter(graph)
    new = rewriter.new
    outermost = _Frame(graph, rewriter.map)
    stack = [outermost]
    while stack:
        frame = stack[-1]
        bound = frame.bound
        for i, node in frame.left:
            if i in bound:
                continue
            if node.op.name == "tuple_get" and isinstance(bound[node.inputs[0]], list):
                bound[i] = bound[node.inputs[0]][node.attrs["index"]]
                continue
            inputs = tuple([bound[k] for k in node.inputs])
            if node.op.name == "call":
                ctx.count("inline-call")
                stack.append(_enter(frame, i, node.regions[0], inputs))
                break
            if node.op.name == "constant":
                bound[i] = new.shared_constant(node.attrs["value"], node.type, node.meta)
            else:
                bound[i] = new._append(Node(node.op, inputs, node.attrs, node.type, node.regions, node.meta))
        else:
            stack.pop()
            if frame.result is not None:
                caller, call = frame.result
                caller.bound[call] = [bound[o] for o in frame.graph.outputs]
    return PassResult(rewriter.finish(), changed=True)


INLINE = Pass("inline", 1, _run, required=True)
