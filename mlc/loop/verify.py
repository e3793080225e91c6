"""The loop verifier: one function an invariant, sharing no code with lowering or loop transformations.

`INVARIANTS` is in order: each may assume those before it. Proofs about memory (`mlc.loop.verify_memory`) take the loops' exact extents,
so lanes past the end of a masked vector loop don't count, and nothing under an empty loop does.
"""

from __future__ import annotations

from mlc.core import dtype as dt
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.errors import VerifyError
from mlc.core.expr import Expr, topological
from mlc.loop.ir import Ask, Assign, Decl, Fold, For, If, LoopKernel, Store, Tile
from mlc.loop.sites import Site, all_sites
from mlc.loop.verify_memory import (
    Sites,
    aliases_read_before_write,
    every_load_in_bounds,
    every_output_element_is_written,
    every_store_in_bounds,
    fail,
    only_out_and_scratch_are_stored,
    parallel_iterations_are_independent,
    scratch_stays_inside_its_iteration,
    shared_assignments,
    vector_lanes_are_independent,
    what_runs_beside_a_tile_stays_apart,
)


# --------------------------------------------------------------------------- structure
def buffers_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """Distinct names, known roles, sizes of at least 0, the kernel's own last; streams are "out" and not loaded;
    may_alias pairs are an "in" and an "out" of one element size."""
    here = f"kernel @{kernel.name}"
    names = [b.name for b in kernel.buffers]
    if len(set(names)) != len(names):
        fail("buffers_are_well_formed", here, names, "distinct buffer names")
    for b in kernel.buffers:
        if b.role not in ("in", "out", "scratch", "shared") or b.size < 0:
            fail("buffers_are_well_formed", f"{here} buffer %{b.name}", f"role {b.role}, size {b.size}", "in, out, scratch or shared; size >= 0")
    roles = [b.role in ("scratch", "shared") for b in kernel.buffers]
    if roles != sorted(roles):
        fail("buffers_are_well_formed", here, [b.role for b in kernel.buffers], "scratch and shared buffers last")
    loaded = {node.attr[0] for site in sites for node in topological(site.roots) if node.op == "load"}
    for name in sorted(kernel.streams):
        if name not in names or kernel.buffer(name).role != "out" or name in loaded:
            fail("buffers_are_well_formed", f"{here} stream(%{name})", "another buffer", "an out buffer that is never loaded")
    for source, target in sorted(kernel.may_alias):
        pair = f"{here} may_alias (%{source}, %{target})"
        if source not in names or target not in names or (kernel.buffer(source).role, kernel.buffer(target).role) != ("in", "out"):
            fail("buffers_are_well_formed", pair, "another pair", "an in buffer and an out buffer")
        if kernel.buffer(source).dtype.itemsize != kernel.buffer(target).dtype.itemsize:
            fail("buffers_are_well_formed", pair, (kernel.buffer(source).dtype, kernel.buffer(target).dtype), "elements of one size")


def loops_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """Known kinds, extents of at least 0, widths only on vector loops, parallel loops outermost."""
    for site in sites:
        stmt = site.stmt
        if not isinstance(stmt, For):
            continue
        if stmt.kind not in ("serial", "parallel", "vector", "unroll"):
            fail("loops_are_well_formed", site.where, f"kind {stmt.kind}", "serial, parallel, vector or unroll")
        if stmt.extent < 0:
            fail("loops_are_well_formed", site.where, f"extent {stmt.extent}", "at least 0")
        if stmt.width < 1 or (stmt.width != 1 and stmt.kind != "vector"):
            fail("loops_are_well_formed", site.where, f"width {stmt.width}", "at least 1; only on vector loops more")
        if stmt.kind == "parallel" and site.loops:
            fail("loops_are_well_formed", site.where, f"a parallel loop inside {site.loops[-1].var}", "parallel loops outermost")


def vector_loops_do_not_nest(kernel: LoopKernel, sites: Sites) -> None:
    """No vector loop, and no tile (which holds one), inside a vector loop."""
    for site in sites:
        vector = site.vector
        own_operand = isinstance(site.stmt, Tile) and site.part
        if vector and not own_operand and (isinstance(site.stmt, Tile) or (isinstance(site.stmt, For) and site.stmt.kind == "vector")):
            fail("vector_loops_do_not_nest", site.where, f"inside vector loop {vector.var}", "no vector loop around it")


