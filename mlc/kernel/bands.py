"""Rows of a kernel in bands: every stage runs over some rows before the next stage begins.

    for i:16384   stage over j { t = max } ; stage j { .. x - t .. }
 -> for i:4096    stage i.r:4 over j { %s1[i.r] = max } ; stage i.r:4 j { .. x - %s1[i.r] .. }

A row's sum or maximum ends in a chain of additions of fewer and fewer lanes, for which the next stage of that row waits. In a band the
same stage of another row goes on meanwhile. Values, and the order of each sum, are those of single rows.
"""

from __future__ import annotations

import math

from mlc.core import expr as ex
from mlc.core.affine import Affine, variable
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.core.expr import Expr
from mlc.kernel.axes import rebase, stage_parts
from mlc.kernel.ir import Kernel, Param, Put, Stage
from mlc.kernel.parallel import ENOUGH

# Rows of a band, the most there can be: what they read and leave to each other stays in the first cache.
BANDS = (4, 3, 2)
BAND_BYTES = 1 << 15
# Rows from so many points on; shorter ones are rather lanes of each other, or little work.
LEAST_ROW = 128
LEAST_POINTS = 1 << 15
# Inputs from this size on come from further away: rows ahead of a band would need the first cache, too.
FAR_BYTES = 1 << 20


def _row_bytes(kernel: Kernel, axis: str) -> int:
    """What a row reads, and what its stages leave to each other."""
    loads = {e.attr: e.dtype.itemsize for s in kernel.stages for e in ex.topological(stage_parts(s)[0]) if e.op == "load"}
    read = {name: index.coefficient(axis) * size for (name, index), size in loads.items()}
    return sum(map(abs, read.values())) + sum(p.type.nbytes for p in kernel.params if p.role == "scratch")


def _band(kernel: Kernel) -> int:
    """How many rows make a band; 1 where that is no gain."""
    if not kernel.rows or len(kernel.stages) < 2 or not all(isinstance(s, Stage) for s in kernel.stages):
        return 1
    points = max(math.prod(e for _, e in (*s.axes, *s.over)) for s in kernel.stages)
    if points < LEAST_ROW or points * math.prod(e for _, e in kernel.rows) < LEAST_POINTS or not any(s.reduces for s in kernel.stages[:-1]):
        return 1
    if any(p.role == "in" and p.type.nbytes >= FAR_BYTES for p in kernel.params):
        return 1
    axis, extent = kernel.rows[-1]
    most = BAND_BYTES // max(1, _row_bytes(kernel, axis))
    return next((size for size in BANDS if extent % size == 0 and size <= most and extent >= size * ENOUGH), 1)


def band_kernel(kernel: Kernel) -> Kernel:
    """The kernel with its last row axis in bands; itself where that is no gain."""
    size = _band(kernel)
    if size == 1:
        return kernel
    axis, extent = kernel.rows[-1]
    inner = f"{axis}.r"
    at = {axis: variable(axis) * size + variable(inner)}
    pitch = {p.name: p.type.size for p in kernel.params if p.role == "scratch"}
    params = [replace(p, type=TensorType((p.type.size * size,), p.type.dtype)) if p.name in pitch else p for p in kernel.params]
    bound: dict[str, Expr] = {}

    def place(target: str, index: Affine) -> Affine:
        return index + variable(inner) * pitch[target] if target in pitch else index

    def moved(e: Expr, here: dict[str, Expr]) -> Expr:
        found = rebase([e], at, lambda name, old, new: ex.make("load", loads[name], (), (name, place(name, new))))
        return ex.substitute(found, lambda leaf: here.get(leaf.attr, bound.get(leaf.attr)) if leaf.op == "var" else None)[0]

    def put(p: Put, here: dict[str, Expr]) -> Put:
        return Put(p.target, place(p.target, p.index.substitute(at)), moved(p.value, here))
    loads = {p.name: p.type.dtype for p in kernel.params}
    stages = []
    for stage in kernel.stages:
        here: dict[str, Expr] = {}  # what this stage binds, for what it finishes with after that
        reduces = tuple(replace(r, values=tuple(moved(v, here) for v in r.values)) for r in stage.reduces)
        puts, finish = tuple(put(p, here) for p in stage.puts), []
        for f in stage.finish:
            if isinstance(f, Put):
                finish.append(put(f, here))
                continue
            here[f.name] = value = moved(f.value, here)
            name = next(f"s{k}" for k in range(len(params) + 1) if f"s{k}" not in loads)
            loads[name] = value.dtype
            params.append(Param(name, TensorType((size,), value.dtype), "scratch"))
            finish.append(Put(name, variable(inner), value))
            bound[f.name] = ex.make("load", value.dtype, (), (name, variable(inner)))
        stages.append(replace(stage, axes=((inner, size), *stage.axes), reduces=reduces, puts=puts, finish=tuple(finish)))
    return replace(kernel, params=tuple(params), rows=(*kernel.rows[:-1], (axis, extent // size)), stages=tuple(stages))
