"""Calls that native code serves: it takes what the long way would take, tells apart what it tells apart, and leaks nothing."""

import collections
import dataclasses
import enum
import functools
import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import mlc
from mlc.errors import DtypeError
from mlc.frontend import record
from mlc.runtime import dispatch, entry, entry_ir

pytestmark = pytest.mark.skipif(bool(entry.unavailable()) or not dispatch.available(record.RECORDING), reason="no native calls here")
X, Y = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32)[::-1].copy()
Pair = collections.namedtuple("Pair", "first second")


class Mode(enum.Enum):
    ON = 1
    OFF = 2


@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    scale: float


def python_calls(run) -> list:
    """The Python functions that `run` enters, besides itself."""
    seen = []
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen[1:]


def is_native(run) -> bool:
    """Whether a call stays out of Python, once it has been seen."""
    run(), run()
    return not python_calls(run)


def counted(function, **options):
    calls = []

    @functools.wraps(function)
    def traced(*args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)
    return mlc.jit(traced, **options), calls


# --------------------------------------------------------------------------- what native code takes
def test_a_call_with_arrays_enters_no_python_function():
    f = mlc.jit(lambda a, b: a - b)
    assert is_native(lambda: f(X, Y)) and np.array_equal(f(X, Y), X - Y) and np.array_equal(f(Y, X), Y - X)


@pytest.mark.parametrize("tree", [
    {"a": X, "b": Y}, {"b": Y, "a": X}, [X, Y], (X, [Y, X]), ((), X, None, {}), Pair(X, {"k": [Y, (X,)]}), {"o": {"i": Pair(X, Y)}, "n": None},
    [[[[X]]]],
], ids=str)
def test_trees_come_back_as_they_went(tree):
    f = mlc.jit(lambda t: t)
    assert is_native(lambda: f(tree))
    found = f(tree)

    def same(a, b):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert np.array_equal(a, b) and not np.shares_memory(a, b)
        elif isinstance(a, dict):
            assert list(a) == sorted(b)
            [same(a[k], b[k]) for k in b]
        elif a is not None:
            assert len(a) == len(b)
            [same(x, y) for x, y in zip(a, b)]
    same(found, tree)


@pytest.mark.parametrize("value", [2.5, 3, -1, True, False, np.float32(1.5), np.float64(2.5), np.int8(-3), np.uint64(7), np.bool_(True),
                                   np.float16(0.5)], ids=repr)
def test_scalars_are_read_natively(value):
    f = mlc.jit(lambda a, s: (a * s, s))
    want = f(X, value)
    assert is_native(lambda: f(X, value))
    found = f(X, value)
    assert [r.dtype for r in found] == [r.dtype for r in want] and found[1].tolist() == value and np.array_equal(found[0], want[0])


def test_keywords_are_told_apart_by_name_whatever_their_order():
    f = mlc.jit(lambda a, b, c: a - b * c)
    assert is_native(lambda: f(X, c=2.0, b=Y)) and is_native(lambda: f(X, b=Y, c=2.0))
    assert np.array_equal(f(X, c=2.0, b=Y), X - Y * 2) and np.array_equal(f(X, b=Y, c=2.0), X - Y * 2)
    assert np.array_equal(f(c=2.0, b=X, a=Y), Y - X * 2)


@pytest.mark.parametrize("value", [3, "text", None, 2.5, True, Mode.ON, (1, (2.0, "x")), Config(3, 0.5), np.float32(2), len, int], ids=str)
def test_static_arguments_that_cannot_change_are_compared_natively(value):
    f = mlc.jit(lambda a, s: a + 1, static_argnums=1)
    assert is_native(lambda: f(X, value))


def test_equal_ints_and_texts_need_not_be_the_same_object():
    f = mlc.jit(lambda a, n, s: a * n, static_argnums=(1, 2))
    numbers, texts = iter([10**6 + i - i for i in range(5)]), iter(["".join(["a", "b"]) for _ in range(5)])
    f(X, next(numbers), next(texts)), f(X, next(numbers), next(texts))
    assert not python_calls(lambda: f(X, next(numbers), next(texts)))


def test_an_executable_runs_natively_and_still_checks():
    exe = mlc.jit(lambda a, t: {"r": a - t["b"]}).lower(X, {"b": Y}).compile()
    exe(X, {"b": Y}), exe(X, {"b": Y})
    assert python_calls(lambda: exe(X, {"b": Y})) == ["__call__"] and np.array_equal(exe(Y, {"b": X})["r"], Y - X)
    with pytest.raises(DtypeError, match=r"argument t\.b"):
        exe(X, {"b": Y.astype(np.float64)})


