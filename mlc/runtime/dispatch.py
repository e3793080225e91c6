"""Dispatchers: built-in functions that find a call's program by guards and return its result tree, all in native code.

A dispatcher holds entries (guards, program, shape of the result) for one setting of the options. It compares that
setting by two words: the identity of the overrides in force, and the version of the environment's dict. Python changes
what a dispatcher knows by writing one word, the address of a new table, so that calls see the old table or the new one.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core import options
from mlc.core.aligned import address
from mlc.runtime import dispatch_ir as ir
from mlc.runtime import entry, entry_ir
from mlc.runtime.once import once

_METH_FASTCALL_KEYWORDS = 0x82
_DICT_VERSION = 24  # offset of ma_version_tag
_OLD_TABLES = 16    # a call that looks for its entry may still read the table that was just replaced

# The dict behind os.environ: its version changes with every variable that is set.
ENVIRONMENT: dict | None = getattr(os.environ, "_data", None) if os.name == "posix" else None


def _version(mapping: dict) -> int:
    return ctypes.c_uint64.from_address(id(mapping) + _DICT_VERSION).value


class _Dispatch:
    """What all dispatchers share: the method definition, and the table of objects that the code compares with."""

    def __init__(self, native: entry._Native, recordings: list):
        api = (ctypes.c_uint64 * entry_ir.API_SLOTS).from_address(native.library.address("mlc_api"))
        known = {entry_ir.NONE: None, entry_ir.TRUE: True, entry_ir.FLOAT_TYPE: float, entry_ir.INT_TYPE: int, entry_ir.BOOL_TYPE: bool,
                 entry_ir.DICT_TYPE: dict, entry_ir.OVERRIDES: options._overrides}
        for slot, value in known.items():
            api[slot] = id(value)
        api[entry_ir.ENVIRONMENT] = id(ENVIRONMENT) + _DICT_VERSION
        api[entry_ir.LIVE] = id(recordings) + ir.SIZE
        self.recordings = recordings
        self.native = native
        self.method = entry._MethodDef(b"mlc_jit", native.library.address("mlc_dispatch"), _METH_FASTCALL_KEYWORDS, None)


_shared: dict[None, _Dispatch] = {}


def available(recordings: list) -> bool:
    """Whether this process has dispatchers; `recordings` is the list that is not empty while a function is recorded (always the same one)."""
    if None not in _shared:
        native = entry._native()
        if isinstance(native, str) or _layout_problem():
            return False
        _shared.setdefault(None, _Dispatch(native, recordings))
    return True


@once
def _layout_problem() -> str | None:
    """Which objects are not laid out as the code expects; None if all are."""
    def word(at: int) -> int:
        return ctypes.c_uint64.from_address(at).value
    pair, two, number = (None, True), [None, True], np.float64(2.5)
    if pair.__sizeof__() != ir.ITEMS + 16 or word(id(pair) + ir.SIZE) != 2 or word(id(pair) + ir.ITEMS) != id(None):
        return "tuples"
    items = two.__class__.__basicsize__ >= ir.ITEMS + 8 and word(id(two) + ir.SIZE) == 2 and word(id(two) + ir.ITEMS)
    if not items or items == id(None) or word(items + 8) != id(True):
        return "lists"
    if word(id({1: 1, 2: 2, 3: 3}) + ir.SIZE) != 3 or ENVIRONMENT.__class__ is not dict or dict.__basicsize__ < _DICT_VERSION + 8:
        return "dicts"
    if any(ctypes.c_double.from_address(id(x) + ir.VALUE).value != 2.5 for x in (float(number), number)):
        return "floats"
    return None if _versions_work() else "dict versions"


def _versions_work() -> bool:
    """Whether setting, changing and removing an item change a dict's version, and reading does not."""
    mapping, seen = {b"a": b"1"}, []
    for change in (lambda: mapping.get(b"a"), lambda: mapping.update(b=1), lambda: mapping.update(b=2), lambda: mapping.pop("b"), mapping.clear):
        seen.append(_version(mapping))
        change()
    seen.append(_version(mapping))
    return seen[0] == seen[1] and len(set(seen)) == 5


class Dispatcher:
    """The table of one dispatcher, and what it points to. The function it drives holds this; this does not hold the function."""

    def __init__(self) -> None:
        self._words = np.zeros(2, np.uint64)
        self._table: tuple = ()
        self._old: deque = deque(maxlen=_OLD_TABLES)

    def function(self, fallback: Callable | None) -> Callable:
        """The built-in function; `fallback` takes the calls that no entry fits, without one NotImplemented says so."""
        shared = _shared[None]
        self._words[ir.FALLBACK] = 0 if fallback is None else id(fallback)
        context = self._words.view(entry._Context)
        context.keep = (self, fallback)
        return shared.native.new_function(ctypes.addressof(shared.method), context, None)

    def publish(self, entries: Sequence[np.ndarray], setting: object = None, version: int = 0, always: bool = False) -> None:
        """Let calls be served by these entries while `setting` (the overrides in force) and the environment's version hold; or `always`."""
        programs = [owner.program for owner in entries]
        most = [max((int(np.asarray(p)[slot]) for p in programs), default=0) for slot in (entry_ir.BUFFERS, entry_ir.INPUTS, entry_ir.OUTPUTS)]
        table = np.array([0 if always else id(setting), version, len(entries), *most, *map(address, entries)], np.uint64)
        self._old.append(self._table)
        self._table = (table, setting, tuple(entries))
        self._words[ir.TABLE] = address(table)

    @staticmethod
    def environment_version() -> int:
        """The version of the environment: any change of a variable changes it."""
        return _version(ENVIRONMENT)

    def clear(self) -> None:
        """Forget every entry."""
        self._words[ir.TABLE] = 0
        self._old.append(self._table)
        self._table = ()


def new_entry(program: Callable, positional: int, keywords: Sequence[str], guard: Sequence[int], result: Sequence[int], keep: object) -> np.ndarray:
    """An entry for `Dispatcher.publish`: the guard and result words of a program (its native function), which point into `keep`."""
    context = program.__self__
    guard_words, result_words = (np.array([*words, 0, 0], np.uint64) for words in (guard, result))  # readers look two words ahead
    words = [0, positional, len(keywords), int(np.asarray(context)[entry_ir.INPUTS]), address(context), address(guard_words), address(result_words),
             *map(id, keywords)]
    owner = np.array(words, np.uint64).view(entry._Context)
    np.asarray(owner)[ir.OWNER] = id(owner)
    owner.program = context
    owner.keep = (program, guard_words, result_words, keywords, keep)
    return owner
