"""Two more schedules of plain stages, where a loop nest as written would walk memory across: transposes and sums down columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mlc.core import expr as ex
from mlc.core.dataclass import dataclass
from mlc.core.expr import Expr
from mlc.core.expr_text import checked_name
from mlc.core.text import Reader
from mlc.kernel.ir import Axis, Stage

# A tile of a transpose has at most so many rows and columns: they wait in registers.
TILE = 16
# Longer formulas would be written 16 times a tile; they read the transposed tile from scratch instead.
INLINE_WEIGHT = 12
# Bytes of output rows in a block of a transpose.
ROW_BLOCK = 512
# Through scratch: bytes of input rows in a block; and of both past the caches, where blocks are so small that a core still stores one while it
# turns the next; with registers narrower than a line there is no such gain, and memory likes several lines of a row. No more elements than this.
STAGED_BLOCK, FAR_BLOCK, LONGEST = 256, 128, 128
NARROW_FAR_ROWS, NARROW_FAR_BLOCK = 256, 512
# Where output rows are stored past the caches by whole lines, they are stored from registers, so many lines of a row at a time.
LINE, FAR_LINES = 64, 2
# Rows that are a multiple of so many bytes apart share so few cache sets that a tile's rows push each other out.
SET_PERIOD = 2048
# Up to so many stored elements of neighbouring lanes are interleaved in registers.
INTERLEAVED = 4
# Column sums keep their accumulators in L1, in so many bytes, and add so many rows at a time to them.
SWEEP_BYTES, SWEEP_ROWS = 12 * 1024, 4
# Past the caches, what combines by more than an addition is faster with whole rows, one by one, where their accumulators take no more than this.
FAR_BYTES, FAR_SWEEP_BYTES = 1 << 25, 48 * 1024
# A matrix smaller than this is summed column by column: it stays in cache.
SWEEP_FROM = 128 * 1024


@dataclass(frozen=True)
class TransposeSchedule:
    """Tiles of `height` steps of the axis `down` and `width` lanes of `axis`: what is loaded along `down` is turned in registers.
    `block` steps of `block_axis` (one of the two) are done before the other axis moves on. `staged` > 0: so many steps of the other
    axis at a time are turned into scratch, whose rows keep clear of each other's cache sets, and whole rows of it are stored by the
    stage's own expressions, which are written once."""

    down: str
    height: int
    axis: str
    width: int
    block_axis: str
    block: int
    staged: int = 0

    def text(self) -> str:
        names = [checked_name(n) for n in (self.down, self.axis, self.block_axis)]
        tiles = f"transpose {names[0]}:{self.height} {names[1]}:{self.width} in {names[2]}:{self.block}"
        return f"{tiles} staged {self.staged}" if self.staged else tiles


@dataclass(frozen=True)
class SweepSchedule:
    """A sum down columns: `block` columns (of the kept axis `axis`, in vectors of `width`) have their accumulators in scratch, and
    `rows` rows at a time are added to them. The order is that of a lane a column."""

    axis: str
    width: int
    rows: int
    block: int

    def text(self) -> str:
        return f"sweep {checked_name(self.axis)}:{self.width} rows:{self.rows} in {self.block}"


def read_transpose(reader: Reader) -> TransposeSchedule:
    """What `TransposeSchedule.text` wrote, behind its first word. Raises ParseError."""
    down, axis = _sized(reader), _sized(reader)
    reader.expect("in")
    return TransposeSchedule(*down, *axis, *_sized(reader), reader.integer() if reader.accept("staged") else 0)


def read_sweep(reader: Reader) -> SweepSchedule:
    """What `SweepSchedule.text` wrote, behind its first word. Raises ParseError."""
    axis, width = _sized(reader)
    reader.expect("rows")
    reader.expect(":")
    rows = reader.integer()
    reader.expect("in")
    return SweepSchedule(axis, width, rows, reader.integer())


def _sized(reader: Reader) -> tuple[str, int]:
    name = reader.take("name")
    reader.expect(":")
    return name, reader.integer()


# --------------------------------------------------------------------------- choices
def _turned_axis(stage: Stage, along: str) -> Axis | None:
    """The kept axis along which most of what jumps along `along` is contiguous."""
    found: dict[str, int] = {}
    extents = dict(stage.axes)
    for e in ex.topological([p.value for p in stage.puts]):
        if e.op == "load" and abs(e.attr[1].coefficient(along)) > 1:
            for name, factor in e.attr[1].terms:
                if factor == 1 and name in extents and name != along:
                    found[name] = found.get(name, 0) + 1
    best = max(found, key=lambda name: (found[name], extents[name]), default=None)
    return None if best is None else (best, extents[best])


