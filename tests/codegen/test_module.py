"""The emitted text itself: what is hoisted, shared, promised to LLVM, and called."""

import re

import numpy as np
import pytest
from machine import run, runnable_targets
from test_kernels import buffers, fill

from mlc.codegen.module import STACK_SCRATCH_LIMIT, emit_module, placed_buffers, stack_scratch
from mlc.codegen.target import compile_object, get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine, variable
from mlc.core.options import options
from mlc.loop.ir import Buffer, Decl, For, LoopKernel, Store, load

I, J = variable("i"), variable("j")
GOLDEN = get_target("golden-v3")


def text_of(kernel, target=GOLDEN):
    return emit_module([(kernel, [(i, 0) for i in range(len(placed_buffers(kernel)))])], target).text


def loop_bodies(text):
    """The instructions between each loop's label and the branch back to it, inner loops without outer ones."""
    return [match[2] for match in re.finditer(r"\n(loop\d+):\n((?:(?!\nloop)[\s\S])*?)br i1 [^\n]*label %\1", text)]


def rows(value, kind="serial", width=1):
    specs = (("x", dt.f32, 8 * 32, "in"), ("v", dt.f32, 8, "in"), ("o", dt.f32, 8 * 32, "out"))
    return LoopKernel("rows", buffers(*specs), (For("j", 8, (For("i", 32, (Store("o", J * 32 + I, value),), kind, width),)),))


def test_what_does_not_change_in_a_loop_is_computed_in_front_of_it():
    scale = ex.sqrt(load("v", dt.f32, J)) / 3.0
    inner = loop_bodies(text_of(rows(load("x", dt.f32, J * 32 + I) * scale, "vector", 8)))[-1]
    assert inner.count(" load ") == 1 and "sqrt" not in inner and "fdiv" not in inner
    # The splat is hoisted, too; what is left of addresses is one step each.
    assert "shufflevector" not in inner and inner.count("getelementptr") == 2 and " mul " not in inner


def test_equal_values_are_computed_once():
    x = load("x", dt.f32, J * 32 + I)
    text = text_of(rows(ex.sqrt(x + 1.0) * ex.sqrt(x + 1.0)))
    assert text.count("call float @llvm.sqrt") == 1 and text.count("load float") == 1


@pytest.mark.parametrize("place, width, wanted", [(I, 16, 64), (I + 1, 16, 4), (I + 4, 16, 16), (I * 1 + J * 24, 8, 32), (I + J * 33, 8, 4)])
def test_stores_claim_the_alignment_that_the_index_proves(place, width, wanted):
    kernel = LoopKernel("k", buffers(("o", dt.f32, 500, "out")),
                        (For("j", 3, (For("i", 32, (Store("o", place, ex.const(1, dt.f32)),), "vector", width),)),))
    assert set(re.findall(r"store .* align (\d+)", text_of(kernel))) == {str(wanted)}


def test_arrays_of_users_are_only_aligned_to_their_elements():
    text = text_of(rows(load("x", dt.f32, J * 32 + I), "vector", 8))
    assert set(re.findall(r"load <8 x float>.* align (\d+)", text)) == {"4"}


def test_a_kernel_that_is_called_twice_is_emitted_once():
    kernel = rows(load("x", dt.f32, J * 32 + I))
    module = emit_module([(kernel, [(0, 0), (1, 0), (2, 0)]), (kernel, [(2, 0), (1, 0), (2, 1024)])], GOLDEN)
    assert module.text.count("define ") == 1
    (function,) = module.functions
    assert [(step.function, step.extent, step.places) for step in module.steps] == [
        (function.name, 0, ((0, 0), (1, 0), (2, 0))), (function.name, 0, ((2, 0), (1, 0), (2, 1024)))]
    assert "; k0(0, 1, 2)\n; k0(2, 1, 2+1024)\n" in module.text


def test_text_is_the_same_every_time_and_promises_no_fast_math():
    kernel = rows(ex.maximum(load("x", dt.f32, J * 32 + I) * load("v", dt.f32, J) + 1.0, 0.0), "vector", 16)
    for name in ("golden-v3", "generic"):
        text = text_of(kernel, get_target(name))
        assert text == text_of(kernel, get_target(name))
        assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|inttoptr)\b", text)


