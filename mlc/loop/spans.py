"""Pieces of an axis, and loops over them: what the lowerings of contractions and of attention have in common."""

from __future__ import annotations

from collections.abc import Callable

from mlc.core.affine import Affine
from mlc.loop.ir import For, Stmt

# The first index, and how many.
Span = tuple[Affine, int]


def along(name: str, step: int = 1) -> Affine:
    """step * variable."""
    return Affine(0, ((name, step),))


def blocks(var: Callable[[], str], extent: int, size: int, body: Callable[[Span], list[Stmt]], kind: str = "serial") -> list[Stmt]:
    """body(span) for whole spans of `size`, in a loop over a variable that `var` names, and for what is left."""
    found: list[Stmt] = []
    if extent // size:
        name = var()
        found.append(For(name, extent // size, tuple(body((along(name, size), size))), kind))
    if extent % size:
        found.extend(body((Affine(extent - extent % size), extent % size)))
    return found
