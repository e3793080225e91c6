"""argmax and argmin: positions in 32 bits, and no comparison of positions that arrive in order."""

import numpy as np
import pytest

import mlc
import mlc.numpy as mnp
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.kernel.ir import Reduce
from mlc.loop.positions import increases, later
from mlc.ops.base import op


def argmax(position, dtype=dt.f32):
    fold, member = op("argmax").reduce, position.dtype
    sides = [(ex.var(f"{side}.0", dtype), ex.var(f"{side}.1", member)) for side in "ab"]
    first = (ex.const(dtype.min, dtype), ex.const(member.max, member))
    return Reduce(("best", "at"), (dtype, member), first, (ex.make("load", dtype, (), ("x", Affine())), position), fold.combine(*sides))


def affine(offset=0, **terms):
    return ex.affine_value(Affine(offset, tuple(terms.items())))


@pytest.mark.parametrize("position,over,grows", (
    (affine(j=1), (("j", 9),), True), (affine(i=9, j=1), (("i", 4), ("j", 9)), True), (affine(i=9, j=1), (("j", 9), ("i", 4)), False),
    (affine(i=8, j=1), (("i", 4), ("j", 9)), False), (affine(j=-1), (("j", 9),), False), (affine(5, k=3, j=1), (("j", 9),), True),
    (affine(k=1), (("j", 9),), False), (ex.convert(affine(j=1), dt.i32), (("j", 9),), True), (ex.index("j") * ex.index("j"), (("j", 9),), False)))
def test_positions_that_grow_are_told_from_others(position, over, grows):
    assert increases(position, over) is grows


@pytest.mark.parametrize("dtype", (dt.f32, dt.i8, dt.bool_), ids=str)
def test_elements_in_order_need_no_comparison_of_positions(dtype):
    reduce = argmax(ex.convert(affine(j=1), dt.i32), dtype)
    positions = {ex.var("a.1", dt.i32), ex.var("b.1", dt.i32)}

    def compared(roots):
        return [e for e in ex.topological(roots) if e.op in ("lt", "le", "gt", "ge", "eq") and positions & set(e.args)]
    assert compared(reduce.combine) and not compared(later(reduce, (("j", 9),)))
    assert later(reduce, (("j", 9), ("i", 2))) == reduce.combine


def test_narrowed_indices_are_no_affine_form():
    narrow = ex.convert(ex.convert(ex.index("j"), dt.i8), dt.i64)
    assert ex.affine_of(narrow) is None and ex.affine_of(ex.index("j") * 3 + 4) == Affine(4, (("j", 3),))


@pytest.mark.parametrize("name", ("argmax", "argmin"))
@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.float16, np.int8, np.uint32, np.bool_), ids=lambda d: d.__name__)
@pytest.mark.parametrize("case", ("ties", "nan", "worst", "mostly worst"))
def test_the_first_of_the_best_is_found_along_every_axis(name, dtype, case):
    draw = np.random.default_rng(3)
    for shape in ((5, 67), (3, 4, 37), (300,), (40, 3, 5)):
        x = draw.integers(-3, 4, shape).astype(dtype)
        kind = dt.as_dtype(dtype)
        worst = dtype(ex.const_value(ex.const(kind.min if name == "argmax" else kind.max, kind)))
        if case == "nan" and dtype().dtype.kind == "f":
            x[draw.random(shape) < 0.05] = np.nan
        elif case in ("worst", "mostly worst"):
            x[draw.random(shape) < (1 if case == "worst" else 0.9)] = worst
        for axis in (None, *range(len(shape))):
            found = mlc.jit(lambda x, axis=axis: getattr(mnp, name)(x, axis=axis))(x)
            np.testing.assert_array_equal(np.asarray(found), getattr(np, name)(x, axis=axis))


def test_a_narrow_position_from_a_large_step_wraps():
    found = mlc.jit(lambda: (mnp.arange(70, dtype=mnp.int64) * (2**40 + 3)).astype(mnp.int32))()
    np.testing.assert_array_equal(np.asarray(found), (np.arange(70) * (2**40 + 3)).astype(np.int32))
