"""Contractions as loops: every way of going about one gives the same bits at every level, and the right numbers."""

import ml_dtypes
import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.kernel import tiling
from mlc.kernel.tiling import paths
from mlc.loop.ir import Ask, For, Tile, walk
from mlc.stages import Stages

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(11)
FORMS = {
    "ab": (lambda a, b: a @ b, False, False), "abT": (lambda a, b: a @ b.T, False, True), "aTb": (lambda a, b: a.T @ b, True, False),
    "relu": (lambda a, b: mlc.nn.relu(a @ b + 1.5), False, False), "gelu": (lambda a, b: mlc.nn.gelu(a @ b), False, False)}
SHAPES = [(1, 1, 1), (33, 65, 20), (1, 200, 70), (40, 33, 33), (1, 2100, 5), (1, 130, 1030), (2, 130, 10), (3, 17, 1030)]


def stages(function, *args, target="native"):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target(target))


def operands(form, m, n, k, dtype):
    a, b = (RNG.normal(size=shape).astype(dtype) for shape in ((m, k), (k, n)))
    _, left, right = FORMS[form]
    return np.ascontiguousarray(a.T) if left else a, np.ascontiguousarray(b.T) if right else b


def assert_every_level_agrees(made, args):
    with np.errstate(all="ignore"):
        (want,) = made.build().run(args)
        for level in (made.run_kernels(args), made.run_loops(args), made.run_planned(args)):
            assert np.array_equal(level[0], want)
    return want


