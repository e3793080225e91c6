"""A workload's first call in a new process: `python -m mlc.tools.bench.firstcall LIBRARY WORKLOAD` prints JSON.

`ms` starts when the library is imported, its arrays are made, and (jax) its backend is up; all that mlc loads on its first call counts.
`start_ms` starts with the process: the interpreter's start, importing the library, its backend and the first call, for both libraries; what is
left out is the measuring modules and making the arguments. With --loaded mlc's compiler, llvmlite and LLVM's targets are there before
the clock starts, as XLA is when jax's backend is up. `steady_ms` is the least of some more calls. Memory is what the compiler says of the
program, and by how much the process grew.

`START` runs a process whose start can be told: nothing of mlc is imported before the library.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from mlc.tools.bench.libraries import LIBRARIES
from mlc.tools.bench.worker import bind, reason
from mlc.tools.bench.workloads import all_workloads, leaves

# Arguments: LIBRARY WORKLOAD [--memory] [--loaded] and, last, the time (time.monotonic) at which the process was asked for.
START = ("import sys, time, importlib; up = time.monotonic(); importlib.import_module(sys.argv[1]); imported = time.monotonic(); "
         "from mlc.tools.bench import firstcall; firstcall.main(sys.argv[1:-1], imported - float(sys.argv[-1]))")
MORE_CALLS, MORE_SECONDS = 20, 0.3


def _status(key: str) -> int:
    """A line of /proc/self/status in bytes; 0 where there is none."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
    except (OSError, StopIteration):
        return 0


def _forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    except OSError:
        pass


def _load_compiler() -> None:
    """All modules that compiling takes, LLVM's library, and what it knows of this machine."""
    from mlc import stages  # noqa: F401
    from mlc.codegen.target import get_target
    get_target("native").machine()


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = run()
    return time.perf_counter() - begun, result


def _steady(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of some calls."""
    until, best = time.perf_counter() + MORE_SECONDS, float("inf")
    for _ in range(MORE_CALLS):
        best = min(best, _timed(call)[0])
        if time.perf_counter() > until:
            break
    return best


def measure(name: str, workload_name: str, memory: bool = False, loaded: bool = False, imported: float | None = None) -> dict[str, Any]:
    """First call, and, if asked for, the program's memory. `imported` is how long the process had needed to import the library."""
    workload = next(w for w in all_workloads() if w.name == workload_name)
    opened, library = _timed(LIBRARIES[name])
    opened += _timed(library.start)[0]
    if loaded:
        _load_compiler()
    function, args = bind(workload, library)
    _forget_peak()
    resident = _status("VmRSS")

    def call() -> Any:
        result = compiled(*args)
        return library.wait(result) if library.wait else result
    begun = time.perf_counter()
    compiled = library.compile(function)
    call()
    first = time.perf_counter() - begun
    found: dict[str, Any] = {"ms": (first + (opened if name == "mlc" else 0.0)) * 1e3, "grown": max(0, _status("VmHWM") - resident),
                             "steady_ms": _steady(call) * 1e3}
    if imported is not None:
        found["start_ms"] = (imported + opened + first) * 1e3
    if memory and library.memory:
        found["memory"] = library.memory(compiled, args)
        if workload.constants and name == "jax":
            found["memory"]["constants"] = float(sum(leaf.nbytes for arg in workload.args()[-workload.constants:] for leaf in leaves(arg)))
    return found


def main(words: list[str], imported: float | None = None) -> None:
    """Print what was measured, or why it could not be."""
    try:
        print(json.dumps(measure(words[0], words[1], "--memory" in words, "--loaded" in words, imported)))
    except Exception as error:
        print(json.dumps({"skip": reason(error)}))


if __name__ == "__main__":
    main(sys.argv[1:])
