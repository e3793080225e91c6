"""The support library: floating-point settings around a call, and half-precision conversions."""

import ctypes
import threading

import ml_dtypes
import numpy as np
import pytest
from runtime_programs import elementwise, program

from mlc.codegen.target import compile_object, get_target
from mlc.runtime.orc import Library
from mlc.runtime.support import call_table, native_call, support

FTZ_DAZ = 0x8040
DEFAULT = 0x1F80
FLAGS = 0x3F


class Mxcsr:
    """The calling thread's floating-point control word."""

    def __init__(self):
        text = ("declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)\n"
                "define i32 @get() {\n  %p = alloca i32\n  call void @llvm.x86.sse.stmxcsr(ptr %p)\n  %v = load i32, ptr %p\n  ret i32 %v\n}\n"
                "define void @set(i32 %v) {\n  %p = alloca i32\n  store i32 %v, ptr %p\n  call void @llvm.x86.sse.ldmxcsr(ptr %p)\n  ret void\n}\n")
        library = Library(compile_object(text, get_target("generic")), ("get", "set"))
        self.get = library.function("get", ctypes.c_uint32)
        self.set = library.function("set", None, ctypes.c_uint32)


@pytest.fixture
def mxcsr():
    if not get_target("generic").is_x86:
        pytest.skip("MXCSR is x86's")
    control = Mxcsr()
    before = control.get()
    yield control
    control.set(before)


def times_one(x: np.ndarray) -> np.ndarray:
    name = {4: "f32", 8: "f64"}[x.itemsize]
    ty = {4: "float", 8: "double"}[x.itemsize]
    run = program(elementwise(f"  %r = fmul {ty} %v0, 1.0\n", x.size, ty, 1), [("x", x.shape, name)], [("out", x.shape, name)])
    return run.run([x])[0]


@pytest.mark.parametrize("x", [np.array([1e-40, -1e-45, 1.1e-38], np.float32), np.array([1e-310, -5e-324])])
def test_subnormals_survive_a_thread_that_flushes_them(mxcsr, x):
    mxcsr.set(DEFAULT | FTZ_DAZ)
    result = times_one(x)
    after = mxcsr.get()
    mxcsr.set(DEFAULT)
    assert result.tobytes() == x.tobytes()
    assert after & ~FLAGS == DEFAULT | FTZ_DAZ


def test_rounding_mode_of_the_thread_does_not_matter_and_is_restored(mxcsr):
    third = program(elementwise("  %r = fdiv float %v0, 3.0\n", 2, "float", 1), [("x", (2,), "f32")], [("out", (2,), "f32")])
    x = np.array([1, -1], np.float32)
    for _ in range(2):
        third.run([x])  # what the first calls make, they make in Python, whose own arithmetic may set flags
    for rounding in (0x2000, 0x4000, 0x6000):
        mxcsr.set(DEFAULT | rounding)
        result = third.run([x])[0]
        after = mxcsr.get()
        mxcsr.set(DEFAULT)
        assert after == DEFAULT | rounding
        assert result.tobytes() == (x / np.float32(3)).tobytes()


def test_exception_flags_of_the_caller_are_left_alone(mxcsr):
    divide = program(elementwise("  %r = fdiv float %v0, 0.0\n", 1, "float", 1), [("x", (1,), "f32")], [("out", (1,), "f32")])
    mxcsr.set(DEFAULT)
    divide.run([np.ones(1, np.float32)])
    assert mxcsr.get() == DEFAULT


def test_unmasked_traps_do_not_kill_the_process(mxcsr):
    divide = program(elementwise("  %r = fdiv float %v0, 0.0\n", 1, "float", 1), [("x", (1,), "f32")], [("out", (1,), "f32")])
    x = np.ones(1, np.float32)
    mxcsr.set(DEFAULT & ~0x200)  # division by zero traps
    result = divide.run([x])[0]
    mxcsr.set(DEFAULT)
    assert np.isinf(result[0])


def test_every_python_thread_gets_the_same_bits():
    x = np.array([1e-40, 3e-39], np.float32)
    results = []
    thread = threading.Thread(target=lambda: results.append(times_one(x)))
    thread.start()
    thread.join()
    assert results[0].tobytes() == times_one(x).tobytes() == x.tobytes()


# --------------------------------------------------------------------------- f16 and bf16 on the baseline CPU
def convert(x: np.ndarray, source: str, result: str, instruction: str, to: np.dtype) -> np.ndarray:
    """`x` converted by LLVM's instruction on the generic target, which calls the support library."""
    names = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
    run = program(elementwise(f"  %r = {instruction} {source} %v0 to {result}\n", x.size, source, 1, result),
                  [("x", x.shape, names[source])], [("out", x.shape, names[result])], target="generic")
    return run.run([x])[0]


pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered in cast")
HALVES = np.arange(1 << 16, dtype=np.uint16)


def same(got: np.ndarray, want: np.ndarray) -> bool:
    nan = np.isnan(want.astype(np.float64))
    return bool(np.array_equal(np.isnan(got.astype(np.float64)), nan)) and got[~nan].tobytes() == want[~nan].tobytes()


