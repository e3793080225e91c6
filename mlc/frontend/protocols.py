"""NumPy functions on arrays of mlc: `np.exp(x)`, `np.add.reduce(x)`, `np.concatenate([x, y])` are the functions of `mlc.numpy`."""

from __future__ import annotations

import numpy as np

from mlc.core.errors import MlcError, TraceError, UnsupportedError
from mlc.frontend import reductions
from mlc.frontend.api import LINALG, NUMPY
from mlc.frontend.source import locate

_REDUCE = {
    "add": reductions.sum_, "multiply": reductions.prod, "maximum": reductions.max_, "minimum": reductions.min_,
    "logical_and": reductions.all_, "logical_or": reductions.any_, "bitwise_and": reductions.all_, "bitwise_or": reductions.any_,
}
# Arguments that mean nothing here when they have these values.
_HARMLESS = {"out": (None, (None,)), "where": (True,), "casting": ("same_kind", "unsafe", "safe"), "order": ("K", "C", "A", None),
             "subok": (True, False)}


def _fail(name: str, message: str, kind: type[MlcError] = UnsupportedError):
    raise locate(kind(message), name)


def _clean(name: str, kwargs: dict) -> dict:
    """The keyword arguments without those that change nothing; TraceError for `out=` a NumPy array."""
    out = kwargs.get("out")
    if out is not None and any(o is not None for o in (out if isinstance(out, tuple) else (out,))):
        _fail(name, "a NumPy array cannot receive a recorded value; write y = y + x instead of y += x, and use the result", TraceError)
    def harmless(key: str, value: object) -> bool:
        return any(value is h or (isinstance(h, (str, tuple)) and isinstance(value, type(h)) and value == h) for h in _HARMLESS.get(key, ()))
    return {k: v for k, v in kwargs.items() if not harmless(k, v)}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple, kwargs: dict):
    """`__array_ufunc__`: a call or a reduction, by the ufunc's name."""
    name = ufunc.__name__
    kwargs = _clean(name, kwargs)
    if method == "reduce":
        function = _REDUCE.get(name)
        if function is None or (name.startswith("bitwise") and inputs[0].dtype != bool):
            _fail(f"np.{name}.reduce", "this reduction is not available; use a function of mlc.numpy")
        return function(*inputs, **{"axis": 0, **kwargs})
    if method == "outer":
        from mlc.frontend.promotion import as_array
        x, y = map(as_array, inputs)
        return call_ufunc(ufunc, "__call__", (x.reshape(x.shape + (1,) * y.ndim), y), kwargs)
    function = NUMPY.get({"divide": "true_divide", "conjugate": "conj"}.get(name, name))
    if method != "__call__" or function is None:
        _fail(f"np.{name}{'' if method == '__call__' else '.' + method}", "this NumPy function is not available here; use a function of mlc.numpy")
    dtype = kwargs.pop("dtype", None)
    if kwargs:
        _fail(f"np.{name}", f"the argument {', '.join(kwargs)} is not available; use mlc.numpy.where to mask")
    found = function(*inputs)
    return found if dtype is None else found.astype(dtype)


_ABOUT = {"shape": lambda a: a.shape, "ndim": lambda a: a.ndim, "iscomplexobj": lambda x: False, "isrealobj": lambda x: True,
          "size": lambda a, axis=None: a.size if axis is None else a.shape[axis]}


def call_function(function, args: tuple, kwargs: dict):
    """`__array_function__`: the function of the same name in `mlc.numpy` or `mlc.numpy.linalg`."""
    name, module = function.__name__, function.__module__
    if module == "numpy" and name in _ABOUT:
        return _ABOUT[name](*args, **kwargs)
    found = {"numpy": NUMPY, "numpy.linalg": {**NUMPY, **LINALG}}.get(module, {}).get(name)
    if found is None:
        _fail(f"{module}.{name}", "this NumPy function is not available on recorded values; use a function of mlc.numpy")
    return found(*args, **_clean(name, kwargs))
