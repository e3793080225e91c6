"""From a graph to something that runs: the one place that sees every stage.

    graph -> passes -> kernels -> memory plan -> loops -> LLVM -> object code -> executable

`Executable` is what `mlc.jit(f).lower(...).compile()` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.core import options as opt
from mlc.core.errors import OptionError
from mlc.graph import Graph, evaluate, print_graph, verify

STAGES = ("graph", "optimized", "kernels", "loops", "memory", "llvm", "asm")


@dataclass
class Executable:
    """A compiled graph: `run` takes and returns flat lists of NumPy arrays in parameter and output order."""

    graph: Graph
    optimized: Graph
    pass_log: list = field(default_factory=list)

    def run(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        return evaluate(self.optimized, args)

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage: one of "graph", "optimized", "kernels", "loops", "memory", "llvm", "asm"."""
        if stage not in STAGES:
            raise OptionError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
        return print_graph(self.graph if stage == "graph" else self.optimized)


def compile_graph(graph: Graph) -> Executable:
    """Compile a graph under the options in force. Raises VerifyError, UnsupportedError or CodegenError."""
    if opt.get("check"):
        verify(graph, "capture")
    return Executable(graph, graph)
