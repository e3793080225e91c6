"""JAX arrays are data to a recording; JAX functions refuse tracers with a clear error; `mlc.numpy` functions run under JAX's own tracing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontend_samples import numbered

import mlc
from mlc.errors import TraceError, UnsupportedError
from mlc.frontend.api import LINALG, NN, NUMPY

X = np.linspace(-1, 2, 9, dtype=np.float32).reshape(3, 3)
W = jnp.asarray(X.T + 1)


@pytest.mark.parametrize(
    "function",
    numbered(
        lambda x: W @ x,
        lambda x: x @ W,
        lambda x: W + x,
        lambda x: x - W,
        lambda x: W / (x + 9),
        lambda x: W > x,
        lambda x: mlc.numpy.maximum(W, x),
        lambda x: np.add(W, x),
        lambda x: mlc.numpy.concatenate([W, x]),
        lambda x: x + jnp.arange(3),
        lambda x: jnp.exp(W) * x,
        lambda x: x.at[0].set(W[1]),
    ),
)
def test_jax_arrays_are_constants(function):
    found = mlc.jit(function)(X)
    expected = function(jnp.asarray(X))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    numbered(
        lambda x: jnp.exp(x),
        lambda x: jnp.dot(W, x),
        lambda x: jax.lax.exp(x),
        lambda x: jnp.asarray(x) + 1,
        lambda x: jnp.stack([x, x]),
        lambda x: jax.nn.relu(x),
        lambda x: jax.jit(lambda y: y)(x),
        lambda x: W.at[0].set(x[0]),
        lambda x: jax.vmap(lambda y: y)(x),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y, x),
    ),
)
def test_jax_functions_on_tracers_are_refused_with_the_line(function):
    with pytest.raises(UnsupportedError, match=r"<lambda> calls jax with a traced value at test_jax_interplay.py:\d+ \(<lambda>\)"):
        mlc.jit(function)(X)


def test_errors_of_the_users_own_are_passed_on():
    def function(x):
        jnp.exp(W)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mlc.jit(function)(X)


def model(n, nn, x):
    h = n.maximum(x @ n.ones((3, 4), "float32") + n.arange(4, dtype="float32"), 0)
    h = nn.gelu(n.concatenate([h, n.zeros((1, 4), "float32")])) + nn.softmax(h[:1])
    return {
        "a": n.sum(n.where(h > 1, h, 2.0), axis=0),
        "b": nn.layer_norm(h) if hasattr(nn, "layer_norm") else h,
        "c": n.linalg.norm(h),
        "d": n.exp(n.full(3, 0.5)),
    }


def test_one_function_is_captured_both_ways():
    with jax.enable_x64(True):
        f = lambda x: model(mlc.numpy, mlc.nn, x)
        ours, theirs = mlc.jit(f)(X), jax.jit(f)(X)
        assert "concatenate" in str(jax.make_jaxpr(f)(X))
        for key in ours:
            assert ours[key].dtype == theirs[key].dtype, key
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-6)


def test_creation_under_jax_follows_jax():
    assert isinstance(jax.jit(lambda x: x + mlc.numpy.zeros([3]))(X), jax.Array)
    assert jax.jit(lambda x: x + mlc.numpy.arange(3))(X).dtype == jnp.float32
    assert jax.jit(lambda x: x + mlc.numpy.asarray([x[0, 0], 1.0, x[0, 1]]))(X).shape == (3, 3)


def test_lazy_arrays_and_jax_arrays_mix():
    a = mlc.asarray(X)
    assert isinstance(jnp.asarray(a), jax.Array)
    for value in (W + a, a + W, jax.jit(lambda y: a * y)(X), jax.jit(lambda y: mlc.numpy.add(y, a))(X)):
        assert np.asarray(value).shape == (3, 3)


def test_every_public_function_has_a_counterpart_in_jax():
    only_refused = {"linalg": jnp.linalg, "numpy": jnp, "nn": jax.nn}
    for space, table in (("numpy", NUMPY), ("nn", NN), ("linalg", LINALG)):
        missing = [n for n, f in table.items() if f.jax is None and not hasattr(only_refused[space], f.__name__)]
        assert set(missing) <= {
            "fix",
            "cumulative_prod",
            "cummax",
            "cummin",
            "extract",
            "searchsorted",
            "fft",
            "ifft",
            "inv",
            "solve",
            "svd",
            "eigh",
            "qr",
            "cholesky",
            "det",
            "slogdet",
            "pinv",
            "matrix_rank",
            "lexsort",
            "rollaxis",
        }, (space, missing)


def test_mixing_the_two_kinds_of_tracers_is_an_error():
    def inner(y):
        return mlc.jit(lambda x: mlc.numpy.add(x, y))(X)

    with pytest.raises(TraceError, match=r"add at test_jax_interplay.py:\d+ .*traced by JAX"):
        jax.jit(inner)(X)
    with pytest.raises(TraceError, match="argument y of <lambda> is being traced by JAX"):
        jax.jit(mlc.jit(lambda y: y))(X)


def test_weak_jax_scalars_are_strong_arrays_of_their_dtype():
    with jax.enable_x64(True):
        assert mlc.jit(lambda x: x * jnp.asarray(2, jnp.int8))(np.ones(2, np.int16)).dtype == np.int16


def test_named_functions_match():
    assert re.match("softmax", mlc.nn.softmax.__name__) and mlc.numpy.sum.__name__ == "sum" and mlc.numpy.abs is mlc.numpy.absolute
