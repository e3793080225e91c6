"""From groups of roots to a `KernelGraph`: stages, row scratch, canonical names, program values.

Inside a kernel a root is, in this order of preference: inlined into the stage that reads it at the same index; a scalar bound
per row; a row of scratch; and an output buffer if another kernel or the caller needs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import dataclass, field
from mlc.core.dims import TensorType
from mlc.core.expr import Expr, make
from mlc.graph.graph import Graph
from mlc.graph.text import value_names
from mlc.kernel.axes import collapse_kernel, rebase, rebase_put, renaming, stage_parts
from mlc.kernel.ir import Attend, Axis, Bind, Dot, Kernel, KernelGraph, Param, Put, Stage, Step, Value
from mlc.passes.access import is_stored, view_base
from mlc.passes.attend import attend_kernel
from mlc.passes.contract import dot_kernel
from mlc.passes.fuse import Group, fuse, order_groups, result_extents, row_aligned
from mlc.passes.repeat import Kernels
from mlc.passes.rootexpr import ATTEND, MAP, PIECES, REDUCE, RootExpr


@dataclass
class _Slot:
    """A stage being built: the roots in it share `level` and the loop extents `inner`."""

    level: int
    inner: tuple[int, ...]
    over: tuple[int, ...]
    reduces: list = field(default_factory=list)
    puts: list = field(default_factory=list)
    finish: list = field(default_factory=list)


class GroupBuilder:
    """Builds the kernel of a map or row group."""

    def __init__(self, graph: Graph, group: Group, escapes: set[int]):
        self.graph, self.group, self.escapes = graph, group, escapes
        self.rows = len(group.shape) if group.kind == "row" else 0
        self.row_axes = tuple((f"i{k}", e) for k, e in enumerate(group.shape)) if group.kind == "row" else ()
        self.member = {m.node: m for m in group.members}
        self.level: dict[int, int] = {}
        self.slots: dict[tuple, _Slot] = {}
        self.slot_of: dict[int, _Slot] = {}
        self.expr: dict[int, Expr] = {}       # roots that a reader in the same stage may inline, over canonical axes
        self.scratch: dict[int, TensorType] = {}
        self.bound: dict[int, str] = {}

    # ----------------------------------------------------------------- shapes and axes
    def inner(self, root: RootExpr) -> tuple[Axis, ...]:
        return root.axes[self.rows:]

    def inner_result(self, node: int) -> tuple[int, ...]:
        return result_extents(self.member[node])[self.rows:]

    def axis_names(self, root: RootExpr) -> dict[str, Affine]:
        return renaming({name: (f"i{p}" if p < self.rows else f"j{p - self.rows}") for p, (name, _) in enumerate(root.axes)})

    def same_index(self, index: Affine, root: RootExpr, producer: RootExpr) -> bool:
        """Does the root read the producer at exactly the index it computes (all axes)?"""
        if result_extents(producer) != tuple(e for _, e in root.axes):
            return False
        return row_aligned(index, root, result_extents(producer), len(root.axes))

    # ----------------------------------------------------------------- levels
    def _shares_loop(self, reader: RootExpr, producer: RootExpr, indices: set[Affine]) -> bool:
        """May the reader sit in the producer's own loop? Only behind a map, at the same index, and not with kept axes beside reduced ones."""
        if producer.kind != MAP or not all(self.same_index(i, reader, producer) for i in indices):
            return False
        return reader.kind == MAP or self._full(reader)

    def _full(self, root: RootExpr) -> bool:
        """A reduction over all of its inner axes."""
        return root.kind == REDUCE and len(root.over) == len(self.inner(root))

    def _key(self, root: RootExpr, level: int) -> tuple:
        inner = tuple(e for _, e in self.inner(root))
        if root.kind == MAP or self._full(root):
            return level, inner, ()
        return level, inner, tuple(p for p, (name, _) in enumerate(self.inner(root)) if name in root.over)

    def place(self) -> None:
        """Give each root the earliest level that its producers in the group allow, and the slot for that level and loop."""
        for root in self.group.members:
            level = 0
            for n, indices in root.reads().items():
                if n in self.member:
                    same = self._shares_loop(root, self.member[n], indices)
                    level = max(level, self.level[n] + (0 if same else 1))
            self.level[root.node] = level
            key = self._key(root, level)
            slot = self.slots.setdefault(key, _Slot(level, key[1], key[2]))
            self.slot_of[root.node] = slot

    # ----------------------------------------------------------------- values
    def row_terms(self, extents: tuple[int, ...]) -> Affine:
        stride, total = math.prod(extents[self.rows:]), Affine()
        for p in range(self.rows - 1, -1, -1):
            total = total + Affine(0, ((f"i{p}", stride),))
            stride *= extents[p]
        return total

    def resolve(self, root: RootExpr):
        """How this root's loads of other members are replaced."""
        slot = self.slot_of[root.node]

        def loads(name: str, index: Affine, moved: Affine) -> Expr | None:
            n = int(name[1:])
            if n not in self.member:
                return None
            producer = self.member[n]
            if self.slot_of[n] is slot and self._shares_loop(root, producer, {index}):
                return self.expr[n]
            if n in self.bound:
                return ex.var(self.bound[n], self.graph.nodes[n].type.dtype)
            if n in self.escapes:
                return None
            self.scratch.setdefault(n, TensorType(self.inner_result(n), self.graph.nodes[n].type.dtype))
            local = Affine(moved.offset, (t for t in moved.terms if not t[0].startswith("i")))
            return make("load", self.graph.nodes[n].type.dtype, (), (f"s{n}", local))
        return loads

    def emit(self) -> None:
        for root in self.group.members:
            (self._emit_map if root.kind == MAP else self._emit_reduce)(root)

    def _targets(self, n: int, value: Expr, index: Affine) -> list[Put]:
        return [Put(f"v{n}", self.row_terms(result_extents(self.member[n])) + index, value)] if n in self.escapes else []

    def _inner_index(self, root: RootExpr) -> Affine:
        kept = [(f"j{p}", e) for p, (name, e) in enumerate(self.inner(root)) if name not in root.over]
        stride, total = 1, Affine()
        for name, extent in reversed(kept):
            total = total + Affine(0, ((name, stride),))
            stride *= extent
        return total

    def _emit_map(self, root: RootExpr) -> None:
        n, slot = root.node, self.slot_of[root.node]
        (value,) = rebase([root.value], self.axis_names(root), self.resolve(root))
        self.expr[n] = value
        if not slot.inner and self.group.kind == "row":
            self.bound[n] = f"t{n}"
            slot.finish.append(Bind(f"t{n}", value))
            slot.finish.extend(self._targets(n, ex.var(f"t{n}", value.dtype), Affine()))
            return
        slot.puts.extend(self._targets(n, value, self._inner_index(root)))

    def _emit_reduce(self, root: RootExpr) -> None:
        n, slot, axes = root.node, self.slot_of[root.node], self.axis_names(root)
        values = rebase(root.reduce.values, axes, self.resolve(root))
        reduce = root.reduce
        slot.reduces.append(type(reduce)(reduce.names, reduce.dtypes, reduce.identity, tuple(values), reduce.combine))
        if not slot.over:
            self.bound[n] = f"t{n}"
            slot.finish.append(Bind(f"t{n}", root.finish))
            slot.finish.extend(self._targets(n, ex.var(f"t{n}", root.finish.dtype), Affine()))
        else:
            slot.finish.extend(self._targets(n, root.finish, self._inner_index(root)))
            if n not in self.escapes:
                slot.finish.append(Put(f"s{n}", self._inner_index(root), root.finish))
                self.scratch.setdefault(n, TensorType(self.inner_result(n), root.finish.dtype))

    def build(self) -> tuple[list[Stage], tuple[Axis, ...], dict[int, TensorType]]:
        """Stages in order, the row axes, and the scratch values."""
        self.place()
        self.emit()
        for n in self.scratch:
            if self.member[n].kind == MAP:
                self.slot_of[n].puts.append(Put(f"s{n}", self._inner_index(self.member[n]), self.expr[n]))
        stages = []
        for slot in sorted(self.slots.values(), key=lambda s: s.level):
            axes = tuple((f"j{p}", e) for p, e in enumerate(slot.inner))
            if slot.reduces and not slot.over:
                stages.append(Stage((), axes, tuple(slot.reduces), tuple(slot.puts), tuple(slot.finish)))
            elif slot.over:
                kept = tuple(a for p, a in enumerate(axes) if p not in slot.over)
                over = tuple(a for p, a in enumerate(axes) if p in slot.over)
                stages.append(Stage(kept, over, tuple(slot.reduces), tuple(slot.puts), tuple(slot.finish)))
            else:
                stages.append(Stage(axes, (), (), tuple(slot.puts), tuple(slot.finish)))
        return [s for s in stages if s.puts or s.finish or s.reduces], self.row_axes, self.scratch