def test_small_scratch_is_on_the_stack_and_large_scratch_is_placed():
    def kernel(size):
        specs = (("x", dt.f32, 8, "in"), ("o", dt.f32, 8, "out"), ("s", dt.f32, size, "scratch"))
        body = Store("s", Affine(), load("x", dt.f32, Affine())), Store("o", Affine(), load("s", dt.f32, Affine()))
        return LoopKernel("k", buffers(*specs), body)
    small, large = kernel(STACK_SCRATCH_LIMIT // 4), kernel(STACK_SCRATCH_LIMIT // 4 + 1)
    assert stack_scratch(small) and not stack_scratch(large)
    assert [b.name for b in placed_buffers(small)] == ["x", "o"] and [b.name for b in placed_buffers(large)] == ["x", "o", "s"]
    assert "alloca" in text_of(small) and "alloca" not in text_of(large)


def test_outermost_parallel_loops_are_functions_over_a_range():
    body = For("i", 6, (Store("o", I, load("x", dt.f32, I) * 2.0),), "parallel")
    given = Buffer("x", dt.f32, 6, "in"), Buffer("o", dt.f32, 6, "out")
    text = text_of(LoopKernel("k", given, (body, For("i", 6, (Store("o", I, load("o", dt.f32, I) + 1.0),), "parallel"))))
    assert re.findall(r"define .*", text) == [f"define void @k{i}(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) nounwind {{" for i in (0, 1)]
    assert "; k0(0, 1) x 6\n; k1(0, 1) x 6\n" in text


def test_a_parallel_loop_beside_variables_is_launched_by_its_kernel():
    body = For("i", 6, (Store("o", I, load("x", dt.f32, I) * ex.var("s", dt.f32)),), "parallel")
    scale = Decl("s", dt.f32, 1, load("x", dt.f32, Affine()) + 1.0)
    text = text_of(LoopKernel("k", (Buffer("x", dt.f32, 6, "in"), Buffer("o", dt.f32, 6, "out")), (scale, body)))
    assert "define internal void @k0.parallel0(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch)" in text
    assert "call void @mlc_parallel(ptr @k0.parallel0, ptr %inner, i64 6, i64 1)" in text and "; k0(0, 1)\n" in text


def test_a_kernel_that_is_one_parallel_loop_is_one_function():
    body = For("i", 6, (Store("o", I, load("x", dt.f32, I) * 2.0),), "parallel")
    given = Buffer("x", dt.f32, 6, "in"), Buffer("o", dt.f32, 6, "out")
    assert re.findall(r"define .*?@([\w.]+)", text_of(LoopKernel("k", given, (body,)))) == ["k0"]
    (step,) = emit_module([(LoopKernel("k", given, (body,)), [(0, 0), (1, 0)])], GOLDEN).steps
    assert (step.extent, step.scratch) == (6, 1)  # a short loop
    with options(fork_us=0):
        assert [s.scratch for s in emit_module([(LoopKernel("k", given, (body,)), [(0, 0), (1, 0)])], GOLDEN).steps] == [0]
    long = For("i", 6, (For("j", 1 << 16, (Store("o", I, load("x", dt.f32, I) * 2.0),)),), "parallel")
    assert [s.scratch for s in emit_module([(LoopKernel("k", given, (long,)), [(0, 0), (1, 0)])], GOLDEN).steps] == [0]
    serial = For("j", 6, (Store("o", J, load("x", dt.f32, J) + 2.0),), "serial")
    assert re.findall(r"define .*?@([\w.]+)", text_of(LoopKernel("k", given, (body, serial)))) == ["k0", "k1"]


@pytest.mark.parametrize("target", runnable_targets())
def test_kernels_run_in_the_order_of_the_calls(target):
    double = LoopKernel("double", buffers(("x", dt.f32, 20, "in"), ("o", dt.f32, 20, "out")),
                        (For("i", 20, (Store("o", I, load("x", dt.f32, I) * 2.0),), "vector", 16),))
    increment = LoopKernel("increment", double.buffers, (For("i", 20, (Store("o", I, load("x", dt.f32, I) + 1.0),), "vector", 16),))
    x = fill(dt.f32, 20)
    first, second = run([double, increment], [{"x": x}, {"x": x}], target)
    assert (first["o"] == x * 2).all() and (second["o"] == x + np.float32(1)).all()


def test_an_empty_program_is_a_module():
    assert emit_module([], GOLDEN).steps == () and compile_object(emit_module([], GOLDEN).text, GOLDEN)


def test_golden_code_is_tested_wherever_it_can_run():
    native = get_target("native")
    if native.is_x86 and native.avx2 and native.fma and native.f16c and native.has("bmi2"):
        assert "golden-v3" in runnable_targets()


@pytest.mark.parametrize("dtype, fences", [(dt.f32, 16), (dt.i32, 16), (dt.i8, 0)])
def test_the_halves_of_a_large_transposition_are_fenced_off(dtype, fences):
    """Without it instruction selection takes twice as long, looking for shuffles that do both at once."""
    body = For("i", 16, (For("j", 16, (Store("o", I * 16 + J, load("x", dtype, J * 16 + I)),), "vector", 16),), "unroll")
    kernel = LoopKernel("k", (Buffer("x", dtype, 256, "in"), Buffer("o", dtype, 256, "out")), (body,))
    text = text_of(kernel)
    assert len(re.findall(r"call <16 x float> @llvm\.arithmetic\.fence", text)) == fences and "shufflevector" in text
