"""The native entry: decides in native code, returns arrays that live by NumPy's rules, leaks nothing."""

import ctypes
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
from runtime_programs import elementwise, matrix, pointers, program, subtract
from test_support import DEFAULT, FTZ_DAZ, Mxcsr

from mlc.core.errors import ShapeError
from mlc.runtime import entry, entry_ir
from mlc.runtime.executable import Program

NOTHING = "define void @mlc_main(ptr %bufs) {\n  ret void\n}\n"
X, Y = matrix(), matrix(start=50)


@pytest.fixture(autouse=True)
def needs_native_entry():
    if entry.unavailable():
        pytest.skip(entry.unavailable())


def hits(function) -> int:
    return int(np.asarray(function.__self__)[entry_ir.HITS])


def test_this_platform_has_a_native_entry():
    if sys.platform == "linux" and sys.implementation.name == "cpython":
        assert entry.unavailable() is None


@pytest.mark.parametrize("heavy", [False, True])
def test_a_fitting_call_runs_in_native_code(heavy):
    function = subtract(heavy=heavy).native_function()
    for i in range(1, 4):
        assert np.array_equal(function(X, Y), X - Y) and hits(function) == i
    assert np.array_equal(function(Y, X), Y - X)


@pytest.mark.parametrize("wrong", [
    (X,), (), (X, Y, Y), (X, Y.astype(np.float64)), (X, Y.view(np.int32)), (X, Y.astype(">f4")), (X, Y.T), (X, Y[:, :3]), (X, Y[:2]),
    (X, Y.reshape(12)), (X, Y.reshape(3, 4, 1)), (X, np.asfortranarray(Y)), (X, Y[:, ::-1]), (X, Y.tolist()), (X, None), (1.0, 2.0),
    (X, Y.view(np.recarray)),
    (X, np.broadcast_to(Y[:1], Y.shape)), (X, np.empty(49, np.uint8)[1:].view(np.float32).reshape(3, 4)), (X, np.float32(1)), (X, Y[:0]),
])
def test_anything_else_is_declined(wrong):
    function = subtract().native_function()
    assert function(*wrong) is NotImplemented and hits(function) == 0


def test_read_only_arguments_fit():
    x = X.copy()
    x.flags.writeable = False
    assert np.array_equal(subtract().native_function()(x, Y), X - Y)


def test_keywords_are_refused():
    with pytest.raises(TypeError):
        subtract().native_function()(x=X, y=Y)


def test_a_declined_call_goes_to_the_fallback():
    def fallback(*args):
        if len(args) != 2:
            raise ShapeError("two, please")
        return args
    function = subtract().native_function(fallback)
    wrong = X.astype(np.float64)
    assert function(wrong, Y) == (wrong, Y) or function(wrong, Y)[0] is wrong
    with pytest.raises(ShapeError, match="two, please"):
        function(X)
    assert np.array_equal(function(X, Y), X - Y)


def test_a_chain_of_entries_tries_each_signature():
    first = subtract((2,)).native_function()
    chain = subtract((3,)).native_function(subtract((4,)).native_function(first))
    for n in (2, 3, 4):
        a, b = matrix((n,)), matrix((n,), start=7)
        assert np.array_equal(chain(a, b), a - b)
    assert chain(matrix((5,)), matrix((5,))) is NotImplemented


def test_outputs_are_ordinary_arrays():
    result = subtract().native_function()(X, Y)
    assert type(result) is np.ndarray and result.dtype is np.dtype(np.float32) and result.shape == (3, 4) and result.strides == (16, 4)
    assert result.flags.owndata and result.flags.writeable and result.flags.carray and result.base is None
    assert result.ctypes.data % 64 == 0
    result += 1
    assert np.array_equal(pickle.loads(pickle.dumps(result)), X - Y + 1)
    assert np.array_equal(result.copy(), X - Y + 1) and np.array_equal(result.T @ np.eye(3, dtype=np.float32), (X - Y + 1).T)


def test_outputs_do_not_share_memory():
    function = subtract().native_function()
    results = [function(X + i, Y) for i in range(50)]
    assert all(np.array_equal(result, X + i - Y) for i, result in enumerate(results))
    assert len({result.ctypes.data for result in results}) == 50


