"""Loops, variables, memory access and reductions: machine code against the loop interpreter, bit for bit, and against NumPy."""

import numpy as np
import pytest
from machine import run, runnable_targets, same_bits

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine, variable
from mlc.loop import interp
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, LoopKernel, Store, load
from mlc.loop.verify import verify

I, J, K = variable("i"), variable("j"), variable("k")
EXTENTS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 127, 130)
TARGETS = runnable_targets()


def fill(dtype, size, seed=0):
    rng = np.random.default_rng(seed + size)
    if dtype is dt.bool_:
        return rng.integers(0, 2, size).astype(np.bool_)
    if dtype.is_int:
        return rng.integers(max(dtype.min, -100), min(dtype.max, 100), size).astype(dtype.numpy)
    return rng.standard_normal(size).astype(np.float32).astype(dtype.numpy)


def check(kernels, target, seed=0):
    """Each kernel on random data gives what the interpreter gives, in every "out" buffer; returns inputs and outputs."""
    given = []
    for kernel in kernels:
        verify(kernel)
        given.append({b.name: fill(b.dtype, b.size, seed + i) for i, b in enumerate(kernel.buffers) if b.role != "scratch"})
    found = run(kernels, given, target)
    for kernel, arrays, out in zip(kernels, given, found):
        wanted = {name: a.copy() for name, a in arrays.items()}
        interp.run(kernel, wanted)
        for buffer in kernel.buffers:
            if buffer.role == "out":
                same = same_bits(out[buffer.name], wanted[buffer.name])
                where = np.flatnonzero(~same)
                assert same.all(), (f"kernel {kernel.name} %{buffer.name}: {where.size} of {same.size} differ, first at {where[0]}: "
                                    f"{out[buffer.name][where[0]]!r}, wanted {wanted[buffer.name][where[0]]!r}")
    return list(zip(given, found))


def buffers(*specs):
    return tuple(Buffer(name, dtype, size, role) for name, dtype, size, role in specs)


# --------------------------------------------------------------------------- access
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.i64, dt.u8, dt.bool_, dt.f16, dt.bf16], ids=str)
def test_strided_reversed_and_broadcast_access(dtype, target):
    kernels = []
    for extent in (1, 7, 16, 33):
        for stride in (1, -1, 0, 2, 3, -2, 5):
            first = -stride * (extent - 1) if stride < 0 else 0
            size = abs(stride) * (extent - 1) + 4
            source, place = Affine(first + 3, {"i": stride}), Affine(first + 1, {"i": stride})
            kernels.append(LoopKernel(f"load{stride}_{extent}", buffers(("x", dtype, size, "in"), ("o", dtype, extent, "out")),
                                      (For("i", extent, (Store("o", I, load("x", dtype, source)),), "vector", 16),)))
            if stride:
                kernels.append(LoopKernel(f"store{stride}_{extent}", buffers(("x", dtype, extent, "in"), ("o", dtype, size, "out")),
                                          (For("i", extent, (Store("o", place, load("x", dtype, I)),), "vector", 16),)))
    check(kernels, target)


@pytest.mark.parametrize("target", TARGETS)
def test_index_values_follow_lanes_loops_and_unrolled_loops(target):
    value = ex.convert(ex.index("i"), dt.i32) * 1000 + ex.convert(ex.index("j"), dt.i32) * 7
    kernels = [LoopKernel(f"index_{outer}_{inner}", buffers(("o", dt.i32, 5 * 21, "out")),
                          (For("j", 5, (For("i", 21, (Store("o", J * 21 + I, value),), inner, 16 if inner == "vector" else 1),), outer),))
               for outer in ("serial", "parallel", "unroll") for inner in ("serial", "vector", "unroll")]
    for _, out in check(kernels, target):
        assert (out["o"].reshape(5, 21) == np.arange(21) * 1000 + np.arange(5)[:, None] * 7).all()


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_other_than_one_are_true(target):
    """NumPy bools made by a view may hold any byte; what is stored is 0 or 1."""
    kernel = LoopKernel("bools", buffers(("x", dt.bool_, 19, "in"), ("o", dt.bool_, 19, "out")),
                        (For("i", 19, (Store("o", I, load("x", dt.bool_, I)),), "vector", 16),))
    given = np.arange(0, 19 * 13, 13, dtype=np.uint8).view(np.bool_)
    out = run([kernel], [{"x": given}], target)[0]["o"]
    assert out.view(np.uint8).tolist() == [0] + [1] * 18


