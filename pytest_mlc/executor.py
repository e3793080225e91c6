"""The mlc side of the harness: the worker's service that compiles and runs graphs, and the parent's handle on it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from mlc.core import options as opt
from mlc.core.errors import MlcError, UnsupportedError
from mlc.graph.graph import Graph
from mlc.kernel.ir import Dot
from mlc.kernel.tiling import paths as contraction_paths
from mlc.kernel.words import EXPONENTS
from pytest_mlc.child import ChildError
from pytest_mlc.service import Service, read_graph, run_request
from pytest_mlc.settings import timeout
from pytest_mlc.variants import SAID, VARIANTS, affordable, same_bits

# Seconds that compiling and running one case may take.
TIMEOUT = timeout()
# The options that a case may be compiled under; a stored case keeps them among its facts.
CARRIED = ("check", "target", "disable_passes", "fork_us", "stream_kb", "bf16_pairs", "matrix")
SHARED_MEMORY = "/dev/shm"
# What schedules say about how a kernel is computed.
PATH_WORDS = re.compile(r"\b(?:tile|pack|parallel|attend|sweep|transpose|jam|vectorize rows|vectorize|serial)\b")
VECTORS = re.compile(r"\bvectorize (\w+):(\d+)")
# Beside the variants: every case is run through the native entry as well.
NATIVE = "native"


def options_of(facts: Mapping[str, str]) -> dict[str, str]:
    """The options that a case's facts say it is to be compiled under."""
    return {name: facts[name] for name in CARRIED if facts.get(name)}


# --------------------------------------------------------------------------- in the child
def serve(request: dict) -> Iterator[dict]:
    """{"do": "ready"}; {"do": "run", "text", "constants", "args"[, "options", "variant"]} -> {"outputs", "passes"[, "varied"]};
    {"do": "levels", ...} -> {"level", "outputs"} each, outputs being None before it runs, then {"end"};
    {"do": "rewrite", ..., "number": n} -> {"rule", "total"}."""
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
    with poisoned_outputs():
        outputs = [np.asarray(o) for o in exe.run(request["args"])]
    ways = [*paths_of(exe), *ways_of_pairs(exe, request["args"])]
    answer = {"outputs": outputs, "passes": [p.name for p in exe.pass_log if p.changed], "paths": ways}
    variant = affordable(request.get("variant") or NATIVE, exe)
    varied = exe.run(request["args"])
    if variant != NATIVE and same_bits(outputs, varied):
        varied = VARIANTS[variant](exe, request["args"])
        answer["variant"] = variant
    else:
        answer["variant"] = NATIVE
    yield {**answer, "varied": [np.asarray(o) for o in varied]}


def paths_of(exe) -> list[str]:
    """The ways of computing that the schedules of a program chose ("tile", "pack", "parallel", ...), and "tail" where a vector axis
    or a tile leaves a rest, "streamed" where outputs are stored past the caches, "split" for a sum of sums, "matvec" for one row or column."""
    found: set[str] = contraction_paths(exe.stages.schedules.items())
    for kernel, schedule in exe.stages.schedules.items():
        text = schedule.text()
        found.update(w for w in PATH_WORDS.findall(text) if f"{w} none" not in text)
        extents = {axis: size for stage in kernel.stages for axis, size in (*getattr(stage, "axes", ()), *getattr(stage, "over", ()))}
        found.update(["streamed"] if schedule.streams else [])
        found.update("split" for axis in extents if axis.endswith(".b"))
        found.update("matvec" for s in kernel.stages if isinstance(s, Dot) and 1 in (s.m[1], s.n[1]))
        found.update("tail" for axis, width in VECTORS.findall(text) if extents.get(axis, 0) % int(width))
    return sorted(found)


def ways_of_pairs(exe, args: Sequence[np.ndarray]) -> list[str]:
    """"pairs flushed", or "pairs kept" where sums may be subnormal, for contractions in pairs whose operands are there before anything runs;
    "matrix flushed" and "matrix kept" for those by matrix registers."""
    program, schedules, found = exe.stages.kernels, exe.stages.schedules, set()
    given = {**dict(zip(program.inputs, args)), **dict(zip(program.constants, exe.stages.constants()))}
    for step in program.steps:
        bound = dict(zip([p.name for p in step.kernel.params if p.role != "scratch"], step.args))
        for stage, plan in zip(step.kernel.stages, schedules[step.kernel].stages):
            if isinstance(stage, Dot) and plan.parts and stage.dtype.is_float:
                names = [bound[side.args[0].attr[0]] for side in (stage.a, stage.b)]
                names = [packing.of if (packing := program.values[name].packing) else name for name in names]
                if all(name in given for name in names):
                    normal = sums_are_normal(*(given[name] for name in names))
                    found.add(("matrix flushed" if normal else "matrix kept") if plan.block else "pairs flushed" if normal else "pairs kept")
    return sorted(found)


