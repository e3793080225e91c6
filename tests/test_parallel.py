"""Programs on several threads: the same bits for any number, from several Python threads, across forks, and no CPU when idle."""

import os
import threading
import time

import numpy as np
import pytest

import mlc
from mlc import numpy as mnp
from mlc.kernel.interp import execute_steps
from mlc.loop.interp import run
from mlc.runtime.threads import threads_in_use, workers_started

THREADS = (1, 2, 3, 7)


def normalised(x):
    return (x - mnp.mean(x, axis=-1, keepdims=True)) / mnp.std(x, axis=-1, keepdims=True)


# Name: function, shapes of its arguments.
PROGRAMS = {
    "map": (lambda x, y: x * 2 + y, (300, 37), (300, 37)),
    "formula": (lambda x: mnp.exp(x) + mnp.tanh(x), (5345,)),
    "broadcast": (lambda x, b: mnp.tanh(x) + b, (100, 70), (70,)),
    "softmax": (lambda x: mlc.nn.softmax(x, axis=-1), (70, 100)),
    "layer norm": (normalised, (17, 777)),
    "rows in the arena": (lambda x: mlc.nn.softmax(x, axis=-1), (5, 9000)),
    "short rows": (lambda x: mnp.sum(x, axis=-1), (1000, 3)),
    "sum of columns": (lambda x: mnp.sum(x, axis=0), (60, 700)),
    "sum of few columns": (lambda x: mnp.sum(x * x, axis=0), (701, 20)),
    "sum of rows": (lambda x: mnp.sum(x, axis=1), (40, 201)),
    "sum of all": (lambda x: mnp.sum(x), (10_011,)),
    "argmax of all": (lambda x: mnp.max(x) + mnp.argmin(x), (300, 100)),
    "softmax of all": (lambda x: mlc.nn.softmax(x), (9_000,)),
    "divided by its norm": (lambda x: x / mnp.sqrt(mnp.sum(x * x)), (100, 301)),
    "product": (lambda x, y: mnp.maximum(x @ y, 0), (50, 64), (64, 130)),
    "deep product": (lambda x, y: x @ y, (20, 2100), (2100, 40)),
    "few rows": (lambda x, y: x @ y, (3, 100), (100, 500)),
    "batched product": (lambda x, y: x @ y, (3, 30, 34), (3, 34, 70)),
    "transposed": (lambda x: x.T + 1, (150, 140)),
    "joined": (lambda x, y: mnp.concat([x, y], axis=1), (100, 60), (100, 70)),
    "several kernels": (lambda x, w: normalised(mlc.nn.relu(x @ w)) + mnp.sum(x), (40, 70), (70, 60)),
}


def arguments(shapes, dtype=np.float32):
    rng = np.random.default_rng(len(shapes[0]))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


CASES = [(name, np.float32) for name in PROGRAMS] + [(name, dtype) for name in ("softmax", "sum of few columns", "sum of all", "product")
                                                    for dtype in (np.float64, np.float16)]


@pytest.mark.parametrize("name,dtype", CASES)
def test_any_number_of_threads_gives_the_bits_of_the_interpreters(name, dtype):
    fn, *shapes = PROGRAMS[name]
    args = arguments(shapes, dtype)
    with mlc.options(fork_us=0, check=2, cache=False):
        exe = mlc.jit(fn).lower(*args).compile()
    stages = exe.executable.stages
    assert any(schedule.parallel for schedule in stages.schedules.values())
    wanted = [out.tobytes() for out in stages.run_loops(args)]
    assert [out.tobytes() for out in stages.run_kernels(args)] == wanted
    constants = dict(zip(stages.kernels.constants, stages.constants()))
    backwards = execute_steps(stages.kernels, args, constants, lambda kernel, bound: run(stages.loops[kernel], bound, reverse_parallel=True))
    assert [out.tobytes() for out in backwards] == wanted
    for count in THREADS:
        with mlc.options(threads=count):
            assert threads_in_use() == count
            for _ in range(3):
                assert [out.tobytes() for out in exe.executable.run(args)] == wanted, count


