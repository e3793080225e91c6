"""Variants: record a function once per kind of arguments, compile it, and find the compiled variant by cheap guards.

A variant belongs to a tree structure, the shapes, dtypes and weakness of the leaves, the static arguments (by type and
bits) and the options that affect code. Globals and closures are read when a variant is recorded, as in `jax.jit`: what
they become later is not seen.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mlc import guards
from mlc.compile import compile_graph, load_executable
from mlc.core import options as opt
from mlc.core.errors import ArtifactError, UnsupportedError
from mlc.core.locks import ForkSafeLock, lazy
from mlc.frontend import capture
from mlc.frontend.record import RECORDING
from mlc.frontend.signature import Signature, Statics
from mlc.graph.text import print_graph
from mlc.runtime import dispatch

__all__ = ["Compiled", "Jit", "Lowered", "Variants", "load_compiled"]


_AFFECTING = tuple(f"MLC_{name.upper()}" for name, option in opt.OPTIONS.items() if option.affects_code)
_AFFECTING_RAW = tuple(os.fsencode(name) for name in _AFFECTING)
_raw_environment = getattr(os.environ, "_data", None) if os.name == "posix" else None


def _options_key() -> tuple:
    """What the options that affect code depend on: their raw environment values, and the overrides in force."""
    overrides = opt._overrides.get()
    if _raw_environment is not None:
        raw = tuple(map(_raw_environment.get, _AFFECTING_RAW))
    else:
        raw = tuple(map(os.environ.get, _AFFECTING))
    return raw if not overrides else (raw, tuple(sorted((k, v) for k, v in overrides.items() if opt.OPTIONS[k].affects_code)))


class Jit:
    """A function and its compiled variants. Callable from many threads.

    `__call__` is an attribute of each instance, so that it can be a built-in function: calls that fit a variant then never
    enter Python code. It starts as the long way, `Variants.call`, which native dispatch falls back to.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(self, fn, static_argnums=None, static_argnames=None, donate_argnums=None, donate_argnames=None, name=""):
        self.fn = fn
        self.statics = Statics(fn, static_argnums, static_argnames)
        self.statics.check_donation(donate_argnums, donate_argnames)
        self.name = name or self.statics.name
        self._core = Variants(fn, self.statics, self.name, weakref.ref(self))
        self.__call__ = self._core.call
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        return f"<mlc.jit of {self.name}, {len(self._variants)} variants>"

    def __get__(self, instance: object, owner: type | None = None):
        """A jitted method is bound like a function; `self` is then the first argument."""
        return self if instance is None else functools.partial(self, instance)

    @property
    def _variants(self) -> dict:
        return self._core.variants

    def lower(self, *args, **kwargs) -> Lowered:
        """Record the function for these arguments: arrays, `mlc.spec("f32[64,128]")`, or Python scalars; statics as they are.

        UnsupportedError for a spec with a named dim.
        """
        return self._core.lower(capture.Call(self.statics, args, kwargs, specs=True))

    def clear_cache(self) -> None:
        """Forget the compiled variants."""
        self._core.clear()


class Variants:
    """The variants of a jitted function, and the entries of its native dispatcher. It doesn't hold the Jit: nothing here is a cycle."""

    def __init__(self, fn: Callable, statics: Any, name: str, owner: weakref.ref):
        self.fn, self.statics, self.name, self._owner = fn, statics, name, owner
        self.variants: dict[tuple, Any] = {}
        self._lock = ForkSafeLock()
        self._dispatcher: Any = None  # False where there can be none
        self._entries: dict[tuple, list] = {}  # by the options' key; the newest first
        self._known: set = set()      # calls that have an entry, or can have none
        self._published: tuple = (None, None, 0)  # the options' key, and what native code knows it by

    def call(self, *args, **kwargs):
        """Any call: inlined while another function is recorded; otherwise the variant is looked up, or made under the lock."""
        if capture.current_trace() is not None:
            return capture.inline(self, args, kwargs)
        setting = self._setting() if self.variants else None  # a function that is called once needs no native dispatch
        call, options_key = capture.Call(self.statics, args, kwargs), _options_key()
        key = (call.key, options_key)
        variant = self.variants.get(key)
        if variant is None:
            with self._lock:
                variant = self.variants.get(key)
                if variant is None:
                    variant = self.variants[key] = self.lower(call).compile()
        found = variant._run(call.leaves)
        self._remember(call, args, kwargs, variant, options_key, setting)
        return found

    def lower(self, call) -> Lowered:
        return Lowered(capture.record(self.fn, self.name, call))

    def clear(self) -> None:
        with self._lock:
            self.variants.clear()
            self._entries.clear()
            self._known.clear()
            self._published = (None, None, 0)
            if self._dispatcher:
                self._dispatcher.clear()

    # ------------------------------------------------------------------ native dispatch
    def _setting(self) -> tuple | None:
        """What native code compares to see that the options are still those of `_options_key`, read before that is; None without dispatch."""
        if self._dispatcher is None and any(variant.executable.program is not None for variant in tuple(self.variants.values())):
            with self._lock:
                if self._dispatcher is None:
                    self._dispatcher, function = new_dispatcher(self.call)
                    owner = self._owner()
                    if function is not None and owner is not None:
                        owner.__call__ = function
        return (opt._overrides.get(), self._dispatcher.environment_version()) if self._dispatcher else None

    def _remember(self, call, args: tuple, kwargs: dict, variant: Compiled, options_key: tuple, setting: tuple | None) -> None:
        """Let native code serve the next call like this one."""
        if setting is None or variant.executable.program is None:
            return
        kind = (call.key, options_key, tuple(kwargs), tuple([leaf.__class__ for leaf in call.leaves]))
        if kind in self._known:
            known_key, overrides, version = self._published
            if overrides is setting[0] and version == setting[1] and known_key == options_key:
                return
        with self._lock:
            self._publish(call, args, kwargs, variant, options_key, setting, kind)

    def _publish(self, call, args, kwargs, variant, options_key, setting, kind) -> None:
        entries = self._entries.setdefault(options_key, [])
        if kind not in self._known:
            self._known.add(kind)
            entry = variant.entry(call.structure, args, kwargs, self.statics)
            if entry is not None:
                entries.insert(0, (kind, entry))
                self._known.difference_update(old for old, _ in entries[_MOST_ENTRIES:])
                del entries[_MOST_ENTRIES:]
        self._dispatcher.publish([entry for _, entry in entries], *setting)
        self._published = (options_key, *setting)


