"""Which tile a contraction gets, what is copied, and that the text tells it."""

import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dataclass import replace
from mlc.core.dims import TensorType
from mlc.kernel.ir import Dot, Kernel, Param, Put
from mlc.kernel.schedule import Schedule, parse_schedule, schedule_for
from mlc.kernel.tiling import DOT_CHUNK, GROUP_BYTES, dot_chunk, grouped, paths, tile_schedule

AVX512, AVX2, SSE = (64, 32), (32, 16), (16, 16)


def dot(m, n, k, dtype=dt.f32, flip=False, epilogue=0):
    a = ex.make("load", dtype, (), ("a", Affine(0, (("m", k), ("k", 1)))))
    b = ex.make("load", dtype, (), ("b", Affine(0, (("n", k), ("k", 1)) if flip else (("k", n), ("n", 1)))))
    value = ex.var("t", dtype)
    for _ in range(epilogue):
        value = value * value
    return Dot("t", dtype, ("m", m), ("n", n), ("k", k), a, b, (Put("o", Affine(0, (("m", n), ("n", 1))), value),))


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE])
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 48, 5), (127, 129, 131), (512, 512, 512), (3, 1000, 7), (1000, 3, 7), (14, 16, 2)])
def test_accumulators_leave_room_for_both_operands(shape, dtype, target):
    plan = tile_schedule(dot(*shape, dtype), *target)
    vectors = -(-plan.n // plan.width)
    assert plan.m * vectors + vectors + 1 <= target[1] or plan.stream


@pytest.mark.parametrize("shape, tails", [((512, 512, 512), (None, 0)), ((64, 64, 64), (0, 0)), ((100, 96, 50), (None, 0))])
def test_tiles_that_divide_the_sizes_are_preferred(shape, tails):
    plan = tile_schedule(dot(*shape), *AVX512)
    assert all(size % tile == tail for size, tile, tail in zip(shape, (plan.m, plan.n), tails) if tail is not None)


@pytest.mark.parametrize("shape, flip, pack", [
    ((512, 512, 512), False, "b"), ((24, 512, 784), False, "b"), ((16, 512, 784), False, ""),
    ((64, 512, 512), False, "b"), ((64, 500, 500), False, ""), ((128, 3072, 768), False, "b"), ((128, 768, 768), False, "b"),
    ((16, 768, 768), False, ""), ((128, 250, 1200), False, ""),
    ((8, 512, 512), True, "b"), ((1, 512, 512), False, "")])
def test_the_right_operand_is_copied_where_it_is_large_or_unreadable(shape, flip, pack):
    assert tile_schedule(dot(*shape, flip=flip), *AVX512).pack == pack


@pytest.mark.parametrize("shape, several", [
    ((512, 512, 512), False), ((128, 3072, 768), False), ((1024, 1024, 1024), True), ((1000, 700, 900), True)])
def test_panels_are_copied_in_groups_where_rows_come_from_beyond_l2(shape, several):
    plan = tile_schedule(dot(*shape), *AVX512)
    assert (plan.group > 1) is several and plan.group * plan.n * shape[2] * 4 <= GROUP_BYTES


@pytest.mark.parametrize("shape, group", [
    ((512, 512, 512), 1), ((1024, 1024, 1024), 4), ((1536, 1536, 1536), 12), ((2048, 2048, 2048), 16), ((2048, 256, 2048), 4)])
def test_on_narrow_vectors_deep_panels_are_copied_in_wide_groups_of_which_threads_have_eight(shape, group):
    plan = tile_schedule(dot(*shape), *AVX2)
    assert (plan.n, plan.group) == (16, group)
    assert group <= 4 or shape[1] // (plan.group * plan.n) == 8


@pytest.mark.parametrize("shape, flip, target, ask", [
    ((512, 512, 512), False, AVX2, 8), ((512, 512, 512), True, AVX2, 0), ((512, 512, 512), False, AVX512, 0), ((16, 16, 16), False, AVX2, 0)])
def test_rows_are_asked_for_before_they_are_copied_where_vectors_are_narrow(shape, flip, target, ask):
    plan = tile_schedule(dot(*shape, flip=flip), *target)
    assert plan.ask == ask and parse_schedule(Schedule((plan,)).text()).stages == (plan,)


@pytest.mark.parametrize("shape, flip, beside", [
    ((64, 512, 784), False, True), ((128, 768, 3072), False, True), ((128, 3072, 768), False, True), ((128, 768, 768), True, False),
    ((512, 512, 512), False, False), ((1024, 1024, 1024), False, False), ((64, 64, 4096), False, False), ((100, 96, 50), False, False)])
def test_panels_are_copied_beside_others_where_some_tiles_pass_them(shape, flip, beside):
    plan = tile_schedule(dot(*shape, flip=flip), *AVX512)
    assert plan.beside is beside
    assert parse_schedule(Schedule((plan,)).text()).stages == (plan,)


@pytest.mark.parametrize("shape, beside", [((128, 768, 768), True), ((128, 256, 256), False), ((8, 768, 768), False)])
def test_panels_of_weights_are_asked_for_where_they_come_from_beyond_l2(shape, beside):
    plan = tile_schedule(replace(dot(*shape), panels=32), *AVX512)
    assert plan.beside is beside and not plan.pack


def test_large_products_get_tiles_of_few_loads():
    """Where that is worth the code."""
    plans = [tile_schedule(dot(n, n, n), *AVX512) for n in (256, 512, 1024, 2048)]
    assert [plan.m * -(-plan.n // plan.width) for plan in plans] == [16, 24, 24, 24]


@pytest.mark.parametrize("panels, most, wanted", [(8, 4, 4), (6, 4, 3), (7, 4, 1), (2, 4, 2), (1, 4, 1), (9, 1, 1)])
def test_groups_of_panels_are_alike(panels, most, wanted):
    assert grouped(panels, most) == wanted


def test_one_row_streams_the_matrix():
    plan = tile_schedule(dot(1, 5000, 64), *AVX512)
    assert plan.stream and plan.n < 5000


@pytest.mark.parametrize("epilogue, depth, staged", [(1, 64, False), (30, 64, True), (1, DOT_CHUNK + 1, True)])
def test_long_epilogues_and_deep_sums_go_through_scratch(epilogue, depth, staged):
    assert tile_schedule(dot(64, 96, depth, epilogue=epilogue), *AVX512).staged is staged


@pytest.mark.parametrize("depth", [0, 1, DOT_CHUNK, DOT_CHUNK + 1, 1536, 2048, 5000])
def test_chunks_are_as_even_as_they_can_be(depth):
    chunk = dot_chunk(depth)
    assert chunk <= DOT_CHUNK and (depth == 0 or -(-depth // chunk) == -(-depth // DOT_CHUNK))


@pytest.mark.parametrize("args, expected", [
    ((dot(64, 64, 64),), {"tile"}), ((dot(9, 65, 64),), {"tile", "tail"}), ((dot(1, 300, 8),), {"stream"}),
    ((dot(8, 64, 2048, flip=True),), {"tile", "pack", "deep", "staged"})])
def test_paths_tell_how_a_kernel_contracts(args, expected):
    kernel = Kernel("k", (), (), args)
    assert paths([(kernel, Schedule((tile_schedule(args[0], *AVX512),)))]) == expected


@pytest.mark.parametrize("shape, rest", [((100, 100, 100), (16, 4)), ((200, 200, 200), ()), ((128, 128, 128), ()), ((3, 100, 100), ())])
def test_a_narrow_last_panel_has_taller_tiles(shape, rest):
    plan = tile_schedule(dot(*shape), *AVX512)
    assert plan.rest == rest and parse_schedule(Schedule((plan,)).text()).stages == (plan,)


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE])
@pytest.mark.parametrize("shape", [(100, 100, 100), (127, 129, 131), (1000, 900, 700), (65, 33, 65), (16, 17, 16), (40, 1000, 7)])
def test_taller_tiles_leave_room_for_both_operands_too(shape, target):
    plan = tile_schedule(dot(*shape), *target)
    if plan.rest:
        vectors = -(-plan.rest[1] // plan.width)
        assert plan.rest[0] > plan.m and plan.rest[0] * vectors + vectors + 1 <= target[1]


@pytest.mark.parametrize("rows", (16, 32, 64, 127, 128, 512, 1000))
@pytest.mark.parametrize("target", (AVX512, AVX2), ids=("avx512", "avx2"))
def test_two_threads_share_products_of_any_width(rows, target):
    """Where blocks are pairs of panels, 160 columns would be one of 96 and a rest that waits for it."""
    for columns in (*range(64, 520, 16), 129, 250, 500, 700, 768, 1000, 1024, 3072):
        sizes = {"a": rows * 256, "b": 256 * columns, "o": rows * columns}
        params = tuple(Param(name, TensorType((size,), dt.f32), "out" if name == "o" else "in") for name, size in sizes.items())
        (cut,) = schedule_for(Kernel("dot", params, (), (dot(rows, columns, 256),)), *target).parallel or (("", 0),)
        axis, size = cut
        blocks, rest = divmod({"m": rows, "n": columns}.get(axis, 1), size or 1)
        if rows * columns >= 64 * 64:
            assert (blocks * size + rest) / (-(-blocks // 2) * size + rest) >= 1.5, (columns, cut)
