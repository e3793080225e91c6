"""The kernel interpreter: NumPy over a stage's whole domain, row by row, in the order of reduction that the schedule writes.

It gives the bits of the loops and of the machine code: partial sums by lanes and chunks, then the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlc.core.expr import Expr, topological
from mlc.core.scalar_eval import apply, contract, evaluate
from mlc.kernel.attention import AttendSchedule, blocks, weight_scale
from mlc.kernel.ir import Attend, Axis, Bind, Dot, Kernel, KernelGraph, Put, Reduce, Stage
from mlc.kernel.packing import pack
from mlc.kernel.schedule import Schedule, StageSchedule, additions, chunk_steps
from mlc.kernel.tiling import TileSchedule, dot_chunk
from mlc.kernel.words import per_word


class _Row:
    """One row of a kernel: buffers, per-row variables, and the row's indices."""

    def __init__(self, buffers: Mapping[str, np.ndarray], indices: dict[str, int]):
        self.buffers, self.indices, self.variables = buffers, indices, {}

    def evaluate(self, exprs: Sequence[Expr], grid: Mapping[str, np.ndarray], extra: Mapping[str, np.ndarray], shape: tuple[int, ...]):
        """Expressions over a grid of axis values, each broadcast to `shape`."""
        at = {**self.indices, **grid}

        def leaf(e: Expr) -> np.ndarray:
            if e.op == "load":
                return self.buffers[e.attr[0]][e.attr[1].evaluate(at)]
            if e.op == "index":
                return np.asarray(at[e.attr], np.int64)
            return np.asarray(extra[e.attr] if e.attr in extra else self.variables[e.attr])
        return [np.broadcast_to(v, shape) for v in evaluate(exprs, leaf)]

    def put(self, put: Put, value: np.ndarray, grid: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> None:
        index = np.broadcast_to(put.index.evaluate({**self.indices, **grid}), shape)
        self.buffers[put.target][index.reshape(-1)] = value.reshape(-1)


def _grid(axes: Sequence[Axis]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    shape = tuple(extent for _, extent in axes)
    return dict(zip((name for name, _ in axes), np.indices(shape, sparse=True))) if axes else {}, shape


def _combine(reduce: Reduce, left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> list[np.ndarray]:
    named = {f"a.{k}": v for k, v in enumerate(left)} | {f"b.{k}": v for k, v in enumerate(right)}
    return [np.asarray(v) for v in evaluate(reduce.combine, lambda e: named[e.attr])]


class _Accumulator:
    """Adds up one reduction in the scheduled order. Values have the shape kept + over; accumulators kept (+ lanes)."""

    def __init__(self, reduce: Reduce, values: Sequence[np.ndarray], kept: tuple[int, ...], extents: Sequence[int], lanes: int):
        self.reduce, self.values, self.kept, self.extents, self.lanes = reduce, values, kept, extents, lanes

    def identity(self) -> list[np.ndarray]:
        shape = (*self.kept, self.lanes) if self.lanes > 1 else self.kept
        start = evaluate(self.reduce.identity, lambda e: None)
        return [np.full(shape, v, d.numpy) for v, d in zip(start, self.reduce.dtypes)]

    def run(self) -> list[np.ndarray]:
        total = self.axis(self.identity(), 0, ())
        while self.lanes > 1 and total[0].shape[-1] > 1:
            half = total[0].shape[-1] // 2
            total = _combine(self.reduce, [t[..., :half] for t in total], [t[..., half:] for t in total])
        return [t[..., 0] for t in total] if self.lanes > 1 else total

    def axis(self, total: list[np.ndarray], position: int, at: tuple[int, ...]) -> list[np.ndarray]:
        if position == len(self.extents):
            return _combine(self.reduce, total, [v[(..., *at)] for v in self.values])
        vector = self.lanes > 1 and position == len(self.extents) - 1
        return self.span(total, position, at, 0, self.extents[position], self.lanes if vector else 1)

    def inside(self, position: int) -> int:
        """Additions to the accumulators in one step of an axis."""
        *outer, last = self.extents
        return additions([*outer, -(-last // self.lanes)][position + 1:])

    def span(self, total, position: int, at: tuple[int, ...], start: int, extent: int, step: int) -> list[np.ndarray]:
        block = step * chunk_steps(-(-extent // step), self.inside(position))
        if not block:
            for i in range(start, start + extent, step):
                total = self.lane_block(total, at, i, min(step, start + extent - i)) if step > 1 else self.axis(total, position + 1, (*at, i))
            return total
        for i in range(start, start + extent, block):
            part = self.span(self.identity(), position, at, i, min(block, start + extent - i), step)
            total = _combine(self.reduce, total, part)
        return total

    def lane_block(self, total, at: tuple[int, ...], start: int, count: int) -> list[np.ndarray]:
        """One step of all lanes; lanes past the end keep what they have."""
        fed = [v[(..., *at, slice(start, start + count))] for v in self.values]
        found = _combine(self.reduce, [t[..., :count] for t in total], fed)
        return [np.concatenate([f, t[..., count:]], -1) for f, t in zip(found, total)]


def _run_stage(row: _Row, stage: Stage, plan: StageSchedule) -> None:
    over = list(stage.over)
    lanes = 1
    if any(name == plan.axis for name, _ in over):
        vector = next(a for a in over if a[0] == plan.axis)
        over = [a for a in over if a is not vector] + [vector]
        lanes = plan.width
    grid, shape = _grid([*stage.axes, *over])
    kept_grid, kept = _grid(stage.axes)
    totals: dict[str, np.ndarray] = {}
    values = row.evaluate([v for r in stage.reduces for v in r.values] + [p.value for p in stage.puts], grid, {}, shape)
    for reduce in stage.reduces:
        fed, values = values[:len(reduce.values)], values[len(reduce.values):]
        totals.update(zip(reduce.names, _Accumulator(reduce, fed, kept, [e for _, e in over], lanes).run()))
    for put, value in zip(stage.puts, values):
        row.put(put, value, grid, shape)
    for action in stage.finish:
        (value,) = row.evaluate([action.value], kept_grid, totals, kept)
        if isinstance(action, Bind):
            row.variables[action.name] = value
        else:
            row.put(action, value, kept_grid, kept)
    row.variables.update((name, total) for name, total in totals.items() if not kept)


def _row_major(row: _Row, dot: Dot) -> _Row:
    """The row with the right operand's panels put together."""
    if not dot.panels:
        return row
    name = next(e.attr[0] for e in topological([dot.b]) if e.op == "load")
    flat, depth, columns = row.buffers[name], dot.k[1], dot.n[1]
    panels = [flat[p * depth:(p + w) * depth].reshape(depth, w) for p in range(0, columns, dot.panels) for w in [min(dot.panels, columns - p)]]
    return _Row({**row.buffers, name: np.concatenate(panels, 1).reshape(-1)}, row.indices)


def _run_dot(row: _Row, dot: Dot, plan: TileSchedule) -> None:
    (m, rows), (n, cols), (k, depth) = dot.m, dot.n, dot.k
    down, along, steps = np.arange(rows)[:, None], np.arange(cols)[None, :], np.arange(depth)[None, :]
    (a,) = row.evaluate([dot.a], {m: down, k: steps}, {}, (rows, depth))
    (b,) = _row_major(row, dot).evaluate([dot.b], {k: steps.T, n: along}, {}, (depth, cols))
    chunk, order = dot_chunk(depth, plan.parts, plan.block), np.arange(depth)
    if plan.parts and dot.dtype.is_float:  # pairs, their upper halves first, the last one full
        a, b, order = np.pad(a, ((0, 0), (0, depth % 2))), np.pad(b, ((0, depth % 2), (0, 0))), np.arange(depth + depth % 2) ^ 1
    total = np.zeros((rows, cols), dot.dtype.numpy)
    if plan.block and dot.dtype.is_float:
        size = plan.block * per_word(plan.parts)
        for start in range(0, depth, size):
            upper, lower = (_sum(a[:, order[start + half:start + size:2]], b[order[start + half:start + size:2]], dot.dtype) for half in (0, 1))
            total = apply("add", dot.dtype, [total, apply("add", dot.dtype, [upper, lower])])
    else:
        for start in range(0, depth, max(1, chunk)):
            part = _sum(a[:, order[start:start + chunk]], b[order[start:start + chunk]], dot.dtype)
            total = part if chunk >= depth else apply("add", dot.dtype, [total, part])
    grid = {m: down, n: along}
    for put in dot.puts:
        (value,) = row.evaluate([put.value], grid, {dot.name: total}, (rows, cols))
        row.put(put, value, grid, (rows, cols))


def _sum(a: np.ndarray, b: np.ndarray, dtype) -> np.ndarray:
    """a @ b from zero, one step after the other."""
    return contract(a, b, np.zeros((a.shape[0], b.shape[1]), dtype.numpy))


def _run_attend(row: _Row, stage: Attend, plan: AttendSchedule) -> None:
    """All queries at once, block after block of keys."""
    (m, queries), (n, keys), (k, depth), (c, columns) = stage.axes
    down, across, deep = np.arange(queries)[:, None], np.arange(columns)[None, :], np.arange(depth)
    dtype, one = stage.dtype, np.ones((), stage.dtype.numpy)
    (query,) = row.evaluate([stage.query], {m: down, k: deep[None, :]}, {}, (queries, depth))
    top, total = np.full((queries, 1), -np.inf, dtype.numpy), np.zeros((queries, 1), dtype.numpy)
    out = np.zeros((queries, columns), dtype.numpy)
    scale = dtype.numpy.type(weight_scale(stage))

    def weight(scores: np.ndarray, base: np.ndarray) -> np.ndarray:
        distance = apply("sub", dtype, [scores, base])
        return np.asarray(evaluate([stage.weight], lambda e: distance if e.op == "var" else None)[0])

    for start, count in blocks(keys, plan.keys):
        steps = np.arange(start, start + count)
        (key,) = row.evaluate([stage.key], {n: steps[None, :], k: deep[:, None]}, {}, (depth, count))
        (value,) = row.evaluate([stage.value], {n: steps[:, None], c: across}, {}, (count, columns))
        dots = {stage.dot.attr: _sum(query, key, dtype)}
        (scores,) = row.evaluate([stage.score], {m: down, n: steps[None, :]}, dots, (queries, count))
        new = np.fmax(top, np.fmax.reduce(scores, 1, keepdims=True))
        base = np.where(new == -np.inf, dtype.numpy.type(0), new)
        fade, top = weight(top, base), new
        weights = apply("mul", dtype, [weight(scores, base), scale])
        part, block = np.zeros_like(total), _sum(weights, value, dtype)
        for step in range(count):
            part = apply("add", dtype, [part, weights[:, step:step + 1]])
        if count == keys:
            total, out = part, block
        else:
            total, out = (apply("add", dtype, [apply("mul", dtype, [old, fade]), add]) for old, add in ((total, part), (out, block)))
    result = apply("mul", dtype, [out, apply("div", dtype, [one, total])])
    for put in stage.puts:
        (value,) = row.evaluate([put.value], {m: down, c: across}, {stage.name: result}, (queries, columns))
        row.put(put, value, {m: down, c: across}, (queries, columns))


def run_kernel(kernel: Kernel, schedule: Schedule, buffers: dict[str, np.ndarray]) -> None:
    """Run a kernel on flat arrays, in place; `buffers` has one for each in and out parameter."""
    for indices in np.ndindex(*(e for _, e in kernel.rows)):
        scratch = {p.name: np.zeros(p.type.size, p.type.dtype.numpy) for p in kernel.params if p.role == "scratch"}
        row = _Row({**buffers, **scratch}, dict(zip((name for name, _ in kernel.rows), indices)))
        for stage, plan in zip(kernel.stages, schedule.stages):
            if isinstance(stage, Dot):
                _run_dot(row, stage, plan)
            elif isinstance(stage, Attend):
                _run_attend(row, stage, plan)
            else:
                _run_stage(row, stage, plan)


def run_program(program: KernelGraph, schedules: Mapping[Kernel, Schedule], args: Sequence[np.ndarray],
                constants: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The program's outputs by the kernel interpreter, one step after another."""
    return execute_steps(program, args, constants, lambda kernel, bound: run_kernel(kernel, schedules[kernel], bound))


def execute_steps(program: KernelGraph, args: Sequence[np.ndarray], constants: Mapping[str, np.ndarray], run) -> list[np.ndarray]:
    """Run each step by `run(kernel, buffers by parameter name)` on flat arrays; returns the shaped outputs."""
    memory = {name: np.ascontiguousarray(v).reshape(-1) for name, v in (*zip(program.inputs, args, strict=True), *constants.items())}
    for value in program.values.values():
        if value.packing:
            memory[value.name] = pack(memory[value.packing.of], value.packing)
    for step in program.steps:
        for name in step.writes():
            type = program.values[name].type
            memory[name] = np.full(type.nbytes, 0xFF, np.uint8).view(type.dtype.numpy)  # what is never written must not look right
        params = [p.name for p in step.kernel.params if p.role != "scratch"]
        run(step.kernel, dict(zip(params, (memory[a] for a in step.args))))
    return [memory[o].reshape(program.values[o].type.shape) for o in program.outputs]


