"""Kernel + schedule -> loop IR. Every choice of order is made here, from the schedule, and written into the loops.

Reductions keep `width` lanes (or one lane a kept element), fold after some `CHUNK` additions into the next level (`schedule.chunk_steps`), and
end in a tree, so the error grows with the logarithm of the length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.expr import Expr
from mlc.kernel.attention import AttendSchedule
from mlc.kernel.axes import place_axis, rebase
from mlc.kernel.ir import Attend, Axis, Dot, Kernel, Put, Stage
from mlc.kernel.library import in_library
from mlc.kernel.plain import SweepSchedule, TransposeSchedule
from mlc.kernel.schedule import Schedule, StageSchedule, additions, chunk_steps
from mlc.kernel.tiling import TileSchedule
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, LoopKernel, Stmt, Store
from mlc.loop.lower_attention import AttentionLoops
from mlc.loop.lower_beside import BesideLoops
from mlc.loop.lower_dot import DotLoops
from mlc.loop.lower_plain import Swept, Transposed, cut
from mlc.loop.lower_words import WordLoops, look
from mlc.loop.positions import later

Rebase = Mapping[str, Affine]


class _Reducer:
    """Emits the accumulation of one stage's reductions over its `over` axes."""

    def __init__(self, stage: Stage, lanes: int, vector: Axis | None, fresh: Callable[[str], str]):
        self.stage, self.lanes, self.vector, self.fresh = stage, lanes, vector, fresh
        nest = [a for a in stage.over if a is not vector] + [a for a in stage.over if a is vector]
        self.added = [later(r, nest) for r in stage.reduces]

    def declare(self, suffix: str) -> list[Stmt]:
        return [Decl(name + suffix, d, self.lanes, i)
                for r in self.stage.reduces for name, d, i in zip(r.names, r.dtypes, r.identity)]

    def combine(self, suffix: str, values: Sequence[Sequence[Expr]], how: Sequence[Sequence[Expr]]) -> Assign:
        """acc = combine(acc, value) for every reduction at once, by the expressions `how`."""
        names, results = [], []
        for r, fed, combine in zip(self.stage.reduces, values, how):
            env = {f"a.{k}": ex.var(n + suffix, d) for k, (n, d) in enumerate(zip(r.names, r.dtypes))}
            env.update((f"b.{k}", v) for k, v in enumerate(fed))
            results.extend(ex.substitute(combine, lambda e, env=env: env.get(e.attr) if e.op == "var" else None))
            names.extend(n + suffix for n in r.names)
        return Assign(tuple(names), tuple(results))

    def merge(self, suffix: str, part: str) -> Assign:
        return self.combine(suffix, [[ex.var(n + part, d) for n, d in zip(r.names, r.dtypes)] for r in self.stage.reduces],
                            [r.combine for r in self.stage.reduces])

    def accumulate(self, suffix: str, axes: Sequence[Axis], at: dict[str, Affine]) -> list[Stmt]:
        """Statements that add everything over `axes` (outer first) into the accumulators `suffix`."""
        if not axes:
            return self.point(suffix, at)
        (name, extent), rest = axes[0], axes[1:]
        step = self.lanes if self.vector and name == self.vector[0] else 1
        return self._span(suffix, name, extent, step, rest, at, Affine())

    def _steps(self, axis: Axis) -> int:
        """Steps of the accumulators along an axis."""
        return -(-axis[1] // self.lanes) if self.vector and axis[0] == self.vector[0] else axis[1]

    def point(self, suffix: str, at: dict[str, Affine]) -> list[Stmt]:
        """What happens at one point (one block of lanes): values that are stored are named first, then stored and combined."""
        named: dict[Expr, Expr] = {}
        found: list[Stmt] = []
        for put, value in zip(self.stage.puts, rebase([p.value for p in self.stage.puts], at)):
            if value.args and value not in named:
                name = self.fresh("e")
                found.append(Decl(name, value.dtype, self.lanes, value))
                named[value] = ex.var(name, value.dtype)
            found.append(Store(put.target, put.index.substitute(at), named.get(value, value)))
        values = [ex.replace(rebase(r.values, at), named) for r in self.stage.reduces]
        return [*found, self.combine(suffix, values, self.added)]

    def _span(self, suffix: str, name: str, extent: int, step: int, rest: Sequence[Axis], at: dict[str, Affine], start: Affine) -> list[Stmt]:
        """One axis from `start` on, in chunks when it and what is inside of it are long."""
        block = step * chunk_steps(-(-extent // step), additions([self._steps(axis) for axis in rest]))
        if not block:
            var = self.fresh(name)
            inner = self.accumulate(suffix, rest, {**at, name: start + Affine(0, ((var, 1),))})
            kind = "vector" if step > 1 else "serial"
            return [For(var, extent, tuple(inner), kind, step if step > 1 else 1)] if extent else []
        outer, part = self.fresh(name), self.fresh(".p")
        found: list[Stmt] = []
        for count, size, base in ((extent // block, block, Affine(0, ((outer, block),))), (1, extent % block, Affine(extent - extent % block))):
            if not size:
                continue
            body = [*self.declare(part), *self._span(part, name, size, step, rest, at, start + base), self.merge(suffix, part)]
            found.append(For(outer if size == block else self.fresh(name), count, tuple(body)))
        return found


def _stores(puts: Sequence[Put], at: Rebase) -> list[Stmt]:
    if not puts:
        return []
    values = rebase([p.value for p in puts], at)
    return [Store(p.target, p.index.substitute(at), v) for p, v in zip(puts, values)]


def _with_names(stage: Stage, suffix: str) -> Stage:
    """The stage with other names for its totals and what it binds."""
    names = {n for r in stage.reduces for n in r.names} | {f.name for f in stage.finish if not isinstance(f, Put)}

    def moved(value: Expr) -> Expr:
        return ex.substitute([value], lambda e: ex.var(e.attr + suffix, e.dtype) if e.op == "var" and e.attr in names else None)[0]
    reduces = tuple(replace(r, names=tuple(n + suffix for n in r.names)) for r in stage.reduces)
    finish = tuple(replace(f, value=moved(f.value)) if isinstance(f, Put) else replace(f, name=f.name + suffix, value=moved(f.value))
                   for f in stage.finish)
    return replace(stage, reduces=reduces, finish=finish)


def _side_by_side(copies: Sequence[Sequence[Stmt]]) -> list[Stmt]:
    """Bodies that differ in names and places only, as one: the first statement of each, the second of each; loops around all."""
    found: list[Stmt] = []
    for same in zip(*copies, strict=True):
        loops = isinstance(same[0], For)
        found += [replace(same[0], body=tuple(_side_by_side([loop.body for loop in same])))] if loops else same
    return found


class _Lowering:
    def __init__(self, kernel: Kernel, schedule: Schedule):
        self.kernel, self.schedule = kernel, schedule
        self.taken: dict[str, int] = {}
        self.scratch: list[Buffer] = []

    def fresh(self, base: str) -> str:
        """A new name: x, x.1, x.2, ..."""
        count = self.taken.get(base, 0)
        self.taken[base] = count + 1
        return base if not count else f"{base}.{count}"

    def loops(self, axes: Sequence[Axis], at: dict[str, Affine], body: Callable[[dict[str, Affine]], list[Stmt]],
              vector: str = "", width: int = 1) -> list[Stmt]:
        """Nested loops over `axes`, outer first; the axis `vector` runs in lanes and is innermost whatever its place."""
        ordered = [a for a in axes if a[0] != vector] + [a for a in axes if a[0] == vector]
        names = [(self.fresh(name), name, extent) for name, extent in ordered]
        inner = body({**at, **{name: Affine(0, ((var, 1),)) for var, name, _ in names}})
        for var, name, extent in reversed(names):
            kind = ("vector", width) if name == vector and width > 1 else ("serial", 1)
            inner = [For(var, extent, tuple(inner), *kind)]
        return inner

    # ----------------------------------------------------------------- stages
    def stage(self, stage: Stage, plan: StageSchedule | TransposeSchedule | SweepSchedule, row_width: int) -> list[Stmt]:
        if row_width > 1:
            return self._kept(stage, "", 1, row_width)
        if isinstance(plan, TransposeSchedule):
            tiles = Transposed(stage, plan, self.fresh, self.buffer_name)
            self.scratch.extend(tiles.scratch)
            return self.loops([a for a in stage.axes if a[0] not in (plan.down, plan.axis)], {}, tiles.run)
        if isinstance(plan, SweepSchedule):
            return self._swept(stage, plan)
        if plan.around in dict(stage.axes):
            return self._around(stage, plan)
        if not stage.reduces:
            return [*self._kept(stage, plan.axis, plan.width, 1)]
        if any(name == plan.axis for name, _ in stage.over):
            return self._lanes_over(stage, plan)
        return self._kept(stage, plan.axis, plan.width, 1)

    def _finish(self, stage: Stage, at: Rebase, lanes: int) -> list[Stmt]:
        found: list[Stmt] = []
        for action in stage.finish:
            if isinstance(action, Put):
                found.extend(_stores([action], at))
            else:
                (value,) = rebase([action.value], at)
                found.append(Decl(action.name, value.dtype, lanes, value))
        return found

    def _kept(self, stage: Stage, vector: str, width: int, row_width: int) -> list[Stmt]:
        """One lane (or one scalar) for each kept element; the reduced axes are serial inside."""
        lanes = row_width if row_width > 1 else width if vector else 1

        def body(at: dict[str, Affine]) -> list[Stmt]:
            if not stage.reduces:
                return [*_stores(stage.puts, at), *self._finish(stage, at, lanes)]
            reducer = _Reducer(stage, lanes, None, self.fresh)
            return [*reducer.declare(""), *reducer.accumulate("", stage.over, at), *self._finish(stage, at, lanes)]
        return self.loops(stage.axes, {}, body, vector, width)

    def _around(self, stage: Stage, plan: StageSchedule) -> list[Stmt]:
        """Lanes around an unrolled axis."""
        def body(at: dict[str, Affine]) -> list[Stmt]:
            var = self.fresh(plan.around)
            return [For(var, dict(stage.axes)[plan.around], tuple(_stores(stage.puts, {**at, plan.around: Affine(0, ((var, 1),))})), "unroll")]
        return self.loops([a for a in stage.axes if a[0] != plan.around], {}, body, plan.axis, plan.width)

    def _lanes_over(self, stage: Stage, plan: StageSchedule) -> list[Stmt]:
        """Lanes run along a reduced axis: accumulate, fold the lanes, finish, for each kept element."""
        vector = next(a for a in stage.over if a[0] == plan.axis)
        over = [a for a in stage.over if a is not vector] + [vector]
        lanes = plan.width

        def body(at: dict[str, Affine]) -> list[Stmt]:
            reducer = _Reducer(stage, lanes, vector, self.fresh)
            found = [*reducer.declare(".v"), *reducer.accumulate(".v", over, at)]
            for r in stage.reduces:
                found.append(Fold(r.names, tuple(n + ".v" for n in r.names), r.combine))
            return [*found, *self._finish(stage, at, 1)]
        return self.loops(stage.axes, {}, body)

    def _swept(self, stage: Stage, plan: SweepSchedule) -> list[Stmt]:
        """Rows stream by accumulators in scratch; columns are the lanes."""
        reducer = _Reducer(stage, plan.width, None, self.fresh)
        sweep = Swept(stage, plan, self.fresh, self.buffer_name, reducer.point, reducer.merge, lambda at: self._finish(stage, at, plan.width))
        found = self.loops([a for a in stage.axes if a[0] != plan.axis], {}, sweep.run)
        self.scratch.extend(sweep.scratch)
        return found

    # ----------------------------------------------------------------- contraction
    def dot(self, dot: Dot, plan: TileSchedule) -> list[Stmt]:
        loops = (WordLoops if plan.parts else BesideLoops if plan.beside else DotLoops)(dot, plan, self.fresh, self.buffer_name)
        self.scratch.extend(loops.scratch)
        return loops.run()

    # ----------------------------------------------------------------- attention
    def attend(self, stage: Attend, plan: AttendSchedule) -> list[Stmt]:
        """Blocks of queries."""
        loops = AttentionLoops(stage, plan, self.fresh, self.buffer_name)
        self.scratch.extend(loops.scratch)
        return loops.run("serial")

    def buffer_name(self, base: str) -> str:
        """A fresh name that no parameter has."""
        name = self.fresh(base)
        while any(p.name == name for p in self.kernel.params):
            name = self.fresh(base)
        return name

    # ----------------------------------------------------------------- the whole
    def run(self) -> tuple[Stmt, ...]:
        stages, plans, parallel = self.kernel.stages, self.schedule.stages, self.schedule.parallel
        body = [stmt for stage, plan in zip(stages, plans) if isinstance(stage, Dot) and plan.parts and stage.dtype.is_float
                for stmt in look(stage, self.kernel.rows, plan.width, self.fresh)]
        if not parallel:
            return (*body, *self.nest(stages, plans, self.kernel.rows))
        if len(parallel) == 1:
            return (*body, *self.in_blocks(stages, plans, self.kernel.rows, *parallel[0]))
        for stage, plan, (axis, block) in zip(stages, plans, parallel, strict=True):
            body += self.in_blocks([stage], [plan], (), axis, block) if axis else self.nest([stage], [plan], ())
        return tuple(body)

    def nest(self, stages: Sequence[Stage | Dot | Attend], plans: Sequence, rows: Sequence[Axis]) -> list[Stmt]:
        """Stages one after the other, in loops over the rows."""
        if rows and rows[-1][0] == self.schedule.jam[0]:
            *rows, (axis, extent) = rows
            body = cut(self.fresh, axis, extent, self.schedule.jam[1], Affine(),
                       lambda start, count: self.jammed(stages[0], plans[0], axis, start, count))
        else:
            body = [stmt for stage, plan in zip(stages, plans) for stmt in self.whole(stage, plan)]
        for name, extent in reversed(rows):
            kind = ("vector", self.schedule.row_width) if name == self.schedule.row_vector else ("serial", 1)
            body = [For(name, extent, tuple(body), *kind)]
        return body

    def whole(self, stage: Stage | Dot | Attend, plan: object) -> list[Stmt]:
        """A stage of any kind."""
        if isinstance(stage, Dot):
            return self.dot(stage, plan)
        return self.attend(stage, plan) if isinstance(stage, Attend) else self.stage(stage, plan, self.schedule.row_width)

    def jammed(self, stage: Stage, plan: StageSchedule, axis: str, start: Affine, count: int) -> list[Stmt]:
        """A sum of `count` rows side by side: each in loops of the same names, by variables of its own."""
        suffix, taken, copies = self.fresh(".r"), self.taken, []
        for q in range(count):
            self.taken = dict(taken)
            copies.append(self.stage(_with_names(place_axis(stage, axis, start + Affine(q), 0), f"{suffix}{q}"), plan, 1))
        return _side_by_side(copies)

    def in_blocks(self, stages: Sequence[Stage | Dot | Attend], plans: Sequence, rows: Sequence[Axis], axis: str, block: int) -> list[Stmt]:
        """The same, cut along an axis: a parallel loop over blocks of it, outside of all others, then what is left of the last block."""
        extent = dict([*rows, *stages[0].axes])[axis]
        var = self.fresh(f"{axis}.b")
        # Iteration by iteration there is no axis left, but that a register tile has its own.
        keeps = block > 1 or any(not isinstance(stage, Stage) and axis in dict(stage.axes) for stage in stages)

        def part(place: Affine, size: int) -> tuple[Stmt, ...]:
            left = [(name, size if name == axis else e) for name, e in rows if name != axis or keeps]
            return tuple(self.nest([place_axis(stage, axis, place, size if keeps else 0) for stage in stages], plans, left))
        found: list[Stmt] = [For(var, extent // block, part(Affine(0, ((var, block),)), block), "parallel")]
        if extent % block:
            found.append(For(self.fresh(f"{axis}.b"), 1, part(Affine(extent - extent % block), extent % block)))
        return found


def lower(kernel: Kernel, schedule: Schedule) -> LoopKernel:
    """The loops of a kernel under a schedule. Buffers: in, out, scratch, in the kernel's order, then scratch of the lowering's own."""
    # Without rows, scratch is what one stage leaves to the next: all threads have the same where stages are cut.
    role = {"scratch": "shared"} if schedule.parallel and not kernel.rows else {}
    buffers = tuple(Buffer(p.name, p.type.dtype, p.type.size, role.get(p.role, p.role)) for p in kernel.params)
    lowering = _Lowering(kernel, schedule)
    body = lowering.run()
    return LoopKernel(kernel.name, (*buffers, *lowering.scratch), body, kernel.may_alias, frozenset(schedule.streams), in_library(kernel, schedule))


