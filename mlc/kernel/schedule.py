"""Schedules are data: which axis is the vector, how many lanes accumulate, how large the register tile is.

`schedule_for` is the one place that chooses them. A choice is a function of the kernel (shapes and dtypes), the target and
the tuning record only, so the same inputs give the same bits on every run and with any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from mlc.core import expr as ex
from mlc.core import options
from mlc.core.dataclass import dataclass, replace
from mlc.core.dtype import DType
from mlc.core.expr import Expr
from mlc.core.expr_text import checked_buffer, checked_name
from mlc.core.text import Reader
from mlc.kernel.attention import AttendSchedule, attend_schedule, read_attend
from mlc.kernel.axes import stage_parts
from mlc.kernel.ir import Attend, Axis, Dot, Kernel, Stage
from mlc.kernel.parallel import Parallel, parallel_axes
from mlc.kernel.plain import LINE, SweepSchedule, TransposeSchedule, interleaved_axis, read_sweep, read_transpose, sweep_schedule, transpose_schedule
from mlc.kernel.tiling import TileSchedule, expect_steps, read_tile, tile_schedule
from mlc.kernel.words import INTEGERS, looked_at

# A partial sum takes at most this many steps per lane before it is added to the next level: the error grows with the log.
CHUNK = 64
# From so many points on a stage is worth the code of four vectors at a time.
MANY_POINTS = 1 << 15
# LLVM takes up to twice the time for four vectors of so long a formula that it takes for two: only where there are very many points.
LONG_FORMULA, VERY_MANY_POINTS = 96, 1 << 22
# Outputs from this size on don't stay in cache until someone reads them: they are stored past it, which saves reading them first.
# The option `stream_kb` says it, so that small programs can be made to do it too; this is its default.
STREAM_BYTES = 1 << 25
# So many vectors that sums are kept in leave registers for what is added.
MOST_SUMS = 16
# Rows this short are run `width` at a time, one row a lane.
SHORT_ROW = 8
# So many rows of this many bytes, in an input of that many, are read side by side: memory answers four streams sooner than one.
JAM_ROWS, JAM_ROW_BYTES, JAM_BYTES = 4, 1 << 12, 1 << 18


@dataclass(frozen=True)
class StageSchedule:
    """vectorize `axis` by `width` lanes. `axis` "" means that the stage's own loops are serial: nothing to vectorize, or rows are
    the lanes (`Schedule.row_vector`). `around`: the short axis that is unrolled inside, so that what its steps store is interleaved."""

    axis: str
    width: int
    around: str = ""

    def text(self) -> str:
        if self.axis:
            return f"vectorize {checked_name(self.axis)}:{self.width}" + (f" around {checked_name(self.around)}" if self.around else "")
        return "serial" if self.width == 1 else f"serial:{self.width}"


@dataclass(frozen=True)
class Schedule:
    """One entry a stage; `row_vector` is the row axis whose iterations are lanes, if rows are short. `jam` is the last row axis and how many
    of its iterations run side by side, statement by statement, if rows are long.

    `parallel` is what is cut into blocks that run in any order, see `mlc.kernel.parallel`: (axis, iterations in a block) of the kernel if it has
    rows or one stage, else of each stage, ("", 0) for one that is not cut; () if nothing is.
    `streams` are outputs so large that they are stored past the caches.
    """

    stages: tuple[StageSchedule | TransposeSchedule | SweepSchedule | TileSchedule | AttendSchedule, ...]
    row_vector: str = ""
    row_width: int = 1
    parallel: tuple[Parallel, ...] = ()
    streams: tuple[str, ...] = ()
    jam: tuple[str, int] = ("", 1)

    def text(self) -> str:
        """As printed behind a kernel: `schedule { vectorize j0:16, tile m:8 n:48 k:1024 by 16, chunk 64 }`, an entry a stage; first come
        large outputs, as `stream %o0`, what is parallel, as `parallel j0:4096 none j0:4096`, rows as lanes, as `vectorize rows i0:16`, and rows
        side by side, as `jam rows i0:4`.
        `parse_schedule` reads it back. Raises ValueError if a name cannot be written."""
        if not self.row_vector and self.row_width != 1:
            raise ValueError(f"{self.row_width} rows are lanes, but no row axis is named")
        blocks = [f"{checked_name(axis)}:{size}" if axis else "none" for axis, size in self.parallel]
        rows = [f"stream {' '.join(f'%{checked_buffer(name)}' for name in self.streams)}"] if self.streams else []
        rows += [f"parallel {' '.join(blocks)}"] if blocks else []
        rows += [f"vectorize rows {checked_name(self.row_vector)}:{self.row_width}"] if self.row_vector else []
        rows += [f"jam rows {checked_name(self.jam[0])}:{self.jam[1]}"] if self.jam[0] else []
        return "schedule { " + ", ".join([*rows, *(stage.text() for stage in self.stages), f"chunk {CHUNK}"]) + " }"


def parse_schedule(text: str) -> Schedule:
    """Read what `Schedule.text` wrote. Raises ParseError with line and column."""
    reader = Reader(text, "schedule")
    found = read_schedule(reader)
    reader.end()
    return found


def read_schedule(reader: Reader) -> Schedule:
    """`schedule { ... }`. Raises ParseError, also for another order of summation than this version's."""
    reader.expect("schedule")
    reader.expect("{")
    stages: list[StageSchedule | TransposeSchedule | SweepSchedule | TileSchedule | AttendSchedule] = []
    rows = ("", 1)
    streams = _read_streams(reader) if reader.accept("stream") else ()
    parallel = _read_parallel(reader) if reader.accept("parallel") else ()
    jam = _read_jam(reader) if reader.peek() == "jam" else ("", 1)
    while not reader.accept("chunk"):
        if reader.accept("tile"):
            stages.append(read_tile(reader))
        elif reader.accept("transpose"):
            stages.append(read_transpose(reader))
        elif reader.accept("sweep"):
            stages.append(read_sweep(reader))
        elif reader.accept("attend"):
            stages.append(read_attend(reader))
        elif reader.accept("serial"):
            stages.append(StageSchedule("", reader.integer() if reader.accept(":") else 1))
        else:
            reader.expect("vectorize")
            # `rows` is a word only where an axis follows, so an axis may be called rows.
            of_rows = not stages and not rows[0] and reader.peek() == "rows" and reader.tokens[reader.at + 1][1] != ":" and bool(reader.next())
            axis = reader.take("name")
            reader.expect(":")
            width = reader.integer()
            if of_rows:
                rows = (axis, width)
            else:
                stages.append(StageSchedule(axis, width, reader.take("name") if reader.accept("around") else ""))
        reader.expect(",")
    expect_steps(reader, CHUNK)
    reader.expect("}")
    return Schedule(tuple(stages), *rows, parallel, streams, jam)


