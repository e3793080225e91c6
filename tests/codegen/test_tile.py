"""The register tile: odd sizes, every kind of dtype, all operand layouts, epilogues, and what the machine code looks like."""

import re

import numpy as np
import pytest
from machine import runnable_targets
from test_kernels import buffers, check

from mlc.codegen.module import emit_module
from mlc.codegen.target import assembly, get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine, variable
from mlc.loop.ir import Decl, For, LoopKernel, Store, Tile, load
from mlc.loop.text import parse_kernel
from mlc.loop.verify import verify

R, C, K, I, J = (variable(v) for v in "rckij")
TARGETS = runnable_targets()


def matmul(m, n, depth, width, dtype=dt.f32, stored=None, a=None, body=None, extra=()):
    """One tile over all of o[m, n] = a[m, depth] @ b[depth, n]; `stored` is the dtype of a and b in memory."""
    stored = stored or dtype
    a = a or R * depth + K
    body = body or (Store("o", R * n + C, ex.var("acc", dtype)),)
    operand = lambda name, index: ex.convert(load(name, stored, index), dtype)
    tile = Tile("acc", dtype, "r", m, "c", n, "k", depth, width, operand("a", a), operand("b", K * n + C), body)
    specs = (("a", stored, m * depth, "in"), ("b", stored, depth * n, "in"), *extra, ("o", dtype, m * n, "out"))
    return LoopKernel(f"matmul_{m}_{n}_{depth}_{width}", buffers(*specs), (tile,))


@pytest.mark.parametrize("target", TARGETS)
def test_odd_sizes(target):
    shapes = [(m, n, k, w) for m, n, k, w in ((1, 1, 1, 16), (1, 48, 2, 16), (3, 17, 3, 16), (8, 48, 5, 16), (5, 33, 4, 16), (2, 7, 6, 8),
                                              (7, 47, 17, 16), (4, 16, 9, 16), (1, 100, 8, 64), (8, 3, 300, 4), (6, 15, 1, 8), (2, 93, 5, 48))]
    for (m, n, k, _), (given, out) in zip(shapes, check([matmul(*shape) for shape in shapes], target)):
        product = given["a"].reshape(m, k).astype(np.float64) @ given["b"].reshape(k, n)
        assert np.allclose(out["o"].reshape(m, n), product, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [dt.f64, dt.i32, dt.i8, dt.u64, dt.f16, dt.bf16], ids=str)
