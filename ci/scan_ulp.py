"""Scans vector math for its worst error in ulp, and prints a table: function, dtype, points, worst ulp, where.

    python ci/scan_ulp.py                            every function, f32, one input in 4099, through the scalar interpreter
    python ci/scan_ulp.py exp sin --stride 1 --engine mlc
    python ci/scan_ulp.py --dtype f64 --points 20000

f32 inputs are bit patterns at a fixed stride (stride 1 is all 2^32 of them), judged against NumPy or the C library in
float64; f64 inputs are drawn over bit patterns and over ordinary sizes, judged against mpmath.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator

import mpmath
import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval
from mlc.core.dtype import DType, f32, f64
from mlc.ops import vecmath

Kernel = Callable[..., np.ndarray]
CHUNK = 1 << 16


def _logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))



def _erf(x):
    return np.fromiter(map(math.erf, x.tolist()), np.float64, x.size)


def _mp_cbrt(x):
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


# name: (scalar function, float64 reference over arrays, mpmath reference)
FUNCTIONS: dict[str, tuple[Callable, Callable, Callable]] = {
    "exp": (vecmath.exp, np.exp, mpmath.exp),
    "exp2": (vecmath.exp2, np.exp2, lambda x: mpmath.mpf(2) ** x),
    "expm1": (vecmath.expm1, np.expm1, mpmath.expm1),
    "log": (vecmath.log, np.log, mpmath.log),
    "log2": (vecmath.log2, np.log2, lambda x: mpmath.log(x, 2)),
    "log1p": (vecmath.log1p, np.log1p, mpmath.log1p),
    "tanh": (vecmath.tanh, np.tanh, mpmath.tanh),
    "logistic": (vecmath.logistic, _logistic, lambda x: 1 / (1 + mpmath.exp(-x))),
    "erf": (vecmath.erf, _erf, mpmath.erf),
    "sin": (vecmath.sin, np.sin, mpmath.sin),
    "cos": (vecmath.cos, np.cos, mpmath.cos),
    "tan": (vecmath.tan, np.tan, mpmath.tan),
    "cbrt": (vecmath.cbrt, np.cbrt, _mp_cbrt),
    "rsqrt": (vecmath.rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x)),
    "pow": (vecmath.pow, np.power, mpmath.power),
}


# --------------------------------------------------------------------------- engines
def interpreter(name: str, dtype: DType) -> Kernel:
    """The scalar expression through `mlc.core.scalar_eval`."""
    def run(*arrays: np.ndarray) -> np.ndarray:
        root = FUNCTIONS[name][0](*(ex.arg(i, dtype) for i in range(len(arrays))))
        return scalar_eval.evaluate([root], lambda leaf: arrays[leaf.attr])[0]
    return run


def machine_code(name: str, dtype: DType) -> Kernel:
    """The op of this name, compiled by `mlc.jit`; KeyError if there is no such op."""
    import mlc
    from mlc.frontend.record import emit
    from mlc.ops.base import REGISTRY
    assert REGISTRY[name]
    return mlc.jit(lambda *arrays: emit(name, arrays))


ENGINES = {"interp": interpreter, "mlc": machine_code}


# --------------------------------------------------------------------------- errors
def ulp_errors(got: np.ndarray, want: np.ndarray, dtype: DType) -> np.ndarray:
    """|got - want| in units of the last place of `want`; `want` is wider than dtype (float64, or mpf objects for f64).

    NaN against a number, a zero of the wrong sign, or an infinity that is not due, count as infinitely wrong. Between the
    largest number and the rounding threshold of infinity, infinity counts as the next power of two.
    """
    if want.dtype == object:
        return np.array([_ulp_error_mp(g, w) for g, w in zip(got.tolist(), want.tolist())])
    largest = 2.0 ** (dt.MAX_EXPONENT[dtype] + 1)
    threshold = largest * (1 - 2.0 ** -(dt.MANTISSA[dtype] + 1))
    with np.errstate(all="ignore"):
        value = got.astype(np.float64)
        size = np.clip(np.abs(want), 2.0 ** dt.MIN_EXPONENT[dtype], largest / 2)
        unit = np.ldexp(1.0, np.frexp(size)[1] - dt.MANTISSA[dtype])
        error = np.abs(np.clip(value, -largest, largest) - want) / unit
        error = np.where((np.abs(want) >= threshold) & (value == np.copysign(np.inf, want)), 0.0, error)
        error = np.where(np.signbit(value) != np.signbit(want), np.where((value == 0) | (want == 0), np.inf, error), error)
        error = np.where(np.isnan(value) | np.isnan(want), np.inf, error)
        return np.where(np.isnan(value) & np.isnan(want), 0.0, error)


def _ulp_error_mp(got: float, want) -> float:
    """`ulp_errors` of one f64 against an mpf; complex or NaN references mean NaN."""
    if not isinstance(want, mpmath.mpf) or mpmath.isnan(want):
        return 0.0 if math.isnan(got) else math.inf
    if math.isnan(got):
        return math.inf
    if abs(want) >= mpmath.mpf(2) ** 1024 - mpmath.mpf(2) ** 970:
        return 0.0 if math.isinf(got) and (got > 0) == (want > 0) else math.inf
    if want == 0:
        return 0.0 if got == 0 else math.inf
    exponent = max(int(mpmath.floor(mpmath.log(abs(want), 2))), -1022) - 52
    value = mpmath.mpf(got) if math.isfinite(got) else math.copysign(1, got) * mpmath.mpf(2) ** 1024
    return float(abs(value - want) / mpmath.mpf(2) ** exponent)


# --------------------------------------------------------------------------- inputs
def bit_patterns(stride: int) -> Iterator[tuple[np.ndarray]]:
    """All f32 at a stride over their bit patterns, in chunks."""
    for start in range(0, 1 << 32, CHUNK * stride):
        bits = np.arange(start, min(start + CHUNK * stride, 1 << 32), stride, dtype=np.uint64)
        yield (bits.astype(np.uint32).view(np.float32),)


def drawn(dtype: DType, points: int, seed: int = 0) -> np.ndarray:
    """Finite values over bit patterns and over sizes from 1e-9 to 1e9, half each."""
    rng = np.random.default_rng(seed)
    integer = dt.uint_of(dtype).numpy
    patterns = rng.integers(0, 1 << dtype.bits, points // 2, integer).view(dtype.numpy) if dtype.bits < 64 \
        else rng.integers(0, np.iinfo(np.uint64).max, points // 2, integer, endpoint=True).view(dtype.numpy)
    ordinary = np.exp(rng.uniform(-20, 20, points - points // 2)) * rng.choice([-1, 1], points - points // 2)
    both = np.concatenate([patterns, ordinary.astype(dtype.numpy)])
    return rng.permutation(both[np.isfinite(both)])


def pairs(dtype: DType, points: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bases and exponents for pow; most results are finite, down into the subnormals."""
    x = np.abs(drawn(dtype, points, seed))
    x = x[(x > 0) & (x != 1)]
    rng = np.random.default_rng(seed + 1)
    low, high = dt.MIN_EXPONENT[dtype] - dt.MANTISSA[dtype] - 1, dt.MAX_EXPONENT[dtype] + 1
    with np.errstate(all="ignore"):
        y = (rng.uniform(low, high, x.size) / np.log2(x.astype(np.float64))).astype(dtype.numpy)
    keep = np.isfinite(y)
    return x[keep], y[keep]


