"""Values made once: the same for all threads, and tried again after a failure."""

import subprocess
import sys
import threading
import time

import pytest

from mlc.runtime.once import once


def test_threads_that_race_all_get_the_same_value():
    @once
    def value():
        time.sleep(0.01)
        return object()
    results = []
    threads = [threading.Thread(target=lambda: results.append(value())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and len(set(map(id, results))) == 1 and value() is results[0]


def test_a_failure_is_not_remembered():
    attempts = []

    @once
    def value():
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError
        return None
    with pytest.raises(ValueError):
        value()
    assert value() is None and value() is None and len(attempts) == 2


def test_the_runtime_can_be_first_used_by_many_threads_at_once(tmp_path):
    from runtime_programs import subtract
    subtract().save(tmp_path / "p")
    code = """
import sys, threading, numpy as np
from mlc.runtime.executable import Program
x, y = np.ones((3, 4), np.float32), np.full((3, 4), 3, np.float32)
wrong = []
def work():
    barrier.wait()
    try:
        program = Program.load(sys.argv[1])
        for _ in range(100):
            if not (program.run([x, y])[0] == -2).all(): wrong.append(1)
    except BaseException as error:
        wrong.append(error)
barrier = threading.Barrier(6)
threads = [threading.Thread(target=work) for _ in range(6)]
for t in threads: t.start()
for t in threads: t.join()
print(wrong)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "p"], capture_output=True, text=True, timeout=100)
        assert done.stdout == "[]\n", done.stderr