def _pieces_stages(root: RootExpr) -> list[Stage]:
    stages = []
    for axes, put in root.pieces:
        names = {name: f"j{p}" for p, (name, _) in enumerate(axes)}
        stages.append(Stage(tuple((names[name], e) for name, e in axes), (), (), (rebase_put(put, renaming(names)),)))
    return stages


# --------------------------------------------------------------------------- canonical kernels and the program
def _buffer_names(stages: Sequence) -> list[str]:
    """Names of loaded and stored buffers in order of first appearance."""
    found: dict[str, None] = {}
    for stage in stages:
        exprs, puts = stage_parts(stage)
        for e in ex.topological(exprs):
            if e.op == "load":
                found.setdefault(e.attr[0])
        for put in puts:
            found.setdefault(put.target)
    return list(found)


def _rename_stage(stage, buffers: dict[str, str], variables: dict[str, str]):
    def leaf(node: Expr) -> Expr | None:
        if node.op == "load":
            return make("load", node.dtype, (), (buffers[node.attr[0]], node.attr[1]))
        if node.op == "var" and node.attr in variables:
            return ex.var(variables[node.attr], node.dtype)
        return None

    def sub(exprs): return tuple(ex.substitute(exprs, leaf))
    def put(p): return Put(buffers[p.target], p.index, sub([p.value])[0])
    if isinstance(stage, Attend):
        name = variables[stage.name]
        variables = {**variables, stage.dot.attr: f"{name}.s", stage.distance.attr: f"{name}.x"}
        parts = sub([stage.query, stage.key, stage.score, stage.weight, stage.value])
        return Attend(name, stage.dtype, *stage.axes, *parts, tuple(map(put, stage.puts)))
    if isinstance(stage, Dot):
        return Dot(variables[stage.name], stage.dtype, stage.m, stage.n, stage.k, *sub([stage.a, stage.b]), tuple(map(put, stage.puts)))
    reduces = tuple(type(r)(tuple(variables[x] for x in r.names), r.dtypes, r.identity, sub(r.values), r.combine) for r in stage.reduces)
    finish = tuple(put(f) if isinstance(f, Put) else Bind(variables[f.name], sub([f.value])[0]) for f in stage.finish)
    return Stage(stage.axes, stage.over, reduces, tuple(map(put, stage.puts)), finish)