@pytest.mark.parametrize("result, dtype", [("float", np.float32), ("double", np.float64)])
def test_every_f16_extends_exactly(result, dtype):
    x = HALVES.view(np.float16)
    assert same(convert(x, "half", result, "fpext", dtype), x.astype(dtype))


def _interesting(half: np.dtype, wide: np.dtype) -> np.ndarray:
    """Every finite value of `half`, every midpoint between neighbours, and the next numbers to both sides of all of them."""
    values = HALVES.view(half).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[:-1] + values[1:]) / 2
    largest = values[-1]
    beyond = largest + (largest - values[-2]) / 2
    base = np.concatenate([values, middles, [beyond, -beyond, 4 * beyond]]).astype(wide)
    with np.errstate(over="ignore"):
        around = np.concatenate([base, np.nextafter(base, wide(np.inf)), np.nextafter(base, wide(-np.inf))])
    random = np.random.default_rng(3).integers(0, 1 << (8 * np.dtype(wide).itemsize), 50_000, dtype=np.uint64)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45]).astype(wide)
    return np.concatenate([around, random.astype(f"u{np.dtype(wide).itemsize}").view(wide), special])


def _round(x: np.ndarray, half: np.dtype) -> np.ndarray:
    """x rounded to `half`, to nearest even: the neighbour that is nearer, decided in exact arithmetic on doubles."""
    values = HALVES.view(half)
    finite = values[np.isfinite(values.astype(np.float64))]
    order = np.argsort(finite.astype(np.float64), kind="stable")
    table = finite[order]
    grid = table.astype(np.float64)
    largest = grid[-1]
    beyond = largest + (largest - np.unique(grid)[-2])
    y = np.abs(x.astype(np.float64))
    grid, table = grid[grid >= 0], table[grid >= 0]
    keep = ~np.signbit(table.astype(np.float64))
    grid, table = np.append(grid[keep], beyond), np.append(table[keep], np.array(np.inf).astype(half))
    with np.errstate(invalid="ignore"):
        above = np.clip(np.searchsorted(grid, y, "left"), 1, len(grid) - 1)
        low, high = grid[above - 1], grid[above]
        middle = low + (high - low) / 2
        even = (table[above - 1].view(np.uint16) & 1) == 0
        down = (y < middle) | ((y == middle) & even)
    rounded = np.where(down, table[above - 1].view(np.uint16), table[above].view(np.uint16))
    sign = np.signbit(x).astype(np.uint16) << 15
    result = (rounded | sign).astype(np.uint16).view(half)
    return np.where(np.isnan(x), np.array(np.nan).astype(half), result)


@pytest.mark.parametrize("source, wide", [("float", np.float32), ("double", np.float64)])
@pytest.mark.parametrize("result, half", [("half", np.float16), ("bfloat", ml_dtypes.bfloat16)])
def test_truncation_rounds_once_to_nearest_even(source, wide, result, half):
    x = _interesting(half, wide)
    assert same(convert(x, source, result, "fptrunc", half), _round(x, half))


def test_nan_payloads_stay_nan():
    x = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    for result, half in (("half", np.float16), ("bfloat", ml_dtypes.bfloat16)):
        got = convert(x, "float", result, "fptrunc", half)
        assert np.isnan(got.astype(np.float32)).all() and np.array_equal(np.signbit(got.astype(np.float32)), np.signbit(x))


def test_the_support_library_is_one():
    assert support() is support()


COPY = """declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @copy(ptr %ctx) {
  %from = load ptr, ptr %ctx
  %to.at = getelementptr ptr, ptr %ctx, i64 1
  %to = load ptr, ptr %to.at
  %count.at = getelementptr i64, ptr %ctx, i64 2
  %count = load i64, ptr %count.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %count, i1 false)
  ret void
}
define void @square(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %p = load ptr, ptr %ctx
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %p, i64 %i
  %v = load i64, ptr %at
  %r = mul i64 %v, %v
  store i64 %r, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def test_steps_run_in_order_on_their_places_and_numbers():
    library = Library(compile_object(COPY, get_target("generic")), ("copy", "square"))
    one, two = np.arange(10, dtype=np.int64), np.zeros(10, np.int64)
    steps = [("copy", 0, 0, ((0, 16), (1, 8)), (3 * 8,)), ("square", 3, 0, ((1, 8),), ()), ("square", 2, 0, ((0, 0), (1, 0)), ()),
             ("mlc_poison", 0, 0, ((0, 72),), (8,))]
    table = call_table(steps, lambda name: (support() if name == "mlc_poison" else library).address(name))
    native_call()(ctypes.addressof(table), (ctypes.c_void_p * 2)(one.ctypes.data, two.ctypes.data))
    assert two.tolist() == [0, 4, 9, 16, 0, 0, 0, 0, 0, 0]  # copied, squared
    assert one.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, -1]  # its first two squared by the third step, its last poisoned


def test_no_steps_do_nothing():
    table = call_table([], support().address)
    native_call()(ctypes.addressof(table), (ctypes.c_void_p * 1)(0))
