"""Products against jax.numpy, and einsum against numpy.einsum."""

import numpy as np
import pytest
from frontend_samples import agree

import mlc
from mlc.core import dtype as dt

pytestmark = pytest.mark.usefixtures("x64")


def a(*shape, dtype="f4", seed=0):
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((1, 3, 4), (6, 4, 5)),
        ((6, 1, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((7, 1, 3, 4), (1, 2, 4, 5)),
        ((1, 3, 4), (1, 4, 5)),
        ((3, 0), (0, 2)),
    ],
    ids=str,
)
def test_matmul_shapes(shapes):
    agree(lambda m, x, y: x @ y, a(*shapes[0]), a(*shapes[1], seed=1), ulps=0)


@pytest.mark.parametrize("dtypes", [("i1", "i1"), ("f4", "f8"), ("i4", "f2"), ("u1", "i2"), ("?", "?")], ids="-".join)
def test_matmul_promotes(dtypes):
    agree(lambda m, x, y: (x @ y, m.numpy.dot(x, y)), a(3, 4, dtype=dtypes[0]), a(4, 2, dtype=dtypes[1], seed=1))


def test_preferred_element_type():
    agree(
        lambda m, x, y: (m.numpy.matmul(x, y, preferred_element_type="int32"), m.numpy.dot(x, y, preferred_element_type="float32")),
        a(3, 4, dtype="i1"),
        a(4, 2, dtype="i1", seed=1),
    )


def test_other_products():
    def function(m, x, y, v, w):
        n = m.numpy
        return (
            n.dot(x, y),
            n.dot(x, v),
            n.dot(2, x),
            n.vdot(v, v),
            n.vecdot(x, x),
            n.vecdot(x, x, axis=0),
            n.inner(x, x),
            n.inner(v, v),
            n.outer(v, w),
            n.tensordot(x, y, 1),
            n.tensordot(x, y, ((1,), (0,))),
            n.tensordot(x, x, ([0, 1], [0, 1])),
            n.tensordot(v, w, 0),
            n.kron(x, v),
            n.matvec(x, v),
            n.vecmat(v, y),
            n.cross(x[:, :3], x[:, 1:]),
            n.trace(x),
        )

    agree(function, a(3, 4), a(4, 5, seed=1), a(4, seed=2), a(6, seed=3), ulps=4)


@pytest.mark.parametrize("order", [None, 1, -1, np.inf, -np.inf, "fro"])
def test_matrix_norms(order):
    agree(lambda m, x: (m.numpy.linalg.norm(x, order, (0, 1)), m.numpy.linalg.norm(x, order, (2, 0), keepdims=True)), a(3, 4, 5), ulps=8)


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, 2.5, np.inf, -np.inf])
def test_vector_norms(order):
    agree(lambda m, x: (m.numpy.linalg.norm(x, order, 1), m.numpy.linalg.norm(x[:, 0, 0], order)), a(3, 4, 5), ulps=64)


EQUATIONS = [
    "ij,jk->ik",
    "ij,jk",
    "ij->ji",
    "ij->",
    "ii->i",
    "ii",
    "ij,ij->ij",
    "ij,ij->",
    "bij,bjk->bik",
    "i,j->ij",
    "ij,kj->ik",
    "bhqd,bhkd->bhqk",
    "...ij,...jk->...ik",
    "ij,j->i",
    "abc,cd,de->abe",
    "ijj->i",
    "i->",
    "ij,ik->kj",
    "...i->i...",
    "ab,bc,ca",
    "i,i,i->i",
    "b...,...->b...",
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    sizes = dict(zip("abcdehijkq", (2, 3, 4, 5, 2, 3, 4, 4, 5, 6))) | {"i": 4, "j": 4}
    inputs = equation.split("->")[0].split(",")
    shapes = [[n for c in term.replace("...", ".") for n in ((2, 3) if c == "." else (sizes[c],))] for term in inputs]
    arrays = [a(*shape, dtype="f8", seed=i) for i, shape in enumerate(shapes)]
    found = mlc.jit(lambda *xs: mlc.numpy.einsum(equation, *xs))(*arrays)
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-12, atol=1e-12)


def test_einsum_promotes_and_takes_numpy_calls():
    x, y = a(3, 4, dtype="i1"), a(4, 2, dtype="f4", seed=1)
    agree(lambda m, x, y: m.numpy.einsum("ij,jk->ik", x, y), x, y)
    np.testing.assert_array_equal(mlc.jit(lambda x: np.einsum("ij,ij->i", x, x))(y), np.einsum("ij,ij->i", y, y))


def test_mismatch_names_parameter_and_line():
    with pytest.raises(
        mlc.errors.ShapeError,
        match=r"matmul at test_numpy_products.py:\d+ \(loss\): x is f32\[64,784\] and w is f32\[512,784\]; "
        r"contracting axis 1 of the left \(784\) with axis 0 of the right \(512\). Transpose",
    ):

        def loss(x, w):
            return x @ w

        mlc.jit(loss)(np.zeros((64, 784), "f4"), np.zeros((512, 784), "f4"))


def _pairs():
    """Operand dtypes, and preferred ones that can hold more (integers: as many bits or more)."""
    for own in (*dt.INTS, *dt.FLOATS):
        for wanted in (dt.i32, dt.u32, dt.i64, dt.u64, dt.f32, dt.f64):
            if (own.is_float and wanted.is_float and wanted.bits >= own.bits) or (own.is_int and (wanted.is_float or wanted.bits >= own.bits)):
                yield pytest.param(own, wanted, id=f"{own}-{wanted}")


@pytest.mark.parametrize(("own", "wanted"), list(_pairs()))
def test_a_preferred_element_type_loses_nothing_of_the_products(own, wanted):
    if own.is_float:
        x = np.linspace(0.1, 1.7, 30).reshape(3, 10).astype(own.numpy)
        values = x.astype(np.float64)
    else:
        x = np.full((3, 10), min(own.max - 1, 2**60 + 1), own.numpy)  # so that squares fit f32
        x[:, ::3] = max(own.min // 2 + 1, -(2**60))
        values = x.astype(object)
    exact = values @ values.T
    found = mlc.jit(lambda a: mlc.numpy.matmul(a, a.T, preferred_element_type=wanted.numpy))(x)
    assert found.dtype == wanted.numpy
    if wanted.is_float:
        np.testing.assert_allclose(found.astype(np.float64), exact.astype(np.float64), rtol=32 * wanted.eps)
    else:
        assert [int(v) % 2**wanted.bits for v in found.flat] == [int(v) % 2**wanted.bits for v in exact.flat]
