"""Other ways to run the same executable, which must give the same bits: again, on more threads, on arguments laid out
otherwise in memory, after having been saved and loaded or compiled again, and by the interpreters of its kernels and of its loops."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core import options as opt


def _again(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return exe.run(args)


def _threads(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    with opt.options(threads=2):
        return exe.run(args)


def relaid(array: np.ndarray, kind: int) -> np.ndarray:
    """The same values in other memory: Fortran order, every other element, backwards, or off any alignment."""
    kind = kind % 4 if array.ndim else 3
    if kind == 0:
        return np.asfortranarray(array)
    if kind == 1:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if kind == 2:
        return np.ascontiguousarray(array[::-1])[::-1]
    raw = np.zeros(array.nbytes + 1, np.uint8)
    moved = raw[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def _strided(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return exe.run([relaid(a, k) for k, a in enumerate(args)])


def _saved(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    from mlc.compile import load_executable
    with tempfile.TemporaryDirectory(prefix="mlc-fuzz-") as folder:
        path = os.path.join(folder, "saved.mlcx")
        exe.save(path)
        return load_executable(path)[0].run(args)


def _kernels(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return exe.stages.run_kernels(args)


def _loops(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return exe.stages.run_loops(args)


def _cached(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    from mlc.compile import compile_graph
    return compile_graph(exe.graph).run(args)


def same_bits(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Equal bit by bit, any NaN being like any other."""
    for a, b in zip(one, other, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.tobytes() != b.tobytes():
            bits = f"u{a.dtype.itemsize}"
            with np.errstate(all="ignore"):  # signalling NaNs
                same = (a.view(bits) == b.view(bits)) | ((a != a) & (b != b))
            if not same.all():
                return False
    return True


VARIANTS: dict[str, Callable] = {"again": _again, "threads": _threads, "strided": _strided, "saved": _saved, "kernels": _kernels,
                                 "loops": _loops, "cached": _cached}
SAID = {"again": "run a second time", "threads": "run on two threads", "strided": "given strided and misaligned arguments",
        "saved": "saved and loaded", "kernels": "run by the kernel interpreter", "loops": "run by the loop interpreter",
        "cached": "compiled a second time (served from the cache, if there is one)"}