def tiles_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """Positive sizes, numeric accumulators, a body of Decl and Store only, `b` loads contiguous (or the same) along c."""
    for site in sites:
        tile = site.stmt
        if not isinstance(tile, Tile):
            continue
        sizes = (tile.m, tile.n, tile.depth, tile.width)
        if min(sizes) < 1:
            fail("tiles_are_well_formed", site.where, f"m, n, depth, width = {sizes}", "all at least 1")
        if tile.dtype is dt.bool_:
            fail("tiles_are_well_formed", site.where, "bool accumulators", "a numeric dtype")
        total = dt.f32 if tile.parts == (dt.bf16, dt.bf16) else dt.i32
        alike = ((dt.i8, dt.i8), (dt.u8, dt.u8)) if tile.block else ((dt.i16, dt.i16),)
        if tile.parts and (tile.parts not in ((dt.u8, dt.i8), (dt.i8, dt.u8), (dt.bf16, dt.bf16), *alike) or tile.dtype is not total):
            fail("tiles_are_well_formed", site.where, f"parts {' '.join(map(str, tile.parts))} of {tile.dtype}",
                  "u8 i8, i8 u8 or i16 i16 (in blocks i8 i8 or u8 u8 instead) of i32, bf16 bf16 of f32")
        if tile.block < 0 or (tile.block and (not tile.parts or tile.beside)):
            fail("tiles_are_well_formed", site.where, f"block {tile.block}", "a size of blocks, only of words, with nothing beside")
        if tile.normal and tile.parts != (dt.bf16, dt.bf16):
            fail("tiles_are_well_formed", site.where, "normal", "only with parts bf16 bf16")
        if tile.beside and (tile.beside.kind != "serial" or tile.beside.extent < 1 or tile.depth % tile.beside.extent):
            fail("tiles_are_well_formed", site.where, f"{tile.beside.kind} {tile.beside.var} in {tile.beside.extent} beside {tile.depth} steps",
                  "a serial loop whose extent divides the steps")
        for stmt in tile.body:
            if not isinstance(stmt, (Decl, Store)):
                fail("tiles_are_well_formed", site.where, f"{type(stmt).__name__} in its body", "Decl and Store")
        for node in topological((tile.b,)):
            if node.op == "load" and node.attr[1].coefficient(tile.c) not in (0, 1):
                fail("tiles_are_well_formed", site.where, f"b loads %{node.attr[0]}[{node.attr[1]}]", f"coefficient 0 or 1 of {tile.c}")


def branches_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """A choice is not made in a vector loop, and assigns no variable from outside."""
    for site in sites:
        if isinstance(site.stmt, If) and site.vector:
            fail("branches_are_well_formed", site.where, f"inside vector loop {site.vector.var}", "outside vector loops")
    for kind in ("then", "else"):
        for site, name in shared_assignments(sites, kind):
            fail("branches_are_well_formed", site.where, f"{name} from outside assigned", "variables declared inside the branch")


def folds_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """One target and one combine (over a.i and b.i) a source; sources have one power of two of lanes; not in a vector loop."""
    for site in sites:
        fold = site.stmt
        if not isinstance(fold, Fold):
            continue
        if not len(fold.targets) == len(fold.sources) == len(fold.combine) == len(set(fold.targets)) > 0:
            fail("folds_are_well_formed", site.where, (fold.targets, fold.sources, len(fold.combine)), "one target and one combine a source")
        if site.vector:
            fail("folds_are_well_formed", site.where, f"inside vector loop {site.vector.var}", "outside vector loops")
        lanes = {site.scope[s].lanes for s in fold.sources if s in site.scope}
        if len(lanes) > 1 or any(n & (n - 1) for n in lanes):
            fail("folds_are_well_formed", site.where, f"lanes {sorted(lanes)}", "one power of two")
        allowed = {f"{side}.{i}" for side in "ab" for i in range(len(fold.sources))}
        for node in topological(fold.combine):
            if node.op in ("load", "index", "arg") or (node.op == "var" and node.attr not in allowed):
                fail("folds_are_well_formed", site.where, f"{node.op} {node.attr} in combine", f"only {', '.join(sorted(allowed))}")


# --------------------------------------------------------------------------- names and types
def names_are_not_shadowed(kernel: LoopKernel, sites: Sites) -> None:
    """A loop variable or variable is declared once in any scope, and no name is both."""
    for site in sites:
        stmt, open_names = site.stmt, {*site.scope, *site.extents}
        new: tuple[str, ...] = ()
        if isinstance(stmt, For):
            new = (stmt.var,)
        elif isinstance(stmt, Decl):
            new = (stmt.name,)
        elif isinstance(stmt, Fold):
            new = stmt.targets
        elif isinstance(stmt, Tile) and not site.part:
            new = (stmt.name, stmt.r, stmt.c, stmt.k, *([stmt.beside.var] if stmt.beside else []))
        clash = [name for i, name in enumerate(new) if name in open_names or name in new[:i]]
        if clash:
            fail("names_are_not_shadowed", site.where, f"{clash[0]} declared again", "a name that is not in scope")