@pytest.fixture(scope="module")
def heavy():
    """A program of several parallel kernels, its arguments, and its answer on one thread."""
    def fn(x, w):
        y = mlc.nn.softmax(x @ w, axis=-1)
        return y + mnp.sum(y * x) + mnp.exp(x)
    args = arguments([(400, 400), (400, 400)])
    with mlc.options(fork_us=1, cache=False):
        exe = mlc.jit(fn).lower(*args).compile()
    assert sum(bool(s.parallel) for s in exe.executable.stages.schedules.values()) >= 2
    return exe, args, exe(*args).tobytes()


def test_python_threads_may_call_one_function_at_once(heavy):
    exe, args, wanted = heavy
    wrong = []

    def work():
        for _ in range(60):
            if exe(*args).tobytes() != wanted:
                wrong.append(1)
    with mlc.options(threads=3):
        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
    assert not wrong


def test_a_long_call_lets_other_python_threads_run():
    args = arguments([(600, 600), (600, 600)])
    exe = mlc.jit(lambda x, w: (x @ w) @ w).lower(*args).compile()
    assert exe.executable.program.manifest.heavy
    small = mlc.jit(lambda x: x + 1).lower(args[0][0, :8]).compile()
    assert not small.executable.program.manifest.heavy
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0)
    other = threading.Thread(target=tick)
    other.start()
    inside = 0
    try:
        for _ in range(40):
            begun = time.perf_counter()
            exe(*args)
            ended = time.perf_counter()
            inside += sum(begun < t < ended for t in ticks[-1000:])
    finally:
        done.set()
        other.join()
    assert inside > 0


def test_children_forked_in_the_middle_of_calls_compute(heavy, in_a_child):
    exe, args, wanted = heavy
    stop = threading.Event()

    def work():
        while not stop.is_set():
            exe(*args)
    with mlc.options(threads=3):
        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(8):
                assert in_a_child(
                    lambda: workers_started() == 0 and all(exe(*args).tobytes() == wanted for _ in range(5)) and workers_started() == 2)
        finally:
            stop.set()
            worker.join()
        assert exe(*args).tobytes() == wanted


def test_workers_use_no_cpu_when_there_is_nothing_to_do(heavy):
    exe, args, _ = heavy
    with mlc.options(threads=4):
        for _ in range(20):
            exe(*args)
        time.sleep(0.02)
        begun = time.process_time()
        time.sleep(0.3)
        used = time.process_time() - begun
    assert used < 0.01, used


def test_one_thread_starts_no_worker():
    import subprocess
    import sys
    code = """
import numpy as np, mlc
from mlc.runtime.threads import workers_started
x = np.ones((600, 600), np.float32)
f = mlc.jit(lambda x: mlc.nn.softmax(x @ x, axis=-1))
f(x)
print(workers_started(), any(step.extent for step in f.lower(x).compile().executable.stages.module.steps))
with mlc.options(threads=3):
    f(x)
print(workers_started())
"""
    environment = {**os.environ, "MLC_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 True\n2\n", (done.stdout, done.stderr)


def test_saved_programs_run_on_several_threads(heavy, tmp_path):
    exe, args, wanted = heavy
    exe.save(tmp_path / "saved.mlcx")
    loaded = mlc.load(tmp_path / "saved.mlcx")
    for count in THREADS:
        with mlc.options(threads=count):
            assert loaded(*args).tobytes() == wanted
    assert loaded.memory_analysis()["scratch per worker"] == exe.memory_analysis()["scratch per worker"]


def test_rows_too_large_for_the_stack_are_reported_for_each_worker():
    x = np.ones((64, 10_000), np.float32)
    with mlc.options(fork_us=0):
        memory = mlc.jit(lambda x: mlc.nn.softmax(x, axis=-1)).lower(x).compile().memory_analysis()
        assert memory["scratch per worker"] >= 40_000 and memory["workspace"] >= memory["scratch per worker"] and memory["arena"] == 0
        assert mlc.jit(lambda x: x + 1).lower(x).compile().memory_analysis()["scratch per worker"] == 0
