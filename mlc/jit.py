"""`mlc.jit`: record a function once per kind of arguments, compile it, and find the compiled variant by cheap guards.

A variant belongs to a tree structure, the shapes, dtypes and weakness of the leaves, the static arguments (by type and
bits) and the options that affect code. Globals and closures are read when a variant is recorded, as in `jax.jit`: what
they become later is not seen.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from numpy import ndarray

from mlc.core import options as opt
from mlc.core.locks import ForkSafeLock

__all__ = ["Compiled", "Jit", "Lowered", "jit", "load"]


def jit(fn: Callable | None = None, *, static_argnums: int | Sequence[int] | None = None, static_argnames: str | Sequence[str] | None = None,
        donate_argnums: int | Sequence[int] | None = None, donate_argnames: str | Sequence[str] | None = None, name: str = "") -> Any:
    """Compile `fn` for the arguments it is called with; also a decorator, with or without keywords.

    Arguments are pytrees of arrays and Python scalars (weakly typed); the result is the same pytree of fresh NumPy
    arrays. Static arguments are passed to `fn` as they are and select the variant. Donation is accepted and has no
    effect: the caller's NumPy arrays stay valid, and temporaries are reused anyway.
    """
    if fn is None:
        return functools.partial(jit, static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums,
                                 donate_argnames=donate_argnames, name=name)
    if not callable(fn):
        raise TypeError(f"mlc.jit takes a function, got a {type(fn).__name__}; keywords such as static_argnums are given by name")
    return Jit(fn, static_argnums, static_argnames, donate_argnums, donate_argnames, name)


_capture = _trace_state = None


def _load_capture():
    """The tracer, imported on first use: importing mlc stays light."""
    global _capture, _trace_state
    if _capture is None:
        from mlc.frontend import capture, record
        _trace_state, _capture = record._state, capture
    return _capture


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
    """A function and its compiled variants. Callable from many threads."""

    def __init__(self, fn, static_argnums=None, static_argnames=None, donate_argnums=None, donate_argnames=None, name=""):
        from mlc.frontend.signature import Statics
        self.fn = fn
        self.statics = Statics(fn, static_argnums, static_argnames)
        self.statics.check_donation(donate_argnums, donate_argnames)
        self.name = name or self.statics.name
        self._has_statics = self.statics.any
        self._variants: dict[tuple, Any] = {}
        self._flat: dict[tuple, Any] = {}  # the same variants, by dtypes and shapes alone, for calls with arrays only
        self._lock = ForkSafeLock()
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        return f"<mlc.jit of {self.name}, {len(self._variants)} variants>"

    def __get__(self, instance: object, owner: type | None = None):
        """A jitted method is bound like a function; `self` is then the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        # Nothing but arrays, the usual case, is found without looking at trees.
        flat = None
        if not kwargs and _trace_state is not None and getattr(_trace_state, "trace", None) is None:
            flat = [(a.dtype, a.shape) for a in args if a.__class__ is ndarray]
            if len(flat) == len(args) and not self._has_statics:
                flat = (tuple(flat), _options_key())
                variant = self._flat.get(flat)
                if variant is not None:
                    return variant._run(args)
            else:
                flat = None
        return self._call(args, kwargs, flat)

    def _call(self, args: tuple, kwargs: dict, flat: tuple | None):
        """Any call: inlined while another function is recorded; otherwise the variant is looked up, or made under the lock."""
        capture = _load_capture()
        if capture.current_trace() is not None:
            return capture.inline(self, args, kwargs)
        call = capture.Call(self.statics, args, kwargs)
        key = (call.key, _options_key())
        variant = self._variants.get(key)
        if variant is None:
            with self._lock:
                variant = self._variants.get(key)
                if variant is None:
                    variant = self._variants[key] = self._lower(call).compile()
        if flat is not None:
            self._flat[flat] = variant
        return variant._run(call.leaves)

    def lower(self, *args, **kwargs) -> Lowered:
        """Record the function for these arguments: arrays, `mlc.spec("f32[64,128]")`, or Python scalars; statics as they are.

        UnsupportedError for a spec with a named dim.
        """
        return self._lower(_load_capture().Call(self.statics, args, kwargs, specs=True))

    def _lower(self, call) -> Lowered:
        return Lowered(_load_capture().record(self.fn, self.name, call))

    def clear_cache(self) -> None:
        """Forget the compiled variants."""
        with self._lock:
            self._variants.clear()
            self._flat.clear()


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
        from mlc.graph.text import print_graph
        return print_graph(self._captured.graph, locations)

    def compile(self) -> Compiled:
        """Compile under the options in force."""
        from mlc.compile import compile_graph
        return Compiled(self._captured.signature(), compile_graph(self._captured.graph))


class Compiled:
    """A compiled function for one kind of arguments. Called with the arguments `lower` saw, without the static ones."""

    def __init__(self, signature, executable):
        self.signature, self.executable = signature, executable

    def __call__(self, *args, **kwargs):
        """Run. Raises ShapeError, DtypeError or TraceError, naming the argument, when they are not what was compiled for."""
        return self._run(self.signature.check(args, kwargs))

    def _run(self, leaves: Sequence[Any]):
        packed = self.signature.pack(leaves)
        return self.signature.unpack(self.executable.run(packed), packed)

    @property
    def graph(self):
        """The recorded graph; not there after `mlc.load`."""
        return self.executable.graph

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage: "graph", "optimized", "kernels", "loops", "memory", "llvm" or "asm"."""
        return self.executable.as_text(stage)

    @property
    def pass_log(self) -> list:
        """What each pass did."""
        return self.executable.pass_log

    def cost_analysis(self) -> dict:
        """Flops and bytes accessed, in total and per kernel."""
        return self.executable.cost_analysis()

    def memory_analysis(self) -> dict:
        """Arena, live lower bound, constants and outputs in bytes."""
        return self.executable.memory_analysis()

    def save(self, path: str | os.PathLike) -> None:
        """Write the artifact that `mlc.load` reads. UnsupportedError for argument trees that cannot be described in it."""
        self.executable.save(path, json.dumps(self.signature.to_json()))

    def __reduce__(self):
        from mlc.core.errors import UnsupportedError
        raise UnsupportedError("a compiled function holds machine code and cannot be pickled or copied; use its save(path) and mlc.load(path)")


def load(path: str | os.PathLike) -> Compiled:
    """An executable that `exe.save` wrote, without tracing, passes or code generation.

    Raises ArtifactError for a file that is damaged, foreign, or made for another CPU or version.
    """
    from mlc.compile import load_executable
    from mlc.core.errors import ArtifactError
    from mlc.frontend.signature import Signature
    executable, frontend = load_executable(path)
    if not frontend:
        raise ArtifactError(f"{os.fspath(path)} was saved without a description of its arguments")
    return Compiled(Signature.from_json(json.loads(frontend)), executable)