def names_are_declared_before_use(kernel: LoopKernel, sites: Sites) -> None:
    """Variables, loop variables (also in affine indices) and buffers exist where they are used."""
    buffers = {b.name for b in kernel.buffers}

    def need(site: Site, name: object, known: object, what: str) -> None:
        if name not in known:
            fail("names_are_declared_before_use", site.where, f"{what} {name}", f"one of {sorted(n for n in known if n)}")

    def need_place(site: Site, buffer: str, index: Affine) -> None:
        need(site, buffer, buffers, "buffer")
        for name, _ in index.terms:
            need(site, name, site.extents, "loop variable")

    for site in sites:
        stmt = site.stmt
        for name in stmt.names if isinstance(stmt, Assign) else stmt.sources if isinstance(stmt, Fold) else ():
            need(site, name, site.scope, "variable")
        if isinstance(stmt, (Store, Ask)):
            need_place(site, stmt.buffer, stmt.index)
        for node in topological(site.roots):
            if node.op == "var":
                need(site, node.attr, site.scope, "variable")
            elif node.op == "index":
                need(site, node.attr, site.extents, "loop variable")
            elif node.op == "load":
                need_place(site, *node.attr)


_ANY = frozenset("biuf")
# Operand kinds of instructions whose operands and result have one dtype.
_SAME = {"add": "iuf", "sub": "iuf", "mul": "iuf", "div": "iuf", "rem": "iuf", "neg": "iuf", "abs": "iuf", "min": _ANY, "max": _ANY,
         "fma": "f", "sqrt": "f", "floor": "f", "ceil": "f", "rint": "f", "trunc": "f",
         "and": "biu", "or": "biu", "xor": "biu", "not": "biu", "shl": "iu", "shr_arith": "iu", "shr_logical": "iu", "pow": "iu"}
_ARITY = {"neg": 1, "abs": 1, "sqrt": 1, "floor": 1, "ceil": 1, "rint": 1, "trunc": 1, "not": 1, "fma": 3}
_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")


def _legal(node: Expr) -> bool:
    """Whether an instruction accepts its operands' dtypes and gives its own."""
    types, result = [a.dtype for a in node.args], node.dtype
    if node.op in _SAME:
        return len(types) == _ARITY.get(node.op, 2) and all(t is result for t in types) and result.kind in _SAME[node.op]
    if node.op in _COMPARES:
        return len(types) == 2 and types[0] is types[1] and result is dt.bool_
    if node.op in ("select", "mostly"):
        return len(types) == 3 and types[0] is dt.bool_ and types[1] is types[2] is result
    if node.op == "convert":
        return len(types) == 1
    if node.op == "scale":
        return types == [dt.f32, dt.f32] and result is dt.f32
    if node.op == "table":
        entries = node.args[1:]
        return (types[:1] == [dt.i32] and result in (dt.f32, dt.f64) and len(entries) > 1 and len(entries) & (len(entries) - 1) == 0
                and all(e.op == "const" and e.dtype is result for e in entries))
    if node.op == "bitcast":
        return len(types) == 1 and types[0].bits == result.bits and dt.bool_ not in (types[0], result)
    return False


def _leaf_fault(node: Expr, kernel: LoopKernel, variables: dict[str, DType]) -> str:
    """What the dtype (or constant) of a leaf should be, if it is something else."""
    if node.op == "const":
        low, high = (0, (1 << node.dtype.bits) - 1) if node.dtype.is_float else (int(node.dtype.min), int(node.dtype.max))
        return "" if isinstance(node.attr, int) and low <= node.attr <= high else f"a number in {low}..{high}"
    if node.op == "index":
        return "" if node.dtype is dt.i64 else "i64"
    if node.op == "load":
        expected = kernel.buffer(node.attr[0]).dtype
    elif node.op == "var":
        expected = variables[node.attr]
    else:
        return "no such leaf in a loop kernel"
    return "" if node.dtype is expected else str(expected)


def expressions_are_well_typed(kernel: LoopKernel, sites: Sites) -> None:
    """Every instruction has legal operand and result dtypes; loads, variables and indices have their declared dtype."""
    for site in sites:
        variables, roots = {n: v.dtype for n, v in site.scope.items()}, site.roots
        if isinstance(site.stmt, Fold):
            roots = site.stmt.combine
            variables = {f"{side}.{i}": variables[s] for i, s in enumerate(site.stmt.sources) for side in "ab"}
        for node in topological(roots):
            if node.args or node.op not in ("const", "index", "load", "var", "arg"):
                if not _legal(node) or node.attr is not None:
                    found = f"{node.op} of ({', '.join(str(a.dtype) for a in node.args)}) giving {node.dtype}"
                    fail("expressions_are_well_typed", site.where, found, "dtypes the instruction accepts")
            elif fault := _leaf_fault(node, kernel, variables):
                fail("expressions_are_well_typed", site.where, f"{node.op} {node.attr} : {node.dtype}", fault)


