"""One library in a process of its own: reads a request a line, answers with a line of JSON.

    {"do": "load", "workload": name}              -> {"first_ms": first call, tracing and compiling included, "error": worst ulp-free difference}
    {"do": "time", "workload": name, "seconds": s} -> {"us": median time of a call, "best_us": least}
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def _numpy_library() -> tuple[Any, Any, Callable, Callable, Callable]:
    def softmax(x, axis):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    def layer_norm(x, scale, bias):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(1e-5)) * scale + bias

    def gelu(x, approximate):
        if not approximate:
            raise NotImplementedError("NumPy has no erf")
        return np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)))
    nn = SimpleNamespace(softmax=softmax, layer_norm=layer_norm, gelu=gelu, relu=lambda x: np.maximum(x, 0))
    return np, nn, lambda f: f, lambda x: x, lambda y: y


def _mlc_library() -> tuple[Any, Any, Callable, Callable, Callable]:
    import mlc
    nn = SimpleNamespace(softmax=mlc.nn.softmax, gelu=mlc.nn.gelu, relu=mlc.nn.relu,
                         layer_norm=lambda x, s, b: mlc.nn.layer_norm(x, s, b))
    return mlc.numpy, nn, mlc.jit, lambda x: x, lambda y: y


def _jax_library() -> tuple[Any, Any, Callable, Callable, Callable]:
    import jax
    import jax.numpy as jnp

    def layer_norm(x, scale, bias):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * scale + bias
    nn = SimpleNamespace(softmax=jax.nn.softmax, gelu=jax.nn.gelu, relu=jax.nn.relu, layer_norm=layer_norm)
    return jnp, nn, jax.jit, jnp.asarray, jax.block_until_ready


def _torch_library() -> tuple[Any, Any, Callable, Callable, Callable]:
    import torch
    from torch.nn import functional
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_grad_enabled(False)
    nn = SimpleNamespace(
        softmax=lambda x, axis: functional.softmax(x, dim=axis), relu=functional.relu,
        gelu=lambda x, approximate: functional.gelu(x, approximate="tanh" if approximate else "none"),
        layer_norm=lambda x, s, b: functional.layer_norm(x, x.shape[-1:], s, b))
    return torch, nn, lambda f: f, torch.from_numpy, lambda y: y


LIBRARIES = {"mlc": _mlc_library, "jax": _jax_library, "torch": _torch_library, "numpy": _numpy_library}


def installed() -> list[str]:
    """The libraries that this Python can import, mlc first."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is not None]


class Worker:
    """Compiles and times workloads with one library."""

    def __init__(self, library: str):
        from mlc.tools.bench.workloads import WORKLOADS
        self.xp, self.nn, self.compile, self.put, self.wait = LIBRARIES[library]()
        self.workloads = {w.name: w for w in WORKLOADS}
        self.ready: dict[str, Callable[[], Any]] = {}
        # The library's own start is not the workload's: compile something else first.
        self.wait(self.compile(lambda x: self.xp.exp(x) + x)(self.put(np.ones(7, np.float32))))

    def load(self, name: str) -> dict[str, Any]:
        workload = self.workloads[name]
        args = [self.put(a) for a in workload.args()]
        try:
            begun = time.perf_counter()
            function = self.compile(workload.build(self.xp, self.nn))
            self.wait(function(*args))
            first = time.perf_counter() - begun
        except NotImplementedError as error:
            return {"skip": str(error)}
        self.ready[name] = lambda: self.wait(function(*args))
        return {"first_ms": first * 1e3}

    def time(self, name: str, seconds: float) -> dict[str, Any]:
        call, times = self.ready[name], []
        call()
        until = time.perf_counter() + seconds
        while len(times) < 5 or time.perf_counter() < until:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
        times.sort()
        return {"us": times[len(times) // 2] * 1e6, "best_us": times[0] * 1e6}


def main(library: str) -> None:
    """Serve requests until the input ends."""
    worker = Worker(library)
    print(json.dumps({"ready": library}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = (worker.load(request["workload"]) if request["do"] == "load" else worker.time(request["workload"], request["seconds"]))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
