"""`@public`: what makes a function part of `mlc.numpy` or `mlc.nn`.

It puts the user's line and the function's name into errors, and hands a call with JAX arrays or tracers to the function
of the same name in `jax.numpy` (or `jax.nn`), so that one model can be captured by mlc and by JAX.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.core.errors import DtypeError, ShapeError, TraceError, UnsupportedError
from mlc.frontend.array import Array
from mlc.frontend.record import Tracer, current_trace
from mlc.frontend.replay import replayed
from mlc.frontend.source import locate

NUMPY: dict[str, Callable] = {}
NN: dict[str, Callable] = {}
LINALG: dict[str, Callable] = {}
_NAMESPACES = {"numpy": NUMPY, "nn": NN, "linalg": LINALG}

_jax_types: dict[type, bool] = {}


def is_jax_type(cls: type) -> bool:
    """Whether instances are JAX arrays or tracers; remembered per class, without importing jax."""
    found = _jax_types.get(cls)
    if found is None:
        root = cls.__module__.partition(".")[0]
        found = _jax_types[cls] = root in ("jax", "jaxlib") and hasattr(cls, "shape") and hasattr(cls, "dtype")
    return found


def _has_jax(values) -> bool:
    for value in values:
        cls = value.__class__
        if cls in (list, tuple):
            if _has_jax(value):
                return True
        elif is_jax_type(cls):
            return True
    return False


def _has_tracer(values) -> bool:
    return any(isinstance(v, Tracer) or (v.__class__ in (list, tuple) and _has_tracer(v)) for v in values)


def under_jax_trace() -> bool:
    """Whether JAX is tracing on this thread and mlc is not: new arrays must then be JAX's."""
    core = sys.modules.get("jax._src.core")
    return core is not None and current_trace() is None and not core.trace_state_clean()


def _for_jax(value: object) -> object:
    if isinstance(value, Array):
        return value.eval()
    if value.__class__ in (list, tuple):
        return type(value)(map(_for_jax, value))
    return value


def public(function: Callable | None = None, *, name: str = "", aliases: tuple[str, ...] = (), namespace: str = "numpy",
           creates: bool = False, jax: Callable | None = None) -> Callable:
    """Register a function under its name and aliases. `creates`: it makes arrays from no array. `jax(jax_module, *args)`: what to
    do with JAX's arrays when JAX has no function of this name."""
    if function is None:
        return functools.partial(public, name=name, aliases=aliases, namespace=namespace, creates=creates, jax=jax)
    label = name or function.__name__.rstrip("_")

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # The common case first: every class is known, and none is JAX's.
        for value in args:
            cls = value.__class__
            if _jax_types.get(cls, True) or cls in (list, tuple):
                if _wants_jax(args, kwargs, creates):
                    return _call_jax(namespace, label, jax, args, kwargs)
                break
        else:
            if (creates or kwargs) and _wants_jax(args, kwargs, creates):
                return _call_jax(namespace, label, jax, args, kwargs)
        try:
            trace = current_trace()
            return function(*args, **kwargs) if trace is None or trace.inside else replayed(trace, function, args, kwargs)
        except (ShapeError, DtypeError, TraceError, UnsupportedError) as error:
            locate(error, label)
            raise

    wrapper.__name__ = label
    wrapper.jax = jax
    for known in (label, *aliases):
        _NAMESPACES[namespace][known] = wrapper
    return wrapper


def _wants_jax(args: tuple, kwargs: dict, creates: bool) -> bool:
    values = (*args, *kwargs.values())
    if _has_jax(values):
        return not _has_tracer(values)
    return creates and under_jax_trace() and not _has_tracer(values)


def _call_jax(namespace: str, name: str, instead: Callable | None, args: tuple, kwargs: dict):
    module = sys.modules["jax"]
    args, kwargs = tuple(map(_for_jax, args)), {key: _for_jax(value) for key, value in kwargs.items()}
    if instead is not None:
        return instead(module, *args, **kwargs)
    found = getattr({"numpy": module.numpy, "nn": module.nn, "linalg": module.numpy.linalg}[namespace], name, None)
    if found is None:
        raise UnsupportedError(f"{name}: JAX has no function of this name to hand its own arrays to")
    return found(*args, **kwargs)


for _known in (int, float, bool, type(None), str, np.ndarray, np.float32, np.float64, np.int32, np.int64, np.dtype, type, slice):
    _jax_types[_known] = False