def canonical_kernel(graph: Graph, name: str, stages: Sequence, rows: tuple[Axis, ...], scratch: dict[str, TensorType]) -> tuple[Kernel, list[int]]:
    """Rename buffers to %a0.., %o0.., %s0.. and variables to t0..; returns the kernel and the node ids bound to its in/out params."""
    written = {p.target for stage in stages for p in stage_parts(stage)[1]}
    buffers, params, bound, counts = {}, [], [], {"in": 0, "out": 0, "scratch": 0}
    for old in _buffer_names(stages):
        role = "scratch" if old in scratch else "out" if old in written else "in"
        new = {"in": "a", "out": "o", "scratch": "s"}[role] + str(counts[role])
        counts[role] += 1
        buffers[old] = new
        type = scratch[old] if role == "scratch" else graph.nodes[int(old[1:])].type
        # A kernel sees buffers, not shapes: flat types let more kernels be equal.
        params.append(Param(new, TensorType((type.size,), type.dtype), role))
        if role != "scratch":
            bound.append(int(old[1:]))
    variables: dict[str, str] = {}
    for stage in stages:
        for reduce in getattr(stage, "reduces", ()):
            for x in reduce.names:
                variables.setdefault(x, f"t{len(variables)}")
        for f in getattr(stage, "finish", ()):
            if isinstance(f, Bind):
                variables.setdefault(f.name, f"t{len(variables)}")
        if isinstance(stage, (Dot, Attend)):
            variables.setdefault(stage.name, f"t{len(variables)}")
    renamed = tuple(_rename_stage(s, buffers, variables) for s in stages)
    order = {"in": 0, "out": 0, "scratch": 1}
    params.sort(key=lambda p: order[p.role])
    return collapse_kernel(Kernel(name, tuple(params), rows, renamed, in_place(params, renamed))), bound


