"""What is cut into parallel blocks, and long sums into partial sums: by the work, never by the number of threads."""

import numpy as np
import pytest
from kernel_samples import Builder, chain, dense, softmax

import mlc
from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.options import options
from mlc.kernel.interp import run_program
from mlc.kernel.ir import KernelGraph
from mlc.kernel.parallel import BLOCKS, block_size, dot_block
from mlc.kernel.schedule import Schedule, schedule_for
from mlc.kernel.split import split_program
from mlc.kernel.verify import verify_kernel, verify_program
from mlc.loop.lower import lower
from mlc.loop.verify import verify
from mlc.passes.kernelize import partition


def scheduled(graph) -> tuple[KernelGraph, dict]:
    program = verify_program(split_program(partition(graph)))
    schedules = {k: schedule_for(k, 64, 32) for k in program.kernels()}
    for kernel, schedule in schedules.items():
        verify_kernel(kernel, schedule)
        verify(lower(kernel, schedule))
    return program, schedules


def only(graph) -> Schedule:
    _, schedules = scheduled(graph)
    (found,) = schedules.values()
    return found


def reduction(op, shape, axes, dtype=dt.f32):
    g = Builder("reduction")
    return g.set_outputs([g.fold(op, g.input("x", *shape, dtype=dtype), *axes)])


def test_small_kernels_run_in_one_piece():
    for graph in (softmax(64, 64), dense(), chain(5, 4000), reduction("reduce_sum", (100, 100), (0, 1))):
        assert only(graph).parallel == (), graph.name


def test_large_kernels_are_cut_along_what_they_keep():
    assert only(softmax(8192, 512)).parallel == (("i0", 1),)
    ((axis, block),) = only(chain(5, 1 << 20)).parallel
    assert axis == "j0" and (1 << 20) % block == 0 and 16 <= (1 << 20) // block <= BLOCKS
    ((axis, block),) = only(dense(1024, 256, 512)).parallel
    assert axis in "mn" and block < 1024
    ((axis, block),) = only(reduction("reduce_sum", (200, 1 << 16), (0,))).parallel
    assert axis == "j1" and block >= 512


def test_a_transpose_is_cut_between_its_blocks():
    g = Builder("transposed")
    x = g.input("x", 1024, 2048)
    g.set_outputs([g.add("transpose", (x,), {"perm": (1, 0)})])
    schedule = only(g)
    (plan,) = schedule.stages
    assert schedule.parallel == ((plan.block_axis, plan.block),)


def test_the_option_moves_the_threshold():
    with options(fork_us=0):
        assert only(softmax(8, 37)).parallel
    with options(fork_us=10**9):
        assert only(softmax(8192, 2048)).parallel == ()


def test_few_long_rows_are_cut_inside_where_they_are_all_there_is():
    g = Builder("batched")
    x, y = g.input("x", 2, 512, 256), g.input("y", 2, 256, 512)
    g.set_outputs([g.add("dot_general", (x, y), {"contract": ((2,), (1,)), "batch": ((0,), (0,))}, TensorType((2, 512, 512), dt.f32))])
    ((axis, block),) = only(g).parallel
    assert axis in "mn" and 2 * 512 // block > 2


@pytest.mark.parametrize("extent,count,multiple,wanted", [
    (1 << 20, 64, 64, 1 << 14), (1000, 16, 8, 88), (96, 64, 1, 2), (7, 64, 1, 1), (1, 64, 1, 0), (16, 64, 16, 0), (17, 2, 16, 16), (900, 4, 1, 225)])
def test_blocks_leave_as_little_as_they_can(extent, count, multiple, wanted):
    assert block_size(extent, count, multiple) == wanted


@pytest.mark.parametrize("extent,count,tile,much,wanted", [
    (700, 10, 32, True, 64),   # 5 of 10 blocks each, then 60
    (700, 10, 32, False, 96),  # a rest of 28 has no code that a block has
    (1024, 16, 32, True, 128), (768, 12, 48, False, 96), (127, 9, 5, False, 25), (1, 8, 8, False, 0)])
