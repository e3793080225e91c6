"""The worker pool: every index exactly once, from any thread, nested, after a fork; and it never waits for ever."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from runtime_programs import pointers, program

from mlc.codegen.target import compile_object, get_target
from mlc.core.options import options
from mlc.runtime.orc import Library
from mlc.runtime.support import support
from mlc.runtime.threads import threads_in_use, use_threads, workers_started

BODY = """
declare void @mlc_parallel(ptr, ptr, i64, i64)

define internal void @count(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %empty = icmp uge i64 %lo, %hi
  br i1 %empty, label %done, label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %at = getelementptr i32, ptr %ctx, i64 %i
  %old = atomicrmw add ptr %at, i32 1 monotonic
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @run(ptr %counts, i64 %n) {
  call void @mlc_parallel(ptr @count, ptr %counts, i64 %n, i64 0)
  ret void
}
"""


@pytest.fixture(autouse=True)
def one_thread_afterwards():
    yield
    use_threads(1)


def library(text: str, *exports: str) -> Library:
    return Library(compile_object(text, get_target("native")), exports, dependencies=(support(),))


@pytest.fixture(scope="module")
def run():
    """run(n): the numbers of times that each index of a parallel loop was visited."""
    native = library(BODY, "run").function("run", None, ctypes.c_void_p, ctypes.c_int64)

    def visits(n: int) -> np.ndarray:
        counts = np.zeros(n + 64, np.int32)
        native(counts.ctypes.data, n)
        return counts
    return visits


def once(counts: np.ndarray, n: int) -> bool:
    return bool((counts[:n] == 1).all() and not counts[n:].any())


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16])
def test_every_index_is_visited_once(run, count):
    use_threads(count)
    for n in [*range(1, 70), 127, 128, 1000, 4097, 100_003]:
        assert once(run(n), n), n


def test_an_empty_loop_runs_on_nothing(run):
    use_threads(4)
    assert not run(0).any()


def test_one_thread_starts_no_workers():
    output = python("""
        from mlc.runtime.threads import *
        from test_threads import *
        assert workers_started() == 0
        counts = np.zeros(100, np.int32)
        run = library(BODY, 'run').function('run', None, ctypes.c_void_p, ctypes.c_int64)
        run(counts.ctypes.data, 100)
        assert once(counts, 100) and workers_started() == 0
        use_threads(3)
        assert workers_started() == 0
        run(counts.ctypes.data, 100)
        print(workers_started())
    """)
    assert output == "2\n"


def python(code: str, **arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "OPENBLAS_NUM_THREADS": "1"}  # NumPy's own wants threads too
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True,
                          timeout=60, **arguments)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_the_option_sets_the_number():
    use_threads(5)
    with options(threads=3):
        use_threads()
        assert threads_in_use() == 3


def test_a_program_takes_the_number_from_the_environment(monkeypatch):
    monkeypatch.setenv("MLC_THREADS", "4")
    program("define void @mlc_main(ptr %bufs) {\n  ret void\n}\n", [], [("out", (1,), "u32")])
    assert threads_in_use() == 4


def test_the_number_may_go_up_and_down(run):
    for count in (2, 6, 1, 3, 8, 2):
        use_threads(count)
        assert all(once(run(501), 501) for _ in range(50))
    assert workers_started() >= 7


def test_many_short_loops_after_each_other(run):
    use_threads(4)
    for i in range(3000):
        n = 2 + i % 97
        assert once(run(n), n)


def test_loops_after_the_workers_fell_asleep(run):
    use_threads(3)
    for _ in range(30):
        time.sleep(0.002)
        assert once(run(777), 777)


def test_python_threads_can_loop_at_once(run):
    use_threads(3)
    wrong = []

    def work() -> None:
        for i in range(500):
            if not once(run(100 + i), 100 + i):
                wrong.append(i)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_nested_loop_runs_alone():
    text = BODY + """
define internal void @rows(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %empty = icmp uge i64 %lo, %hi
  br i1 %empty, label %done, label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %offset = mul i64 %i, 50
  %row = getelementptr i32, ptr %ctx, i64 %offset
  call void @mlc_parallel(ptr @count, ptr %row, i64 50, i64 0)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @nested(ptr %counts, i64 %n) {
  call void @mlc_parallel(ptr @rows, ptr %counts, i64 %n, i64 0)
  ret void
}
"""
    nested = library(text, "nested").function("nested", None, ctypes.c_void_p, ctypes.c_int64)
    use_threads(4)
    for _ in range(50):
        counts = np.zeros(2000, np.int32)
        nested(counts.ctypes.data, 40)
        assert once(counts, 2000)


WHO = """
declare ptr @pthread_self()
declare i32 @usleep(i32)
define internal void @who(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %me = call ptr @pthread_self()
  %slept = call i32 @usleep(i32 1000)
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %at = getelementptr ptr, ptr %ctx, i64 %i
  store ptr %me, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @ask(ptr %ids, i64 %n) {
  call void @mlc_parallel(ptr @who, ptr %ids, i64 %n, i64 0)
  ret void
}
"""


def test_the_work_is_shared_and_each_thread_keeps_its_range():
    ask = library("declare void @mlc_parallel(ptr, ptr, i64, i64)\n" + WHO, "ask").function("ask", None, ctypes.c_void_p, ctypes.c_int64)
    use_threads(3)
    rounds = []
    for _ in range(20):
        ids = np.zeros(300, np.uint64)
        ask(ids.ctypes.data, 300)
        rounds.append(ids)
    assert max(len(set(ids.tolist())) for ids in rounds) >= 2
    assert all(len(set(ids[start:start + 25].tolist())) == 1 for ids in rounds for start in (50, 75, 150, 175, 250, 275))  # what is taken at once
    caller = ctypes.CDLL(None).pthread_self
    caller.restype = ctypes.c_uint64
    assert sum(int(ids[99]) == caller() for ids in rounds) >= 15  # the caller's own range, what it takes first


HOW_MUCH = """
declare void @mlc_parallel(ptr, ptr, i64, i64)

define internal void @extent(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %taken = sub i64 %hi, %lo
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %ctx, i64 %i
  store i64 %taken, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @measure(ptr %extents, i64 %n) {
  call void @mlc_parallel(ptr @extent, ptr %extents, i64 %n, i64 0)
  ret void
}
"""


def test_half_of_what_is_left_is_taken_at_a_time_whoever_takes_it():
    measure = library(HOW_MUCH, "measure").function("measure", None, ctypes.c_void_p, ctypes.c_int64)
    use_threads(2)
    for n, wanted in ((256, [64, 32, 16, 8, 4, 2, 1, 1]), (26, [7, 3, 2, 1]), (2, [1])):
        extents = np.zeros(n, np.int64)
        measure(extents.ctypes.data, n)
        for part in (extents[:n // 2], extents[n // 2:]):
            found, at = [], len(part)
            while at:
                found.append(int(part[at - 1]))
                at -= found[-1]
            assert found == wanted, (n, found)


def test_a_forked_child_starts_workers_of_its_own(run, in_a_child):
    use_threads(3)
    assert once(run(1000), 1000) and workers_started() >= 2
    assert in_a_child(
        lambda: workers_started() == 0 and once(run(1000), 1000) and workers_started() == 2 and all(once(run(99), 99) for _ in range(200)))
    assert once(run(1000), 1000)


def test_a_child_forked_while_another_thread_is_in_a_loop_can_loop(run, in_a_child):
    use_threads(3)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            run(50_000)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(10):
            assert in_a_child(lambda: all(once(run(5000), 5000) for _ in range(20)))
    finally:
        stop.set()
        worker.join()


def test_workers_compute_with_default_floating_point_settings_and_without_signals():
    text = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare i32 @usleep(i32)
declare void @mlc_parallel(ptr, ptr, i64, i64)
define internal void @state(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
  %p = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  %v = load i32, ptr %p
  %at = getelementptr i32, ptr %ctx, i64 %lo
  store i32 %v, ptr %at
  %slept = call i32 @usleep(i32 500)
  ret void
}
define void @mlc_main(ptr %bufs) {
""" + pointers(1) + "  call void @mlc_parallel(ptr @state, ptr %p0, i64 6, i64 0)\n  ret void\n}\n"
    if not get_target("generic").is_x86:
        pytest.skip("MXCSR is x86's")
    with options(threads=3):
        states = [program(text, [], [("out", (6,), "u32")]).run([])[0] for _ in range(10)]
    for state in states:
        assert {int(word) & ~0x3F for word in state} == {0x1F80}


def test_signals_reach_python_while_workers_work(run):
    use_threads(3)
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.get_ident()))
    try:
        for _ in range(20):
            run(100_000)
            os.kill(os.getpid(), signal.SIGUSR1)
            run(100_000)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [threading.main_thread().ident] * 20


@pytest.mark.skipif(sys.platform != "linux", reason="thread stacks are sized by RLIMIT_STACK on Linux")
def test_a_system_that_refuses_threads_gets_the_loop_done():
    def enormous_stacks() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 46, resource.RLIM_INFINITY))
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("the stack limit cannot be raised here")
    assert python("""
        from test_threads import *
        use_threads(4)
        run = library(BODY, 'run').function('run', None, ctypes.c_void_p, ctypes.c_int64)
        for _ in range(3):
            counts = np.zeros(100, np.int32)
            run(counts.ctypes.data, 100)
            assert once(counts, 100)
        print(workers_started(), threads_in_use())
    """, preexec_fn=enormous_stacks) == "0 1\n"


