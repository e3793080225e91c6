"""Statements of loop IR as LLVM IR: loops with phis, variables as SSA values, vector loops with their last block, folds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

from mlc.codegen import ahead, bools, halves, maxima, memory
from mlc.codegen.builder import Builder, Phi, Value, type_text
from mlc.codegen.instructions import every_lane, instruction, splat
from mlc.codegen.lanes import Index, Lane, last_lanes
from mlc.codegen.numbers import Numbers
from mlc.codegen.target import Target
from mlc.codegen.tile import emit_tile
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import CodegenError
from mlc.core.expr import Expr
from mlc.loop.ir import Ask, Assign, Decl, Fold, For, If, LoopKernel, Stmt, Store, Tile, statement_roots, walk

# LLVM's time for a basic block grows faster than its size: larger unrolled loops are emitted as loops.
UNROLL_LIMIT = 1000
# Where sizes are arguments, so are the constants of expressions that have few: means and the like. Those of formulas are what they are.
FEW_CONSTANTS, _SCALING = 4, frozenset({"add", "sub", "mul", "div"})


class KernelEmitter:
    """Emits one LLVM function for (part of) a kernel's body."""

    def __init__(self, kernel: LoopKernel, target: Target, declares: dict[str, str], pointers: dict[str, str],
                 outline: Callable[[KernelEmitter, For, Sequence[str]], None] | None = None, numbers: Numbers | None = None):
        self.kernel = kernel
        self.b = Builder(target, declares)
        self.pointers = pointers
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.outline = outline
        self.numbers = numbers
        self.env: dict[str, Value] = {}
        self.indices: dict[str, Index] = {}
        self.lane: Lane | None = None
        self.unrolled: dict[str, int] = {}  # the extents of open loops that are emitted once an iteration
        # A load is the same value again while its buffer's version is, and is never hoisted above the buffer's `dirty` level.
        self.version: dict[str, int] = {}
        self.dirty: dict[str, int] = {}
        self.unrolled_at = 0  # the level of the innermost of them
        self.piece = 0  # the extent of the open vector loop
        self.ahead: dict[str, int] = {}  # how far ahead it asks for a buffer, where that is not the usual distance
        # What steps of an unrolled loop store between each other's lanes, until the last one; not into buffers that are loaded.
        self.pending: dict[int, list[str]] = {}
        self._orders: dict[Expr, tuple[list[Expr], bool]] = {}
        self._places: dict[Expr, Affine | None] = {}
        self._effects: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    @functools.cached_property
    def loaded(self) -> frozenset[str]:
        """The buffers that the kernel loads."""
        roots = [root for s in walk(self.kernel.body) for root in statement_roots(s)]
        return frozenset(e.attr[0] for e in ex.topological(roots) if e.op == "load")

    @functools.cached_property
    def rows_read_again(self) -> dict[int, dict[str, int]]:
        """Vector loops that read a row which others read too."""
        return ahead.rows_read_again(self.kernel.body, self.buffers, self.b.target.vector_bits)

    # ------------------------------------------------------------------ expressions
    def value(self, root: Expr) -> Value:
        """The Value of an expression here."""
        known = self._orders.get(root)
        if known is None:
            order = ex.topological((root,), rare=False)
            scales = self.numbers is not None and sum([e.op == "const" for e in order]) <= FEW_CONSTANTS
            known = self._orders[root] = order, scales
        values: dict[Expr, Value] = {}
        self._compute(known[0], values, known[1])
        return values[root]

    def _compute(self, order: Iterable[Expr], values: dict[Expr, Value], scales: bool = False) -> None:
        """Add the Values of expressions, of which each comes behind its operands, those that are seldom needed aside. `scales`: numbers of a
        row are scaled and shifted by arguments."""
        b = self.b
        for node in order:
            op = node.op
            if op == "const":
                values[node] = b.constant(node.attr, node.dtype)
            elif op == "load":
                values[node] = memory.load(self, node)
            elif op == "var":
                values[node] = self._variable(node.attr)
            elif op == "index":
                values[node] = self._index(node.attr)
            elif op == "convert" and node.dtype is dt.i32 and (place := self._place(node.args[0])):
                values[node] = self._narrow_index(node.args[0], place)
            elif op == "scale" and not all(map(math.isfinite, ex.interval(node.args[1]))):
                values[node] = instruction(b, "scale_far", node.dtype, [values[a] for a in node.args])
            elif op == "mostly":
                values[node] = self._mostly(node, values)
            else:
                args = [values[a] for a in node.args]
                values[node] = instruction(b, op, node.dtype, self._scaling(op, args) if scales else args)

    def _scaling(self, op: str, args: list[Value]) -> list[Value]:
        """The operands of an instruction on a number of a row, of which a constant is an argument."""
        if op not in _SCALING or any(v.lanes > 1 for v in args) or (self.lane is not None and self.lane.lanes == 1):
            return args
        return [v if v.const is None or v.dtype not in (dt.f32, dt.f64) else self._argument(v) for v in args]

    def _argument(self, value: Value) -> Value:
        """A float constant as an argument."""
        b, key = self.b, ("argument", value)
        found = b.tables[0].get(key)
        if found is None:
            word, bits = self.numbers.text("constant", value.const), f"i{value.dtype.bits}"
            if value.dtype is dt.f32:
                word = b.emit(0, f"trunc i64 {word} to {bits}")
            found = Value(b.emit(0, f"bitcast {bits} {word} to {type_text(value.dtype, 1)}"), value.dtype, 1, 0)
            b.tables[0][key] = found
        return found

    def _mostly(self, node: Expr, values: dict[Expr, Value]) -> Value:
        """A select that jumps over its third operand's instructions where no lane needs it, if it stands in the innermost level."""
        b, (condition, x) = self.b, (values[a] for a in node.args[:2])
        leaves = [e for e in ex.topological(node.args[2:]) if e.op in ex.LEAVES]
        self._compute([e for e in leaves if e not in values], values)
        given = [values[e] for e in leaves]

        def select() -> Value:
            every = dict(values)
            self._compute([e for e in ex.topological(node.args[2:], rare=False) if e not in every], every)
            return instruction(b, "select", node.dtype, [condition, x, every[node.args[2]]])
        if min(condition.level, x.level) < b.level or node.dtype.is_half or x.lanes != max(v.lanes for v in (condition, *given)):
            return select()
        key = (node, condition, x, *given)
        found = b.tables[-1].get(key)
        if found is not None:
            return found
        known = b.tables[-1]
        b.tables[-1] = dict(known)  # what the other way computes is not there behind it
        text = b.either(every_lane(b, condition), type_text(x.dtype, x.lanes), lambda: x.text, lambda: select().text)
        b.tables[-1] = known
        found = known[key] = Value(text, x.dtype, x.lanes, b.level)
        return found

    def _variable(self, name: str) -> Value:
        value, lane = self.env[name], self.lane
        if lane is not None and value.lanes > lane.lanes:
            return self._low(value, lane.lanes)
        return value

    def _low(self, value: Value, lanes: int) -> Value:
        """The first lanes of a vector."""
        if value.dtype.is_half:
            return halves.exact(self._low(halves.wide(self.b, value), lanes), value.dtype)
        if bools.are_bytes(self.b.target, value.dtype, value.lanes):
            return bools.from_bytes(self.b, self._low(bools.to_bytes(self.b, value), lanes))
        key = ("low", value, lanes)
        found = self.b.tables[value.level].get(key)
        if found is None:
            type_ = type_text(value.dtype, value.lanes)
            if lanes == 1:
                text = self.b.emit(value.level, f"extractelement {type_} {value.text}, i64 0")
            else:
                text = memory.shuffle(self.b, value.level, type_, value.text, "poison", range(lanes))
            found = self.b.tables[value.level][key] = Value(text, value.dtype, lanes, value.level)
        return found

    def _index(self, name: str) -> Value:
        place, b = self.indices[name], self.b
        value = place.value
        if value is None:
            value = b.integer(place.offset)
        elif place.offset:
            value = instruction(b, "add", dt.i64, (value, b.integer(place.offset)))
        if self.lane is None or name != self.lane.var or self.lane.lanes == 1:
            return value
        lanes = self.lane.lanes
        key = ("lanes", value, lanes)
        found = b.tables[value.level].get(key)
        if found is None:
            steps = ", ".join([f"i64 {i}" for i in range(lanes)])
            base = splat(b, value, lanes)
            found = Value(b.emit(value.level, f"add <{lanes} x i64> {base.text}, <{steps}>"), dt.i64, lanes, value.level)
            b.tables[value.level][key] = found
        return found

    def _place(self, root: Expr) -> Affine | None:
        """The affine form of an i64 expression that has one and differs from lane to lane."""
        if self.lane is None or self.lane.lanes == 1 or root.dtype is not dt.i64:
            return None
        if root not in self._places:
            self._places[root] = ex.affine_of(root)
        place = self._places[root]
        return place if place and place.coefficient(self.lane.var) else None

    def _narrow_index(self, root: Expr, place: Affine) -> Value:
        """An affine i64 expression wrapped to i32: at the first lane, and from there in i32."""
        lane, self.lane = self.lane, None
        base = instruction(self.b, "convert", dt.i32, [self.value(root)])
        self.lane, lanes, step = lane, lane.lanes, place.coefficient(lane.var)
        table, key = self.b.tables[base.level], ("narrow lanes", base, lanes, step)
        if key not in table:
            steps = ", ".join([f"i32 {i * step & 0xFFFFFFFF}" for i in range(lanes)])
            wide = splat(self.b, base, lanes)
            table[key] = Value(self.b.emit(base.level, f"add <{lanes} x i32> {wide.text}, <{steps}>"), dt.i32, lanes, base.level)
        return table[key]

    # ------------------------------------------------------------------ statements
    def body(self, statements: Iterable[Stmt]) -> None:
        """Emit statements; what they declare is gone afterwards."""
        hidden: dict[str, Value | None] = {}
        for stmt in statements:
            if isinstance(stmt, Store):
                memory.store(self, stmt)
            elif isinstance(stmt, Assign):
                self._assign(stmt)
            elif isinstance(stmt, Decl):
                hidden.setdefault(stmt.name, self.env.get(stmt.name))
                self._declare(stmt)
            elif isinstance(stmt, For):
                self._for(stmt)
            elif isinstance(stmt, If):
                self._choose(stmt)
            elif isinstance(stmt, Ask):
                memory.ask(self, stmt)
            elif isinstance(stmt, Fold):
                for name in stmt.targets:
                    hidden.setdefault(name, self.env.get(name))
                self._fold(stmt)
            else:
                hidden.setdefault(stmt.name, self.env.get(stmt.name))
                emit_tile(self, stmt)
        for name, value in hidden.items():
            if value is None:
                self.env.pop(name, None)  # a tile of matrix registers leaves none
            else:
                self.env[name] = value

    def _declare(self, stmt: Decl) -> None:
        lanes = stmt.lanes
        if lanes > 1 and self.lane is not None and lanes == self.lane.width:
            lanes = self.lane.lanes
        self.env[stmt.name] = splat(self.b, self.value(stmt.init), lanes)

    def _assign(self, stmt: Assign) -> None:
        values = [self._assigned(name, root) for name, root in zip(stmt.names, stmt.values, strict=True)]
        for name, value in zip(stmt.names, values):
            self.env[name] = splat(self.b, value, self.env[name].lanes)

    def _assigned(self, name: str, root: Expr) -> Value:
        if self.env[name].minus and maxima.grows(name, root):
            return maxima.maximum(self.b, self.env[name], splat(self.b, self.value(root.args[1]), self.env[name].lanes))
        return self.value(root)

    def _fold(self, stmt: Fold) -> None:
        values = [self.env[name] for name in stmt.sources]
        inner = {name: self.env.get(name) for i in range(len(values)) for name in (f"a.{i}", f"b.{i}")}
        lanes = values[0].lanes
        while lanes > 1:
            half = lanes // 2
            for i, value in enumerate(values):
                self.env[f"a.{i}"], self.env[f"b.{i}"] = self._low(value, half), self._high(value, half)
            values = [splat(self.b, self.value(root), half) for root in stmt.combine]
            lanes = half
        for name in inner:
            self.env.pop(name, None)
        self.env.update(zip(stmt.targets, values, strict=True))

    def _high(self, value: Value, lanes: int) -> Value:
        if value.dtype.is_half:
            return halves.exact(self._high(halves.wide(self.b, value), lanes), value.dtype)
        if bools.are_bytes(self.b.target, value.dtype, value.lanes):
            return bools.from_bytes(self.b, self._high(bools.to_bytes(self.b, value), lanes))
        type_ = type_text(value.dtype, value.lanes)
        if lanes == 1:
            text = self.b.emit(value.level, f"extractelement {type_} {value.text}, i64 1")
        else:
            text = memory.shuffle(self.b, value.level, type_, value.text, "poison", range(lanes, 2 * lanes))
        return Value(text, value.dtype, lanes, value.level)

    # ------------------------------------------------------------------ loops
    def _for(self, stmt: For) -> None:
        outer = self.indices.get(stmt.var)
        if stmt.extent <= 0:
            return
        if stmt.kind == "vector" and stmt.width > 1:
            self._vector(stmt)
        elif stmt.kind == "parallel" and stmt.extent > 1 and self.outline and not self.indices and (captured := self._captured(stmt)) is not None:
            self.outline(self, stmt, captured)
            for name in self.effects(stmt)[1]:
                self.version[name] = self.version.get(name, 0) + 1
        elif (stmt.extent == 1 and not self.numbers) or (stmt.kind == "unroll" and stmt.extent * _cost(stmt.body) <= UNROLL_LIMIT):
            if stmt.kind == "unroll":
                self.unrolled[stmt.var], outside = stmt.extent, self.unrolled_at
                self.unrolled_at = self.b.level
            for i in range(stmt.extent):
                self.indices[stmt.var] = Index(None, i)
                self.body(stmt.body)
            if self.unrolled.pop(stmt.var, None):
                self.unrolled_at = outside
        else:
            self.counted(stmt, "0", self.number(stmt.extent, "extent", stmt.var), 1, lambda: self.body(stmt.body))
        self.restore_indices({stmt.var: outer})

    def number(self, value: int, *what: str) -> str:
        """The operand for a size, which is an argument where sizes are; `what` it is the size of."""
        return self.numbers.text(what, value) if self.numbers else str(value)

    def _choose(self, stmt: If) -> None:
        dirty = dict(self.dirty)

        def way(body: Sequence[Stmt]) -> None:
            self._stores_within(self.effects(stmt)[1])
            # What is loaded may be out of bounds where the other way is taken.
            roots = [root for s in walk(tuple(body)) for root in statement_roots(s)]
            self.dirty.update((e.attr[0], self.b.level) for e in ex.topological(roots) if e.op == "load")
            self.body(body)
        self.b.choose(self.value(stmt.condition).text, [lambda: way(stmt.body), lambda: way(stmt.other)])
        self.dirty = dirty

    def _stores_within(self, names: Iterable[str]) -> None:
        """The code that begins at this level stores to these buffers: it does not load from them what was loaded before, nor outside of it."""
        for name in names:
            self.version[name] = self.version.get(name, 0) + 1
            self.dirty[name] = self.b.level

    def restore_indices(self, outer: dict[str, Index | None]) -> None:
        """Give loop variables back the meaning that they had outside of a loop."""
        for name, place in outer.items():
            if place is None:
                self.indices.pop(name, None)
            else:
                self.indices[name] = place

    def _vector(self, stmt: For) -> None:
        if self.lane is not None:
            raise CodegenError(f"kernel {self.kernel.name}: vector loop {stmt.var} inside vector loop {self.lane.var}")
        width, (blocks, rest) = stmt.width, divmod(stmt.extent, stmt.width)
        self.ahead, self.piece = self.rows_read_again.get(id(stmt), {}), stmt.extent
        if blocks:
            self.lane = Lane(stmt.var, width, width, width)
            if blocks == 1:
                self.indices[stmt.var] = Index(None)
                self.body(stmt.body)
            else:
                limit = str(blocks * width) if rest else self.number(blocks * width, "extent", stmt.var)
                self.counted(stmt, "0", limit, width, lambda: self.body(stmt.body))
        if rest:
            self.lane = last_lanes(stmt.var, rest, width)
            self.indices[stmt.var] = Index(None, blocks * width)
            self._last_block(stmt)
        self.lane = None

    def _last_block(self, stmt: For) -> None:
        """A block of `lane.active` elements. It is computed with just enough lanes; afterwards the lanes of outer variables
        that the loop assigned are put together from new and old ones."""
        lane = self.lane
        before = {name: self.env[name] for name in sorted(self.effects(stmt)[0]) if name in self.env and self.env[name].lanes == lane.width}
        for name, value in before.items():
            self.env[name] = self._low(value, lane.lanes) if lane.lanes < lane.width else value
        self.body(stmt.body)
        for name, old in before.items():
            self.env[name] = self._merge(self.env[name], old, lane.active)

    def _merge(self, new: Value, old: Value, active: int) -> Value:
        if old.dtype.is_half:
            return halves.exact(self._merge(halves.wide(self.b, new), halves.wide(self.b, old), active), old.dtype)
        if bools.are_bytes(self.b.target, old.dtype, old.lanes):
            return bools.from_bytes(self.b, self._merge(bools.to_bytes(self.b, new), bools.to_bytes(self.b, old), active))
        b, level, type_ = self.b, self.b.level, type_text(old.dtype, old.lanes)
        text = new.text
        if new.lanes == 1:
            return Value(b.emit(level, f"insertelement {type_} {old.text}, {type_text(old.dtype, 1)} {text}, i64 0"), old.dtype, old.lanes, level)
        if new.lanes < old.lanes:
            order = list(range(new.lanes)) + [new.lanes] * (old.lanes - new.lanes)
            text = memory.shuffle(b, level, type_text(old.dtype, new.lanes), text, "poison", order)
        order = list(range(active)) + list(range(old.lanes + active, 2 * old.lanes))
        return Value(memory.shuffle(b, level, type_, text, old.text, order), old.dtype, old.lanes, level)

    def counted(self, stmt: For, first: str, limit: str, step: int, body: Callable[[], None]) -> None:
        """A loop over stmt.var from `first` by `step` while below `limit`, at least once, around `body`."""
        assigned, stored = self.effects(stmt)
        carried = [name for name in sorted(assigned) if name in self.env]
        vectors = [name for name in carried if self.env[name].lanes > 1]
        negated = maxima.carried_negated(walk((stmt,)), self.b.target) & set(vectors) if vectors else frozenset()
        self.loop(stmt.var, first, limit, step, carried, stored, body, negated)

    def loop(self, var: str, first: str, limit: str, step: int, carried: list[str], stored: Iterable[str], body: Callable[[], None],
             negated: frozenset[str] = frozenset()) -> None:
        """A loop that carries the variables `carried`, some of them negated, and stores to the buffers `stored`."""
        b, env = self.b, self.env
        shapes = [(name, env[name].dtype, env[name].lanes) for name in carried]
        phis = [Phi(type_text(v.dtype, v.lanes), b.name(), v.text) for v in (self._register(env[name], name in negated) for name in carried)]
        opened = b.open_loop(phis, first, limit, step)
        for (name, dtype, lanes), phi in zip(shapes, phis):
            env[name] = self._carried(phi.name, dtype, lanes, name in negated)
        dirty = dict(self.dirty)
        self._stores_within(stored)
        self.indices[var] = Index(Value(opened.counter.name, dt.i64, 1, b.level), 0, step)
        body()
        for name, phi in zip(carried, phis):
            phi.following = self._register(env[name], name in negated).text
        b.close_loop(opened)
        for (name, dtype, lanes), phi in zip(shapes, phis):
            env[name] = self._carried(phi.following, dtype, lanes, name in negated)
        self.dirty = dirty

    def _register(self, value: Value, negated: bool = False) -> Value:
        """The form of a variable that loops carry: halves travel as f32, bools as bytes, some maxima negated (`mlc.codegen.maxima`)."""
        if bools.are_bytes(self.b.target, value.dtype, value.lanes):
            return bools.to_bytes(self.b, value)
        return halves.wide(self.b, value) if value.dtype.is_half else maxima.minus(self.b, value) if negated else value

    def _carried(self, text: str, dtype: dt.DType, lanes: int, negated: bool) -> Value:
        """A variable of which this is the form that loops carry."""
        if dtype.is_half:
            return halves.exact(Value(text, dt.f32, lanes, self.b.level), dtype)
        if bools.are_bytes(self.b.target, dtype, lanes):
            return bools.from_bytes(self.b, Value(text, dt.i8, lanes, self.b.level))
        found = Value(text, dtype, lanes, self.b.level)
        return maxima.from_minus(self.b, found) if negated else found

    def effects(self, stmt: For | If | Tile) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the variables that a loop assigns, and of the buffers that it stores to."""
        found = self._effects.get(id(stmt))
        if found is None:
            inner = list(walk((stmt,)))
            assigned = frozenset(name for s in inner if isinstance(s, Assign) for name in s.names)
            found = self._effects[id(stmt)] = assigned, frozenset(s.buffer for s in inner if isinstance(s, Store))
        return found

    def _captured(self, stmt: For) -> list[str] | None:
        """The variables in front of a loop that it reads; None if it assigns one, or reads one with lanes."""
        if not self.env:
            return []
        roots = [root for s in walk(stmt.body) for root in statement_roots(s)]
        assigned = self.effects(stmt)[0]
        sources = {name for s in walk(stmt.body) if isinstance(s, Fold) for name in s.sources}
        used = {node.attr for node in ex.topological(roots) if node.op == "var"} | assigned | sources
        outside = sorted(used & self.env.keys())
        return None if any(name in assigned or self.env[name].lanes > 1 for name in outside) else outside

    def operand(self, value: Value) -> str:
        """The value as an operand of LLVM's type for it."""
        return halves.bits(self.b, value) if value.dtype.is_half else value.text


def _cost(body: Iterable[Stmt]) -> int:
    """A rough number of LLVM instructions of a body, unrolled loops unrolled."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            total += _cost(stmt.body) * (stmt.extent if stmt.kind == "unroll" else 1) * (2 if stmt.kind == "vector" else 1)
        elif isinstance(stmt, If):
            total += _cost(stmt.body) + _cost(stmt.other)
        elif isinstance(stmt, Tile):
            columns = -(-stmt.n // stmt.width)
            total += stmt.m * columns * (2 + _cost(stmt.body)) + (_cost((stmt.beside,)) if stmt.beside else 0)
        elif isinstance(stmt, Fold):
            total += 6 * len(ex.topological(stmt.combine))
        else:
            total += len(ex.topological(statement_roots(stmt)))
    return total
