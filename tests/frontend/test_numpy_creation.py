"""Creation functions against jax.numpy in x64."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from frontend_samples import agree, numbered, sample

import mlc

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(
    "function",
    numbered(
        lambda n, x: (n.zeros(3), n.zeros((2, 3), "int8"), n.ones(()), n.ones([2], bool), n.empty((0, 2))),
        lambda n, x: (n.full(3, 1.5), n.full((2, 2), 7), n.full(2, True), n.full(2, x[0, 0]), n.full((2, 7), x[0]), n.full(2, 2.7, "int8")),
        lambda n, x: (
            n.zeros_like(x),
            n.ones_like(x, dtype="float16"),
            n.full_like(x, 2.7),
            n.full_like(x, 3, dtype="int8"),
            n.empty_like(x, shape=(2,)),
        ),
        lambda n, x: (
            n.arange(5),
            n.arange(2, 7),
            n.arange(0, 10, 3),
            n.arange(5, 0, -2),
            n.arange(3.5),
            n.arange(1, 2, 0.25),
            n.arange(0),
            n.arange(5, 2),
        ),
        lambda n, x: (
            n.arange(3, dtype="float32"),
            n.arange(0, 1, 0.1, dtype="bfloat16"),
            n.arange(np.int8(4)),
            n.arange(np.float32(1), 3),
            n.arange(4, dtype="uint8"),
        ),
        lambda n, x: (
            n.eye(3),
            n.eye(2, 4, 1, "int32"),
            n.eye(3, k=-1, dtype=bool),
            n.identity(2),
            n.tri(3, dtype="float32"),  # its default differs between versions of JAX
            n.tri(2, 4, 1, dtype="float32"),
            n.tri(3, k=-1, dtype="int8"),
        ),
        lambda n, x: (
            n.asarray(x),
            n.asarray(x, "float16"),
            n.array([1, 2]),
            n.array([[1, 2.5]]),
            n.asarray(3),
            n.asarray([True]),
            n.asarray(1.5, "int8"),
        ),
        lambda n, x: (n.array([x[0, 0], 1, x[1, 1]]), n.array([[x[0], x[1]], [x[2], x[0] * 2.5]]), n.array([]), n.array([[], []])),
        lambda n, x: (x.astype("bool"), x.astype("int8"), n.astype(x, "uint8"), x.astype(float), x.astype(int), n.copy(x)),
    ),
)
@pytest.mark.parametrize("dtype", ["f32", "i16"])
def test_creation(function, dtype):
    agree(lambda m, x: function(m.numpy, x), sample(dtype) if dtype == "i16" else np.nan_to_num(sample(dtype), posinf=90, neginf=-90), ulps=2)


@pytest.mark.parametrize("args", [(0, 1), (0, 10, 5), (1.5, -2, 7), (0, 1, 1), (0, 1, 0), (3, 3, 4)], ids=str)
def test_linspace(args):
    agree(
        lambda m: (
            m.numpy.linspace(*args),
            m.numpy.linspace(*args, endpoint=False),
            *m.numpy.linspace(*args, retstep=True),
            m.numpy.linspace(*args, dtype="float32"),
        ),
        ulps=4,
    )


def test_linspace_of_arrays_and_integers():
    agree(
        lambda m, a, b: (
            m.numpy.linspace(a, b, 5),
            m.numpy.linspace(a, b, 4, axis=-1),
            m.numpy.linspace(0, 10, 5, dtype="int32"),
            m.numpy.linspace(a, 2.0, 3, endpoint=False),
        ),
        np.arange(3, dtype=np.float32),
        np.ones(3, np.float32) * 9,
        ulps=4,
    )


def test_linspace_ends_exactly():
    x = mlc.jit(lambda: mlc.numpy.linspace(0.1, 0.7, 11))()
    assert x[0] == 0.1 and x[-1] == 0.7


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_])
def test_float_to_int_saturates_and_nan_is_zero(dtype):
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e30, 127.9, -0.5, 300.0], np.float32)
    found = mlc.jit(lambda x: x.astype(dtype))(x)
    np.testing.assert_array_equal(found, jnp.asarray(x).astype(dtype))


def test_python_scalars_enter_narrow_floats_rounded_once():
    y = mlc.jit(lambda x: x * 1.00390625000001)(np.ones(1, ml_dtypes.bfloat16))
    assert float(y[0]) == 1.0078125  # through float32 it would be a tie, and round down to even


def test_bounds_of_arange_must_be_known():
    with pytest.raises(mlc.errors.TraceError, match=r"arange at .*static_argnums"):
        mlc.jit(lambda n: mlc.numpy.arange(n))(3)
    assert mlc.jit(lambda n: mlc.numpy.arange(n), static_argnums=0)(3).tolist() == [0, 1, 2]


def test_int_data_must_fit():
    with pytest.raises(mlc.errors.DtypeError, match="300 does not fit u8"):
        mlc.numpy.asarray(300, dtype="uint8")
    with pytest.raises(mlc.errors.DtypeError, match="300 does not fit u8"):
        mlc.numpy.asarray([[1.5], [300]], dtype="uint8")
    with pytest.raises(mlc.errors.DtypeError, match="300 does not fit u8"):
        mlc.jit(lambda x: mlc.numpy.asarray([x, 300], dtype="uint8"))(np.uint8(1))
    with pytest.raises(mlc.errors.DtypeError, match="does not fit"):
        mlc.jit(lambda: mlc.numpy.asarray([1, 300], "int8"))()
    with pytest.raises(mlc.errors.DtypeError, match="64 bits"):
        mlc.jit(lambda x: x + 2**64)(1)
