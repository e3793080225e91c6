"""Contractions by matrix registers: exact for bytes of any sign; of bf16 the same bits from them, from fmas and at every level."""

import itertools
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
from mlc.core.dataclass import replace
from mlc.core.errors import VerifyError
from mlc.kernel.schedule import schedule_for
from mlc.loop import interp
from mlc.loop.ir import Buffer, For, LoopKernel, Store, Tile, load, walk
from mlc.loop.lower import lower
from mlc.loop.text import parse_kernel, print_kernel, text_round_trips
from mlc.loop.verify import verify
from mlc.runtime.pairs import matrix_numbers
from mlc.stages import Stages

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
from machine import run, runnable_targets

RNG = np.random.default_rng(9)
BF16 = ml_dtypes.bfloat16
NATIVE = get_target("native")
NUMBERS = frozenset({dt.i8, dt.u8, dt.bf16})
HERE = matrix_numbers(NATIVE, ())
needs_matrices = pytest.mark.skipif(not HERE, reason="this CPU has no such registers")
# Rows, columns, depth: one register and two, something left over of rows, columns, words and bytes.
SIZES = [(32, 32, 128), (33, 47, 131), (8, 16, 260)]
# The same for bf16.
HALVES = [(32, 32, 64), (33, 47, 67)]
KINDS = [("i1", "i1"), ("u1", "u1"), ("u1", "i1"), ("i1", "u1")]
FORMS = ["ab", "abT", "aTb"]


def integers(shape, kind):
    info = np.iinfo(kind)
    found = RNG.integers(info.min, info.max, shape, endpoint=True).astype(kind)
    return np.where(RNG.random(shape) < 0.3, RNG.choice(np.array([info.min, info.max], kind), shape), found)


