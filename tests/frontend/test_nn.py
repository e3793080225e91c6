"""`mlc.nn` against `jax.nn`, special values included."""

import jax
import numpy as np
import pytest
from frontend_samples import DTYPES, agree, agree_each, sample

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


@pytest.mark.parametrize("dtype, near", [("f32", 1e-4), ("f64", 1e-13), ("f16", 0.5)])
def test_gelu_keeps_its_bits_left_of_zero(dtype, near):
    x = np.linspace(-5 if dtype == "f16" else -9, 0, 500).astype(DTYPES[dtype])
    wide = x.astype(np.longdouble)
    expected = wide / (1 + np.exp(-np.sqrt(8 / np.longdouble(np.pi)) * (wide + np.longdouble(0.044715) * wide ** 3)))
    np.testing.assert_allclose(mlc.jit(mlc.nn.gelu)(x).astype(np.longdouble), expected, rtol=near, atol=0)


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


def attention_arguments(dtype="f32", heads=4, groups=2, queries=6, keys=9):
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(2, *shape, 5)).astype(DTYPES[dtype])
                 for shape in ((queries, heads), (keys, heads // groups), (keys, heads // groups)))


def near(function, *args, rtol=1e-5, jit=True):
    """Sums cancel, so what counts is the distance in units of the operands, which are around 1."""
    run = jax.jit if jit else lambda f: f
    expected = np.asarray(run(lambda *arrays: function(jax, *arrays))(*args))
    found = mlc.jit(lambda *arrays: function(mlc, *arrays))(*args)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("given", [
    {}, {"scale": 0.3}, {"is_causal": True}, {"local_window_size": 2}, {"local_window_size": (3, 0), "is_causal": True}], ids=str)
def test_dot_product_attention(given):
    near(lambda m, q, k, v: m.nn.dot_product_attention(q, k, v, **given), *attention_arguments())


def test_dot_product_attention_of_one_batch_and_equal_heads():
    q, k, v = (x[0] for x in attention_arguments(groups=1))
    near(lambda m, q, k, v: m.nn.dot_product_attention(q, k, v), q, k, v)


def test_dot_product_attention_with_bias_mask_and_lengths():
    q, k, v = attention_arguments()
    bias, mask = np.random.default_rng(3).normal(size=(2, 4, 6, 9)).astype(np.float32), np.random.default_rng(4).random((2, 1, 6, 9)) > 0.2
    lengths, others = np.array([6, 4], np.int32), np.array([9, 3], np.int32)
    near(lambda m, q, k, v, bias, mask: m.nn.dot_product_attention(q, k, v, bias, mask), q, k, v, bias, mask)
    near(lambda m, q, k, v, bias: m.nn.dot_product_attention(q, k, v, bias=bias), q, k, v, bias[:1, :1])
    near(lambda m, q, k, v, a, b: m.nn.dot_product_attention(q, k, v, query_seq_lengths=a, key_value_seq_lengths=b), q, k, v, lengths, others)


def test_dot_product_attention_of_halves_rounds_its_weights_as_jax_does():
    near(lambda m, q, k, v: m.nn.dot_product_attention(q, k, v), *attention_arguments("bf16"), rtol=0.02, jit=False)


def test_dot_product_attention_names_what_does_not_fit():
    q, k, v = attention_arguments()
    for args, match in (((q, k[:, :3], v), "K divides N"), ((q, k, v, None, np.zeros((2, 4, 6, 9), np.float32)), "must be bool"),
                        ((q, k, v, np.zeros((3, 9), np.float32)), "broadcast to")):
        with pytest.raises((mlc.errors.ShapeError, mlc.errors.DtypeError), match=match):
            mlc.jit(mlc.nn.dot_product_attention)(*args)
    with pytest.raises(mlc.errors.UnsupportedError, match="residual"):
        mlc.jit(lambda q, k, v: mlc.nn.dot_product_attention(q, k, v, return_residual=True))(q, k, v)
