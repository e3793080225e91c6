"""What is measured: each workload is one function of a library's `np` and `nn` namespaces, its arguments, and its floor.

The floor is the larger of flops over peak and bytes over bandwidth (`mlc.tools.bench.machine`), in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """`build(np, nn)` returns the function; `args()` its arguments; `flops` and `bytes` what any implementation must do."""

    name: str
    group: str
    build: Callable[[Any, Any], Function]
    args: Callable[[], list[np.ndarray]]
    flops: float
    bytes: float


def _normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[], list[np.ndarray]]:
    def make() -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [(rng.normal(size=s) * scale).astype(np.float32) for s in shapes]
    return make


def _elementwise(name: str, size: int, build: Callable[[Any, Any], Function], flops: float) -> Workload:
    return Workload(name, "elementwise", build, _normal((size,)), flops * size, 8.0 * size)


def _matmul(n: int) -> Workload:
    return Workload(f"matmul {n}", "matmul", lambda xp, nn: lambda x, y: x @ y, _normal((n, n), (n, n)), 2.0 * n**3, 12.0 * n * n)


def _chain(xp, nn):
    return lambda x: xp.tanh(xp.exp(-xp.tanh(xp.exp(-x))))


def _rows(name: str, rows: int, width: int, build, extra: tuple[tuple[int, ...], ...] = ()) -> Workload:
    return Workload(f"{name} {rows}x{width}", "rows", build, _normal((rows, width), *extra), 8.0 * rows * width, 8.0 * rows * width)


def _mlp(batch: int) -> Workload:
    sizes = (784, 512, 512, 10)
    shapes = [(batch, sizes[0])]
    for a, b in zip(sizes, sizes[1:]):
        shapes += [(a, b), (b,)]
    weights = sum(a * b + b for a, b in zip(sizes, sizes[1:]))

    def build(xp, nn):
        def run(x, w1, b1, w2, b2, w3, b3):
            return nn.softmax(nn.relu(nn.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3, axis=-1)
        return run
    return Workload(f"MLP batch {batch}", "program", build, _normal(*shapes, scale=0.05), 2.0 * batch * weights, 4.0 * weights)


MILLION = 1 << 20

WORKLOADS: tuple[Workload, ...] = (
    _elementwise("exp 1M", MILLION, lambda xp, nn: xp.exp, 14),
    _elementwise("tanh 1M", MILLION, lambda xp, nn: xp.tanh, 28),
    _elementwise("exp/tanh chain 1M", MILLION, _chain, 84),
    _elementwise("gelu 1M", MILLION, lambda xp, nn: lambda x: nn.gelu(x, approximate=True), 34),
    _elementwise("gelu erf 1M", MILLION, lambda xp, nn: lambda x: nn.gelu(x, approximate=False), 40),
    _rows("softmax", 1024, 512, lambda xp, nn: lambda x: nn.softmax(x, axis=-1)),
    _rows("layer norm", 1024, 768, lambda xp, nn: lambda x, s, b: nn.layer_norm(x, s, b), ((768,), (768,))),
    Workload("row sums 1024x1024", "rows", lambda xp, nn: lambda x: xp.sum(x, axis=1), _normal((1024, 1024)), MILLION, 4.0 * MILLION),
    Workload("column sums 1024x1024", "rows", lambda xp, nn: lambda x: xp.sum(x, axis=0), _normal((1024, 1024)), MILLION, 4.0 * MILLION),
    _matmul(64), _matmul(256), _matmul(512), _matmul(1024),
    _mlp(1), _mlp(64),
)
