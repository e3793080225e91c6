"""From a graph to something that runs: the one place that sees every stage.

    graph -> passes -> kernels -> memory plan -> loops -> LLVM -> object code -> executable

`Executable` is what `mlc.jit(f).lower(...).compile()` wraps. A persistent-cache hit skips everything after the graph, and imports
nothing of it (LLVM neither); the texts of later stages are then made again on demand, from the graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc.cache import record
from mlc.cache.package import package_cache
from mlc.cache.store import Cache, cache_key, default_cache
from mlc.codegen.target import Target, get_target, host
from mlc.core import digest
from mlc.core import options as opt
from mlc.core.collector import uncollected
from mlc.core.dataclass import replace
from mlc.core.errors import MlcError, OptionError, OptionWarning, UnsupportedError
from mlc.core.facts import fact
from mlc.core.fingerprint import fingerprint, sources_fingerprint, versions
from mlc.core.locks import lazy
from mlc.frontend.source import warn
from mlc.graph import Graph, evaluate, print_graph, verify
from mlc.runtime.artifact import from_bytes, load, save, to_bytes
from mlc.runtime.bulk import block_sums

if TYPE_CHECKING:
    from mlc.passes.manager import PassResult
    from mlc.stages import Stages

digest.sums = block_sums
STAGES = opt.STAGES
SAVED_STAGES = ("graph", "optimized", "kernels", "loops", "memory")  # a file tells the program, not how long passes took


class Executable:
    """A compiled graph: `run` takes and returns flat lists of NumPy arrays in parameter and output order.

    Stages that are made later, on demand, are made under the options that shape code as they are now.
    """

    def __init__(self, graph: Graph, target: Target, program, stages: Stages | None = None):
        self.graph, self.target, self.program, self._pass_log = graph, target, program, None
        self._settings = stages.settings if stages is not None else opt.affecting_code()
        if stages is not None:
            self.stages, self._pass_log = stages, stages.pass_log
        self.run = program.run if program is not None else self._interpret

    @lazy
    def stages(self) -> Stages:
        """All stages, made on demand."""
        from mlc.stages import Stages
        return Stages(self.graph, self.target, self._settings)

    def _interpret(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.array(v) for v in evaluate(self.stages.optimized, args)]

    @property
    def pass_log(self) -> list[PassResult]:
        """One PassResult a run pass; after a cache hit the passes run again to tell it."""
        if self._pass_log is None:
            self._pass_log = self.stages.pass_log
        return self._pass_log

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage, one of STAGES; "passes" are the lines of `pass_log`. Raises OptionError for another."""
        if stage not in STAGES:
            raise OptionError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
        if stage == "passes":
            return "\n".join(map(str, self.pass_log))
        return print_graph(self.graph) if stage == "graph" else self.stages.text(stage)

    def cost_analysis(self) -> dict[str, Any]:
        """{"flops", "bytes accessed"} of one call, and "kernels": the same for each step, by label."""
        return self.stages.cost_analysis()

    def memory_analysis(self) -> dict[str, Any]:
        """Bytes: "arena", "max live" (its lower bound: the most alive at once, without what lies in outputs that are not yet written),
        "constants", "packed" (weights), "inputs", "outputs"; "workspace" and "scratch per worker": what the caller's thread, and each other one,
        has of its own for the kernel that it runs, beside the arena. Programs share that."""
        return self.stages.memory_analysis()

    def save(self, path: str | os.PathLike, frontend: str = "") -> None:
        """Write code, manifest and constants to one file for `mlc.load`."""
        if self.program is None:
            raise UnsupportedError("the interpreter backend has no code to save; compile with backend=llvm")
        texts = {stage: self.as_text(stage) for stage in SAVED_STAGES}
        manifest = self.program.manifest
        extra = {**manifest.extra, "frontend": frontend, "texts": texts, "cost": self.cost_analysis(), "memory": self.memory_analysis()}
        saved = type(self.program).__new__(type(self.program))
        saved.__dict__.update(self.program.__dict__)
        saved.manifest = replace(manifest, extra=extra)
        save(saved, path)


class LoadedExecutable:
    """An executable read from a file: it runs, and shows the texts and analyses that were stored with it."""

    def __init__(self, program):
        self.program = program
        self.run = program.run
        self.pass_log: list[PassResult] = []

    def save(self, path: str | os.PathLike, frontend: str = "") -> None:
        """Write the same file again."""
        save(self.program, path)

    @property
    def graph(self) -> Graph:
        raise UnsupportedError("a saved executable keeps the text of its graph, not the graph; use as_text('graph')")

    def as_text(self, stage: str = "optimized") -> str:
        texts = self.program.manifest.extra.get("texts", {})
        if stage not in texts:
            raise UnsupportedError(f"a saved executable keeps the stages {', '.join(texts)}, not {stage!r}")
        return texts[stage]

    def cost_analysis(self) -> dict[str, Any]:
        return self.program.manifest.extra["cost"]

    def memory_analysis(self) -> dict[str, Any]:
        return self.program.manifest.extra["memory"]


def load_executable(path: str | os.PathLike) -> tuple[LoadedExecutable, str]:
    """What `Executable.save` wrote, and the frontend's part of it. Raises ArtifactError."""
    _recall(write=False)
    program = load(path)
    return LoadedExecutable(program), str(program.manifest.extra.get("frontend", ""))


