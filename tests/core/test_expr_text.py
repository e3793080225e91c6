"""Expressions as text: readable, every bit comes back, and what cannot be written or read is refused where it stands."""

import random

import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import ParseError
from mlc.core.expr_text import (
    ExprPrinter,
    ExprReader,
    checked_buffer,
    checked_name,
    checked_title,
    combine_scope,
    format_access,
    format_affine,
    read_affine,
)
from mlc.core.text import Reader

BUFFERS = {f"x{k}": dtype for k, dtype in enumerate(dt.ALL)}
SCOPE = {f"v{k}": dtype for k, dtype in enumerate(dt.ALL)}


def written(roots, places, buffers=BUFFERS, scope=SCOPE) -> str:
    """The numbered lines, then the roots."""
    printer = ExprPrinter(buffers)
    values = printer.instructions(roots, places, "", scope)
    return "\n".join([*printer.lines, ", ".join(values)])


def read(text, places, buffers=BUFFERS, scope=SCOPE):
    reader = ExprReader(Reader(text))
    reader.buffers = dict(buffers)
    found = reader.roots(places, reader.instructions(scope), scope)
    reader.reader.end()
    return list(found)


def assert_comes_back(roots, places, **known):
    text = written(roots, places, **known)
    again = read(text, places, **known)
    assert all(a is b for a, b in zip(again, roots, strict=True)), text
    assert written(again, places, **known) == text
    return text


def load(name, dtype, index=Affine()):  # noqa: B008
    return ex.make("load", dtype, (), (name, index))


# --------------------------------------------------------------------------- what it looks like
def test_a_person_can_read_a_sigmoid():
    x = load("x", dt.f32, Affine(0, {"i": 512, "j": 1}))
    value = 1.0 / (ex.make("fma", dt.f32, (x, ex.var("scale", dt.f32), ex.const(0.5, dt.f32))) + 1.0)
    assert written([value], [dt.f32], {"x": dt.f32}, {"scale": dt.f32}) == (
        "%0 = fma %x[512*i + j], %scale, 0.5 : f32\n"
        "%1 = add %0, 1.0 : f32\n"
        "%2 = div 1.0, %1 : f32\n"
        "%2")


def test_shared_parts_print_once_and_roots_may_be_leaves():
    x = ex.var("v8", dt.f64)
    doubled = x + x
    value = doubled
    for _ in range(100):
        value = value + value
    text = assert_comes_back([value, doubled, x, ex.const(-0.0, dt.f64), ex.index("i")], [dt.f64] * 4 + [dt.i64],
                             scope={"v8": dt.f64})
    assert len(text.splitlines()) == 102 and text.endswith("%100, %0, %v8, -0.0, i")


def test_numbers_go_on_where_earlier_instructions_are_known():
    x, printer, names = ex.var("v10", dt.f16), ExprPrinter({}), {}
    first, = printer.instructions([x + x], [dt.f16], "", {"v10": dt.f16}, names)
    second = printer.instructions([(x + x) * x, x + x], [dt.f16] * 2, "", {"v10": dt.f16}, names)
    assert printer.lines == ["%0 = add %v10, %v10 : f16", "%1 = mul %0, %v10 : f16"] and (first, second) == ("%0", ["%1", "%0"])
    reader, named = ExprReader(Reader("%0 = add %v10, %v10 : f16  stop %1 = mul %0, %v10 : f16")), {}
    reader.instructions({"v10": dt.f16}, named)
    reader.reader.expect("stop")
    assert list(reader.instructions({"v10": dt.f16}, named).values()) == [x + x, (x + x) * x]


@pytest.mark.parametrize("index,text", [
    (Affine(), "0"), (Affine(-3), "-3"), (Affine(0, {"i": 1}), "i"), (Affine(0, {"i": -1}), "-i"), (Affine(7, {"i": -2}), "-2*i + 7"),
    (Affine(-7, {"j": 1, "i": 512}), "512*i + j - 7"), (Affine(1, {"a": 1, "b": -1}), "a - b + 1"), (Affine(0, {"b": -4, "a": 2}), "-4*b + 2*a")])
