"""The libraries measured: for each an `np` and an `nn` namespace with the same names, how to compile, and how to pass arrays in and out.

Where a library has a function of its own for something, that is what it is measured by (torch's attention, layer norm, softmax).
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np


def _same(value: Any) -> Any:
    return value


def aligned(array: Any) -> np.ndarray:
    """A copy that starts a cache line, as the arrays of jax and torch do."""
    array = np.ascontiguousarray(array)
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    result = raw[start:start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


@dataclass
class Library:
    """`put` and `get` carry one array from and to NumPy; `wait` returns when a result is there; `start` brings up what else a library
    needs before its first call."""

    xp: Any
    nn: Any
    compile: Callable[[Callable], Callable] = _same
    put: Callable[[np.ndarray], Any] = aligned
    wait: Callable[[Any], Any] | None = None
    get: Callable[[Any], np.ndarray] = np.asarray
    forget: Callable[[], None] = lambda: None
    start: Callable[[], Any] = lambda: None
    memory: Callable[[Callable, list[Any]], dict[str, float]] | None = None


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * scale + bias


def _numpy_nn(erf: Callable) -> SimpleNamespace:
    def gelu(x, approximate):
        inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))) if approximate else erf(x * math.sqrt(0.5))
        return 0.5 * x * (1 + inner)
    return SimpleNamespace(
        softmax=_softmax, layer_norm=_layer_norm, gelu=gelu, erf=erf, relu=lambda x: np.maximum(x, 0), sum=lambda x, axis: np.sum(x, axis=axis),
        max=lambda x, axis: np.max(x, axis=axis), any=lambda x, axis: np.any(x, axis=axis), contiguous=np.ascontiguousarray, int8_matmul=np.matmul,
        attention=lambda q, k, v, scale: _softmax(q @ np.swapaxes(k, -1, -2) * scale, -1) @ v)


def _numpy() -> Library:
    def erf(x):
        raise NotImplementedError("NumPy has no erf")
    return Library(np, _numpy_nn(erf))


def reference() -> Library:
    """NumPy in float64 (integers in int64): what the others are held against."""
    erf = np.vectorize(math.erf, otypes=[np.float64])

    def widen(x):
        return np.asarray(x).astype(np.int64 if x.dtype.kind in "iu" else np.float64)
    return Library(np, _numpy_nn(erf), put=widen)


def _mlc() -> Library:
    import mlc
    xp, nn = mlc.numpy, mlc.nn
    names = SimpleNamespace(
        softmax=nn.softmax, gelu=nn.gelu, relu=nn.relu, erf=nn.erf, layer_norm=lambda x, s, b: nn.layer_norm(x, s, b),
        sum=lambda x, axis: xp.sum(x, axis=axis), max=lambda x, axis: xp.max(x, axis=axis),
        any=lambda x, axis: xp.any(x, axis=axis), contiguous=_same,
        int8_matmul=lambda x, y: xp.matmul(x, y, preferred_element_type=xp.int32),
        attention=lambda q, k, v, scale: nn.softmax(q @ xp.swapaxes(k, -1, -2) * scale, axis=-1) @ v)

    def memory(function, args):
        found = function.lower(*args).compile().memory_analysis()
        return {key: float(found[key]) for key in ("arena", "packed", "constants", "workspace") if key in found}

    def forget():
        from mlc.runtime import functions
        functions.forget()
    return Library(xp, names, mlc.jit, memory=memory, forget=forget)


def _jax() -> Library:
    import jax
    import jax.numpy as jnp
    jax.config.update("jax_enable_x64", True)

    def layer_norm(x, scale, bias):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * scale + bias
    names = SimpleNamespace(
        softmax=jax.nn.softmax, gelu=jax.nn.gelu, relu=jax.nn.relu, erf=jax.scipy.special.erf, layer_norm=layer_norm,
        sum=lambda x, axis: jnp.sum(x, axis=axis), max=lambda x, axis: jnp.max(x, axis=axis),
        any=lambda x, axis: jnp.any(x, axis=axis), contiguous=_same,
        int8_matmul=lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32),
        attention=lambda q, k, v, scale: jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) * scale, axis=-1) @ v)

    def memory(function, args):
        # Constants that a function closes over are not in it; the caller adds them.
        return {"temp": float(function.lower(*args).compile().memory_analysis().temp_size_in_bytes)}
    return Library(jnp, names, jax.jit, jnp.asarray, jax.block_until_ready, memory=memory, start=jax.devices)


def _torch() -> Library:
    import ml_dtypes
    import torch
    from torch.nn import functional
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_grad_enabled(False)

    def put(array):
        array = aligned(array)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if array.dtype == ml_dtypes.bfloat16 else torch.from_numpy(array)

    names = SimpleNamespace(
        softmax=lambda x, axis: functional.softmax(x, dim=axis), relu=functional.relu, erf=torch.erf,
        gelu=lambda x, approximate: functional.gelu(x, approximate="tanh" if approximate else "none"),
        layer_norm=lambda x, s, b: functional.layer_norm(x, x.shape[-1:], s, b),
        sum=lambda x, axis: torch.sum(x) if axis is None else torch.sum(x, dim=axis), max=lambda x, axis: torch.amax(x, dim=axis),
        any=lambda x, axis: torch.any(x, dim=axis),
        contiguous=lambda x: x.contiguous(), int8_matmul=torch._int_mm,
        attention=lambda q, k, v, scale: functional.scaled_dot_product_attention(q, k, v, scale=scale))
    return Library(torch, names, put=put, get=lambda y: y.float().numpy() if y.dtype == torch.bfloat16 else y.numpy())


def _torch_compile() -> Library:
    import torch
    library = _torch()
    library.compile = lambda function: torch.compile(function, dynamic=False)
    # Functions made by one lambda count as one to torch, which gives up after some recompilations.
    library.forget = lambda: torch._dynamo.reset()
    return library


LIBRARIES: dict[str, Callable[[], Library]] = {
    "mlc": _mlc, "jax": _jax, "torch": _torch, "torch.compile": _torch_compile, "numpy": _numpy, "reference": reference}


def installed() -> list[str]:
    """The libraries that this Python can import, mlc first."""
    return [name for name in LIBRARIES if name != "reference" and importlib.util.find_spec(name.partition(".")[0]) is not None]
