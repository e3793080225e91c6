"""Inputs of a check: what a spec may be, which sizes are tried for its named dims, and the values that are drawn.

A spec is a type ("f32[B,64]", or what `mlc.spec` returns), a type with a range (("i32[B]", 0, 9)), an array, a number, a
callable that makes one from a generator (`lambda rng, B: ...`), or a dict, list or tuple of specs. Same seed, same values.
"""

from __future__ import annotations

import inspect
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlc.core.dims import Dim, TensorType, parse_type
from mlc.core.errors import MlcError, OptionError, ShapeError

# Sizes around the widths of vectors and register tiles, where masks and tails change.
BOUNDARY_SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
MIXED_CASES = 2
SIGNED_RANGE, UNSIGNED_RANGE = (-20, 20), (0, 20)


# --------------------------------------------------------------------------- sizes
def sizes_of(dims: Mapping[str, Any] | None) -> dict[str, tuple[int, ...]]:
    """The sizes to try for each dim, ascending. A dim is given as (low, high), both included, as a list of sizes, or as one size.

    Raises OptionError for anything else.
    """
    found = {}
    for name, given in (dims or {}).items():
        if isinstance(given, (int, np.integer)):
            values = (int(given),)
        elif isinstance(given, tuple) and len(given) == 2 and given[0] <= given[1]:
            low, high = given
            values = tuple(sorted({low, high, *(n for n in BOUNDARY_SIZES if low <= n <= high)}))
        elif isinstance(given, (list, set, range)) and given:
            values = tuple(sorted(set(given)))
        else:
            raise OptionError(f"dims: {name}={given!r}; give (low, high), a list of sizes, or one size")
        if not all(isinstance(n, (int, np.integer)) for n in values):
            raise OptionError(f"dims: {name}={given!r}; sizes are whole numbers")
        if any(n < 0 for n in values):
            raise OptionError(f"dims: {name}={given!r}; a size cannot be negative")
        found[name] = values
    return found


def cases_of(dims: Mapping[str, Any] | None, seed: int) -> list[dict[str, int]]:
    """The combinations of sizes to try: every dim smallest, every dim largest, then mixed ones. Every size of a list occurs.

    Without dims there is one case.
    """
    sizes = sizes_of(dims)
    rng = np.random.default_rng([seed, 0])
    shuffled = {name: rng.permutation(values).tolist() for name, values in sizes.items()}
    mixed = max([MIXED_CASES, *(len(sizes[name]) for name, given in (dims or {}).items() if not isinstance(given, tuple))])
    cases = [{name: values[0] for name, values in sizes.items()}, {name: values[-1] for name, values in sizes.items()}]
    cases += [{name: values[k % len(values)] for name, values in shuffled.items()} for k in range(mixed)]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(case.items()) for case in cases)]


# --------------------------------------------------------------------------- specs
def _typed(spec: object) -> TensorType | None:
    if isinstance(spec, str):
        return parse_type(spec)
    if isinstance(spec, TensorType):
        return spec
    inner = getattr(spec, "type", None)
    return inner if isinstance(inner, TensorType) else None


def _ranged(spec: object) -> bool:
    return isinstance(spec, tuple) and len(spec) == 3 and isinstance(spec[0], (str, TensorType)) and all(
        isinstance(bound, (int, float)) for bound in spec[1:])


def _walk(spec: object, path: str) -> Iterator[tuple[str, object]]:
    """The leaves of a spec with their paths."""
    if isinstance(spec, dict):
        for key, inner in spec.items():
            yield from _walk(inner, f"{path}[{key!r}]")
    elif isinstance(spec, (list, tuple)) and not _ranged(spec):
        for k, inner in enumerate(spec):
            yield from _walk(inner, f"{path}[{k}]")
    else:
        yield path, spec


def validate(inputs: Mapping[str, Any], dims: Mapping[str, Any] | None) -> None:
    """Refuse specs that cannot be drawn. Raises OptionError or ShapeError that names the input."""
    known = sizes_of(dims)
    used: set[str] = set()
    for name, spec in inputs.items():
        for path, leaf in _walk(spec, name):
            try:
                type = _typed(leaf[0] if _ranged(leaf) else leaf)
            except MlcError as error:
                raise OptionError(f"input {path}: {error}") from None
            names = {dim.name for dim in type.shape if isinstance(dim, Dim)} if type else set()
            if callable(leaf) and type is None:
                names = set(inspect.signature(leaf).parameters) - {"rng"}
            unknown = sorted(names - set(known))
            if unknown:
                raise ShapeError(f"input {path}: dim {unknown[0]} has no sizes; add dims={{{unknown[0]!r}: (1, 256)}}")
            used |= names
    if set(known) - used:
        raise OptionError(f"dims: no input has the dim {sorted(set(known) - used)[0]}")


def draw(inputs: Mapping[str, Any], sizes: Mapping[str, int], seed: int, case: int) -> dict[str, Any]:
    """Values for all inputs at these sizes. Each leaf has a generator of its own, so that adding an input changes no other."""
    return {name: _draw(spec, sizes, name, (seed, case)) for name, spec in inputs.items()}


def _draw(spec: object, sizes: Mapping[str, int], path: str, seed: tuple[int, int]) -> Any:
    if isinstance(spec, dict):
        return {key: _draw(inner, sizes, f"{path}[{key!r}]", seed) for key, inner in spec.items()}
    rng = np.random.default_rng([*seed, zlib.crc32(path.encode())])
    if _ranged(spec):
        return draw_array(_fitting(_sized(_typed(spec[0]), sizes), path), rng, spec[1], spec[2])
    if isinstance(spec, (list, tuple)):
        inner = [_draw(s, sizes, f"{path}[{k}]", seed) for k, s in enumerate(spec)]
        return type(spec)(*inner) if hasattr(spec, "_fields") else type(spec)(inner)
    found = _typed(spec)
    if found is not None:
        return draw_array(_fitting(_sized(found, sizes), path), rng)
    return _call(spec, rng, sizes) if callable(spec) else spec


def _sized(found: TensorType, sizes: Mapping[str, int]) -> TensorType:
    return TensorType([sizes[dim.name] if isinstance(dim, Dim) else dim for dim in found.shape], found.dtype)


def _fitting(found: TensorType, path: str) -> TensorType:
    """The type, if memory can hold it while it is drawn (as f64, then in its own dtype). ShapeError names the input."""
    if found.size * np.dtype(np.float64).itemsize + found.nbytes > physical_memory():
        raise ShapeError(f"input {path}: {found} takes {found.nbytes:,} bytes, more than this machine can hold; give it a smaller size")
    return found


def physical_memory() -> int:
    """Bytes of this machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def _call(make: Callable, rng: np.random.Generator, sizes: Mapping[str, int]) -> Any:
    given = {"rng": rng, **sizes}
    return make(**{name: given[name] for name in inspect.signature(make).parameters})


def draw_array(found: TensorType, rng: np.random.Generator, low: float | None = None, high: float | None = None) -> np.ndarray:
    """Dense values: standard normal floats, small integers, fair bools; or uniform in [low, high], both ends included for integers."""
    dtype, shape = found.dtype, found.shape
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        values = rng.standard_normal(shape) if low is None else rng.uniform(low, high, shape)
        return np.asarray(values).astype(dtype.numpy)
    if low is None:
        low, high = SIGNED_RANGE if dtype.kind == "i" else UNSIGNED_RANGE
    if not dtype.min <= low <= high <= dtype.max:
        raise OptionError(f"the range {low}..{high} does not fit {dtype}")
    return np.asarray(rng.integers(int(low), int(high), shape, dtype.numpy, endpoint=True))
