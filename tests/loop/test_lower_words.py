"""Contractions of narrow integers in words: the same bits at every level and on every target, and the right ones."""

import sys
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import VerifyError
from mlc.kernel.schedule import schedule_for
from mlc.kernel.words import INTEGERS
from mlc.loop import interp
from mlc.loop.ir import Buffer, LoopKernel, Store, Tile, load, walk
from mlc.loop.lower import lower
from mlc.loop.text import parse_kernel, print_kernel, text_round_trips
from mlc.loop.verify import verify
from mlc.stages import Stages

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
from machine import run, runnable_targets

RNG = np.random.default_rng(5)
KINDS = [("i1", "i1"), ("u1", "u1"), ("u1", "i1"), ("i1", "u1"), ("i2", "i2"), ("i1", "i2")]


def integers(shape, kind):
    info = np.iinfo(kind)
    found = RNG.integers(info.min, info.max, shape, endpoint=True).astype(kind)
    return np.where(RNG.random(shape) < 0.3, RNG.choice(np.array([info.min, info.max], kind), shape), found)


def widened(a, b):
    return mlc.numpy.matmul(a.astype(np.int32), b.astype(np.int32))


FORMS = {"ab": widened, "abT": lambda a, b: widened(a, b.T), "aTb": lambda a, b: widened(a.T, b)}


def assert_exact(function, args, want, target="native"):
    made = Stages(mlc.jit(function).lower(*args)._captured.graph, get_target(target))
    with mlc.options(check=2):
        (found,) = made.build().run(args)
    np.testing.assert_array_equal(found, want)
    for level in (made.run_kernels(args), made.run_loops(args), made.run_planned(args)):
        np.testing.assert_array_equal(level[0], want)
    return made


def tiles(made):
    return [s for loops in made.loops.values() for s in walk(loops.body) if isinstance(s, Tile)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kinds", KINDS, ids="".join)
def test_every_level_is_exact(kinds, form):
    for m, n, k in ((8, 16, 16), (19, 70, 33), (9, 17, 62)):
        a, b = integers((m, k), kinds[0]), integers((k, n), kinds[1])
        want = a.astype("i4") @ b.astype("i4")
        args = [a.T.copy() if form == "aTb" else a, b.T.copy() if form == "abT" else b]
        made = assert_exact(FORMS[form], args, want)
        assert all(tile.parts for tile in tiles(made)) or not get_target("native").int16_dot


@pytest.mark.skipif("golden-v3" not in runnable_targets(), reason="this CPU has no AVX2")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kinds", KINDS, ids="".join)
def test_pairs_of_i16_are_exact_down_to_products_whose_sum_wraps(kinds, form):
    m, n, k = (9, 17, 62) if form == "ab" else (11, 21, 33)
    a, b = integers((m, k), kinds[0]), integers((k, n), kinds[1])
    a[:, :4], b[:4] = np.iinfo(a.dtype).min, np.iinfo(b.dtype).min
    args = [a.T.copy() if form == "aTb" else a, b.T.copy() if form == "abT" else b]
    made = assert_exact(FORMS[form], args, a.astype("i4") @ b.astype("i4"), "golden-v3")
    assert {tile.parts for tile in tiles(made)} == {(dt.i16, dt.i16)} and ".pmadd.wd" in made.module.text


@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_sums_that_wrap_in_bytes_are_exact(kind):
    a, b = integers((21, 45), kind), integers((45, 37), kind)
    assert_exact(lambda a, b: a @ b, [a, b], a @ b)


@pytest.mark.parametrize("n", [17, 18, 33, 35])
@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_the_last_lanes_of_byte_results_write_nothing_beside_them(kind, n):
    """Neither behind the last row, nor, where blocks of columns are done one after the other, into the next row."""
    a, b = integers((16, 21), kind), integers((21, n), kind)
    with mlc.options(fork_us=0):
        (loops,) = assert_exact(lambda a, b: a @ b, [a, b], a @ b).loops.values()
    run([loops], [{"a0": a.reshape(-1), "a1": b.reshape(-1)}], "native")


def test_constant_weights_are_read_in_panels():
    a, weights = integers((16, 132), "i1"), integers((132, 200), "i1")
    made = assert_exact(lambda a: widened(a, mlc.numpy.asarray(weights)), [a], a.astype("i4") @ weights.astype("i4"))
    assert any(v.packing for v in made.kernels.values.values())


def test_deep_sums_wrap():
    a, b = np.full((8, 1 << 16), -128, "i1"), np.full((1 << 16, 16), -128, "i1")
    made = Stages(mlc.jit(lambda a, b: widened(a, b)).lower(a, b)._captured.graph, get_target("native"))
    np.testing.assert_array_equal(made.build().run([a, b])[0], np.full((8, 16), 1 << 30, "i4"))


def test_an_epilogue_reads_the_sums():
    a, b = integers((19, 64), "i1"), integers((64, 40), "i1")
    assert_exact(lambda a, b: mlc.numpy.maximum(widened(a, b) + 3, 0), [a, b], np.maximum(a.astype("i4") @ b.astype("i4") + 3, 0))


def test_batches_and_blocks_of_columns_are_exact():
    a, b = integers((2, 17, 70), "i1"), integers((2, 70, 520), "i1")
    assert_exact(widened, [a, b], np.matmul(a.astype("i4"), b.astype("i4")))


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("kinds", [("i1", "i1"), ("i2", "i2")], ids="".join)
def test_targets_without_such_instructions_multiply_the_parts(kinds, target):
    a, b = integers((9, 18), kinds[0]), integers((18, 21), kinds[1])
    made = Stages(mlc.jit(widened).lower(a, b)._captured.graph, get_target(target))
    (kernel,) = made.packed.kernels()
    loops = verify(lower(kernel, schedule_for(kernel, 64, 32, words=INTEGERS)))
    text_round_trips(loops)
    names = [p.name for p in kernel.params]
    given = dict(zip(names, (a.reshape(-1), b.reshape(-1))))
    want, out = (a.astype("i4") @ b.astype("i4")).reshape(-1), np.zeros(9 * 21, "i4")
    interp.run(loops, {**given, names[-1]: out})
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(run([loops], [given], target)[0][names[-1]], want)


def tile_of(parts, dtype=dt.i32):
    a, b = load("a", dtype, Affine(0, (("r", 5), ("k", 1)))), load("b", dtype, Affine(0, (("k", 3), ("c", 1))))
    tile = Tile("t", dtype, "r", 2, "c", 3, "k", 5, 4, a, b, (Store("o", Affine(0, (("r", 3), ("c", 1))), ex.var("t", dtype)),), parts)
    return LoopKernel("dot", tuple(Buffer(n, dtype, s, role) for n, s, role in (("a", 10, "in"), ("b", 15, "in"), ("o", 6, "out"))), (tile,))


def test_the_text_of_a_tile_names_the_parts():
    kernel = tile_of((dt.u8, dt.i8))
    assert "vector(4) parts u8 i8 {" in print_kernel(kernel) and parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("parts, dtype", [((dt.u8, dt.u8), dt.i32), ((dt.i8, dt.i8), dt.i32), ((dt.u8, dt.i16), dt.i32), ((dt.i16, dt.i16), dt.u32)])
def test_other_parts_are_refused(parts, dtype):
    verify(tile_of((), dtype))
    with pytest.raises(VerifyError, match="parts"):
        verify(tile_of(parts, dtype))
