"""Which contractions of narrow integers are done in words of several steps, with what parts; schedules that don't fit are refused."""

from dataclasses import replace

import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dims import TensorType
from mlc.core.errors import VerifyError
from mlc.kernel.ir import Dot, Kernel, Param, Put
from mlc.kernel.schedule import Schedule, parse_schedule
from mlc.kernel.tiling import panel_width, paths, tile_schedule
from mlc.kernel.verify import verify_kernel
from mlc.kernel.words import INTEGERS, is_moved, matrix_parts, reads_words, word_parts


def dot(left, right, dtype=dt.i32, m=16, n=32, k=64, flip=False):
    a = ex.convert(ex.make("load", left, (), ("a", Affine(0, (("k", m), ("m", 1)) if flip else (("m", k), ("k", 1))))), dtype)
    b = ex.convert(ex.make("load", right, (), ("b", Affine(0, (("k", n), ("n", 1))))), dtype)
    return Dot("t", dtype, ("m", m), ("n", n), ("k", k), a, b, (Put("o", Affine(0, (("m", n), ("n", 1))), ex.var("t", dtype)),))


def kernel_of(stage, left, right):
    m, n, k = (extent for _, extent in stage.axes)
    sizes = (("a", left, m * k, "in"), ("b", right, k * n, "in"), ("o", stage.dtype, m * n, "out"))
    return Kernel("k", tuple(Param(name, TensorType((size,), dtype), role) for name, dtype, size, role in sizes), (), (stage,))


@pytest.mark.parametrize("left, right, parts, moved", [
    (dt.i8, dt.i8, (dt.u8, dt.i8), True), (dt.u8, dt.u8, (dt.i8, dt.u8), True), (dt.u8, dt.i8, (dt.u8, dt.i8), False),
    (dt.i8, dt.u8, (dt.i8, dt.u8), False), (dt.i16, dt.u8, (dt.i16, dt.i16), False), (dt.i16, dt.i16, (dt.i16, dt.i16), False)])
def test_parts_hold_both_sides(left, right, parts, moved):
    stage = dot(left, right)
    assert (word_parts(stage, INTEGERS), is_moved(stage, parts)) == (parts, moved)


@pytest.mark.parametrize("left, right, dtype", [(dt.i32, dt.i32, dt.i32), (dt.u16, dt.i8, dt.i32), (dt.i8, dt.i8, dt.i64), (dt.i8, dt.i8, dt.f32),
                                               (dt.i16, dt.i16, dt.i16)])
def test_other_operands_and_sums_have_no_words(left, right, dtype):
    assert word_parts(dot(left, right, dtype), INTEGERS) is None


@pytest.mark.parametrize("dtype", [dt.i8, dt.u8])
def test_sums_of_bytes_are_done_in_words_too(dtype):
    assert word_parts(dot(dtype, dtype, dtype), INTEGERS) is not None


@pytest.mark.parametrize("options, reads", [({}, True), ({"k": 66}, False), ({"flip": True}, False)])
def test_the_left_side_is_copied_where_its_words_do_not_lie_in_memory(options, reads):
    stage = dot(dt.i8, dt.i8, **options)
    assert reads_words(stage, word_parts(stage, INTEGERS)) is reads
    assert ("a" in tile_schedule(stage, 64, 32, INTEGERS).pack) is not reads


def test_words_are_chosen_only_where_the_target_multiplies_them():
    assert tile_schedule(dot(dt.i8, dt.i8), 64, 32, INTEGERS).parts and not tile_schedule(dot(dt.i8, dt.i8), 64, 32).parts


@pytest.mark.parametrize("left, right", [(dt.i8, dt.i8), (dt.u8, dt.i8), (dt.i16, dt.u8), (dt.i16, dt.i16)])
def test_bytes_are_pairs_of_i16_where_only_those_are_multiplied_at_once(left, right):
    stage = dot(left, right)
    plan = tile_schedule(stage, 32, 16, {dt.i16})
    assert plan.parts == (dt.i16, dt.i16) and not is_moved(stage, plan.parts) and plan.pack == "b"
    verify_kernel(kernel_of(stage, left, right), Schedule((plan,)))