def new_dispatcher(fallback: Callable | None) -> tuple[Any, Callable | None]:
    """A native dispatcher and its function, which calls `fallback` for what it has no entry for, or returns NotImplemented.

    (False, None) where there can be none.
    """
    if not dispatch.available(RECORDING):
        return False, None
    dispatcher = dispatch.Dispatcher()
    return dispatcher, dispatcher.function(fallback)


_MOST_ENTRIES = 16  # tried one after another, some nanoseconds each
_CALLS_REMEMBERED = 2  # after the first: an executable adapts, the next call may have other classes of scalars


class Lowered:
    """A recorded function: `as_text()` shows its graph, `compile()` makes it executable."""

    def __init__(self, captured):
        self._captured = captured

    @property
    def graph(self):
        """The recorded graph."""
        return self._captured.graph

    def as_text(self, locations: bool = False) -> str:
        """The graph's text; with `locations`, each line names the user's source line."""
        return print_graph(self._captured.graph, locations)

    def compile(self) -> Compiled:
        """Compile under the options in force."""
        return Compiled(self._captured.signature(), compile_graph(self._captured.graph))


class Compiled:
    """A compiled function for one kind of arguments. Called with the arguments `lower` saw, without the static ones."""

    def __init__(self, signature, executable):
        self.signature, self.executable = signature, executable
        self._native: Callable | None = None  # from the third call on; it declines what it has not seen
        self._seen = 0

    def __call__(self, *args, **kwargs):
        """Run. Raises ShapeError, DtypeError or TraceError, naming the argument, when they are not what was compiled for."""
        if self._native is not None:
            found = self._native(*args, **kwargs)
            if found is not NotImplemented:
                return found
        found = self._run(self.signature.check(args, kwargs))
        self._remember(args, kwargs)
        return found

    def _remember(self, args: tuple, kwargs: dict) -> None:
        if self._seen > _CALLS_REMEMBERED or getattr(self.executable, "program", None) is None:
            return
        self._seen += 1
        if self._seen == 1:
            return
        dispatcher, function = new_dispatcher(None)
        entry = self.entry(self.signature.structure, args, kwargs) if function is not None else None
        if entry is not None:
            dispatcher.publish([entry], always=True)
            self._native = function

    def _run(self, leaves: Sequence[Any]):
        packed = self.signature.pack(leaves)
        return self.signature.unpack(self.executable.run(packed), packed)

    def entry(self, structure: Any, args: tuple, kwargs: dict, statics: Any = None) -> Any:
        """An entry for a native dispatcher, of calls with arguments like these; None if it has to be Python code that runs them."""
        guard = guards.guard_words(structure, args, kwargs, *((statics.argnums, statics.argnames) if statics else ()))
        result, program = self._result_words, self.executable.program._native
        if program is None or guard is None or result is None:
            return None
        return dispatch.new_entry(program, len(args), tuple(kwargs), guard[0], result[0], (guard[1], result[1]))

    @lazy
    def _result_words(self) -> tuple | None:
        return guards.result_words(self.signature.result)

    @property
    def graph(self):
        """The recorded graph; not there after `mlc.load`."""
        return self.executable.graph

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage: "graph", "passes", "optimized", "kernels", "loops", "memory", "llvm" or "asm"; after
        `mlc.load` without "passes", "llvm" and "asm"."""
        return self.executable.as_text(stage)

    @property
    def pass_log(self) -> list:
        """A `PassResult` for each pass that ran: name, version, changed, nodes before and after, milliseconds, notes; empty after `mlc.load`."""
        return self.executable.pass_log

    def cost_analysis(self) -> dict:
        """{"flops", "bytes accessed"} of one call, and "kernels": a list of the same for each kernel."""
        return self.executable.cost_analysis()

    def memory_analysis(self) -> dict:
        """Bytes: "arena", "max live" (its lower bound), "constants", "packed" (weights), "inputs", "outputs", "workspace", "scratch per worker"."""
        return self.executable.memory_analysis()

    def save(self, path: str | os.PathLike) -> None:
        """Write the artifact that `mlc.load` reads. UnsupportedError for argument trees that cannot be described in it."""
        self.executable.save(path, json.dumps(self.signature.to_json()))

    def __reduce__(self):
        raise UnsupportedError("a compiled function holds machine code and cannot be pickled or copied; use its save(path) and mlc.load(path)")


def load_compiled(path: str | os.PathLike) -> Compiled:
    """See `mlc.load`."""
    executable, frontend = load_executable(path)
    if not frontend:
        raise ArtifactError(f"{os.fspath(path)} was saved without a description of its arguments")
    return Compiled(Signature.from_json(json.loads(frontend)), executable)
