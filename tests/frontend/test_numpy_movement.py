"""Shape, axis, joining, padding and indexing functions against jax.numpy: every element must come from the same place."""

import numpy as np
import pytest
from frontend_samples import agree, sample

import mlc

pytestmark = pytest.mark.usefixtures("x64")

X = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
V = np.arange(5, dtype=np.float32)

MOVES = {
    "reshape": lambda n, x: (n.reshape(x, (4, -1)), x.reshape(6, 4), x.reshape((2, -1, 2)), x.reshape(-1), n.reshape(x, (3, 8), order="F")),
    "ravel": lambda n, x: (n.ravel(x), x.flatten(), n.ravel(x, order="F")),
    "expand": lambda n, x: (n.expand_dims(x, 1), n.expand_dims(x, (0, -1)), x[None], x[:, None, ..., None]),
    "squeeze": lambda n, x: (n.squeeze(x[:, :1]), n.squeeze(x[:1, :, :1], 0), x[:1].squeeze()),
    "transpose": lambda n, x: (n.transpose(x), x.T, x.transpose(2, 0, 1), x.transpose((1, 0, 2)), n.permute_dims(x, (1, 2, 0)), x.mT,
                               n.matrix_transpose(x)),
    "swap": lambda n, x: (n.swapaxes(x, 0, -1), n.moveaxis(x, 0, -1), n.moveaxis(x, (0, 1), (2, 0)), n.rollaxis(x, 2), n.rollaxis(x, 0, 3)),
    "flip": lambda n, x: (n.flip(x), n.flip(x, 1), n.flip(x, (0, -1)), n.fliplr(x), n.flipud(x)),
    "rot90": lambda n, x: (n.rot90(x), n.rot90(x, 2), n.rot90(x, 3, (1, 2)), n.rot90(x, -1, (2, 0))),
    "roll": lambda n, x: (n.roll(x, 2), n.roll(x, -1, 1), n.roll(x, (1, 2), (0, 2)), n.roll(x, 5, (0, 1)), n.roll(x, 0, 0)),
    "broadcast": lambda n, x: (n.broadcast_to(x, (5, 2, 3, 4)), *n.broadcast_arrays(x[:, :1], x[0]), n.broadcast_to(x[:, :1], (2, 7, 4))),
    "atleast": lambda n, x: (n.atleast_1d(x[0, 0, 0]), n.atleast_2d(x[0, 0]), n.atleast_3d(x[0, 0]), n.atleast_3d(x[0]),
                             n.atleast_2d(x)),
    "concatenate": lambda n, x: (n.concatenate([x, x + 1], 1), n.concatenate((x, x[:1])), n.concatenate([x, x * 2.5], -1),
                                 n.concatenate([x, x], None), n.concatenate([x], 0), n.concatenate([x, x], 0, dtype="int8")),
    "stack": lambda n, x: (n.stack([x, -x]), n.stack([x, x + 0.5], -1), n.hstack([x, x]), n.vstack([x, x]), n.dstack([x, x]),
                           n.stack([x[0, 0, 0], 2])),
    "stack1": lambda n, x: (n.hstack([x[0, 0], x[0, 1]]), n.vstack([x[0, 0], x[0, 1]]), n.dstack([x[0, 0], x[0, 1]]),
                            n.column_stack([x[0, 0], x[0, 1]])),
    "append": lambda n, x: (n.append(x, x[0]), n.append(x, x, 2)),
    "split": lambda n, x: (*n.split(x, 3, 1), *n.split(x, [1, 3], 2), *n.array_split(x, 3, 2), *n.split(x, [0, 2, 3], 1)),
    "tile": lambda n, x: (n.tile(x, 2), n.tile(x, (2, 1, 3)), n.tile(x, (2, 1, 1, 2)), n.tile(x[0, 0], (3, 1))),
    "repeat": lambda n, x: (n.repeat(x, 2), n.repeat(x, 3, 1), n.repeat(x, np.array([1, 0, 2]), 1), n.repeat(x, 0, 0), x.repeat(2, axis=0)),
    "pad": lambda n, x: (n.pad(x, 1), n.pad(x, ((1, 2), (0, 0), (3, 0)), constant_values=7), n.pad(x, (1, 2), mode="edge"),
                         n.pad(x, ((1, 1), (2, 0), (0, 5)), mode="wrap"), n.pad(x, ((0, 1), (2, 2), (1, 3)), mode="reflect"),
                         n.pad(x, 2, mode="symmetric")),
    "triangle": lambda n, x: (n.tril(x), n.triu(x), n.tril(x, 1), n.triu(x, -1), n.tril(x, -2)),
    "diagonal": lambda n, x: (n.diagonal(x), n.diagonal(x, 1, 1, 2), n.diagonal(x, -1, 1, 2), n.diagonal(x, 0, 2, 0), n.diagonal(x, 9), n.trace(x[0]),
                              n.trace(x, 1, 1, 2), n.diag(x[0]), n.diag(x[0, 0]), n.diag(x[0, 0], 2), n.diag(x[0, 0], -1)),
    "meshgrid": lambda n, x: (*n.meshgrid(x[0, 0], x[0, :, 0]), *n.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
                              *n.meshgrid(x[0, 0], x[1, 0], sparse=True)),
    "take": lambda n, x: (n.take(x, np.array([2, 0]), 1), n.take(x, np.array([[1, 3], [0, 2]]), 2), n.take(x, 1, 0), n.take(x, np.array([3, -1])),
                          n.take(x, np.array([4, 9]), 1, mode="wrap"), n.take(x, np.array([4, 9]), 1, mode="clip")),
    "diff": lambda n, x: (n.diff(x), n.diff(x, 2, 1), n.diff(x, axis=0, prepend=0), n.diff(x, append=x), n.diff(x > 5), n.diff(x, 9)),
    "unstack": lambda n, x: (*n.unstack(x), *n.unstack(x, axis=-1)),
}


