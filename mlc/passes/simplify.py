"""Simplify: bitwise-exact algebra and movement, applied until no rule fits.

Identified: forms of equal bits for every input, NaN (any NaN equals any NaN), infinities, -0.0 and subnormals included.
Not: anything that rounds differently or reassociates. Runs first, so that folding, CSE and fusion meet canonical forms.
"""

from __future__ import annotations

from mlc.graph.graph import Graph
from mlc.passes import rules_algebra, rules_movement
from mlc.passes.driver import apply_rules
from mlc.passes.manager import Pass, PassContext, PassResult
from mlc.passes.pattern import BITWISE, RuleSet

RULES = RuleSet(rules_algebra.RULES, rules_movement.RULES)
assert all(rule.exact == BITWISE for rule in RULES.rules)


def _run(graph: Graph, ctx: PassContext, *, exact: str) -> PassResult:
    return apply_rules(RULES, graph, ctx)


SIMPLIFY = Pass("simplify", 1, _run, {"exact": BITWISE})
