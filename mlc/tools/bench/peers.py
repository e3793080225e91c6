"""Worker processes: how they are started, pinned, asked in turn, and what becomes of one that fails.

The record of a workload is a dict that goes into the JSON as it is:

    workload, group, quick...   what `Workload` says that a reader of the file needs
    floor_us {threads: us}, bound {threads: "compute" | "memory" | "functions"}
    us, rounds {threads: {library: us / [us]}}
    first_ms, ulp, skip {library: ...}
    cold_ms, warm_ms, start_ms, loaded_ms, warm_steady_ms, grown {library: ...}, memory {library: {part: bytes}}
    clock {threads: [f32 operations a second, round by round]}
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mlc.tools.bench import firstcall
from mlc.tools.bench.machine import Machine
from mlc.tools.bench.workloads import Workload

Record = dict[str, Any]
FIRST_CALLS = ("cold_ms", "warm_ms", "start_ms", "loaded_ms", "warm_steady_ms", "grown")
PATIENCE = 180.0  # seconds until a silent worker is given up
CLOCK = "clock"  # the worker that tells how fast the core runs
SLOWEST = 0.85  # a core is not that much slower than when it was probed: then it was shared, and the floor stays where it is


def cores(threads: int) -> list[int] | None:
    """The first so many of the cores this process may use; None where the system cannot pin."""
    return sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else None


@functools.cache
def bytecode_folder() -> str:
    """Where workers keep bytecode when it may not lie beside the sources: an installed library has it, and first calls would pay for it."""
    folder = tempfile.TemporaryDirectory(prefix="mlc-bench-")
    atexit.register(folder.cleanup)
    return folder.name


def environment(threads: int | None) -> dict[str, str]:
    """A worker's environment: what limits its threads; None leaves them free."""
    # Some machines force an old OpenBLAS kernel by these two; a peer is measured at its best.
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    env |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if env.pop("PYTHONDONTWRITEBYTECODE", None):
        env["PYTHONPYCACHEPREFIX"] = bytecode_folder()
    if threads is not None:
        env |= {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MLC_THREADS")}
        env["MLC_CACHE"] = "0"
    if threads == 1:
        env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return env


def python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", f"mlc.tools.bench.{module}", *words]


def _prepare(pinned: list[int] | None) -> None:
    """In the new process: pin it, and let it end with its parent, even where it is halted then."""
    if pinned:
        os.sched_setaffinity(0, pinned)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Peer:
    """A worker process, pinned to the cores that its threads may use; started again after it died.

    It is halted while others are asked: the threads of a pool that still spin would take a core from the next library.
    """

    def __init__(self, library: str, threads: int):
        self.library, self.threads, self.process = library, threads, None
        self.broken: str | None = None
        self.start()

    def start(self) -> None:
        """Start the process; `broken` is the reason if the library cannot work at all."""
        pinned = cores(self.threads)
        words = ("probe", "--serve", str(self.threads)) if self.library == CLOCK else ("worker", self.library)
        self.process = subprocess.Popen(
            python(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment(self.threads), preexec_fn=functools.partial(_prepare, pinned))
        self.broken = self._read().get("skip")
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """Halt the process or let it go on; nothing where it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def _read(self) -> Record:
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.process.kill()
            self.process.wait()
            return {"skip": f"no answer in {PATIENCE:.0f} s"}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"skip": f"the process ended with code {self._end()}"}

    def ask(self, do: str, **request: Any) -> Record:
        """The worker's answer; {"skip": reason} also when it died."""
        if self.broken:
            return {"skip": self.broken}
        if self.process.poll() is not None:
            self.start()
            if self.broken or do in ("time", "drop"):
                return {"skip": self.broken or "the process had ended"}
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write((json.dumps({"do": do, **request}) + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            return {"skip": f"the process ended with code {self._end()}"}
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._end()
        self.process.stdout.close()

    def _end(self) -> int:
        """The exit code of a process that should be ending."""
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def new_record(workload: Workload) -> Record:
    """What is known before measuring."""
    kept = ("group", "dtype", "flops", "read", "written", "functions", "dram", "constants", "exact_ulp")
    return {"workload": workload.name, **{key: getattr(workload, key) for key in kept}, "floor_us": {}, "bound": {}, "us": {}, "rounds": {},
            "first_ms": {}, "ulp": {}, "skip": {}, "memory": {}, "clock": {}, **{name: {} for name in FIRST_CALLS}}


def set_floors(record: Record, machine: Machine) -> None:
    """Fill in the floors, once the machine is probed."""
    for threads, limits in machine.limits.items():
        rates = record["clock"].get(str(threads))
        clock = statistics.median(rates) / limits.peak["f32"] if rates else 1.0
        parts = limits.parts(record["dtype"], record["flops"], record["read"], record["written"], record["functions"],
                             clock if SLOWEST <= clock <= 1.0 else 1.0)
        bound = max(parts, key=parts.get)
        record["floor_us"][str(threads)], record["bound"][str(threads)] = parts[bound] * 1e6, bound


def measure(workload: Workload, record: Record, peers: list[Peer], rounds: int, seconds: float, reference: Peer | None,
            clock: Peer | None) -> None:
    """Load the workload in every peer, then time them in turn, round by round; all peers have the same number of threads."""
    key, file = str(peers[0].threads), None
    present = []
    with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
        if reference is not None and workload.check:
            file = str(Path(folder) / "reference.npy")
            if "skip" in reference.ask("reference", workload=workload.name, file=file):
                file = None
        for peer in (p for p in peers if workload.asks(p.library)):
            answer = peer.ask("load", workload=workload.name, reference=file)
            if "skip" in answer:
                record["skip"][peer.library] = answer["skip"]
                continue
            present.append(peer)
            record["first_ms"].setdefault(peer.library, answer["first_ms"])
            if "ulp" in answer:
                record["ulp"][peer.library] = answer["ulp"]
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        if clock is not None and "rate" in (answer := clock.ask("rate")):
            record["clock"].setdefault(key, []).append(answer["rate"])
        for peer in list(present):
            # Long calls vary little: three rounds do.
            if number >= 3 and times[peer.library][0] > 1e5:
                continue
            answer = peer.ask("time", seconds=seconds)
            if "skip" in answer:
                record["skip"][peer.library] = answer["skip"]
                present.remove(peer)
                continue
            times.setdefault(peer.library, []).append(answer["us"])
    for peer in present:
        peer.ask("drop")
    record["rounds"][key] = times
    record["us"][key] = {library: statistics.median(values) for library, values in times.items()}


def _first_call(library: str, workload: str, folder: str, *words: str) -> Record:
    env = environment(None) | {
        "MLC_CACHE": "1", "MLC_CACHE_DIR": folder, "JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    command = [sys.executable, "-W", "ignore", "-c", firstcall.START, library, workload, *words]
    try:
        done = subprocess.run([*command, repr(time.monotonic())], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=PATIENCE, check=False)
        return json.loads(done.stdout) if done.stdout else {"skip": f"the process ended with code {done.returncode}"}
    except subprocess.TimeoutExpired:
        return {"skip": f"no answer in {PATIENCE:.0f} s"}


def prepare_first_calls(libraries: list[str]) -> None:
    """A first call that does not count: it leaves the libraries' bytecode, and their files in the system's cache."""
    for library in (x for x in ("mlc", "jax") if x in libraries):
        with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
            _first_call(library, "MLP batch 1", folder)
            _first_call(library, "MLP batch 1", folder)


def _keep_least(record: Record, name: str, library: str, value: float) -> None:
    record[name][library] = min(value, record[name].get(library, value))


def first_calls(workload: Workload, record: Record, libraries: list[str], rounds: int) -> None:
    """First calls in new processes, mlc and jax in turn: with an empty cache, then with the cache that left; the least of the rounds."""
    for _ in range(rounds):
        for library in (x for x in ("mlc", "jax") if x in libraries and workload.asks(x) and x not in record["skip"]):
            with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
                cold = _first_call(library, workload.name, folder, *([] if library in record["memory"] else ["--memory"]))
                warm = _first_call(library, workload.name, folder)
            loaded = cold  # jax loads its compiler when it is imported
            if library == "mlc":
                with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
                    loaded = _first_call(library, workload.name, folder, "--loaded")
            for answer, name in ((cold, "cold_ms"), (warm, "warm_ms"), (loaded, "loaded_ms")):
                if "skip" in answer:
                    record["skip"][f"{library} {name}"] = answer["skip"]
                else:
                    _keep_least(record, name, library, answer["ms"])
            for answer, name, key in ((cold, "start_ms", "start_ms"), (warm, "warm_steady_ms", "steady_ms"), (cold, "grown", "grown")):
                if key in answer:
                    _keep_least(record, name, library, answer[key])
            record["memory"].update({library: cold["memory"]} if "memory" in cold else {})


def probe_machine(threads: list[int], seconds: float) -> Machine:
    """The limits, probed in a process of its own."""
    done = subprocess.run(python("probe", str(seconds), *map(str, threads)), env=os.environ | {"MLC_CACHE": "0", "MLC_THREADS": "1"},
                          stdout=subprocess.PIPE, check=True)
    return Machine.from_json(json.loads(done.stdout))