def normal(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(BF16)


def widened(a, b):
    return mlc.numpy.matmul(a.astype(np.int32), b.astype(np.int32))


def product(a, b):
    return mlc.numpy.matmul(a, b, preferred_element_type=np.float32)


def flipped(function):
    return {"ab": function, "abT": lambda a, b: function(a, b.T), "aTb": lambda a, b: function(a.T, b)}


def operands(form, a, b):
    return [a.T.copy() if form == "aTb" else a, b.T.copy() if form == "abT" else b]


def same(a, b):
    """Equal bits, any NaN being any NaN."""
    a, b = np.asarray(a), np.asarray(b).reshape(np.shape(a))
    known = ~(np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" or a.dtype == BF16 else np.ones(a.shape, bool)
    np.testing.assert_array_equal(a[known].reshape(-1).view(np.uint8), b[known].reshape(-1).view(np.uint8))


def lowered(function, args, fork_us=None):
    """Loops for matrix registers, whatever this machine has."""
    with mlc.options(**({} if fork_us is None else {"fork_us": fork_us})):
        made = Stages(mlc.jit(function).lower(*args)._captured.graph, get_target("generic"))
        (kernel,) = made.packed.kernels()
        schedule = schedule_for(kernel, 64, 32, matrices=NUMBERS)
    assert all(plan.block for plan in schedule.stages)
    loops = verify(lower(kernel, schedule), whole=True)
    text_round_trips(loops)
    return loops, [p.name for p in kernel.params]


def on_every_target(function, args, fork_us=None):
    """The answer, with the same bits from interpreted loops and from code for every target, which for this machine's own is by its registers."""
    loops, names = lowered(function, args, fork_us)
    given = dict(zip(names, (np.ascontiguousarray(a).reshape(-1) for a in args)))
    out = np.zeros(loops.buffer(names[-1]).size, loops.buffer(names[-1]).dtype.numpy)
    interp.run(loops, {**given, names[-1]: out})
    for target in runnable_targets():
        same(out, run([loops], [given], target)[0][names[-1]])
    return out


@pytest.mark.parametrize("form, kinds", [*((form, KINDS[0]) for form in FORMS), *(("ab", kinds) for kinds in KINDS[1:])])
def test_bytes_of_any_sign_are_exact(form, kinds):
    for m, n, k in SIZES:
        a, b = integers((m, k), kinds[0]), integers((k, n), kinds[1])
        found = on_every_target(flipped(widened)[form], operands(form, a, b))
        np.testing.assert_array_equal(found.reshape(m, n), a.astype("i4") @ b.astype("i4"))


@pytest.mark.parametrize("form, exponents", [("ab", (0, 50, 60, 100, 130)), ("abT", (0,)), ("aTb", (0,))])
def test_bf16_have_the_same_bits_by_registers_and_by_fmas_whatever_their_size(form, exponents):
    """On both sides of where sums become subnormal."""
    for (m, n, k), exponent in itertools.product(HALVES, exponents):
        scale = 2.0 ** -exponent
        a, b = normal(m, k, scale=scale), normal(k, n, scale=scale)
        found = on_every_target(flipped(product)[form], operands(form, a, b))
        wide = a.astype(np.float64), b.astype(np.float64)
        bound = k * (2.0 ** -24 * (np.abs(wide[0]) @ np.abs(wide[1])) + 2.0 ** -150)
        assert np.all(np.abs(found.reshape(m, n) - wide[0] @ wide[1]) <= bound)


def test_a_block_adds_its_upper_halves_and_its_lower_ones():
    (m, n, k), total = (32, 40, 80), np.zeros((32, 40), np.float32)
    a, b = normal(m, k), normal(k, n)
    for start in range(0, k, 32):
        halves = []
        for first in (1, 0):
            part = np.zeros_like(total)
            for step in range(start + first, min(start + 32, k), 2):
                part = (a[:, step:step + 1].astype(np.float64) * b[step:step + 1].astype(np.float64) + part).astype(np.float32)
            halves.append(part)
        total = total + (halves[0] + halves[1])
    same(total, on_every_target(product, [a, b]))


@pytest.mark.parametrize("name", hazards.HAZARDS)
def test_what_is_subnormal_is_kept(name):
    a, b = hazards.operands(name, 33, 70, 35)
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    assert np.count_nonzero(want)
    same(want, on_every_target(product, [a, b]))


def test_infinities_and_nans_come_out_as_from_fmas():
    a, b = normal(33, 65), normal(65, 40)
    b[:, 3], b[:, 4], a[5, 16], a[6, 60], a[7, 2], a[32, 64] = 0, -3e38, np.inf, -np.inf, np.nan, 3e38
    on_every_target(product, [a, b])


def test_rows_and_columns_are_cut_into_parallel_blocks():
    a, b = integers((2, 40, 130), "i1"), integers((2, 130, 70), "u1")
    np.testing.assert_array_equal(on_every_target(widened, [a, b], 0).reshape(2, 40, 70), np.matmul(a.astype("i4"), b.astype("i4")))
    a, b = normal(33, 64), normal(64, 100)
    same(on_every_target(product, [a, b], 0), on_every_target(product, [a, b], 1 << 40))


@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_sums_that_wrap_in_bytes_and_epilogues_read_the_sums(kind):
    a, b = integers((21, 145), kind), integers((145, 37), kind)
    np.testing.assert_array_equal(on_every_target(lambda a, b: a @ b, [a, b]).reshape(21, 37), a @ b)
    found = on_every_target(lambda a, b: mlc.numpy.maximum(widened(a, b) + 3, 0), [a, b])
    np.testing.assert_array_equal(found.reshape(21, 37), np.maximum(a.astype("i4") @ b.astype("i4") + 3, 0))


# --------------------------------------------------------------------------- this machine's registers
def compiled(function, args, **options):
    with mlc.options(check=2, **options):
        made = Stages(mlc.jit(function).lower(*args)._captured.graph, NATIVE)
        return made, made.build().run(args)[0]


def by_registers(made) -> bool:
    return any(isinstance(s, Tile) and s.block for loops in made.loops.values() for s in walk(loops.body)) and "llvm.x86.tdp" in made.module.text


@needs_matrices
@pytest.mark.parametrize("threads", [1, 2])
def test_programs_use_them_at_every_level(threads):
    a, b, c, d = integers((40, 130), "i1"), integers((130, 70), "u1"), normal(45, 66), normal(66, 100)
    for function, args in ((widened, [a, b]), (product, [c, d]), (lambda c, d: mlc.nn.gelu(c @ d), [c, d])):
        made, found = compiled(function, args, fork_us=0, threads=threads)
        assert by_registers(made)
        for level in (made.run_kernels(args), made.run_loops(args), made.run_planned(args)):
            same(found, level[0])


@needs_matrices
def test_constant_weights_are_read_in_panels_as_wide_as_two_registers():
    a, weights, c, halves = integers((40, 132), "i1"), integers((132, 70), "i1"), normal(40, 66), normal(66, 70)
    for function, x, w in ((lambda x, w: mlc.numpy.matmul(x, w, preferred_element_type=np.int32), a, weights), (product, c, halves)):
        made, found = compiled(lambda x, f=function, w=w: f(x, mlc.numpy.asarray(w)), [x])
        assert by_registers(made) and {v.packing.panels for v in made.kernels.values.values() if v.packing} == {32}
        same(found, compiled(function, [x, w])[1])


@needs_matrices
def test_options_turn_them_off():
    a, b, c, d = integers((40, 130), "i1"), integers((130, 40), "i1"), normal(45, 66), normal(66, 40)
    for function, args, option in ((widened, [a, b], "matrix"), (product, [c, d], "matrix"), (product, [c, d], "bf16_pairs")):
        assert not by_registers(compiled(function, args, **{option: "off"})[0])
    assert by_registers(compiled(widened, [a, b], bf16_pairs="off")[0]), "bytes are no bf16"


# --------------------------------------------------------------------------- what loops say
def tile_of(parts=(dt.i8, dt.i8), dtype=dt.i32, block=16, beside=None):
    a, b = load("a", dt.i32, Affine(0, (("r", 5), ("k", 1)))), load("b", dt.i32, Affine(0, (("k", 3), ("c", 1))))
    body = (Store("o", Affine(0, (("r", 3), ("c", 1))), ex.var("t", dtype)),)
    tile = Tile("t", dtype, "r", 2, "c", 3, "k", 5, 4, a, b, body, parts, beside=beside, block=block)
    return LoopKernel("dot", tuple(Buffer(n, t, s, role) for n, t, s, role in (
        ("a", dt.i32, 10, "in"), ("b", dt.i32, 15, "in"), ("o", dtype, 6, "out"))), (tile,))


def test_the_text_of_a_tile_names_its_blocks():
    kernel = verify(tile_of())
    assert "parts i8 i8 block 16 {" in print_kernel(kernel) and parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("wrong", [{"block": -1}, {"parts": ()}, {"block": 0}, {"parts": (dt.i16, dt.i16)}, {"dtype": dt.f32},
                                   {"beside": For("q", 1, ())}])
def test_other_blocks_are_refused(wrong):
    with pytest.raises(VerifyError, match=r"block|parts"):
        verify(tile_of(**wrong))


@pytest.mark.parametrize("change", [{"m": 33}, {"n": 33}, {"block": 8}, {"parts": (dt.u8, dt.i16)}])
def test_tiles_of_another_form_are_computed_by_vectors(change):
    """The same sums, whatever the registers hold."""
    from mlc.codegen.statements import KernelEmitter
    (tile,) = tile_of().body
    emitter = KernelEmitter(tile_of(), NATIVE, {}, {"a": "%a", "b": "%b", "o": "%o"})
    from mlc.codegen import matrix
    assert matrix.fits(emitter, tile) is bool({dt.i8} & set(HERE))
    assert not matrix.fits(emitter, replace(tile, **change))
