"""The loop text: what it looks like, that every bit comes back, and what bad text says."""

import pytest
from random_kernels import random_kernel

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import ParseError
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, LoopKernel, Store, Tile, load
from mlc.loop.text import parse_kernel, print_kernel

ROW_SUM = """\
loops @row_sum#1(%x: f32[68] in, %out: f32[4] out) alias(%x %out) {
  parallel i in 4 {
    var %acc: f32<16> = 0.0
    vector(16) j in 17 {
      %0 = mul %x[17*i + j], %x[17*i + j] : f32
      %1 = add %acc, %0 : f32
      %acc = %1
    }
    fold %s = %acc {
      %0 = add %a.0, %b.0 : f32
      yield %0
    }
    %out[i] = %s
  }
}
"""


def row_sum() -> LoopKernel:
    x, acc = load("x", dt.f32, Affine(0, {"i": 17, "j": 1})), ex.var("acc", dt.f32)
    body = (Decl("acc", dt.f32, 16, ex.const(0, dt.f32)),
            For("j", 17, (Assign(("acc",), (acc + x * x,)),), "vector", 16),
            Fold(("s",), ("acc",), (ex.var("a.0", dt.f32) + ex.var("b.0", dt.f32),)),
            Store("out", Affine(0, {"i": 1}), ex.var("s", dt.f32)))
    buffers = (Buffer("x", dt.f32, 68, "in"), Buffer("out", dt.f32, 4, "out"))
    return LoopKernel("row_sum#1", buffers, (For("i", 4, body, "parallel"),), frozenset({("x", "out")}))


def test_a_person_can_read_a_row_sum():
    assert print_kernel(row_sum()) == ROW_SUM
    assert parse_kernel(ROW_SUM) == row_sum()


def test_a_tile_prints_as_multiply_and_accumulate():
    a = ex.convert(load("a", dt.bf16, Affine(0, {"r": 5, "k": 1})), dt.f32)
    tile = Tile("acc", dt.f32, "r", 2, "c", 3, "k", 5, 4, a, load("b", dt.f32, Affine(0, {"k": 3, "c": 1})),
                (Store("out", Affine(0, {"r": 3, "c": 1}), ex.maximum(ex.var("acc", dt.f32), 0.0)),))
    buffers = (Buffer("a", dt.bf16, 10, "in"), Buffer("b", dt.f32, 15, "in"), Buffer("out", dt.f32, 6, "out"))
    kernel = LoopKernel("dot", buffers, (tile,))
    text = print_kernel(kernel)
    assert text.splitlines()[1:-1] == [
        "  tile %acc: f32 r:2 c:3 k:5 vector(4) {",
        "    %0 = convert %a[5*r + k] : f32",
        "    %acc += %0 * %b[3*k + c]",
        "  } then {",
        "    %0 = max %acc, 0.0 : f32",
        "    %out[3*r + c] = %0",
        "  }"]
    assert parse_kernel(text) == kernel


@pytest.mark.parametrize("seed", range(150))
def test_random_kernels_come_back_and_print_alike(seed):
    kernel = random_kernel(seed)
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert print_kernel(parse_kernel(text)) == text == print_kernel(random_kernel(seed))


def _store_of(value, dtype) -> LoopKernel:
    return LoopKernel("k", (Buffer("out", dtype, 1, "out"),), (Store("out", Affine(), value),))


@pytest.mark.parametrize("dtype,bits", [
    (dt.f32, 0x7FC00001), (dt.f32, 0xFFC00000), (dt.f32, 0x7F800001), (dt.f32, 0x80000000), (dt.f32, 1), (dt.f32, 0x3DCCCCCD), (dt.f32, 0xFF800000),
    (dt.f64, 0x7FF8000000000001), (dt.f64, 0x3FB999999999999A), (dt.f64, 1), (dt.f16, 0x7E01), (dt.f16, 1), (dt.bf16, 0xFFC1), (dt.bf16, 0x8001)])
def test_constants_keep_every_bit(dtype, bits):
    kernel = _store_of(ex.const_bits(bits, dtype), dtype)
    again = parse_kernel(print_kernel(kernel))
    assert again == kernel and again.body[0].value.attr == bits


def test_literals_whose_dtype_is_not_plain_carry_it():
    flag = ex.binary("lt", ex.const(1, dt.i8), ex.const(2, dt.i8))
    value = ex.select(flag, ex.convert(ex.const(3, dt.u16), dt.f32), 1.5)
    text = print_kernel(_store_of(value, dt.f32))
    assert "lt 1<i8>, 2<i8> : bool" in text and "convert 3<u16> : f32" in text and "select %0, %1, 1.5 : f32" in text
    assert parse_kernel(text) == _store_of(value, dt.f32)


def test_a_broken_kernel_still_prints_and_comes_back():
    """The verifier's reports show text of kernels whose dtypes disagree."""
    broken = ex.make("add", dt.f32, (ex.var("nowhere", dt.i8), load("out", dt.f64, Affine())))
    kernel = _store_of(ex.make("add", dt.f32, (broken, ex.make("index", dt.u8, (), "q"))), dt.f32)
    text = print_kernel(kernel)
    assert "%nowhere<i8>" in text and "%out[0]<f64>" in text and "q<u8>" in text
    assert parse_kernel(text) == kernel


def test_shared_expressions_print_once():
    x = load("x", dt.f32, Affine())
    for _ in range(200):
        x = x + x
    kernel = LoopKernel("doubling", (Buffer("x", dt.f32, 1, "in"), Buffer("out", dt.f32, 1, "out")), (Store("out", Affine(), x),))
    text = print_kernel(kernel)
    assert len(text.splitlines()) == 203
    assert parse_kernel(text) == kernel


@pytest.mark.parametrize("broken,message", [
    (ROW_SUM.replace("%acc = %1", "%acc = %2"), "%2"),
    (ROW_SUM.replace("%0 = mul", "%1 = mul"), "expected instruction %0"),
    (ROW_SUM.replace("f32<16>", "f31<16>"), "f31"),
    (ROW_SUM.replace("yield", "return"), "yield"),
    (ROW_SUM[:-3], "the end"),
    (ROW_SUM.replace("%s\n", "%nothing\n"), "nothing is not declared"),
    (ROW_SUM.replace("17*i + j]", "17*i + ]", 1), "expected a name")])
def test_bad_text_is_refused_where_it_is_bad(broken, message):
    with pytest.raises(ParseError, match="line") as caught:
        parse_kernel(broken)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["nan", "inf", "true", "3x", "a b", ""])
def test_names_that_could_be_read_otherwise_are_not_printed(name):
    with pytest.raises(ValueError, match="not a name"):
        print_kernel(LoopKernel("k", (Buffer("out", dt.f32, 1, "out"),), (For(name, 3, ()),)))