def in_place(params: Sequence[Param], stages: Sequence) -> frozenset[tuple[str, str]]:
    """Pairs (in, out) of a one-stage map or contraction where `in` is only loaded at the index that `out` is stored at, and not by a
    later store."""
    if len(stages) != 1 or isinstance(stages[0], Attend) or (isinstance(stages[0], Stage) and stages[0].over):
        return frozenset()
    (stage,) = stages
    puts = stage_parts(stage)[1]
    loads = [[e.attr for e in ex.topological([put.value]) if e.op == "load"] for put in puts]
    if any(name == put.target for put in puts for found in loads for name, _ in found):
        return frozenset()
    operands = {e.attr[0] for e in ex.topological([stage.a, stage.b]) if e.op == "load"} if isinstance(stage, Dot) else set()
    by_name = {p.name: p for p in params}
    pairs = set()
    for position, put in enumerate(puts):
        target = by_name[put.target].type
        indices: dict[str, set[Affine]] = {}
        for name, index in (access for found in loads for access in found):
            indices.setdefault(name, set()).add(index)
        later = {name for found in loads[position + 1:] for name, _ in found} | operands
        for name, found in indices.items():
            source = by_name[name]
            same = source.type.size == target.size and source.type.dtype.itemsize == target.dtype.itemsize
            if source.role == "in" and same and found == {put.index} and name not in later:
                pairs.add((name, put.target))
    return frozenset(pairs)


def _kernel_name(graph: Graph, group: Group) -> str:
    names = list(dict.fromkeys(graph.nodes[m.node].op.name if m.kind != ATTEND else "attention" for m in group.members))
    return "_".join(n.removeprefix("reduce_") for n in names[:4]) + ("_etc" if len(names) > 4 else "")


def _escaping(graph: Graph, groups: Sequence[Group]) -> dict[int, set[int]]:
    """Per group id: its members that another group or the caller reads."""
    home = {m.node: g.id for g in groups for m in g.members}
    escapes: dict[int, set[int]] = {g.id: set() for g in groups}
    for output in graph.outputs:
        base = view_base(graph, output)
        if base in home:
            escapes[home[base]].add(base)
    for group in groups:
        for member in group.members:
            for n in member.reads():
                if n in home and home[n] != group.id:
                    escapes[home[n]].add(n)
    return escapes


