"""How much work loops are, roughly: instructions on registers that run, whatever the target."""

from __future__ import annotations

from collections.abc import Iterable

from mlc.core import expr as ex
from mlc.loop.ir import Fold, For, If, Stmt, Tile, statement_roots

# Lanes of a register.
LANES = 16


def work(body: Iterable[Stmt]) -> int:
    """Instructions that statements run, loops as often as they go round."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            total += work(stmt.body) * (-(-stmt.extent // min(stmt.width, LANES)) if stmt.kind == "vector" else stmt.extent)
        elif isinstance(stmt, Tile):
            total += stmt.m * -(-stmt.n // LANES) * (stmt.depth + work(stmt.body)) + (work((stmt.beside,)) if stmt.beside else 0)
        elif isinstance(stmt, If):
            total += max(work(stmt.body), work(stmt.other))
        elif isinstance(stmt, Fold):
            total += 4 * len(ex.topological(stmt.combine))
        else:
            total += len(ex.topological(statement_roots(stmt)))
    return total
