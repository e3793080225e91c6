"""Schedules of contractions: how large the register tile is, what is copied first, how deep a partial sum goes.

A choice is a function of the contraction (shapes, dtypes, strides) and the target. The loops around the tile are those of BLIS where
they were measured to help: panels of n columns outside, tiles of m rows inside, the panel of b copied where it would not stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dataclass import dataclass, replace
from mlc.core.dtype import DType, parse_dtype
from mlc.core.expr import Expr
from mlc.core.text import Reader
from mlc.kernel.ir import Dot, Kernel
from mlc.kernel.words import BLOCK, MATRIX, copies_rows, matrix_parts, per_word, reads_words, word_parts, worth_words

# From so many flops on a tile is worth any code.
MANY_FLOPS = 1 << 33
# A last panel has tiles of its own height where they take less than this part of the time.
REST_GAIN = 0.9
# The k loop of a contraction keeps its accumulators for at most this many steps, then they are added to those of the steps before.
DOT_CHUNK = 1024
# An epilogue of more instructions than this runs in a loop over the tile's sums, instead of once for every register.
LIGHT_EPILOGUE = 6
# From so many bytes on, a right operand that many rows use is copied panel by panel: its rows lie on too many pages.
PACK_BYTES, PACK_ROWS, PACK_ROWS_ALIASED = 1 << 20, 256, 24
# A row of a panel of narrower vectors than a line is one line, which nothing fetches ahead: copied from so many bytes on, for so many rows.
NARROW_PACK_BYTES, NARROW_PACK_ROWS = 1 << 16, 32
# It is asked for so many rows before it is copied.
NARROW_ASK = 8
# Among so many columns there are panels enough that one is copied beside another. Where more tiles pass a panel its copying takes little time.
BESIDE_COLUMNS, BESIDE_TILES = 256, 32
# So much of a panel stays in L1, and of a matrix in L2.
L1_BYTES, L2_BYTES, L2_SETS, LINE = 32 * 1024, 1 << 20, 1024, 64
# Cycles that a step of k waits for its line of a, where each has another and all of them are more than L1.
LINE_CYCLES = 3.0
# Half of the cycles that a load takes where another thread shares the core; loads then come on top of fmas (wide vectors, measured).
SHARED_LOAD = 0.25
# Panels that are copied together: what of L2 they may take beside the rows that pass, and how many pay.
GROUP_BYTES, MOST_GROUPED = L2_BYTES // 2, 4
# On CPUs with narrow vectors L2 is smaller. Where those panels would fill it more pay, from L3, as long as threads have so many groups to share.
NARROW_L2_BYTES, NARROW_GROUPED, NARROW_GROUPS = 1 << 19, 16, 8
# Vectors of so many bytes load and store under masks.
MASKED_BYTES = 64
# Few rows stream the right operand: so many rows of it a pass, and so many columns whose sums stay in L1.
STREAM_ROWS, STREAM_COLUMNS, STREAM_LEAST = 8, 2048, 128


@dataclass(frozen=True)
class TileSchedule:
    """The register tile of a contraction: m x n accumulators in vectors of `width`.

    `pack` names the operands that are copied first: b a panel of n columns, a m rows. `staged`: the sums go to scratch, and a loop over
    it stores what follows from them. `stream` > 0: no tile, but sums of m rows and n columns in scratch, to which so many steps of k
    are added a pass, so that b is read once and in order. `parts`: words of several steps of k are multiplied, see `mlc.kernel.words`.
    `rest`: the rows of tiles in a last panel of at most so many columns. `group`: so many panels are copied at once, at most, so that
    rows of a that come from beyond L2, or are copied, pass less often. `ask` > 0: rows of b are asked for so many rows before they are copied.
    `beside`: panels are copied while others are multiplied.
    `block` > 0: words are added up in blocks of so many, as matrix registers do.
    """

    m: int
    n: int
    width: int
    stream: int = 0
    pack: str = ""
    staged: bool = False
    parts: tuple[DType, ...] = ()
    rest: tuple[int, ...] = ()
    group: int = 1
    ask: int = 0
    beside: bool = False
    block: int = 0

    def text(self) -> str:
        rest = " rest m:{} n:{}".format(*self.rest) if self.rest else ""
        found = [f"tile m:{self.m} n:{self.n}{rest} k:{DOT_CHUNK} by {self.width}"]
        found += [f"stream {self.stream}"] if self.stream else []
        found += [f"pack {self.pack}"] if self.pack else []
        found += [f"group {self.group}"] if self.group > 1 else []
        found += [f"ask {self.ask}"] if self.ask else []
        found += ["beside"] * self.beside + ["staged"] * self.staged
        found += [f"parts {' '.join(p.name for p in self.parts)}"] * bool(self.parts)
        return " ".join(found + [f"block {self.block}"] * bool(self.block))


def read_tile(reader: Reader) -> TileSchedule:
    """What follows the word `tile`. Raises ParseError, also for another order of summation than this version's."""
    def sizes() -> tuple[int, ...]:
        found = []
        for name in "mn":
            reader.expect(name)
            reader.expect(":")
            found.append(reader.integer())
        return tuple(found)
    m, n = sizes()
    rest = sizes() if reader.accept("rest") else ()
    reader.expect("k")
    reader.expect(":")
    expect_steps(reader, DOT_CHUNK)
    reader.expect("by")
    width = reader.integer()
    stream = reader.integer() if reader.accept("stream") else 0
    pack = reader.take("name") if reader.accept("pack") else ""
    group = reader.integer() if reader.accept("group") else 1
    ask = reader.integer() if reader.accept("ask") else 0
    beside = reader.accept("beside")
    staged = reader.accept("staged")
    parts = tuple(parse_dtype(reader.take("name")) for _ in "ab") if reader.accept("parts") else ()
    block = reader.integer() if reader.accept("block") else 0
    return TileSchedule(m, n, width, stream, pack, staged, parts, rest, group, ask, beside, block)