@pytest.mark.parametrize("target", TARGETS)
def test_halves_are_moved_without_a_change_of_bits(target):
    """Signalling NaNs, too: copying is no arithmetic."""
    kernels = [LoopKernel(f"copy_{dtype}", buffers(("x", dtype, 1 << 16, "in"), ("o", dtype, 1 << 16, "out")),
                          (For("i", 1 << 16, (Store("o", I, load("x", dtype, I)),), "vector", 32),)) for dtype in (dt.f16, dt.bf16)]
    every = np.arange(1 << 16, dtype=np.uint16)
    for kernel, out in zip(kernels, run(kernels, [{"x": every.view(k.buffers[0].dtype.numpy)} for k in kernels], target)):
        assert (out["o"].view(np.uint16) == every).all(), kernel.name


# --------------------------------------------------------------------------- variables
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.i32, dt.i8, dt.f16, dt.bf16], ids=str)
def test_lane_accumulators_ignore_what_lies_past_the_end(dtype, target):
    kernels = []
    for extent in EXTENTS:
        for width in (16, 64):
            acc = ex.var("acc", dtype)
            kernels.append(LoopKernel(f"sum_{extent}_{width}", buffers(("x", dtype, extent, "in"), ("o", dtype, 1, "out")), (
                Decl("acc", dtype, width, ex.const(3, dtype)),
                For("i", extent, (Assign(("acc",), (acc + load("x", dtype, I),)),), "vector", width),
                Fold(("s",), ("acc",), (ex.var("a.0", dtype) + ex.var("b.0", dtype),)),
                Store("o", Affine(), ex.var("s", dtype)))))
    for given, out in check(kernels, target):
        if dtype is dt.i32:
            width = (out["o"][0] - given["x"].sum()) // 3
            assert width in (16, 64)


@pytest.mark.parametrize("target", TARGETS)
def test_any_all_and_parity_of_bools(target):
    kernels = []
    for extent in EXTENTS:
        for op, first in (("or", 0), ("and", 1), ("xor", 0)):
            kernels.append(LoopKernel(f"{op}_{extent}", buffers(("x", dt.bool_, extent, "in"), ("o", dt.bool_, 1, "out")), (
                Decl("acc", dt.bool_, 64, ex.const(first, dt.bool_)),
                For("i", extent, (Assign(("acc",), (ex.binary(op, ex.var("acc", dt.bool_), load("x", dt.bool_, I)),)),), "vector", 64),
                Fold(("s",), ("acc",), (ex.binary(op, ex.var("a.0", dt.bool_), ex.var("b.0", dt.bool_)),)),
                Store("o", Affine(), ex.var("s", dt.bool_)))))
    for i, (given, out) in enumerate(check(kernels, target)):
        assert out["o"][0] == [np.any, np.all, lambda x: x.sum() % 2][i % 3](given["x"])


@pytest.mark.parametrize("target", TARGETS)
def test_widths_that_are_no_power_of_two(target):
    x = load("x", dt.f32, I)
    kernels = [LoopKernel(f"width48_{extent}", buffers(("x", dt.f32, extent, "in"), ("o", dt.f32, extent, "out"), ("p", dt.f32, 1, "out")), (
        Decl("last", dt.f32, 48, ex.const(0, dt.f32)),
        For("i", extent, (Store("o", I, x + ex.var("last", dt.f32)), Assign(("last",), (ex.var("last", dt.f32) + x * 2.0,))), "vector", 48)))
        for extent in (3, 40, 48, 90)]
    check(kernels, target)


@pytest.mark.parametrize("target", TARGETS)
def test_argmax_folds_a_pair_of_variables(target):
    def pick(value, index, best, at):
        better = (value > best) | (ex.eq(value, best) & (index < at))
        return ex.select(better, value, best), ex.select(better, index, at)

    kernels = []
    for extent in EXTENTS:
        best, at = ex.var("best", dt.f32), ex.var("at", dt.i64)
        sides = [ex.var(name, d) for name, d in (("a.0", dt.f32), ("a.1", dt.i64), ("b.0", dt.f32), ("b.1", dt.i64))]
        kernels.append(LoopKernel(f"argmax_{extent}", buffers(("x", dt.f32, extent, "in"), ("o", dt.i64, 1, "out")), (
            Decl("best", dt.f32, 16, ex.const(-np.inf, dt.f32)), Decl("at", dt.i64, 16, ex.const(0, dt.i64)),
            For("i", extent, (Assign(("best", "at"), pick(load("x", dt.f32, I), ex.index("i"), best, at)),), "vector", 16),
            Fold(("b", "a"), ("best", "at"), pick(*sides)), Store("o", Affine(), ex.var("a", dt.i64)))))
    for given, out in check(kernels, target):
        assert out["o"][0] == given["x"].argmax()


