"""The loop verifier: one function an invariant, sharing no code with lowering or loop transformations.

`INVARIANTS` is in order: each may assume those before it. Proofs about memory are arithmetic on affine indices with the
loops' exact extents, so lanes past the end of a masked vector loop don't count, and nothing under an empty loop does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from mlc.core import dtype as dt
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.errors import VerifyError
from mlc.core.expr import Expr, topological
from mlc.loop.coverage import first_unwritten
from mlc.loop.ir import Assign, Decl, Fold, For, If, LoopKernel, Store, Tile
from mlc.loop.sites import Access, Loop, Site, accesses, all_sites
from mlc.loop.solve import Term, may_be_zero

Sites = list[Site]


def _fail(invariant: str, where: str, found: object, expected: object) -> None:
    raise VerifyError(invariant, where, found, expected)


# --------------------------------------------------------------------------- structure
def buffers_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """Distinct names, known roles, sizes of at least 0, the kernel's own last; streams are "out" and not loaded;
    may_alias pairs are an "in" and an "out" of one element size."""
    here = f"kernel @{kernel.name}"
    names = [b.name for b in kernel.buffers]
    if len(set(names)) != len(names):
        _fail("buffers_are_well_formed", here, names, "distinct buffer names")
    for b in kernel.buffers:
        if b.role not in ("in", "out", "scratch", "shared") or b.size < 0:
            _fail("buffers_are_well_formed", f"{here} buffer %{b.name}", f"role {b.role}, size {b.size}", "in, out, scratch or shared; size >= 0")
    roles = [b.role in ("scratch", "shared") for b in kernel.buffers]
    if roles != sorted(roles):
        _fail("buffers_are_well_formed", here, [b.role for b in kernel.buffers], "scratch and shared buffers last")
    loaded = {node.attr[0] for site in sites for node in topological(site.roots) if node.op == "load"}
    for name in sorted(kernel.streams):
        if name not in names or kernel.buffer(name).role != "out" or name in loaded:
            _fail("buffers_are_well_formed", f"{here} stream(%{name})", "another buffer", "an out buffer that is never loaded")
    for source, target in sorted(kernel.may_alias):
        pair = f"{here} may_alias (%{source}, %{target})"
        if source not in names or target not in names or (kernel.buffer(source).role, kernel.buffer(target).role) != ("in", "out"):
            _fail("buffers_are_well_formed", pair, "another pair", "an in buffer and an out buffer")
        if kernel.buffer(source).dtype.itemsize != kernel.buffer(target).dtype.itemsize:
            _fail("buffers_are_well_formed", pair, (kernel.buffer(source).dtype, kernel.buffer(target).dtype), "elements of one size")


def loops_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """Known kinds, extents of at least 0, widths only on vector loops, parallel loops outermost."""
    for site in sites:
        stmt = site.stmt
        if not isinstance(stmt, For):
            continue
        if stmt.kind not in ("serial", "parallel", "vector", "unroll"):
            _fail("loops_are_well_formed", site.where, f"kind {stmt.kind}", "serial, parallel, vector or unroll")
        if stmt.extent < 0:
            _fail("loops_are_well_formed", site.where, f"extent {stmt.extent}", "at least 0")
        if stmt.width < 1 or (stmt.width != 1 and stmt.kind != "vector"):
            _fail("loops_are_well_formed", site.where, f"width {stmt.width}", "at least 1; only on vector loops more")
        if stmt.kind == "parallel" and site.loops:
            _fail("loops_are_well_formed", site.where, f"a parallel loop inside {site.loops[-1].var}", "parallel loops outermost")


def vector_loops_do_not_nest(kernel: LoopKernel, sites: Sites) -> None:
    """No vector loop, and no tile (which holds one), inside a vector loop."""
    for site in sites:
        vector = site.vector
        own_operand = isinstance(site.stmt, Tile) and site.part
        if vector and not own_operand and (isinstance(site.stmt, Tile) or (isinstance(site.stmt, For) and site.stmt.kind == "vector")):
            _fail("vector_loops_do_not_nest", site.where, f"inside vector loop {vector.var}", "no vector loop around it")


def tiles_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """Positive sizes, numeric accumulators, a body of Decl and Store only, `b` loads contiguous (or the same) along c."""
    for site in sites:
        tile = site.stmt
        if not isinstance(tile, Tile):
            continue
        sizes = (tile.m, tile.n, tile.depth, tile.width)
        if min(sizes) < 1:
            _fail("tiles_are_well_formed", site.where, f"m, n, depth, width = {sizes}", "all at least 1")
        if tile.dtype is dt.bool_:
            _fail("tiles_are_well_formed", site.where, "bool accumulators", "a numeric dtype")
        total = dt.f32 if tile.parts == (dt.bf16, dt.bf16) else dt.i32
        if tile.parts and (tile.parts not in ((dt.u8, dt.i8), (dt.i8, dt.u8), (dt.i16, dt.i16), (dt.bf16, dt.bf16)) or tile.dtype is not total):
            _fail("tiles_are_well_formed", site.where, f"parts {' '.join(map(str, tile.parts))} of {tile.dtype}",
                  "u8 i8, i8 u8 or i16 i16 of i32, bf16 bf16 of f32")
        if tile.normal and tile.parts != (dt.bf16, dt.bf16):
            _fail("tiles_are_well_formed", site.where, "normal", "only with parts bf16 bf16")
        for stmt in tile.body:
            if not isinstance(stmt, (Decl, Store)):
                _fail("tiles_are_well_formed", site.where, f"{type(stmt).__name__} in its body", "Decl and Store")
        for node in topological((tile.b,)):
            if node.op == "load" and node.attr[1].coefficient(tile.c) not in (0, 1):
                _fail("tiles_are_well_formed", site.where, f"b loads %{node.attr[0]}[{node.attr[1]}]", f"coefficient 0 or 1 of {tile.c}")


def branches_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """A choice is not made in a vector loop, and assigns no variable from outside."""
    for site in sites:
        if isinstance(site.stmt, If) and site.vector:
            _fail("branches_are_well_formed", site.where, f"inside vector loop {site.vector.var}", "outside vector loops")
    for kind in ("then", "else"):
        for site, name in _shared_assignments(sites, kind):
            _fail("branches_are_well_formed", site.where, f"{name} from outside assigned", "variables declared inside the branch")


def folds_are_well_formed(kernel: LoopKernel, sites: Sites) -> None:
    """One target and one combine (over a.i and b.i) a source; sources have one power of two of lanes; not in a vector loop."""
    for site in sites:
        fold = site.stmt
        if not isinstance(fold, Fold):
            continue
        if not len(fold.targets) == len(fold.sources) == len(fold.combine) == len(set(fold.targets)) > 0:
            _fail("folds_are_well_formed", site.where, (fold.targets, fold.sources, len(fold.combine)), "one target and one combine a source")
        if site.vector:
            _fail("folds_are_well_formed", site.where, f"inside vector loop {site.vector.var}", "outside vector loops")
        lanes = {site.scope[s].lanes for s in fold.sources if s in site.scope}
        if len(lanes) > 1 or any(n & (n - 1) for n in lanes):
            _fail("folds_are_well_formed", site.where, f"lanes {sorted(lanes)}", "one power of two")
        allowed = {f"{side}.{i}" for side in "ab" for i in range(len(fold.sources))}
        for node in topological(fold.combine):
            if node.op in ("load", "index", "arg") or (node.op == "var" and node.attr not in allowed):
                _fail("folds_are_well_formed", site.where, f"{node.op} {node.attr} in combine", f"only {', '.join(sorted(allowed))}")


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
            new = (stmt.name, stmt.r, stmt.c, stmt.k)
        clash = [name for i, name in enumerate(new) if name in open_names or name in new[:i]]
        if clash:
            _fail("names_are_not_shadowed", site.where, f"{clash[0]} declared again", "a name that is not in scope")


def names_are_declared_before_use(kernel: LoopKernel, sites: Sites) -> None:
    """Variables, loop variables (also in affine indices) and buffers exist where they are used."""
    buffers = {b.name for b in kernel.buffers}

    def need(site: Site, name: object, known: object, what: str) -> None:
        if name not in known:
            _fail("names_are_declared_before_use", site.where, f"{what} {name}", f"one of {sorted(n for n in known if n)}")

    def need_place(site: Site, buffer: str, index: Affine) -> None:
        need(site, buffer, buffers, "buffer")
        for name, _ in index.terms:
            need(site, name, site.extents, "loop variable")

    for site in sites:
        stmt = site.stmt
        for name in stmt.names if isinstance(stmt, Assign) else stmt.sources if isinstance(stmt, Fold) else ():
            need(site, name, site.scope, "variable")
        if isinstance(stmt, Store):
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
         "and": "biu", "or": "biu", "xor": "biu", "not": "biu", "shl": "iu", "shr_arith": "iu", "shr_logical": "iu"}
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
                    _fail("expressions_are_well_typed", site.where, found, "dtypes the instruction accepts")
            elif fault := _leaf_fault(node, kernel, variables):
                _fail("expressions_are_well_typed", site.where, f"{node.op} {node.attr} : {node.dtype}", fault)


def values_have_the_declared_dtype(kernel: LoopKernel, sites: Sites) -> None:
    """Declared, assigned, stored, folded and tile values have the dtype of where they go."""
    for site in sites:
        stmt = site.stmt
        if isinstance(stmt, Decl):
            wanted = [stmt.dtype]
        elif isinstance(stmt, Assign):
            if not len(stmt.names) == len(stmt.values) == len(set(stmt.names)) > 0:
                _fail("values_have_the_declared_dtype", site.where, f"{len(stmt.values)} values for {stmt.names}", "one a distinct name")
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
            _fail("values_have_the_declared_dtype", site.where, found, wanted)


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
                _fail("lanes_agree", site.where, f"{node.op} over {sorted(many)} lanes", f"1 or {width or 'one number of'} lanes")
            lanes[node] = max(many, default=1)
        if isinstance(stmt, Decl):
            if stmt.lanes < 1 or (vector and stmt.lanes not in (1, width)):
                _fail("lanes_agree", site.where, f"{stmt.name} with {stmt.lanes} lanes", f"1 or {width or 'more'}")
            places = [stmt.lanes]
        elif isinstance(stmt, Assign):
            places = [site.scope[name].lanes for name in stmt.names]
            if any(vector and n not in (1, width) for n in places):
                _fail("lanes_agree", site.where, f"{places} lanes assigned", f"1 or {width}")
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
                _fail("lanes_agree", site.where, f"a value of {lanes[root]} lanes", f"1{'' if place == 1 else f' or {place}'}")


# --------------------------------------------------------------------------- memory
def _in_bounds(invariant: str, kernel: LoopKernel, sites: Sites, stores: bool) -> None:
    for access in accesses(sites):
        if access.is_store is stores:
            size = kernel.buffer(access.buffer).size
            low, high = access.index.bounds(access.site.extents)
            if low < 0 or high >= size:
                _fail(invariant, access.where, f"elements {low}..{high}", f"within 0..{size - 1}")


def every_load_in_bounds(kernel: LoopKernel, sites: Sites) -> None:
    """Every element that is loaded is inside its buffer."""
    _in_bounds("every_load_in_bounds", kernel, sites, False)


def every_store_in_bounds(kernel: LoopKernel, sites: Sites) -> None:
    """Every element that is stored is inside its buffer."""
    _in_bounds("every_store_in_bounds", kernel, sites, True)


def only_out_and_scratch_are_stored(kernel: LoopKernel, sites: Sites) -> None:
    """Inputs are read only."""
    for site in sites:
        if isinstance(site.stmt, Store) and kernel.buffer(site.stmt.buffer).role == "in":
            _fail("only_out_and_scratch_are_stored", site.where, f"a store to input %{site.stmt.buffer}", "stores to out, scratch and shared buffers")


def every_output_element_is_written(kernel: LoopKernel, sites: Sites) -> None:
    """Each element of an output is stored, whichever way choices go: what is left out would be whatever was in memory."""
    written = [a for a in accesses(sites) if a.is_store and kernel.buffer(a.buffer).role == "out"]
    chosen = any(loop.kind == "else" for a in written for loop in a.site.loops)
    for name, shunned in [(b.name, kind) for b in kernel.buffers if b.role == "out" for kind in ("else", "then")[:1 + chosen]]:
        stores = [(a.index.offset, [(c, a.site.extents[var]) for var, c in a.index.terms]) for a in written
                  if a.buffer == name and all(loop.kind != shunned for loop in a.site.loops)]
        missing = first_unwritten(kernel.buffer(name).size, stores)
        if missing is not None:
            _fail("every_output_element_is_written", f"kernel @{kernel.name} output %{name}", f"element {missing} is never stored",
                  f"stores to 0..{kernel.buffer(name).size - 1}")


def scratch_stays_inside_its_iteration(kernel: LoopKernel, sites: Sites) -> None:
    """Scratch that an iteration of a parallel loop (or the code outside of them) loads is stored there too: nothing is handed over in it."""
    private = {b.name for b in kernel.buffers if b.role == "scratch"}
    found = [(a, next((loop.id for loop in a.site.loops if loop.kind == "parallel"), None)) for a in accesses(sites) if a.buffer in private]
    stored = {(a.buffer, region) for a, region in found if a.is_store}
    for access, region in found:
        if (access.buffer, region) not in stored:
            _fail("scratch_stays_inside_its_iteration", access.where, "no store to it here", "a store in the same parallel loop")


def _can_meet(a: Access, b: Access, level: int, most: int) -> bool:
    """Whether `a` and `b` can touch one element when a's iteration of their common loop number `level` is 1 to `most` past b's.

    Loops outside that one are at the same iteration for both, loops inside at any.
    """
    terms: list[Term] = []
    for loop in a.site.loops[:level]:
        terms.append((a.index.coefficient(loop.var) - b.index.coefficient(loop.var), 0, loop.extent - 1))
    loop = a.site.loops[level]
    ahead, behind = a.index.coefficient(loop.var), b.index.coefficient(loop.var)
    terms += [(ahead - behind, 0, loop.extent - 2), (ahead, 1, min(most, loop.extent - 1))]
    terms += [(a.index.coefficient(inner.var), 0, inner.extent - 1) for inner in a.site.loops[level + 1:]]
    terms += [(-b.index.coefficient(inner.var), 0, inner.extent - 1) for inner in b.site.loops[level + 1:]]
    return may_be_zero(a.index.offset - b.index.offset, terms)


def _conflicts(sites: Sites, kind: str) -> Iterator[tuple[Access, Access]]:
    """Pairs (store, access) of one buffer that different iterations of a loop of this kind (lanes of one block, for vector) may both reach."""
    groups: dict[tuple[int, str], list[tuple[int, Access]]] = defaultdict(list)
    for access in accesses(sites):
        for level, loop in enumerate(access.site.loops):
            if loop.kind == kind:
                groups[loop.id, access.buffer].append((level, access))
    for members in groups.values():
        for level, store in members:
            if not store.is_store:
                continue
            loop = store.site.loops[level]
            most = loop.width - 1 if kind == "vector" else loop.extent - 1
            for _, other in members:
                if _can_meet(store, other, level, most) or _can_meet(other, store, level, most):
                    yield store, other


def _shared_assignments(sites: Sites, kind: str) -> Iterator[tuple[Site, str]]:
    """Variables of one lane that a loop of this kind assigns though they were declared outside it (but of vector loops: of any lanes)."""
    any_lanes = kind != "vector"
    for site in sites:
        for level, loop in enumerate(site.loops):
            if loop.kind == kind and isinstance(site.stmt, Assign) and (any_lanes or loop.width > 1):
                for name in site.stmt.names:
                    if site.scope[name].depth <= level and (any_lanes or site.scope[name].lanes == 1):
                        yield site, name


def parallel_iterations_are_independent(kernel: LoopKernel, sites: Sites) -> None:
    """No iteration of a parallel loop stores what another loads or stores, nor assigns a variable from outside."""
    private = {b.name for b in kernel.buffers if b.role == "scratch"}
    for store, other in _conflicts(sites, "parallel"):
        if store.buffer in private:
            continue  # each thread has scratch of its own
        verb = "stored" if other.is_store else "loaded"
        _fail("parallel_iterations_are_independent", store.where, f"an element {verb} by another iteration (%{other.buffer}[{other.index}])",
              "provably different elements")
    for site, name in _shared_assignments(sites, "parallel"):
        _fail("parallel_iterations_are_independent", site.where, f"{name} from outside assigned", "variables declared inside the loop")


def vector_lanes_are_independent(kernel: LoopKernel, sites: Sites) -> None:
    """No lane of a vector block stores what another lane loads or stores; a variable of one lane from outside is not assigned."""
    for store, other in _conflicts(sites, "vector"):
        verb = "stored" if other.is_store else "loaded"
        _fail("vector_lanes_are_independent", store.where, f"an element {verb} by another lane (%{other.buffer}[{other.index}])",
              "provably different elements")
    for site, name in _shared_assignments(sites, "vector"):
        _fail("vector_lanes_are_independent", site.where, f"{name}, one lane from outside, assigned", "variables with lanes, or declared inside")


def _common(a: Sequence[Loop], b: Sequence[Loop]) -> int:
    count = 0
    for x, y in zip(a, b):
        if x.id != y.id:
            break
        count += 1
    return count


def _may_read_after(read: Access, write: Access) -> bool:
    """Whether `read` may run after `write` stored to the element of the same number."""
    ours, theirs = read.site.loops, write.site.loops
    common = _common(ours, theirs)
    for level in range(common):
        most = ours[level].extent - 1
        if _can_meet(read, write, level, most):
            return True
        # Iterations of parallel loops, and lanes, are in no order.
        if ours[level].kind in ("parallel", "vector") and _can_meet(write, read, level, most):
            return True
    place = [loop.at for loop in ours[common:]] + [read.site.at]
    other = [loop.at for loop in theirs[common:]] + [write.site.at]
    if place[0] <= other[0]:  # an earlier statement, or the very one, which loads before it stores
        return False
    terms = [(read.index.coefficient(loop.var) - write.index.coefficient(loop.var), 0, loop.extent - 1) for loop in ours[:common]]
    terms += [(read.index.coefficient(loop.var), 0, loop.extent - 1) for loop in ours[common:]]
    terms += [(-write.index.coefficient(loop.var), 0, loop.extent - 1) for loop in theirs[common:]]
    return may_be_zero(read.index.offset - write.index.offset, terms)


def aliases_read_before_write(kernel: LoopKernel, sites: Sites) -> None:
    """For each may_alias pair, element i of the input is never read once element i of the output is written."""
    if not kernel.may_alias:
        return
    found = accesses(sites)
    for source, target in sorted(kernel.may_alias):
        reads = [a for a in found if a.buffer == source]
        writes = [a for a in found if a.buffer == target and a.is_store]
        for read in reads:
            for write in writes:
                if _may_read_after(read, write):
                    _fail("aliases_read_before_write", read.where, f"a load after %{target}[{write.index}] may be stored there",
                          "every element read before, or in the iteration, it is overwritten")


INVARIANTS = (
    buffers_are_well_formed, loops_are_well_formed, vector_loops_do_not_nest, tiles_are_well_formed, names_are_not_shadowed,
    names_are_declared_before_use, branches_are_well_formed, folds_are_well_formed, expressions_are_well_typed, values_have_the_declared_dtype,
    lanes_agree,
    every_load_in_bounds, every_store_in_bounds, only_out_and_scratch_are_stored, scratch_stays_inside_its_iteration,
    parallel_iterations_are_independent, vector_lanes_are_independent, aliases_read_before_write,
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
