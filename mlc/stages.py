"""The stages of one compilation, each made once and on demand: optimized graph, kernels, loops, memory plan, LLVM text, program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.codegen.module import Module, emit_module, placed_buffers, worker_scratch
from mlc.codegen.target import Target, assembly
from mlc.core import dtype as dt
from mlc.core import options as opt
from mlc.core.dtype import DType
from mlc.core.literal import Literal
from mlc.core.locks import lazy
from mlc.graph import Graph, print_graph
from mlc.kernel.bands import band_kernel
from mlc.kernel.cost import kernel_cost, program_cost
from mlc.kernel.ir import Dot, Kernel, KernelGraph
from mlc.kernel.packing import pack_weights
from mlc.kernel.program_text import labels, print_kernel_graph, text_round_trips
from mlc.kernel.schedule import Schedule, schedule_for
from mlc.kernel.split import split_program
from mlc.kernel.split_dot import split_contractions
from mlc.kernel.turn import turn_left
from mlc.kernel.words import INTEGERS, word_parts
from mlc.loop.ir import Buffer, LoopKernel
from mlc.loop.program import lower_program
from mlc.ops import vecmath
from mlc.passes.fuse import FUSE_VERSION
from mlc.passes.kernelize import partition
from mlc.passes.manager import PassResult
from mlc.passes.pipeline import run_pipeline
from mlc.plan import ProgramPlan, order_program, plan_program, run_planned
from mlc.runtime.functions import objects
from mlc.runtime.pairs import matrix_numbers, use_pairs

# A call longer than this releases the GIL.
HEAVY_SECONDS = 20e-6


class _made(lazy):
    """A stage, made when it is first read, under the options of its `Stages`: by then others may be in force."""

    def __get__(self, instance: Stages | None, owner: type | None = None):
        if instance is None:
            return self
        with opt.restored(instance.settings):
            return super().__get__(instance, owner)


def _dots(program: KernelGraph) -> list[Dot]:
    return [stage for kernel in program.kernels() for stage in kernel.stages if isinstance(stage, Dot)]


class Stages:
    """Everything between a captured graph and its program, for one target. `settings`: the options that shape code (default: those in force)."""

    def __init__(self, graph: Graph, target: Target, settings: dict[str, object] | None = None):
        self.graph, self.target = graph, target
        self.settings = opt.affecting_code() if settings is None else settings

    @_made
    def _passes(self) -> tuple[Graph, list[PassResult]]:
        with vecmath.formulas(self.target.avx512):
            return run_pipeline(self.graph)

    @property
    def optimized(self) -> Graph:
        return self._passes[0]

    @property
    def pass_log(self) -> list[PassResult]:
        """What each pass did, and fusion and the memory plan after them."""
        return [*self._passes[1], self._fusion[1], self._plan[1]]

    @_made
    def _fusion(self) -> tuple[KernelGraph, PassResult]:
        begun = time.perf_counter()
        optimized = self.optimized
        with vecmath.formulas(self.target.avx512):
            found = partition(optimized)
        found = split_program(split_program(split_contractions(found)), band_kernel)
        if opt.get("check"):
            from mlc.kernel.verify import verify_program
            verify_program(found, "fuse")
        refused = [f"refused: {note}" for note in found.notes]
        return found, PassResult(None, True, name="fuse", version=FUSE_VERSION, nodes_before=len(self.optimized), nodes_after=len(found.steps),
                                 milliseconds=(time.perf_counter() - begun) * 1e3, notes=refused)

    @_made
    def packed(self) -> KernelGraph:
        """The partition with constant right operands of contractions packed, and left ones that lie across copied first."""
        vector_bytes = self.target.vector_bits // 8
        found = pack_weights(turn_left(self._fusion[0], vector_bytes), vector_bytes, self.target.vector_registers, self._matrices)
        if opt.get("check"):
            from mlc.kernel.verify import verify_program
            verify_program(found, "pack")
        return found

    @_made
    def schedules(self) -> dict[Kernel, Schedule]:
        target, words = self.target, self._words()
        found = {k: schedule_for(k, target.vector_bits // 8, target.vector_registers, words=words, matrices=self._matrices)
                 for k in self.packed.kernels()}
        if opt.get("check"):
            from mlc.kernel.verify import verify_kernel
            for kernel, schedule in found.items():
                verify_kernel(kernel, schedule)
        return found

    def _words(self) -> frozenset[DType]:
        """The parts of words that the target multiplies at once, and is asked to."""
        integers = INTEGERS if self.target.int8_dot else frozenset({dt.i16} if self.target.int16_dot else ())
        if not any(word_parts(dot, {dt.bf16}) for dot in _dots(self.packed)) or not use_pairs(self.target):
            return integers
        return integers | {dt.bf16}

    @_made
    def _matrices(self) -> frozenset[DType]:
        """The parts of words that the target's matrix registers multiply, and are asked to."""
        return matrix_numbers(self.target, _dots(self._fusion[0]))

    @_made
    def loops(self) -> dict[Kernel, LoopKernel]:
        found = lower_program(self.packed, self.schedules)
        if opt.get("check"):
            from mlc.loop.verify import verify
            for kernel in found.values():
                verify(kernel, "lowering", whole=True)
                if opt.get("check") >= 2:
                    from mlc.loop import text
                    text.text_round_trips(kernel, "lowering")
        return found

    @_made
    def spilled(self) -> dict[Kernel, list[Buffer]]:
        """Scratch that is too large for the stack, per kernel: it gets a place in the workspace or in the arena."""
        return {k: [b for b in placed_buffers(loop) if b.own] for k, loop in self.loops.items()}

    @_made
    def kernels(self) -> KernelGraph:
        """The partition, its steps in the order that they run."""
        found = order_program(self.packed, self.spilled)
        if opt.get("check") >= 2:
            text_round_trips(found, self.schedules, "fuse")
        return found

    @_made
    def _plan(self) -> tuple[ProgramPlan, PassResult]:
        return plan_program(self.kernels, self.spilled)

    @property
    def plan(self) -> ProgramPlan:
        return self._plan[0]

    @_made
    def module(self) -> Module:
        calls = [(self.loops[step.kernel], self.plan.places(k, step)) for k, step in enumerate(self.kernels.steps)]
        return emit_module(calls, self.target, [self.plan.dead_before(k) for k in range(len(calls))] if opt.get("check") else ())

    @property
    def llvm(self) -> str:
        """The module's text."""
        return self.module.text

    def literals(self) -> list[Literal]:
        """The program's constants."""
        return [self.optimized.nodes[self.kernels.values[name].source].attrs["value"] for name in self.kernels.constants]

    def constants(self) -> list[np.ndarray]:
        return [literal.array for literal in self.literals()]

    def build(self):
        """Object code, linked. Raises CodegenError."""
        from mlc.runtime.executable import Manifest, Program
        code = objects(self.module.functions, self.target)
        kernels, constants = self.kernels, self.constants()
        def specs(names): return [(n, kernels.values[n].type.shape, kernels.values[n].type.dtype) for n in names]
        manifest = Manifest.make(
            self.target, specs(kernels.inputs), specs(kernels.outputs), constants, arena_bytes=self.plan.memory.arena_bytes,
            workspace_bytes=self.plan.memory.workspace_bytes, kernels=tuple(labels(kernels).values()),
            heavy=program_cost(kernels).seconds > HEAVY_SECONDS, residents=self._residents(),
            steps=tuple((s.function, s.extent, s.scratch, s.places, s.numbers) for s in self.module.steps),
            objects=tuple((len(each.code), each.names) for each in code))
        return Program(b"".join([each.code for each in code]), manifest, constants, own_constants=True)

    def _residents(self) -> tuple[tuple, ...]:
        """What calls read besides their arguments, as `Manifest.residents` has it."""
        number = {name: k for k, name in enumerate(self.kernels.constants)}
        packings = [(name, self.kernels.values[name].packing) for name in self.kernels.residents()]
        return tuple((number[p.of], p.depth, p.columns, p.panels, p.transposed) if p else (number[name],) for name, p in packings)

    def run_kernels(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The answers of the kernel interpreter."""
        from mlc.kernel.interp import run_program
        return run_program(self.kernels, self.schedules, args, dict(zip(self.kernels.constants, self.constants())))

    def run_loops(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The answers of the loop interpreter."""
        from mlc.loop.program import run_program
        return run_program(self.kernels, self.loops, args, dict(zip(self.kernels.constants, self.constants())))

    def run_planned(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The answers of the loop interpreter when the buffers lie where the memory plan puts them."""
        return run_planned(self.kernels, self.plan, self.loops, args, self.constants())

    # ----------------------------------------------------------------- texts and analyses
    def text(self, stage: str) -> str:
        if stage == "optimized":
            return print_graph(self.optimized)
        if stage == "kernels":
            return print_kernel_graph(self.kernels, self.schedules)
        if stage == "loops":
            from mlc.loop.text import print_kernel
            label = labels(self.kernels)
            return "\n".join(f"; {label[k]}\n{print_kernel(loop)}" for k, loop in self.loops.items())
        if stage == "memory":
            return self.plan.memory.text()
        return self.llvm if stage == "llvm" else assembly(self.llvm, self.target)

    def cost_analysis(self) -> dict[str, Any]:
        label = labels(self.kernels)
        total = program_cost(self.kernels)
        each = [(label[s.kernel], kernel_cost(s.kernel)) for s in self.kernels.steps]
        return {"flops": total.flops, "bytes accessed": total.bytes_accessed,
                "kernels": [{"kernel": name, "flops": c.flops, "bytes accessed": c.bytes_accessed} for name, c in each]}

    def memory_analysis(self) -> dict[str, Any]:
        def total(names): return sum(self.kernels.values[n].type.nbytes for n in names)
        kept = [name for name in self.kernels.residents() if self.kernels.values[name].role == "constant"]
        return {"arena": self.plan.memory.arena_bytes, "max live": self.plan.memory.lower_bound, "constants": total(kept),
                "packed": total(set(self.kernels.residents()) - set(kept)),
                "inputs": total(self.kernels.inputs), "outputs": total(self.kernels.outputs),
                "workspace": self.plan.memory.workspace_bytes, "scratch per worker": max(map(worker_scratch, self.loops.values()), default=0)}
