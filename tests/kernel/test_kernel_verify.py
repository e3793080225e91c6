"""Hand-broken kernels, schedules and partitions are refused with the invariant they break."""

from dataclasses import replace

import pytest
from kernel_samples import Builder, dense, softmax

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import VerifyError
from mlc.kernel.ir import Bind
from mlc.kernel.plain import SweepSchedule, TransposeSchedule
from mlc.kernel.schedule import Schedule, StageSchedule, schedule_for
from mlc.kernel.verify import verify_kernel, verify_program
from mlc.passes.kernelize import partition


def refused(invariant, check):
    with pytest.raises(VerifyError) as caught:
        check()
    assert caught.value.invariant == invariant
    return caught.value


@pytest.fixture
def kernel():
    return partition(softmax(8, 37)).steps[0].kernel


def change_stage(kernel, position, **fields):
    stages = list(kernel.stages)
    stages[position] = replace(stages[position], **fields)
    return replace(kernel, stages=tuple(stages))


def test_sound_kernels_pass(kernel):
    assert verify_kernel(kernel, schedule_for(kernel, 64, 32)) is kernel


def test_a_load_past_the_end(kernel):
    broken = replace(kernel, rows=(("i0", 9),))
    error = refused("every_access_in_bounds", lambda: verify_kernel(broken))
    assert "0..332" in str(error) and "stage 0" in error.where


def test_an_unknown_axis(kernel):
    put = kernel.stages[2].puts[0]
    broken = change_stage(kernel, 2, puts=(replace(put, index=put.index + Affine(0, (("z", 1),))),))
    refused("every_access_in_bounds", lambda: verify_kernel(broken))


def test_an_axis_named_twice(kernel):
    refused("axes_are_distinct", lambda: verify_kernel(change_stage(kernel, 2, axes=(("i0", 37),))))


def test_a_store_of_the_wrong_dtype(kernel):
    put = kernel.stages[2].puts[0]
    broken = change_stage(kernel, 2, puts=(replace(put, value=ex.convert(put.value, dt.f64)),))
    refused("types_match", lambda: verify_kernel(broken))


def test_a_store_into_an_input(kernel):
    put = kernel.stages[2].puts[0]
    broken = change_stage(kernel, 2, puts=(put, replace(put, target="a0")))
    refused("types_match", lambda: verify_kernel(broken))


def test_scratch_read_before_it_is_written(kernel):
    stages = (kernel.stages[0], kernel.stages[2], kernel.stages[1])
    refused("values_come_first", lambda: verify_kernel(replace(kernel, stages=stages)))


def test_a_variable_that_nothing_binds(kernel):
    finish = tuple(f for f in kernel.stages[0].finish if not isinstance(f, Bind))
    refused("values_come_first", lambda: verify_kernel(change_stage(kernel, 0, finish=finish)))


def test_an_output_that_is_not_filled(kernel):
    refused("outputs_are_filled", lambda: verify_kernel(change_stage(kernel, 2, axes=(("j0", 36),))))
    refused("outputs_are_filled", lambda: verify_kernel(replace(kernel, params=(), stages=())))


def test_an_output_in_place_of_an_input_that_is_read_elsewhere_or_later():
    g = Builder("pair")
    x = g.input("x", 8)
    g.set_outputs([g.add("neg", (x,)), g.add("exp", (x,))])
    kernel = partition(g).steps[0].kernel
    assert kernel.may_alias == {("a0", "o1")} and verify_kernel(kernel)
    name = "aliases_are_read_before_they_are_written"
    refused(name, lambda: verify_kernel(replace(kernel, may_alias=frozenset({("a0", "o0")}))))
    g = Builder("reversed")
    x = g.input("x", 8)
    g.set_outputs([g.add("rev", (x,), {"axes": (0,)})])
    kernel = partition(g).steps[0].kernel
    assert kernel.may_alias == frozenset()
    refused(name, lambda: verify_kernel(replace(kernel, may_alias=frozenset({("a0", "o0")}))))


def test_a_contraction_in_place_of_what_it_multiplies():
    g = Builder("residual")
    x = g.input("x", 8, 8)
    g.set_outputs([g.add("add", (g.matmul(x, g.input("w", 8, 8)), g.input("y", 8, 8)))])
    kernel = partition(g).steps[0].kernel
    assert kernel.may_alias == {("a2", "o0")} and verify_kernel(kernel)
    for operand in ("a0", "a1"):
        refused("aliases_are_read_before_they_are_written", lambda name=operand: verify_kernel(replace(kernel, may_alias=frozenset({(name, "o0")}))))
    g = Builder("square")
    x = g.input("x", 8, 8)
    g.set_outputs([g.add("add", (g.matmul(x, x), x))])
    assert partition(g).steps[0].kernel.may_alias == frozenset()