def sums_are_normal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether no bf16 is subnormal, and every product of two is a multiple of the least normal number: what `mlc.loop.lower_words.look` finds."""
    least = []
    for x in (a, b):
        bits = np.asarray(x).view(np.uint16) & 0x7FFF
        least.append(int(bits[bits != 0].min(initial=0x7FFF)) - 1 >> 7)
    return min(least) >= 1 and sum(least) >= EXPONENTS


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Programs that run for the first time in here fill their outputs with 0xFF first, so that an element that they forget is seen.

    The native entry allocates its outputs itself, so these programs do without it.
    """
    from mlc.runtime import executable
    plain, native = executable.aligned_empty, executable.Program._native

    def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        found = plain(shape, dtype)
        found.reshape(-1).view(np.uint8)[...] = 0xFF
        return found
    executable.aligned_empty, executable.Program._native = poisoned, None
    try:
        yield
    finally:
        executable.aligned_empty, executable.Program._native = plain, native


def _levels(graph: Graph, request: dict) -> Iterator[dict]:
    from pytest_mlc.blame import levels
    for name, outputs in levels(graph, request["args"]):
        yield {"level": name, "outputs": outputs if outputs is None else [np.asarray(o) for o in outputs]}
    yield {"end": True}


def _rewrite(graph: Graph, request: dict) -> Iterator[dict]:
    """Which rule rewrite number n applied, and how many rewrites there are in all."""
    from mlc.passes.manager import PassContext
    from mlc.passes.pipeline import run_pipeline
    limited, free = PassContext(limit=request["number"]), PassContext()
    for context in (limited, free):
        try:
            run_pipeline(graph, context)
        except MlcError:  # the guilty rewrite broke an invariant; it is the last of the trace
            pass
    yield {"rule": limited.trace[request["number"] - 1][1], "total": len(free.trace)}


# --------------------------------------------------------------------------- in the parent
@dataclass
class Outcome:
    """What mlc did with a graph. kind: "ran", "unsupported", "error" (it raised), "crash", "hang", "unstable" (a variant gave other bits).
    `stage` is the level in which an exception arose, where it tells."""

    kind: str
    outputs: list[np.ndarray] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    detail: str = ""
    log: str = ""
    stage: str = ""

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
        return Outcome("error", detail=f"{answer['error']}: {answer['message']}", log=answer["traceback"], stage=answer.get("stage", ""))
    if "unsupported" in answer:
        return Outcome("unsupported", detail=answer["unsupported"])
    if "varied" in answer and not same_bits(answer["outputs"], answer["varied"]):
        said = SAID.get(answer["variant"], "run through the native entry")
        return Outcome("unstable", answer["outputs"], answer["passes"], detail=f"{answer['variant']}: other bits when {said}")
    return Outcome("ran", answer["outputs"], answer["passes"], answer.get("paths", []))


class Compiler(Service):
    """The mlc child. It has a persistent cache of its own (or of the compiler `beside`), gone with this object, unless MLC_CACHE=0:
    entries of other versions of mlc, or of a patched one, must not come in here, and none of this one may get out."""

    def __init__(self, beside: Compiler | None = None) -> None:
        # In memory where there is such a place: entries are synced to the disk one by one.
        place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        self.folder = beside.folder if beside else tempfile.mkdtemp(prefix="mlc-fuzz-cache-", dir=place)
        super().__init__("mlc", {"MLC_CACHE": os.environ.get("MLC_CACHE", "1"), "MLC_CACHE_DIR": self.folder})
        self.remove_cache = beside.remove_cache if beside else weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def run(self, graph: Graph, args: Sequence[np.ndarray], timeout: float = TIMEOUT, **extra: object) -> Outcome:
        """Compile and run a graph in the child; never raises for what mlc does."""
        try:
            return outcome(self.ask(run_request(graph, args, **extra), timeout))
        except ChildError as error:
            return outcome(error)
