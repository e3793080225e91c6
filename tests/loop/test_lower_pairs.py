"""Contractions of bf16 in pairs: right in every case that the instruction is wrong in, and with the same bits at every level."""

import sys
from pathlib import Path

import hazards
import ml_dtypes
import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import VerifyError
from mlc.kernel.schedule import schedule_for
from mlc.loop import interp, lower_words
from mlc.loop.ir import Buffer, If, LoopKernel, Store, Tile, load, walk
from mlc.loop.lower import lower
from mlc.loop.text import parse_kernel, print_kernel, text_round_trips
from mlc.loop.verify import verify
from mlc.runtime.pairs import two_fmas
from mlc.stages import Stages

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
from machine import run, runnable_targets

RNG = np.random.default_rng(8)
BF16 = ml_dtypes.bfloat16
NATIVE = get_target("native")
PAIRED = NATIVE.bf16_dot and two_fmas()
needs_pairs = pytest.mark.skipif(not PAIRED, reason="this CPU has no such instruction")


def product(a, b):
    return mlc.numpy.matmul(a, b, preferred_element_type=np.float32)


def normal(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(BF16)


def stages(function, args, fork_us=None, pairs="on"):
    with mlc.options(bf16_pairs=pairs, check=2, **({} if fork_us is None else {"fork_us": fork_us})):
        made = Stages(mlc.jit(function).lower(*args)._captured.graph, NATIVE)
        return made, made.build().run(args)[0]


def same(a, b):
    """Equal bits, any NaN being any NaN."""
    bits = np.uint16 if a.dtype == BF16 else np.uint32
    np.testing.assert_array_equal(np.where(np.isnan(a), 0, a.view(bits)), np.where(np.isnan(b), 0, b.view(bits)))


def check(function, args, fork_us=None):
    """The answer, which has the same bits at every level."""
    made, found = stages(function, args, fork_us)
    assert not PAIRED or any(isinstance(s, If) for loops in made.loops.values() for s in walk(loops.body))
    for level in (made.run_kernels(args), made.run_loops(args), made.run_planned(args)):
        same(level[0], found)
    return found


def in_steps(a, b):
    """Sums in f32, one product after the other: of two steps the second comes first where there are pairs. Exact products, rounded once a step
    by float64, whose rounding only differs from that of an fma where the sum is cut twice."""
    depth = a.shape[1]
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in np.arange(depth + depth % 2) ^ PAIRED:
        if k < depth:
            total = (a[:, k:k + 1].astype(np.float64) * b[k:k + 1].astype(np.float64) + total).astype(np.float32)
    return total


@pytest.mark.parametrize("m,k,n,form", [(37, 63, 70, "ab"), (37, 63, 70, "abT"), (37, 63, 70, "aTb"), (33, 64, 49, "ab"), (33, 64, 49, "abT"),
                                        (32, 1027, 32, "ab"), (32, 2049, 33, "aTb")])
def test_every_level_has_the_same_bits(m, k, n, form):
    a, b = normal(m, k), normal(k, n)
    want = a.astype(np.float64) @ b.astype(np.float64)
    forms = {"ab": product, "abT": lambda a, b: product(a, b.T), "aTb": lambda a, b: product(a.T, b)}
    found = check(forms[form], [a.T.copy() if form == "aTb" else a, b.T.copy() if form == "abT" else b])
    bound = k * 2.0 ** -24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
    assert np.all(np.abs(found - want) <= bound)


@needs_pairs
def test_of_two_steps_the_second_is_added_first():
    a, b = normal(32, 63), normal(63, 40)
    np.testing.assert_array_equal(check(product, [a, b]), in_steps(a, b))


@needs_pairs
@pytest.mark.parametrize("scale", [1.0, 2.0 ** -50, 2.0 ** -60, 2.0 ** -100, 2.0 ** -130])
def test_the_instruction_and_fmas_give_the_same_bits_whatever_the_size(scale):
    """On both sides of where sums become subnormal; generic code has fmas only."""
    a, b = normal(40, 50, scale=scale), normal(50, 40, scale=scale)
    made, found = stages(product, [a, b])
    (loops,) = made.loops.values()
    other = run([loops], [{"a0": a.reshape(-1), "a1": b.reshape(-1)}], "generic")[0]["o0"]
    same(found, other.reshape(found.shape))
    same(found, made.run_loops([a, b])[0])


@needs_pairs
@pytest.mark.parametrize("name", hazards.HAZARDS)
@pytest.mark.parametrize("shape", [(32, 16, 32), (33, 17, 35)])
def test_what_is_subnormal_is_kept(name, shape):
    a, b = hazards.operands(name, *shape)
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    assert np.count_nonzero(want)
    same(check(product, [a, b]), want)


@needs_pairs
def test_without_the_look_subnormal_sums_would_be_lost(monkeypatch):
    """So that the tests above would notice."""
    a, b = np.full((32, 16), 2.0 ** -70, BF16), np.full((16, 32), 2.0 ** -65, BF16)
    want = np.full((32, 32), 2.0 ** -131, np.float32)
    same(check(product, [a, b]), want)
    monkeypatch.setattr(lower_words, "EXPONENTS", 0)
    assert not np.any(stages(product, [a, b])[1])


@needs_pairs
@pytest.mark.parametrize("exponents, enough", [((-57, -56), False), ((-56, -55), True), ((-110, -2), True), ((-127, 60), False)])
def test_the_least_exponents_decide(exponents, enough):
    """Of what is not zero; where they do not suffice, products of 8 bits each would have bits below the least normal number."""
    a, b = (np.full(shape, 1.9921875 * 2.0 ** e, np.float32).astype(BF16) for shape, e in zip(((32, 16), (16, 32)), exponents))
    a[3, :5], b[7, 3:] = 0, 0
    made, found = stages(product, [a, b])
    (loops,) = made.loops.values()
    body = [s for s in loops.body if not isinstance(s, If)]
    flag = LoopKernel("flag", (*loops.buffers, Buffer("flag", dt.bool_, 1, "out")), (
        *body[:-1], Store("flag", Affine(), ex.var(lower_words.normal(made.packed.kernels()[0].stages[0]), dt.bool_))))
    said = np.zeros(1, bool)
    interp.run(flag, {"a0": a.reshape(-1), "a1": b.reshape(-1), "o0": np.zeros(32 * 32, np.float32), "flag": said})
    assert said[0] == enough
    same(found, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("place", [(0, 0), (5, 16), (31, 16)])
def test_infinities_and_nans_come_out_as_from_fmas(place):
    for value in (np.inf, -np.inf, np.nan, 3e38):
        a, b = normal(32, 17), normal(17, 40)
        b[:, 3] = 0
        b[:, 4] = -3e38
        a[place] = value
        with np.errstate(all="ignore"):
            want = in_steps(a, b)
            found = check(product, [a, b])
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(want))


def test_zeros_only():
    zeros = np.zeros((32, 17), BF16)
    for a, b in ((zeros, normal(17, 32)), (normal(32, 17), zeros.T.copy()), (zeros, zeros.T.copy())):
        same(check(product, [a, b]), np.zeros((32, 32), np.float32))


@pytest.mark.parametrize("tiny", [False, True])
def test_batches_and_blocks_have_the_same_bits_on_any_number_of_threads(tiny):
    for a, b in ((normal(3, 40, 33), normal(3, 33, 50)), (normal(64, 50), normal(50, 300))):
        if tiny:
            a[..., 0, 0] = hazards.SMALLEST
        want = check(product, [a, b], fork_us=0)
        with mlc.options(bf16_pairs="on", fork_us=0, threads=2, cache=False):
            same(mlc.jit(product)(a, b), want)


@pytest.mark.parametrize("tiny", [False, True])
def test_constant_weights_are_read_in_panels(tiny):
    a, weights = normal(40, 64), normal(64, 200)
    if tiny:
        weights[63, 199] = hazards.SMALLEST
    made, found = stages(lambda a: a @ mlc.numpy.asarray(weights), [a])
    assert any(v.packing for v in made.kernels.values.values())
    same(made.run_loops([a])[0], found)
    same(stages(lambda a, w: a @ w, [a, weights])[1], found)


def test_an_epilogue_reads_the_rounded_sums():
    a, b, bias = normal(40, 33), normal(33, 50), normal(50)
    found = check(lambda a, b, bias: mlc.nn.gelu(a @ b + bias), [a, b, bias])
    made = stages(lambda a, b: a @ b, [a, b])[1]
    want = mlc.jit(lambda x, bias: mlc.nn.gelu(x + bias))(made, bias)
    same(found, want)


@pytest.mark.parametrize("target", runnable_targets())
def test_targets_without_the_instruction_multiply_the_halves(target):
    a, b = normal(33, 19), normal(19, 37)
    made, _ = stages(product, [a, b], pairs="off")
    (kernel,) = made.packed.kernels()
    loops = verify(lower(kernel, schedule_for(kernel, 64, 32, words={dt.bf16})))
    text_round_trips(loops)
    given = {"a0": a.reshape(-1), "a1": b.reshape(-1)}
    out = np.zeros(33 * 37, np.float32)
    interp.run(loops, {**given, "o0": out})
    same(run([loops], [given], target)[0]["o0"], out)


def tile_of(parts=(dt.bf16, dt.bf16), dtype=dt.f32, normal=False):
    a, b = load("a", dt.i32, Affine(0, (("r", 5), ("k", 1)))), load("b", dt.i32, Affine(0, (("k", 3), ("c", 1))))
    body = (Store("o", Affine(0, (("r", 3), ("c", 1))), ex.var("t", dtype)),)
    tile = Tile("t", dtype, "r", 2, "c", 3, "k", 5, 4, a, b, body, parts, normal)
    return LoopKernel("dot", tuple(Buffer(n, t, s, role) for n, t, s, role in (
        ("a", dt.i32, 10, "in"), ("b", dt.i32, 15, "in"), ("o", dtype, 6, "out"))), (tile,))


def test_the_text_of_a_tile_says_that_nothing_is_subnormal():
    kernel = verify(tile_of(normal=True))
    assert "parts bf16 bf16 normal {" in print_kernel(kernel) and parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("wrong", [{"dtype": dt.i32}, {"parts": (dt.bf16, dt.f16)}, {"parts": (dt.i16, dt.i16), "dtype": dt.i32, "normal": True}])
def test_other_tiles_are_refused(wrong):
    with pytest.raises(VerifyError):
        verify(tile_of(**wrong))
