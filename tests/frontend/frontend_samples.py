"""Inputs that would expose a swap or a special value gone wrong, and the comparison with JAX."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import mlc

DTYPES = {
    "bool": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32,
    "u64": np.uint64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 100.25, np.inf, -np.inf, np.nan]
# What one op may be off by, in units of the last place; composites multiply it.
EPS = {"f16": 2.0 ** -10, "bf16": 2.0 ** -7, "f32": 2.0 ** -23, "f64": 2.0 ** -52}


def sample(name, shape=(3, 7), seed=0, positive=False):
    """Values of every kind the dtype has; the same for the same arguments."""
    dtype, rng = DTYPES[name], np.random.default_rng([seed, len(name), *shape])
    size = int(np.prod(shape))
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name[0] in "iu":
        info = np.iinfo(dtype)
        values = rng.integers(-9 if name[0] == "i" else 0, 10, size)
        edges = np.array([info.min, info.max, 0, 1], object)
        flat = np.array([edges[i // 5] if i % 5 == 4 and i // 5 < 4 else int(v) for i, v in enumerate(values)], object)
        flat = np.abs(flat) % 7 if positive else flat
        return flat.astype(dtype).reshape(shape)
    values = rng.normal(size=size) * 3
    for i, v in enumerate(SPECIAL):
        if i * 2 + 1 < size:
            values[i * 2 + 1] = v
    values = np.abs(values) if positive else values
    return values.astype(dtype).reshape(shape)


def close(found, expected, ulps=8):
    """Same dtype, same shape, same NaNs and infinities; floats within `ulps`, everything else equal."""
    expected = np.asarray(expected)
    assert isinstance(found, np.ndarray), type(found)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    eps = next(EPS[k] for k, d in DTYPES.items() if found.dtype == d)
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    tiny = {2.0 ** -10: 2.0 ** -14}.get(eps, 1e-30)
    with np.errstate(all="ignore"):
        near = np.abs(found - expected) <= ulps * eps * np.maximum(np.abs(expected), tiny)
    ok = (np.isnan(found) & np.isnan(expected)) | (found == expected) | near
    assert ok.all(), f"{found[~ok][:5]} != {expected[~ok][:5]}"


def agree(function, *args, ulps=8, jit=True):
    """`function(namespaces, *args)` gives in mlc what it gives in JAX (one XLA program unless `jit` is off: then op by op).

    Namespaces have `.numpy` and `.nn`. A function may give a dict {name: result}; a difference then names it.
    """
    reference = jax.jit(lambda *arrays: function(jax, *arrays)) if jit else lambda *arrays: function(jax, *arrays)
    expected = reference(*[jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in args])
    found = mlc.jit(lambda *arrays: function(mlc, *arrays))(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, e), f in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found)):
        try:
            close(f, e, ulps)
        except AssertionError as error:
            raise AssertionError(f"{jax.tree_util.keystr(path)}: {error}") from None


def agree_each(names, call, *args, ulps=8):
    """`call(namespaces, name, *args)` for every name, as one XLA program."""
    agree(lambda m, *arrays: {name: call(m, name, *arrays) for name in names}, *args, ulps=ulps)


def numbered(*cases):
    """Parametrize values (lambdas, or tuples with one) with ids that are the same in every process."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), id=f"case{i}") for i, case in enumerate(cases)]
