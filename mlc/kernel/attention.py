"""The schedule of an `Attend` stage: how many queries and keys a block has, and the register tiles of its two contractions."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.core.text import Reader
from mlc.kernel.ir import Attend

# Keys of a block: their weights stay in L1 between two tiles, and this many are added to a sum of weights one after the other.
KEY_BLOCK = 128
# A query is a lane of the row passes, which want four vectors at a time.
QUERY_VECTORS = 4


@dataclass(frozen=True)
class AttendSchedule:
    """Blocks of `queries` x `keys`, row passes of `width` lanes, register tiles of `scores` = (keys, queries) and `sums` =
    (queries, values) in vectors of `by`.

    The order: a score is summed over k, one fma a step. Block after block of keys: the weights of the block are added from zero, key
    after key, and so are the products with the values, one fma a key; then both join the running sums, which are multiplied by
    weight(old maximum - new maximum) first. At the end the sums are multiplied by 1 / (sum of weights). One block alone has no
    running sums.
    """

    queries: int
    keys: int
    width: int
    scores: tuple[int, int]
    sums: tuple[int, int]
    by: int

    def text(self) -> str:
        (a, b), (c, d) = self.scores, self.sums
        return f"attend m:{self.queries} n:{self.keys} lanes:{self.width} scores:{a} {b} sums:{c} {d} by {self.by}"


def read_attend(reader: Reader) -> AttendSchedule:
    """What `AttendSchedule.text` wrote, behind its first word. Raises ParseError."""
    def number(name: str) -> int:
        reader.expect(name)
        reader.expect(":")
        return reader.integer()
    queries, keys, width = number("m"), number("n"), number("lanes")
    scores, sums = ((number(name), reader.integer()) for name in ("scores", "sums"))
    reader.expect("by")
    return AttendSchedule(queries, keys, width, scores, sums, reader.integer())


def weight_scale(stage: Attend) -> float:
    """The power of two by which weights are multiplied so that all of them add up to 1 at most."""
    return 2.0 ** -max(0, stage.n[1] - 1).bit_length()


def blocks(extent: int, size: int) -> list[tuple[int, int]]:
    """(start, size) of each block of an axis."""
    return [(start, min(size, extent - start)) for start in range(0, extent, size)]


def _register_tile(rows: int, columns: int, width: int, registers: int) -> tuple[int, int]:
    """Accumulators for a tile of rows x columns, without remainders where that costs little."""
    vectors = -(-columns // width)
    best, found = 0.0, (1, 1)
    for v in range(1, min(4, vectors) + 1):
        most = min(rows, registers * 3 // 4 // v)
        for m in [most, *(d for d in range(4, most) if rows % d == 0)]:
            # A step loads v vectors and m scalars for v * m fmas; remainders run with fewer accumulators.
            efficiency = min(1.0, 2 * v * m / (v + m) / 4) * min(1.0, v * m / 12)
            waste = 1 + 0.2 * bool(vectors % v) + 0.1 * bool(rows % m)
            if efficiency / waste > best:
                best, found = efficiency / waste, (m, min(columns, v * width))
    return found


def attend_schedule(stage: Attend, vector_bytes: int, registers: int) -> AttendSchedule:
    """Blocks that keep scores and sums in L1; a block of queries is as wide as the row passes."""
    width = vector_bytes // stage.dtype.itemsize
    (_, queries), (_, keys), _, (_, columns) = stage.axes
    lanes = width * QUERY_VECTORS
    rows = queries if queries <= lanes * 3 // 2 else lanes
    count = min(KEY_BLOCK, keys)
    while lanes > width and lanes >= 2 * rows:
        lanes //= 2
    return AttendSchedule(rows, count, lanes, _register_tile(count, rows, width, registers), _register_tile(rows, columns, width, registers), width)
