"""The slow, obvious interpreter of loop kernels: the bits that machine code must produce.

It follows the written order statement by statement: a vector block runs one statement over all its lanes before the
next, a tile takes its k steps one fma at a time. Every access is checked, scratch buffers start as garbage, and so do
the lanes past the end of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.expr import Expr
from mlc.loop.ir import Ask, Assign, Decl, Fold, For, If, LoopKernel, Stmt, Store, Tile

# So many k steps of a tile have their operands evaluated at once; nothing a tile reads changes while it runs.
_TILE_CHUNK = 256


def run(kernel: LoopKernel, buffers: dict[str, np.ndarray], *, reverse_parallel: bool = False) -> None:
    """Run a kernel on flat arrays, in place.

    `buffers` has a one-dimensional array of the right size and dtype for each "in" and "out" buffer; the kernel's own are
    made (or, if given, overwritten) here. `reverse_parallel` runs parallel loops from their last iteration to their
    first, which must make no difference. ValueError for arrays that do not fit, IndexError for an access out of bounds.
    """
    arrays: dict[str, np.ndarray] = {}
    for buffer in kernel.buffers:
        array = buffers.get(buffer.name)
        if array is None and buffer.own:
            array = garbage(buffer.size, buffer.dtype)
        if array is None or array.shape != (buffer.size,) or array.dtype != buffer.dtype.numpy:
            found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"kernel @{kernel.name}: buffer %{buffer.name} needs {buffer.dtype}[{buffer.size}], found {found}")
        arrays[buffer.name] = array
    machine = _Machine(kernel, arrays, reverse_parallel)
    machine.forget_scratch()
    machine.body(kernel.body)


def garbage(count: int, dtype: DType) -> np.ndarray:
    """Elements that no one should read: NaNs, large integers, alternating bools."""
    if dtype is dt.bool_:
        return np.arange(count) % 2 == 0
    filler = 0xFF if dtype.is_float else 0xAB
    return np.full(count * dtype.itemsize, filler, np.uint8).view(dtype.numpy)


class _Machine:
    """State of one run: loop variables (an int, or an array with the lanes), variables (0-d, or one element a lane)."""

    def __init__(self, kernel: LoopKernel, arrays: dict[str, np.ndarray], reverse_parallel: bool):
        self.name, self.arrays, self.reverse_parallel = kernel.name, arrays, reverse_parallel
        self.scratch = [(arrays[b.name], b.dtype) for b in kernel.buffers if b.role == "scratch"]
        self.indices: dict[str, int | np.ndarray] = {}
        self.variables: dict[str, np.ndarray] = {}
        self.active: int | None = None  # in a vector loop: how many lanes of this block are before the end
        self.orders: dict[tuple[Expr, ...], list[Expr]] = {}

    def forget_scratch(self) -> None:
        """Scratch is private to an iteration of a parallel loop, and to the code outside of them."""
        for array, dtype in self.scratch:
            array[...] = garbage(array.size, dtype)

    # ----------------------------------------------------------------------- expressions
    def evaluate(self, roots: Sequence[Expr], variables: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
        roots = tuple(roots)
        order = self.orders.get(roots)
        if order is None:
            order = self.orders[roots] = ex.topological(roots)
        variables = self.variables if variables is None else variables
        return scalar_eval.evaluate(roots, lambda node: self.leaf(node, variables), order)

    def leaf(self, node: Expr, variables: dict[str, np.ndarray]) -> object:
        if node.op == "index":
            return self.indices[node.attr]
        if node.op == "load":
            return self.load(*node.attr)
        assert node.op == "var", node
        return variables[node.attr]

    def checked(self, buffer: str, index: Affine) -> int | np.ndarray:
        """The element number, an array of the active ones where it differs from lane to lane; IndexError out of bounds."""
        element = index.evaluate(self.indices)
        if isinstance(element, np.ndarray) and self.active is not None:
            element = element[:self.active]
        size = self.arrays[buffer].size
        low, high = (element.min(), element.max()) if isinstance(element, np.ndarray) else (element, element)
        if low < 0 or high >= size:
            raise IndexError(f"kernel @{self.name}: %{buffer}[{index}] is {element}, outside 0..{size - 1}, at {self.indices}")
        return element

    def load(self, buffer: str, index: Affine) -> np.ndarray:
        element = self.checked(buffer, index)
        array = self.arrays[buffer]
        if not isinstance(element, np.ndarray) or self.active is None:
            return np.asarray(array[element])
        lanes = len(next(i for i in self.indices.values() if isinstance(i, np.ndarray)))
        loaded = garbage(lanes, dt.as_dtype(array.dtype))
        loaded[:self.active] = array[element]
        return loaded

    # ----------------------------------------------------------------------- statements
    def body(self, statements: tuple[Stmt, ...]) -> None:
        for stmt in statements:
            _RUN[type(stmt)](self, stmt)

    def loop(self, loop: For) -> None:
        if loop.kind == "vector":
            self.blocks(loop.var, loop.extent, loop.width, loop.body)
        else:
            parallel, iterations = loop.kind == "parallel", range(loop.extent)
            for i in reversed(iterations) if parallel and self.reverse_parallel else iterations:
                self.indices[loop.var] = i
                if parallel:
                    self.forget_scratch()
                self.body(loop.body)
            if parallel:
                self.forget_scratch()
        self.indices.pop(loop.var, None)

    def blocks(self, var: str, extent: int, width: int, body: tuple[Stmt, ...], per_block=None) -> None:
        """A vector loop; `per_block(lanes)` sets variables before each block."""
        for start in range(0, extent, width):
            lanes = np.arange(start, start + width)
            self.indices[var] = lanes
            self.active = min(width, extent - start)
            if per_block:
                per_block(lanes)
            self.body(body)
        self.active = None

    def declare(self, decl: Decl) -> None:
        value, = self.evaluate((decl.init,))
        self.variables[decl.name] = _spread(value, decl.lanes)

    def assign(self, stmt: Assign) -> None:
        for name, value in zip(stmt.names, self.evaluate(stmt.values), strict=True):
            old = self.variables[name]
            new = _spread(value, old.size)
            if old.ndim and self.active is not None:
                new[self.active:] = old[self.active:]
            self.variables[name] = new

    def store(self, stmt: Store) -> None:
        value, = self.evaluate((stmt.value,))
        element = self.checked(stmt.buffer, stmt.index)
        array = self.arrays[stmt.buffer]
        assert value.dtype == array.dtype, (stmt, value.dtype)
        if value.ndim:
            value = value[:self.active]
            if not isinstance(element, np.ndarray):
                value = value[-1]
        array[element] = value

    def choose(self, stmt: If) -> None:
        condition, = self.evaluate((stmt.condition,))
        self.body(stmt.body if condition else stmt.other)

    def fold(self, stmt: Fold) -> None:
        values = [self.variables[name] for name in stmt.sources]
        while values[0].size > 1:
            half = values[0].size // 2
            sides = {f"a.{i}": v[:half] for i, v in enumerate(values)} | {f"b.{i}": v[half:] for i, v in enumerate(values)}
            values = [np.broadcast_to(v, (half,)) for v in self.evaluate(stmt.combine, sides)]
        for name, value in zip(stmt.targets, values, strict=True):
            self.variables[name] = _spread(value, 1)

    def tile(self, tile: Tile) -> None:
        beside = (tile.beside,) if tile.beside else ()
        if self.reverse_parallel:  # what runs beside the sums is in no order with them
            total = self.contract(tile)
            self.body(beside)
        else:
            self.body(beside)
            total = self.contract(tile)
        for row in range(tile.m):
            self.indices[tile.r] = row

            def accumulators(lanes: np.ndarray, row: int = row) -> None:
                block = garbage(tile.width, tile.dtype)
                inside = lanes[lanes < tile.n]
                block[:inside.size] = total[row, inside]
                self.variables[tile.name] = block
            self.blocks(tile.c, tile.n, tile.width, tile.body, accumulators)
        for var in (tile.r, tile.c):
            self.indices.pop(var, None)

    def contract(self, tile: Tile) -> np.ndarray:
        """acc[m, n] of a tile, one k step after the other; of words all that they hold, the first one first."""
        total = np.zeros((tile.m, tile.n), tile.dtype.numpy)
        block = tile.block if tile.dtype.is_float else 0
        chunk = _TILE_CHUNK // block * block if block else _TILE_CHUNK
        for start in range(0, tile.depth, chunk):
            steps = np.arange(start, min(start + chunk, tile.depth))
            left = self.operand(tile.a, {tile.r: np.arange(tile.m)[:, None], tile.k: steps[None, :]}, (tile.m, steps.size))
            right = self.operand(tile.b, {tile.k: steps[:, None], tile.c: np.arange(tile.n)[None, :]}, (steps.size, tile.n))
            if tile.parts:
                left, right = (np.stack(_parts(words, part), -1) for words, part in zip((left, right.T), tile.parts))
                right = right.transpose(1, 2, 0)
            for at in range(0, steps.size, block) if block else ():
                halves = [(left[:, at:at + block, half], right[at:at + block, half]) for half in (0, 1)]
                upper, lower = (scalar_eval.contract(*half, np.zeros_like(total)) for half in halves)
                total = scalar_eval.apply("add", tile.dtype, [total, scalar_eval.apply("add", tile.dtype, [upper, lower])])
            if not block:
                total = scalar_eval.contract(left.reshape(tile.m, -1), right.reshape(-1, tile.n), total)
        return total

    def operand(self, expr: Expr, grid: dict[str, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
        """A tile operand over a grid of index values."""
        self.indices.update(grid)
        value, = self.evaluate((expr,))
        for var in grid:
            del self.indices[var]
        return np.broadcast_to(value, shape)


def _parts(words: np.ndarray, part: DType) -> list[np.ndarray]:
    """What words of 32 bits hold: two bf16, the upper one first, as f32; or integers, the lowest one first, each as wide as a word."""
    if part.is_float:
        return [(words & -0x10000).view(np.float32), (words << 16).view(np.float32)]
    return [(words >> shift).astype(part.numpy).astype(words.dtype) for shift in range(0, 32, part.bits)]


def _spread(value: np.ndarray, lanes: int) -> np.ndarray:
    """A copy with `lanes` lanes; one lane is a 0-d array."""
    value = np.asarray(value)
    return value.reshape(()).copy() if lanes == 1 else np.array(np.broadcast_to(value, (lanes,)))


_RUN = {For: _Machine.loop, Decl: _Machine.declare, Assign: _Machine.assign, Store: _Machine.store,
        Ask: lambda machine, stmt: None, If: _Machine.choose, Fold: _Machine.fold, Tile: _Machine.tile}
