"""From a graph to something that runs: the one place that sees every stage.

    graph -> passes -> kernels -> memory plan -> loops -> LLVM -> object code -> executable

`Executable` is what `mlc.jit(f).lower(...).compile()` wraps. A persistent-cache hit skips everything after the graph; the texts of
later stages are then made again on demand, from the graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mlc.core import options as opt
from mlc.core.errors import OptionError, UnsupportedError
from mlc.core.fingerprint import fingerprint
from mlc.graph import Graph, evaluate, print_graph, verify
from mlc.passes.manager import PassResult
from mlc.passes.pipeline import describe_pipeline, run_pipeline
from mlc.stages import Stages

STAGES = ("graph", "optimized", "kernels", "loops", "memory", "llvm", "asm")


class Executable:
    """A compiled graph: `run` takes and returns flat lists of NumPy arrays in parameter and output order."""

    def __init__(self, graph: Graph, stages: Stages, program, pass_log: list[PassResult] | None):
        self.graph, self.stages, self.program, self._pass_log = graph, stages, program, pass_log
        self.run = program.run if program is not None else self._interpret

    def _interpret(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.array(v) for v in evaluate(self.stages.optimized, args)]

    @property
    def pass_log(self) -> list[PassResult]:
        """One PassResult a run pass; after a cache hit the passes run again to tell it."""
        if self._pass_log is None:
            self._pass_log = self.stages.pass_log
        return self._pass_log

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage: one of "graph", "optimized", "kernels", "loops", "memory", "llvm", "asm". Raises OptionError for another."""
        if stage not in STAGES:
            raise OptionError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
        return print_graph(self.graph) if stage == "graph" else self.stages.text(stage)

    def cost_analysis(self) -> dict[str, Any]:
        """{"flops", "bytes accessed"} of one call, and "kernels": the same for each step, by label."""
        return self.stages.cost_analysis()

    def memory_analysis(self) -> dict[str, Any]:
        """Bytes: "arena", "max live" (lower bound of the arena), "constants", "inputs", "outputs"; "scratch per worker":
        what each thread beside the caller's has of its own, which programs share."""
        return self.stages.memory_analysis()

    def save(self, path: str | os.PathLike, frontend: str = "") -> None:
        """Write code, manifest and constants to one file for `mlc.load`."""
        from dataclasses import replace

        from mlc.runtime.artifact import save
        if self.program is None:
            raise UnsupportedError("the interpreter backend has no code to save; compile with backend=llvm")
        texts = {stage: self.as_text(stage) for stage in ("graph", "optimized", "kernels", "loops", "memory")}
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
        from mlc.runtime.artifact import save
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
    from mlc.runtime.artifact import load
    program = load(path)
    return LoadedExecutable(program), str(program.manifest.extra.get("frontend", ""))


def compile_graph(graph: Graph) -> Executable:
    """Compile a graph under the options in force. Raises VerifyError, UnsupportedError or CodegenError."""
    for name in opt.OPTIONS:
        opt.get(name)  # a bad value of any option is refused here, not where it first matters
    if opt.get("check"):
        verify(graph, "capture")
    from mlc.codegen.target import get_target
    target = get_target(str(opt.get("target")))
    lazy = Stages(graph, target)
    if opt.get("backend") == "interpreter":
        return Executable(graph, lazy, None, lazy.pass_log)
    from mlc.cache.store import cache_key, default_cache
    from mlc.runtime.artifact import from_bytes, to_bytes
    cache = default_cache()
    key = cache_key(print_graph(graph), pipeline=describe_pipeline(), target=target.key, extra=bool(opt.get("check"))) if cache.enabled else ""
    found = cache.get(key) if key else None
    if found is not None:
        program = _from_cache(found, graph, cache, key, from_bytes)
        if program is not None:
            _dump(graph, lazy)
            return Executable(graph, lazy, program, None)
    program = lazy.build()
    if key:
        stored = set(program.manifest.extra["literals"]) <= graph.constants().keys()
        cache.put(key, b"".join((b"\0" if stored else b"\1", *to_bytes(program, constants=not stored))))
    _dump(graph, lazy)
    return Executable(graph, lazy, program, lazy.pass_log)


def _from_cache(data: bytes, graph: Graph, cache, key: str, from_bytes):
    """The program in a cache entry, or None (counted and warned of) if it cannot be used. Constants of the graph are not stored again."""
    from mlc.core.errors import MlcError
    try:
        if data[:1] == b"\1":
            return from_bytes(memoryview(data)[1:], source="cache entry")
        given = graph.constants()
        return from_bytes(memoryview(data)[1:], constants=lambda manifest: [given[d].array for d in manifest.extra["literals"]],
                          source="cache entry")
    except (MlcError, KeyError) as error:
        cache.refuse(key, str(error))
        return None


def _dump(graph: Graph, lazy: Stages) -> None:
    """Write every stage's text under the folder of the option `dump`."""
    folder = str(opt.get("dump"))
    if not folder:
        return
    name = f"{graph.name}-{fingerprint(print_graph(graph))[:8]}"  # functions may share a name
    try:
        os.makedirs(folder, exist_ok=True)
        for stage in STAGES:
            with open(os.path.join(folder, f"{name}.{stage}.mlc"), "w", encoding="utf-8") as file:
                file.write(print_graph(graph) if stage == "graph" else lazy.text(stage))
    except OSError as error:
        raise OptionError(f"dump={folder!r} (MLC_DUMP) is no folder to write to: {error}") from None


def level_runs(graph: Graph, args: Sequence[np.ndarray]) -> Iterator[tuple[str, Callable[[], list[np.ndarray] | None]]]:
    """(name, run) of every level in order, for blame, so that a level can be named before it runs; call each `run` before taking the
    next. The run of "passes" has no answer of its own: None; what it raises comes after the answers of the passes before."""
    yield "graph", lambda: evaluate(graph, args)
    snapshots: list[tuple[str, Graph]] = []
    raised: list[Exception] = []

    def passes(again: bool = False) -> None:
        if again:
            raise raised[0]
        try:
            run_pipeline(graph, observe=lambda result: snapshots.append((result.name, result.graph)) if result.changed else None)
        except Exception as error:  # perhaps the fault of an earlier pass, whose answer is wrong
            raised.append(error)
    yield "passes", passes
    for name, after in snapshots:
        yield f"pass {name}", lambda after=after: evaluate(after, args)
    if raised:
        yield "passes", lambda: passes(again=True)
    from mlc.codegen.target import get_target
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
