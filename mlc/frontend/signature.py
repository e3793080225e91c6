"""A function's arguments: which are static, what the others are called, and how a compiled variant's flat lists map to pytrees."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlc.core.dims import TensorType, parse_type
from mlc.core.errors import ArtifactError, DtypeError, ShapeError, TraceError, UnsupportedError
from mlc.frontend import tree
from mlc.frontend.leaves import leaf_array, leaf_type
from mlc.frontend.record import Tracer


def _tuple(value: object, what: str, kind: type) -> tuple | None:
    """An int or str, or a sequence of them, as a tuple."""
    if value is None:
        return None
    found = (value,) if isinstance(value, str) or hasattr(value, "__index__") else tuple(value)
    if not all(hasattr(v, "__index__") if kind is int else isinstance(v, kind) for v in found):
        raise TypeError(f"mlc.jit: {what} must be {kind.__name__} or a sequence of {kind.__name__}, got {value!r}")
    return tuple(v.__index__() for v in found) if kind is int else found


class Statics:
    """Which arguments of `fn` are static, by position and by name (each inferred from the other, as in jax.jit)."""

    def __init__(self, fn: Callable, argnums: object = None, argnames: object = None):
        self.name = getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None) or type(fn).__name__
        try:
            self.parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):
            self.parameters = None
        nums, names = _tuple(argnums, "static_argnums", int), _tuple(argnames, "static_argnames", str)
        self.argnums, self.argnames = self._resolve(nums, names)
        self.any = bool(self.argnums or self.argnames)

    def _kinds(self, *kinds: object) -> list[inspect.Parameter]:
        return [p for p in self.parameters or () if p.kind in kinds]

    def _resolve(self, nums: tuple | None, names: tuple | None) -> tuple[frozenset, frozenset]:
        positional = self._kinds(inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        more = self.parameters is None or bool(self._kinds(inspect.Parameter.VAR_POSITIONAL))
        count = len(positional)
        nums = tuple(self._position(n, count, more, "static_argnums") for n in nums or ())
        any_name = self.parameters is None or bool(self._kinds(inspect.Parameter.VAR_KEYWORD))
        for name in names or ():
            if not any_name and name not in {p.name for p in self.parameters}:
                raise ValueError(f"mlc.jit: static_argnames has {name!r}, which {self.name} does not take")
        by_name = {p.name for i, p in enumerate(positional) if i in nums and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
        by_position = {i for i, p in enumerate(positional) if p.name in (names or ())}
        return frozenset(nums) | by_position, frozenset(names or ()) | by_name

    def _position(self, n: int, count: int, more: bool, what: str) -> int:
        if not (-count <= n < count or (more and n >= 0)):
            raise ValueError(f"mlc.jit: {what} has {n}, but {self.name} takes {count} positional arguments")
        return n % count if n < 0 else n

    def check_donation(self, argnums: object, argnames: object) -> None:
        """Donated arguments must exist and must not be static."""
        for n in _tuple(argnums, "donate_argnums", int) or ():
            if self.parameters is not None:
                positional = self._kinds(inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                n = self._position(n, len(positional), bool(self._kinds(inspect.Parameter.VAR_POSITIONAL)), "donate_argnums")
            if n in self.argnums:
                raise ValueError(f"mlc.jit: argument {n} is both static and donated")
        for name in _tuple(argnames, "donate_argnames", str) or ():
            if name in self.argnames:
                raise ValueError(f"mlc.jit: argument {name!r} is both static and donated")

    def argument_name(self, position: int) -> str:
        """What the function calls its positional argument."""
        at = 0
        for p in self.parameters or ():
            if p.kind is inspect.Parameter.VAR_POSITIONAL:
                return f"{p.name}.{position - at}"
            if p.kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
                break
            if at == position:
                return p.name
            at += 1
        return f"arg{position}"


def parameter_names(paths: Sequence[str]) -> list[str]:
    """Paths as names that graph text accepts: `[A-Za-z0-9_.]+`, unique, not starting with a digit."""
    names, seen = [], set()
    for path in paths:
        base = path
        if not (path.isascii() and path.replace(".", "_").isidentifier()):
            base = re.sub(r"[^A-Za-z0-9_.]", "_", path) or "_"
            base = base if not base[0].isdigit() else f"_{base}"
        name, number = base, 1
        while name in seen:
            number += 1
            name = f"{base}_{number}"
        seen.add(name)
        names.append(name)
    return names


class Signature:
    """A compiled variant's outside: leaf paths and types, argument structures, result structure, outputs that are inputs."""

    def __init__(self, name: str, paths: list[str], types: list[TensorType], structure: Any, result: Any, passthrough: dict[int, int]):
        self.name, self.paths, self.types, self.structure, self.result, self.passthrough = name, paths, types, structure, result, passthrough
        self.dtypes = [t.dtype.numpy for t in types]

    def pack(self, leaves: Sequence[Any]) -> list[np.ndarray]:
        """Leaves as aligned, C-contiguous NumPy arrays of the parameters' dtypes."""
        packed = []
        for i, (leaf, dtype) in enumerate(zip(leaves, self.dtypes)):
            if leaf.__class__ is not np.ndarray:
                leaf = leaf_array(leaf, dtype, f"argument {self.paths[i]}")
            flags = leaf.flags
            if not (flags.c_contiguous and flags.aligned) or leaf.dtype != dtype or not leaf.dtype.isnative:
                leaf = np.require(leaf, dtype, ("C", "A"))
            packed.append(leaf)
        return packed

    def unpack(self, results: Sequence[np.ndarray], packed: Sequence[np.ndarray] = ()) -> Any:
        """Results in the function's own structure: fresh arrays, none shared with an argument or with another result."""
        fresh, seen = [], set()
        for i, array in enumerate(results):
            shared = not array.flags.owndata or id(array) in seen
            if not shared and i in self.passthrough:
                shared = bool(packed) and array is packed[self.passthrough[i]]
            if shared:
                array = array.copy()
            seen.add(id(array))
            fresh.append(array)
        if self.result is tree.LEAF:
            return fresh[0]
        return tree.unflatten(self.result, iter(fresh))

    def check(self, args: tuple, kwargs: dict) -> list:
        """The leaves of a call, which must be what was compiled for; the error names the argument."""
        leaves, structure = tree.flatten_checked((list(args), kwargs), self.name)
        if structure != self.structure:
            raise TraceError(f"{self.name} was compiled for arguments {tree.describe(self.structure[2])} {tree.describe(self.structure[3])}, "
                             f"got {tree.describe(structure[2])} {tree.describe(structure[3])}")
        for path, expected, dtype, leaf in zip(self.paths, self.types, self.dtypes, leaves):
            if leaf.__class__ is np.ndarray and leaf.shape == expected.shape and leaf.dtype == dtype:
                continue
            if isinstance(leaf, Tracer):
                raise TraceError(f"argument {path} of {self.name} is traced: an executable cannot become part of another function; "
                                 "call the mlc.jit function itself there")
            found, _ = leaf_type(leaf, f"argument {path} of {self.name}")
            if found != expected:
                kind = DtypeError if found.dtype is not expected.dtype else ShapeError
                raise kind(f"argument {path} of {self.name}: compiled for {expected}, got {found}")
        return leaves

    # ----------------------------------------------------------------- the artifact's copy
    def to_json(self) -> dict:
        """Everything as JSON values; UnsupportedError for a tree that cannot be written down."""
        return {"name": self.name, "paths": self.paths, "types": [str(t) for t in self.types], "structure": _to_json(self.structure),
                "result": _to_json(self.result), "passthrough": sorted(self.passthrough.items())}

    @classmethod
    def from_json(cls, data: dict) -> Signature:
        """What `to_json` wrote. Raises ArtifactError for a class that cannot be imported."""
        return cls(data["name"], data["paths"], [parse_type(t) for t in data["types"]], _from_json(data["structure"]),
                   _from_json(data["result"]), {int(k): int(v) for k, v in data["passthrough"]})