def expect_steps(reader: Reader, steps: int) -> None:
    if reader.peek() != str(steps):
        reader.fail(f"a partial sum has {steps} steps, found {reader.peek() or 'the end'!r}")
    reader.next()


def dot_chunk(depth: int, parts: tuple[DType, ...] = (), block: int = 0) -> int:
    """Steps of k that make one partial sum of a contraction this deep; the last may have fewer. Depths that differ little share code.
    Words of `parts` are not split. Where blocks are added up by themselves there is one partial sum."""
    per = per_word(parts) if parts else 1
    if block:
        return -(-depth // per) * per
    return -(-depth // (max(1, -(-depth // DOT_CHUNK)) * per)) * per


# --------------------------------------------------------------------------- choices
def _loads(expr: Expr) -> list[Expr]:
    return [e for e in ex.topological([expr]) if e.op == "load"]


def _rows_collide(dot: Dot) -> bool:
    """Whether a panel of b has more rows than the sets of L2 that rows so far apart can lie in."""
    apart = max((abs(e.attr[1].coefficient(dot.k[0])) * e.dtype.itemsize for e in _loads(dot.b)), default=0)
    return dot.k[1] > L2_BYTES // LINE // max(1, math.gcd(apart // LINE, L2_SETS))


def _stays(dot: Dot) -> bool:
    """Whether rows of a (of a chunk of k) are in L2 when they pass the next panel."""
    return dot.m[1] * dot_chunk(dot.k[1]) * dot.dtype.itemsize <= L2_BYTES


def _straight(dot: Dot) -> bool:
    """Whether rows of b are contiguous."""
    return all(e.attr[1].coefficient(dot.n[0]) in (0, 1) for e in _loads(dot.b))


def _beside(dot: Dot, m: int, n: int, pack: str) -> bool:
    """Whether tiles see to the next panel of b: copy it, if they read it row by row, or ask for it, if it lies in panels."""
    (_, rows), (_, columns), (_, depth) = dot.m, dot.n, dot.k
    if not 2 <= rows // m <= BESIDE_TILES or columns < 4 * n or not _stays(dot):
        return False
    return pack == "b" and _straight(dot) if not dot.panels else not pack and columns * depth * dot.dtype.itemsize >= PACK_BYTES


def _packs(dot: Dot, vector_bytes: int = LINE) -> str:
    """What has to be copied (no tile could read it) or had better be."""
    (_, rows), (_, columns), (_, depth) = dot.m, dot.n, dot.k
    pack = ""
    if rows > 1 and columns > 64 and any(e.args for e in ex.topological([dot.a])):
        pack += "a"  # each row is read for every panel of columns: convert it once
    total = columns * depth * max(dot.b.dtype.itemsize, 1)
    many = rows >= PACK_ROWS or (rows >= PACK_ROWS_ALIASED and (_rows_collide(dot) or (_stays(dot) and columns >= BESIDE_COLUMNS)))
    narrow = vector_bytes < LINE and total >= NARROW_PACK_BYTES and rows >= NARROW_PACK_ROWS
    large = not dot.panels and (narrow or (total >= PACK_BYTES and many))
    computed = rows >= 32 and any(e.args for e in ex.topological([dot.b]))
    if large or computed or not _straight(dot):
        pack += "b"
    return pack


def _spans(extent: int, size: int) -> Iterator[tuple[int, int]]:
    """(how many, how large) of the pieces that cover an extent."""
    if extent // size:
        yield extent // size, size
    if extent % size:
        yield 1, extent % size


def _panel_cycles(dot: Dot, c: int, m: int, width: int, packed: bool) -> tuple[float, int]:
    """Cycles of a panel of c columns, and vectors of code: fmas and loads two a cycle, b from L2 where the panel is larger than L1."""
    (_, rows), (_, columns), (_, depth) = dot.m, dot.n, dot.k
    cycles, code, vectors = 0.0, 0, -(-c // width)
    beyond = depth * columns * dot.dtype.itemsize > L2_BYTES
    lines = depth * LINE > L1_BYTES // 2 and any(abs(e.attr[1].coefficient(dot.k[0])) * e.dtype.itemsize >= LINE for e in _loads(dot.a))
    far = depth * c * dot.dtype.itemsize > L1_BYTES
    load = 0.55 if width * dot.dtype.itemsize >= MASKED_BYTES else 0.65  # fmas on narrower vectors take no broadcast from memory
    for times, r in _spans(rows, m):
        step = max(r * vectors / 2, load * (r + vectors), 7.0, 3.0 * vectors if far else 0.0)
        if far and not packed:  # short pieces of rows that lie apart are fetched late
            step *= 1.08 if vectors > 2 else 1.4 if beyond else 1.2
        if rows * depth * dot.dtype.itemsize > L2_BYTES:  # a comes from L3 for each panel
            step += r * dot.dtype.itemsize / 48
        step += LINE_CYCLES if lines else 0.0
        step += SHARED_LOAD * (r + vectors) if width * dot.dtype.itemsize >= MASKED_BYTES else 0.0
        step += 0.01 * vectors  # of tiles alike, the one with more rows reads less of b
        cycles += times * (depth * step + 10 + r * vectors)
        code += r * vectors
    return cycles, code


def _rest_rows(dot: Dot, m: int, n: int, width: int, registers: int, packed: bool) -> int:
    """Rows of the tiles in the last panel, which may be narrower: taller ones fill the registers again."""
    c = dot.n[1] % n
    if not c:
        return m
    vectors = -(-c // width)
    tall = min(dot.m[1], 16, _budget(registers) // vectors)
    return tall if tall > m and _panel_cycles(dot, c, tall, width, packed)[0] < REST_GAIN * _panel_cycles(dot, c, m, width, packed)[0] else m


def _group(dot: Dot, n: int, pack: str, vector_bytes: int) -> int:
    """How many panels are copied at once: several where rows come from beyond L2, or are copied too."""
    (_, columns), (_, depth), size = dot.n, dot.k, dot.dtype.itemsize
    if "b" not in pack or ("a" not in pack and _stays(dot)):
        return 1
    panel = n * depth * size
    wide = vector_bytes < LINE and MOST_GROUPED * panel > NARROW_L2_BYTES // 2
    return max(1, min(MOST_GROUPED, columns // n, GROUP_BYTES // panel), min(NARROW_GROUPED, columns // (NARROW_GROUPS * n)) if wide else 1)


def _ask(dot: Dot, pack: str, vector_bytes: int) -> int:
    """How many rows ahead of its copy b is asked for, where vectors are narrower than a line and rows are copied as they lie."""
    return NARROW_ASK if "b" in pack and vector_bytes < LINE and _straight(dot) and not dot.panels else 0


def grouped(panels: int, most: int) -> int:
    """Panels in each of some groups that are alike, at most so many."""
    return next((size for size in range(min(most, panels), 1, -1) if panels % size == 0), 1)


def _budget(registers: int) -> int:
    """Accumulators of a tile."""
    return 24 if registers >= 32 else 12


def _estimate(dot: Dot, m: int, n: int, width: int, registers: int, packed: bool) -> tuple[float, int]:
    """Cycles that all panels take, and vectors of code."""
    count, rest = divmod(dot.n[1], n)
    cycles, code = _panel_cycles(dot, n, m, width, packed) if count else (0.0, 0)
    more = _panel_cycles(dot, rest, _rest_rows(dot, m, n, width, registers, packed), width, packed) if rest else (0.0, 0)
    return count * cycles + more[0], code + more[1]


def _candidates(dot: Dot, width: int, registers: int) -> Iterator[tuple[int, int]]:
    """Tiles whose accumulators leave room for a row of b and one of a."""
    (_, rows), (_, columns), _ = dot.m, dot.n, dot.k
    most = -(-columns // width)
    budget = _budget(registers)
    for vectors in range(1, min(most, budget // 2) + 1):
        for m in range(1, min(rows, 16) + 1):
            if m * vectors > budget or (m * vectors + vectors + 1 > registers) or (vectors > 4 and m < min(rows, budget // vectors)):
                continue
            panels = -(-most // vectors)
            even = -(-columns // panels)  # as many panels, but of one size; without masks, a vector that is not full is costly
            masked = panels == 1 or even % width == 0 or width * dot.dtype.itemsize >= MASKED_BYTES
            yield m, even if columns % even == 0 and masked else vectors * width


def streams(dot: Dot) -> bool:
    """Whether the right operand streams past the sums of a row."""
    return dot.m[1] <= 1 and dot.n[1] >= STREAM_LEAST and not dot.panels and not _packs(dot)


def _matrix_schedule(dot: Dot, parts: tuple[DType, ...], vector_bytes: int) -> TileSchedule:
    """Two by two matrix registers of sums, which two of a and two of b are multiplied for."""
    (_, rows), (_, columns), (_, depth) = dot.m, dot.n, dot.k
    (value, index), *more = [(p.value, p.index) for p in dot.puts]
    plain = not more and value.op == "var" and value.dtype.bits == 32 and index.coefficient(dot.n[0]) == 1
    far = rows * depth * parts[0].itemsize > L2_BYTES
    n = min(columns, 2 * MATRIX)
    return TileSchedule(min(rows, 2 * MATRIX), n, max(1, vector_bytes // dt.i32.itemsize), 0, "b" if reads_words(dot, parts) else "ab", not plain,
                        parts, group=max(1, min(MOST_GROUPED, columns // n)) if far else 1, block=BLOCK)


def tile_schedule(dot: Dot, vector_bytes: int, registers: int, words: Collection[DType] = (), matrices: Collection[DType] = ()) -> TileSchedule:
    """The fastest tile by estimate; among those within a few percent, the one with the least code. `words`: parts of words that there are
    instructions to multiply by; `matrices`: those that matrix registers multiply."""
    width = max(1, vector_bytes // max(dot.dtype.itemsize, 1))
    (_, rows), (_, columns), (_, depth) = dot.m, dot.n, dot.k
    pack = _packs(dot, vector_bytes)
    heavy = sum(1 for e in ex.topological([p.value for p in dot.puts]) if e.args) > LIGHT_EPILOGUE
    if streams(dot):
        return TileSchedule(max(1, rows), min(columns, STREAM_COLUMNS), 4 * width, STREAM_ROWS, "", True)
    if min(rows, columns) < 1:
        return TileSchedule(1, 1, width)
    if matrices and dot.panels in (0, 2 * MATRIX) and (parts := matrix_parts(dot, matrices)):
        return _matrix_schedule(dot, parts, vector_bytes)
    if words and worth_words(dot) and (parts := word_parts(dot, words)):
        width = max(1, vector_bytes // dt.i32.itemsize)
        m, n = _best_tile(replace(dot, dtype=dt.i32, k=(dot.k[0], -(-depth // per_word(parts)))), width, registers, True)
        reads, passed = reads_words(dot, parts), rows * depth * parts[0].itemsize  # rows that are copied, or come from beyond L2, pass groups
        group = min(MOST_GROUPED, columns // n) if reads and (copies_rows(dot, parts) or passed > L2_BYTES) else 1
        staged = (heavy and m * -(-n // width) > 2) or (depth > DOT_CHUNK and dot.dtype.is_float)
        return TileSchedule(m, n, width, 0, "b" if reads else "ab", staged, parts, group=max(1, group))
    m, n = _best_tile(dot, width, registers, "b" in pack)
    staged = depth > DOT_CHUNK or (heavy and m * -(-n // width) > 2)
    rest = _rest_rows(dot, m, n, width, registers, "b" in pack or dot.panels > 0)
    return TileSchedule(m, n, width, 0, pack, staged, rest=(rest, columns % n) if rest != m else (), group=_group(dot, n, pack, vector_bytes),
                        ask=_ask(dot, pack, vector_bytes), beside=_beside(dot, m, n, pack))


def _best_tile(dot: Dot, width: int, registers: int, packed: bool, free: bool = False) -> tuple[int, int]:
    """Rows and columns; the columns are those of the panels that b is stored in, unless they are `free`."""
    panels = 0 if free else min(dot.panels, dot.n[1])
    found = [(*_estimate(dot, m, n, width, registers, packed or panels > 0 or free), m, n)
             for m, n in _candidates(dot, width, registers) if panels in (0, n)]
    if not found:
        return max(1, min(dot.m[1], _budget(registers) // -(-panels // width))), panels
    best = min(found)[0]
    near = 1.0 if 2 * math.prod(extent for _, extent in dot.axes) >= MANY_FLOPS else 1.05
    *_, m, n = min((code, cycles, m, n) for cycles, code, m, n in found if cycles <= near * best)
    return m, n


def panel_width(dot: Dot, vector_bytes: int, registers: int, matrices: Collection[DType] = ()) -> int:
    """The columns of a panel, where b may be stored in any."""
    if matrix_parts(dot, matrices):
        return 2 * MATRIX
    return _best_tile(dot, max(1, vector_bytes // max(dot.dtype.itemsize, 1)), registers, True, True)[1]


def paths(kernels: Iterable[tuple[Kernel, object]]) -> set[str]:
    """Which ways of contracting occur among kernels and their schedules: "tile", "tail" (a smaller tile), "pack", "stream" (few rows),
    "deep" (several partial sums), "staged" (a loop over the tile's sums), "prepared" (weights packed when the program is made),
    "words" (narrow integers, several steps at once), "pairs" (the same of bf16, where the operands allow it), "beside" (tiles copy panels),
    "matrix" (words by matrix registers)."""
    found: set[str] = set()
    for kernel, schedule in kernels:
        for dot, plan in zip(kernel.stages, schedule.stages):
            if not isinstance(dot, Dot):
                continue
            words, floats = plan.parts and not plan.block, dot.dtype.is_float
            ways = {"stream": plan.stream, "tile": not plan.stream, "tail": dot.m[1] % plan.m or dot.n[1] % plan.n, "pack": plan.pack,
                    "deep": dot.k[1] > DOT_CHUNK and (not plan.parts or (floats and words)), "staged": plan.staged and not plan.stream,
                    "words": words and not floats, "pairs": words and floats, "prepared": dot.panels, "beside": plan.beside, "matrix": plan.block}
            found |= {name for name, taken in ways.items() if taken}
    return found
