"""The attention stage of kernels: its text, its verifier, its schedule, its interpreter."""

from dataclasses import replace

import numpy as np
import pytest
from attention_samples import attention, load

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import ParseError, VerifyError
from mlc.kernel.attention import AttendSchedule, attend_schedule, weight_scale
from mlc.kernel.cost import kernel_cost
from mlc.kernel.interp import run_kernel
from mlc.kernel.schedule import Schedule, parse_schedule, schedule_for
from mlc.kernel.text import parse_kernel, print_kernel
from mlc.kernel.verify import verify_kernel


def change(kernel, **fields):
    return replace(kernel, stages=(replace(kernel.stages[0], **fields),))


def refused(invariant, kernel, schedule=None):
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel, schedule)
    assert caught.value.invariant == invariant


def plan(**fields):
    return Schedule((replace(AttendSchedule(8, 4, 8, (4, 8), (4, 5), 4), **fields),))


# --------------------------------------------------------------------------- text
def test_the_text_says_what_is_multiplied_scored_weighted_and_stored():
    text = print_kernel(attention(), plan(copied=True, turned=True))
    assert "attend %t0: f32 m:9 n:12 k:4 c:5 {" in text and "%t0.s += %a0[36*i0 + 4*m + k] * %a1[48*i0 + 4*n + k]" in text
    assert text.index("score {") < text.index("weight {") < text.index("value {") < text.index("then {")
    assert "attend m:8 n:4 lanes:8 scores:4 8 sums:4 5 by 4 copied turned, chunk" in text


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64])
@pytest.mark.parametrize("marks", [{}, {"copied": True}, {"turned": True}])
def test_text_parses_back(dtype, marks):
    kernel = attention(dtype=dtype, score=lambda dot: ex.select(ex.index("n") > ex.index("m"), float("-inf"), dot * 0.3))
    assert parse_kernel(print_kernel(kernel, plan(**marks))) == (kernel, plan(**marks))


def test_axes_of_other_names_are_written_with_their_roles():
    kernel = change(attention(), m=("j0", 9), query=load("a0", i0=36, j0=4, k=1),
                    puts=(replace(attention().stages[0].puts[0], index=Affine(0, {"i0": 45, "j0": 5, "c": 1})),))
    text = print_kernel(kernel)
    assert "m=j0:9" in text and parse_kernel(text)[0] == kernel


def test_a_broken_schedule_text_is_refused():
    with pytest.raises(ParseError, match="lanes"):
        parse_schedule("schedule { attend m:8 n:4 scores:4 8 sums:4 5 by 4, chunk 64 }")


# --------------------------------------------------------------------------- verifier
def test_a_sound_kernel_passes():
    kernel = attention()
    assert verify_kernel(kernel, schedule_for(kernel, 32, 16)) is kernel


def test_accesses_out_of_bounds_are_refused():
    refused("every_access_in_bounds", change(attention(), key=load("a1", i0=48, n=4, k=1, offset=1)))
    refused("every_access_in_bounds", change(attention(), value=load("a2", i0=60, n=6, c=1)))
    refused("every_access_in_bounds", change(attention(), score=load("a0", m=9, c=1)))


def test_two_axes_of_one_name_are_refused():
    refused("axes_are_distinct", change(attention(), c=("m", 5)))


def test_variables_belong_to_their_part():
    stage = attention().stages[0]
    refused("values_come_first", change(attention(), score=ex.var("t0.x", dt.f32)))
    refused("values_come_first", change(attention(), value=ex.var("t0", dt.f32)))
    refused("values_come_first", change(attention(), puts=(replace(stage.puts[0], value=ex.var("t0.s", dt.f32)),)))


def test_a_weight_depends_on_its_distance_alone():
    refused("attention_is_well_formed", change(attention(), weight=ex.var("t0.x", dt.f32) * ex.convert(ex.index("i0"), dt.f32)))


def test_halves_and_mixed_dtypes_are_refused():
    refused("attention_is_well_formed", attention(dtype=dt.f16))
    refused("attention_is_well_formed", change(attention(), value=ex.convert(load("a2", i0=60, n=5, c=1), dt.f64)))