@uncollected()
def compile_graph(graph: Graph) -> Executable:
    """Compile a graph under the options in force. Raises VerifyError, UnsupportedError or CodegenError.

    With the option `check`, the persistent cache is neither read, because whoever asks for checks wants them to run, nor written.
    """
    for message in opt.unknown_variables():
        warn(message, OptionWarning)
    for name in opt.OPTIONS:
        opt.get(name)  # a bad value of any option is refused here, not where it first matters
    if opt.get("check"):
        verify(graph, "capture")
    interpreted = opt.get("backend") == "interpreter"
    cache = None if interpreted or opt.get("check") else default_cache()
    if not interpreted:
        _recall()
    target = get_target(str(opt.get("target")))
    key = ""
    if cache is not None and cache.enabled:
        key = cache_key(print_graph(graph), pipeline=_pipeline_text(), target=target.key)
        program = _from_cache(graph, cache, key)
        if program is not None:
            found = Executable(graph, target, program)
            _dump(found)
            return found
    from mlc.stages import Stages
    stages = Stages(graph, target)
    program = None if interpreted else stages.build()
    if key:
        _keep(program, stages, cache, key)
    found = Executable(graph, target, program, stages)
    if not interpreted:
        _dump(found)
    return found


@fact
def _default_pipeline() -> str:
    """The description of the passes when no option shapes them."""
    from mlc.passes.pipeline import describe_pipeline
    with opt.options(**_SHAPING):
        return describe_pipeline()


_SHAPING = {name: opt.OPTIONS[name].default for name in ("disable_passes", "pass_limit", "limit")}


def _pipeline_text() -> str:
    """Names, versions and options of the passes; from the record if nothing is out of the ordinary, so that they need not be imported."""
    if "mlc.passes.pipeline" not in sys.modules and all(opt.get(name) == default for name, default in _SHAPING.items()):
        return _default_pipeline()
    from mlc.passes.pipeline import describe_pipeline
    return describe_pipeline()


_recalled: set[str | None] = set()


def _recall(write: bool = True) -> None:
    """Once a folder: take from the record beside mlc's own code what this process would otherwise find out again, or (`write`) write the
    record."""
    cache = package_cache()
    if not cache.enabled or cache.directory in _recalled:
        return
    facts = {"sources": sources_fingerprint, "versions": versions, "host": host, "pipeline": _default_pipeline}
    key = record.record_key()
    stored = record.read(cache, key) if key else None
    if stored is not None and stored.keys() == facts.keys():
        for name, each in facts.items():
            each.assume(stored[name])
    elif not write:
        return
    elif key:
        record.write(cache, key, {name: each() for name, each in facts.items()})
    _recalled.add(cache.directory)


def _keep(program, stages: Stages, cache: Cache, key: str) -> None:
    """Store a program in the cache, with its constants' digests. Constants of the graph are not stored: whoever loads it has them."""
    literals = [literal.digest for literal in stages.literals()]
    stored = set(literals) <= stages.graph.constants().keys()
    cache.put(key, b"".join((b"\0" if stored else b"\1", *to_bytes(program, constants=not stored, extra={"literals": literals}))))


def _from_cache(graph: Graph, cache: Cache, key: str):
    """The program of a cache entry, or None: nothing stored, or it cannot be used (counted and warned of)."""
    data = cache.get(key)
    if data is None:
        return None
    try:
        if data[:1] == b"\1":
            return from_bytes(memoryview(data)[1:], source="cache entry")
        given = graph.constants()
        return from_bytes(memoryview(data)[1:], constants=lambda manifest: [given[d].array for d in manifest.extra["literals"]],
                          own_constants=True, source="cache entry")
    except (MlcError, KeyError) as error:
        cache.refuse(key, str(error))
        return None


def _dump(found: Executable) -> None:
    """Write every stage's text under the folder of the option `dump`."""
    folder, graph = str(opt.get("dump")), found.graph
    if not folder:
        return
    name = f"{graph.name}-{fingerprint(print_graph(graph))[:8]}"  # functions may share a name
    try:
        os.makedirs(folder, exist_ok=True)
        for stage in STAGES:
            with open(os.path.join(folder, f"{name}.{stage}.mlc"), "w", encoding="utf-8") as file:
                file.write(found.as_text(stage))
    except OSError as error:
        raise OptionError(f"dump={folder!r} (MLC_DUMP) is no folder to write to: {error}") from None


def level_runs(graph: Graph, args: Sequence[np.ndarray]) -> Iterator[tuple[str, Callable[[], list[np.ndarray] | None]]]:
    """(name, run) of every level in order, for blame, so that a level can be named before it runs; call each `run` before taking the
    next. The run of "passes" has no answer of its own: None."""
    from mlc.passes.pipeline import run_pipeline
    from mlc.stages import Stages
    yield "graph", lambda: evaluate(graph, args)
    snapshots: list[tuple[str, Graph]] = []

    def passes() -> None:
        run_pipeline(graph, observe=lambda result: snapshots.append((result.name, result.graph)) if result.changed else None)
    yield "passes", passes
    for name, after in snapshots:
        yield f"pass {name}", lambda after=after: evaluate(after, args)
    lazy = Stages(graph, get_target(str(opt.get("target"))))
    yield "kernels", lambda: lazy.run_kernels(args)
    yield "loops", lambda: lazy.run_loops(args)
    yield "memory", lambda: lazy.run_planned(args)
    yield "machine code", lambda: lazy.build().run(args)


def trace_levels(graph: Graph, args: Sequence[np.ndarray]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The answers of every level in order, for blame: the captured graph, after each pass, kernels, loops,
    loops in the planned memory, machine code."""
    for name, run in level_runs(graph, args):
        outputs = run()
        if outputs is not None:
            yield name, outputs
