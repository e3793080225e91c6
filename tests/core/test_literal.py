"""Constant data: identity by bits, an immutable copy, text."""

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.errors import DtypeError, ParseError
from mlc.core.literal import INLINE_ELEMENTS, Literal, read_literal
from mlc.core.text import Reader


def nan(bits):
    return np.array(bits, np.uint32).view(np.float32)


def test_identity_is_dtype_shape_and_bits():
    different = [np.float32(0.0), np.float32(-0.0), np.float64(0.0), np.int32(0), np.uint32(0), nan(0x7fc00000), nan(0x7fc00001), nan(0xffc00000),
                 np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32),
                 np.zeros(1, np.float32), np.zeros((1, 1), np.float32), np.False_, np.int8(0)]
    assert len({Literal(v) for v in different}) == len(different)
    assert Literal(nan(0x7fc00001)) == Literal(nan(0x7fc00001)) and Literal(np.float32(1)) != 1.0


def test_bfloat16_and_float16_of_equal_bytes_differ():
    bits = np.array([1, 2], np.uint16)
    assert Literal(bits.view(np.float16)) != Literal(bits.view(dt.bf16.numpy)) != Literal(bits)


def test_byte_order_and_strides_do_not_count():
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert Literal(data) == Literal(np.asfortranarray(data)) == Literal(data.astype(">f4")) == Literal(np.repeat(data, 2, 1)[:, ::2])
    assert Literal(np.asfortranarray(data)).array.flags.c_contiguous and Literal(data.astype(">f4")).array.dtype == np.float32


def test_data_is_copied_and_read_only():
    data = np.zeros(3, np.float32)
    literal = Literal(data)
    data[0] = 1
    assert literal.array[0] == 0 and not literal.array.flags.writeable


@pytest.mark.parametrize("value", ["text", np.array(["a"]), np.array([1j]), np.array([None])])
def test_foreign_data_is_refused(value):
    with pytest.raises(DtypeError):
        Literal(value)


@pytest.mark.parametrize("array", [np.float32(0.5), np.array([1.5, -0.0], np.float32), np.array([[True], [False]]), np.zeros((0, 2), np.int8),
                                   np.arange(INLINE_ELEMENTS, dtype=np.uint64)], ids=lambda a: str(np.shape(a)))
def test_small_data_reads_back_from_text(array):
    literal = Literal(array)
    reader = Reader(literal.text())
    assert read_literal(reader, literal.dtype, literal.array.shape, {}) == literal
    reader.end()
    assert repr(literal) == literal.text()


def test_large_data_prints_its_digest():
    literal = Literal(np.arange(INLINE_ELEMENTS + 1, dtype=np.float32))
    assert not literal.is_inline and literal.text() == f'"{literal.digest}"'
    assert read_literal(Reader(literal.text()), literal.dtype, literal.array.shape, {literal.digest: literal}) is literal
    with pytest.raises(ParseError, match="not in the side file"):
        read_literal(Reader(literal.text()), literal.dtype, literal.array.shape, {})


@pytest.mark.parametrize("text, shape", [("[1.0, 2.0]", (3,)), ("[1.0 2.0]", (2,)), ("[1.0,", (1,)), ("[", (0,)), ("[x]", (1,)), ("", ())])
def test_malformed_data_is_a_parse_error(text, shape):
    with pytest.raises(ParseError, match="line 1, column"):
        read_literal(Reader(text), dt.f32, shape, {})


def test_digests_are_stable():
    """They name constants in snapshots and saved files: a change breaks those."""
    assert Literal(np.arange(100, dtype=np.int32)).digest == "525ebc755c384d4ca053a9690d7e3713"


@pytest.mark.parametrize("size", [0, 1, 16, 31, 32, 33, 1000])
def test_literals_that_differ_in_one_byte_anywhere_differ(size):
    data = np.arange(size, dtype=np.float32)
    same = Literal(data)
    assert Literal(data.copy()) == same and hash(Literal(data.copy())) == hash(same)
    for at in {0, size // 2, size - 1} if size else ():
        changed = data.copy()
        changed[at] += 0.5
        assert Literal(changed) != same and same != Literal(changed)
    assert Literal(data.view(np.int32)) != same


def test_large_data_is_not_hashed_to_be_compared_with_other_data(monkeypatch):
    monkeypatch.setattr(Literal, "digest", property(lambda self: pytest.fail("hashed")))
    one, other = np.zeros(5000, np.float32), np.ones(5000, np.float32)
    found = Literal(one)
    assert found == found and found != Literal(other) and len({found: 1, Literal(other): 2}) == 2
