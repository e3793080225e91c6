"""The loop verifier's proofs about memory: arithmetic on affine indices with the loops' exact extents, and what choices say of their variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

from mlc.core.errors import VerifyError
from mlc.loop.coverage import first_unwritten
from mlc.loop.ir import Assign, LoopKernel, Store
from mlc.loop.sites import Access, Loop, Site, accesses
from mlc.loop.solve import Term, may_be_zero

Sites = list[Site]


def fail(invariant: str, where: str, found: object, expected: object) -> None:
    """Refuse a kernel."""
    raise VerifyError(invariant, where, found, expected)


def _in_bounds(invariant: str, kernel: LoopKernel, sites: Sites, stores: bool) -> None:
    for access in accesses(sites):
        if access.is_store is stores:
            size = kernel.buffer(access.buffer).size
            for region in access.site.regions:
                ends = [(c * low, c * (end - 1)) for name, c in access.index.terms for low, end in [region[name]]]
                low, high = (access.index.offset + sum(map(pick, ends)) for pick in (min, max))
                if low < 0 or high >= size:
                    fail(invariant, access.where, f"elements {low}..{high}", f"within 0..{size - 1}")


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
            fail("only_out_and_scratch_are_stored", site.where, f"a store to input %{site.stmt.buffer}", "stores to out, scratch and shared buffers")


def every_output_element_is_written(kernel: LoopKernel, sites: Sites) -> None:
    """Each element of an output is stored, whichever way choices go: what is left out would be whatever was in memory."""
    written = [a for a in accesses(sites) if a.is_store and kernel.buffer(a.buffer).role == "out"]
    chosen = any(loop.kind == "else" for a in written for loop in a.site.loops)
    for name, shunned in [(b.name, kind) for b in kernel.buffers if b.role == "out" for kind in ("else", "then")[:1 + chosen]]:
        stores = [(a.index.offset, [(c, a.site.extents[var]) for var, c in a.index.terms]) for a in written
                  if a.buffer == name and all(loop.kind != shunned for loop in a.site.loops)]
        missing = first_unwritten(kernel.buffer(name).size, stores)
        if missing is not None:
            fail("every_output_element_is_written", f"kernel @{kernel.name} output %{name}", f"element {missing} is never stored",
                  f"stores to 0..{kernel.buffer(name).size - 1}")


def scratch_stays_inside_its_iteration(kernel: LoopKernel, sites: Sites) -> None:
    """Scratch that an iteration of a parallel loop (or the code outside of them) loads is stored there too: nothing is handed over in it."""
    private = {b.name for b in kernel.buffers if b.role == "scratch"}
    found = [(a, next((loop.id for loop in a.site.loops if loop.kind == "parallel"), None)) for a in accesses(sites) if a.buffer in private]
    stored = {(a.buffer, region) for a, region in found if a.is_store}
    for access, region in found:
        if (access.buffer, region) not in stored:
            fail("scratch_stays_inside_its_iteration", access.where, "no store to it here", "a store in the same parallel loop")


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


def shared_assignments(sites: Sites, kind: str) -> Iterator[tuple[Site, str]]:
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
        fail("parallel_iterations_are_independent", store.where, f"an element {verb} by another iteration (%{other.buffer}[{other.index}])",
              "provably different elements")
    for site, name in shared_assignments(sites, "parallel"):
        fail("parallel_iterations_are_independent", site.where, f"{name} from outside assigned", "variables declared inside the loop")


def vector_lanes_are_independent(kernel: LoopKernel, sites: Sites) -> None:
    """No lane of a vector block stores what another lane loads or stores; a variable of one lane from outside is not assigned."""
    for store, other in _conflicts(sites, "vector"):
        verb = "stored" if other.is_store else "loaded"
        fail("vector_lanes_are_independent", store.where, f"an element {verb} by another lane (%{other.buffer}[{other.index}])",
              "provably different elements")
    for site, name in shared_assignments(sites, "vector"):
        fail("vector_lanes_are_independent", site.where, f"{name}, one lane from outside, assigned", "variables with lanes, or declared inside")


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


def _may_touch(a: Access, b: Access) -> bool:
    """Whether two accesses can be to one element in the same iteration of all loops around both."""
    both = {loop.var for loop in a.site.loops[:_common(a.site.loops, b.site.loops)]}
    for ours, theirs in product(a.site.regions, b.site.regions):
        terms = [(a.index.coefficient(var) - b.index.coefficient(var), max(ours[var][0], theirs[var][0]), min(ours[var][1], theirs[var][1]) - 1)
                 for var in both]
        for sign, access, region in ((1, a, ours), (-1, b, theirs)):
            terms += [(sign * c, region[var][0], region[var][1] - 1) for var, c in access.index.terms if var not in both]
        if may_be_zero(a.index.offset - b.index.offset, terms):
            return True
    return False


def what_runs_beside_a_tile_stays_apart(kernel: LoopKernel, sites: Sites) -> None:
    """It stores to scratch only, to no element that the tile loads or stores, and loads none that the tile stores; it assigns no variable
    from outside."""
    private = {b.name for b in kernel.buffers if b.role == "scratch"}
    beside: dict[int, list[Access]] = defaultdict(list)
    others: dict[int, list[Access]] = defaultdict(list)
    for access in accesses(sites):
        loops = access.site.loops
        inside = next((i for i, loop in enumerate(loops) if loop.kind == "beside"), None)
        for loop in loops if inside is None else loops[inside - 1:inside]:
            (others if inside is None else beside)[loop.id].append(access)
    for tile, found in beside.items():
        for access in found:
            if access.is_store and access.buffer not in private:
                fail("what_runs_beside_a_tile_stays_apart", access.where, f"a store to %{access.buffer}", "stores to scratch")
            for other in others[tile]:
                if other.buffer == access.buffer and (access.is_store or other.is_store) and _may_touch(access, other):
                    fail("what_runs_beside_a_tile_stays_apart", access.where, f"an element that the tile has too (%{other.buffer}[{other.index}])",
                          "provably different elements")
    for site, name in shared_assignments(sites, "beside"):
        fail("what_runs_beside_a_tile_stays_apart", site.where, f"{name} from outside assigned", "variables declared inside")


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
                    fail("aliases_read_before_write", read.where, f"a load after %{target}[{write.index}] may be stored there",
                          "every element read before, or in the iteration, it is overwritten")
