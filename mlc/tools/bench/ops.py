"""Single ops: contractions, reductions and other row kernels, transposes, elementwise chains, transcendentals, and bare calls."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from mlc.tools.bench.workloads import Function, Workload, normal, positive

MILLION = 1 << 20
NO_NUMPY = ("mlc", "jax", "torch")
Build = Callable[[Any, Any], Function]


def _contraction(name: str, group: str, build: Build, a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], inner: int,
                 **more: Any) -> Workload:
    """A matrix product: two operands, their result, and how long the sums are."""
    size = np.dtype(more.pop("element", np.float32)).itemsize
    out_size = more.pop("out_size", size)
    return Workload(name, group, build, more.pop("args", None) or normal(a, b), 2.0 * prod(out) * inner, float(size * (prod(a) + prod(b))),
                    float(out_size * prod(out)), **more)


def _product(xp: Any, nn: Any) -> Function:
    return lambda x, y: x @ y


def _matmul(m: int, k: int, n: int, quick: bool = False) -> Workload:
    name = f"matmul {m}" if m == k == n else f"matmul {m}x{k}x{n}"
    return _contraction(name, "matmul", _product, (m, k), (k, n), (m, n), k, quick=quick)


def _batched(batch: int, m: int, k: int, n: int) -> Workload:
    return _contraction(f"batched matmul {batch}x{m}x{k}x{n}", "matmul", _product, (batch, m, k), (batch, k, n), (batch, m, n), k)


def _skinny(m: int) -> Workload:
    return _contraction(f"skinny {m}x768x768 constant", "skinny", _product, (m, 768), (768, 768), (m, 768), 768, constants=1, quick=m in (1, 8))


def _typed(name: str, build: Build, n: int, dtype: str, element: Any, out_size: int, **more: Any) -> Workload:
    return _contraction(f"{name} {n}", "dtypes", build, (n, n), (n, n), (n, n), n, dtype=dtype, element=element, out_size=out_size, **more)


def _bytes(n: int) -> Callable[[], list[np.ndarray]]:
    return lambda: [np.random.default_rng(i).integers(-128, 128, (n, n), np.int8) for i in (0, 1)]


CONTRACTIONS = (
    *(_matmul(n, n, n, quick=n in (64, 512)) for n in (32, 64, 128, 256, 512, 1024, 2048)),
    _matmul(1000, 900, 700, quick=True), _matmul(127, 129, 131),
    _batched(12, 128, 64, 128), _batched(64, 32, 32, 32),
    _contraction("matmul A^T B 512", "matmul", lambda xp, nn: lambda x, y: x.T @ y, (512, 512), (512, 512), (512, 512), 512),
    _contraction("matmul A B^T 512", "matmul", lambda xp, nn: lambda x, y: x @ y.T, (512, 512), (512, 512), (512, 512), 512),
    *(_skinny(m) for m in (1, 2, 4, 8)),
    _contraction("matvec 1024x1024", "skinny", _product, (1024, 1024), (1024,), (1024,), 1024),
    _contraction("matvec 4096x4096", "skinny", _product, (4096, 4096), (4096,), (4096,), 4096, dram=True),
    _contraction("vecmat 1024x1024", "skinny", _product, (1024,), (1024, 1024), (1024,), 1024),
    _typed("f64 matmul", _product, 512, "f64", np.float64, 8, args=normal((512, 512), (512, 512), dtype=np.float64), check=False),
    _typed("bf16 matmul", _product, 512, "bf16", ml_dtypes.bfloat16, 2, args=normal((512, 512), (512, 512), dtype=ml_dtypes.bfloat16),
           libraries=NO_NUMPY, quick=True),
    _typed("int8 matmul", lambda xp, nn: nn.int8_matmul, 512, "int8", np.int8, 4, args=_bytes(512), libraries=NO_NUMPY),
)


def _layer_norm(xp: Any, nn: Any) -> Function:
    return lambda x, scale, bias: nn.layer_norm(x, scale, bias)


def _softmax(xp: Any, nn: Any) -> Function:
    return lambda x: nn.softmax(x, axis=-1)


def _rows(name: str, build: Build, shape: tuple[int, ...], out: int, *, affine: bool = False, **more: Any) -> Workload:
    """A kernel that reads an array once: `out` elements come of it."""
    extra = ((shape[-1],), (shape[-1],)) if affine else ()
    read = 4.0 * (prod(shape) + 2 * shape[-1] * affine)
    return Workload(f"{name} {'x'.join(map(str, shape))}", "rows", build, normal(shape, *extra), float(prod(shape)), read, 4.0 * out,
                    **more)


def _sum(axis: Any) -> Build:
    return lambda xp, nn: lambda x: nn.sum(x, axis)


def _row_kernels(rows: int, width: int, dram: bool, quick: bool) -> tuple[Workload, ...]:
    shape, count = (rows, width), rows * width
    return (
        _rows("softmax", _softmax, shape, count, functions={"exp": float(count)}, dram=dram, quick=quick),
        _rows("layer norm", _layer_norm, shape, count, affine=True, dram=dram, quick=quick),
    )


ROWS = (
    *_row_kernels(128, 768, False, False), *_row_kernels(1024, 512, False, True), *_row_kernels(16384, 1024, True, False),
    _rows("row sums", _sum(1), (1024, 1024), 1024), _rows("column sums", _sum(0), (1024, 1024), 1024, quick=True),
    _rows("middle sums", _sum(1), (64, 64, 256), 64 * 256), _rows("full sum", _sum(None), (1024, 1024), 1),
    _rows("row sums", _sum(1), (8192, 4096), 8192, dram=True), _rows("column sums", _sum(0), (8192, 4096), 4096, dram=True),
    _rows("row max", lambda xp, nn: lambda x: nn.max(x, 1), (1024, 1024), 1024),
    _rows("transpose", lambda xp, nn: lambda x: nn.contiguous(x.T), (1024, 1024), MILLION, exact_ulp=True, quick=True),
    _rows("transpose", lambda xp, nn: lambda x: nn.contiguous(x.T), (4096, 4096), 16 * MILLION, exact_ulp=True, dram=True),
)


def _size(count: int) -> str:
    return f"{count >> 20}M" if count >= MILLION else f"{count >> 10}K"


def _map(name: str, group: str, build: Build, count: int, functions: tuple[str, ...] = (), *, flops: int = 0, inputs: int = 1,
         args: Callable[..., Callable[[], list[np.ndarray]]] = normal, **more: Any) -> Workload:
    """An elementwise function of some arrays, with so many flops an element beside its transcendentals."""
    used = {f: float(count * functions.count(f)) for f in functions}
    return Workload(f"{name} {_size(count)}", group, build, args(*[(count,)] * inputs), float(flops * count), 4.0 * count * inputs, 4.0 * count,
                    functions=used, dram=count >= 16 * MILLION, **more)


def _affine(xp: Any, nn: Any) -> Function:
    return lambda x, y: (x * y + x) * 0.5 - y


def _chain(xp: Any, nn: Any) -> Function:
    return lambda x: xp.tanh(xp.exp(-xp.tanh(xp.exp(-x))))


def _gelu(approximate: bool) -> Build:
    return lambda xp, nn: lambda x: nn.gelu(x, approximate=approximate)


ELEMENTWISE = (
    *(_map("multiply-add chain", "elementwise", _affine, n, flops=4, inputs=2, quick=n == MILLION) for n in (16 << 10, MILLION, 16 * MILLION)),
    *(_map("exp/tanh chain", "elementwise", _chain, n, ("exp", "tanh", "exp", "tanh")) for n in (16 << 10, MILLION)),
    _map("gelu tanh", "elementwise", _gelu(True), MILLION, ("tanh",), flops=8, quick=True),
    _map("gelu erf", "elementwise", _gelu(False), MILLION, ("erf",), flops=4),
    _map("relu", "elementwise", lambda xp, nn: nn.relu, 16 * MILLION, flops=1),
    _map("broadcast add", "elementwise", lambda xp, nn: lambda x, b: x.reshape(1024, -1) + b, MILLION, flops=1,
         args=lambda *shapes: normal(*shapes, (1024,)), quick=True),
)
FUNCTIONS = tuple(
    _map(name, "functions", lambda xp, nn, name=name: nn.erf if name == "erf" else getattr(xp, name), n, (name,), exact_ulp=True,
         quick=n == MILLION, args=positive if name == "log" else normal)
    for n in (16 << 10, MILLION) for name in ("exp", "tanh", "erf", "log"))


def _integers(low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, shape, np.int32)


# No float comes of them: nothing to compare with float64.
INTEGERS = (
    Workload("pow i32 1M", "integers", lambda xp, nn: lambda x, y: x ** y, lambda: [_integers(-9, 10, MILLION), _integers(0, 6, MILLION)],
             0.0, 8.0 * MILLION, 4.0 * MILLION, check=False),
    Workload("any of rows bool 1024x1024", "integers", lambda xp, nn: lambda x: nn.any(x, 1), lambda: [_integers(0, 1000, 1024, 1024) == 0],
             0.0, float(MILLION), 1024.0, check=False),
)


def _tree() -> list[Any]:
    rng = np.random.default_rng(0)
    return [{f"layer{i}": {name: rng.normal(size=4).astype(np.float32) for name in ("w", "b", "scale", "shift")} for i in range(5)}]


def _tree_sum(xp: Any, nn: Any) -> Function:
    return lambda tree: sum(layer["w"] * layer["scale"] + layer["b"] + layer["shift"] for layer in tree.values())


CALLS = (
    Workload("call 3 tiny arrays", "calls", lambda xp, nn: lambda a, b, c: a * b + c, normal((4,), (4,), (4,)), 0.0, 0.0, 0.0, quick=True),
    Workload("call pytree of 20", "calls", _tree_sum, _tree, 0.0, 0.0, 0.0, quick=True),
)

WORKLOADS: tuple[Workload, ...] = (*CONTRACTIONS, *ROWS, *ELEMENTWISE, *FUNCTIONS, *INTEGERS, *CALLS)
