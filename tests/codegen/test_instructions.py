"""Every instruction on every dtype: machine code gives the bits of the NumPy interpreter, whatever the operands."""

import itertools
import zlib

import numpy as np
import pytest
from machine import run, runnable_targets, same_bits

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval
from mlc.core.affine import variable
from mlc.loop.ir import Buffer, For, LoopKernel, Store, load

I = variable("i")
EXTENTS = (1, 7, 15, 16, 17, 33)
FLOAT_OPS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "rem": 2, "min": 2, "max": 2, "fma": 3, "sqrt": 1, "floor": 1, "ceil": 1, "rint": 1,
             "trunc": 1, "neg": 1, "abs": 1, "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2}
INT_OPS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "rem": 2, "min": 2, "max": 2, "neg": 1, "abs": 1, "and": 2, "or": 2, "xor": 2, "not": 1,
           "shl": 2, "shr_arith": 2, "shr_logical": 2, "pow": 2, "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2}
BOOL_OPS = {"and": 2, "or": 2, "xor": 2, "not": 1, "min": 2, "max": 2, "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2}


def operations(dtype):
    return FLOAT_OPS if dtype.is_float else BOOL_OPS if dtype is dt.bool_ else INT_OPS


def special_values(dtype):
    """Values at which instructions go wrong: zeros, ends of ranges, ties, subnormals, infinities, NaN."""
    if dtype is dt.bool_:
        return np.array([False, True])
    if dtype.is_int:
        low, high = dtype.min, dtype.max
        numbers = {0, 1, 2, 3, 7, 10, 100, dtype.bits - 1, dtype.bits, dtype.bits + 1}
        numbers |= {high, high - 1, low, low + 1, high // 2, high // 2 + 1, low // 2}
        if dtype.kind == "i":
            numbers |= {-1, -2, -3, -7, -10, -100, -dtype.bits}
        numbers |= {1 << 11, (1 << 11) + 1, (1 << 24) + 1, (1 << 25) + 3, (1 << 53) + 1, (1 << 54) + 3, 65519, 65520, 33423360, 33423361}
        # Just past and just before ties of bf16, beyond the bits of f64: the last bit decides, in either direction.
        ties = [(1 << top) + factor * (1 << top - 8) for top in (30, 31, 57, 62, 63) for factor in (1, 3)]
        numbers |= {sign * (tie + step) for tie in ties for step in (-1, 0, 1) for sign in (1, -1)}
        return np.array(sorted(n for n in numbers if low <= n <= high), dtype.numpy)
    tiny = 2.0 ** (dt.MIN_EXPONENT[dtype] - dt.MANTISSA[dtype] + 1)
    with np.errstate(all="ignore"):
        positive = [0.0, tiny, 3 * tiny, 2.0 ** dt.MIN_EXPONENT[dtype], 2.0 ** dt.MIN_EXPONENT[dtype] - tiny, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5,
                    3.5, 7.3, 100.25, 127.5, 128.0, 255.75, 256.0, 1 - dtype.eps / 2, 1 + dtype.eps, 1 / dtype.eps, 1 / dtype.eps + 1, 32768.0,
                    2.0 ** 31, 2.0 ** 32, 2.0 ** 63, 2.0 ** 64, 2.0 ** 31 - 128, 2.0 ** 31 - 0.5, 2.0 ** 32 - 1, 2.0 ** 63 - 1024,
                    (2 - dtype.eps) * 2.0 ** dt.MAX_EXPONENT[dtype], np.inf, np.nan,
                    # where rounding to f32 on the way to a half goes wrong
                    1 + 2.0 ** -8 + 2.0 ** -30, 1 + 2.0 ** -11 + 2.0 ** -40, 1 + 3 * 2.0 ** -11 - 2.0 ** -40, 65519.999999, 65520.0,
                    5.96e-8 / 2 * (1 + 1e-9)]
        values = np.array(positive, np.float64)
        values = np.concatenate([values, -values]).astype(dtype.numpy)
    # NaNs with the smallest and the largest payload: rounding must not carry them into an infinity or a zero.
    bits = dtype.bits - 1
    infinity = int(np.array(np.inf, dtype.numpy).view(dt.uint_of(dtype).numpy))
    nans = [infinity + 1, (1 << bits) - 1, infinity + 1 + (1 << bits), (1 << dtype.bits) - 1]
    return np.concatenate([values, np.array(nans, dt.uint_of(dtype).numpy).view(dtype.numpy)])


def operands(dtype, count, seed):
    """`count` arrays of 33 x several elements: special values against each other, then random bits."""
    rng = np.random.default_rng(seed)
    special = special_values(dtype)
    if count == 1:
        columns = [special]
    else:
        # Pairs in full; a third operand is drawn.
        columns = [np.repeat(special, len(special)), np.tile(special, len(special)), rng.choice(special, len(special) ** 2)][:count]
    drawn = []
    for column in columns:
        raw = rng.integers(0, 256, (256, dtype.itemsize), np.uint8)
        random = (raw & 1).astype(np.bool_).ravel() if dtype is dt.bool_ else raw.reshape(-1).view(dtype.numpy)
        drawn.append(np.concatenate([column, random]))
    return drawn


def kernel(name, inputs, result, node, extent, width):
    """out[i] = node(inputs[i]) for i < extent."""
    buffers = (*(Buffer(f"x{j}", d, extent, "in") for j, d in enumerate(inputs)), Buffer("out", result, extent, "out"))
    kind = "vector" if width > 1 else "serial"
    return LoopKernel(name, buffers, (For("i", extent, (Store("out", I, node),), kind, width),))


def check(cases, target):
    """cases: (label, node over loads x0.., operand arrays). Each runs with one lane and with vectors, long and at every small extent."""
    kernels, arrays, wanted, labels = [], [], [], []
    for label, node, given in cases:
        dtypes = [dt.as_dtype(a.dtype) for a in given]
        full = scalar_eval.evaluate([node], lambda leaf, given=given: given[int(leaf.attr[0][1:])])[0]
        full = np.broadcast_to(full, given[0].shape)
        start = zlib.crc32(label.encode()) % 50
        runs = [(len(given[0]), 16, 0), (min(64, len(given[0])), 1, 0)]
        runs += [(extent, 16, min(start, len(given[0]) - extent)) for extent in EXTENTS if extent <= len(given[0])]
        for extent, width, first in runs:
            kernels.append(kernel(f"{label}_{extent}_{width}", dtypes, node.dtype, node, extent, width))
            arrays.append({f"x{j}": a[first:first + extent] for j, a in enumerate(given)})
            wanted.append(full[first:first + extent])
            labels.append(f"{label} extent {extent} width {width}")
    failures = []
    for label, given, want, found in zip(labels, arrays, wanted, run(kernels, arrays, target)):
        bad = np.flatnonzero(~same_bits(found["out"], np.ascontiguousarray(want)))
        if bad.size:
            i = bad[0]
            failures.append(f"{label}: {bad.size} wrong, first {[a[i] for a in given.values()]} -> {found['out'][i]!r}, wanted {want[i]!r}")
    assert not failures, "\n".join(failures[:20])


def leaves(dtypes):
    return [load(f"x{j}", d, I) for j, d in enumerate(dtypes)]


def make(op, args):
    return ex.fma(*args) if op == "fma" else ex.unary(op, *args) if len(args) == 1 else ex.binary(op, *args)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_instruction_gives_the_bits_of_the_interpreter(dtype, target):
    cases = []
    for op, count in operations(dtype).items():
        cases.append((f"{op}_{dtype}", make(op, leaves([dtype] * count)), operands(dtype, count, 1)))
    check(cases, target)


@pytest.mark.parametrize("target", runnable_targets())
def test_scale_gives_the_bits_of_the_interpreter(target):
    x, n = operands(dt.f32, 2, 4)
    powers = np.random.default_rng(4).uniform(-330, 330, len(x)).astype(np.float32)
    node = ex.scale(*leaves([dt.f32, dt.f32]))
    value, power = leaves([dt.f32, dt.f32])
    power = ex.select(power < -320.0, -320.0, power)
    near = ex.scale(value, ex.select(power > 300.0, 300.0, power))
    check([("scale_any", node, [x, n]), ("scale_whole", node, [x, np.floor(powers)]), ("scale_near", near, [x, n]),
           ("scale_near_whole", near, [x, np.floor(powers)]), ("scale_near_between", near, [x, powers])], target)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("source", dt.ALL, ids=str)
def test_conversion_gives_the_bits_of_the_interpreter(source, target):
    x = load("x0", source, I)
    cases = [(f"{source}_to_{to}", ex.convert(x, to), operands(source, 1, 2)) for to in dt.ALL if to is not source]
    if source is not dt.bool_:
        same = [to for to in dt.NUMERIC if to.bits == source.bits and to is not source]
        cases += [(f"{source}_as_{to}", ex.bitcast(x, to), operands(source, 1, 3)) for to in same]
    check(cases, target)


@pytest.mark.parametrize("target", runnable_targets())
def test_select_moves_bits_of_every_dtype(target):
    cases = []
    for dtype in dt.ALL:
        x, y = operands(dtype, 2, 4)
        condition = np.random.default_rng(5).integers(0, 2, len(x)).astype(np.bool_)
        c, a, b = leaves([dt.bool_, dtype, dtype])
        cases.append((f"select_{dtype}", ex.select(c, a, b), [condition, x, y]))
    check(cases, target)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype", dt.NUMERIC, ids=str)
def test_constant_operands_change_nothing(dtype, target):
    """Codegen has shortcuts for a constant on either side (min, max, division, shifts)."""
    special = special_values(dtype)
    constants = sorted({0, len(special) // 2, *np.random.default_rng(6).choice(len(special), 5).tolist()})
    given = operands(dtype, 1, 7)
    x, cases = load("x0", dtype, I), []
    for op, position in itertools.product([op for op, count in operations(dtype).items() if count == 2], constants):
        value = special[position]
        constant = ex.const_bits(int(value.view(dt.uint_of(dtype).numpy)), dtype) if dtype.is_float else ex.const(int(value), dtype)
        cases.append((f"{op}_{dtype}_right{position}", ex.binary(op, x, constant), given))
        cases.append((f"{op}_{dtype}_left{position}", ex.binary(op, constant, x), given))
    check_long(cases, target)


def check_long(cases, target):
    """`check` without the small extents, for many cases."""
    kernels = [kernel(label, [dt.as_dtype(given[0].dtype)], node.dtype, node, len(given[0]), 16) for label, node, given in cases]
    arrays = [{"x0": given[0]} for _, _, given in cases]
    failures = []
    for (label, node, given), found in zip(cases, run(kernels, arrays, target)):
        want = scalar_eval.evaluate([node], lambda leaf, given=given: given[0])[0]
        bad = np.flatnonzero(~same_bits(found["out"], want))
        if bad.size:
            failures.append(f"{label}: {given[0][bad[0]]!r} -> {found['out'][bad[0]]!r}, wanted {want[bad[0]]!r}")
    assert not failures, "\n".join(failures[:20])


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype,entries", ((dt.f32, 32), (dt.f32, 8), (dt.f64, 32)), ids=str)
def test_table_picks_by_the_low_bits_of_any_index(target, dtype, entries):
    values = [float(v) for v in np.random.default_rng(entries).standard_normal(entries)]
    size = 33
    chosen = ex.table(load("x", dt.i32, I), values, dtype)
    kernels = [LoopKernel(f"table{width}", (Buffer("x", dt.i32, size, "in"), Buffer("y", dtype, size, "out")),
                          (For("i", size, (Store("y", I, chosen),), "vector" if width > 1 else "serial", width),)) for width in (1, 4, 8, 16, 32)]
    index = np.random.default_rng(1).integers(-2 ** 31, 2 ** 31, size).astype(np.int32)
    index[:4] = -1, entries, 2 ** 31 - 1, -2 ** 31
    for found in run(kernels, [{"x": index}] * len(kernels), target):
        np.testing.assert_array_equal(found["y"], np.array(values, dtype.numpy)[index % entries])
