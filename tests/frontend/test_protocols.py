"""NumPy functions and operators reach recorded arrays through NumPy's protocols; results are those of `mlc.numpy`."""

import numpy as np
import pytest
from frontend_samples import close

import mlc

X = np.linspace(-2, 3, 12).reshape(3, 4)

CALLS = {
    "ufuncs": lambda x: (
        np.exp(x),
        np.add(x, 1),
        np.maximum(x, 0),
        np.sqrt(abs(x)),
        np.negative(x),
        np.power(x, 2),
        np.divide(x, 3),
        np.greater(x, 1),
        np.isfinite(x),
        np.floor(x),
        np.arctan2 and np.hypot(x, 2),
        np.logaddexp(x, 1),
        np.sign(x),
        np.clip(x, -1, 1),
        np.matmul(x, x.T),
    ),
    "reductions": lambda x: (
        np.sum(x),
        np.mean(x, axis=0),
        np.max(x, 1, keepdims=True),
        np.std(x),
        np.var(x, axis=1, ddof=1),
        np.prod(x),
        np.any(x > 1),
        np.all(x > -9, axis=0),
        np.argmax(x, axis=1),
        np.amin(x),
        np.ptp(x, axis=0),
        np.count_nonzero(x > 0),
        np.average(x, axis=0),
    ),
    "reduce": lambda x: (
        np.add.reduce(x),
        np.multiply.reduce(x, axis=1),
        np.maximum.reduce(x, axis=None),
        np.logical_or.reduce(x > 2),
        np.add.outer(x[0], x[1]),
    ),
    "shapes": lambda x: (
        np.reshape(x, (4, 3)),
        np.transpose(x),
        np.concatenate([x, x], 1),
        np.stack([x, x]),
        np.expand_dims(x, 0),
        np.squeeze(x[:1]),
        np.swapaxes(x, 0, 1),
        np.moveaxis(x, 0, 1),
        np.flip(x),
        np.roll(x, 1, 0),
        np.tile(x, (2, 1)),
        np.repeat(x, 2, 0),
        np.ravel(x),
        np.broadcast_to(x, (2, 3, 4)),
        *np.split(x, 2, 1),
        np.pad(x, 1),
        np.tril(x),
        np.hstack([x, x]),
        np.vstack([x, x]),
    ),
    "others": lambda x: (
        np.where(x > 0, x, 0),
        np.dot(x, x.T),
        np.einsum("ij->j", x),
        np.tensordot(x, x, 2),
        np.zeros_like(x),
        np.ones_like(x, dtype="f4"),
        np.full_like(x, 3),
        np.round(x, 1),
        np.nan_to_num(x),
        np.isclose(x, x + 1e-9),
        np.linalg.norm(x),
        np.outer(x[0], x[1]),
        np.trace(x),
        np.diff and np.vdot(x, x),
        np.copysign(1.0, x),
        np.square(x),
        np.allclose(x, x),
    ),
    "mixed": lambda x: (
        np.ones(4) + x,
        np.float32(2) * x,
        np.arange(4) @ x.T,
        np.ones((2, 3)) @ x,
        np.int8(3) - x,
        2**x,
        np.array(2.0) / (x + 9),
        np.pi * x,
        np.arange(4) < x,
        np.float64(1) == x,
        [np.float32(1)][0] + x,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_numpy_functions_record(name):
    found = mlc.jit(lambda x: CALLS[name](x))(X)
    expected = CALLS[name](X)
    assert len(found) == len(expected)
    for i, (f, e) in enumerate(zip(found, expected)):
        e = np.asarray(e)
        assert f.shape == e.shape, (name, i)
        if e.dtype.kind == f.dtype.kind == "f" and e.dtype == f.dtype:
            close(f, e, ulps=64)
        else:
            np.testing.assert_allclose(f, e, rtol=1e-6)


def test_array_api_namespace():
    seen = []
    mlc.jit(lambda x: seen.append((x.__array_namespace__(), x.device, x.to_device("cpu") is x)) or x)(X)
    assert seen == [(mlc.numpy, "cpu", True)]


REQUIRED = """
abs acos acosh add all any arange argmax argmin asarray asin asinh astype atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift
bitwise_or bitwise_right_shift bitwise_xor bool broadcast_arrays broadcast_to can_cast ceil clip concat conj copysign cos cosh count_nonzero
cumulative_sum cumulative_prod diff divide e empty empty_like equal exp expand_dims expm1 eye finfo flip float32 float64 floor floor_divide
from_dlpack full full_like greater greater_equal hypot iinfo imag inf int16 int32 int64 int8 isdtype isfinite isinf isnan less less_equal
linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min
minimum moveaxis multiply nan negative newaxis nextafter nonzero not_equal ones ones_like permute_dims pi positive pow prod real reciprocal
remainder repeat reshape result_type roll round searchsorted sign signbit sin sinh sort argsort sqrt square squeeze stack std subtract sum
take take_along_axis tan tanh tensordot tile tril triu trunc uint16 uint32 uint64 uint8 unique_all unique_counts unique_inverse
unique_values unstack var vecdot where zeros zeros_like __array_namespace_info__ __array_api_version__
""".split()


def test_every_name_of_the_array_api_exists():
    assert [n for n in REQUIRED if not hasattr(mlc.numpy, n)] == []
    assert set(mlc.numpy.__all__) <= set(dir(mlc.numpy))


METHODS = """
T mT shape dtype ndim size itemsize nbytes device at real imag flat astype reshape ravel flatten sum mean var std prod max min any all
argmax argmin ptp transpose swapaxes squeeze clip dot item round take trace diagonal repeat copy conj tolist to_device block_until_ready
weak_type
""".split()


def test_methods_of_a_jax_array_exist():
    from mlc.frontend.record import Tracer

    assert [m for m in METHODS if not hasattr(Tracer, m)] == []
    assert not hasattr(Tracer, "__jax_array__")


def test_iteration_and_length():
    n, total, row, *sums = mlc.jit(lambda x: (len(x), sum(x[i].sum() for i in range(len(x))), [r * 2 for r in x][1], *[a + b for a, b in x[:, :2]]))(
        X
    )
    assert n == 3 and np.isclose(total, X.sum()) and np.array_equal(row, X[1] * 2) and np.allclose(sums, X[:, 0] + X[:, 1])
    with pytest.raises(TypeError, match="rank-0"):
        mlc.jit(lambda x: list(x))(1.0)
    with pytest.raises(TypeError, match="rank-0"):
        mlc.jit(len)(1.0)


def test_lists_and_strings_are_not_operands():
    for other in ([1, 2], "a", None, {}):
        with pytest.raises(TypeError):
            mlc.jit(lambda x, other=other: x + other, static_argnames="other")(X)
    assert mlc.jit(lambda x: (x == None, x != "a"))(X) == (False, True)  # noqa: E711
