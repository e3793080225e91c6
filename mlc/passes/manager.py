"""The pass manager: what a pass is, what it returns, and what is checked around it.

`MLC_CHECK=0` runs passes and nothing else; `1` verifies after every pass; `2` also prints, parses and compares, and
interprets the graph before and after (`mlc.passes.checks`). Every applied rewrite is counted by name and numbered, so
that `MLC_LIMIT=n` (apply only the first n) finds a guilty one by bisection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlc.core import options as opt
from mlc.core.dataclass import dataclass, field
from mlc.core.errors import VerifyError
from mlc.core.literal import Literal
from mlc.graph.graph import Graph
from mlc.graph.text import print_graph
from mlc.graph.verify import verify


@dataclass
class PassResult:
    """What a pass did. A pass fills `graph` (the input itself if nothing changed), `changed`, `settled` (running it on its
    own result would change nothing) and `given`; the manager fills the rest. The log keeps no graphs.

    `given`: values of nodes of the input that the pass computed as compiled code does, where the interpreter may round
    otherwise; MLC_CHECK=2 takes them as they are.
    """

    graph: Graph | None
    changed: bool
    settled: bool = True
    given: dict[int, Literal] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    name: str = ""
    version: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    milliseconds: float = 0.0

    def __str__(self) -> str:
        """One line of the pass log: `simplify    3 -> 41 nodes   0.8 ms   12 rewrites (transpose-of-transpose 4, ...)`."""
        text = f"{self.name:<10} {self.nodes_before:>5} -> {self.nodes_after} nodes   {self.milliseconds:.1f} ms"
        if self.stats:
            most = sorted(self.stats.items(), key=lambda item: (-item[1], item[0]))
            text += f"   {sum(self.stats.values())} rewrites ({', '.join(f'{name} {count}' for name, count in most)})"
        return text + "".join(f"   {note}" for note in self.notes)


@dataclass
class PassContext:
    """What passes of one compilation share: the rewrite counter and its limit, and what constant folding has added.

    `maker` is the stage that the current graph comes from.
    `trace[n - 1]` is the (pass, rule) of rewrite number n. `folded_bytes` counts towards fold's `extra_bytes`.
    """

    limit: int = -1
    applied: int = 0
    folded_bytes: int = 0
    trace: list[tuple[str, str]] = field(default_factory=list)
    running: str = ""
    maker: str = "capture"
    stats: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def permit(self, rule: str) -> bool:
        """Count one application of a rule; False, and not counted, once the limit is reached."""
        if 0 <= self.limit <= self.applied:
            self.note(f"limit: rewrites after number {self.limit} are refused")
            return False
        self.count(rule)
        return True

    def count(self, rule: str) -> None:
        """Count one application that no limit may refuse."""
        self.applied += 1
        self.trace.append((self.running, rule))
        self.stats[rule] = self.stats.get(rule, 0) + 1

    def note(self, text: str) -> None:
        """A remark for the pass log, kept once a pass."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class Pass:
    """A graph-to-graph step: verified graph in, verified graph out, the input is not mutated.

    `function(graph, ctx, **options)` returns a PassResult whose graph is the input itself when nothing changed.
    A `required` pass cannot be disabled: what follows counts on it. A pass that only `drops` nodes which nothing reads leaves nothing new
    to find for those before it, which must not count readers.
    """

    name: str
    version: int
    function: Callable[..., PassResult]
    options: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    drops: bool = False

    def run(self, graph: Graph, ctx: PassContext) -> PassResult:
        """Run the pass once. An exception inside it becomes a VerifyError that names the pass."""
        ctx.running, ctx.stats, ctx.notes = self.name, {}, []
        started = time.perf_counter()
        try:
            result = self.function(graph, ctx, **self.options)
        except Exception as error:
            verify(graph, ctx.maker)  # a graph that was broken before is the fault of the pass that made it
            found = f"{type(error).__name__}: {error}"
            raise VerifyError("pass_ends_normally", f"graph @{graph.name}", found, "a PassResult", f"pass {self.name}") from error
        result.milliseconds = (time.perf_counter() - started) * 1e3
        result.name, result.version, result.stats, result.notes = self.name, self.version, ctx.stats, ctx.notes
        result.nodes_before, result.nodes_after = len(graph), len(result.graph)
        if result.changed:
            ctx.maker = f"pass {self.name}"
        return result

    def describe(self) -> str:
        """Name, version and options, as they enter the cache key."""
        shown = ", ".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.name} v{self.version}" + (f" {{{shown}}}" if shown else "")


def run_pass(graph: Graph, each: Pass, ctx: PassContext) -> PassResult:
    """Run one pass once, and check what it did as far as `check` says."""
    level = opt.get("check")
    text = print_graph(graph) if level >= 2 else ""
    result = each.run(graph, ctx)
    if level:
        from mlc.passes.checks import check_pass
        check_pass(graph, text, result, level)
    return result


def run_passes(graph: Graph, passes: Sequence[Pass], ctx: PassContext,
               observe: Callable[[PassResult], None] | None = None) -> tuple[Graph, list[PassResult]]:
    """Run the passes round after round until none changes the graph, at most `pass_limit` rounds; returns graph and log.

    A pass is not run again on its own result. `observe` gets every result while it still holds its graph.
    """
    log: list[PassResult] = []
    seen: dict[str, Graph | None] = {}
    for _ in range(opt.get("pass_limit")):
        changed = False
        for place, each in enumerate(passes):
            if seen.get(each.name) is graph:
                continue
            result = run_pass(graph, each, ctx)
            if observe is not None:
                observe(result)
            changed |= result.changed
            if each.drops:
                seen.update((p.name, result.graph) for p in passes[:place] if seen.get(p.name) is graph)
            graph = result.graph
            seen[each.name] = graph if result.settled else None
            result.graph, result.given = None, {}
            log.append(result)
        if not changed:
            return graph, log
    if log:
        log[-1].notes.append(f"not converged: the graph still changed in round {opt.get('pass_limit')} (option pass_limit)")
    return graph, log