# --------------------------------------------------------------------------- what it leaves to the long way
def test_other_shapes_dtypes_and_structures_get_variants_of_their_own():
    f, calls = counted(lambda t: t)
    trees = [[X], (X,), [X, X], {"a": X}, {"b": X}, {"a": X, "b": X}, [X[:3]], [X.astype(np.float64)], [X.reshape(2, 2)], [2.0], [2], [True],
             [np.float64(2)], [np.ones(())], [None], None, [[X]], Pair(X, X)]
    for _ in range(3):
        for tree in trees:
            assert type(f(tree)) is type(tree)
    assert len(calls) == len(trees) - 1  # np.float64(2) is an array without dimensions


class Sub(np.ndarray):
    pass


def test_strided_misaligned_swapped_and_subclassed_arrays_are_right_after_a_plain_one():
    f, calls = counted(lambda a, b: a - b)
    raw = np.zeros(17, np.uint8)
    raw[1:] = X.view(np.uint8)
    for x in (X, X[::-1], np.repeat(X, 2)[::2], X.astype(">f4"), raw[1:].view(np.float32), X.view(Sub)):
        for _ in range(3):
            assert np.array_equal(f(x, Y), np.asarray(x, np.float32) - Y)
    assert len(calls) == 1 + 1  # an array in foreign byte order selects a variant


def test_dicts_and_lists_of_other_classes_keep_their_class():
    f = mlc.jit(lambda t: t)
    for tree in ({"a": X}, collections.OrderedDict(a=X), collections.defaultdict(list, a=X)):
        for _ in range(3):
            assert type(f(tree)) is type(tree)


def test_statics_of_another_type_or_bits_are_not_the_same():
    f, calls = counted(lambda a, s: a + 1, static_argnums=1)
    values = [1, True, 1.0, np.float32(1), 0.0, -0.0, (1,), (True,), "1", b"1", Config(1, 1.0), Config(1, 2.0)]
    for _ in range(3):
        for value in values:
            f(X, value)
    assert len(calls) == len(values)


def test_a_static_object_that_changes_its_hash_is_seen():
    class Changing:
        value = 1

        def __hash__(self):
            return self.value

        def __eq__(self, other):
            return self.value == other.value
    f = mlc.jit(lambda a, s: a * s.value, static_argnums=1)
    s = Changing()
    for value in (1, 1, 1, 2, 2):
        s.value = value
        assert np.array_equal(f(X, s), X * value)


def test_an_int_beyond_64_bits_is_still_refused():
    f = mlc.jit(lambda a, n: a + n)
    for n in (1, 2, 3):
        f(X, n)
    with pytest.raises(DtypeError, match="does not fit in 64 bits"):
        f(X, 1 << 64)


def test_options_and_environment_are_seen_by_native_calls(monkeypatch):
    f, calls = counted(lambda x: x + 1)
    for _ in range(3):
        f(X)
    with mlc.options(pass_limit=3):
        for _ in range(3):
            f(X)
        assert not python_calls(lambda: f(X))
    for _ in range(3):
        f(X)
    assert len(calls) == 2 and not python_calls(lambda: f(X))
    monkeypatch.setenv("MLC_PASS_LIMIT", "5")
    f(X)
    assert len(calls) == 3
    monkeypatch.delenv("MLC_PASS_LIMIT")
    f(X), f(X)
    assert len(calls) == 3 and not python_calls(lambda: f(X))


def test_a_new_block_of_equal_options_is_served_natively_too():
    f = mlc.jit(lambda x: x + 1)
    for _ in range(3):
        with mlc.options(pass_limit=3):
            f(X), f(X)
            assert not python_calls(lambda: f(X))


def test_a_function_called_while_another_is_recorded_becomes_part_of_it():
    inner = mlc.jit(lambda x: x * 2)
    inner(X), inner(X)
    outer = mlc.jit(lambda x: x + inner(X))
    assert "mul" in outer.lower(Y).as_text() and np.array_equal(outer(Y), Y + X * 2)


def test_recording_on_another_thread_does_not_disturb_calls():
    inner = mlc.jit(lambda x: x * 2)
    inner(X), inner(X)
    answers = []

    def slow(x):
        thread = threading.Thread(target=lambda: answers.append(inner(Y)))
        thread.start(), thread.join()
        return x + 1
    mlc.jit(slow)(X)
    assert np.array_equal(answers[0], Y * 2)


def test_more_kinds_of_calls_than_there_are_entries_all_work():
    f, calls = counted(lambda x: x + 1)
    for _ in range(2):
        for n in range(1, 40):
            assert f(np.zeros(n, np.float32)).shape == (n,)
    assert len(calls) == 39


def test_trees_too_deep_for_native_code_work():
    f = mlc.jit(lambda t: t)
    tree = X
    for _ in range(100):
        tree = [tree]
    for _ in range(3):
        found = f(tree)
    for _ in range(100):
        found = found[0]
    assert np.array_equal(found, X)


