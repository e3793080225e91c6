"""The thirteen dtypes and the promotion lattice, against JAX and NumPy's own tables."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.dtype import ALL, FLOATS, INTS, as_dtype, parse_dtype, promote, promote_types
from mlc.core.errors import DtypeError


@pytest.mark.parametrize("a", ALL, ids=str)
def test_promotion_of_strong_dtypes_is_jaxs(a):
    with jax.enable_x64(True):
        for b in ALL:
            assert promote_types(a, b).numpy == jnp.promote_types(a.numpy, b.numpy), (a, b)


@pytest.mark.parametrize("a", ALL, ids=str)
def test_promotion_with_python_scalars_is_jaxs(a):
    with jax.enable_x64(True):
        for weak, scalar in ((dt.bool_, True), (dt.i64, 1), (dt.f64, 1.0)):
            found, is_weak = promote((a, False), (weak, True))
            want, want_weak = jax.dtypes.result_type(jnp.ones((), a.numpy), scalar, return_weak_type_flag=True)
            assert (found.numpy, is_weak) == (np.dtype(want), want_weak), (a, weak)


def test_promotion_of_two_python_scalars_stays_weak():
    assert promote((dt.i64, True), (dt.f64, True)) == (dt.f64, True)
    assert promote((dt.i64, True), (dt.i64, True)) == (dt.i64, True)
    assert promote((dt.bool_, True), (dt.i64, True)) == (dt.i64, True)
    assert promote((dt.bool_, True), (dt.bool_, True)) == (dt.bool_, False), "there is no weak bool"


def test_promotion_does_not_care_for_order():
    assert all(promote_types(a, b) is promote_types(b, a) for a, b in itertools.product(ALL, repeat=2))
    assert all(promote_types(a, a) is a for a in ALL)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_sizes_and_limits_are_numpys(dtype):
    assert dtype.bits == dtype.numpy.itemsize * 8 == dtype.itemsize * 8
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        assert (dtype.min, dtype.max) == (info.min, info.max)
    elif dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        assert dtype.eps == float(info.eps) and dt.MANTISSA[dtype] == info.nmant + 1
        assert 2.0 ** dt.MIN_EXPONENT[dtype] == float(info.smallest_normal) and (dtype.min, dtype.max) == (-np.inf, np.inf)
        assert 2.0 ** dt.MAX_EXPONENT[dtype] <= float(info.max) and float(info.max) / 2 < 2.0 ** dt.MAX_EXPONENT[dtype]
    else:
        assert (dtype.min, dtype.max) == (False, True)


def test_there_are_thirteen_kinds_of_numbers():
    assert len(ALL) == len(set(ALL)) == 13 and len(FLOATS) == 4 and len(INTS) == 8
    assert [d for d in ALL if d.is_half] == [dt.f16, dt.bf16]


@pytest.mark.parametrize("given, want", [
    ("f32", dt.f32), ("float32", dt.f32), (np.float32, dt.f32), (np.dtype("f4"), dt.f32), (">f4", dt.f32), (float, dt.f64), (bool, dt.bool_),
    (int, dt.i64), ("bfloat16", dt.bf16), (ml_dtypes.bfloat16, dt.bf16), (jnp.bfloat16, dt.bf16), (jnp.int8, dt.i8), (dt.u8, dt.u8), ("u8", dt.u8),
    (np.zeros(1, np.uint16).dtype, dt.u16),
], ids=range(15))
def test_dtypes_by_any_name(given, want):
    assert as_dtype(given) is want


@pytest.mark.parametrize("given", ["complex64", np.dtype("S3"), object, "float8_e4m3fn", "datetime64[s]", "f31", None.__class__, 7], ids=range(8))
def test_foreign_dtypes_are_refused_with_the_list(given):
    with pytest.raises(DtypeError, match="bool, i8, i16"):
        as_dtype(given)


def test_unknown_short_names_are_refused():
    with pytest.raises(DtypeError, match="unknown dtype 'float32'"):
        parse_dtype("float32")


def test_dtypes_are_singletons_through_pickle():
    assert all(pickle.loads(pickle.dumps(d)) is d for d in ALL)


def test_integers_of_the_same_width():
    for d in ALL:
        if d is not dt.bool_:
            assert dt.uint_of(d).bits == dt.sint_of(d).bits == d.bits and dt.uint_of(d).kind == "u" and dt.sint_of(d).kind == "i"
