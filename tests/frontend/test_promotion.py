"""dtypes follow JAX's lattice with x64 on, weak types included; float64 scalars that widen a program warn."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from frontend_samples import DTYPES

import mlc
from mlc.core import dtype as dt
from mlc.errors import WideningWarning

pytestmark = pytest.mark.usefixtures("x64")

WEAK = {"int": int, "float": float}


def value(name):
    return {"int": 2, "float": 2.0}[name] if name in WEAK else np.ones(3, DTYPES[name])


def jax_value(name):
    return value(name) if name in WEAK else jnp.asarray(value(name))


@pytest.mark.parametrize("a", [*DTYPES, *WEAK])
def test_every_pair_promotes_as_in_jax(a):
    for b in [*DTYPES, *WEAK]:
        pairs = [(dt.lattice_name(dt.parse_dtype(n), False) if n in DTYPES else {"int": "i*", "float": "f*"}[n]) for n in (a, b)]
        kinds = [(dt.parse_dtype(n), False) if n in DTYPES else ((dt.i64 if n == "int" else dt.f64), True) for n in (a, b)]
        expected = jnp.promote_types(WEAK.get(a, DTYPES.get(a)), WEAK.get(b, DTYPES.get(b)))
        assert dt.promote(*kinds)[0].numpy == expected, pairs
        assert mlc.numpy.promote_types(WEAK.get(a, DTYPES.get(a)), WEAK.get(b, DTYPES.get(b))) == expected


@pytest.mark.parametrize("a", [*DTYPES, *WEAK])
def test_traced_addition_promotes_as_in_jax(a):
    names = [b for b in [*DTYPES, *WEAK] if (a in DTYPES) or (b in DTYPES)]
    found = mlc.jit(lambda x, ys: [x * y for y in ys])(value(a), [value(b) for b in names])
    for b, y in zip(names, found):
        assert y.dtype == jnp.result_type(jax_value(a), jax_value(b)), (a, b)


@pytest.mark.parametrize("op", ["true_divide", "add", "power", "maximum"])
def test_three_weak_kinds_and_constants_in_the_function(op):
    for name in DTYPES:
        if (name, op) in (("bool", "power"),):
            continue
        x = np.ones(2, DTYPES[name])
        found = mlc.jit(lambda x: [getattr(mlc.numpy, op)(x, s) for s in (True, 2, 2.5)])(x)
        expected = jax.eval_shape(lambda x: [getattr(jnp, op)(x, s) for s in (True, 2, 2.5)], x)
        assert [f.dtype for f in found] == [e.dtype for e in expected], (name, op)


def test_weakness_survives_arithmetic_among_python_scalars():
    f = mlc.jit(lambda x, n, s: (x * (n + 1), x * (s * n), x * mlc.numpy.exp(s), n + 1, s * n))
    y = f(np.ones(2, np.float32), 3, 0.5)
    assert [v.dtype for v in y] == [np.float32, np.float32, np.float32, np.int64, np.float64]


def test_reductions_and_astype_are_strong():
    f = mlc.jit(lambda x, s: (x * mlc.numpy.sum(s), x * s.astype("float64"), x * mlc.numpy.max(s)))
    assert all(y.dtype == np.float64 for y in f(np.ones(2, np.float32), 0.5))


def test_bool_scalar_is_not_weak_int():
    assert mlc.jit(lambda x: x + True)(np.ones(2, np.int8)).dtype == np.int8
    assert mlc.jit(lambda b: b + 1)(np.array([True])).dtype == np.int64


def test_python_int_wraps_into_a_narrow_dtype_as_in_jax():
    y = mlc.jit(lambda x: (x + 1000, x == 1000))(np.arange(3, dtype=np.int8))
    assert y[0].tolist() == (jnp.arange(3, dtype=jnp.int8) + 1000).tolist()
    assert y[1].tolist() == (jnp.arange(3, dtype=jnp.int8) == 1000).tolist()


def test_uint64_constant_past_int64():
    y = mlc.jit(lambda x: x & 0xFFFF_FFFF_FFFF_FFFF)(np.array([2 ** 64 - 1, 5], np.uint64))
    assert y.tolist() == [2 ** 64 - 1, 5]


@pytest.mark.parametrize("narrow", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_float64_scalar_that_widens_warns_with_the_users_line(narrow):
    x = np.ones(3, narrow)
    scale = np.float64(0.5)

    def f(x):
        return x * scale
    with pytest.warns(WideningWarning, match=r"float64 scalar widens") as caught:
        assert mlc.jit(f)(x).dtype == np.float64
    assert caught[0].filename == __file__
    assert caught[0].lineno == f.__code__.co_firstlineno + 1


def test_float64_scalar_argument_that_widens_warns_too():
    with pytest.warns(WideningWarning, match="float64 scalar widens") as caught:
        assert mlc.jit(lambda x, s: x * s + s)(np.ones(3, np.float32), np.float64(2)).dtype == np.float64
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize("other", [1.5, np.float32(1.5), np.ones(3), 2])
def test_what_widens_nothing_or_is_no_scalar_does_not_warn(other):
    with warnings.catch_warnings():
        warnings.simplefilter("error", WideningWarning)
        mlc.jit(lambda x: x * other)(np.ones(3, np.float32))
        mlc.jit(lambda x: x * np.float64(2))(np.ones(3, np.int32))


def test_ints_divide_to_the_float_that_jax_gives():
    for name in DTYPES:
        x = np.ones(2, DTYPES[name])
        assert mlc.jit(lambda x: x / x)(x).dtype == jax.eval_shape(lambda x: x / x, x).dtype
        assert mlc.jit(lambda x: x.mean())(x).dtype == jax.eval_shape(lambda x: x.mean(), x).dtype


def test_dtype_queries():
    n = mlc.numpy
    for a, b in itertools.product(("i8", "u8", "f32", "bf16"), repeat=2):
        assert n.result_type(DTYPES[a], DTYPES[b]) == jnp.result_type(DTYPES[a], DTYPES[b])
        assert n.can_cast(DTYPES[a], DTYPES[b]) == (jnp.promote_types(DTYPES[a], DTYPES[b]) == DTYPES[b])
    assert n.isdtype(np.float32, "real floating") and n.isdtype(ml_dtypes.bfloat16, ("integral", "real floating")) and not n.isdtype(np.int8, "bool")
    assert n.issubdtype(ml_dtypes.bfloat16, np.floating) and n.issubdtype(np.int8, np.integer) and not n.issubdtype(np.int8, np.floating)
    assert n.finfo(ml_dtypes.bfloat16).bits == 16 and n.finfo("float32").eps == 2.0 ** -23 and n.iinfo(np.int8).max == 127
    assert mlc.jit(lambda x: x.astype(n.result_type(x, 1.5)))(np.ones(2, np.float16)).dtype == np.float16


@pytest.mark.parametrize("name", DTYPES)
def test_dtype_queries_take_dtypes_as_scalar_types_objects_and_names(name):
    n, scalar = mlc.numpy, DTYPES[name]
    for given in (scalar, np.dtype(scalar), np.dtype(scalar).name, *([name] if name not in ("i8", "u8") else [])):
        assert n.result_type(given, np.int8) == n.promote_types(given, np.int8) == jnp.promote_types(scalar, np.int8)
        assert n.can_cast(given, given) and n.isdtype(scalar, given) and not n.isdtype(np.int16 if name != "i16" else np.int8, given)
        assert n.issubdtype(given, scalar) and n.issubdtype(scalar, given)
        for kind in (np.floating, np.integer, np.signedinteger, np.number, np.generic, np.complex64):
            assert n.issubdtype(given, kind) == jnp.issubdtype(scalar, kind), (given, kind)
    with pytest.raises(mlc.errors.DtypeError, match=r"isdtype: dtype 'floating points' is not supported.*classes of dtypes are bool, signed integer"):
        n.isdtype(scalar, "floating points")


@pytest.mark.parametrize("name, says", [("i8", "'int8' or 'int64'"), ("u8", "'uint8' or 'uint64'")])
def test_names_that_numpy_gives_another_meaning_are_refused(name, says):
    x = np.array([300.0])
    for function in (lambda x: x.astype(name), lambda x: mlc.numpy.zeros(2, name), lambda x: mlc.numpy.sum(x, dtype=name)):
        with pytest.raises(mlc.errors.DtypeError, match=says):
            mlc.jit(function)(x)
    with pytest.raises(mlc.errors.DtypeError, match=says):
        mlc.numpy.isdtype(np.int8, name)
    assert mlc.numpy.result_type(np.dtype(name), np.float32) == np.float32 and np.dtype(name).itemsize == 8