def test_affine_indices_read_as_arithmetic(index, text):
    assert format_affine(index) == text
    reader = Reader(text)
    assert read_affine(reader) == index
    reader.end()


def test_literals_whose_dtype_is_not_plain_carry_it():
    flag = ex.binary("lt", ex.const(1, dt.i8), ex.const(2, dt.i8))
    value = ex.select(flag, ex.convert(ex.const(3, dt.u16), dt.f32), 1.5)
    text = assert_comes_back([value, ex.const(True, dt.bool_)], [dt.f32, None])
    assert text.splitlines() == ["%0 = lt 1<i8>, 2<i8> : bool", "%1 = convert 3<u16> : f32", "%2 = select %0, %1, 1.5 : f32", "%2, true<bool>"]


def test_leaves_of_an_undeclared_or_other_dtype_carry_it():
    leaves = [ex.var("nowhere", dt.i8), ex.var("v0", dt.f32), load("x1", dt.f64), load("nothing", dt.u8), ex.make("index", dt.u8, (), "q")]
    assert assert_comes_back(leaves, [None] * 5) == "%nowhere<i8>, %v0<f32>, %x1[0]<f64>, %nothing[0]<u8>, q<u8>"


# --------------------------------------------------------------------------- every expression comes back
def random_expression(rng: random.Random, size: int) -> list[ex.Expr]:
    """Expressions over every leaf and dtype, well typed or not: text does not care."""
    made = [load(f"x{k}", dtype, Affine(rng.randint(-5, 5), {"i": rng.randint(-3, 3), "jj.0": rng.choice((0, 1, 4096))}))
            for k, dtype in enumerate(dt.ALL)]
    made += [ex.var(f"v{k}", dtype) for k, dtype in enumerate(dt.ALL)] + [ex.index("i"), ex.var("v0", dt.f32), load("x9", dt.i8)]
    for _ in range(size):
        dtype = rng.choice(dt.ALL)
        made.append(ex.const_bits(rng.getrandbits(dtype.bits), dtype) if dtype.is_float else ex.const(rng.getrandbits(dtype.bits), dtype))
        op = rng.choice([*sorted(ex.UNARY | ex.BINARY), "fma", "select", "mostly", "convert", "bitcast", "scale"])
        count = {"fma": 3, "select": 3, "mostly": 3, "scale": 2}.get(op, 2 if op in ex.BINARY else 1)
        made.append(ex.make(op, dt.bool_ if op in ex.COMPARES else dtype, tuple(rng.choice(made) for _ in range(count))))
    return made


@pytest.mark.parametrize("seed", range(60))
def test_random_expressions_come_back(seed):
    rng = random.Random(seed)
    made = random_expression(rng, 30)
    roots = rng.sample(made, 6)
    assert_comes_back(roots, [rng.choice([None, root.dtype, dt.f32]) for root in roots])


@pytest.mark.parametrize("dtype,bits", [
    (dt.f32, 0x7FC00001), (dt.f32, 0xFFC00000), (dt.f32, 0x7F800001), (dt.f32, 0x80000000), (dt.f32, 1), (dt.f32, 0x3DCCCCCD), (dt.f32, 0xFF800000),
    (dt.f64, 0x7FF8000000000001), (dt.f64, 0x3FB999999999999A), (dt.f64, 1), (dt.f16, 0x7E01), (dt.f16, 1), (dt.bf16, 0xFFC1), (dt.bf16, 0x8001)])
@pytest.mark.parametrize("plain", [True, False])
def test_constants_keep_every_bit(dtype, bits, plain):
    assert_comes_back([ex.const_bits(bits, dtype)], [dtype if plain else None])