class _Program:
    """Collects values and steps of the KernelGraph."""

    def __init__(self, graph: Graph, printed: Mapping[int, str]):
        self.graph, self.printed = graph, printed
        self.out = KernelGraph(graph.name)
        self.names: dict[int, str] = {}
        for p in graph.params:
            self.declare(p, graph.nodes[p].attrs["name"], "input")
        self.out.inputs = tuple(self.names[p] for p in graph.params)

    def declare(self, n: int, name: str, role: str) -> str:
        type = self.graph.nodes[n].type
        self.names[n] = name
        self.out.values[name] = Value(name, type, role, n)
        return name

    def fresh(self, name: str) -> str:
        """The name, or a longer one when the user has a parameter of that name (an argument `t` that is a list has `t.1`)."""
        while name in self.out.values:
            name += "_"
        return name

    def value(self, n: int) -> str:
        if n not in self.names:
            node = self.graph.nodes[n]
            constant = node.op.name == "constant" and is_stored(node)
            self.declare(n, self.fresh(f"c.{len(self.names)}" if constant else f"t.{self.printed[n][1:]}"), "constant" if constant else "temp")
        return self.names[n]

    def copy(self, source: int, name: str, target: int) -> None:
        """A step that copies a stored value into an output."""
        type = self.graph.nodes[source].type
        size = type.size
        index = Affine(0, (("j0", 1),)) if size != 1 else Affine()
        axes = (("j0", size),) if size != 1 else ()
        stage = Stage(axes, (), (), (Put("o0", index, make("load", type.dtype, (), ("a0", index))),))
        flat = TensorType((size,), type.dtype)
        kernel = Kernel("copy", (Param("a0", flat, "in"), Param("o0", flat, "out")), (), (stage,))
        self.out.steps.append(Step(kernel, (self.value(source), name)))

    def bind_outputs(self) -> None:
        """Outputs own their memory: a temp becomes the output buffer; inputs, constants and repeats are copied."""
        outputs = []
        for k, n in enumerate(self.graph.outputs):
            base, name = view_base(self.graph, n), self.fresh(f"out.{k}")
            current = self.out.values[self.value(base)]
            self.out.values[name] = Value(name, self.graph.nodes[n].type, "output", n)
            if current.role == "temp":
                del self.out.values[current.name]
                self.names[base] = name
                self.out.steps = [Step(s.kernel, tuple(name if a == current.name else a for a in s.args)) for s in self.out.steps]
            else:
                self.copy(base, name, n)
            outputs.append(name)
        self.out.outputs = tuple(outputs)
        self.out.constants = tuple(v.name for v in self.out.values.values() if v.role == "constant")


def _group_kernel(graph: Graph, group: Group, escapes: set[int]) -> tuple[Kernel, list[int]]:
    """A group's kernel, and the nodes bound to it."""
    if group.kind in ("dot", "attend"):
        stages, rows, scratch = (dot_kernel if group.kind == "dot" else attend_kernel)(graph, group, escapes)
    elif group.members[0].kind == PIECES:
        stages, rows, scratch = _pieces_stages(group.members[0]), (), {}
    else:
        stages, rows, found = GroupBuilder(graph, group, escapes).build()
        scratch = {f"s{n}": t for n, t in found.items()}
    return canonical_kernel(graph, _kernel_name(graph, group), stages, rows, scratch)


def partition(graph: Graph) -> KernelGraph:
    """Cut the optimized graph into kernels, in a legal order. Raises UnsupportedError for symbolic dims."""
    names = value_names(graph)
    groups, notes = fuse(graph, names)
    escapes = _escaping(graph, groups)
    program, kernels = _Program(graph, names), Kernels()
    program.out.notes = notes
    for group in order_groups(groups):
        mine = escapes[group.id]
        kernel, bound = kernels.of(group, mine, lambda group, mine=mine: _group_kernel(graph, group, mine))
        if kernel.stages:  # not of a splat whose readers turned out not to read it
            program.out.steps.append(Step(kernel, tuple(program.value(n) for n in bound)))
    program.bind_outputs()
    return program.out
