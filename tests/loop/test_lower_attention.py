"""Attention as loops: legal, bit for bit what the kernel interpreter says, in machine code too, for many blocks and tiles."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dims import TensorType
from mlc.kernel.attention import AttendSchedule
from mlc.kernel.interp import run_kernel
from mlc.kernel.ir import Param
from mlc.kernel.schedule import Schedule, schedule_for
from mlc.loop import interp
from mlc.loop.ir import For, Tile, walk
from mlc.loop.lower import lower
from mlc.loop.text import text_round_trips
from mlc.loop.verify import verify

sys.path += [str(Path(__file__).parents[1] / "kernel"), str(Path(__file__).parents[1] / "codegen")]
from attention_samples import attention, load
from machine import run, runnable_targets, same_bits


def arrays(kernel, special=False):
    rng = np.random.default_rng(len(kernel.params) + kernel.params[0].type.size)
    found = {p.name: rng.standard_normal(p.type.size).astype(p.type.dtype.numpy) for p in kernel.params if p.role == "in"}
    if special:
        for array in found.values():
            array[rng.integers(0, array.size, 2)] = [np.inf, np.nan]
    return found


def agree(kernel, schedule, given, targets=("native",)):
    """Kernel interpreter, loop interpreter and machine code."""
    loops = verify(lower(kernel, schedule))
    text_round_trips(loops)
    size, dtype = kernel.params[-1].type.size, kernel.params[-1].type.dtype.numpy
    wanted, found = np.zeros(size, dtype), np.zeros(size, dtype)
    run_kernel(kernel, schedule, {**given, "o0": wanted})
    interp.run(loops, {**given, "o0": found}, reverse_parallel=True)
    assert same_bits(found, wanted).all()
    for target in targets:
        for made in run([loops, replace(loops, library=not loops.library)], [given, given], target):  # sizes as constants and as arguments
            assert same_bits(made["o0"], wanted).all(), target


@pytest.mark.parametrize("plan", [
    AttendSchedule(9, 12, 8, (4, 8), (4, 4), 4), AttendSchedule(4, 5, 4, (2, 4), (3, 5), 4), AttendSchedule(8, 12, 16, (12, 3), (8, 2), 16),
    AttendSchedule(3, 1, 4, (1, 3), (1, 5), 8), AttendSchedule(9, 4, 1, (4, 9), (9, 5), 1), AttendSchedule(9, 7, 8, (4, 8), (4, 4), 4, True, True),
], ids=lambda plan: plan.text().replace(" ", "_"))
def test_any_blocks_and_tiles_give_the_interpreters_bits(plan):
    kernel = attention()
    for special in (False, True):
        agree(kernel, Schedule((plan,)), arrays(kernel, special))


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("sizes", [(1, 2, 1, 1), (17, 33, 5, 1), (70, 140, 3, 18), (33, 15, 16, 40)])
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64])
def test_chosen_schedules_on_every_target(target, sizes, dtype):
    kernel = attention(2, *sizes, dtype=dtype)
    machine = get_target(target)
    agree(kernel, schedule_for(kernel, machine.vector_bits // 8, machine.vector_registers), arrays(kernel), (target,))


def test_a_bias_and_a_mask_are_turned_before_they_are_read_by_query():
    kernel = attention(1, 20, 37, score=lambda dot: ex.select(load("a4", dt.bool_, m=37, n=1), dot + load("a3", m=37, n=1), float("-inf")))
    more = (Param("a3", TensorType((740,), dt.f32), "in"), Param("a4", TensorType((740,), dt.bool_), "in"))
    kernel = replace(kernel, params=(*kernel.params[:-1], *more, kernel.params[-1]))
    given = arrays(kernel)
    given["a4"] = np.random.default_rng(0).random(740) < 0.8
    given["a4"][37:74] = False
    schedule = schedule_for(kernel, 64, 32)
    loops = lower(kernel, schedule)
    assert sum(b.size == 37 * 20 for b in loops.buffers if b.role == "scratch") == 3
    assert any(s.kind == "unroll" for s in walk(loops.body) if isinstance(s, For))
    agree(kernel, schedule, given)


def test_no_buffer_has_a_score_for_every_query_and_key():
    kernel = attention(1, 1000, 3000, 8, 8)
    loops = lower(kernel, schedule_for(kernel, 64, 32))
    assert sum(b.nbytes for b in loops.buffers if b.role in ("scratch", "shared")) < 100_000


def test_whole_blocks_need_two_tiles_only():
    kernel = attention(4, 512, 512, 64, 64)
    assert sum(isinstance(s, Tile) for s in walk(lower(kernel, schedule_for(kernel, 64, 32)).body)) == 2
