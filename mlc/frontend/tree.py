"""Pytrees: dicts (sorted keys, as in JAX), lists, tuples, namedtuples, dataclasses, None, and what is registered with JAX.

A tree's structure is a hashable nested tuple, `(kind, meta, child, ...)` with `LEAF` at the leaves, so that it can be a
guard. Dict keys of other types than str are told apart by type and bits.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from mlc.core.errors import TraceError

LEAF = "*"
NONE = ("none",)
Structure = Any

_registered: dict[type, bool] = {}


def flatten(tree: object, leaves: list) -> Structure:
    """Append the leaves in order and return the structure. TraceError for keys that cannot be sorted."""
    cls = tree.__class__
    if cls in _LEAF_TYPES:
        leaves.append(tree)
        return LEAF
    if cls is tuple or cls is list:
        return (cls, None, *[flatten(child, leaves) for child in tree])
    if cls is dict:
        keys = _sorted_keys(tree)
        return (cls, keys if _plain(keys) else _Keys(keys), *[flatten(tree[k], leaves) for k in keys])
    if tree is None:
        return NONE
    return _flatten_other(tree, cls, leaves)


_LEAF_TYPES = {np.ndarray, int, float, bool}


def _flatten_other(tree: object, cls: type, leaves: list) -> Structure:
    if cls is OrderedDict or cls is defaultdict:
        keys = tuple(tree) if cls is OrderedDict else _sorted_keys(tree)
        meta = _Keys(keys) if cls is OrderedDict else (tree.default_factory, _Keys(keys))
        return (cls, meta, *[flatten(tree[k], leaves) for k in keys])
    if isinstance(tree, tuple) and hasattr(cls, "_fields"):
        return (cls, None, *[flatten(child, leaves) for child in tree])
    if _in_jax(tree, cls):
        children, definition = _one_level(tree)
        return ("jax", definition, *[flatten(child, leaves) for child in children])
    if dataclasses.is_dataclass(cls) and not isinstance(tree, type):
        return _flatten_dataclass(tree, cls, leaves)
    leaves.append(tree)
    return LEAF


def _flatten_dataclass(tree: object, cls: type, leaves: list) -> Structure:
    """Fields are children; those with `metadata={"static": True}` belong to the structure."""
    from mlc.frontend.static import static_key
    names, static, values, children = [], [], [], []
    for field in dataclasses.fields(cls):
        if not hasattr(tree, field.name):
            continue
        value = getattr(tree, field.name)
        if field.metadata.get("static"):
            static.append((field.name, static_key(value, f"static field {cls.__name__}.{field.name}")))
            values.append(value)
        else:
            names.append(field.name)
            children.append(flatten(value, leaves))
    return (cls, _Fields(tuple(names), tuple(static), tuple(values)), *children)


class _Fields:
    """A dataclass's child names and static fields, compared by type and bits."""

    __slots__ = ("key", "names", "values")

    def __init__(self, names: tuple, static: tuple, values: tuple):
        self.names, self.key, self.values = names, (names, static), values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fields) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class _Keys(tuple):
    """Dict keys that are not all str, compared by type and bits."""

    __slots__ = ()

    def _key(self) -> tuple:
        from mlc.frontend.static import static_key
        return tuple(static_key(k, "dict key") for k in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keys) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def _plain(keys: tuple) -> bool:
    return all(k.__class__ is str for k in keys)


def _sorted_keys(tree: dict) -> tuple:
    try:
        return tuple(sorted(tree))
    except TypeError:
        raise TraceError(f"dict keys of different types cannot be sorted: {list(tree)!r}; use one type, or a tuple of pairs") from None


def _in_jax(tree: object, cls: type) -> bool:
    """Whether JAX (if it is loaded) has this class in its pytree registry."""
    if "jax" not in sys.modules or not hasattr(sys.modules["jax"], "tree_util"):
        return False
    found = _registered.get(cls)
    if found is None:
        children, _ = _one_level(tree)
        found = _registered[cls] = not (len(children) == 1 and children[0] is tree)
    return found


def _one_level(tree: object) -> tuple[list, object]:
    return sys.modules["jax"].tree_util.tree_flatten(tree, is_leaf=lambda x: x is not tree)


def unflatten(structure: Structure, leaves: Iterator) -> object:
    """The tree of this structure with the next leaves."""
    if structure is LEAF or structure == LEAF:
        return next(leaves)
    if structure == NONE:
        return None
    kind, meta, *children = structure
    values = [unflatten(child, leaves) for child in children]
    if kind is tuple or kind is list:
        return kind(values)
    if kind is dict or kind is OrderedDict:
        return kind(zip(meta, values))
    if kind is defaultdict:
        return defaultdict(meta[0], zip(meta[1], values))
    if kind == "jax":
        return sys.modules["jax"].tree_util.tree_unflatten(meta, values)
    if isinstance(meta, _Fields):
        made = object.__new__(kind)  # no __init__: a tree of tracers must not be validated as one of arrays
        for name, value in (*zip(meta.names, values), *((name, v) for (name, _), v in zip(meta.key[1], meta.values))):
            object.__setattr__(made, name, value)
        return made
    return kind._make(values)


def paths(structure: Structure, prefix: str = "") -> list[str]:
    """One name a leaf, in order: `params.w1`, `batch.0`."""
    if structure is LEAF or structure == LEAF:
        return [prefix]
    if structure == NONE:
        return []
    kind, meta, *children = structure
    return [path for name, child in zip(_child_names(kind, meta, len(children)), children)
            for path in paths(child, f"{prefix}.{name}" if prefix else str(name))]


def _child_names(kind: object, meta: object, count: int) -> list[str]:
    if kind is dict or kind is OrderedDict:
        return [str(k) for k in meta]
    if kind is defaultdict:
        return [str(k) for k in meta[1]]
    if isinstance(meta, _Fields):
        return list(meta.names)
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        return list(kind._fields)
    if kind == "jax":
        return _jax_names(meta, count)
    return [str(i) for i in range(count)]


def _jax_names(definition: object, count: int) -> list[str]:
    """Child names from JAX's key paths; numbers when its entries have no name."""
    tree_util = sys.modules["jax"].tree_util
    try:
        tree = tree_util.tree_unflatten(definition, [_Slot() for _ in range(count)])
        keyed, _ = tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, _Slot))
        names = [getattr(path[0], "name", getattr(path[0], "key", getattr(path[0], "idx", i))) for i, (path, _) in enumerate(keyed)]
    except Exception:  # a class that cannot be rebuilt from placeholders: its children are numbered
        return [str(i) for i in range(count)]
    return [str(n) for n in names] if len(names) == count else [str(i) for i in range(count)]


class _Slot:
    """A placeholder leaf."""


def describe(structure: Structure) -> str:
    """The structure as text, for error messages: `{'w': *, 'b': *}`."""
    if structure is LEAF or structure == LEAF:
        return "*"
    if structure == NONE:
        return "None"
    kind, meta, *children = structure
    inner = [describe(child) for child in children]
    if kind is tuple:
        return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(inner)}]"
    names = _child_names(kind, meta, len(children))
    if kind is dict:
        return "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(meta, inner)) + "}"
    name = kind if isinstance(kind, str) else kind.__name__
    return f"{name}({', '.join(f'{n}={v}' for n, v in zip(names, inner))})"


def flatten_checked(tree: object, what: str) -> tuple[list, Structure]:
    """`flatten` that turns a cycle into a TraceError."""
    leaves: list = []
    try:
        return leaves, flatten(tree, leaves)
    except RecursionError:
        raise TraceError(f"{what} is nested too deep, or contains itself") from None