@pytest.mark.parametrize("target", TARGETS)
def test_assignments_read_before_they_write(target):
    a, b = ex.var("a", dt.i32), ex.var("b", dt.i32)
    kernels = [LoopKernel(f"fibonacci_{n}", buffers(("o", dt.i32, n + 2, "out")), (
        Decl("a", dt.i32, 1, ex.const(0, dt.i32)), Decl("b", dt.i32, 1, ex.const(1, dt.i32)),
        For("i", n, (Store("o", I, a), Assign(("a", "b"), (b, a + b)))),
        Store("o", Affine(n), a), Store("o", Affine(n + 1), b))) for n in (1, 2, 13)]
    assert [out["o"][-1] for _, out in check(kernels, target)] == [1, 2, 377]


@pytest.mark.parametrize("target", TARGETS)
def test_variables_of_the_same_name_in_sibling_and_nested_loops(target):
    x = load("x", dt.f32, I * 9 + J)
    acc = ex.var("acc", dt.f32)
    inner = (Decl("acc", dt.f32, 1, ex.const(0, dt.f32)), For("j", 9, (Assign(("acc",), (acc + x,)),)), Store("o", I, acc))
    again = (Decl("acc", dt.f32, 1, ex.const(1, dt.f32)), For("j", 9, (Assign(("acc",), (acc * x,)),)), Store("p", I, acc))
    check([LoopKernel("siblings", buffers(("x", dt.f32, 45, "in"), ("o", dt.f32, 5, "out"), ("p", dt.f32, 5, "out")),
                      (For("i", 5, inner), For("i", 5, again)))], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f16, dt.i64], ids=str)
def test_serial_loops_inside_vector_loops_reduce_columns(dtype, target):
    kernels = []
    for n in (1, 15, 16, 37):
        for k in (1, 2, 9):
            acc = ex.var("acc", dtype)
            body = (Decl("acc", dtype, 16, load("b", dtype, J)),
                    For("k", k, (Assign(("acc",), (acc + load("x", dtype, K * n + J) * load("y", dtype, K),)),)),
                    Store("o", J, ex.maximum(acc, 0)))
            kernels.append(LoopKernel(f"columns_{n}_{k}", buffers(("x", dtype, n * k, "in"), ("y", dtype, k, "in"), ("b", dtype, n, "in"),
                                      ("o", dtype, n, "out")), (For("j", n, body, "vector", 16),)))
    check(kernels, target)


# --------------------------------------------------------------------------- memory order and hoisting
@pytest.mark.parametrize("target", TARGETS)
def test_loads_are_not_moved_over_stores_to_their_buffer(target):
    o = lambda index: load("o", dt.f32, index)
    x = load("x", dt.f32, I)
    kernels = [
        LoopKernel("prefix", buffers(("x", dt.f32, 20, "in"), ("o", dt.f32, 21, "out")), (
            Store("o", Affine(), ex.const(0, dt.f32)), For("i", 20, (Store("o", I + 1, o(I) + x),)))),
        LoopKernel("reload", buffers(("x", dt.f32, 20, "in"), ("o", dt.f32, 4, "out"), ("p", dt.f32, 80, "out")), (
            For("j", 4, (Store("o", J, o(Affine()) * 2.0), For("i", 20, (Store("p", J * 20 + I, o(Affine()) + o(J) + x),), "vector", 16))),)),
        LoopKernel("twice", buffers(("x", dt.f32, 20, "in"), ("o", dt.f32, 20, "out"), ("p", dt.f32, 20, "out")), (
            For("i", 20, (Store("o", I, x + 1.0), Store("p", I, o(I)), Store("o", I, o(I) * 3.0), Store("p", I, o(I) + load("p", dt.f32, I))),
                "vector", 16),)),
        LoopKernel("inner", buffers(("x", dt.f32, 20, "in"), ("o", dt.f32, 1, "out"), ("p", dt.f32, 20, "out")), (
            For("i", 20, (Store("p", I, o(Affine())), For("j", 3, (Store("o", Affine(), o(Affine()) + x),)),
                          Store("p", I, o(Affine()) - load("p", dt.f32, I)))),)),
    ]
    check(kernels, target)


