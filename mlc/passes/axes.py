"""Renaming and collapsing of loop axes in expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.expr import Expr, make
from mlc.kernel.ir import Axis


def rename(exprs: Sequence[Expr], axes: Mapping[str, str], loads: Callable[[str, Affine, Affine], Expr | None] | None = None) -> list[Expr]:
    """Expressions with axes renamed; a load becomes what `loads(buffer, old index, renamed index)` gives, or is only renamed if that is None."""
    affine_map = {old: Affine(0, ((new, 1),)) for old, new in axes.items()}

    def leaf(node: Expr) -> Expr | None:
        if node.op == "index":
            return ex.index(axes[node.attr]) if node.attr in axes else None
        if node.op == "load":
            name, index = node.attr
            moved = index.substitute(affine_map)
            found = loads(name, index, moved) if loads else None
            return found if found is not None else make("load", node.dtype, (), (name, moved))
        return None

    return ex.substitute(exprs, leaf)


def collapsible(index: Affine, axes: Sequence[Axis]) -> bool:
    """May these adjacent axes, outer first, run as one loop for this access?"""
    return all(index.coefficient(outer) == index.coefficient(inner) * extent
               for (outer, _), (inner, extent) in zip(axes, axes[1:]))


def uses_index(exprs: Iterable[Expr], names: Iterable[str]) -> bool:
    """Does an expression read one of these axes as a number?"""
    wanted = set(names)
    return any(e.op == "index" and e.attr in wanted for e in ex.topological(exprs))


def all_collapsible(exprs: Sequence[Expr], indices: Sequence[Affine], axes: Sequence[Axis]) -> bool:
    """May the axes run as one loop for every load under `exprs`, every index in `indices`, and every use of an axis as a number?"""
    if len(axes) < 2:
        return True
    if uses_index(exprs, [name for name, _ in axes]):
        return False
    loads = [e.attr[1] for e in ex.topological(exprs) if e.op == "load"]
    return all(collapsible(index, axes) for index in (*loads, *indices))


def collapse_index(index: Affine, axes: Sequence[Axis], new: str) -> Affine:
    """The access with collapsible `axes` replaced by the one axis `new`."""
    if not axes:
        return index
    names = {name for name, _ in axes}
    step = index.coefficient(axes[-1][0])
    return Affine(index.offset, [t for t in index.terms if t[0] not in names] + [(new, step)])


def collapse(exprs: Sequence[Expr], axes: Sequence[Axis], new: str) -> list[Expr]:
    """The expressions with collapsible `axes` replaced by the one axis `new`."""
    def leaf(node: Expr) -> Expr | None:
        if node.op == "load":
            return make("load", node.dtype, (), (node.attr[0], collapse_index(node.attr[1], axes, new)))
        if node.op == "index" and axes and node.attr == axes[-1][0]:
            return ex.index(new)
        return None
    return ex.substitute(exprs, leaf) if axes else list(exprs)
