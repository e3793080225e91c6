"""`mlc.nn` against `jax.nn`, special values included."""

import jax
import numpy as np
import pytest
from frontend_samples import agree, agree_each, sample

import mlc

pytestmark = pytest.mark.usefixtures("x64")

ACTIVATIONS = ["identity", "relu", "relu6", "sigmoid", "softplus", "silu", "swish", "mish", "log_sigmoid", "soft_sign", "squareplus", "sparse_plus",
               "sparse_sigmoid", "elu", "celu", "selu", "leaky_relu", "hard_tanh", "hard_sigmoid", "hard_silu", "hard_swish"]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_activations(dtype):
    agree_each(ACTIVATIONS, lambda m, name, x: getattr(m.nn, name)(x), sample(dtype), ulps=32)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_activations_of_half_floats(dtype):
    # Every op of mlc rounds; XLA keeps float32 inside a fusion. So JAX runs op by op here.
    agree(lambda m, x: {name: getattr(m.nn, name)(x) for name in ("relu", "sigmoid", "silu", "softplus", "elu")}, sample(dtype), ulps=32, jit=False)


@pytest.mark.parametrize("dtype", ["i32", "i8"])
def test_activations_of_integers(dtype):
    names = ["relu", "relu6", "softplus", "leaky_relu", "hard_tanh", "soft_sign"]
    agree_each(names, lambda m, name, x: getattr(m.nn, name)(x), sample(dtype), ulps=64)


def test_sigmoid_refuses_integers_as_jax_does():
    with pytest.raises(mlc.errors.DtypeError, match="sigmoid"):
        mlc.jit(mlc.nn.sigmoid)(np.arange(3))


@pytest.mark.parametrize("approximate", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
def test_gelu(dtype, approximate):
    # 1 + tanh cancels on the left, so the bound there is absolute.
    x = sample(dtype)
    found, expected = mlc.jit(lambda x: mlc.nn.gelu(x, approximate))(x), jax.nn.gelu(x, approximate)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-15 if dtype == "f64" else 1e-6)


@pytest.mark.parametrize("axis", [0, -1, (0, 1)])
def test_softmax_family(axis):
    x = sample("f32", (4, 9)) * np.float32(30)
    x[1] = [0, 1, 2, 3, 4, 5, 6, 7, 1000]
    x[2] = -np.inf
    agree(lambda m, x: (m.nn.softmax(x, axis), m.nn.log_softmax(x, axis), m.nn.logsumexp(x, axis), m.nn.logmeanexp(x, axis),
                        m.nn.logsumexp(x, axis, keepdims=True)), np.nan_to_num(x, nan=1, posinf=np.inf, neginf=-np.inf), ulps=128)


def test_softmax_of_integers_shifts_before_it_rounds():
    x = np.array([[16777217, 16777216, 16777219], [-5, 3, 2 ** 31 - 1]], np.int32)
    agree(lambda m, x: (m.nn.softmax(x), m.nn.log_softmax(x, 0), m.nn.softmax(x.astype("int64"))), x, ulps=64)


def test_masked_softmax():
    x, w = sample("f32", (3, 5)), sample("bool", (3, 5), seed=1)
    x = np.nan_to_num(x, nan=1, posinf=9, neginf=-9)
    w[0] = True
    agree(lambda m, x, w: (m.nn.softmax(x, where=w), m.nn.log_softmax(x, where=w), m.nn.logsumexp(x, 1, where=w)), x, w, ulps=64)


def test_weighted_logsumexp_with_sign():
    x, b = sample("f64", (3, 5)), np.linspace(-2, 3, 15).reshape(3, 5)
    x = np.nan_to_num(x, nan=1, posinf=9, neginf=-9)
    agree(lambda m, x, b: (m.nn.logsumexp(x, 1, b=b), *m.nn.logsumexp(x, 0, b=b, return_sign=True)), x, b, ulps=4096)


@pytest.mark.parametrize("algorithm", ["fast", "stable"])
def test_standardize(algorithm):
    x = np.random.default_rng(3).normal(size=(4, 16)).astype(np.float32)
    agree(lambda m, x: m.nn.standardize(x, algorithm=algorithm), x, ulps=256)


def test_glu_and_one_hot():
    agree(lambda m, x, i: (m.nn.glu(x), m.nn.glu(x, 0), m.nn.one_hot(i, 4), m.nn.one_hot(i, 3, axis=0, dtype="float32"), m.nn.one_hot(i[0], 5)),
          np.linspace(-3, 3, 24).reshape(4, 6), np.array([[0, 3], [-1, 2], [7, 1]]))


def test_layer_norm_and_linear():
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(5, 8)).astype("f4"), rng.normal(size=(8, 3)).astype("f4"), rng.normal(size=3).astype("f4")
    scale, bias = rng.normal(size=8).astype("f4"), rng.normal(size=8).astype("f4")
    y, z = mlc.jit(lambda x, w, b, s, t: (mlc.nn.layer_norm(x, s, t), mlc.nn.linear(x, w, b)))(x, w, b, scale, bias)
    x64 = x.astype(np.float64)
    expected = (x64 - x64.mean(-1, keepdims=True)) / np.sqrt(x64.var(-1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(z, x64 @ w + b, rtol=1e-5, atol=1e-5)
    assert y.dtype == z.dtype == np.float32


def test_layer_norm_of_half_floats_computes_in_float32():
    x = (np.random.default_rng(1).normal(size=(2, 64)) + 20).astype(np.float16)
    y = mlc.jit(mlc.nn.layer_norm)(x)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, expected, atol=2e-3)
