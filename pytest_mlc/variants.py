"""Other ways to run the same executable, which must give the same bits: again, on more threads, on arguments laid out
otherwise in memory, after having been saved and loaded or compiled again, and by the interpreters of its kernels and of its loops."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core import dtype as dt
from mlc.core import options as opt
from mlc.core.expr import Expr, topological
from mlc.loop.ir import Assign, Decl, Fold, For, If, Stmt, Store, Tile

# What the loop interpreter is given: more takes it seconds, which count as a hang on a busy machine.
MOST_STEPS = 5000


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


def interpreted_steps(exe) -> int:
    """What the loop interpreter has to evaluate, in instructions of a vector each (10 us), an exact fma of f64 counting as four."""
    loops = exe.stages.loops
    return sum(_steps(loops[step.kernel].body) for step in exe.stages.kernels.steps)


def _steps(body: Sequence[Stmt]) -> int:
    total = 0
    for stmt in body:
        match stmt:
            case For():
                total += -(-stmt.extent // (stmt.width if stmt.kind == "vector" else 1)) * _steps(stmt.body)
            case Tile():
                total += stmt.m * -(-stmt.n // stmt.width) * (stmt.depth * _nodes((stmt.a, stmt.b)) + _steps(stmt.body))
                total += _steps((stmt.beside,)) if stmt.beside else 0
            case If():
                total += max(_steps(stmt.body), _steps(stmt.other))
            case Decl():
                total += _nodes((stmt.init,))
            case Assign():
                total += _nodes(stmt.values)
            case Store():
                total += _nodes((stmt.value,))
            case Fold():
                total += 8 * _nodes(stmt.combine)  # pairwise
    return total


def _nodes(roots: Sequence[Expr]) -> int:
    return sum(4 if e.op == "fma" and e.dtype is dt.f64 else 1 for e in topological(roots) if e.args) + 1


def affordable(variant: str, exe) -> str:
    """The variant, or for a program that the loop interpreter would run for long, the kernel interpreter: it takes whole arrays at a time."""
    return "kernels" if variant == "loops" and interpreted_steps(exe) > MOST_STEPS else variant


def _cached(exe, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    from mlc.compile import compile_graph
    with opt.options(check=0):  # with checks the cache is not read; the first time writes the entry, if nobody has
        compile_graph(exe.graph)
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
