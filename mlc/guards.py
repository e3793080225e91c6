"""A call as the words that native dispatch compares, and its result as the words that it builds (`mlc.runtime.dispatch_ir`).

Written from the arguments of a call that was just served by the long way. What native code cannot judge as exactly as
`mlc.frontend` does has no words (None): such calls keep going the long way.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np

from mlc.frontend import tree
from mlc.runtime import dispatch_ir as ir

_DEEPEST = 64  # native code recurses over trees
_SCALARS = {float: ir.FLOAT, int: ir.INT, bool: ir.BOOL}
_GENERIC = frozenset({np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32, np.float64})
_EQUAL = frozenset({int, str, bytes})
_SAME = (bool, float, complex, type(None), type(...), type, types.FunctionType, types.BuiltinFunctionType, np.dtype, np.generic, Enum)


class _Refused(Exception):
    """The call has no words."""


class _Writer:
    """Guard words; `kept` holds what they point to."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.kept: list[object] = []

    def address(self, thing: object) -> int:
        self.kept.append(thing)
        return id(thing)

    def static(self, value: object) -> None:
        """A static argument: the same object, or an equal one where equality of a type's values is that of its bits."""
        if value.__class__ in _EQUAL:
            self.words += [ir.EQUAL, self.address(value.__class__), self.address(value)]
        elif _constant(value):
            self.words += [ir.SAME, self.address(value)]
        else:
            raise _Refused

    def argument(self, value: object, structure: Any, slot: int, depth: int = 0) -> int:
        """A traced argument, whose leaves are parameters from `slot` on; the slot after them."""
        if structure is tree.LEAF or structure == tree.LEAF:
            self._leaf(value, slot)
            return slot + 1
        if structure == tree.NONE:
            self.words += [ir.SAME, self.address(None)]
            return slot
        kind, meta, *children = structure
        if depth == _DEEPEST or value.__class__ is not kind:
            raise _Refused
        if kind is dict and tree._plain(meta):
            self.words += [ir.DICT, len(children)]
            for key, child in zip(meta, children):
                self.words.append(self.address(key))
                slot = self.argument(value[key], child, slot, depth + 1)
            return slot
        if kind is not list and not issubclass(kind, tuple):
            raise _Refused
        self.words += [ir.LIST if kind is list else ir.TUPLE, self.address(kind), len(children)]
        for item, child in zip(value, children):
            slot = self.argument(item, child, slot, depth + 1)
        return slot

    def _leaf(self, value: object, slot: int) -> None:
        cls = value.__class__
        if cls is np.ndarray and value.dtype.isnative:
            self.words += [ir.ARRAY, slot, self.address(value.dtype), value.ndim, *value.shape]
        elif cls in _SCALARS:
            self.words += [_SCALARS[cls], slot]
        elif cls in _GENERIC:
            self.words += [ir.SCALAR, slot, self.address(cls)]
        else:
            raise _Refused


def _constant(value: object) -> bool:
    """Whether nothing can change what this object is as a static argument, so that being the same object is being the same argument."""
    cls = value.__class__
    if isinstance(value, _SAME) or cls in _EQUAL:
        return True
    if cls in (tuple, frozenset):
        return all(map(_constant, value))
    parameters = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and all(_constant(getattr(value, f.name)) for f in dataclasses.fields(value))


def _leaves(structure: Any) -> int:
    return len(tree.paths(structure))


def guard_words(structure: Any, args: tuple, kwargs: Mapping[str, object], static_positions: Collection[int] = (),
                static_names: Collection[str] = ()) -> tuple[list[int], list[object]] | None:
    """The guard words of a call's arguments and what they point to; None if native code cannot judge such arguments.

    `structure` is that of the traced ones, as `mlc.frontend.capture.Call` and `Signature` have it.
    """
    writer = _Writer()
    positional, named = structure[2], structure[3]
    traced = iter(positional[2:])
    slot = 0
    try:
        for i, value in enumerate(args):
            if i in static_positions:
                writer.static(value)
            else:
                slot = writer.argument(value, next(traced), slot)
        starts, children = {}, {}
        for key, child in zip(named[1], named[2:]):
            starts[key], children[key] = slot, child
            slot += _leaves(child)
        for key, value in kwargs.items():
            if key in static_names:
                writer.static(value)
            else:
                writer.argument(value, children[key], starts[key])
    except _Refused:
        return None
    return writer.words, writer.kept


def result_words(structure: Any) -> tuple[list[int], list[object]] | None:
    """The words of a result tree and what they point to; None for trees with classes that Python code must make."""
    words: list[int] = []
    kept: list[object] = []
    leaf = 0

    def write(structure: Any, depth: int) -> None:
        nonlocal leaf
        if structure is tree.LEAF or structure == tree.LEAF:
            words.extend((ir.OUT_LEAF, leaf))
            leaf += 1
            return
        if structure == tree.NONE:
            words.append(ir.OUT_NONE)
            return
        kind, meta, *children = structure
        named = isinstance(kind, type) and kind.__mro__ == (kind, tuple, object) and hasattr(kind, "_fields")
        if depth == _DEEPEST or not (kind in (tuple, list) or named or (kind is dict and tree._plain(meta))):
            raise _Refused
        kept.append((kind, meta))
        if kind is dict:
            words.extend((ir.OUT_DICT, len(children)))
        elif kind is list:
            words.extend((ir.OUT_LIST, len(children)))
        else:
            words.extend((ir.OUT_TUPLE, id(kind) if named else 0, len(children)))
        for i, child in enumerate(children):
            if kind is dict:
                words.append(id(meta[i]))
            write(child, depth + 1)
    try:
        write(structure, 0)
    except _Refused:
        return None
    return words, kept