def test_blocks_of_a_contraction_are_fair_to_two_threads(extent, count, tile, much, wanted):
    assert dot_block(extent, count, 16 if tile > 16 else tile, tile, 28.0 if tile > 16 else 0.9 * tile, much) == wanted


@pytest.mark.parametrize("transposed,rows,wanted", [(False, 512, 64), (True, 512, 64), (False, 1024, 128)])
def test_panels_that_are_copied_one_by_one_are_blocks_and_groups_of_them_stay_together(transposed, rows, wanted):
    g = Builder("product")
    x, y = g.input("x", *((512, rows) if transposed else (rows, 512))), g.input("y", 512, rows)
    wanted_type = TensorType((rows, rows), dt.f32)
    g.set_outputs([g.add("dot_general", (x, y), {"contract": ((0 if transposed else 1,), (0,)), "batch": ((), ())}, wanted_type)])
    schedule = only(g)
    assert schedule.stages[0].pack == "b" and schedule.parallel == (("n", wanted),)
    assert wanted == schedule.stages[0].n if rows == 512 else schedule.stages[0].group > 1


# --------------------------------------------------------------------------- sums
SUMS = [("reduce_sum", (1 << 20,), (0,)), ("reduce_sum", (1000, 1003), (0, 1)), ("reduce_max", (70001, 20), (0,)),
        ("argmax", (1_000_003,), (0,)), ("reduce_sum", (1 << 18, 3), (0,)), ("reduce_sum", (4096, 1024), (0,))]


@pytest.mark.parametrize("op,shape,axes", SUMS, ids=str)
def test_long_sums_become_partial_sums_and_their_sum(op, shape, axes):
    g = Builder("reduction")
    x = g.input("x", *shape)
    wanted = (TensorType((), dt.i32),) if op == "argmax" else ()
    g.set_outputs([g.add(op, (x,), {"axes": axes}, *wanted)])
    program, schedules = scheduled(g)
    (kernel,) = program.kernels()
    first, last = kernel.stages[0], kernel.stages[-1]
    assert 2 <= len(kernel.stages) <= 3 and first.axes[0][1] <= BLOCKS and first.axes[1:] == last.axes
    assert last.over[0][1] == first.axes[0][1] + len(kernel.stages) - 2
    assert schedules[kernel].parallel[0] == (first.axes[0][0], 1)


def test_short_sums_and_wide_ones_stay_whole():
    for graph in (reduction("reduce_sum", (10_000,), (0,)), reduction("reduce_sum", (256, 4096), (0,)), reduction("reduce_sum", (4096, 1024), (1,))):
        assert [len(k.stages) for k in split_program(partition(graph)).kernels()] == [1]


@pytest.mark.parametrize("rows,columns", [(300, 1), (97, 5), (130, 31), (2, 3), (64, 64)])
def test_sums_in_blocks_are_the_sums(rows, columns):
    g = Builder("both")
    x = g.input("x", rows, columns, dtype=dt.i32)
    g.set_outputs([g.fold("reduce_sum", x, 0), g.fold("reduce_max", x, 0, 1), g.fold("reduce_prod", x, 0)])
    values = np.random.default_rng(rows).integers(-9, 9, (rows, columns)).astype(np.int32)
    with options(fork_us=0):
        program, schedules = scheduled(g)
    assert any(len(k.stages) > 1 for k in program.kernels()) or rows * columns < 16
    found = run_program(program, schedules, [values], {})
    wanted = [values.sum(0, dtype=np.int32), values.max(), values.prod(0, dtype=np.int32)]
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted))


@pytest.mark.parametrize("shape", [(16, 17, 1025), (33, 33, 257), (2049, 100, 5), (20011,), (7, 4099)])
@pytest.mark.parametrize("dtype, worst", [("u1", 0), ("?", False), ("f4", -np.inf), ("i4", -2 ** 31)])
def test_the_first_of_many_that_are_all_the_worst_is_found(shape, dtype, worst):
    x = np.full(shape, worst, dtype)
    with options(fork_us=0):
        assert mlc.jit(mlc.numpy.argmax)(x) == 0
        x.reshape(-1)[x.size // 3] = 1
        assert mlc.jit(mlc.numpy.argmax)(x) == x.size // 3
