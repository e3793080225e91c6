"""Where everything in a loop kernel stands, for the verifier: each statement with its loops, its place in the program and what is in scope.

A tile reads its operands in loops of its own, then runs its body in `unroll r { vector c }`; both appear here as loops, and
the ways of a choice as loops of the kinds "then" and "else" that run once.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlc.core.affine import Affine
from mlc.core.dataclass import dataclass, field
from mlc.core.dtype import DType
from mlc.core.expr import Expr, topological
from mlc.loop.ir import Decl, Fold, For, If, LoopKernel, Stmt, Store, Tile, statement_roots

Limit = tuple[str, int, int]


@dataclass(frozen=True)
class Loop:
    """One loop of a path. `at` is its position among the statements of the body around it; two loops of a kernel are the
    same one if their `id` is. `limits`: of a way of a choice, what its condition says of loop variables, any of these: (variable, least, beyond)."""

    id: int
    at: int
    var: str
    extent: int
    kind: str
    width: int
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Variable:
    """A declared variable; `depth` is how many loops were open at its declaration."""

    dtype: DType
    lanes: int
    depth: int


@dataclass
class Site:
    """A statement (or one operand of a tile) in its surroundings."""

    stmt: Stmt
    roots: tuple[Expr, ...]
    loops: tuple[Loop, ...]
    at: int
    scope: dict[str, Variable]
    part: str = ""
    where: str = field(default="")

    @property
    def live(self) -> bool:
        """Whether it is ever executed: no loop around it is empty, and no choice always goes another way."""
        return bool(self.regions)

    @property
    def vector(self) -> Loop | None:
        return next((loop for loop in self.loops if loop.kind == "vector"), None)

    @property
    def extents(self) -> dict[str, int]:
        return {loop.var: loop.extent for loop in self.loops}

    @property
    def regions(self) -> list[dict[str, tuple[int, int]]]:
        """Where loop variables run here, choices on the way included: (least, beyond) of each, for some regions that cover all."""
        found = [{loop.var: (0, loop.extent) for loop in self.loops}]
        for limits in [loop.limits for loop in self.loops if loop.limits]:
            found = [{**region, name: (max(low, region[name][0]), min(end, region[name][1]))} for region in found for name, low, end in limits]
        return [region for region in found if all(low < end for low, end in region.values())]


@dataclass(frozen=True)
class Access:
    """A load or store of `buffer[index]`."""

    site: Site
    buffer: str
    index: Affine
    is_store: bool

    @property
    def where(self) -> str:
        return f"{self.site.where}, {'store to' if self.is_store else 'load of'} %{self.buffer}[{self.index}]"


def all_sites(kernel: LoopKernel) -> list[Site]:
    """Every statement, in program order; a tile gives three, its own (no roots), operand a and operand b, before those of what runs beside and
    of its body."""
    return list(_Walk(kernel).body(kernel.body, (), {}))


class _Walk:
    def __init__(self, kernel: LoopKernel):
        self.kernel = kernel
        self.loops = 0

    def loop(self, at: int, var: str, extent: int, kind: str, width: int = 1, limits: tuple[Limit, ...] = ()) -> Loop:
        self.loops += 1
        return Loop(self.loops, at, var, extent, kind, width, limits)

    def site(self, stmt: Stmt, roots: tuple[Expr, ...], loops: tuple[Loop, ...], at: int, scope: dict[str, Variable], part: str = "") -> Site:
        path = "/".join([f"{loop.kind} {loop.var}" for loop in loops] + [f"{at}:{type(stmt).__name__}{part and '.' + part}"])
        return Site(stmt, roots, loops, at, dict(scope), part, f"kernel @{self.kernel.name} {path}")

    def body(self, body: tuple[Stmt, ...], loops: tuple[Loop, ...], scope: dict[str, Variable]) -> Iterator[Site]:
        scope = dict(scope)
        for at, stmt in enumerate(body):
            if isinstance(stmt, Tile):
                yield from self.tile(stmt, loops, at, scope)
                continue
            yield self.site(stmt, statement_roots(stmt), loops, at, scope)
            if isinstance(stmt, For):
                inner = self.loop(at, stmt.var, stmt.extent, stmt.kind, stmt.width)
                yield from self.body(stmt.body, (*loops, inner), scope)
            elif isinstance(stmt, If):
                for kind, way in (("then", stmt.body), ("else", stmt.other)):
                    inner = self.loop(at, "", 1, kind, 1, _limits(stmt.condition, kind == "then", {loop.var: loop.extent for loop in loops}))
                    yield from self.body(way, (*loops, inner), scope)
            elif isinstance(stmt, Decl):
                scope[stmt.name] = Variable(stmt.dtype, stmt.lanes, len(loops))
            elif isinstance(stmt, Fold):
                for target, source in zip(stmt.targets, stmt.sources):
                    if source in scope:
                        scope[target] = Variable(scope[source].dtype, 1, len(loops))

    def tile(self, tile: Tile, loops: tuple[Loop, ...], at: int, scope: dict[str, Variable]) -> Iterator[Site]:
        yield self.site(tile, (), loops, at, scope)
        # Operands read before the body stores: position -1 of a loop that runs once, the body at 0.
        once = self.loop(at, "", 1, "serial")
        rows, steps = (tile.r, tile.m), (tile.k, tile.depth)
        left = (*loops, once, self.loop(-2, *rows, "unroll"), self.loop(0, *steps, "serial"))
        yield self.site(tile, (tile.a,), left, 0, scope, "a")
        right = (*loops, once, self.loop(-1, *steps, "serial"), self.loop(0, tile.c, tile.n, "vector", tile.width))
        yield self.site(tile, (tile.b,), right, 0, scope, "b")
        if tile.beside:
            yield from self.body((tile.beside,), (*loops, once, self.loop(-3, "", 1, "beside")), scope)
        inner = (*loops, once, self.loop(0, *rows, "unroll"), self.loop(0, tile.c, tile.n, "vector", tile.width))
        yield from self.body(tile.body, inner, scope | {tile.name: Variable(tile.dtype, tile.width, len(inner))})


def _limits(condition: Expr, holds: bool, extents: dict[str, int]) -> tuple[Limit, ...]:
    """What `i < constant`, or one of two such, says of loop variables where it holds, or where it does not; () if nothing."""
    if condition.op == "or" and holds:
        both = [_limits(part, True, extents) for part in condition.args]
        return both[0] + both[1] if all(both) else ()
    if condition.op != "lt" or [e.op for e in condition.args] != ["index", "const"] or condition.args[0].attr not in extents:
        return ()
    name, bound = (e.attr for e in condition.args)
    return ((name, 0, bound) if holds else (name, bound, extents[name]),)


def accesses(sites: list[Site]) -> list[Access]:
    """Every access that is ever executed, each once a site."""
    found = []
    for site in sites:
        if not site.live:
            continue
        loads = dict.fromkeys(node.attr for node in topological(site.roots) if node.op == "load")
        found.extend(Access(site, buffer, index, False) for buffer, index in loads)
        if isinstance(site.stmt, Store):
            found.append(Access(site, site.stmt.buffer, site.stmt.index, True))
    return found
