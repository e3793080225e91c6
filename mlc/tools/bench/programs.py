"""Programs: MLPs, transformer blocks, a deep transformer, attention alone, and the models of examples/digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlc.tools.bench.workloads import Function, Workload, leaves, normal


def _nbytes(tree: Any) -> float:
    return float(sum(leaf.nbytes for leaf in leaves(tree)))


# --------------------------------------------------------------------------- MLP
def _mlp(batch: int) -> Workload:
    sizes = (784, 512, 512, 10)
    shapes = [(batch, sizes[0])]
    for a, b in zip(sizes, sizes[1:]):
        shapes += [(a, b), (b,)]
    weights = sum(a * b for a, b in zip(sizes, sizes[1:]))

    def build(xp: Any, nn: Any) -> Function:
        def run(x, w1, b1, w2, b2, w3, b3):
            return nn.softmax(nn.relu(nn.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3, axis=-1)
        return run
    return Workload(f"MLP batch {batch}", "programs", build, normal(*shapes, scale=0.05), 2.0 * batch * weights,
                    4.0 * (weights + sum(sizes[1:]) + batch * sizes[0]), 40.0 * batch, functions={"exp": 10.0 * batch}, cold=True, quick=True)


# --------------------------------------------------------------------------- transformer
def _block_weights(rng: np.random.Generator, width: int, hidden: int) -> dict[str, np.ndarray]:
    def matrix(a: int, b: int) -> np.ndarray:
        return (rng.standard_normal((a, b), dtype=np.float32) / np.float32(math.sqrt(a)))
    one, zero = np.ones(width, np.float32), np.zeros(width, np.float32)
    return {"q": matrix(width, width), "k": matrix(width, width), "v": matrix(width, width), "out": matrix(width, width),
            "w1": matrix(width, hidden), "b1": np.zeros(hidden, np.float32), "w2": matrix(hidden, width), "b2": zero,
            "scale1": one, "bias1": zero, "scale2": one, "bias2": zero}


def _block(xp: Any, nn: Any, heads: int) -> Function:
    """A pre-norm block over [..., sequence, width]."""
    def split(x):
        *lead, length, width = x.shape
        return xp.swapaxes(xp.reshape(x, (*lead, length, heads, width // heads)), -3, -2)

    def run(x, p):
        width = x.shape[-1]
        h = nn.layer_norm(x, p["scale1"], p["bias1"])
        mixed = nn.attention(split(h @ p["q"]), split(h @ p["k"]), split(h @ p["v"]), 1 / math.sqrt(width // heads))
        x = x + xp.reshape(xp.swapaxes(mixed, -3, -2), x.shape) @ p["out"]
        h = nn.gelu(nn.layer_norm(x, p["scale2"], p["bias2"]) @ p["w1"] + p["b1"], approximate=True)
        return x + h @ p["w2"] + p["b2"]
    return run


def _transformer_cost(length: int, width: int, hidden: int, heads: int, layers: int = 1) -> tuple[float, dict[str, float]]:
    flops = 2.0 * length * (4 * width * width + 2 * width * hidden) + 4.0 * length * length * width
    return layers * flops, {"exp": float(layers * heads * length * length), "tanh": float(layers * length * hidden)}


def _transformer(name: str, group: str, length: int, width: int, layers: int, constant: bool, **more: Any) -> Workload:
    hidden, heads = 4 * width, width // 64
    flops, functions = _transformer_cost(length, width, hidden, heads, layers)
    weights = 4.0 * layers * (4 * width * width + 2 * width * hidden + hidden + 5 * width)

    def args() -> list[Any]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal((length, width), dtype=np.float32), [_block_weights(rng, width, hidden) for _ in range(layers)]]

    def build(xp: Any, nn: Any) -> Function:
        one = _block(xp, nn, heads)

        def run(x, blocks):
            for p in blocks:
                x = one(x, p)
            return x
        return run
    return Workload(name, group, build, args, flops, weights + 4.0 * length * width, 4.0 * length * width, functions=functions,
                    constants=int(constant), cold=True, **more)


def _blocks() -> tuple[Workload, ...]:
    return tuple(_transformer(f"block {length}x{width}" + (" constant" if constant else ""), "programs", length, width, 1, constant,
                              quick=(length, width, constant) == (128, 256, False))
                 for width in (256, 768) for length in (1, 128, 512) for constant in (False, True))


# --------------------------------------------------------------------------- attention alone
def _attention(heads: int, length: int, **more: Any) -> Workload:
    shape = (heads, length, 64)
    tensor = 4.0 * heads * length * 64
    return Workload(f"attention {heads}x{length}x64", "attention", lambda xp, nn: lambda q, k, v: nn.attention(q, k, v, 0.125),
                    normal(shape, shape, shape), 4.0 * heads * length * length * 64, 3 * tensor, tensor,
                    functions={"exp": float(heads * length * length)}, **more)


# --------------------------------------------------------------------------- the models of examples/digits
def _digits_mlp(batch: int) -> Workload:
    sizes = (64, 128, 64, 10)
    shapes = [(batch, 64)]
    for a, b in zip(sizes, sizes[1:]):
        shapes += [(a, b), (b,)]
    weights = sum(a * b for a, b in zip(sizes, sizes[1:]))

    def build(xp: Any, nn: Any) -> Function:
        def run(x, w1, b1, w2, b2, w3, b3):
            return nn.gelu(nn.gelu(x @ w1 + b1, approximate=True) @ w2 + b2, approximate=True) @ w3 + b3
        return run
    return Workload(f"digits MLP batch {batch}", "programs", build, normal(*shapes, scale=0.1), 2.0 * batch * weights,
                    4.0 * (weights + sum(sizes[1:]) + batch * 64), 40.0 * batch, functions={"tanh": 192.0 * batch}, cold=True)


def _digits_vit(batch: int) -> Workload:
    patches, width, heads, blocks, hidden = 16, 32, 2, 2, 64

    def args() -> list[Any]:
        rng = np.random.default_rng(0)
        ends = [rng.standard_normal(s, dtype=np.float32) * np.float32(0.2) for s in ((4, width), (patches, width), (width, 10), (10,))]
        return [rng.standard_normal((batch, 64), dtype=np.float32), [_block_weights(rng, width, hidden) for _ in range(blocks)], ends]

    def build(xp: Any, nn: Any) -> Function:
        one = _block(xp, nn, heads)

        def run(x, layers, ends):
            embed, position, head, bias = ends
            h = xp.reshape(xp.swapaxes(xp.reshape(x, (batch, 4, 2, 4, 2)), 2, 3), (batch, patches, 4)) @ embed + position
            for p in layers:
                h = one(h, p)
            return nn.sum(h, 1) * (1 / patches) @ head + bias
        return run
    flops, functions = _transformer_cost(patches, width, hidden, heads, blocks)
    return Workload(f"digits ViT batch {batch}", "programs", build, args, batch * flops, _nbytes(args()), 40.0 * batch,
                    functions={k: batch * v for k, v in functions.items()}, cold=True)


def _make() -> tuple[Workload, ...]:
    small = (_mlp(1), _mlp(64), *(digits(batch) for digits in (_digits_mlp, _digits_vit) for batch in (1, 64)))
    return (
        *small, *_blocks(),
        _attention(4, 128), _attention(4, 512, quick=True, cold=True), _attention(4, 2048),
        _attention(1, 4096, cold=True), _attention(1, 8192, cold=True, check=False),
        _transformer("12-layer transformer 128x256", "compile", 128, 256, 12, False),
    )


WORKLOADS: tuple[Workload, ...] = _make()