_PLAIN = {"tuple": tuple, "list": list, "dict": dict}


def _to_json(structure: Any) -> Any:
    if structure is tree.LEAF or structure == tree.NONE:
        return structure if isinstance(structure, str) else list(structure)
    kind, meta, *children = structure
    below = [_to_json(child) for child in children]
    if kind in (tuple, list):
        return [kind.__name__, None, *below]
    if kind is dict and all(isinstance(k, str) or type(k) is int for k in meta):
        return ["dict", list(meta), *below]
    if isinstance(kind, type) and hasattr(kind, "_fields") and issubclass(kind, tuple):
        return ["namedtuple", f"{kind.__module__}:{kind.__qualname__}", *below]
    if isinstance(meta, tree._Fields) and not meta.values:
        return ["dataclass", [f"{kind.__module__}:{kind.__qualname__}", *meta.names], *below]
    raise UnsupportedError(f"a saved executable cannot describe the tree {tree.describe(structure)}; use dicts, lists and tuples at its border")


def _from_json(data: Any) -> Any:
    if data == tree.LEAF:
        return tree.LEAF
    if data == list(tree.NONE):
        return tree.NONE
    kind, meta, *children = data
    below = [_from_json(child) for child in children]
    if kind == "dict":
        keys = tuple(meta)
        return (dict, keys if tree._plain(keys) else tree._Keys(keys), *below)
    if kind in _PLAIN:
        return (_PLAIN[kind], None, *below)
    if kind == "namedtuple":
        return (_import(meta), None, *below)
    return (_import(meta[0]), tree._Fields(tuple(meta[1:]), (), ()), *below)


def _import(name: str) -> type:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise ArtifactError(f"the saved executable uses the class {name}, which cannot be imported") from None
    return found
