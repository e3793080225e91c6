"""JAX as the reference: a graph rendered op by op with each op's own `jax=` field, in a child process that is kept alive.

Eager, 64-bit types on. A fresh (op, shape, dtype) costs about 25 ms of XLA compilation and a warm one microseconds, so
ops run in few shapes (`pytest_mlc.canonical`). With `frugal`, a movement op that would need compiling may
be done by NumPy instead, once compiling has taken its share of the time: moving elements has no rounding to compare.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mlc.core.dims import static_shape
from mlc.graph.graph import Graph, Node
from mlc.graph.interpreter import apply_node
from mlc.graph.text import parse_graph, print_graph
from pytest_mlc import canonical
from pytest_mlc.child import Child, ChildError

# Measured on jaxlib 0.10.2: without these passes JAX gets 14 of 18 known wrong answers right, and compiles faster.
STRICT_FLAGS = ("--xla_disable_hlo_passes=algsimp,fusion --xla_cpu_experimental_ynn_fusion_type= --xla_backend_optimization_level=0 "
                "--xla_cpu_multi_thread_eigen=false")
START_TIMEOUT = 120.0
# Share of the child's time that fresh movement ops may take when a request is frugal.
COLD_SHARE = 0.15


def available() -> bool:
    """Whether JAX can be imported (it isn't imported)."""
    return importlib.util.find_spec("jax") is not None


def _jax():
    import jax
    jax.config.update("jax_enable_x64", True)
    return jax


def _typed(node: Node, attrs: Mapping, shape: Sequence[int]) -> dict:
    """The keyword arguments of an op's `jax=` field."""
    attrs = dict(attrs)
    if node.op.typed:
        attrs["shape"], attrs["dtype"] = tuple(shape), node.type.dtype.numpy
    return attrs


def render(graph: Graph) -> Callable:
    """The graph as a function of JAX arrays (in parameter order) that returns the list of outputs. It may be given to `jax.jit`."""
    def run(*args):
        import jax
        from jax import lax
        from jax import numpy as jnp
        values: list = [None] * len(graph)
        for p, array in zip(graph.params, args, strict=True):
            values[p] = jnp.asarray(array)
        return _evaluate(graph, values, lambda node, operands: node.op.jax(
            jnp, lax, *operands, **_typed(node, node.attrs, static_shape(node.type.shape))), jax)
    return run


def _evaluate(graph: Graph, values: list, apply: Callable, jax) -> list:
    for i, node in enumerate(graph.nodes):
        if values[i] is not None:
            continue
        operands = [values[k] for k in node.inputs]
        if node.regions:
            region = node.regions[0]
            inner: list = [None] * len(region)
            for p, operand in zip(region.params, operands):
                inner[p] = operand
            values[i] = tuple(_evaluate(region, inner, apply, jax))
        elif operands and isinstance(operands[0], tuple):
            values[i] = operands[0][node.attrs["index"]]
        else:
            values[i] = apply(node, operands)
    return [values[o] for o in graph.outputs]


# --------------------------------------------------------------------------- in the child
class _Eager:
    """Op-by-op evaluation with NumPy arrays between the ops, so that elementwise ops can be padded to few shapes."""

    def __init__(self) -> None:
        self.jax = _jax()
        self.jnp, self.lax = self.jax.numpy, self.jax.lax
        self.warm: set = set()
        self.started, self.cold_seconds = time.monotonic(), 0.0
        self.frugal = False
        self.by_numpy = 0

    def run(self, graph: Graph, args: Sequence[np.ndarray], frugal: bool) -> list[np.ndarray]:
        values: list = [None] * len(graph)
        for p, array in zip(graph.params, args, strict=True):
            values[p] = np.asarray(array)
        self.frugal = frugal
        return [np.asarray(v) for v in _evaluate(graph, values, self.apply, self.jax)]

    def apply(self, node: Node, operands: list[np.ndarray]) -> np.ndarray:
        found = canonical.run(node, operands, self.call)
        return self.direct(node, operands) if found is None else found

    def direct(self, node: Node, operands: list[np.ndarray]) -> np.ndarray:
        movement = node.op.reduce is None and (node.op.pieces is not None or node.op.generate is not None or node.op.alias == "view")
        key = (node.op.name, tuple(node.attrs.items()), node.type, tuple((o.shape, o.dtype) for o in operands))
        fresh = key not in self.warm
        if movement and fresh and self.frugal and self.cold_seconds > COLD_SHARE * (time.monotonic() - self.started):
            self.by_numpy += 1
            return apply_node(node, operands)
        begun = time.monotonic()
        result = self.call(node, operands, node.attrs, static_shape(node.type.shape))
        if fresh:
            self.warm.add(key)
            self.cold_seconds += (time.monotonic() - begun) if movement else 0.0
        return result

    def call(self, node: Node, operands: Sequence[np.ndarray], attrs: dict, shape: Sequence[int]) -> np.ndarray:
        arrays = [self.jnp.asarray(o) for o in operands]
        return np.asarray(node.op.jax(self.jnp, self.lax, *arrays, **_typed(node, attrs, shape)))


_eager: _Eager | None = None


def serve(request: dict) -> Iterator[dict]:
    """Child side. {"do": "ready"} or {"do": "run", "text", "constants", "args", "frugal", "jit"}."""
    global _eager
    _eager = _eager or _Eager()
    if request["do"] == "ready":
        yield {"version": _eager.jax.__version__}
        return
    graph = parse_graph(request["text"], request["constants"])
    answer = {"outputs": _eager.run(graph, request["args"], request.get("frugal", False)), "by_numpy": _eager.by_numpy}
    if request.get("jit"):
        answer["jit"] = [np.asarray(o) for o in _eager.jax.jit(render(graph))(*request["args"])]
    yield answer


# --------------------------------------------------------------------------- in the parent
class Reference:
    """The JAX child. `send` and `receive` may be pipelined; after a ChildError the next `send` starts a new child."""

    def __init__(self) -> None:
        self.flags: str | None = STRICT_FLAGS
        self.child: Child | None = None
        self.version = ""

    def start(self) -> None:
        """Start the child; without the strict flags if this jaxlib aborts on them. Raises ChildError when it can't start."""
        if self.child is not None and self.child.process is not None:
            return
        for flags in dict.fromkeys((self.flags, None)):
            inherited = os.environ.get("XLA_FLAGS", "")
            self.child = Child("jax", {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "XLA_FLAGS": f"{inherited} {flags or ''}".strip()})
            try:
                answer = self.child.ask({"do": "ready"}, START_TIMEOUT)
            except ChildError:
                if flags is None:
                    raise
                continue
            if "error" in answer:
                self.child.stop()
                raise ChildError("crash", f"JAX cannot start: {answer['error']}: {answer['message']}", answer["traceback"])
            self.flags, self.version = flags, answer["version"]
            return

    def send(self, graph: Graph | str, args: Sequence[np.ndarray], constants: dict | None = None, frugal: bool = False, jit: bool = False) -> None:
        """Queue one graph."""
        self.start()
        text = graph if isinstance(graph, str) else print_graph(graph)
        constants = graph.constants() if isinstance(graph, Graph) else constants or {}
        self.child.send({"do": "run", "text": text, "constants": constants, "args": list(args), "frugal": frugal, "jit": jit})

    def receive(self, timeout: float = 60.0) -> dict:
        """The next answer: {"outputs", "by_numpy"[, "jit"]} or {"error", "message", "traceback"}. Raises ChildError."""
        return self.child.receive(timeout)

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()


_shared: Reference | None = None


def run_jax(graph: Graph, args: Sequence[np.ndarray], timeout: float = 60.0) -> list[np.ndarray]:
    """The graph's outputs by JAX (eager, x64) in a child process that is shared by all callers and restarted after a crash.

    Raises ChildError ("crash" or "hang") when JAX dies on it, and RuntimeError with JAX's message when it raises.
    """
    global _shared
    if _shared is None:
        _shared = Reference()
        atexit.register(_shared.stop)
    _shared.send(graph, args)
    answer = _shared.receive(timeout)
    if "error" in answer:
        raise RuntimeError(f"JAX raised {answer['error']}: {answer['message']}")
    return answer["outputs"]
