"""Loop IR: what a kernel does, statement by statement, before it becomes LLVM.

A `LoopKernel` has flat one-dimensional buffers and a body of statements over scalar expressions (`mlc.core.expr`), whose
leaves here are `const`, `index` (a loop variable as i64), `load` (attr: (buffer name, Affine index)) and `var` (a declared variable).

    For       var runs over 0..extent-1. kind:
                serial    in order
                parallel  in any order, by any thread (only outermost)
                vector    in blocks of `width` lanes, a masked last block when width does not divide extent. Inside, an
                          expression that depends on the loop variable (or on a variable with lanes) has `width` lanes;
                          lanes past the end neither load, store nor assign. Vector loops do not nest.
                unroll    serial, but emitted `extent` times
    Decl      declares a mutable variable with `lanes` lanes (1: a scalar) and its first value (a scalar expression is
              splat over the lanes). Visible to the end of the enclosing body. A Decl inside a vector loop has the loop's lanes or 1.
    Assign    sets variables, all right-hand sides read before any is written. Inside a vector loop a variable with
              `width` lanes is assigned per lane, under the mask.
    Store     buffer[index] = value, converted to nothing: dtypes must be equal.
    Ask       asks memory for buffer[index] ahead of its use. It changes nothing, and may ask for what is not there.
    If        runs `body` if the condition (a bool of one lane) is true, else `other`; neither assigns variables from outside. Not in vector loops.
    Fold      combines the lanes of vector variables `sources` into scalar variables `targets` (which it declares):
              while more than one lane is left, lanes [0, h) are `a`, lanes [h, 2h) are `b`, and combine(a, b) has h lanes.
              `combine` are expressions over var("a.0"), var("a.1").. and var("b.0"), var("b.1")... Lanes are a power of two.
    Tile      the register tile: acc[r, c] = a(r, 0)*b(0, c) + a(r, 1)*b(1, c) + ... for r < m, c < n, starting at 0, in the order of k,
              each step one fma for floats (multiply and add, wrapping, for ints).
              With `parts` a step adds several products: a(r, k) and b(k, c) are words of 32 bits, which hold two or four numbers of
              these dtypes (of a, of b). Of integers the first is lowest; all wraps. Of bf16 both are widened to f32, and the upper ones
              are multiplied and added first, by one fma, then the lower ones. `normal` says that no part and no sum on the way is
              subnormal, so that instructions which flush those may be used. With `block` so many words are a block: of bf16 its upper
              products are added up from 0 by fmas, its lower ones too, and upper + lower is added to acc.
              `a` is an expression over index(r), index(k) and outer variables, `b` over index(k), index(c); `b` loads are contiguous in c.
              Then `body` (Decl and Store statements) runs for every (r, c), as in `unroll r { vector(width) c { ... } }`, where
              var(name) is acc[r, c]. `beside` is a serial loop that runs
              meanwhile, an iteration every depth / extent steps: it stores to scratch what the tile neither loads nor stores.

bool is stored as a byte 0 or 1. f16/bf16 are stored in 2 bytes; every instruction on them rounds (see `mlc.core.expr`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mlc.core.affine import Affine
from mlc.core.dataclass import dataclass
from mlc.core.dtype import DType
from mlc.core.expr import Expr, make


@dataclass(frozen=True)
class Buffer:
    """A flat array of `size` elements. role: "in" (read only), "out" (written; may be read after), "scratch" (private to one iteration of
    the outermost parallel loop, or to one run of a kernel without one: each thread has its own), "shared" (made by the kernel for itself,
    one for all threads: what its parallel loops hand over to each other)."""

    name: str
    dtype: DType
    size: int
    role: str

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def own(self) -> bool:
        """Whether the kernel makes it for itself, unseen from outside."""
        return self.role in ("scratch", "shared")


@dataclass(frozen=True)
class For:
    var: str
    extent: int
    body: tuple[Stmt, ...]
    kind: str = "serial"
    width: int = 1


@dataclass(frozen=True)
class Decl:
    name: str
    dtype: DType
    lanes: int
    init: Expr


@dataclass(frozen=True)
class Assign:
    names: tuple[str, ...]
    values: tuple[Expr, ...]


@dataclass(frozen=True)
class Store:
    buffer: str
    index: Affine
    value: Expr


@dataclass(frozen=True)
class Ask:
    buffer: str
    index: Affine


@dataclass(frozen=True)
class If:
    condition: Expr
    body: tuple[Stmt, ...]
    other: tuple[Stmt, ...]


@dataclass(frozen=True)
class Fold:
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    combine: tuple[Expr, ...]


@dataclass(frozen=True)
class Tile:
    name: str
    dtype: DType
    r: str
    m: int
    c: str
    n: int
    k: str
    depth: int
    width: int
    a: Expr
    b: Expr
    body: tuple[Stmt, ...]
    parts: tuple[DType, ...] = ()
    normal: bool = False
    beside: For | None = None
    block: int = 0


Stmt = For | Decl | Assign | Store | Ask | If | Fold | Tile


@dataclass(frozen=True)
class LoopKernel:
    """A kernel: `buffers` in the order of its pointer arguments (its own last), and its body.

    `may_alias`: pairs of (in, out) buffer names that the memory plan may place on the same memory: for these, element i of the input is
    read in the same innermost iteration that writes element i of the output, and never after. All other buffers are disjoint.
    `streams`: "out" buffers that are stored past the caches where stores are whole aligned vectors; the kernel does not load them.
    `library`: its code is shared by kernels that differ in sizes only (`mlc.kernel.library`); it does the same.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    may_alias: frozenset[tuple[str, str]] = frozenset()
    streams: frozenset[str] = frozenset()
    library: bool = False

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name. KeyError if there is none."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)


def load(buffer: str, dtype: DType, index: Affine) -> Expr:
    """buffer[index] as an expression."""
    return make("load", dtype, (), (buffer, index))


def statement_roots(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions a statement evaluates itself (not those of its body)."""
    if isinstance(stmt, Decl):
        return (stmt.init,)
    if isinstance(stmt, Assign):
        return stmt.values
    if isinstance(stmt, Store):
        return (stmt.value,)
    if isinstance(stmt, If):
        return (stmt.condition,)
    if isinstance(stmt, Tile):
        return (stmt.a, stmt.b)
    return ()


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    todo = list(reversed(body))
    while todo:
        stmt = todo.pop()
        yield stmt
        if isinstance(stmt, If):
            todo.extend(reversed(stmt.other))
        if isinstance(stmt, (For, Tile, If)):
            todo.extend(reversed(stmt.body))
        if isinstance(stmt, Tile) and stmt.beside:
            todo.append(stmt.beside)