def values_have_the_declared_dtype(kernel: LoopKernel, sites: Sites) -> None:
    """Declared, assigned, stored, folded and tile values have the dtype of where they go."""
    for site in sites:
        stmt = site.stmt
        if isinstance(stmt, Decl):
            wanted = [stmt.dtype]
        elif isinstance(stmt, Assign):
            if not len(stmt.names) == len(stmt.values) == len(set(stmt.names)) > 0:
                fail("values_have_the_declared_dtype", site.where, f"{len(stmt.values)} values for {stmt.names}", "one a distinct name")
            wanted = [site.scope[name].dtype for name in stmt.names]
        elif isinstance(stmt, Store):
            wanted = [kernel.buffer(stmt.buffer).dtype]
        elif isinstance(stmt, Tile):
            wanted = [dt.i32 if stmt.parts else stmt.dtype] * len(site.roots)
        elif isinstance(stmt, If):
            wanted = [dt.bool_]
        elif isinstance(stmt, Fold):
            wanted = [site.scope[name].dtype for name in stmt.sources]
        else:
            continue
        found = [e.dtype for e in (stmt.combine if isinstance(stmt, Fold) else site.roots)]
        if found != wanted:
            fail("values_have_the_declared_dtype", site.where, found, wanted)


def lanes_agree(kernel: LoopKernel, sites: Sites) -> None:
    """Values have one lane or their surroundings' width; only a value of one lane goes where there is one."""
    for site in sites:
        stmt, vector = site.stmt, site.vector
        width = vector.width if vector else None
        lanes: dict[Expr, int] = {}
        for node in topological(site.roots):
            own = [lanes[a] for a in node.args]
            if node.op == "var":
                own = [site.scope[node.attr].lanes]
            elif vector and ((node.op == "index" and node.attr == vector.var) or (node.op == "load" and node.attr[1].coefficient(vector.var))):
                own = [vector.width]
            many = {n for n in own if n != 1}
            if len(many) > 1 or (many and width not in (None, *many)):
                fail("lanes_agree", site.where, f"{node.op} over {sorted(many)} lanes", f"1 or {width or 'one number of'} lanes")
            lanes[node] = max(many, default=1)
        if isinstance(stmt, Decl):
            if stmt.lanes < 1 or (vector and stmt.lanes not in (1, width)):
                fail("lanes_agree", site.where, f"{stmt.name} with {stmt.lanes} lanes", f"1 or {width or 'more'}")
            places = [stmt.lanes]
        elif isinstance(stmt, Assign):
            places = [site.scope[name].lanes for name in stmt.names]
            if any(vector and n not in (1, width) for n in places):
                fail("lanes_agree", site.where, f"{places} lanes assigned", f"1 or {width}")
        elif isinstance(stmt, Store):
            places = [width or 1]
        elif isinstance(stmt, If):
            places = [1]
        elif isinstance(stmt, Tile):
            places = [stmt.width if site.part == "b" else 1]
        else:
            continue
        for root, place in zip(site.roots, places):
            if lanes[root] not in (1, place):
                fail("lanes_agree", site.where, f"a value of {lanes[root]} lanes", f"1{'' if place == 1 else f' or {place}'}")


INVARIANTS = (
    buffers_are_well_formed, loops_are_well_formed, vector_loops_do_not_nest, tiles_are_well_formed, names_are_not_shadowed,
    names_are_declared_before_use, branches_are_well_formed, folds_are_well_formed, expressions_are_well_typed, values_have_the_declared_dtype,
    lanes_agree,
    every_load_in_bounds, every_store_in_bounds, only_out_and_scratch_are_stored, scratch_stays_inside_its_iteration,
    parallel_iterations_are_independent, vector_lanes_are_independent, what_runs_beside_a_tile_stays_apart, aliases_read_before_write,
)
# What also holds of the kernels of a program.
WHOLE_INVARIANTS = (*INVARIANTS, every_output_element_is_written)


def verify(kernel: LoopKernel, stage: str = "", whole: bool = False) -> LoopKernel:
    """Check every invariant of a loop kernel; returns it. VerifyError names the invariant, the statement and the stage.

    `whole`: it is a kernel of a program, so nobody else fills its outputs.
    """
    sites = all_sites(kernel)
    for invariant in WHOLE_INVARIANTS if whole else INVARIANTS:
        try:
            invariant(kernel, sites)
        except VerifyError as error:
            raise VerifyError(error.invariant, error.where, error.found, error.expected, stage) from None
    return kernel
