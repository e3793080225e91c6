"""JAX as the reference: a graph rendered op by op with each op's own `jax=` field, in a child process that is kept alive.

Eager, 64-bit types on. A fresh (op, shape, dtype) costs about 30 ms of XLA compilation and a warm one microseconds, so
ops run in few shapes (`pytest_mlc.canonical`), by programs that many ops share (`pytest_mlc.banks`). With `frugal`, a
movement op that would need compiling may be done by NumPy instead, once compiling has taken its share of the time: moving
elements has no rounding to compare.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mlc.cache.store import default_cache
from mlc.codegen.target import host, host_features
from mlc.core import dtype as dt
from mlc.core.dims import static_shape
from mlc.graph.graph import Graph, Node
from mlc.graph.interpreter import apply_node
from pytest_mlc import canonical
from pytest_mlc.banks import Banks
from pytest_mlc.child import ChildError
from pytest_mlc.service import Service, read_graph, run_request

# Measured on jaxlib 0.10.2: without these passes JAX gets 14 of 18 known wrong answers right, and compiles faster.
# The last two only save time: legacy emitters compile twice as fast, and one thread is enough.
STRICT_FLAGS = ("--xla_disable_hlo_passes=algsimp,fusion --xla_cpu_experimental_ynn_fusion_type=", "--xla_backend_optimization_level=0",
                "--xla_cpu_use_fusion_emitters=false", "--xla_cpu_multi_thread_eigen=false")
# Shares of the child's time that fresh movement ops and jitted graphs may take when a request is frugal.
COLD_SHARE, JIT_SHARE = 0.05, 0.08
# A graph with more nodes takes XLA a quarter of a second under jit, one of many times as much; frugal requests leave them out.
MOST_JITTED = 12


def kept_programs() -> dict[str, str]:
    """The environment in which JAX keeps what `banks` compile for the next campaign: in a folder of its own beside mlc's cache, one a
    kind of CPU; nowhere with MLC_CACHE=0, and where the user says with JAX_COMPILATION_CACHE_DIR."""
    folder = default_cache().directory
    if folder is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    machine = hashlib.sha256(f"{host()['cpu']} {sorted(host_features())}".encode()).hexdigest()[:12]
    return {"JAX_COMPILATION_CACHE_DIR": os.path.join(folder, f"fuzz-reference-{machine}"), "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


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


def constants_of(graph: Graph) -> list[int]:
    """The graph's own constants, without those of regions."""
    return [i for i, node in enumerate(graph.nodes) if node.op.name == "constant"]