def test_the_process_ends_while_workers_spin_and_sleep():
    for pause in (0, 0.01):
        assert python(f"""
            from test_threads import *
            use_threads(4)
            run = library(BODY, 'run').function('run', None, ctypes.c_void_p, ctypes.c_int64)
            counts = np.zeros(100, np.int32)
            run(counts.ctypes.data, 100)
            time.sleep({pause})
            print('end')
        """) == "end\n"


def test_a_block_of_options_sets_the_number_for_its_length(run):
    with options(threads=3):
        assert threads_in_use() == 3
        with options(check=1), options(threads=2):
            assert threads_in_use() == 2
        assert threads_in_use() == 3
    assert threads_in_use() == 1


def test_short_loops_run_alone_while_all_sleep_and_wake_them_only_in_a_burst():
    output = python("""
        from test_threads import *
        from mlc.runtime.threads_ir import PATIENCE
        text = "declare void @mlc_parallel(ptr, ptr, i64, i64)\\n" + WHO.replace("i64 %n, i64 0)", "i64 %n, i64 1)")
        ask = library(text, "ask").function("ask", None, ctypes.c_void_p, ctypes.c_int64)
        use_threads(2)
        for i in range(PATIENCE + 20):
            ids = np.zeros(40, np.uint64)
            ask(ids.ctypes.data, 40)
            if len(set(ids.tolist())) > 1 or workers_started():
                print(i + 1 == PATIENCE, workers_started())
                break
    """)
    assert output == "True 1\n"


def test_workers_get_scratch_of_their_own_and_the_caller_none():
    text = """
declare void @mlc_parallel(ptr, ptr, i64, i64)
declare i32 @usleep(i32)
define internal void @note(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch) {
  %at = getelementptr ptr, ptr %ctx, i64 %lo
  store ptr %scratch, ptr %at
  %none = icmp eq ptr %scratch, null
  br i1 %none, label %done, label %fill
fill:
  %last = getelementptr i8, ptr %scratch, i64 99999
  store i8 1, ptr %last
  br label %done
done:
  %slept = call i32 @usleep(i32 300)
  ret void
}
define void @ask(ptr %ids, i64 %n) {
  call void @mlc_parallel(ptr @note, ptr %ids, i64 %n, i64 100000)
  ret void
}
"""
    ask = library(text, "ask").function("ask", None, ctypes.c_void_p, ctypes.c_int64)
    use_threads(3)
    seen = set()
    for _ in range(20):
        ids = np.zeros(12, np.uint64)
        ask(ids.ctypes.data, 12)
        seen |= set(ids.tolist())
    assert 0 in seen and 2 <= len(seen) <= 3 and all(at % 64 == 0 for at in seen)
