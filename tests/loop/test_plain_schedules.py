"""Transposes by tiles, sums that stream over rows, and stores past the caches: right values, the interpreters' bits, odd tails."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dims import TensorType
from mlc.core.errors import VerifyError
from mlc.core.options import OPTIONS, options
from mlc.kernel.interp import run_kernel
from mlc.kernel.ir import Kernel, Param, Put, Reduce, Stage
from mlc.kernel.plain import SweepSchedule, TransposeSchedule, sweep_schedule, transpose_schedule
from mlc.kernel.schedule import STREAM_BYTES, Schedule, StageSchedule, levels_of_sum, parse_schedule, schedule_for
from mlc.loop.interp import run
from mlc.loop.ir import load
from mlc.loop.lower import lower
from mlc.loop.text import parse_kernel, print_kernel
from mlc.loop.verify import verify

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
import machine

from mlc.codegen.module import emit_module
from mlc.codegen.target import get_target


def affine(offset=0, **terms):
    return Affine(offset, tuple(terms.items()))


def flat(name, size, dtype, role):
    return Param(name, TensorType((size,), dtype), role)


def transposing(rows, columns, dtype, formula=lambda x: x):
    """o[i, j] = formula(a[j, i])"""
    value = formula(load("a0", dtype, affine(i=1, j=rows)))
    stage = Stage((("i", rows), ("j", columns)), puts=(Put("o0", affine(i=columns, j=1), value),))
    return Kernel("turn", (flat("a0", rows * columns, dtype, "in"), flat("o0", rows * columns, dtype, "out")), (), (stage,))


def column_sum(rows, columns, dtype):
    value = load("a0", dtype, affine(k=columns, j=1))
    one = Reduce(("t",), (dtype,), (ex.const(0, dtype),), (value,), (ex.var("a.0", dtype) + ex.var("b.0", dtype),))
    stage = Stage((("j", columns),), (("k", rows),), (one,), (), (Put("o0", affine(j=1), ex.var("t", dtype)),))
    return Kernel("columns", (flat("a0", rows * columns, dtype, "in"), flat("o0", columns, dtype, "out")), (), (stage,))


def numbers(kernel, seed=0):
    given = np.random.default_rng(seed).integers(-99, 99, kernel.params[0].type.size)
    return {"a0": given.astype(np.float32).astype(kernel.params[0].type.dtype.numpy)}


def through_levels(kernel, schedule, target):
    """The output by machine code, after comparing it with both interpreters bit for bit."""
    loops = verify(lower(kernel, schedule))
    assert parse_kernel(print_kernel(loops)) == loops
    given = numbers(kernel)
    (found,) = machine.run([loops], [given], target)
    for interpreter, subject in ((run, (loops,)), (run_kernel, (kernel, schedule))):
        arrays = {**{k: v.copy() for k, v in given.items()}, "o0": np.zeros(kernel.params[1].type.size, kernel.params[1].type.dtype.numpy)}
        interpreter(*subject, arrays)
        assert machine.same_bits(found["o0"], arrays["o0"]).all()
    return given["a0"], found["o0"]


# --------------------------------------------------------------------------- transposes
@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("dtype", (dt.f32, dt.f64, dt.i8, dt.i16, dt.bool_, dt.bf16), ids=str)
@pytest.mark.parametrize("rows,columns,side", ((48, 32, 16), (19, 37, 16), (40, 7, 8), (5, 50, 4)))
def test_a_tiled_transpose_moves_every_element(target, dtype, rows, columns, side):
    kernel = transposing(rows, columns, dtype)
    schedule = Schedule((TransposeSchedule("i", side, "j", side, "j", 2 * side),))
    given, found = through_levels(kernel, schedule, target)
    np.testing.assert_array_equal(found.reshape(rows, columns), given.reshape(columns, rows).T)


@pytest.mark.parametrize("staged", (0, 16, 32))
@pytest.mark.parametrize("block_axis", ("i", "j"))
def test_a_formula_on_transposed_elements(staged, block_axis):
    kernel = transposing(33, 45, dt.f32, lambda x: x * 2.0 + 1.0)
    given, found = through_levels(kernel, Schedule((TransposeSchedule("i", 16, "j", 16, block_axis, 32, staged),)), "native")
    np.testing.assert_array_equal(found.reshape(33, 45), given.reshape(45, 33).T * 2 + 1)


def test_a_tile_is_loaded_in_whole_vectors():
    kernel = transposing(64, 64, dt.f32)
    loops = lower(kernel, Schedule((TransposeSchedule("i", 16, "j", 16, "j", 64),)))
    text = emit_module([(loops, [(0, 0), (1, 0)])], get_target("native")).text
    assert text.count("load <16 x float>" if get_target("native").avx512 else "load <") == 16 and "insertelement" not in text


def test_a_transpose_is_scheduled_by_tiles_and_a_copy_is_not():
    assert isinstance(schedule_for(transposing(64, 64, dt.f32), 64, 32).stages[0], TransposeSchedule)
    copy = Stage((("i", 64), ("j", 64)), puts=(Put("o0", affine(i=64, j=1), load("a0", dt.f32, affine(i=64, j=1))),))
    assert transpose_schedule(copy, 16, 0, False) is None
    narrow = transposing(64, 3, dt.f32).stages[0]
    assert transpose_schedule(narrow, 16, 0, False) is None


@pytest.mark.parametrize("rows,columns,staged", ((1024, 1024, 64), (1024, 1000, 64), (1000, 1024, 64), (1000, 776, 0), (128, 128, 0)))
def test_rows_that_share_cache_sets_go_through_scratch(rows, columns, staged):
    assert schedule_for(transposing(rows, columns, dt.f32), 64, 32).stages[0].staged == staged


@pytest.mark.parametrize("rows,columns,dtype,side", ((3000, 3002, dt.f32, 32), (3000, 3002, dt.f64, 16), (4096, 4096, dt.i16, 64)))
def test_transposes_past_the_caches_whose_rows_are_no_whole_lines_go_through_small_blocks_of_scratch(rows, columns, dtype, side):
    schedule = schedule_for(transposing(rows, columns, dtype), 64, 32)
    assert schedule.streams and (schedule.stages[0].block, schedule.stages[0].staged) == (side, side)


@pytest.mark.parametrize("dtype,down,across", ((dt.f32, 128, 64), (dt.f64, 64, 32), (dt.i8, 128, 128)))
def test_on_narrow_vectors_transposes_past_the_caches_store_four_lines_of_a_row(dtype, down, across):
    schedule = schedule_for(transposing(8192, 8192, dtype), 32, 16)
    assert schedule.streams and (schedule.stages[0].block, schedule.stages[0].staged) == (across, down)


@pytest.mark.parametrize("rows,columns", ((4096, 2048), (3000, 3008)))
@pytest.mark.parametrize("dtype,side", ((dt.f32, 16), (dt.f64, 8)), ids=str)
def test_transposes_past_the_caches_store_two_lines_of_each_row(rows, columns, dtype, side):
    schedule = schedule_for(transposing(rows, columns, dtype), 64, 32)
    assert schedule.stages == (TransposeSchedule("i", side, "j", 2 * side, "i", -(-rows // side) * side),)


@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("dtype", (dt.f32, dt.f64), ids=str)
@pytest.mark.parametrize("rows,columns", ((48, 64), (37, 96), (20, 75), (5, 128)))
def test_tiles_of_two_lines_move_every_element(target, dtype, rows, columns):
    side, kernel = 64 // dtype.itemsize, transposing(rows, columns, dtype)
    given, found = through_levels(kernel, Schedule((TransposeSchedule("i", side, "j", 2 * side, "i", rows),), streams=("o0",)), target)
    np.testing.assert_array_equal(found.reshape(rows, columns), given.reshape(columns, rows).T)


def test_lines_are_stored_in_order_and_loaded_by_sixteen_bytes():
    loops = lower(transposing(64, 64, dt.f32), Schedule((TransposeSchedule("i", 16, "j", 32, "i", 64),), streams=("o0",)))
    text = emit_module([(loops, [(0, 0), (1, 0)])], get_target("golden-v3")).text
    assert text.count("load <4 x float>") == 2 * 64 and "load <16 x float>" not in text
    assert text.count("store <16 x float>") == text.count("!nontemporal") == 2 * 16 and "store <32 x float>" not in text


def test_rows_that_are_turned_are_asked_for_in_the_second_cache():
    def asked(rows):
        loops = lower(transposing(rows, 2048, dt.f32), Schedule((TransposeSchedule("i", 16, "j", 16, "j", 32, 32),)))
        text = emit_module([(loops, [(0, 0), (1, 0)])], get_target("native")).text
        return set(re.findall(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 0, i32 (\d), i32 1\)", text))
    assert asked(1024) == {"2"} and asked(1008) == set()


def test_scratch_rows_of_a_transpose_are_no_power_of_two_apart():
    loops = lower(transposing(1024, 1024, dt.f32), Schedule((TransposeSchedule("i", 16, "j", 16, "j", 128, 64),)))
    (scratch,) = (b for b in loops.buffers if b.role == "scratch")
    assert scratch.size == 64 * (128 + 16)


@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("dtype", (dt.f32, dt.f64, dt.i8, dt.bf16), ids=str)
@pytest.mark.parametrize("block_axis", ("i", "j"))
def test_blocks_through_scratch_move_every_element(dtype, target, block_axis):
    kernel = transposing(75, 101, dtype)
    given, found = through_levels(kernel, Schedule((TransposeSchedule("i", 16, "j", 16, block_axis, 32, 48),)), target)
    np.testing.assert_array_equal(found.reshape(75, 101), given.reshape(101, 75).T)


# --------------------------------------------------------------------------- interleaved stores
@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("dtype", (dt.f32, dt.f64, dt.i32), ids=str)
@pytest.mark.parametrize("rows,columns", ((64, 2), (77, 3), (100, 4)))
def test_a_short_last_axis_is_interleaved(target, dtype, rows, columns):
    kernel = transposing(rows, columns, dtype)
    given, found = through_levels(kernel, Schedule((StageSchedule("i", 8, "j"),)), target)
    np.testing.assert_array_equal(found.reshape(rows, columns), given.reshape(columns, rows).T)


def test_interleaved_elements_are_stored_as_whole_vectors():
    text = emit_module([(lower(transposing(64, 3, dt.f32), Schedule((StageSchedule("i", 8, "j"),))), [(0, 0), (1, 0)])], get_target("golden-v3")).text
    assert text.count("store <8 x float>") == 3 and "extractelement" not in text


def test_a_short_last_axis_is_scheduled_for_interleaving():
    assert schedule_for(transposing(4096, 3, dt.f32), 64, 32).stages[0] == StageSchedule("i", 16, "j")
    assert not schedule_for(transposing(16, 3, dt.f32), 64, 32).stages[0].around
    assert not schedule_for(transposing(4096, 3, dt.i8), 64, 32).stages[0].around


def test_an_output_that_is_read_is_not_kept_back():
    index = affine(i=2, j=1)
    first = Put("o0", index, load("a0", dt.f32, affine(i=1, j=64)))
    stage = Stage((("i", 64), ("j", 2)), puts=(first, Put("o0", index, load("o0", dt.f32, index) * 2.0)))
    kernel = Kernel("twice", (flat("a0", 128, dt.f32, "in"), flat("o0", 128, dt.f32, "out")), (), (stage,))
    loops, given = lower(kernel, Schedule((StageSchedule("i", 8, "j"),))), numbers(kernel)
    (found,) = machine.run([loops], [given], "native")
    np.testing.assert_array_equal(found["o0"].reshape(64, 2), 2 * given["a0"].reshape(2, 64).T)


# --------------------------------------------------------------------------- sums down columns
@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("rows,columns,block", ((300, 96, 64), (131, 130, 128), (17, 70, 32), (4200, 40, 32)))
def test_swept_columns_have_the_bits_of_whole_columns(target, rows, columns, block):
    kernel = column_sum(rows, columns, dt.f32)
    swept = Schedule((SweepSchedule("j", 32, 4, block),))
    given, found = through_levels(kernel, swept, target)
    _, whole = through_levels(kernel, Schedule((StageSchedule("j", 32),)), target)
    np.testing.assert_array_equal(found, whole)
    np.testing.assert_allclose(found, given.reshape(rows, columns).sum(0, dtype=np.float64), rtol=1e-4, atol=1e-3)


def test_large_matrices_are_swept_and_small_ones_are_not():
    large, small = column_sum(1024, 1024, dt.f32).stages[0], column_sum(64, 256, dt.f32).stages[0]
    assert isinstance(sweep_schedule(large, ("j", 1024), 64, levels_of_sum), SweepSchedule)
    assert sweep_schedule(small, ("j", 256), 64, levels_of_sum) is None
    assert sweep_schedule(column_sum(1024, 64, dt.f32).stages[0], ("j", 64), 64, levels_of_sum) is None


@pytest.mark.parametrize("op,rows,columns,at_a_time", (
    ("max", 1024, 1024, 4), ("max", 16384, 1024, 1), ("add", 16384, 1024, 4), ("max", 2048, 16384, 4)))
def test_rows_past_the_caches_are_read_in_their_own_order_unless_they_are_only_added(op, rows, columns, at_a_time):
    stage = column_sum(rows, columns, dt.f32).stages[0]
    combine = (ex.binary(op, ex.var("a.0", dt.f32), ex.var("b.0", dt.f32)),)
    plan = sweep_schedule(replace(stage, reduces=(replace(stage.reduces[0], combine=combine),)), ("j", columns), 64, levels_of_sum)
    assert plan.rows == at_a_time and (plan.block == columns or at_a_time > 1)


def test_swept_columns_ask_for_the_next_rows():
    def text(at_a_time):
        loops = lower(column_sum(16384, 1024, dt.f32), Schedule((SweepSchedule("j", 64, at_a_time, 1024),)))
        return emit_module([(loops, [(0, 0), (1, 0)])], machine.WIDE).text
    assert f"i64 {4 * 4096}" in text(4) and f"i64 {2 * 4096}" in text(2) and text(4).count("call void @llvm.prefetch") == 4 * 4


# --------------------------------------------------------------------------- stores past the caches
@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("count", (1, 31, 64, 129, 1003))
def test_streamed_stores_write_every_element_and_nothing_else(target, count):
    value = load("a0", dt.f32, affine(j=1)) * 2.0
    kernel = Kernel("twice", (flat("a0", count, dt.f32, "in"), flat("o0", count, dt.f32, "out")), (),
                    (Stage((("j", count),), puts=(Put("o0", affine(j=1), value),)),))
    given, found = through_levels(kernel, Schedule((StageSchedule("j", 32),), streams=("o0",)), target)
    np.testing.assert_array_equal(found, given * 2)


def _stored(rows, columns):
    """The LLVM text of a streamed copy with rows of some length."""
    index = affine(i=columns, j=1)
    stage = Stage((("i", rows), ("j", columns)), puts=(Put("o0", index, load("a0", dt.f32, index)),))
    kernel = Kernel("copy", (flat("a0", rows * columns, dt.f32, "in"), flat("o0", rows * columns, dt.f32, "out")), (), (stage,))
    return emit_module([(lower(kernel, Schedule((StageSchedule("j", 32),), streams=("o0",))), [(0, 0), (1, 0)])], get_target("golden-v3")).text


def test_only_aligned_whole_vectors_are_streamed_and_a_fence_follows():
    aligned, odd = _stored(8, 64), _stored(8, 65)
    assert "!nontemporal" in aligned and "!nontemporal" not in odd
    assert aligned.index("call void @llvm.x86.sse.sfence()") > aligned.index("!nontemporal")


def test_outputs_far_larger_than_the_cache_are_streamed():
    def streams(count):
        stage = Stage((("j", count),), puts=(Put("o0", affine(j=1), load("a0", dt.f32, affine(j=1))),))
        return schedule_for(Kernel("copy", (flat("a0", count, dt.f32, "in"), flat("o0", count, dt.f32, "out")), (), (stage,)), 64, 32).streams
    assert streams(STREAM_BYTES // 4) == ("o0",) and streams(STREAM_BYTES // 4 - 1) == ()
    assert OPTIONS["stream_kb"].default << 10 == STREAM_BYTES
    with options(stream_kb=1):
        assert streams(256) == ("o0",) and streams(255) == ()


def test_a_stream_that_is_read_is_refused():
    size = 64
    again = Stage((("j", size),), puts=(Put("o1", affine(j=1), load("o0", dt.f32, affine(j=1))),))
    first = Stage((("j", size),), puts=(Put("o0", affine(j=1), load("a0", dt.f32, affine(j=1))),))
    params = (flat("a0", size, dt.f32, "in"), flat("o0", size, dt.f32, "out"), flat("o1", size, dt.f32, "out"))
    loops = lower(Kernel("twice", params, (), (first, again)), Schedule((StageSchedule("j", 32),) * 2))
    verify(replace(loops, streams=frozenset({"o1"})))
    with pytest.raises(VerifyError, match="never loaded"):
        verify(replace(loops, streams=frozenset({"o0"})))


# --------------------------------------------------------------------------- text
@pytest.mark.parametrize("schedule", (
    Schedule((TransposeSchedule("j0", 16, "j1", 8, "j1", 128),)), Schedule((TransposeSchedule("j0", 16, "j1", 16, "j0", 256, 32),)),
    Schedule((SweepSchedule("j1", 64, 4, 2048), StageSchedule("j0", 16))), Schedule((StageSchedule("j0", 16),), streams=("o0", "o1")),
    Schedule((StageSchedule("j0", 16, "j1"),)),
    Schedule((StageSchedule("j0", 16),), parallel=(("j0", 64),), streams=("o0",))), ids=lambda s: s.text())
def test_schedules_of_plain_stages_read_back(schedule):
    assert parse_schedule(schedule.text()) == schedule


@pytest.mark.parametrize("steps, points, narrow, wide", [
    (3, 1 << 20, 2, 2), (40, 1 << 20, 4, 4), (40, 1 << 10, 1, 1), (100, 1 << 20, 2, 2), (100, 1 << 22, 4, 4)])
def test_long_formulas_take_fewer_vectors_at_a_time(steps, points, narrow, wide):
    value = load("a0", dt.f32, affine(i=1))
    for step in range(steps):
        value = value * 0.5 if step % 2 else value + 1.0
    stage = Stage((("i", points),), puts=(Put("o0", affine(i=1), value),))
    kernel = Kernel("chain", (flat("a0", points, dt.f32, "in"), flat("o0", points, dt.f32, "out")), (), (stage,))
    found = [schedule_for(kernel, 4 * lanes, registers).stages[0].width // lanes for lanes, registers in ((8, 16), (16, 32))]
    assert found == [narrow, wide]


def test_only_arrays_past_the_cache_are_read_ahead():
    def text(count):
        stage = Stage((("j", count),), puts=(Put("o0", affine(j=1), load("a0", dt.f32, affine(j=1)) * 2.0),))
        kernel = Kernel("twice", (flat("a0", count, dt.f32, "in"), flat("o0", count, dt.f32, "out")), (), (stage,))
        return emit_module([(lower(kernel, Schedule((StageSchedule("j", 32),))), [(0, 0), (1, 0)])], machine.WIDE).text
    assert text(1 << 23).count("call void @llvm.prefetch") == 2 and "prefetch" not in text((1 << 23) - 1)


@pytest.mark.parametrize("rows, columns", [(4, 4), (4, 16), (8, 24), (17, 16), (33, 64), (101, 40), (1001, 48)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_transposes_past_the_caches_are_right_whatever_is_left_of_tiles(rows, columns, dtype):
    x = np.arange(2 * rows * columns).reshape(2, columns, rows).astype(dtype)
    with mlc.options(stream_kb=0, check=1, cache=False):
        assert mlc.jit(lambda x: mlc.numpy.matrix_transpose(x))(x).tobytes() == np.swapaxes(x, 1, 2).tobytes()
        assert mlc.jit(lambda x: mlc.numpy.transpose(x, (2, 0, 1)))(x).tobytes() == np.transpose(x, (2, 0, 1)).tobytes()
