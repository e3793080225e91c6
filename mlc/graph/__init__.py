"""The graph IR: nodes, text, verifier, analyses, interpreter."""

from mlc.graph.graph import Graph, GraphRewriter, Meta, Node
from mlc.graph.interpreter import evaluate
from mlc.graph.text import parse_graph, print_graph
from mlc.graph.verify import verify

__all__ = ["Graph", "GraphRewriter", "Meta", "Node", "evaluate", "parse_graph", "print_graph", "verify"]