def test_outputs_can_be_resized():
    result = subtract().native_function()(X, Y)
    want = (X - Y).ravel()
    for count in (12, 5, 100, 5000, 3):
        result.resize((count,), refcheck=False)
        assert np.array_equal(result[:3], want[:3])
    assert len(result) == 3


def test_memory_is_used_again():
    function = subtract((1000,)).native_function()
    a, b = matrix((1000,)), matrix((1000,), start=3)
    seen = {function(a, b).ctypes.data for _ in range(100)}
    assert len(seen) <= 2


def test_kept_memory_is_bounded():
    native = entry._native()
    function = subtract((100_000,)).native_function()
    a, b = matrix((100_000,)), matrix((100_000,))
    before = native.retain_limit.value
    native.retain_limit.value = 2 << 20
    try:
        results = [function(a, b) for _ in range(20)]
        del results
        assert native.retained.value <= 2 << 20
        native.retain_limit.value = 1000
        del a, b
        function(matrix((100_000,)), matrix((100_000,)))
        assert native.retained.value <= 2 << 20
    finally:
        native.retain_limit.value = before


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025, 4096, 5000, 70_001, 1 << 20])
def test_every_size_class_holds_its_sizes(count):
    text = elementwise("  %r = add i8 %v0, 1\n", count, "i8", 1) if count else NOTHING
    function = program(text, [("x", (count,), "u8")], [("out", (count,), "u8")], heavy=False).native_function()
    x = np.arange(count, dtype=np.uint32).astype(np.uint8)
    results = [function(x) for _ in range(4)]
    assert all(np.array_equal(result, x + np.uint8(1)) for result in results)
    assert len({result.ctypes.data for result in results}) == 4


def test_scalars_are_arrays_without_dimensions():
    function = program(elementwise("  %r = fneg double %v0\n", 1, "double", 1), [("x", (), "f64")], [("out", (), "f64")]).native_function()
    result = function(np.array(2.5))
    assert type(result) is np.ndarray and result.shape == () and result == -2.5
    assert function(np.float64(2.5)) is NotImplemented


TWO = f"define void @mlc_main(ptr %bufs) {{\n{pointers(3)}  %x = load double, ptr %p0\n  %a = fadd double %x, 1.0\n  %b = fptosi double %x to i64\n" \
      "  store double %a, ptr %p1\n  store i64 %b, ptr %p2\n  ret void\n}\n"


def test_several_outputs_come_as_a_tuple():
    two = program(TWO, [("x", (), "f64")], [("a", (), "f64"), ("b", (1,), "i64")])
    result = two.native_function()(np.array(7.25))
    assert type(result) is tuple and result[0] == 8.25 and result[1].tolist() == [7]
    assert [array.tolist() for array in two.run([np.array(7.25)])] == [8.25, [7]]


def test_no_output_is_an_empty_tuple():
    none = program(NOTHING, [], [])
    assert none.native_function()() == () and none.run([]) == []


def test_constants_and_arena_reach_the_program():
    text = (f"define void @mlc_main(ptr %bufs) {{\n{pointers(5)}  %k0 = load i64, ptr %p2\n  %k1 = load i64, ptr %p3\n  %x = load i64, ptr %p0\n"
            "  store i64 %x, ptr %p4, align 64\n  %last = getelementptr i64, ptr %p4, i64 99\n  store i64 %k0, ptr %last\n  %y = load i64, ptr %p4\n"
            "  %z = load i64, ptr %last\n  %d = sub i64 %z, %k1\n  %r = mul i64 %d, %y\n  store i64 %r, ptr %p1\n  ret void\n}\n")
    for heavy in (False, True):
        made = program(text, [("x", (), "i64")], [("out", (), "i64")], [np.array(50), np.array([8])], arena_bytes=800, heavy=heavy)
        function = made.native_function()
        del made
        gc.collect()
        assert function(np.array(3)) == 126


def test_programs_share_one_workspace():
    text = f"define void @mlc_main(ptr %bufs) {{\n{pointers(3)}  %at = ptrtoint ptr %p2 to i64\n  store i64 %at, ptr %p0\n  ret void\n}}\n"
    functions = [program(text, [], [("out", (), "i64")], arena_bytes=arena, workspace_bytes=1 << 19).native_function() for arena in (0, 64, 1 << 16)]
    places = {int(function()) for function in functions for _ in range(3)}
    assert len(places) == 1 and places.pop() % 64 == 0


