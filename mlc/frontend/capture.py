"""From a call to a graph: sort out the arguments, run the function on tracers, collect what it returns."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.core.dataclass import dataclass
from mlc.core.dims import TensorType
from mlc.core.errors import TraceError, UnsupportedError
from mlc.frontend import (
    einsum,  # noqa: F401  registers itself
    methods,  # noqa: F401  gives arrays their operators
    tree,
    unsupported,  # noqa: F401  registers names
)
from mlc.frontend.array import Array
from mlc.frontend.leaves import guard, leaf_type, normal
from mlc.frontend.promotion import as_array, as_numpy
from mlc.frontend.record import Trace, current_trace
from mlc.frontend.signature import Signature, Statics, parameter_names
from mlc.frontend.source import in_package, user_line
from mlc.frontend.static import static_key
from mlc.graph.graph import Graph

__all__ = ["Call", "current_trace", "inline", "record"]


class Call:
    """The arguments of one call: `leaves` and `structure` of the traced ones, `static` the others, `key` what a variant depends on."""

    __slots__ = ("args", "key", "kwargs", "leaves", "specs", "static", "statics", "structure")

    def __init__(self, statics: Statics, args: tuple, kwargs: dict, specs: bool = False):
        self.statics, self.specs = statics, specs
        self.static: tuple = ()
        static_part: tuple = ()
        if statics.any:
            args, kwargs, static_part = self._take_statics(args, kwargs)
        self.leaves, self.structure = tree.flatten_checked((list(args), kwargs), statics.name)
        if not specs:
            guards = tuple([guard(leaf) for leaf in self.leaves])
            if None in guards:
                guards = self._normalise()
            self.key = (self.structure, guards, static_part)

    def _take_statics(self, args: tuple, kwargs: dict) -> tuple[tuple, dict, tuple]:
        names, numbers = self.statics.argnames, self.statics.argnums
        self.static = (*((i, a) for i, a in enumerate(args) if i in numbers), *((k, kwargs[k]) for k in sorted(kwargs) if k in names))
        key = tuple((where, static_key(value, f"static argument {self._name(where)} of {self.statics.name}")) for where, value in self.static)
        return (tuple(a for i, a in enumerate(args) if i not in numbers), {k: v for k, v in kwargs.items() if k not in names}, key)

    def _name(self, where: int | str) -> str:
        return where if isinstance(where, str) else self.statics.argument_name(where)

    def _normalise(self) -> tuple:
        guards = []
        for i, leaf in enumerate(self.leaves):
            found = guard(leaf)
            if found is None:
                self.leaves[i] = leaf = normal(leaf, self.describe(i))
                found = guard(leaf)
            guards.append(found)
        return tuple(guards)

    def positions(self) -> list[int]:
        """The function's own positions of the traced positional arguments."""
        fixed = {where for where, _ in self.static if isinstance(where, int)}
        count = len(self.structure[2]) - 2 + len(fixed)
        return [i for i in range(count) if i not in fixed]

    def paths(self) -> list[str]:
        """One path a leaf, starting with the argument's name."""
        found = []
        for position, child in zip(self.positions(), self.structure[2][2:]):
            found += tree.paths(child, self.statics.argument_name(position))
        return found + tree.paths(self.structure[3])

    def describe(self, index: int) -> str:
        return f"argument {self.paths()[index]} of {self.statics.name}"

    def rebuild(self, leaves: list) -> tuple[list, dict]:
        """Arguments for the function, with these leaves and the static values in their places."""
        args, kwargs = tree.unflatten((tuple, None, *self.structure[2:]), iter(leaves))
        args = dict(zip(self.positions(), args))
        args.update((where, value) for where, value in self.static if isinstance(where, int))
        kwargs.update((where, value) for where, value in self.static if isinstance(where, str))
        return [args[i] for i in sorted(args)], kwargs


@dataclass
class Captured:
    """A recorded function: its graph, and what its arguments and results look like."""

    graph: Graph
    name: str
    paths: list[str]
    structure: Any
    result: Any

    def signature(self) -> Signature:
        at = {p: i for i, p in enumerate(self.graph.params)}
        through = {i: at[o] for i, o in enumerate(self.graph.outputs) if o in at}
        return Signature(self.name, self.paths, self.graph.input_types(), self.structure, self.result, through)


