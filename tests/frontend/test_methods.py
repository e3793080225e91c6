"""Methods and operators of arrays that Python itself calls in unusual ways."""

import numpy as np
import pytest

import mlc
from mlc.core.errors import ParseError


def test_trace_is_the_sum_of_the_diagonal():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert mlc.jit(lambda a: a.trace())(x) == 4.0 and mlc.asarray(x).trace().eval() == 4.0


def test_pow_with_a_modulus_is_refused():
    with pytest.raises(TypeError):
        mlc.jit(lambda a: pow(a, 2, 3))(np.int32([2, 5]))


def test_round_without_digits_is_an_integer_as_in_python():
    x = np.float32([0.5, 1.5, -2.5, 2.6])
    whole, tenths, ints = mlc.jit(lambda a: (round(a), round(a, 1), round(a.astype(np.int16))))(x)
    assert whole.dtype == np.int64 and whole.tolist() == [0, 2, -2, 3]
    assert tenths.dtype == np.float32 and ints.dtype == np.int16


def test_a_float_is_no_index():
    with pytest.raises(TypeError, match="integer"):
        [1, 2][mlc.asarray(1.0)]
    assert [1, 2][mlc.asarray(1)] == 2


def test_lists_are_written_like_arrays():
    x = np.zeros((2, 3), np.float32)
    found = mlc.jit(lambda a: (a.at[0].set([1, 2, 3]), a.at[:, 1].add((1, 2))))(x)
    assert found[0].tolist() == [[1, 2, 3], [0, 0, 0]] and found[1].tolist() == [[0, 1, 0], [0, 2, 0]]


def test_a_spec_that_is_no_string_says_how_one_is_written():
    with pytest.raises(ParseError, match=r"f32\[64,784\]"):
        mlc.spec(3)