def transpose_schedule(stage: Stage, lanes: int, weight: int, streamed: bool) -> TransposeSchedule | None:
    """Tiles for a map that reads something across; None where nothing is, or it is too narrow. `lanes`: of one register."""
    if stage.reduces or len(stage.axes) < 2 or any(abs(p.index.coefficient(stage.axes[-1][0])) != 1 for p in stage.puts):
        return None
    axis, columns = stage.axes[-1]
    turned = _turned_axis(stage, axis)
    side = min(TILE, lanes)
    if turned is None or side < 2 or min(columns, turned[1]) < max(4, side // 2):
        return None
    size = max(p.value.dtype.itemsize for p in stage.puts)
    def steps(nbytes: int) -> int:
        return max(side, min(LONGEST, nbytes // size))
    if streamed and weight <= INLINE_WEIGHT and side * size == LINE and _whole_lines(stage, axis):
        return TransposeSchedule(turned[0], side, axis, FAR_LINES * side, turned[0], -(-turned[1] // side) * side)
    if streamed or _rows_collide(stage, turned):
        far = (FAR_BLOCK, FAR_BLOCK) if lanes * size >= LINE else (NARROW_FAR_ROWS, NARROW_FAR_BLOCK)
        block, staged = far if streamed else (ROW_BLOCK, STAGED_BLOCK)
        return TransposeSchedule(turned[0], side, axis, side, axis, steps(block), steps(staged))
    return TransposeSchedule(turned[0], side, axis, side, axis, max(side, ROW_BLOCK // size), side if weight > INLINE_WEIGHT else 0)


def _whole_lines(stage: Stage, axis: str) -> bool:
    """Whether rows are stored in whole lines: they start where a line does."""
    return all((factor * p.value.dtype.itemsize) % LINE == 0 for p in stage.puts for name, factor in p.index.terms if name != axis)


def interleaved_axis(stage: Stage) -> str:
    """The axis to vectorise around a last axis of two to four steps that is read across: "" where that is no gain."""
    if stage.reduces or len(stage.axes) < 2 or not 2 <= stage.axes[-1][1] <= INTERLEAVED:
        return ""
    last, steps = stage.axes[-1]
    turned = _turned_axis(stage, last)
    if turned is None or turned[1] < 2 * TILE:
        return ""
    alike = all(p.index.coefficient(last) == 1 and p.index.coefficient(turned[0]) == steps and p.value.dtype.itemsize >= 4 for p in stage.puts)
    return turned[0] if alike else ""


def _rows_collide(stage: Stage, turned: Axis) -> bool:
    """Whether the rows of a tile lie in few cache sets, as stored or as loaded."""
    last, values = stage.axes[-1][0], [put.value for put in stage.puts]
    pitches = [put.index.coefficient(turned[0]) * put.value.dtype.itemsize for put in stage.puts]
    pitches += [e.attr[1].coefficient(last) * e.dtype.itemsize for e in ex.topological(values)
                if e.op == "load" and e.attr[1].coefficient(turned[0]) == 1]
    return turned[1] >= TILE and any(pitch and pitch % SET_PERIOD == 0 for pitch in pitches)


def sweep_schedule(stage: Stage, axis: Axis, width: int, levels: Callable[[int], int]) -> SweepSchedule | None:
    """Blocks of columns for a reduction whose lanes are the kept `axis`; None where whole columns do as well. `levels`: of partial sums."""
    name, columns = axis
    if len(stage.over) != 1 or not stage.axes or stage.axes[-1][0] != name or columns <= width or stage.over[0][1] < 4 * SWEEP_ROWS:
        return None
    size = sum(d.itemsize for r in stage.reduces for d in r.dtypes)
    streamed = max((e.dtype.itemsize for e in ex.topological(_values(stage)) if e.op == "load" and e.attr[1].coefficient(name) == 1), default=0)
    if streamed * columns * stage.over[0][1] < SWEEP_FROM:
        return None
    each = size * levels(stage.over[0][1])
    light = all(e.op in ("add", "mul") for r in stage.reduces for e in r.combine)
    if not light and streamed * math.prod(extent for _, extent in (*stage.axes, *stage.over)) >= FAR_BYTES and each * columns <= FAR_SWEEP_BYTES:
        return SweepSchedule(name, width, 1, -(-columns // width) * width)
    block = max(1, SWEEP_BYTES // each // width) * width
    # Blocks of equal size where there are several.
    pieces = -(-columns // block)
    return SweepSchedule(name, width, SWEEP_ROWS, -(-columns // pieces // width) * width)


def _values(stage: Stage) -> Sequence[Expr]:
    return [v for r in stage.reduces for v in r.values]