def _read_jam(reader: Reader) -> tuple[str, int]:
    reader.expect("jam")
    reader.expect("rows")
    axis = reader.take("name")
    reader.expect(":")
    count = reader.integer()
    reader.expect(",")
    return axis, count


def _read_streams(reader: Reader) -> tuple[str, ...]:
    names = [reader.take("value")[1:]]
    while not reader.accept(","):
        names.append(reader.take("value")[1:])
    return tuple(names)


def _read_parallel(reader: Reader) -> tuple[Parallel, ...]:
    found: list[Parallel] = []
    while not found or reader.peek() != ",":
        axis = reader.take("name")
        if axis == "none" and reader.peek() != ":":
            found.append(("", 0))
            continue
        reader.expect(":")
        found.append((axis, reader.integer()))
    reader.expect(",")
    return tuple(found)


# --------------------------------------------------------------------------- the order of a sum
def chunk_steps(steps: int, inside: int) -> int:
    """How many steps of a reduced axis, each of which adds `inside` times, make one partial sum; 0: the axis is added up straight."""
    if steps <= 1 or steps * inside <= 2 * CHUNK:
        return 0
    block = max(1, CHUNK // inside)
    while steps > CHUNK * block:
        block *= CHUNK
    return block


def additions(steps: Sequence[int]) -> int:
    """How often a nest over reduced axes of these steps (outer first) adds to its accumulators: once a point, or once a partial sum."""
    inside = 1
    for count in reversed(steps):
        block = chunk_steps(count, inside)
        inside = -(-count // block) if block else count * inside
    return inside


def levels_of_sum(steps: int) -> int:
    """How many levels of partial sums an axis of so many steps has, the total included."""
    levels = 1
    while steps := chunk_steps(steps, 1):
        levels += 1
    return levels


# --------------------------------------------------------------------------- choices
def _lanes(exprs: Sequence[Expr], vector_bytes: int) -> int:
    """Lanes that fill one register of the widest type in the expressions. Positions that are narrowed are counted in the narrow type."""
    narrowed = {e: ex.const(0, e.dtype) for e in ex.topological(exprs) if e.op == "convert" and e.dtype is ex.dt.i32 and ex.affine_of(e.args[0])}
    found = ex.topological(ex.replace(exprs, narrowed))
    widest = max((e.dtype.itemsize if not e.dtype.is_half else 4 for e in found), default=4)
    return max(2, vector_bytes // widest)


def _weight(exprs: Sequence[Expr]) -> int:
    return sum(1 for e in ex.topological(exprs, rare=False) if e.args)


def _expressions(stage: Stage) -> list[Expr]:
    return [v for r in stage.reduces for v in r.values] + [p.value for p in stage.puts]


def _unit_loads(exprs: Sequence[Expr], axis: str) -> int:
    """Loads contiguous along the axis minus strided ones: what vectorising it gains."""
    total = 0
    for e in ex.topological(exprs):
        if e.op == "load":
            step = e.attr[1].coefficient(axis)
            total += 1 if step in (1, -1) else -1 if step else 0
    return total


def _vector_axis(stage: Stage) -> Axis | None:
    """Stores want the last kept axis contiguous; a reduction takes whichever of its axes streams best."""
    exprs = _expressions(stage)
    if not stage.reduces:
        return stage.axes[-1] if stage.axes else None
    candidates = ([stage.axes[-1]] if stage.axes else []) + list(reversed(stage.over))
    if not candidates:
        return None
    return max(candidates, key=lambda a: (a[1] >= SHORT_ROW, _unit_loads(exprs, a[0]), a[1] >= 4 * SHORT_ROW))


def _stage_schedule(stage: Stage, vector_bytes: int, rows: int, streamed: bool) -> StageSchedule | TransposeSchedule | SweepSchedule:
    axis = _vector_axis(stage)
    if axis is None:
        return StageSchedule("", 1)
    exprs = _expressions(stage)
    lanes, weight = _lanes(exprs, vector_bytes), _weight(exprs)
    wide = 4 if weight <= 8 else 2 if weight <= 24 else 1
    # A long formula waits for itself: several vectors at once hide that, and cost code, so only where there is much to do.
    points = rows * math.prod(extent for _, extent in (*stage.axes, *stage.over))
    much, slow = points >= MANY_POINTS, weight >= LONG_FORMULA and points < VERY_MANY_POINTS
    if weight > 24 or (stage.reduces and much):
        wide = 1 if not much else 2 if slow else 4
    elif not stage.reduces:
        wide = min(wide, 2)
    if any(len(r.names) > 1 for r in stage.reduces):
        wide = 4 if much else 1
    while wide > 1 and (lanes * wide > 2 * axis[1] or wide * len(stage.reduces) > MOST_SUMS):
        wide //= 2
    if stage.reduces:
        swept = sweep_schedule(stage, axis, lanes * wide, levels_of_sum)
        return swept or StageSchedule(axis[0], lanes * wide)
    interleaved = interleaved_axis(stage)
    if interleaved:
        return StageSchedule(interleaved, lanes, axis[0])
    return transpose_schedule(stage, lanes, weight, streamed) or StageSchedule(axis[0], lanes * wide)


def _short_rows(kernel: Kernel) -> bool:
    """Every stage is short, there are many rows, and nothing lives in row scratch."""
    if not kernel.rows or kernel.rows[-1][1] < 2 * SHORT_ROW or any(p.role == "scratch" for p in kernel.params):
        return False
    for stage in kernel.stages:
        if isinstance(stage, (Dot, Attend)):
            return False
        size = 1
        for _, extent in (*stage.axes, *stage.over):
            size *= extent
        if size >= SHORT_ROW:
            return False
    return True


def schedule_for(kernel: Kernel, vector_bytes: int, registers: int, db: Mapping[Kernel, Schedule] | None = None,
                 words: Collection[DType] = (), matrices: Collection[DType] = ()) -> Schedule:
    """The schedule of a kernel for a target with `registers` vectors of `vector_bytes`; a tuning record in `db` wins. `words`: the parts of
    words that it multiplies at once; `matrices`: those that matrix registers multiply."""
    if db and kernel in db:
        return db[kernel]
    found = _in_one_piece(kernel, vector_bytes, registers, words, matrices)
    whole = (found.row_vector, found.row_width) if found.row_vector else found.jam
    return replace(found, parallel=parallel_axes(kernel, found.stages, found.row_vector, whole))


def _streams(kernel: Kernel) -> tuple[str, ...]:
    """Outputs of plain stages that are far larger than the cache and that the kernel doesn't read again."""
    if any(isinstance(s, (Dot, Attend)) for s in kernel.stages):
        return ()
    large = [p for p in kernel.params if p.role == "out" and p.type.nbytes >= int(options.get("stream_kb")) << 10]
    if not large:
        return ()
    read = {e.attr[0] for s in kernel.stages for e in ex.topological(stage_parts(s)[0]) if e.op == "load"}
    return tuple(p.name for p in large if p.name not in read)


def _jams(kernel: Kernel, vector_bytes: int) -> bool:
    """A light sum of long rows of one or two inputs, on a CPU whose prefetchers are all that asks ahead (`mlc.codegen.ahead`)."""
    if vector_bytes >= LINE or len(kernel.stages) > 1 or not kernel.rows or not isinstance(kernel.stages[0], Stage):
        return False
    (stage,), (axis, count) = kernel.stages, kernel.rows[-1]
    if stage.axes or stage.puts or len(stage.over) != 1 or any(len(r.names) > 1 for r in stage.reduces) or count < 2 * JAM_ROWS:
        return False
    exprs = _expressions(stage)
    (name, extent), loads = stage.over[0], [e for e in ex.topological(exprs) if e.op == "load"]
    sizes = [extent * e.dtype.itemsize for e in loads if e.attr[1].coefficient(axis)]
    side_by_side = all(e.attr[1].coefficient(name) == 1 for e in loads) and 1 <= len(sizes) <= 2 and _weight(exprs) <= 8
    return side_by_side and min(sizes) >= JAM_ROW_BYTES and min(sizes) * count >= JAM_BYTES


def _in_one_piece(kernel: Kernel, vector_bytes: int, registers: int, words: Collection[DType], matrices: Collection[DType]) -> Schedule:
    def tiled(dot: Dot) -> TileSchedule:
        every = looked_at(kernel, dot)
        return tile_schedule(dot, vector_bytes, registers, *(found if every else INTEGERS & set(found) for found in (words, matrices)))
    streams = _streams(kernel)
    if _short_rows(kernel):
        exprs = [e for s in kernel.stages for e in _expressions(s)]
        return Schedule(tuple(StageSchedule("", 1) for _ in kernel.stages), kernel.rows[-1][0], _lanes(exprs, vector_bytes))
    if _jams(kernel, vector_bytes):
        (stage,) = kernel.stages
        plan = StageSchedule(stage.over[0][0], 2 * _lanes(_expressions(stage), vector_bytes))
        return Schedule((plan,), streams=streams, jam=(kernel.rows[-1][0], JAM_ROWS))
    return Schedule(tuple(
        tiled(s) if isinstance(s, Dot)
        else attend_schedule(s, vector_bytes, registers) if isinstance(s, Attend)
        else _stage_schedule(s, vector_bytes, math.prod(e for _, e in kernel.rows), bool(streams)) for s in kernel.stages), streams=streams)