@pytest.mark.parametrize("name", MOVES)
def test_movement(name):
    agree(lambda m, x: MOVES[name](m.numpy, x), X)


INDICES = {
    "int": lambda x: (x[0], x[-1, 2], x[1, -3, 3], x[np.int64(1)]),
    "slice": lambda x: (x[:1], x[1:, 1:3], x[..., 2:], x[:, ::2], x[:, 1::2, ::3], x[5:], x[:-1, :-2]),
    "negative-step": lambda x: (x[::-1], x[:, ::-2], x[..., 3:0:-1], x[:, 1::-1, ::-1], x[..., -2::-2], x[:, 0:2:-1]),
    "new-axes": lambda x: (x[None, 0], x[0, None, :, None, 1], x[..., None], x[:, None]),
    "ellipsis": lambda x: (x[...], x[0, ..., 1], x[..., 1, :]),
    "mixed": lambda x: (x[1, ::-1, None, 1:3], x[None, ..., -1, ::2]),
    "arrays": lambda x: (x[np.array([1, 0, 1])], x[:, [2, 0]], x[..., np.array([[0, 3], [1, 2]])], x[:, np.array([True, False, True])],
                         x[:, ::-1, [3, 1]]),
}


@pytest.mark.parametrize("name", INDICES)
def test_static_index(name):
    agree(lambda m, x: INDICES[name](x), X)


UPDATES = {
    "set": lambda x: (x.at[0].set(7), x.at[:, 1].set(-x[:, 0]), x.at[..., ::2].set(9), x.at[1, 2, 3].set(5), x.at[:, ::-1].set(x), x.at[...].set(1)),
    "add": lambda x: (x.at[0, 1:].add(10), x.at[:, ::-2, 1].add(x[:, :2, 0]), x.at[5:].add(1)),
    "other": lambda x: (x.at[1].multiply(3), x.at[1].mul(x[0]), x.at[0].min(2), x.at[0].max(5), x.at[0].divide(2), x.at[0].power(2),
                        x.at[:, 0].get()),
    "apply": lambda x: (x.at[0, :, 1:3].apply(lambda v: v * 2),),
    "negative-step": lambda x: (x.at[1, ::-1, 1::2].set(x[0, :, :2]), x.at[None, 0].add(1)),
}


@pytest.mark.parametrize("dtype", ["i32", "f32"])
@pytest.mark.parametrize("name", UPDATES)
def test_at_update(name, dtype):
    agree(lambda m, x: UPDATES[name](x), X.astype("int32" if dtype == "i32" else "float32"))


def test_update_keeps_negative_zero_elsewhere():
    y = mlc.jit(lambda x: x.at[1].add(1))(np.full(3, -0.0, np.float32))
    assert np.signbit(y).tolist() == [True, False, True] and y[1] == 1


def test_subtract_at():
    y = mlc.jit(lambda x: x.at[1:3].subtract(10))(V)
    np.testing.assert_array_equal(y, [0, -9, -8, 3, 4])


@pytest.mark.parametrize("index", [5, -6, (0, 1), (..., ...)])
def test_static_index_past_the_end_is_an_index_error(index):
    with pytest.raises(IndexError, match=r"indexing at test_numpy_movement.py:\d+ \(<lambda>\)"):
        mlc.jit(lambda x: x[index])(V)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_empty_arrays_move(shape):
    x = np.zeros(shape, np.float32)
    agree(lambda m, x: (x.T, x.reshape(-1), m.numpy.concatenate([x, x], 1), x[:, ::-1], m.numpy.flip(x), m.numpy.pad(x, 1), m.numpy.stack([x, x])), x)


def test_joining_promotes_like_jax():
    agree(lambda m, a, b, c: (m.numpy.concatenate([a, b, c]), m.numpy.stack([a, c])), sample("i8", (3,)), sample("f16", (3,)), sample("u16", (3,)))


@pytest.mark.parametrize("dtype", ["bool", "u8", "bf16", "f64"])
def test_movement_is_exact_in_every_dtype(dtype):
    agree(lambda m, x: (x[::-1, 1:], m.numpy.roll(x, 3, 1), m.numpy.pad(x, 1), m.numpy.tril(x)), sample(dtype), ulps=0)