def inputs(name: str, dtype: DType, stride: int, points: int) -> Iterator[tuple[np.ndarray, ...]]:
    if name == "pow":
        x, y = pairs(dtype, (1 << 32) // stride if dtype is f32 else points)
        for i in range(0, x.size, CHUNK):
            yield x[i:i + CHUNK], y[i:i + CHUNK]
    elif dtype is f32:
        yield from bit_patterns(stride)
    else:
        yield (drawn(dtype, points),)


# --------------------------------------------------------------------------- the scan
def reference(name: str, dtype: DType, arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    """float64 values for f32, mpf objects for f64."""
    if dtype is f32:
        with np.errstate(all="ignore"):
            return FUNCTIONS[name][1](*(a.astype(np.float64) for a in arrays))
    out = np.empty(arrays[0].size, object)
    with mpmath.workprec(200):
        for i, values in enumerate(zip(*(a.tolist() for a in arrays))):
            try:
                out[i] = FUNCTIONS[name][2](*map(mpmath.mpf, values))
            except (ValueError, ZeroDivisionError):
                out[i] = mpmath.nan
    return out


def scan(name: str, dtype: DType, kernel: Kernel, stride: int, points: int) -> tuple[int, float, tuple]:
    """(points, worst ulp, where) over the inputs of one function."""
    count, worst, where = 0, -1.0, ()
    for arrays in inputs(name, dtype, stride, points):
        errors = ulp_errors(np.asarray(kernel(*arrays)), reference(name, dtype, arrays), dtype)
        count += errors.size
        top = int(np.argmax(errors))
        if errors[top] > worst:
            worst, where = float(errors[top]), tuple(a[top].item() for a in arrays)
    return count, worst, where


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", help=f"of {', '.join(FUNCTIONS)}; default all")
    parser.add_argument("--dtype", choices=("f32", "f64"), default="f32")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="interp")
    parser.add_argument("--stride", type=int, default=4099, help="f32: one bit pattern in this many")
    parser.add_argument("--points", type=int, default=5000, help="f64: number of inputs")
    args = parser.parse_args()
    unknown = set(args.functions) - set(FUNCTIONS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    dtype = {"f32": f32, "f64": f64}[args.dtype]
    print(f"{'function':10} {'dtype':5} {'points':>11} {'ulp':>8}  {'s':>6}  at")
    for name in args.functions or FUNCTIONS:
        start = time.perf_counter()
        try:
            kernel = ENGINES[args.engine](name, dtype)
        except KeyError:
            print(f"{name:10} is not an op")
            continue
        count, worst, where = scan(name, dtype, kernel, args.stride, args.points)
        place = ", ".join(f"{v!r} ({float(v).hex()})" for v in where)
        print(f"{name:10} {dtype.name:5} {count:11} {worst:8.4f}  {time.perf_counter() - start:6.1f}  {place}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
