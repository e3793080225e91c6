"""mlc: a small ML tensor compiler for CPUs.

    f = mlc.jit(fn); y = f(*args)                          trace, compile, run
    exe = mlc.jit(fn).lower(*specs).compile()              ahead of time; exe.as_text(stage) shows every stage
    mlc.numpy, mlc.nn, mlc.asarray                         what functions are written with
    with mlc.options(check=2): ...                         options, also MLC_CHECK=2

Importing this imports neither jax nor pytest. What recording a function and running cached code need comes along where its bytecode
is kept; otherwise, and for the compiler and LLVM always, modules come on first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from mlc import errors
from mlc.core.dims import parse_type as spec
from mlc.core.options import options
from mlc.jit import jit, load

if TYPE_CHECKING:
    from mlc import nn, numpy
    from mlc.frontend.lazy import asarray

__version__ = "0.1.0"
__all__ = ["__version__", "asarray", "check", "errors", "jit", "load", "nn", "numpy", "options", "spec"]

_LAZY = {"nn": ("mlc.nn", None), "numpy": ("mlc.numpy", None), "asarray": ("mlc.frontend.lazy", "asarray")}


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'mlc' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    importlib.import_module("mlc.numpy")  # arrays get their operators
    found = importlib.import_module(module)
    found = globals()[name] = found if attribute is None else getattr(found, attribute)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def check(*args, **kwargs):
    """Decorator for tests of models: mlc and JAX run the same function and their answers are compared (`pytest_mlc.check`)."""
    from pytest_mlc.check import check as decorator
    return decorator(*args, **kwargs)


if not sys.dont_write_bytecode:  # 20 ms of a new process's first call; compiling these modules from source takes five times as long
    for _name in ("mlc.numpy", "mlc.nn", "mlc.variants"):
        importlib.import_module(_name)