def test_every_kind_of_dtype_accumulates_in_itself(dtype, target):
    check([matmul(5, n, k, 16, dtype) for n, k in ((16, 4), (21, 7), (3, 1))], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stored", [dt.f16, dt.bf16, dt.i8], ids=str)
def test_narrow_operands_accumulate_wide(stored, target):
    check([matmul(4, 37, 9, 16, dt.i32 if stored is dt.i8 else dt.f32, stored)], target)


@pytest.mark.parametrize("target", TARGETS)
def test_transposed_and_broadcast_left_operands(target):
    kernels = [matmul(4, 20, 6, 16, a=K * 4 + R), matmul(4, 20, 6, 16, a=R), matmul(4, 20, 6, 16, a=K), matmul(4, 20, 6, 16, a=Affine(5))]
    check(kernels, target)


@pytest.mark.parametrize("target", TARGETS)
def test_epilogue_reads_row_and_column_vectors_and_the_output(target):
    total = ex.var("acc", dt.f32) + load("row", dt.f32, R) * load("column", dt.f32, C)
    for n in (21, 17, 1, 32):  # last column vectors of several lanes, of one, and none
        body = (Decl("t", dt.f32, 16, total), Store("o", R * n + C, ex.maximum(ex.var("t", dt.f32), 0.0) + load("o", dt.f32, R * n + C)))
        check([matmul(5, n, 8, 16, body=body, extra=(("row", dt.f32, 5, "in"), ("column", dt.f32, n, "in")))], target)


def blocked(m, n, depth):
    """Panels of 48 columns outside, tiles of 8 rows inside, with both remainders."""
    def tile(i, rows, j, columns):
        return Tile("acc", dt.f32, "r", rows, "c", columns, "k", depth, 16, load("a", dt.f32, (i + R) * depth + K),
                    load("b", dt.f32, K * n + j + C), (Store("o", (i + R) * n + j + C, ex.var("acc", dt.f32)),))

    def panel(j, columns):
        return (For("i", m // 8, (tile(I * 8, 8, j, columns),)), tile(Affine(m // 8 * 8), m % 8, j, columns))[:1 if m % 8 == 0 else 2]

    body = [For("j", n // 48, panel(J * 48, 48)), *(panel(Affine(n // 48 * 48), n % 48) if n % 48 else ())]
    specs = (("a", dt.f32, m * depth, "in"), ("b", dt.f32, depth * n, "in"), ("o", dt.f32, m * n, "out"))
    return LoopKernel(f"blocked_{m}_{n}_{depth}", buffers(*specs), tuple(body))


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_inside_loops(target):
    shapes = [(19, 101, 11), (8, 96, 4), (24, 48, 7)]
    for (m, n, k), (given, out) in zip(shapes, check([blocked(*shape) for shape in shapes], target)):
        product = given["a"].reshape(m, k).astype(np.float64) @ given["b"].reshape(k, n)
        assert np.allclose(out["o"].reshape(m, n), product, rtol=1e-4, atol=1e-4)


def test_accumulators_stay_in_registers():
    """An 8 x 48 tile is 24 registers of AVX-512; the loop must hold nothing but its loads and 24 fmas."""
    native = get_target("native")
    if not (native.avx512 and native.is_x86):
        return
    text = assembly(emit_module([(blocked(64, 96, 64), [(0, 0), (1, 0), (2, 0)])], native).text, native)
    blocks = re.split(r"\n\.?\w+:", text)
    inner = max(blocks, key=lambda block: block.count("vfmadd"))
    assert inner.count("vfmadd") >= 24
    assert not re.search(r"\((%rsp|%rbp)\).*mm|mm.*\((%rsp|%rbp)\)", inner)


BESIDE = """
loops @beside(%a: f32[48] in, %b: f32[96] in, %o: f32[96] out, %p: f32[80] scratch) {
  for k in 4 { vector(8) c in 6 { %p[6*k + c] = %b[24*k + c] } }
  for s in 2 {
    for i in 2 {
      for mt in 2 {
        tile %acc: f32 r:2 c:6 k:4 vector(4) { %acc += %a[8*mt + 4*r + k] * %p[40*i + 6*k + c] } beside q in 2 {
          %0 = lt i, 1 : bool
          if %0 {
            vector(4) d in 6 { ask %b[48*mt + 24*q + 12*s + d + 54] }
            vector(8) e in 6 { %p[40*i + 12*mt + 6*q + e + 40] = %b[48*mt + 24*q + 12*s + 6*i + e + 6] }
          } else {
            %0 = lt s, 1 : bool
            if %0 { vector(8) f in 6 { %p[12*mt + 6*q + f] = %b[48*mt + 24*q + 12*s + f + 12] } } else { }
          }
        } then { %o[48*mt + 24*r + 12*s + 6*i + c] = %acc }
      }
    }
  }
}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_panel_is_copied_beside_the_tile_of_the_one_before(target):
    ((given, out),) = check([verify(parse_kernel(BESIDE))], target)
    product = given["a"][:16].reshape(4, 4).astype(np.float64) @ given["b"].reshape(4, 24)
    assert np.allclose(out["o"].reshape(4, 24), product, rtol=1e-4, atol=1e-4)


def test_what_one_way_of_a_choice_loads_is_not_loaded_outside_of_it():
    """It may be out of bounds there."""
    kernel = parse_kernel("""loops @choice(%x: f32[4] in, %o: f32[8] out) {
      for i in 8 { %0 = lt i, 4 : bool if %0 { %o[i] = %x[i] } else { %o[i] = 0.0 } } }""")
    text = emit_module([(verify(kernel), [(0, 0), (1, 0)])], get_target("golden-v3")).text
    before, inside = re.search(r"^(.*\n)then\d+:\n(.*?)\nelse", text, re.DOTALL).groups()
    assert "load float" in inside and "load float" not in before