def test_a_combine_comes_back():
    types = (dt.f32, dt.i64)
    a, b = ex.var("a.0", dt.f32), ex.var("b.0", dt.f32)
    greater = ex.binary("gt", a, b)
    values = (ex.select(greater, a, b), ex.select(greater, ex.var("a.1", dt.i64), ex.var("b.1", dt.i64)))
    printer = ExprPrinter({})
    printer.combine(values, types, "  ")
    assert printer.lines == ["    %0 = gt %a.0, %b.0 : bool", "    %1 = select %0, %a.0, %b.0 : f32", "    %2 = select %0, %a.1, %b.1 : i64",
                             "    yield %1, %2", "  }"]
    assert ExprReader(Reader("{\n" + "\n".join(printer.lines))).combine(types) == values
    assert combine_scope(types) == {"a.0": dt.f32, "b.0": dt.f32, "a.1": dt.i64, "b.1": dt.i64}


# --------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("name", ["nan", "inf", "inf.x", "nan.0", "true", "false", "3x", "a b", "", "a-b", "é", "x\n", ".x"])
def test_names_that_could_be_read_otherwise_are_not_written(name):
    for leaf in (ex.index(name), ex.var(name, dt.f32), load("x", dt.f32, Affine(0, {name: 1}))):
        with pytest.raises(ValueError, match="not a name"):
            written([leaf], [None])


@pytest.mark.parametrize("name", ["info", "nano", "nan_1", "infx", "inf2", "true.x", "_", "i0", "over", "f32", "e5", "x.", "A.b_3"])
def test_other_names_come_back(name):
    assert checked_name(name) == name
    assert_comes_back([ex.index(name), ex.var(name, dt.f32), load("x", dt.f32, Affine(1, {name: -1}))], [None] * 3,
                      buffers={"x": dt.f32}, scope={name: dt.f32})


def test_buffers_stand_behind_a_mark_so_more_names_do():
    assert format_access("0", Affine()) == "%0[0]" and checked_buffer("nan") == "nan" and checked_title("dot-add#3") == "dot-add#3"
    assert_comes_back([load("0", dt.f32), load("inf", dt.f32)], [None] * 2, buffers={"0": dt.f32, "inf": dt.f32})
    for bad in ("", "a b", "x-y", "é"):
        with pytest.raises(ValueError, match="buffer"):
            written([load(bad, dt.f32)], [None])
    for bad in ("", "3k", "k#x", "k#1#2", "a b", "k#"):
        with pytest.raises(ValueError, match="kernel"):
            checked_title(bad)


def test_operands_of_ops_are_no_leaves_of_kernels():
    with pytest.raises(ValueError, match="cannot hold"):
        written([ex.arg(0, dt.f32)], [dt.f32])


@pytest.mark.parametrize("text,message", [
    ("%1 = neg %v8 : f32 %1", "column 1: expected instruction %0, found %1"), ("%0 = neg %v8 : f31 %0", "column 16: unknown dtype"),
    ("%0 = convert 1.0 : f32 %0", "column 14: nothing here gives the literal a dtype"), ("%nothing", "column 1: variable %nothing is not declared"),
    ("%0 = neg %v8[2*i + ] : f32 %0", "column 20: expected a name"), ("%0 = neg %y[0] : f32 %0", "column 10: buffer %y is not declared"),
    ("%0 = add 300, %v1 : i8 %0", "column 10: 300 does not fit i8"), ("%0 = neg : f32 %0", "column 10: expected a value"),
    ("%v8, %v8", "column 4: expected the end"), ("1<f99>", "column 3: unknown dtype"),
    ("%00 = neg %v8 : f32 %0", "column 1: expected instruction %0, found %00")])
def test_bad_text_is_refused_where_it_is_bad(text, message):
    with pytest.raises(ParseError, match="line 1") as caught:
        read(text, [dt.f32])
    assert message in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_text_with_a_token_missing_parses_or_is_refused(seed):
    made = random_expression(random.Random(seed), 12)
    places = [root.dtype for root in made[-4:]]
    text = written(made[-4:], places)
    tokens = Reader(text).tokens
    for (_, token, start) in tokens[:-1]:
        try:
            read(text[:start] + text[start + len(token):], places)
        except ParseError as error:
            assert "line" in str(error) and "column" in str(error)
