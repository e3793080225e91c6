"""`mostly`: the bits of a select, whichever lanes need the third operand, and no instruction of it in the way of the others."""

import numpy as np
import pytest
from machine import run, runnable_targets, same_bits

from mlc.codegen.module import emit_module
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.loop.text import parse_kernel
from mlc.loop.verify import verify

SIZE = 192


def kernel(body, width, dtype="f32"):
    kind = "for" if width == 1 else f"vector({width})"
    lines = "\n".join(f"      {line}" for line in body.splitlines())
    parsed = parse_kernel(f"""loops @k(%x: {dtype}[{SIZE}] in, %y: {dtype}[{SIZE}] out, %z: {dtype}[{SIZE}] out) {{
  for i in 1 {{
    {kind} j in {SIZE} {{
{lines}
    }}
  }}
}}
""")
    verify(parsed)
    return parsed


PLAIN = """%0 = lt %x[j], 100.0 : bool
%1 = mul %x[j], 3.0 : {0}
%2 = sqrt %x[j] : {0}
%3 = add %2, 1.0 : {0}
%4 = mostly %0, %1, %3 : {0}
%y[j] = %4
%0 = sqrt %x[j] : {0}
%z[j] = %0"""  # what the rare way computes is asked for again behind it


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.f16, dt.bf16], ids=str)
@pytest.mark.parametrize("width", (1, 4, 16, 32, 64))
def test_lanes_choose_one_by_one(width, dtype, target):
    for rare in ([], [0], [17, 18, 63, 191], range(0, SIZE, 3), range(SIZE)):
        x = np.arange(1, SIZE + 1) % 97 + 0.5
        x[list(rare)] += 200
        x = x.astype(dtype.numpy)
        found = run([kernel(PLAIN.format(dtype), width, dtype)], [{"x": x}], target)[0]
        y = np.where(x < 100, x * dtype.numpy.type(3), np.sqrt(x) + dtype.numpy.type(1)).astype(dtype.numpy)
        assert same_bits(found["y"], y).all() and same_bits(found["z"], np.sqrt(x)).all()


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("width", (1, 16, 32))
def test_a_rare_way_has_a_rare_way_of_its_own(width, target):
    body = """%0 = lt %x[j], 100.0 : bool
%1 = lt %x[j], 200.0 : bool
%2 = mul %x[j], 3.0 : f32
%3 = sqrt %x[j] : f32
%4 = mostly %1, %2, %3 : f32
%5 = mostly %0, %x[j], %4 : f32
%y[j] = %5
%z[j] = 0.0"""
    x = (np.arange(SIZE) * 1.75).astype(np.float32)
    inner = np.where(x < 200, x * np.float32(3), np.sqrt(x))
    found = run([kernel(body, width)], [{"x": x}], target)[0]
    assert same_bits(found["y"], np.where(x < 100, x, inner)).all()


def test_the_rare_way_is_jumped_over():
    text = emit_module([(kernel(PLAIN.format("f32"), 16), [(0, 0), (1, 0), (2, 0)])], get_target("golden-v3")).text
    usual, rare = text.split("label %other", 1)
    assert "sqrt" not in usual.split("define", 1)[1] and "br i1" in usual and "sqrt" in rare


def test_what_an_inner_loop_does_not_change_is_a_select():
    body = """%0 = lt %x[0], 100.0 : bool
%1 = sqrt %x[1] : f32
%2 = mostly %0, %x[0], %1 : f32
%y[j] = %2
%z[j] = %x[j]"""
    x = np.full(SIZE, 4, np.float32)
    for first, wanted in ((5, 5), (500, 2)):
        x[0] = first
        assert (run([kernel(body, 16)], [{"x": x}], "native")[0]["y"] == wanted).all()
    x = ex.arg(0, dt.f32)
    value = ex.mostly(x < 1.0, x + 2.0, ex.sqrt(x))
    assert [e.op for e in ex.topological([value], rare=False) if e.args] == ["lt", "add", "mostly"]