def test_memory_that_cannot_be_had_is_a_memory_error():
    for outputs in ([("out", (1 << 45,), "f32")], [("small", (2,), "f32"), ("out", (1 << 45,), "f32")]):
        function = program(NOTHING, [], outputs).native_function()
        for _ in range(3):
            with pytest.raises(MemoryError):
                function()
    for fields in ({"arena_bytes": 1 << 47}, {"arena_bytes": 640, "workspace_bytes": 1 << 47}):
        function = program(NOTHING, [], [("out", (2,), "f32")], **fields).native_function()
        kept = set()
        for _ in range(3):
            with pytest.raises(MemoryError):
                function()
            kept.add(entry._native().retained.value)
        assert len(kept) == 1  # what was taken already went back


def test_reference_counts_are_balanced():
    function = subtract().native_function(lambda *args: args)
    wrong, dtype = X.astype(np.float64), np.dtype(np.float32)
    watched = (X, Y, wrong, dtype, NotImplemented, function, function.__self__, entry._native().handler)
    gc.collect()
    before = [sys.getrefcount(value) for value in watched]
    for _ in range(1000):
        function(X, Y)
        function(wrong, Y)
    assert [sys.getrefcount(value) for value in watched] == before
    kept = [function(X, Y) for _ in range(10)]
    immortal = before[3] >= 1 << 31  # NumPy's own dtypes, on some versions
    assert [sys.getrefcount(value) for value in watched][3] == before[3] + (0 if immortal else 10)
    del kept
    assert [sys.getrefcount(value) for value in watched] == before


def test_calls_do_not_leak_memory():
    code = """
        import resource, numpy as np
        from runtime_programs import subtract, matrix
        function = subtract((1000,)).native_function()
        a = matrix((1000,))
        def rounds(n):
            for _ in range(n): function(a, a); function(a); function(a, a[::-1])
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = rounds(1000)
        print(rounds(100_000) - before)
    """
    assert int(run(code)) < 1000  # KB; one leaked output a call would be 400 MB


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_the_function_outlives_its_program_and_then_frees_the_code():
    subtracting = subtract()
    library = weakref.ref(subtracting.libraries[0])
    function = subtracting.native_function()
    del subtracting
    gc.collect()
    assert np.array_equal(function(X, Y), X - Y)
    result = function(X, Y)
    del function
    gc.collect()
    assert library() is None and np.array_equal(result, X - Y)


def test_a_cycle_through_the_fallback_is_collected():
    class Owner:
        pass
    owner = Owner()
    subtracting = subtract()
    library = weakref.ref(subtracting.libraries[0])
    owner.call = lambda *args, owner=owner: owner
    owner.function = subtracting.native_function(owner.call)
    gone = weakref.ref(owner)
    del owner, subtracting
    gc.collect()
    assert gone() is None and library() is None


def test_outputs_alive_at_exit_are_freed_quietly():
    assert run("""
        import sys, numpy as np
        from runtime_programs import subtract, matrix
        function = subtract().native_function()
        kept = [function(matrix(), matrix()) for _ in range(100)]
        sys.kept = kept
        cycle = [kept[0]]
        cycle.append(cycle)
        print('end')
    """) == "end\n"


SPIN = f"""declare i32 @usleep(i32)
define void @mlc_main(ptr %bufs) {{
{pointers(3)}  %x = load volatile i64, ptr %p0
  store volatile i64 %x, ptr %p2
  %s = call i32 @usleep(i32 20000)
  %y = load volatile i64, ptr %p2
  store i64 %y, ptr %p1
  ret void
}}
"""


