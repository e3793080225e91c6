"""A workload's first call in a new process: `python -m mlc.tools.bench.firstcall LIBRARY WORKLOAD` prints JSON.

The time starts when the library is imported, its arrays are made, and (jax) its backend is up; all that mlc loads on its first call
counts. Memory is what the compiler says of the program, and by how much the process grew.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

from mlc.tools.bench.libraries import LIBRARIES
from mlc.tools.bench.worker import bind, reason
from mlc.tools.bench.workloads import all_workloads, leaves


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


def measure(name: str, workload_name: str, memory: bool) -> dict[str, Any]:
    """First call, and, if asked for, the program's memory."""
    workload = next(w for w in all_workloads() if w.name == workload_name)
    begun = time.perf_counter()
    importlib.import_module(name)
    imported = time.perf_counter()
    library = LIBRARIES[name]()
    opened = time.perf_counter() - imported
    function, args = bind(workload, library)
    _forget_peak()
    resident = _status("VmRSS")
    called = time.perf_counter()
    compiled = library.compile(function)
    result = compiled(*args)
    if library.wait:
        library.wait(result)
    first = time.perf_counter() - called
    found: dict[str, Any] = {"import_ms": (imported - begun) * 1e3, "ms": (first + (opened if name == "mlc" else 0.0)) * 1e3,
                             "grown": max(0, _status("VmHWM") - resident)}
    if memory and library.memory:
        found["memory"] = library.memory(compiled, args)
        if workload.constants and name == "jax":
            found["memory"]["constants"] = float(sum(leaf.nbytes for arg in workload.args()[-workload.constants:] for leaf in leaves(arg)))
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], "--memory" in sys.argv)))
    except Exception as error:
        print(json.dumps({"skip": reason(error)}))
