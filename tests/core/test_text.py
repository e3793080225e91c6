"""The text kit: scalars keep every bit, attributes read back, errors have a line and column."""

import math

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.errors import ParseError
from mlc.core.text import Reader, format_attr, format_float, format_scalar, printable_name, read_attr, read_scalar


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_scalars_keep_every_bit(dtype):
    rng = np.random.default_rng(1)
    if dtype is dt.bool_:
        values = np.array([True, False])
    elif dtype.bits == 8 or dtype.is_half:
        values = np.arange(1 << dtype.bits, dtype=dt.uint_of(dtype).numpy).view(dtype.numpy)  # every value there is
        values = values if dtype.bits == 8 else values[::7]
    else:
        bits = rng.integers(0, 1 << 32, 400, dtype=np.uint64) << np.uint64(32) | rng.integers(0, 1 << 32, 400, dtype=np.uint64)
        ends = np.array([0, 1, (1 << dtype.bits) - 1, 1 << (dtype.bits - 1), (1 << (dtype.bits - 1)) - 1], np.uint64)
        values = np.concatenate([bits >> np.uint64(64 - dtype.bits), ends]).astype(dt.uint_of(dtype).numpy).view(dtype.numpy)
    for value in values:
        text = format_scalar(value, dtype)
        reader = Reader(text)
        again = read_scalar(reader, dtype)
        reader.end()
        assert again.dtype == dtype.numpy and again.tobytes() == np.asarray(value).tobytes(), text


@pytest.mark.parametrize("value, text", [
    (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.1, "0.1"), (1 / 3, "0x1.5555555555555p-2"), (1e300, "1e+300"), (-2.5e-7, "-2.5e-07"),
    (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (123456789.0, "0x1.d6f3454000000p+26"), (1234567.0, "1234567.0"),
])
def test_floats_are_short_or_hex(value, text):
    assert format_float(value) == text


@pytest.mark.parametrize("value", [
    None, True, False, 0, -7, 1 << 70, 0.5, -0.0, 1 / 3, math.inf, "", "name", dt.bf16, (), (1,), (1, 2, 3), ((0, 1, 2), (3, 4, 5)), ((), ()),
    (True, 1, 1.0, None, "x", dt.f32, (2, (3,))),
], ids=str)
def test_attributes_read_back_with_their_types(value):
    reader = Reader(format_attr(value))
    again = read_attr(reader)
    reader.end()

    def shape(v):
        return [shape(i) for i in v] if isinstance(v, tuple) else (type(v), repr(v))
    assert shape(again) == shape(value)


@pytest.mark.parametrize("value", [[1], {1}, {"a": 1}, np.int64(3), 1j, b"x", object()])
def test_other_types_are_no_attributes(value):
    with pytest.raises(TypeError, match="not an attribute value"):
        format_attr(value)


def test_a_reader_steps_through_kinds():
    r = Reader('graph @g.f#2 ( %x_1 : -1.5e-3 , "s t" ) -> ; comment\n .. end')
    assert (r.take("name"), r.take("name")) == ("graph", "@g.f#2")
    r.expect("(")
    assert r.take("value") == "%x_1" and not r.accept(",") and r.accept(":") and r.take("number") == "-1.5e-3"
    assert r.accept(",") and r.string() == "s t" and r.accept(")") and r.accept("->") and r.accept("..")
    assert r.peek() == "end" and r.next() == "end" and r.peek_kind() == "end" and r.next() == ""
    r.end()


def test_a_string_is_never_taken_for_a_mark():
    r = Reader('"->"')
    assert not r.accept("->") and r.string() == "->"


@pytest.mark.parametrize("text, act, message", [
    ("a\n  $", lambda r: None, "line 2, column 3: unexpected character '$'"),
    ("a b", lambda r: (r.next(), r.expect("c")), "line 1, column 3: expected 'c', found 'b'"),
    ("a", lambda r: (r.next(), r.expect("c")), "expected 'c', found 'the end'"),
    ("1.5", lambda r: r.integer(), "line 1, column 1: expected an integer, found '1.5'"),
    ("x", lambda r: r.take("number"), "expected a number, found 'x'"),
    ("x y", lambda r: (r.next(), r.end()), "line 1, column 3: expected the end, found 'y'"),
    ("f33", read_attr, "unknown dtype 'f33'"),
    ("[1,2", read_attr, "expected ']', found 'the end'"),
    ("[1 2]", read_attr, "line 1, column 4: expected ']', found '2'"),
    ("maybe", lambda r: read_scalar(r, dt.bool_), "expected true or false, found 'maybe'"),
    ("256", lambda r: read_scalar(r, dt.u8), "256 does not fit u8"),
    ("-1", lambda r: read_scalar(r, dt.u8), "-1 does not fit u8"),
    ("true", lambda r: read_scalar(r, dt.f32), "expected a number, found 'true'"),
    ("[1, " + "9" * 5000, lambda r: None, "line 1, column 5: a number of more than 100 characters"),
    ("\n\n   'x'", lambda r: None, "line 3, column 4: unexpected character"),
])
def test_errors_say_where(text, act, message):
    with pytest.raises(ParseError) as caught:
        act(Reader(text, "model.mlc"))
    assert message in str(caught.value) and str(caught.value).startswith("model.mlc, line ")


@pytest.mark.parametrize("text, dtype", [
    ("1e999", dt.f32), ("0x1p+99999", dt.f64), ("-0x1p+99999", dt.f32), ("1e5", dt.f16), ("nan:0xfffffffff", dt.f32), ("0x1p5", dt.i32),
    ("nan:0x0", dt.f32), ("nan:0x7", dt.f16), ("nan:0x7c00", dt.f16), ("nan", dt.i8), ("inf", dt.i64), ("99999999999999999999", dt.u64),
])
def test_values_that_a_dtype_does_not_have_are_refused(text, dtype):
    with pytest.raises(ParseError, match="line 1, column 1"):
        read_scalar(Reader(text), dtype)


def test_hand_written_decimals_are_rounded():
    assert read_scalar(Reader("0.1"), dt.f32) == np.float32(0.1) and read_scalar(Reader("1e-999"), dt.f32) == 0


@pytest.mark.parametrize("name, want", [("x", "x"), ("layer.0.w", "layer.0.w"), ("params['w']", "params_w_"), ("0", "_0"), (".x", "_.x"), ("", "_"),
                                        ("a-b c", "a_b_c"), ("é", "_"), ("<lambda>", "_lambda_")])
def test_printable_names(name, want):
    assert printable_name(name) == want
    r = Reader(f"%{want} @{want}")
    assert r.take("value") == f"%{want}" and r.take("name") == f"@{want}"
