"""The schedule of an `Attend` stage: how many queries and keys a block has, and the register tiles of its two contractions."""

from __future__ import annotations

from mlc.core import expr as ex
from mlc.core.dataclass import dataclass
from mlc.core.text import Reader
from mlc.kernel.ir import Attend

# Keys of a block: their weights stay in L1 between two tiles, and this many are added to a sum of weights one after the other.
KEY_BLOCK = 128
# Bytes from one key's values to the next's from which a block of them is copied.
FAR = 1024
# With so many keys packing a block of queries is a small part of the work.
SHORT = 256
# A query is a lane of the row passes, which want four vectors at a time.
QUERY_VECTORS = 4


@dataclass(frozen=True)
class AttendSchedule:
    """Blocks of `queries` x `keys`, row passes of `width` lanes, register tiles of `scores` = (keys, queries) and `sums` =
    (queries, values) in vectors of `by`. `copied`: a block's values are copied to where they lie side by side first.
    `turned`: queries are packed by transposes in registers, which are faster than gathers, and take longer to compile.

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
    copied: bool = False
    turned: bool = False

    def text(self) -> str:
        (a, b), (c, d) = self.scores, self.sums
        marks = " copied" * self.copied + " turned" * self.turned
        return f"attend m:{self.queries} n:{self.keys} lanes:{self.width} scores:{a} {b} sums:{c} {d} by {self.by}{marks}"


def read_attend(reader: Reader) -> AttendSchedule:
    """What `AttendSchedule.text` wrote, behind its first word. Raises ParseError."""
    def number(name: str) -> int:
        reader.expect(name)
        reader.expect(":")
        return reader.integer()
    queries, keys, width = number("m"), number("n"), number("lanes")
    scores, sums = ((number(name), reader.integer()) for name in ("scores", "sums"))
    reader.expect("by")
    return AttendSchedule(queries, keys, width, scores, sums, reader.integer(), reader.accept("copied"), reader.accept("turned"))


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
        most = min(rows, registers * 3 // 4 // v, (registers - 1) // v - 1)  # beside the accumulators, v vectors and a scalar
        for m in [most, *(d for d in range(4, most) if rows % d == 0)]:
            # A step loads v vectors and m scalars for v * m fmas; remainders run with fewer accumulators.
            efficiency = min(1.0, 2 * v * m / (v + m) / 4) * min(1.0, v * m / 12)
            waste = 1 + 0.3 * bool(vectors % v) + 0.1 * bool(rows % m)
            if efficiency / waste > best:
                best, found = efficiency / waste, (m, min(columns, v * width))
    return found


def _evenly(extent: int, sizes: range, otherwise: int) -> int:
    """A block size without a block left over, whose loops would be written twice; or else another."""
    return next((size for size in sizes if extent % size == 0), otherwise)


def _far_apart(stage: Attend) -> bool:
    """Whether the values of one key after the other lie so that few of them fit in L1 together: steps of many lines, which share its sets."""
    for e in ex.topological([stage.value]):
        if e.op == "load" and e.attr[1].coefficient(stage.n[0]) * e.dtype.itemsize >= FAR and stage.c[1] * e.dtype.itemsize < FAR:
            return True
    return False


def attend_schedule(stage: Attend, vector_bytes: int, registers: int) -> AttendSchedule:
    """Blocks that keep scores and sums in L1; a block of queries is as wide as the row passes."""
    width = vector_bytes // stage.dtype.itemsize
    (_, queries), (_, keys), _, (_, columns) = stage.axes
    lanes = width * QUERY_VECTORS
    rows = queries if queries <= lanes * 3 // 2 else _evenly(queries, range(lanes, lanes // 2, -width), lanes)
    count = keys if keys <= KEY_BLOCK else _evenly(keys, range(KEY_BLOCK, KEY_BLOCK // 2, -1), KEY_BLOCK)
    while lanes > width and lanes >= 2 * rows:
        lanes //= 2
    scores, sums = _register_tile(count, rows, width, registers), _register_tile(rows, columns, width, registers)
    return AttendSchedule(rows, count, lanes, scores, sums, width, rows > 2 * sums[0] and _far_apart(stage), keys <= SHORT)