def test_values_are_contiguous():
    refused("attention_is_well_formed", change(attention(), value=load("a2", i0=60, n=1, c=12)))


def test_an_output_that_is_not_filled_is_refused():
    refused("outputs_are_filled", change(attention(), puts=()))


@pytest.mark.parametrize("fields", [{"queries": 0}, {"keys": 0}, {"keys": 2000}, {"scores": (0, 8)}, {"sums": (4, 0)}, {"width": 3}, {"by": 0}])
def test_illegal_schedules_are_refused(fields):
    refused("schedule_is_legal", attention(), plan(**fields))


# --------------------------------------------------------------------------- schedule
@pytest.mark.parametrize(("queries", "keys"), [(1, 2), (15, 17), (64, 128), (97, 129), (512, 512), (500, 500), (100, 8192)])
@pytest.mark.parametrize(("vector_bytes", "registers"), [(16, 16), (32, 16), (64, 32)])
def test_chosen_blocks_and_tiles_are_legal_and_fit_the_registers(queries, keys, vector_bytes, registers):
    kernel = attention(1, queries, keys, 64, 64)
    chosen = schedule_for(kernel, vector_bytes, registers)
    verify_kernel(kernel, chosen)
    for m, n in (chosen.stages[0].scores, chosen.stages[0].sums):
        assert m * -(-n // (vector_bytes // 4)) <= registers * 3 // 4
    assert chosen.stages[0].keys <= 128 and chosen.stages[0].queries <= 96


def test_blocks_of_keys_are_even_where_the_length_allows_it():
    chosen = {keys: attend_schedule(attention(1, 64, keys).stages[0], 64, 32).keys for keys in (100, 256, 500, 333, 1024, 131)}
    assert chosen == {100: 100, 256: 128, 500: 125, 333: 111, 1024: 128, 131: 128}


def test_values_far_apart_are_copied():
    far = replace(attention(1, 512, 512, 64, 64).stages[0], value=load("a2", n=512, c=1))
    assert attend_schedule(far, 64, 32).copied and not attend_schedule(attention(1, 512, 512, 64, 64).stages[0], 64, 32).copied


@pytest.mark.parametrize(("keys", "scale"), [(1, 1.0), (2, 0.5), (3, 0.25), (128, 1 / 128), (129, 1 / 256)])
def test_weights_are_scaled_by_a_power_of_two_below_one_over_the_keys(keys, scale):
    assert weight_scale(attention(keys=keys).stages[0]) == scale


def test_the_cost_counts_both_contractions():
    flops = kernel_cost(attention(2, 64, 64, 32, 32)).flops
    assert 2 * 64 * 64 * 128 < flops < 2 * 64 * 64 * 200


# --------------------------------------------------------------------------- interpreter
def buffers(kernel, seed=0):
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.type.size).astype(p.type.dtype.numpy) for p in kernel.params if p.role == "in"}


def interpreted(kernel, given, schedule):
    out = np.zeros(kernel.params[-1].type.size, kernel.params[-1].type.dtype.numpy)
    run_kernel(kernel, schedule, {**given, "o0": out})
    return out


@pytest.mark.parametrize("keys", [3, 4, 5, 12])
def test_the_interpreter_computes_attention(keys):
    kernel = attention(keys=12)
    given = buffers(kernel)
    q, k, v = (a.astype(np.float64).reshape(2, -1, size) for a, size in zip(given.values(), (4, 4, 5)))
    s = q @ k.transpose(0, 2, 1) / 4
    e = np.exp(s - s.max(-1, keepdims=True))
    expected = (e / e.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(interpreted(kernel, given, plan(keys=keys)).reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


def test_the_block_of_keys_decides_the_bits_and_nothing_else_does():
    kernel = attention(keys=100)
    given = buffers(kernel)
    one = interpreted(kernel, given, plan(keys=30))
    assert np.array_equal(one, interpreted(kernel, given, plan(keys=30, queries=3, width=4, scores=(1, 1), sums=(1, 1), copied=True)))
    assert not np.array_equal(one, interpreted(kernel, given, plan(keys=31)))
