"""How an answer is compared with the right one, and the raw operations that `mlc.numpy` has no name for."""

from collections.abc import Callable, Iterable

import jax
import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
F16, F32, F64 = np.float16, np.float32, np.float64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
U8, U16, U32 = np.uint8, np.uint16, np.uint32
NAN, INF = float("nan"), float("inf")
I32_MIN, I32_MAX = -2 ** 31, 2 ** 31 - 1


def leaves(tree: object) -> list[np.ndarray]:
    if isinstance(tree, (list, tuple)):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [tree]


def f32(*values: float) -> np.ndarray:
    return np.array(values, F32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, I32)


def _fitting(found: list, expected: Iterable, dtypes: bool) -> Iterable[tuple[int, np.ndarray, np.ndarray]]:
    expected = [np.asarray(value) for value in expected]
    assert len(found) == len(expected)
    for k, (got, want) in enumerate(zip(found, expected)):
        assert isinstance(got, np.ndarray) and got.shape == want.shape, f"result {k}: {got.shape}, not {want.shape}"
        assert not dtypes or got.dtype == want.dtype, f"result {k}: {got.dtype}, not {want.dtype}"
        yield k, got, want


def same(found: list, *expected: object) -> None:
    """Equal dtypes, shapes and values; any NaN equals any NaN, and zeros have their signs."""
    for k, got, want in _fitting(found, expected, dtypes=True):
        if got.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want, err_msg=f"result {k}", strict=True)
            continue
        got, want = got.astype(F64), want.astype(F64)
        equal = (got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)
        assert equal.all(), f"result {k}, at {np.argwhere(~equal)[0].tolist()}: {got[~equal][:4]}, not {want[~equal][:4]}"


def near(found: list, *expected: object, rtol: float, atol: float = 0.0) -> None:
    """Values near those that were computed in a wider dtype; infinities and NaN equal."""
    for k, got, want in _fitting(found, expected, dtypes=False):
        got, want = got.astype(F64), want.astype(F64)
        with np.errstate(invalid="ignore"):
            equal = (got == want) | np.isnan(got) & np.isnan(want) | (np.isfinite(got) & (np.abs(got - want) <= atol + rtol * np.abs(want)))
        assert equal.all(), f"result {k}, at {np.argwhere(~equal)[0].tolist()}: {got[~equal][:4]}, not {want[~equal][:4]}"


def eager_jax(function: Callable, *args: object) -> list[np.ndarray]:
    """What JAX answers operation by operation, with 64-bit types."""
    with jax.enable_x64(True), jax.disable_jit():
        return [np.asarray(leaf) for leaf in leaves(function(*[jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in args]))]


def operation(name: str, *arrays: object) -> object:
    """One operation of the graph as it is, as `jax.lax` has it, while a function is recorded."""
    from mlc.frontend.record import emit
    return emit(name, arrays)
