"""One library in a process of its own: reads a request a line, answers with a line of JSON.

    {"do": "load", "workload": name, "reference": file or null}  -> {"first_ms": first call, tracing and compiling included, "ulp": worst}
    {"do": "time", "workload": name, "seconds": s}               -> {"us": least time of a call, "calls": how many}
    {"do": "drop"}                                               -> {}
    {"do": "reference", "workload": name, "file": file}          -> {}, and the first elements of the result in the file
    {"do": "functions"}                                          -> {name: worst ulp of a transcendental}

What cannot be done is answered with {"skip": reason}.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.tools.bench.libraries import LIBRARIES, Library, reference
from mlc.tools.bench.workloads import Workload, all_workloads, leaves, tree_map

SAMPLE = 1 << 20  # elements of a result that are compared
WINDOW = 2e-4  # seconds
# A long call that takes less than this part of the best so far starts the time anew, up to so many times as long in all.
STEADY, LONGEST = 0.985, 20
MANTISSA = {"float32": 23, "float64": 52, "bfloat16": 7, "float16": 10}


def ulp(got: np.ndarray, wanted: np.ndarray, exact: bool, dtype: str | None = None) -> float:
    """The worst error in units in the last place: of each element, or of the typical (root mean square) one where it is larger."""
    bits = MANTISSA.get(dtype or str(got.dtype))
    got, wanted = np.asarray(got, np.float64).ravel(), np.asarray(wanted, np.float64).ravel()
    finite = np.isfinite(wanted)
    if got.shape != wanted.shape or not np.isfinite(got[finite]).all() or not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return math.inf
    got, wanted = got[finite], wanted[finite]
    error = np.abs(got - wanted)
    if bits is None or not error.any():
        return float(error.max(initial=0.0))
    size = np.abs(wanted) if exact else np.maximum(np.abs(wanted), math.sqrt(float(np.mean(wanted * wanted))))
    return float((error / np.exp2(np.floor(np.log2(np.maximum(size, 2.0**-126))) - bits)).max())


def bind(workload: Workload, library: Library) -> tuple[Callable, list[Any]]:
    """The workload's function, its constants bound, not yet compiled; and its other arguments, in the library's arrays."""
    args = [tree_map(library.put, arg) for arg in workload.args()]
    function, free = workload.build(library.xp, library.nn), len(args) - workload.constants
    bound = args[free:]
    return (lambda *rest: function(*rest, *bound)) if bound else function, args[:free]


def looped(function: Callable, args: list[Any], wait: Callable | None) -> Callable[[int], None]:
    """Calls `function` n times as a user writes the call, without the loop's own unpacking of arguments."""
    names = [f"a{i}" for i in range(len(args))]
    call = f"f({', '.join(names)})"
    text = f"def loop(n):\n for _ in range(n): {f'wait({call})' if wait else call}"
    scope = {"f": function, "wait": wait, **dict(zip(names, args))}
    exec(f"def make({', '.join(scope)}):\n" + "\n".join(" " + line for line in text.splitlines()) + "\n return loop", made := {})
    return made["make"](**scope)


class Worker:
    """Compiles and times workloads with one library, one at a time."""

    def __init__(self, name: str):
        self.library = LIBRARIES[name]()
        self.workloads = {w.name: w for w in all_workloads()}
        self.loop: Callable[[int], None] | None = None
        # The library's own start is not the workload's: compile something else first.
        result = self.library.compile(lambda x: self.library.xp.exp(x) + x)(self.library.put(np.ones(7, np.float32)))
        if self.library.wait:
            self.library.wait(result)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        workload = self.workloads[request["workload"]]
        self.drop(request)
        function, args = bind(workload, self.library)
        begun = time.perf_counter()
        compiled = self.library.compile(function)
        result = compiled(*args)
        if self.library.wait:
            self.library.wait(result)
        answer = {"first_ms": (time.perf_counter() - begun) * 1e3}
        if request.get("reference"):
            got = self.library.get(next(leaves(result)))
            dtype = "bfloat16" if workload.dtype == "bf16" else None
            answer["ulp"] = ulp(got.ravel()[:SAMPLE], np.load(request["reference"]), workload.exact_ulp, dtype)
        self.loop = looped(compiled, args, self.library.wait)
        return answer

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        loop, seconds, best, calls = self.loop, request["seconds"], math.inf, 0
        first = time.perf_counter()
        loop(1)
        once = time.perf_counter() - first
        count = 1 if once > WINDOW else max(1, int(WINDOW / max(once, 1e-7)))
        until = time.perf_counter() + seconds
        while calls < 2 * count or time.perf_counter() < until:
            begun = time.perf_counter()
            loop(count)
            taken = time.perf_counter() - begun
            if taken < WINDOW / 2 and count < 1 << 20:  # the first call was not typical
                count *= 2
                continue
            if count == 1 and taken < STEADY * best:  # still getting faster: the library before left other arrays in the last cache
                until = min(time.perf_counter() + seconds, first + LONGEST * seconds)
            best, calls = min(best, taken / count), calls + count
            if taken > 5 * seconds:
                break
        return {"us": best * 1e6, "calls": calls}

    def drop(self, request: dict[str, Any]) -> dict[str, Any]:
        self.loop = None
        self.library.forget()
        return {}

    def reference(self, request: dict[str, Any]) -> dict[str, Any]:
        function, args = bind(self.workloads[request["workload"]], self.library)
        np.save(request["file"], np.asarray(next(leaves(function(*args)))).ravel()[:SAMPLE])
        return {}

    def functions(self, request: dict[str, Any]) -> dict[str, Any]:
        """On the numbers where each is used: -10 to 10, for log 1e-6 to 1e3."""
        true, found = reference(), {}
        for name in ("exp", "tanh", "erf", "log"):
            x = (np.exp(np.linspace(-14, 7, 1 << 18)) if name == "log" else np.linspace(-10, 10, 1 << 18)).astype(np.float32)
            with contextlib.suppress(NotImplementedError):
                own, exact = (lib.nn.erf if name == "erf" else getattr(lib.xp, name) for lib in (self.library, true))
                result = self.library.compile(lambda a, own=own: own(a))(self.library.put(x))
                found[name] = ulp(self.library.get(result), exact(x.astype(np.float64)), True)
        return found


def reason(error: BaseException) -> str:
    """An exception in a line that fits a table."""
    first = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    return f"{type(error).__name__}: {first}"[:200] if first else type(error).__name__


def main(name: str) -> None:
    """Serve requests until the input ends. Libraries may print: the answers go to what was standard output."""
    answers = sys.stdout
    sys.stdout = sys.stderr

    def answer(data: dict[str, Any]) -> None:
        print(json.dumps(data), file=answers, flush=True)
    try:
        worker = Worker(name)
    except Exception as error:
        answer({"skip": reason(error)})
        return
    answer({"ready": name})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(getattr(worker, request["do"])(request))
        except Exception as error:
            worker.loop = None
            answer({"skip": str(error) if isinstance(error, NotImplementedError) else reason(error)})


if __name__ == "__main__":
    main(sys.argv[1])
