"""Dead code elimination: nodes whose value reaches no output are dropped.

Identified: nothing. Kept: every parameter, used or not, because the signature is the caller's. Every op is pure, so
nothing is kept for its effects. Runs after CSE (which leaves the merged nodes behind) and before passes that count users.
"""

from __future__ import annotations

from mlc.graph.analysis import live_nodes
from mlc.graph.graph import Graph, GraphRewriter
from mlc.passes.manager import Pass, PassContext, PassResult


def _run(graph: Graph, ctx: PassContext) -> PassResult:
    live = live_nodes(graph)
    if all(live) or not ctx.permit("drop-dead-nodes"):
        return PassResult(graph, changed=False)
    start = live.index(False)
    rewriter = GraphRewriter(graph, shared=start)
    copy = rewriter.copy
    for i in range(start, len(graph)):
        if live[i]:
            copy(i)
    return PassResult(rewriter.finish(), changed=True)


DCE = Pass("dce", 1, _run, drops=True)
