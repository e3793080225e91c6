"""Applies a rule set to a graph: one walk in order, each node against nodes that are already in simplest form.

As long as no rule fires nothing is built: ids stay, and a graph in which none fires costs a look-up a node. A node is
rewritten until no rule fits its root; what a result is made of is placed the same way, so one walk reaches nearly every
form, and the pipeline's next round the rest. Deterministic: nodes in order, rules in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlc.core.literal import Literal
from mlc.graph.graph import Graph, GraphRewriter, Meta, Node, NodeType, infer_type
from mlc.passes.manager import PassContext, PassResult
from mlc.passes.pattern import Match, Pattern, RuleSet, Splat, Term, Var, splat_array

# A node is rewritten at most so often in one walk, and results nest at most so deep: what is cut off here is taken up
# by the next round, and a pair of rules that undo each other ends as a note instead of a hang.
STEPS_PER_NODE = 32
NESTING = 40


class Driver:
    """One application of a rule set to one graph."""

    def __init__(self, rules: RuleSet, graph: Graph, ctx: PassContext):
        self.rules, self.graph, self.ctx = rules, graph, ctx
        self.rewriter: GraphRewriter | None = None
        self.nesting = 0
        self.settled = True

    def run(self) -> PassResult:
        """The rewritten graph, or the same one if no rule fired."""
        graph, nodes = self.graph, self.graph.nodes
        start = next((i for i, node in enumerate(nodes) if self._may_fire(node)), None)
        if start is None:
            return PassResult(graph, changed=False)
        self.rewriter = rewriter = GraphRewriter(graph, shared=start)
        before = self.ctx.applied
        placed = rewriter.map
        for i in range(start, len(nodes)):
            if i in placed:
                continue
            node = nodes[i]
            if node.op.name == "constant":
                placed[i] = rewriter.new.shared_constant(node.attrs["value"], node.type, node.meta)
                continue
            inputs = tuple([placed[k] for k in node.inputs])
            if inputs != node.inputs:
                node = Node(node.op, inputs, node.attrs, node.type, node.regions, node.meta)
            placed[i] = self.place(node)
        if self.ctx.applied == before:
            return PassResult(graph, changed=False)  # the rewrite limit refused every one
        return PassResult(rewriter.finish(), changed=True, settled=self.settled)

    def _may_fire(self, node: Node) -> bool:
        found = self.rules.candidates(self.graph.nodes, node)
        return bool(found) and self._first(found, self.graph.nodes, node, permit=False) is not None

    # ----------------------------------------------------------------- placing
    def place(self, node: Node) -> int:
        """Rewrite a node whose operands are placed, until no rule fits; append it and return its id."""
        new = self.rewriter.new
        for _ in range(STEPS_PER_NODE):
            found = self.rules.candidates(new.nodes, node)
            if found and self.nesting >= NESTING:
                self.settled = False
                return new._append(node)
            applied = self._first(found, new.nodes, node) if found else None
            if applied is None:
                return new._append(node)
            result = self._build_root(*applied, node)
            if isinstance(result, int):
                return result
            node = result
        self.settled = False
        self.ctx.note(f"{node.op.name}: still rewriting after {STEPS_PER_NODE} steps")
        return new._append(node)

    def _first(self, found: Sequence, nodes: Sequence[Node], node: Node, permit: bool = True) -> tuple[Match, Any] | None:
        """The first rule that fits, as its match and what the node becomes."""
        for rule, matcher in found:
            match = Match(nodes, node)
            if not matcher(match, node):
                continue
            if rule.when and not all(map(match.value, rule.when)):
                continue
            to = rule.to
            if not isinstance(to, Pattern) and (to := to(match)) is None:
                continue
            if not permit or self.ctx.permit(rule.name):
                return match, to
        return None

    # ----------------------------------------------------------------- building results
    def _build_root(self, match: Match, to: Any, root: Node) -> int | Node:
        """What the root becomes: a value that exists, or a node still to be placed."""
        if isinstance(to, Term) and to.op.name != "constant":
            inputs, attrs = self._parts(match, to, root)
            return Node(to.op, inputs, attrs, root.type, (), root.meta)
        return self._build(match, to, root, root.type)

    def _build(self, match: Match, to: Any, root: Node, type: NodeType | None) -> int:
        if isinstance(to, int):
            return to
        if isinstance(to, Var):
            return match.bound[to.name]
        if isinstance(to, Splat):
            return self.rewriter.new.constant(splat_array(to.value, type.dtype), type, root.meta)
        if to.op.name == "constant":
            literal: Literal = match.value(to.attrs["value"])
            return self.rewriter.new.shared_constant(literal, match.value(to.type) or type, root.meta)
        inputs, attrs = self._parts(match, to, root)
        given = match.value(to.type)
        return self.emit(to.op, inputs, attrs, given, root.meta)

    def emit(self, op: Any, inputs: tuple[int, ...], attrs: Mapping[str, Any], type: NodeType | None, meta: Meta | None) -> int:
        """Place a new node; its type is inferred, or given for a typed op."""
        nodes = self.rewriter.new.nodes
        inferred = infer_type(op, [nodes[i].type for i in inputs], attrs, type, ())
        self.nesting += 1
        placed = self.place(Node(op, inputs, attrs, inferred, (), meta))
        self.nesting -= 1
        return placed

    def _parts(self, match: Match, to: Term, root: Node) -> tuple[tuple[int, ...], dict[str, Any]]:
        inputs: list[int] = []
        for arg in to.args:
            if isinstance(arg, Var) and arg.rest:
                inputs.extend(match.bound[arg.name])
            else:
                inputs.append(self._build(match, arg, root, self._splat_type(arg, root)))
        return tuple(inputs), {name: match.value(to.attrs[name]) for name in to.op.attrs}

    @staticmethod
    def _splat_type(arg: Any, root: Node) -> NodeType | None:
        return root.type if isinstance(arg, Splat) else None


def apply_rules(rules: RuleSet, graph: Graph, ctx: PassContext) -> PassResult:
    """Apply the rules to a graph."""
    return Driver(rules, graph, ctx).run()