def render(graph: Graph, opened: bool = False) -> Callable:
    """The graph as a function of JAX arrays (in parameter order) that returns the list of outputs. It may be given to `jax.jit`.

    With `opened` the arrays of its constants come after them: XLA's own folding of an integer division ends the process (SIGFPE).
    """
    def run(*args):
        import jax
        from jax import lax
        from jax import numpy as jnp
        values: list = [None] * len(graph)
        for p, array in zip([*graph.params, *(constants_of(graph) if opened else ())], args, strict=True):
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
        self.banks = Banks(self.jax)
        self.warm: set = set()
        self.started, self.cold_seconds = time.monotonic(), 0.0
        self.frugal = False
        self.by_jax = self.by_numpy = self.refused = 0
        self.jit_seconds = 0.0

    def run(self, graph: Graph, args: Sequence[np.ndarray], frugal: bool) -> list[np.ndarray]:
        values: list = [None] * len(graph)
        for p, array in zip(graph.params, args, strict=True):
            values[p] = np.asarray(array)
        self.frugal, self.by_jax, self.by_numpy, self.refused = frugal, 0, 0, 0
        return [np.asarray(v) for v in _evaluate(graph, values, self.apply, self.jax)]

    def jitted(self, graph: Graph, args: Sequence[np.ndarray], frugal: bool) -> list[np.ndarray] | None:
        """The whole graph under `jax.jit`; None when that has taken its share of the time already."""
        begun = time.monotonic()
        if frugal and (len(graph) > MOST_JITTED or self.jit_seconds > JIT_SHARE * (begun - self.started)):
            return None
        try:
            constants = [apply_node(graph.nodes[i], []) for i in constants_of(graph)]
            return [np.asarray(o) for o in self.jax.jit(render(graph, opened=True))(*args, *constants)]
        except self.jax.errors.JaxRuntimeError:
            self.refused += 1  # see `apply`
            return None
        finally:
            self.jit_seconds += time.monotonic() - begun

    def apply(self, node: Node, operands: list[np.ndarray]) -> np.ndarray:
        if node.op.reduce is not None and node.op.typed and node.type.dtype is not dt.i64:
            # JAX counts positions in the dtype that is asked for: where they don't fit, it breaks ties by what they wrap to.
            wide = Node(node.op, node.inputs, node.attrs, node.type.with_dtype(dt.i64), node.regions)
            return self.apply(wide, operands).astype(node.type.dtype.numpy)
        try:
            found = canonical.run(node, operands, self.banked)
            return self.direct(node, operands) if found is None else found
        except self.jax.errors.JaxRuntimeError:
            # XLA without its simplifier lacks some ops (clamp of bool, negative padding): no answer to compare, so the op's own meaning stands in.
            self.refused += 1
            return apply_node(node, operands)

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

    def banked(self, node: Node, operands: Sequence[np.ndarray], attrs: dict, shape: Sequence[int]) -> np.ndarray:
        """In a canonical shape: by a program that many ops share."""
        self.by_jax += 1
        return self.banks.call(node, operands, attrs, shape)

    def call(self, node: Node, operands: Sequence[np.ndarray], attrs: dict, shape: Sequence[int]) -> np.ndarray:
        self.by_jax += 1
        # Whole arrays: of one that is broadcast, JAX compiles the broadcast.
        arrays = [self.jax.device_put(np.ascontiguousarray(o).reshape(o.shape)) for o in operands]
        return np.asarray(node.op.jax(self.jnp, self.lax, *arrays, **_typed(node, attrs, shape)))


_eager: _Eager | None = None


def serve(request: dict) -> Iterator[dict]:
    """Child side. {"do": "ready"} or {"do": "run", "text", "constants", "args", "frugal", "jit"}."""
    global _eager
    _eager = _eager or _Eager()
    if request["do"] == "ready":
        # Flags that a jaxlib does not know end the process when XLA first compiles: here, where fewer can be tried.
        _eager.jax.block_until_ready(_eager.lax.neg(np.float32(1)))
        yield {"version": _eager.jax.__version__}
        return
    graph = read_graph(request)
    answer = {"outputs": _eager.run(graph, request["args"], request.get("frugal", False))}
    if request.get("jit"):
        jitted = _eager.jitted(graph, request["args"], request.get("frugal", False))
        if jitted is not None:
            answer["jit"] = jitted
    answer.update(by_jax=_eager.by_jax, by_numpy=_eager.by_numpy, refused=_eager.refused)
    yield answer


# --------------------------------------------------------------------------- in the parent
class Reference(Service):
    """The JAX child."""

    def __init__(self) -> None:
        super().__init__("jax")
        self.flags: tuple[str, ...] = STRICT_FLAGS

    def launch(self) -> None:
        if not self.running:
            flags = " ".join((os.environ.get("XLA_FLAGS", ""), *self.flags)).strip()
            self.child.environment = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "XLA_FLAGS": flags, **kept_programs()}
            super().launch()

    def start(self) -> None:
        """Start the child; with fewer flags if this jaxlib aborts on them. Raises ChildError when JAX can't start."""
        while True:
            try:
                return super().start()
            except ChildError as error:
                if not self.flags or "XLA_FLAGS" not in error.log:  # what XLA says of flags that it does not know
                    raise
                self.flags = self.flags[:2 if len(self.flags) > 2 else 0]


_shared: Reference | None = None


def run_jax(graph: Graph, args: Sequence[np.ndarray], timeout: float = 60.0) -> list[np.ndarray]:
    """The graph's outputs by JAX (eager, x64) in a child process that is shared by all callers and restarted after a crash.

    Raises ChildError ("crash" or "hang") when JAX dies on it, and RuntimeError with JAX's message when it raises.
    """
    global _shared
    if _shared is None:
        _shared = Reference()
        atexit.register(_shared.stop)
    answer = _shared.ask(run_request(graph, args), timeout)
    if "error" in answer:
        raise RuntimeError(f"JAX raised {answer['error']}: {answer['message']}")
    return answer["outputs"]
