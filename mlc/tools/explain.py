"""Compile a function and print every stage: captured graph, pass log, optimized graph, kernels, loops, memory, LLVM, assembly.

MODULE is an importable name or a .py file. A SPEC describes one argument: f32[64,784], or a Python literal of specs such as
{"w": "f32[784,512]", "b": "f32[512]"}. A test decorated with @mlc.check brings its own; its named dims take their largest
sizes, or those of --dim.

    mlc explain models.mlp:forward "f32[64,784]" "f32[784,512]" --stage kernels
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlc.core.options import STAGES

HELP = "print every stage of a compiled function"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="MODULE:FN", help="the function, as package.module:name or path/to/file.py:name")
    parser.add_argument("specs", metavar="SPEC", nargs="*", help="the type of each argument")
    parser.add_argument("-s", "--stage", action="append", choices=STAGES, help="print this stage only; may be repeated")
    parser.add_argument("--dim", metavar="NAME=SIZE", action="append", default=[], help="the size of a named dim")
    parser.add_argument("--target", choices=("native", "generic", "golden-v3"), default=None, help="the CPU to compile for")
    parser.add_argument("--locations", action="store_true", help="show in the graph which source line each node comes from")


# --------------------------------------------------------------------------- the function
def load_function(name: str) -> Callable:
    """The function that `package.module:name` or `file.py:name` stands for. Raises UsageError."""
    from mlc.tools.cli import UsageError
    module_name, colon, path = name.rpartition(":")
    if not colon or not module_name or not path:
        raise UsageError(f"{name!r} is not MODULE:FN, as in package.module:function or file.py:function")
    found: Any = _load_module(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"{module_name} has no {path!r}") from None
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}, not a function")
    return found


def _load_module(name: str):
    from mlc.tools.cli import UsageError, one_line
    try:
        if name.endswith(".py"):
            folder = os.path.dirname(os.path.abspath(name))
            sys.path.insert(0, folder)
            spec = importlib.util.spec_from_file_location(Path(name).stem, name)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise UsageError(f"cannot import {name}: {one_line(error)}") from error


# --------------------------------------------------------------------------- its arguments
def read_dims(pairs: list[str]) -> dict[str, int]:
    """`["B=64"]` -> {"B": 64}. Raises UsageError."""
    from mlc.tools.cli import UsageError
    found = {}
    for pair in pairs:
        name, _, size = pair.partition("=")
        if not name.isidentifier() or not size.isdigit():
            raise UsageError(f"--dim {pair}: write NAME=SIZE, as in B=64")
        found[name] = int(size)
    return found


def read_spec(text: str, dims: dict[str, int]) -> Any:
    """An argument's spec: a type, or a Python literal of types and numbers. Raises UsageError or MlcError."""
    from mlc.tools.cli import UsageError
    if text.lstrip()[:1] not in ("{", "[", "("):
        return _typed(text, dims)
    try:
        tree = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UsageError(f"{text!r} is neither a type nor a Python literal of types") from None
    return _map(tree, lambda leaf: _typed(leaf, dims) if isinstance(leaf, str) else leaf)


def _map(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _map(child, function) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(child, function) for child in tree)
    return function(tree)


def _typed(text: str, dims: dict[str, int]):
    from mlc.core.dims import Dim, TensorType, parse_type
    type = parse_type(text)
    return TensorType([dims.get(d.name, d) if isinstance(d, Dim) else d for d in type.shape], type.dtype)


def lower(function: Callable, specs: list[str], dims: dict[str, int]):
    """The recorded function. Raises UsageError where the arguments do not fit, and whatever recording raises."""
    import inspect

    import mlc
    from mlc.tools.cli import UsageError
    if not specs and hasattr(function, "mlc_model"):
        return mlc.jit(function.mlc_model).lower(*function.mlc_example(dims))
    jitted = function if hasattr(function, "lower") else mlc.jit(function)
    given = [read_spec(text, dims) for text in specs]
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError):
        names = ", ".join(inspect.signature(function).parameters)
        raise UsageError(f"the function takes ({names}), {len(given)} specs are given; give one a parameter, such as \"f32[64,784]\"") from None
    return jitted.lower(*given)


def _advice(function: Callable) -> str:
    """What to do about a function that is not written in Python: it cannot be made of mlc's."""
    import inspect
    if inspect.isroutine(function) and not hasattr(function, "__code__"):
        return f". {function.__name__} is a built-in function; name a Python function of arrays, which calls mlc.numpy instead"
    return ""


# --------------------------------------------------------------------------- the command
def run(args: argparse.Namespace) -> int:
    from mlc.core.errors import CodegenError, VerifyError
    from mlc.core.options import options
    from mlc.tools.cli import UsageError, one_line
    function = load_function(args.function)
    # Nothing is run, so no code is made until a stage asks for it.
    with options(backend="interpreter", cache=False, **({"target": args.target} if args.target else {})):
        try:
            lowered = lower(function, args.specs, read_dims(args.dim))
            compiled = lowered.compile()
        except (UsageError, VerifyError, CodegenError):
            raise
        except Exception as error:  # whatever the user's function raises
            raise UsageError(f"{args.function} cannot be recorded: {one_line(error)}{_advice(function)}") from error
        chosen = [stage for stage in STAGES if stage in (args.stage or STAGES)]
        for stage in chosen:
            if len(chosen) > 1:
                print(f"{'' if stage == chosen[0] else chr(10)}== {stage} ==")
            print(_text(lowered, compiled, stage, args.locations).rstrip("\n"))
    return 0


def _text(lowered, compiled, stage: str, locations: bool) -> str:
    return lowered.as_text(locations=True) if stage == "graph" and locations else compiled.as_text(stage)