def test_a_dict_key_that_raises_when_compared_goes_the_long_way():
    class Rude(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            raise ValueError("rude")
    f = mlc.jit(lambda t: t)
    f({"a": X}), f({"a": X})
    assert np.array_equal(next(iter(f({Rude("a"): Y}).values())), Y)


def test_without_native_dispatch_calls_are_the_same(monkeypatch):
    monkeypatch.setattr(dispatch, "available", lambda recordings: False)
    f = mlc.jit(lambda t: {"r": t["a"] - t["b"]})
    for _ in range(3):
        assert np.array_equal(f({"a": X, "b": Y})["r"], X - Y)


# --------------------------------------------------------------------------- lifetimes
def test_a_dropped_function_goes_at_once():
    f = mlc.jit(lambda a: a + 1)
    f(X), f(X)
    gone, core = weakref.ref(f), weakref.ref(f._core)
    gc.disable()
    try:
        del f
        assert gone() is None and core() is None
    finally:
        gc.enable()


def test_the_call_outlives_the_function():
    f = mlc.jit(lambda a: a + 1)
    f(X), f(X)
    call = f.__call__
    del f
    assert np.array_equal(call(X), X + 1) and np.array_equal(call(X[:2]), X[:2] + 1)


def test_reference_counts_are_balanced():
    f = mlc.jit(lambda t, s, *, k: {"a": (t["x"] + s, [t["y"]]), "b": Pair(t["x"], k), "n": None})
    tree, number = {"x": X.copy(), "y": Y.copy()}, 2.5
    for _ in range(3):
        f(tree, number, k=X)
    assert not python_calls(lambda: f(tree, number, k=X))
    watched = [tree, tree["x"], tree["y"], X, X.dtype, Pair, "a", "x", number]
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(100):
        f(tree, number, k=X)
    assert [sys.getrefcount(thing) for thing in watched] == before


def test_results_are_tracked_by_the_collector():
    f = mlc.jit(lambda a: Pair(a, [a]))
    f(X), f(X)
    found = f(X)
    assert gc.is_tracked(found) and gc.is_tracked(found[1])
    found[1].append(found)
    gone = weakref.ref(found[0])
    del found
    gc.collect()
    assert gone() is None


def test_memory_that_cannot_be_had_is_an_error_and_gives_everything_back():
    huge = mlc.jit(lambda a: [a + 1, mlc.numpy.broadcast_to(a, (1 << 44, 4)) + 0.0])
    for _ in range(3):
        with pytest.raises(MemoryError):
            huge(X)


def test_variants_may_be_forgotten_and_leaves_replaced_while_a_call_runs():
    f = mlc.jit(lambda t: [mlc.numpy.sum(mlc.numpy.exp(t["x"])), t["x"] + 1])
    n = 1 << 20
    want = f({"x": np.full(n, 2.0)})[1][0]
    tree = {"x": np.full(n, 2.0)}
    f(tree), f(tree)
    stop = threading.Event()

    def disturb():
        while not stop.is_set():
            tree["x"] = np.full(n, 2.0)
            f.clear_cache()
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert all((f(tree)[1] == want).all() for _ in range(20))
    finally:
        stop.set()
        thread.join()


def test_threads_with_different_options_share_a_function():
    f = mlc.jit(lambda a, b: a - b)
    wrong = []

    def work(limit):
        with mlc.options(pass_limit=limit):
            for i in range(300):
                if not np.array_equal(f(X + i, Y), X + i - Y):
                    wrong.append(i)
    threads = [threading.Thread(target=work, args=(2 + i % 2,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong and len(f._variants) == 2


def test_a_child_forked_while_another_thread_records_still_calls_natively(in_a_child):
    f = mlc.jit(lambda a: a + 1)
    f(X), f(X)
    entered, leave = threading.Event(), threading.Event()

    def slow(x):
        entered.set(), leave.wait()
        return x
    thread = threading.Thread(target=lambda: mlc.jit(slow)(X))
    thread.start()
    entered.wait()
    natively = in_a_child(lambda: not python_calls(lambda: f(X)) and np.array_equal(f(X), X + 1))
    leave.set()
    thread.join()
    assert natively


def test_hits_are_counted_on_the_program():
    f = mlc.jit(lambda a: a + 1)
    f(X), f(X)
    program, = (v.executable.program for v in f._variants.values())
    before = int(np.asarray(program._native.__self__)[entry_ir.HITS])
    f(X)
    assert int(np.asarray(program._native.__self__)[entry_ir.HITS]) == before + 1


def test_the_first_call_of_a_process_loads_no_native_entry():
    code = ("import numpy as np, mlc; from mlc.runtime import entry; f = mlc.jit(lambda a: a + 1); x = np.ones(3); "
            "print(f(x).tolist(), entry._native.loaded(), f(x).tolist(), entry._native.loaded())")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True).stdout
    assert out == "[2.0, 2.0, 2.0] False [2.0, 2.0, 2.0] True\n"
