"""What loads ask memory for ahead of time. Heavy loops don't see far enough to keep it busy; past the end of an array it is no fault.

A row kernel reads a row several times, from memory only once. What the rows after it are asked for belongs into the last of those
loops: there it goes on beside arithmetic and stores, while the first loop has nothing to do but wait for what it asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.codegen.builder import Builder
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.loop.ir import Buffer, For, Stmt, statement_roots

# Arrays from this size on come from memory; loads ask for them so many bytes ahead.
FAR_BYTES, READ_AHEAD = 1 << 25, 8 * 1024
# With narrower vectors single loops are at most as heavy as what the CPU fetches ahead by itself, and asking takes more than it gives. Where
# several loops read a row nothing fetches the next one while they do, so there it pays as well.
LEAST_BITS = 512
# Rows that are read again and again are asked for from here on, where they come from L3: their loops have the time for it. With narrow vectors
# they come fast enough from there for longer.
ROWS_FAR_BYTES, NARROW_ROWS_FAR_BYTES = 1 << 20, 1 << 22
# The same for rows of tiles that are turned: later blocks of a transpose lie there. Into L2: rows at a power of two of bytes share sets of L1.
TURNED_BYTES, TURNED_AHEAD = 1 << 23, 512
# Rows up to this size are in L1 when they are read again.
ROW_BYTES = 16 * 1024
LINE = 64

# Where something is read: a buffer, and the part of the index that is the same in a whole loop.
Place = tuple[str, Affine]


def ask(b: Builder, level: int, pointer: str, nbytes: int, distance: int, cache: int = 1) -> None:
    """Ask for `nbytes` some way ahead of a load, into the first or the second cache."""
    b.declare("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
    for line in range(0, nbytes, LINE):
        ahead = b.emit(level, f"getelementptr i8, ptr {pointer}, i64 {distance + line}") if distance + line else pointer
        b.effect(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 {4 - cache}, i32 1)")


def rows_read_again(body: Sequence[Stmt], buffers: dict[str, Buffer], vector_bits: int) -> dict[int, dict[str, int]]:
    """For vector loops (by `id`) the larger buffers whose rows several loops of one body read: how far ahead to ask for what follows, in the
    last of them; 0 in the others."""
    found: dict[int, dict[str, int]] = {}
    least = ROWS_FAR_BYTES if vector_bits >= LEAST_BITS else NARROW_ROWS_FAR_BYTES
    _visit(body, {name: b.dtype.itemsize for name, b in buffers.items() if b.role == "in" and b.nbytes >= least}, found)
    return found


def _visit(body: Sequence[Stmt], sizes: dict[str, int], found: dict[int, dict[str, int]]) -> None:
    loops = [s for s in body if isinstance(s, For)]
    places = [_places(loop, sizes) for loop in loops] if len(loops) > 1 else []
    last = {place: i for i, read in enumerate(places) for place in read}
    for i, read in enumerate(places):
        for place, (nbytes, inner) in read.items():
            again = any(place in other for other in places[:i]) or last[place] > i
            if again and nbytes <= ROW_BYTES:
                distance = max(READ_AHEAD, nbytes) if last[place] == i else 0
                for loop in inner:
                    found.setdefault(id(loop), {})[place[0]] = distance
    for loop in loops:
        if loop.kind != "vector":
            _visit(loop.body, sizes, found)


def _places(outer: For, sizes: dict[str, int]) -> dict[Place, tuple[int, list[For]]]:
    """What the vector loops in a loop read lane by lane: how many bytes of it, and in which of them."""
    found: dict[Place, tuple[int, list[For]]] = {}
    todo: list[tuple[For, dict[str, int]]] = [(outer, {})]
    while todo:
        loop, extents = todo.pop()
        extents = {**extents, loop.var: loop.extent}
        if loop.kind == "vector":
            roots = [root for s in loop.body for root in statement_roots(s)]
            for e in ex.topological(roots):
                if e.op == "load" and e.attr[0] in sizes and e.attr[1].coefficient(loop.var) == 1:
                    name, index = e.attr
                    nbytes = sizes[name]
                    for var, extent in extents.items():
                        nbytes *= extent if index.coefficient(var) else 1
                    outside = Affine(index.offset, [(var, c) for var, c in index.terms if var not in extents])
                    most, inner = found.get((name, outside), (0, []))
                    found[name, outside] = (max(most, nbytes), [*inner, loop])
        elif loop.kind != "unroll":
            todo += [(s, extents) for s in loop.body if isinstance(s, For)]
    return found
