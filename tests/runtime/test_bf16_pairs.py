"""When contractions of bf16 are done in pairs: where the CPU has the instruction, it is fast or asked for, and rounds as it should."""

from dataclasses import replace

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.kernel.ir import Dot, Put
from mlc.runtime import pairs

NATIVE = get_target("native")
A, B = (ex.convert(ex.make("load", dt.bf16, (), (name, Affine(0, steps))), dt.f32) for name, steps in (
    ("a", (("m", 128), ("k", 1))), ("b", (("k", 64), ("n", 1)))))
HALVES = Dot("t", dt.f32, ("m", 64), ("n", 64), ("k", 128), A, B, (Put("o", Affine(0, (("m", 64), ("n", 1))), ex.var("t", dt.f32)),))


@pytest.mark.parametrize("cpu, option, used", [("znver5", "auto", True), ("sapphirerapids", "auto", False), ("sapphirerapids", "on", True),
                                               ("znver5", "off", False)])
def test_fast_cpus_use_them_and_others_on_request(cpu, option, used, monkeypatch):
    monkeypatch.setattr(pairs, "two_fmas", lambda: True)
    target = replace(NATIVE, cpu=cpu, requires=tuple({*NATIVE.requires, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512bf16"}))
    with mlc.options(bf16_pairs=option):
        assert pairs.use_pairs(target) is used
    monkeypatch.setattr(pairs, "two_fmas", lambda: False)
    with mlc.options(bf16_pairs=option):
        assert not pairs.use_pairs(target)


@pytest.mark.parametrize("name", ["generic", "golden-v3"])
def test_targets_without_the_instruction_never_ask(name, monkeypatch):
    monkeypatch.setattr(pairs, "two_fmas", lambda: pytest.fail("asked"))
    with mlc.options(bf16_pairs="on"):
        assert not pairs.use_pairs(get_target(name))


@pytest.mark.parametrize("options, numbers", [({}, {dt.i8, dt.u8, dt.bf16}), ({"matrix": "off"}, set()), ({"bf16_pairs": "on"}, {dt.i8, dt.u8}),
                                              ({"bf16_pairs": "off"}, {dt.i8, dt.u8})])
def test_matrix_registers_multiply_bytes_and_bf16_unless_an_option_says_otherwise(options, numbers, monkeypatch):
    monkeypatch.setattr(pairs, "two_sums", lambda: True)
    with_them = replace(NATIVE, requires=(*(f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")), "amx-tile", "amx-int8", "amx-bf16"))
    with mlc.options(**options):
        assert pairs.matrix_numbers(with_them, [HALVES]) == numbers
    monkeypatch.setattr(pairs, "two_sums", lambda: False)
    with mlc.options(**options):
        assert pairs.matrix_numbers(with_them, [HALVES]) == numbers - {dt.bf16}
        assert not pairs.matrix_numbers(get_target("golden-v3"), [HALVES]) and not pairs.matrix_numbers(replace(with_them, requires=()), [HALVES])


@pytest.mark.skipif(not NATIVE.matrix_parts, reason="this CPU has no such registers")
def test_programs_without_such_a_product_do_not_try_them(monkeypatch):
    """Trying them loads LLVM, which programs of library functions do without."""
    monkeypatch.setattr(pairs, "two_sums", lambda: pytest.fail("asked"))
    for specs in (("bf16[8,8]", "bf16[8,8]"), ("f32[64,64]", "f32[64,64]"), ("i8[64,256]", "i8[256,64]")):
        with mlc.options(cache=False):
            mlc.jit(lambda a, b: a @ b).lower(*map(mlc.spec, specs)).compile()


@pytest.mark.skipif("bf16" not in NATIVE.matrix_parts, reason="this CPU has no such registers")
def test_another_order_of_sums_in_a_block_is_noticed(monkeypatch):
    build, real = pairs.two_sums.__wrapped__, pairs.apply
    assert build() == pairs.two_sums()
    monkeypatch.setattr(pairs, "apply", lambda op, dtype, args: real(op, dtype, args) + (np.float32(0.0625) if op == "add" else 0))
    assert not build()


@pytest.mark.skipif(not NATIVE.bf16_dot, reason="this CPU has no such instruction")
def test_another_order_of_sums_is_noticed(monkeypatch):
    build, real = pairs.two_fmas.__wrapped__, pairs.apply
    assert build() == pairs.two_fmas()

    def swapped(op, dtype, args):
        x, y, total = args
        return real("add", dtype, [total, np.float32(x * y)]) if np.isscalar(total) else real(op, dtype, [y, x, total + np.float32(0.0625)])
    monkeypatch.setattr(pairs, "apply", swapped)
    assert not build()
