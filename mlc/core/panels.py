"""The order of a packed matrix: panels of columns one after another, each by rows, then the columns that fill no panel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def pack(constant: np.ndarray, depth: int, columns: int, width: int, transposed: bool,
         empty: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty) -> np.ndarray:
    """The elements of a [depth, columns] matrix (if `transposed`: [columns, depth]) as a new flat array that `empty` makes."""
    matrix = constant.reshape(columns, depth).T if transposed else constant.reshape(depth, columns)
    found = empty((depth * columns,), constant.dtype)
    whole = columns // width * width
    if whole:
        panels = matrix[:, :whole].reshape(depth, whole // width, width) if not transposed else None
        target = found[:depth * whole].reshape(whole // width, depth, width)
        target[...] = panels.transpose(1, 0, 2) if panels is not None else constant.reshape(columns, depth)[:whole].reshape(
            whole // width, width, depth).transpose(0, 2, 1)
    if whole < columns:
        found[depth * whole:].reshape(depth, columns - whole)[...] = matrix[:, whole:]
    return found
