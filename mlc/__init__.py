"""mlc: a small ML tensor compiler for CPUs.

    f = mlc.jit(fn); y = f(*args)                          trace, compile, run
    exe = mlc.jit(fn).lower(*specs).compile()              ahead of time, for arrays or mlc.spec("f32[64,784]"); exe.as_text(stage) shows every stage
    exe.save(path); mlc.load(path)                         a compiled program in a file
    mlc.numpy, mlc.nn                                      what functions are written with
    mlc.asarray(x)                                         a lazy array: operations are recorded, and run when a value is asked for
    @mlc.check(inputs={"x": "f32[B,64]"}, dims=...)        a test of a model: mlc and JAX run it and are compared
    with mlc.options(check=2): ...                         options, also MLC_CHECK=2
    mlc.errors                                             what mlc raises

Importing this imports neither jax nor hypothesis nor pytest. What recording a function and running cached code need comes along where its bytecode
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
    """Decorator for tests of models: mlc and JAX run the same function and their answers are compared under the derived bound.

    `check(inputs, dims=None, *, seed=0)`, as described at `pytest_mlc.check.check`:

        @mlc.check(inputs={"x": "f32[B,64]"}, dims={"B": (1, 256)})
        def test_classifier(x):
            return model(params, x)
    """
    from pytest_mlc.check import check as decorator
    return decorator(*args, **kwargs)


if not sys.dont_write_bytecode:  # 20 ms of a new process's first call; compiling these modules from source takes five times as long
    for _name in ("mlc.numpy", "mlc.nn", "mlc.variants"):
        importlib.import_module(_name)