@pytest.mark.parametrize("target", ["native", "golden-v3"])
@pytest.mark.parametrize("form", FORMS)
def test_every_level_gives_the_same_bits(form, target):
    for m, n, k in SHAPES if form == "ab" else SHAPES[:4]:
        for dtype in ("f4", "f8") if target == "native" else ("f4",):
            a, b = operands(form, m, n, k, dtype)
            with mlc.options(check=1):
                found = assert_every_level_agrees(stages(FORMS[form][0], a, b, target=target), [a, b])
            exact = (a.T if form == "aTb" else a).astype("f8") @ (b.T if form == "abT" else b).astype("f8")
            if form in ("ab", "abT", "aTb"):
                assert np.allclose(found, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", ["ab", "gelu"])
def test_taller_tiles_in_the_last_panel_give_the_same_bits(form):
    a, b = operands("ab", 100, 100, 100 if form == "ab" else 1100, "f4")
    made = stages(FORMS[form][0], a, b)
    assert any(plan.rest for schedule in made.schedules.values() for plan in schedule.stages)
    with mlc.options(check=2):
        assert_every_level_agrees(made, [a, b])


@pytest.mark.parametrize("form, k", [("ab", 40), ("abT", 40), ("aTb", 40), ("gelu", 40), ("ab", 1100)])
def test_groups_of_panels_give_the_same_bits(form, k, monkeypatch):
    a, b = operands(form, 40, 210, k, "f4")
    alone = stages(FORMS[form][0], a, b).build().run([a, b])[0]
    for name, value in {"L2_BYTES": 1024, "PACK_BYTES": 1024, "PACK_ROWS": 16, "GROUP_BYTES": 1 << 20}.items():
        monkeypatch.setattr(tiling, name, value)
    made = stages(FORMS[form][0], a, b)
    assert any(plan.group > 1 for schedule in made.schedules.values() for plan in schedule.stages if isinstance(plan, tiling.TileSchedule))
    with mlc.options(check=2):
        assert np.array_equal(assert_every_level_agrees(made, [a, b]), alone)


@pytest.mark.parametrize("form, rows", [("ab", tiling.NARROW_ASK), ("abT", 0)])
def test_rows_of_b_are_asked_for_before_they_are_copied_where_vectors_are_narrow(form, rows):
    made = stages(FORMS[form][0], *operands(form, 64, 160, 128, "f4"), target="golden-v3")
    (loops,) = made.loops.values()
    first = next(s for s in walk(loops.body) if isinstance(s, For) and s.var == "k")
    asked = [s for s in walk((first,)) if isinstance(s, Ask)]
    assert [a.buffer for a in asked] == ["a1"] * bool(rows) and all(a.index.offset == rows * 160 for a in asked)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("form, m, n, k", [("ab", 32, 256, 40), ("ab", 37, 300, 41), ("gelu", 37, 300, 36), ("relu", 33, 300, 1100)])
def test_panels_copied_beside_others_give_the_same_bits(form, m, n, k, constant, monkeypatch):
    a, b = operands("ab", m, n, k, "f4")
    function, args = (lambda a: FORMS[form][0](a, mlc.numpy.asarray(b)), [a]) if constant else (FORMS[form][0], [a, b])
    alone = stages(function, *args).build().run(args)[0]
    for name, value in {"PACK_BYTES": 1024, "PACK_ROWS_ALIASED": 8}.items():
        monkeypatch.setattr(tiling, name, value)
    made = stages(function, *args)
    (plan,) = [plan for schedule in made.schedules.values() for plan in schedule.stages]
    assert plan.beside and bool(plan.pack) is not constant
    tiles = [s for loops in made.loops.values() for s in walk(loops.body) if isinstance(s, Tile)]
    assert any(tile.beside for tile in tiles)
    with mlc.options(check=2):
        assert np.array_equal(assert_every_level_agrees(made, args), alone)


@pytest.mark.parametrize("dtype", ["f2", "i1", "i4"])
def test_narrow_and_integer_operands_are_copied_right(dtype):
    a, b = ((RNG.normal(size=s) * 5).astype(dtype) for s in ((40, 33), (33, 130)))
    assert_every_level_agrees(stages(lambda a, b: a @ b, a, b), [a, b])


@pytest.mark.parametrize("form", ["ab", "abT", "aTb", "constant"])
@pytest.mark.parametrize("dtype", ["f2", BF16], ids=["f16", "bf16"])
def test_halves_are_widened_once_for_all_panels_of_a_group(form, dtype):
    """Where a is contiguous along its rows by turning squares of it, which are loads of vectors; a constant b from its own panels."""
    a, b = operands(form if form in FORMS else "ab", 37, 320, 41, dtype)
    constant = form == "constant"
    with mlc.options(bf16_pairs="off", check=2):
        args = [a] if constant else [a, b]
        made = stages((lambda a: a @ mlc.numpy.asarray(b)) if constant else FORMS[form][0], *args)
        found = assert_every_level_agrees(made, args)
    (plan,) = [plan for schedule in made.schedules.values() for plan in schedule.stages if isinstance(plan, tiling.TileSchedule)]
    assert plan.pack == "ab" and plan.group > 1
    x, y = (a.T if form == "aTb" else a).astype("f8"), (b.T if form == "abT" else b).astype("f8")
    np.testing.assert_allclose(found.astype("f8"), x @ y, rtol=2 ** -8, atol=2e-2)
    copies = [loop for loops in made.loops.values() for loop in walk(loops.body) if isinstance(loop, For) and loop.kind == "unroll"]
    assert bool(copies) is (form in ("abT", "aTb"))


def test_a_large_left_operand_that_jumps_is_turned_first():
    a, b = RNG.normal(size=(300, 1024)).astype("f4"), RNG.normal(size=(300, 260)).astype("f4")
    made = stages(lambda a, b: a.T @ b, a, b)
    (kernel,) = made.kernels.kernels()
    assert len(kernel.stages) == 2
    assert np.allclose(made.build().run([a, b])[0], a.T @ b, atol=1e-3)


@pytest.mark.parametrize("m, n, k, way", [(1, 300, 40, "stream"), (8, 64, 1500, "deep"), (17, 65, 64, "tail"), (8, 64, 64, "tile")])
def test_the_shapes_above_take_every_way(m, n, k, way):
    a, b = operands("ab", m, n, k, "f4")
    assert way in paths(stages(FORMS["ab"][0], a, b).schedules.items())



@pytest.mark.parametrize("batch", [1, 3])
def test_batches_and_blocks_of_columns_agree(batch):
    a, b = RNG.normal(size=(batch, 33, 100)).astype("f4"), RNG.normal(size=(batch, 100, 520)).astype("f4")
    found = assert_every_level_agrees(stages(lambda a, b: a @ b, a, b), [a, b])
    assert np.allclose(found, a.astype("f8") @ b.astype("f8"), atol=1e-3)