@pytest.mark.parametrize("target", TARGETS)
def test_in_place_kernels_give_what_they_give_out_of_place(target):
    x, y = load("x", dt.f32, I), load("y", dt.f32, I)
    body = (For("i", 37, (Store("o", I, (x + y) * x),), "vector", 16),)
    given = {"x": fill(dt.f32, 37, 1), "y": fill(dt.f32, 37, 2)}
    apart = LoopKernel("apart", buffers(("x", dt.f32, 37, "in"), ("y", dt.f32, 37, "in"), ("o", dt.f32, 37, "out")), body)
    together = LoopKernel("together", apart.buffers, body, frozenset({("x", "o")}))
    wanted, = run([apart], [given], target)
    found, = run([together], [given], target, share={"o": "x"})
    assert same_bits(found["o"], wanted["o"]).all() and same_bits(found["x"], wanted["o"]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_unrolled_loops_beyond_the_limit_become_loops(target):
    x = load("x", dt.i32, I * 40 + J)
    kernel = LoopKernel("large", buffers(("x", dt.i32, 4000, "in"), ("o", dt.i32, 4000, "out")),
                        (For("i", 100, (For("j", 40, (Store("o", I * 40 + J, x * x + 1),), "unroll"),), "unroll"),))
    check([kernel], target)


@pytest.mark.parametrize("target", TARGETS)
def test_empty_loops_do_nothing(target):
    kernels = [LoopKernel(f"empty_{kind}", buffers(("x", dt.f32, 1, "in"), ("o", dt.f32, 1, "out")),
                          (For("i", 0, (Store("o", I, load("x", dt.f32, I)),), kind, 16 if kind == "vector" else 1),))
               for kind in ("serial", "vector", "unroll", "parallel")]
    for given, out in check(kernels, target):
        assert out["o"][0] == given["o"][0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [40, 20_000], ids=["stack", "arena"])
def test_scratch_on_the_stack_and_in_the_arena(size, target):
    row = load("s", dt.f32, Affine(size - 1, {"i": -1}))
    body = (For("i", size, (Store("s", I, load("x", dt.f32, J * size + I) * 2.0),), "vector", 16),
            For("i", size, (Store("o", J * size + I, row),), "vector", 16))
    kernels = [LoopKernel(f"scratch_{kind}", buffers(("x", dt.f32, 3 * size, "in"), ("o", dt.f32, 3 * size, "out"), ("s", dt.f32, size, "scratch")),
                          (For("j", 3, body, kind),)) for kind in ("serial", "parallel")]
    for given, out in check(kernels, target):
        assert (out["o"].reshape(3, size) == given["x"].reshape(3, size)[:, ::-1] * np.float32(2)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_last_blocks_of_different_lengths_do_not_share_loads(target):
    for width in (16, 4):
        loops = tuple(For(f"i{n}", n, (Store(f"o{n}", variable(f"i{n}"), load("x", dt.f32, variable(f"i{n}")) + 1.0),), "vector", width)
                      for n in (9, 15, 13, 16, 2, 3))
        specs = [("x", dt.f32, 16, "in"), *((f"o{n}", dt.f32, n, "out") for n in (9, 15, 13, 16, 2, 3))]
        check([LoopKernel(f"siblings{width}", buffers(*specs), loops)], target)


# --------------------------------------------------------------------------- whole kernels
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.f16, dt.bf16], ids=str)
def test_rows_with_two_reductions(dtype, target):
    """(x - max) / sum|x - max| by rows: the shape of a softmax."""
    kernels = []
    for n in (1, 5, 16, 33, 70):
        x, top, total = load("x", dtype, I * n + J), ex.var("top", dtype), ex.var("total", dtype)
        accumulate = For("j", n, (Assign(("acc",), (ex.maximum(ex.var("acc", dtype), x),)),), "vector", 32)
        add = For("j", n, (Assign(("sum",), (ex.var("sum", dtype) + ex.absolute(x - top),)),), "vector", 32)
        fold = lambda target, source, f: Fold((target,), (source,), (f(ex.var("a.0", dtype), ex.var("b.0", dtype)),))
        body = (Decl("acc", dtype, 32, ex.const(-np.inf, dtype)), accumulate, fold("top", "acc", ex.maximum),
                Decl("sum", dtype, 32, ex.const(0, dtype)), add, fold("total", "sum", lambda a, b: a + b),
                For("j", n, (Store("o", I * n + J, (x - top) / (total + 1.0)),), "vector", 16))
        kernels.append(LoopKernel(f"rows_{n}", buffers(("x", dtype, 4 * n, "in"), ("o", dtype, 4 * n, "out")), (For("i", 4, body, "parallel"),)))
    check(kernels, target)
