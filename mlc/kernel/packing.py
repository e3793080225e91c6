"""Weights that are constants, stored once in the order that a contraction's tiles read them: when the program is made or loaded.

A packed value is a copy of a constant in panels of columns (`Dot.panels`); constants that nothing else reads are not kept. What is
packed is written in the program; the data are not: they follow from the constants, in a cache entry or an artifact too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from mlc.core import expr as ex
from mlc.core import panels
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.kernel.axes import rebase
from mlc.kernel.ir import Dot, Kernel, KernelGraph, Packing, Step, Value
from mlc.kernel.tiling import panel_width

# Smaller matrices are not worth the trouble.
LEAST_BYTES = 1024


def pack(constant: np.ndarray, packing: Packing) -> np.ndarray:
    """The elements of a constant in the order of a packing, as a new flat array."""
    return panels.pack(constant, packing.depth, packing.columns, packing.panels, packing.transposed)


def _packable(program: KernelGraph, step: Step, stage: object) -> tuple[str, Affine] | None:
    """The parameter, and the index, that a contraction reads a whole constant matrix by; None if it does not."""
    if not isinstance(stage, Dot) or stage.panels or min(stage.m[1], stage.n[1], stage.k[1]) < 1:
        return None
    loads = {e.attr for e in ex.topological([stage.b]) if e.op == "load"}
    if len(loads) != 1:
        return None
    ((name, index),) = loads
    bound = dict(zip([p.name for p in step.kernel.params if p.role != "scratch"], step.args))
    value = program.values.get(bound.get(name, ""))
    whole = index.terms in (((stage.k[0], stage.n[1]), (stage.n[0], 1)), ((stage.k[0], 1), (stage.n[0], stage.k[1]))) and not index.offset
    if value is None or value.role != "constant" or not whole or value.type.size != stage.n[1] * stage.k[1] or value.type.nbytes < LEAST_BYTES:
        return None
    return name, index


def _reads(kernel: Kernel, name: str) -> int:
    """How many stages of a kernel load from a parameter."""
    from mlc.kernel.axes import stage_parts
    return sum(any(e.op == "load" and e.attr[0] == name for e in ex.topological(stage_parts(s)[0])) for s in kernel.stages)


def _loads_apart(stage: Dot, name: str) -> bool:
    """Whether the contraction reads the parameter outside of its right operand."""
    return any(e.op == "load" and e.attr[0] == name for e in ex.topological([stage.a, *(p.value for p in stage.puts)]))


def _pack_step(program: KernelGraph, step: Step, values: dict[str, Value], width_of: Callable[[Dot], int]) -> Step:
    kernel, args = step.kernel, list(step.args)
    for place, stage in enumerate(kernel.stages):
        found = _packable(program, step, stage)
        if found is None or _reads(kernel, found[0]) > 1 or _loads_apart(stage, found[0]):
            continue
        name, index = found
        transposed = index.coefficient(stage.n[0]) != 1
        width = width_of(stage)
        if width >= stage.n[1] and not transposed:
            continue  # one panel: it is in order as it is
        position = [p.name for p in kernel.params if p.role != "scratch"].index(name)
        packing = Packing(args[position], stage.k[1], stage.n[1], width, transposed)
        args[position] = _packed_value(program, values, packing)
        straight = Affine(0, ((stage.k[0], stage.n[1]), (stage.n[0], 1)))
        (b,) = rebase([stage.b], {}, lambda buffer, old, new, to=straight, d=stage: ex.make("load", _dtype(d, buffer), (), (buffer, to)))
        stages = (*kernel.stages[:place], replace(stage, b=b, panels=width), *kernel.stages[place + 1:])
        kernel = replace(kernel, stages=stages)
    return Step(kernel, tuple(args)) if kernel is not step.kernel else step


def _dtype(dot: Dot, buffer: str):
    return next(e.dtype for e in ex.topological([dot.b]) if e.op == "load" and e.attr[0] == buffer)


def _packed_value(program: KernelGraph, values: dict[str, Value], packing: Packing) -> str:
    """The name of the value with this packing, which is new unless another step has it."""
    for value in values.values():
        if value.packing == packing:
            return value.name
    source = program.values[packing.of]
    name = f"{packing.of}.by{packing.panels}{'t' if packing.transposed else ''}"
    while name in program.values or name in values:
        name += "_"
    values[name] = Value(name, TensorType((source.type.size,), source.type.dtype), "packed", source.source, packing)
    return name


def pack_weights(program: KernelGraph, vector_bytes: int, registers: int, matrices: Collection[DType] = ()) -> KernelGraph:
    """The program with constant right operands of contractions packed, for a target as `schedule_for` takes it; itself if there are none."""
    values: dict[str, Value] = {}
    steps = [_pack_step(program, step, values, lambda dot: panel_width(dot, vector_bytes, registers, matrices)) for step in program.steps]
    return replace(program, values={**program.values, **values}, steps=steps) if values else program


def residents(program: KernelGraph, constants: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The data of `program.residents()`, from those of its constants."""
    given = dict(zip(program.constants, constants))
    packings = {name: program.values[name].packing for name in program.residents()}
    return [pack(np.ascontiguousarray(given[p.of]), p) if p else given[name] for name, p in packings.items()]
