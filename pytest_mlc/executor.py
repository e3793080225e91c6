"""The worker's mlc service: compile a graph, run it, and say what came out and which passes fired."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlc.compile import compile_graph
from mlc.graph.text import parse_graph


def serve(request: dict) -> Iterator[dict]:
    """{"do": "ready"}, or {"do": "run", "text", "constants", "args"} -> {"outputs", "passes"}."""
    if request["do"] == "ready":
        yield {"ready": True}
        return
    graph = parse_graph(request["text"], request["constants"])
    exe = compile_graph(graph)
    outputs = [np.asarray(o) for o in exe.run(request["args"])]
    yield {"outputs": outputs, "passes": [p.name for p in exe.pass_log if p.changed]}