def test_schedules_must_fit_their_kernel(kernel):
    good = schedule_for(kernel, 64, 32)
    for broken in (replace(good, stages=good.stages[:2]),
                   replace(good, stages=(StageSchedule("j9", 16), *good.stages[1:])),
                   replace(good, stages=(StageSchedule("j0", 12), *good.stages[1:])),
                   replace(good, row_vector="i0", row_width=16)):
        refused("schedule_is_legal", lambda broken=broken: verify_kernel(kernel, broken))
    (contraction,) = [step.kernel for step in partition(dense()).steps]
    refused("schedule_is_legal", lambda: verify_kernel(contraction, replace(good, stages=good.stages[:1])))


def test_transposes_sweeps_and_streams_must_fit_their_stage(kernel):
    g = Builder("turned")
    x = g.input("x", 64, 48)
    y = g.add("transpose", (x,), {"perm": (1, 0)})
    g.set_outputs([g.add("neg", (y,)), g.fold("reduce_sum", g.input("z", 32, 80), 0)])
    turned, summed = sorted((step.kernel for step in partition(g).steps), key=lambda k: bool(k.stages[0].over))
    down, axis = (name for name, _ in turned.stages[0].axes)
    good, sweep = TransposeSchedule(down, 16, axis, 16, axis, 32), SweepSchedule(summed.stages[0].axes[0][0], 16, 4, 32)
    verify_kernel(turned, Schedule((good,), streams=("o0",)))
    verify_kernel(summed, Schedule((sweep,)))
    for broken in (replace(good, down=axis), replace(good, block_axis="j9"), replace(good, height=0), replace(good, block=24)):
        refused("schedule_is_legal", lambda broken=broken: verify_kernel(turned, Schedule((broken,))))
    for broken in (replace(sweep, axis=summed.stages[0].over[0][0]), replace(sweep, rows=0), replace(sweep, block=24)):
        refused("schedule_is_legal", lambda broken=broken: verify_kernel(summed, Schedule((broken,))))
    refused("schedule_is_legal", lambda: verify_kernel(turned, Schedule((sweep,))))
    refused("schedule_is_legal", lambda: verify_kernel(turned, Schedule((good,), streams=("a0",))))


def test_only_kept_axes_may_be_cut_and_only_into_whole_vectors(kernel):
    good = schedule_for(kernel, 64, 32)
    rows = kernel.rows[0][1]
    verify_kernel(kernel, replace(good, parallel=(("i0", 1),)))
    for cuts in ((("j0", 16),), (("i9", 1),), (("i0", 0),), (("i0", rows + 1),), (("i0", 1), ("i0", 1)), (("", 0),)):
        refused("schedule_is_legal", lambda cuts=cuts: verify_kernel(kernel, replace(good, parallel=cuts)))
    g = Builder("sums")
    x = g.input("x", 256, 256)
    g.set_outputs([g.fold("reduce_sum", x, 0)])
    columns = partition(g).steps[0].kernel
    (kept,), (over,) = columns.stages[0].axes, columns.stages[0].over
    plan = schedule_for(columns, 64, 32)
    verify_kernel(columns, replace(plan, parallel=((kept[0], 128),)))
    for cut in ((over[0], 64), (kept[0], 100)):  # a sum over the axis; blocks that cut a vector
        refused("schedule_is_legal", lambda cut=cut: verify_kernel(columns, replace(plan, parallel=(cut,))))


def test_a_program_whose_steps_are_out_of_order():
    g = Builder("two")
    x, w = g.input("x", 8, 8), g.input("w", 8, 8)
    g.set_outputs([g.matmul(g.matmul(x, w), w)])
    program = partition(g)
    program.steps.reverse()
    refused("steps_follow_their_operands", lambda: verify_program(program))


def test_a_program_that_stores_a_value_twice():
    program = partition(softmax())
    program.steps.append(program.steps[0])
    refused("steps_follow_their_operands", lambda: verify_program(program))


def test_a_program_with_an_argument_of_another_size():
    program = partition(softmax(8, 37))
    smaller = partition(softmax(8, 36)).steps[0].kernel
    program.steps[0] = replace(program.steps[0], kernel=smaller)
    error = refused("arguments_fit", lambda: verify_program(program, "fuse"))
    assert "after fuse" in str(error)