@pytest.mark.parametrize("sizes", [{"m": 4}, {"n": 8}, {"k": 8}])
def test_small_products_are_not_copied_into_words(sizes):
    assert not tile_schedule(dot(dt.i8, dt.i8, **sizes), 64, 32, INTEGERS).parts


NUMBERS = frozenset({dt.i8, dt.u8, dt.bf16})


@pytest.mark.parametrize("left, right, dtype", [(dt.i8, dt.i8, dt.i32), (dt.u8, dt.i8, dt.i32), (dt.u8, dt.u8, dt.u8), (dt.bf16, dt.bf16, dt.f32)])
def test_matrix_registers_hold_both_sides_as_they_are(left, right, dtype):
    stage = dot(left, right, dtype, m=40, k=128)
    plan = tile_schedule(stage, 64, 32, INTEGERS, NUMBERS)
    assert (plan.parts, plan.block, plan.m, plan.n) == ((left, right), 16, 32, 32) and not is_moved(stage, plan.parts)
    assert plan.staged is (dtype is dt.u8), "registers store 32 bits"
    verify_kernel(kernel_of(stage, left, right), Schedule((plan,)))
    assert parse_schedule(Schedule((plan,)).text()) == Schedule((plan,))
    assert not tile_schedule(stage, 64, 32, INTEGERS, NUMBERS - {left}).block


@pytest.mark.parametrize("sizes", [{"m": 4}, {"n": 8}, {"k": 60}])
def test_small_products_do_without_matrix_registers(sizes):
    assert not tile_schedule(dot(dt.i8, dt.i8, **{"m": 40, "k": 128, **sizes}), 64, 32, INTEGERS, NUMBERS).block


def test_deep_sums_of_bf16_err_less_in_chunks():
    wide = dict(left=dt.bf16, right=dt.bf16, dtype=dt.f32, m=32)
    assert matrix_parts(dot(**wide, k=1 << 15), NUMBERS) and not matrix_parts(dot(**wide, k=(1 << 15) + 2), NUMBERS)


def test_weights_in_other_panels_are_read_by_vectors():
    stage = dot(dt.i8, dt.i8, m=40, n=96, k=128)
    assert panel_width(stage, 64, 32, NUMBERS) == 32 != panel_width(stage, 64, 32)
    assert tile_schedule(replace(stage, panels=32), 64, 32, INTEGERS, NUMBERS).block
    assert not tile_schedule(replace(stage, panels=48), 64, 32, INTEGERS, NUMBERS).block


@pytest.mark.parametrize("wrong", [{"block": -16}, {"parts": ()}, {"parts": (dt.i16, dt.i16)}, {"parts": (dt.u8, dt.i8)}])
def test_blocks_of_other_words_are_refused(wrong):
    stage = dot(dt.i8, dt.i8, m=40, k=128)
    plan = tile_schedule(stage, 64, 32, INTEGERS, NUMBERS)
    with pytest.raises(VerifyError, match=r"block|parts"):
        verify_kernel(kernel_of(stage, dt.i8, dt.i8), Schedule((replace(plan, **wrong),)))


def test_the_text_of_a_schedule_names_the_parts():
    plan = tile_schedule(dot(dt.i8, dt.i8), 64, 32, INTEGERS)
    assert plan.text().endswith("pack b parts u8 i8") and parse_schedule(Schedule((plan,)).text()).stages == (plan,)


def test_words_are_a_way_of_contracting():
    stage = dot(dt.i8, dt.i8)
    assert "words" in paths([(kernel_of(stage, dt.i8, dt.i8), Schedule((tile_schedule(stage, 64, 32, INTEGERS),)))])


@pytest.mark.parametrize("parts", [(dt.i8, dt.u8), (dt.i8, dt.i8), (dt.u8, dt.u8)])
def test_parts_that_do_not_hold_the_operands_are_refused(parts):
    stage = dot(dt.i8, dt.i8)
    plan, kernel = tile_schedule(stage, 64, 32, INTEGERS), kernel_of(stage, dt.i8, dt.i8)
    verify_kernel(kernel, Schedule((plan,)))
    with pytest.raises(VerifyError, match="parts"):
        verify_kernel(kernel, Schedule((replace(plan, parts=parts),)))
