"""Rows side by side: each has the bits that it has alone, in every level, whatever is left over."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dims import TensorType
from mlc.core.errors import VerifyError
from mlc.kernel.interp import run_kernel
from mlc.kernel.ir import Bind, Kernel, Param, Put, Reduce, Stage
from mlc.kernel.schedule import JAM_BYTES, JAM_ROW_BYTES, JAM_ROWS, Schedule, StageSchedule, parse_schedule, schedule_for
from mlc.kernel.verify import verify_kernel
from mlc.loop.interp import run
from mlc.loop.ir import For, load, walk
from mlc.loop.lower import lower
from mlc.loop.verify import verify

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
import machine


def affine(offset=0, **terms):
    return Affine(offset, tuple(terms.items()))


def param(name, size, dtype, role):
    return Param(name, TensorType((size,), dtype), role)


def sums(rows, columns, dtype=dt.f32, outer=1, step=1):
    """o[h, i] = 3 * (sum_j a[h, i, j] * x[j]) + max_j a[h, i, j], where rows of a are `step` lengths apart."""
    pitch = columns * step
    a, x = load("a0", dtype, affine(h=rows * pitch, i=pitch, j=1)), load("a1", dtype, affine(j=1))
    total = Reduce(("t",), (dtype,), (ex.const(0, dtype),), (a * x,), (ex.var("a.0", dtype) + ex.var("b.0", dtype),))
    lowest = ex.const(-np.inf if dtype.is_float else np.iinfo(dtype.numpy).min, dtype)
    most = Reduce(("m",), (dtype,), (lowest,), (a,), (ex.maximum(ex.var("a.0", dtype), ex.var("b.0", dtype)),))
    finish = (Bind("u", ex.var("t", dtype) * 3), Put("o0", affine(h=rows, i=1), ex.var("u", dtype) + ex.var("m", dtype)))
    params = (param("a0", outer * rows * pitch, dtype, "in"), param("a1", columns, dtype, "in"), param("o0", outer * rows, dtype, "out"))
    return Kernel("sums", params, (("h", outer), ("i", rows)), (Stage((), (("j", columns),), (total, most), (), finish),))


def jammed(width=16, count=4, parallel=()):
    return Schedule((StageSchedule("j", width),), parallel=parallel, jam=("i", count))


def output(kernel, schedule, given, target):
    """What machine code stores, after a comparison with both interpreters."""
    loops = verify(lower(kernel, schedule))
    (found,) = machine.run([loops], [given], target)
    for interpreter, subject in ((run, (loops,)), (run_kernel, (kernel, schedule))):
        arrays = {**given, "o0": np.zeros(kernel.params[2].type.size, kernel.params[2].type.dtype.numpy)}
        interpreter(*subject, arrays)
        assert machine.same_bits(found["o0"], arrays["o0"]).all()
    return found["o0"]


def values(kernel):
    rng, dtype = np.random.default_rng(0), kernel.params[0].type.dtype
    given = {p.name: rng.normal(size=p.type.size) * 9 for p in kernel.params[:2]}
    if dtype.is_float:
        given["a0"][::97], given["a0"][5::101] = -0.0, np.nan
    return {name: x.astype(dtype.numpy) for name, x in given.items()}


@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("dtype", (dt.f32, dt.f64, dt.bf16, dt.i32, dt.i8), ids=str)
@pytest.mark.parametrize("rows, columns", ((8, 64), (11, 67), (3, 20), (6, 2300), (1, 5)))
def test_rows_side_by_side_have_the_bits_of_rows_alone(target, dtype, rows, columns):
    kernel = sums(rows, columns, dtype)
    given = values(kernel)
    found, alone = (output(kernel, schedule, given, target) for schedule in (jammed(), replace(jammed(), jam=("", 1))))
    assert machine.same_bits(found, alone).all()


@pytest.mark.parametrize("count, parallel", ((2, ()), (3, (("i", 6),)), (4, (("i", 4),)), (4, (("h", 1),)), (4, (("i", 8),))))
@pytest.mark.parametrize("step", (1, 3))
def test_rows_are_jammed_inside_of_others_and_of_parallel_blocks(count, parallel, step):
    kernel = sums(13, 41, dt.f32, outer=3, step=step)
    given = values(kernel)
    schedule = jammed(8, count, parallel)
    verify_kernel(kernel, schedule)
    assert machine.same_bits(output(kernel, schedule, given, "native"), output(kernel, replace(jammed(8), jam=("", 1)), given, "native")).all()


def test_side_by_side_are_the_vector_loops_of_all_rows():
    loops = lower(sums(9, 64), jammed())
    assert [stmt.extent for stmt in walk(loops.body) if isinstance(stmt, For) and stmt.kind == "vector"] == [64, 64]
    bodies = [stmt.body for stmt in walk(loops.body) if isinstance(stmt, For) and stmt.kind == "vector"]
    assert [len(body) for body in bodies] == [4, 1]


def test_a_jam_reads_back():
    schedule = jammed(parallel=(("i", 8),))
    assert schedule.text() == "schedule { parallel i:8, jam rows i:4, vectorize j:16, chunk 64 }"
    assert parse_schedule(schedule.text()) == schedule


def plain_sum(rows, columns, dtype=dt.f32, formula=lambda x: x):
    value = formula(load("a0", dtype, affine(i=columns, j=1)))
    one = Reduce(("t",), (dtype,), (ex.const(0, dtype),), (value,), (ex.var("a.0", dtype) + ex.var("b.0", dtype),))
    stage = Stage((), (("j", columns),), (one,), (), (Put("o0", affine(i=1), ex.var("t", dtype)),))
    return Kernel("rows", (param("a0", rows * columns, dtype, "in"), param("o0", rows, dtype, "out")), (("i", rows),), (stage,))


LONG = JAM_ROW_BYTES // 4


@pytest.mark.parametrize("kernel, jams", [
    (plain_sum(JAM_BYTES // JAM_ROW_BYTES, LONG), True),
    (plain_sum(JAM_BYTES // JAM_ROW_BYTES - 1, LONG), False),
    (plain_sum(1000, LONG - 1), False),
    (plain_sum(2 * JAM_ROWS - 1, 100 * LONG), False),
    (plain_sum(100, LONG, formula=lambda x: ex.sqrt(x * x + 1.0) * (x + 2.0) * (x + 3.0) * (x - 4.0)), False)])
def test_long_rows_of_light_sums_are_jammed_where_registers_are_narrow(kernel, jams):
    schedule = verify_kernel(kernel, schedule_for(kernel, 32, 16)) and schedule_for(kernel, 32, 16)
    assert schedule.jam == (("i", JAM_ROWS) if jams else ("", 1))
    assert all(block % JAM_ROWS == 0 for axis, block in schedule.parallel if jams)
    assert schedule_for(kernel, 64, 32).jam == ("", 1)


@pytest.mark.parametrize("change", [
    {"jam": ("h", 4)}, {"jam": ("j", 4)}, {"jam": ("i", 1)}, {"row_vector": "i", "row_width": 8}, {"parallel": (("i", 6),)}])
def test_what_cannot_be_jammed_is_refused(change):
    with pytest.raises(VerifyError, match="schedule_is_legal"):
        verify_kernel(sums(13, 41, outer=3), replace(jammed(), **change))


def test_rows_of_several_stages_are_not_jammed():
    kernel = sums(13, 41)
    (stage,) = kernel.stages
    other = replace(stage, finish=(Put("o0", affine(h=13, i=1), ex.var("m", dt.f32)),))
    with pytest.raises(VerifyError, match="jam rows i:4"):
        verify_kernel(replace(kernel, stages=(replace(stage, finish=stage.finish[:1]), other)), Schedule((StageSchedule("j", 16),) * 2, jam=("i", 4)))