def graph_name(name: str) -> str:
    """A function's name as graph text accepts it."""
    name = name.strip("<>")
    if name.isascii() and name.isidentifier():
        return name
    name = re.sub(r"[^A-Za-z0-9_.]", "_", name) or "main"
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"


def record(fn: Callable, name: str, call: Call) -> Captured:
    """Run the function on tracers. Raises what the function raises, TraceError for a result that is no array,
    UnsupportedError when it hands a tracer to JAX."""
    paths = call.paths()
    types: list[tuple[TensorType, bool]] = [
        leaf_type(leaf, f"argument {path} of {name}", call.specs) for leaf, path in zip(call.leaves, paths)]
    trace = Trace(graph_name(name), name)
    with trace:
        leaves = [trace.parameter(n, *t) for n, t in zip(parameter_names(paths), types)]
        trace.wide_scalars.update(x.node for x, leaf in zip(leaves, call.leaves) if isinstance(leaf, np.float64))
        args, kwargs = call.rebuild(leaves)
        out, result = tree.flatten_checked(_run(fn, args, kwargs, name), f"the result of {name}")
        outputs = [trace.operand(_output(x, path, name)) for x, path in zip(out, tree.paths(result))]
    trace.graph.set_outputs(outputs)
    return Captured(trace.graph, name, paths, call.structure, result)


def _output(value: object, path: str, name: str) -> Array:
    if isinstance(value, Array):
        return value
    what = f"the result {path} of {name}" if path else f"the result of {name}"
    if isinstance(value, (bool, int, float)):
        return as_array(value)
    data = as_numpy(value, what)
    if data is None:
        raise TraceError(f"{what} is a {type(value).__name__}, which is neither an array nor a number nor a tree of them")
    return as_array(data)


def _run(fn: Callable, args: list, kwargs: dict, name: str):
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        if isinstance(error.__cause__, TraceError):  # NumPy hides why a traced value would not convert
            raise error.__cause__ from None
        folders = _jax_folders()
        if not _touched_jax(error, folders):
            raise
        first = (str(error).splitlines() or [""])[0]
        raise UnsupportedError(
            f"{name} calls jax with a traced value{user_line(error.__traceback__, folders)} ({type(error).__name__}: {first}); functions written "
            "with jax.numpy or jax.lax cannot be captured yet: write it with operators, array methods, NumPy functions or mlc.numpy") from error


def _jax_folders() -> tuple[str, ...]:
    jax = sys.modules.get("jax")
    return (os.path.dirname(jax.__file__) + os.sep,) if getattr(jax, "__file__", None) else ()


def _touched_jax(error: BaseException, folders: tuple[str, ...]) -> bool:
    """Whether an exception went through JAX, which then refused a tracer of mlc."""
    if not folders:
        return False
    # JAX may have cut its own frames out of the traceback; it says so in a note, or in the cause.
    notes = " ".join(map(str, getattr(error, "__notes__", ())))
    return (in_package(error.__traceback__, folders) or "JAX has removed its internal frames" in notes
            or type(error.__cause__).__name__ == "UnfilteredStackTrace")


def inline(jitted, args: tuple, kwargs: dict):
    """Call a jitted function while another is recorded: its operations become part of that graph.

    Scalars and NumPy arrays are traced constants inside, as they would be arguments outside.
    """
    call = Call.__new__(Call)
    call.statics, call.specs, call.static = jitted.statics, False, ()
    if jitted.statics.any:
        args, kwargs, _ = call._take_statics(args, kwargs)
    call.leaves, call.structure = tree.flatten_checked((list(args), kwargs), jitted.name)
    leaves = [leaf if isinstance(leaf, Array) else as_array(normal(leaf, call.describe(i))) for i, leaf in enumerate(call.leaves)]
    args, kwargs = call.rebuild(leaves)
    out, result = tree.flatten_checked(jitted.fn(*args, **kwargs), f"the result of {jitted.name}")
    return tree.unflatten(result, iter([_output(x, path, jitted.name) for x, path in zip(out, tree.paths(result))]))


