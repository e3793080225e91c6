"""Every element of an output is written: exact against marking each, silent where it cannot say, and catches a lowering that forgets."""

import random

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine, variable
from mlc.core.errors import VerifyError
from mlc.graph import parse_graph
from mlc.loop import coverage, lower_dot
from mlc.loop.coverage import first_unwritten
from mlc.loop.ir import Buffer, For, If, LoopKernel, Store
from mlc.loop.verify import verify
from mlc.stages import Stages


def marked(size, stores):
    """The first element that none of the stores reaches, by trying all of them."""
    reached = np.zeros(size, bool)
    for offset, terms in stores:
        places = np.array([offset])
        for c, extent in terms:
            places = np.add.outer(places, c * np.arange(extent)).reshape(-1)
        reached[places] = True
    return next((i for i in range(size) if not reached[i]), None)


def random_stores(rng):
    """Blocks and tails of a small array, in loops of any order and direction, with now and then one too short, left out or moved."""
    rows, columns = rng.randint(1, 9), rng.randint(1, 40)
    tile, height = rng.randint(1, 16), rng.randint(1, 4)
    stores = []
    for row, m in ((0, rows // height * height), (rows // height * height, rows % height)):
        for column, n in ((0, columns // tile * tile), (columns // tile * tile, columns % tile)):
            terms = [(columns, m), (tile, n // tile), (1, tile)] if n % tile == 0 else [(columns, m), (1, n)]
            offset = row * columns + column
            if rng.random() < 0.3 and terms[-1][1]:
                offset, terms[-1] = offset + terms[-1][1] - 1, (-1, terms[-1][1])
            rng.shuffle(terms)
            stores.append((offset, terms))
    if rng.random() < 0.3:
        stores.pop(rng.randrange(len(stores)))
    if rng.random() < 0.3:
        k = rng.randrange(len(stores)) if stores else None
        if k is not None:
            offset, terms = stores[k]
            at = rng.randrange(len(terms))
            stores[k] = offset, [(c, max(0, extent - (j == at))) for j, (c, extent) in enumerate(terms)]
    return rows * columns, stores


@pytest.mark.parametrize("seed", range(10))
def test_it_says_what_marking_every_element_says(seed):
    rng = random.Random(seed)
    missing = 0
    for _ in range(200):
        size, stores = random_stores(rng)
        assert first_unwritten(size, stores) == marked(size, stores)
        missing += marked(size, stores) is not None
    assert 20 < missing < 180


@pytest.mark.parametrize("size, stores, missing", [
    (0, [], None), (3, [], 0), (3, [(0, [])], 1), (4, [(0, [(1, 4)])], None), (4, [(0, [(1, 3)])], 3), (4, [(1, [(1, 3)])], 0),
    (6, [(0, [(2, 3)]), (1, [(2, 3)])], None), (6, [(0, [(2, 3)]), (1, [(2, 2)])], 5), (6, [(0, [(1, 4)]), (2, [(1, 4)])], None),
    (6, [(5, [(-1, 6)])], None), (6, [(0, [(1, 6), (3, 0)])], 0)])
def test_by_hand(size, stores, missing):
    assert first_unwritten(size, stores) == missing


def test_where_it_would_take_too_long_nothing_is_said(monkeypatch):
    stores = [(0, [(2, 50)]), (1, [(2, 40)])]
    assert first_unwritten(100, stores) == 81
    monkeypatch.setattr(coverage, "_MOST_RUNS", 80)
    assert first_unwritten(100, stores) is None


def test_a_kernel_of_a_program_that_leaves_an_element_out_is_refused():
    i = variable("i")
    kernel = LoopKernel("k", (Buffer("o", dt.f32, 20, "out"),), (For("i", 19, (Store("o", i, ex.const(1, dt.f32)),), "vector", 8),))
    assert verify(kernel) is kernel  # a kernel alone may leave the rest to others
    with pytest.raises(VerifyError, match=r"every_output_element_is_written.*%o.*element 19 is never stored"):
        verify(kernel, whole=True)
    full = LoopKernel("k", kernel.buffers, (*kernel.body, Store("o", Affine(19), ex.const(1, dt.f32))))
    assert verify(full, whole=True) is full


@pytest.mark.parametrize("then, other", [(20, 19), (19, 20)])
def test_both_ways_of_a_choice_have_to_fill_an_output(then, other):
    i, one = variable("i"), ex.const(1, dt.f32)
    ways = [(For("i", extent, (Store("o", i, one),)),) for extent in (then, other)]
    kernel = LoopKernel("k", (Buffer("o", dt.f32, 20, "out"),), (If(ex.const(1, dt.bool_), *ways),))
    with pytest.raises(VerifyError, match="element 19 is never stored"):
        verify(kernel, whole=True)
    full = LoopKernel("k", kernel.buffers, (If(ex.const(1, dt.bool_), ways[then < other], ways[then < other]),))
    assert verify(full, whole=True) is full


def test_a_lowering_that_forgets_the_last_rows_is_caught(monkeypatch):
    """The seeded fault: a remainder of the rows of a contraction gets no tile."""
    graph = parse_graph("graph @p(%x: f32[13,24], %w: f32[24,40]) -> f32[13,40] {\n"
                        "  %0 = dot_general %x, %w {contract=([1],[0])} : f32[13,40]\n  return %0\n}")
    with mlc.options(check=1, cache=False):
        assert Stages(graph, get_target("golden-v3")).loops
        blocks = lower_dot.blocks

        def forgetful(fresh, extent, size, body, kind="serial"):
            return blocks(fresh, extent // size * size, size, body, kind)
        monkeypatch.setattr(lower_dot, "blocks", forgetful)
        with pytest.raises(VerifyError, match="every_output_element_is_written"):
            assert Stages(graph, get_target("golden-v3")).loops
