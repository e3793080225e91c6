"""Probe the machine's limits with generated code, in a process of its own: `python -m mlc.tools.bench.probe SECONDS THREADS...` prints JSON.

Every figure is the best of many short windows, so a busy machine is disturbed rarely in all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from mlc.tools.bench.machine import Limits, Machine

KIB, MIB = 1 << 10, 1 << 20
# To 256 MiB; in smaller steps where second caches end, and rates fall by half from one of them to the next.
SIZES = tuple(sorted({16 * KIB << i for i in range(15)} | {round(16 * 2 ** (i / 4)) * 64 * KIB for i in range(9)}))
WINDOW = 2e-4  # seconds: long beside starting a window, short beside the machine's other work
FUNCTIONS = ("exp", "tanh", "erf", "log")


def aligned(nbytes: int) -> np.ndarray:
    """Touched bytes at a multiple of 4096."""
    raw = np.zeros(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    raw += 1
    return raw[start:start + nbytes]


def cpu_name() -> str:
    """What /proc/cpuinfo calls the CPU; "unknown" elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


class Team:
    """Threads, one a core, that run a native function at the same time; the rates of all are added."""

    def __init__(self, threads: int, cores: list[int]):
        self.threads, self.cores = threads, cores

    def rate(self, calls: list[Callable[[int], None]], work: float, seconds: float) -> float:
        """The best rate of `work` a repeat, over windows that fill `seconds`; each call takes a number of repeats."""
        if self.threads == 1:
            return _best(calls[0], work, seconds, lambda: None)
        barrier, rates = threading.Barrier(self.threads), [[] for _ in range(self.threads)]

        def run(index: int) -> None:
            if self.cores:
                os.sched_setaffinity(0, {self.cores[index]})
            rates[index] = _windows(calls[index], work, seconds, barrier.wait)
        threads = [threading.Thread(target=run, args=(i,)) for i in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(map(sum, zip(*rates)))


def _repeats(call: Callable[[int], None], seconds: float) -> int:
    """How many repeats fill a window. The first call does not count, and of two the quicker does: either may be disturbed."""
    count = 1
    call(1)
    while True:
        taken = []
        for _ in range(2):
            begun = time.perf_counter()
            call(count)
            taken.append(max(time.perf_counter() - begun, 1e-9))
        if min(taken) >= seconds / 4 or count > 1 << 30:
            return max(1, round(count * seconds / min(taken)))
        count *= min(16, max(2, int(seconds / min(taken) / 2)))


def _windows(call: Callable[[int], None], work: float, seconds: float, meet: Callable[[], object]) -> list[float]:
    """The rates of the windows. Threads meet before each, and all run the same number of windows, of ten times the length."""
    count, windows = _repeats(call, 10 * WINDOW), max(5, int(seconds / (10 * WINDOW)))
    found = []
    for _ in range(windows):
        meet()
        begun = time.perf_counter()
        call(count)
        found.append(count * work / (time.perf_counter() - begun))
    return found


def _best(call: Callable[[int], None], work: float, seconds: float, meet: Callable[[], object]) -> float:
    count, best = _repeats(call, WINDOW), 0.0
    until, least = time.perf_counter() + seconds, 5
    while least > 0 or time.perf_counter() < until:
        least -= 1
        meet()
        begun = time.perf_counter()
        call(count)
        best = max(best, count * work / (time.perf_counter() - begun))
    return best


def _library():
    """The probes, compiled: the library, and the operations of a repeat of each compute loop."""
    from mlc.codegen.target import compile_object, get_target
    from mlc.runtime.orc import Library
    from mlc.tools.bench import probe_ir
    target, operations = get_target("native"), {}
    texts = [probe_ir.memory(name, target) for name in probe_ir.MEMORY]
    for dtype, (text, count) in probe_ir.computing(target).items():
        texts.append(text)
        operations[dtype] = count
    lines, seen = [], set()
    for line in "".join(texts).splitlines():
        if not line.startswith("declare") or line not in seen:
            lines.append(line)
        seen.add(line)
    exports = [*probe_ir.MEMORY, *(f"peak_{dtype}" for dtype in operations)]
    return Library(compile_object("\n".join(lines) + "\n", target), exports), operations


def probe_limits(threads: int, seconds: float, cores: list[int]) -> Limits:
    """Peak and bandwidth of so many threads, `seconds` for each figure; a working set is divided among the threads."""
    from mlc.tools.bench import probe_ir
    library, operations = _library()
    native = {name: library.function(name, None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64) for name in library.exports}
    # Not at the same offset in a page: a load would wait for a store that only looks like its own.
    buffers = [(aligned(SIZES[-1] // threads), aligned(SIZES[-1] // threads + 4096)[1088:]) for _ in range(threads)]
    team = Team(threads, cores)

    def calls(name: str, nbytes: int) -> list[Callable[[int], None]]:
        return [lambda n, t=t.ctypes.data, f=f.ctypes.data: native[name](t, f, nbytes, n) for t, f in buffers]
    operand = {"f32": np.float32(0.5), "f64": np.float64(0.5), "bf16": np.uint16(0x3F00), "int8": np.uint8(1)}
    peak = {}
    for dtype, count in operations.items():
        for _, source in buffers:
            source[:operand[dtype].nbytes] = np.frombuffer(operand[dtype].tobytes(), np.uint8)
        peak[dtype] = team.rate(calls(f"peak_{dtype}", 0), count, 4 * seconds)
    bandwidth: dict[str, list[list[float]]] = {}
    for name, (reads, writes, extra) in probe_ir.MEMORY.items():
        sides = int(reads) + int(writes)
        for size in SIZES:
            if not extra or size >= MIB:
                share = size // sides // threads
                bandwidth.setdefault(name, []).append([float(size), team.rate(calls(name, share), share * sides, seconds)])
    return Limits(peak, bandwidth)


def probe_functions(seconds: float) -> dict[str, float]:
    """Seconds an f32 element of each transcendental takes mlc in cache, a call's overhead taken off; one that does not compile is left out."""
    import mlc
    library = {"exp": mlc.numpy.exp, "tanh": mlc.numpy.tanh, "log": mlc.numpy.log, "erf": mlc.nn.erf}

    def least(function, x) -> float:
        def call(n: int) -> None:
            for _ in range(n):
                function(x)
        return 1 / _best(call, 1.0, seconds, lambda: None)
    found = {}
    for name in FUNCTIONS:
        function = mlc.jit(library[name])
        inputs = [np.random.default_rng(0).uniform(0.1, 3.0, size).astype(np.float32) for size in (1, 16384, 32768, 65536)]
        try:
            overhead, *times = (least(function, x) for x in inputs)
        except Exception as error:
            print(f"{name} is not probed: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        found[name] = min(max(0.0, taken - overhead) / x.size for taken, x in zip(times, inputs[1:]))
    return found


def main(threads: list[int], seconds: float) -> Machine:
    """Probe for each number of threads. One thread stays on the first core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    limits = {}
    for count in threads:
        if cores:
            os.sched_setaffinity(0, cores[:count])
        limits[count] = probe_limits(count, seconds, cores if len(cores) >= count else [])
    if cores:
        os.sched_setaffinity(0, cores[:1])
    functions = probe_functions(4 * seconds)
    return Machine(cpu_name(), {n: Limits(x.peak, x.bandwidth, {k: v / n for k, v in functions.items()}) for n, x in limits.items()})


def serve(threads: int) -> None:
    """The f32 peak of now, asked for between measurements: a line of JSON for each line read. Clocks drift by some percent."""
    library, operations = _library()
    function = library.function("peak_f32", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    buffers = [aligned(4096) for _ in range(threads)]
    for buffer in buffers:
        buffer[:4] = np.frombuffer(np.float32(0.5).tobytes(), np.uint8)
    team = Team(threads, sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [])
    calls = [lambda n, at=buffer.ctypes.data: function(at, at, 0, n) for buffer in buffers]
    print(json.dumps({"ready": "clock"}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"rate": team.rate(calls, operations["f32"], 25 * WINDOW)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]))
    else:
        print(json.dumps(main([int(word) for word in sys.argv[2:]], float(sys.argv[1])).to_json()))