def test_a_heavy_program_lets_other_threads_run_and_overlapping_calls_do_not_mix():
    function = program(SPIN, [("x", (), "i64")], [("out", (), "i64")], arena_bytes=64, heavy=True).native_function()
    results = {}
    start = time.perf_counter()
    threads = [threading.Thread(target=lambda i=i: results.__setitem__(i, int(function(np.array(i))))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i for i in range(8)}
    assert time.perf_counter() - start < 8 * 0.020


def test_many_threads_share_a_light_program():
    function = subtract(heavy=False).native_function()
    wrong = []

    def work(i: int) -> None:
        x = X + i
        for _ in range(2000):
            if not np.array_equal(function(x, Y), x - Y):
                wrong.append(i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_can_call(in_a_child):
    function = subtract().native_function()
    function(X, Y)
    assert in_a_child(lambda: np.array_equal(function(X, Y), X - Y))


@pytest.mark.parametrize("heavy", [False, True])
def test_subnormals_survive_a_thread_that_flushes_them(heavy):
    if not entry_is_x86():
        pytest.skip("MXCSR is x86's")
    text = elementwise("  %r = fmul float %v0, 1.0\n", 2, "float", 1)
    function = program(text, [("x", (2,), "f32")], [("out", (2,), "f32")], heavy=heavy).native_function()
    x = np.array([1e-40, -1e-45], np.float32)
    control = Mxcsr()
    control.set(DEFAULT | FTZ_DAZ)
    result = function(x)
    after = control.get()
    control.set(DEFAULT)
    assert result.tobytes() == x.tobytes() and after == DEFAULT | FTZ_DAZ


def entry_is_x86() -> bool:
    from mlc.codegen.target import get_target
    return get_target("generic").is_x86


# ------------------------------------------------------------------------------------------------ where there is none
def test_without_a_native_entry_programs_run_the_same(monkeypatch):
    monkeypatch.setattr(entry, "_native", lambda: "not here")
    plain = subtract()
    assert plain.native_function() is None and entry.unavailable() == "not here"
    assert np.array_equal(plain.run([X, Y])[0], X - Y)
    two = program(TWO, [("x", (), "f64")], [("a", (), "f64"), ("b", (1,), "i64")])
    assert [array.tolist() for array in two.run([np.array(7.25)])] == [8.25, [7]]


@pytest.mark.parametrize("shift", [-8, 8])
@pytest.mark.parametrize("field", ["DATA", "ND", "DIMS", "BASE", "DESCR", "FLAGS", "HANDLER", "TYPE"])
def test_another_layout_of_arrays_is_noticed(monkeypatch, field, shift):
    monkeypatch.setattr(entry_ir, field, getattr(entry_ir, field) + shift)
    assert "unexpected array fields" in entry._layout_problem()


def test_another_numpy_is_noticed(monkeypatch):
    table = list(entry._numpy_api())
    table[2] = id(int)
    monkeypatch.setattr(entry, "_numpy_api", lambda: table)
    assert "NumPy's C API" in entry._layout_problem()


def test_a_python_without_the_gil_is_noticed(monkeypatch):
    monkeypatch.setattr(sys, "abiflags", "t")
    assert "without the GIL" in entry._layout_problem()


def test_more_buffers_than_the_stack_takes_have_no_native_entry_but_run():
    count = entry._MOST_BUFFERS
    many = program(f"define void @mlc_main(ptr %bufs) {{\n{pointers(2)}  %x = load i64, ptr %p0\n  store i64 %x, ptr %p1\n  ret void\n}}\n",
                   [("x", (), "i64")], [("out", (), "i64")])
    inputs = many.manifest.inputs
    wide = Program(many.object_code, type(many.manifest)(**{**vars(many.manifest), "inputs": inputs, "outputs": many.manifest.outputs,
                                                            "constants": (_constant(),) * count}), [np.zeros(1, np.int8)] * count)
    assert wide.native_function() is None and wide.run([np.array(5)])[0] == 5


def _constant():
    from mlc.runtime.executable import ConstantSpec
    return ConstantSpec.of(np.zeros(1, np.int8))


def test_the_layout_of_a_method_definition_is_cpythons():
    assert ctypes.sizeof(entry._MethodDef) == 32


def test_a_daemon_thread_inside_a_program_does_not_disturb_the_exit():
    assert run(f"""
        import threading, time, numpy as np
        from runtime_programs import program
        function = program({SPIN!r}, [("x", (), "i64")], [("out", (), "i64")], arena_bytes=64, heavy=True).native_function()
        def work():
            while True:
                function(np.array(1))
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        print('end')
    """) == "end\n"
