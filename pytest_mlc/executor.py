"""The mlc side of the harness: the worker's service that compiles and runs graphs, and the parent's handle on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.core import options as opt
from mlc.core.errors import UnsupportedError
from mlc.graph.graph import Graph
from pytest_mlc.child import ChildError
from pytest_mlc.service import Service, read_graph, run_request
from pytest_mlc.variants import SAID, VARIANTS, same_bits

# Seconds that compiling and running one case may take.
TIMEOUT = float(os.environ.get("MLC_FUZZ_TIMEOUT", "30"))


# --------------------------------------------------------------------------- in the child
def serve(request: dict) -> Iterator[dict]:
    """{"do": "ready"}; {"do": "run", "text", "constants", "args"[, "options", "variant"]} -> {"outputs", "passes"[, "varied"]};
    {"do": "levels", ...} -> {"level", "outputs"} each, then {"end"}; {"do": "rewrite", ..., "number": n} -> {"rule", "total"}."""
    if request["do"] == "ready":
        yield {"ready": os.getpid()}
        return
    graph = read_graph(request)
    with opt.options(**request.get("options", {})):
        yield from {"run": _run, "levels": _levels, "rewrite": _rewrite}[request["do"]](graph, request)


def _run(graph: Graph, request: dict) -> Iterator[dict]:
    from mlc.compile import compile_graph
    try:
        exe = compile_graph(graph)
    except UnsupportedError as error:
        yield {"unsupported": str(error)}
        return
    answer = {"outputs": [np.asarray(o) for o in exe.run(request["args"])], "passes": [p.name for p in exe.pass_log if p.changed]}
    if request.get("variant"):
        answer["varied"] = [np.asarray(o) for o in VARIANTS[request["variant"]](exe, request["args"])]
        answer["variant"] = request["variant"]
    yield answer


def _levels(graph: Graph, request: dict) -> Iterator[dict]:
    from pytest_mlc.blame import levels
    for name, outputs in levels(graph, request["args"]):
        yield {"level": name, "outputs": [np.asarray(o) for o in outputs]}
    yield {"end": True}


def _rewrite(graph: Graph, request: dict) -> Iterator[dict]:
    """Which rule rewrite number n applied, and how many rewrites there are in all."""
    from mlc.passes.manager import PassContext
    from mlc.passes.pipeline import run_pipeline
    limited, free = PassContext(limit=request["number"]), PassContext()
    run_pipeline(graph, limited)
    run_pipeline(graph, free)
    yield {"rule": limited.trace[request["number"] - 1][1], "total": len(free.trace)}


# --------------------------------------------------------------------------- in the parent
@dataclass
class Outcome:
    """What mlc did with a graph. kind: "ran", "unsupported", "error" (it raised), "crash", "hang", "unstable" (a variant gave other bits)."""

    kind: str
    outputs: list[np.ndarray] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    detail: str = ""
    log: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in ("error", "crash", "hang", "unstable")

    @property
    def essence(self) -> str:
        """What identifies the failure: the exception's type, or the signal."""
        return f"{self.kind} {self.detail.partition(':')[0]}" if self.failed else self.kind


def outcome(answer: dict | ChildError) -> Outcome:
    """Read a worker's answer."""
    if isinstance(answer, ChildError):
        return Outcome(answer.kind, detail=answer.detail, log=answer.log)
    if "error" in answer:
        return Outcome("error", detail=f"{answer['error']}: {answer['message']}", log=answer["traceback"])
    if "unsupported" in answer:
        return Outcome("unsupported", detail=answer["unsupported"])
    if "varied" in answer and not same_bits(answer["outputs"], answer["varied"]):
        return Outcome("unstable", answer["outputs"], answer["passes"], f"{answer['variant']}: other bits when {SAID[answer['variant']]}")
    return Outcome("ran", answer["outputs"], answer["passes"])


class Compiler(Service):
    """The mlc child. The persistent cache is off, so that every case is compiled."""

    def __init__(self) -> None:
        super().__init__("mlc", {"MLC_CACHE": os.environ.get("MLC_CACHE", "0")})

    def run(self, graph: Graph, args: Sequence[np.ndarray], timeout: float = TIMEOUT, **extra: object) -> Outcome:
        """Compile and run a graph in the child; never raises for what mlc does."""
        try:
            return outcome(self.ask(run_request(graph, args, **extra), timeout))
        except ChildError as error:
            return outcome(error)
