"""What a run says about the goals: a line each, pass, fail, or not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mlc.tools.bench import report

Record = dict[str, Any]
Results = list[Record]
MEAN_GOALS = {"matmul": 1.05, "memory-bound": 1.5, "programs": 1.4}


@dataclass(frozen=True)
class Line:
    """A goal and how it went; `passed` is None where the run did not measure it."""

    goal: str
    passed: bool | None
    found: str

    def __str__(self) -> str:
        return f"{'n/a ' if self.passed is None else 'pass' if self.passed else 'FAIL'}  {self.goal}: {self.found}"


def _all(goal: str, values: dict[str, float | None], least: float, style: str = "{:.2f}") -> Line:
    """Every value must reach `least`; tells the worst and, of those that fail, the rest."""
    known = {k: v for k, v in values.items() if v is not None}
    if not known:
        return Line(goal, None, "not measured")
    worst = sorted(known.items(), key=lambda item: item[1])
    failing = [item for item in worst if item[1] < least]
    listed = ", ".join(f"{k} {style.format(v)}" for k, v in (failing[:8] or worst[:1])) + (" ..." if len(failing) > 8 else "")
    return Line(goal, not failing, f"{len(known) - len(failing)} of {len(known)}; {'below' if failing else 'least'}: {listed}")


def _each(records: Results, value: Callable[[Record], float | None]) -> dict[str, float | None]:
    """A value for each workload; what mlc cannot run reaches nothing."""
    return {r["workload"]: 0.0 if "mlc" in r["skip"] else value(r) for r in records}


def _percent(goal: str, records: Results, threads: int, least: float) -> Line:
    return _all(f"{goal} at least {least:.0%} of the floor", _each(records, lambda r: report.share(r, threads)), least, "{:.0%}")


def _peers(data: Record) -> Iterator[Line]:
    functions, timed = data["function_ulp"], [r for r in data["results"] if r["group"] not in ("calls", "compile")]
    for threads in data["threads"]:
        label = f"{threads} thread{'s' if threads > 1 else ''}"
        goal = f"{label}: best peer within 4 ulp / mlc at least 1.0"
        yield _all(goal, _each(timed, lambda r, n=threads: report.ratio(r, n, functions)), 1.0)
        found = report.means(data, threads)
        for name, least in MEAN_GOALS.items():
            value = found.get(name)
            yield Line(f"{label}: geometric mean of {name} at least {least}", None if value is None else value >= least,
                       "not measured" if value is None else f"{value:.2f}")
    large = [r for r in data["results"] if r["workload"] == "matmul 512" or (r["group"] == "rows" and r["dram"])]
    faster = _each(large, report.speedup) if {1, 2} <= set(data["threads"]) else {}
    yield _all("2 threads at least 1.8 x one on matmul 512 and large row kernels", faster, 1.8)


def _floors(data: Record) -> Iterator[Line]:
    cubes = {f"matmul {n}" for n in (128, 256, 512, 1024, 2048)}
    odd = ("matmul 1000x900x700", "matmul 127x129x131")
    results = data["results"]
    streams = ("softmax", "layer norm", "column sums", "transpose")
    yield _percent("matmul 128 to 2048", [r for r in results if r["workload"] in cubes], 1, 0.95)
    yield _percent("odd matmuls", [r for r in results if r["workload"] in odd], 1, 0.88)
    yield _percent("skinny matmuls", [r for r in results if r["workload"].startswith("skinny ")], 1, 0.90)
    yield _percent("DRAM-bound kernels", [r for r in results if r["dram"] and (
        r["group"] == "elementwise" or r["workload"].startswith(streams))], 1, 0.85)


def _calls(data: Record) -> Iterator[Line]:
    for name, most, times in (("call 3 tiny arrays", 0.4, 10.0), ("call pytree of 20", 5.0, 0.0)):
        record = next((r for r in data["results"] if r["workload"] == name), None)
        us = record["us"].get("1", {}) if record else {}
        goal = f"{name} under {most} us" + (f", {times:.0f} times less than jax.jit" if times else "")
        if "mlc" not in us:
            yield Line(goal, None, "not measured")
            continue
        ours, jax = us["mlc"], us.get("jax")
        yield Line(goal, ours < most and (not times or jax is None or jax >= times * ours),
                   f"{ours:.2f} us" + (f", jax {jax:.2f} us ({jax / ours:.0f} x)" if jax else ""))


def _quotients(records: Results, key: str) -> dict[str, float | None]:
    """jax over mlc by workload."""
    figures = {r["workload"]: r.get(key, {}) for r in records}
    return {name: found["jax"] / found["mlc"] for name, found in figures.items() if {"jax", "mlc"} <= found.keys()}


# What the clock of a first call without a cache sees.
_COLD = {"cold_ms": "cold (from import on; jax has loaded XLA by then, mlc loads LLVM)",
         "start_ms": "cold, from the process's start, imports included", "loaded_ms": "cold, both compilers loaded"}


def _layers(results: Results, key: str, label: str) -> Line:
    """Twelve equal layers against one, and against jax."""
    times = {r["workload"]: r.get(key, {}) for r in results}
    deep, one = times.get("12-layer transformer 128x256", {}), times.get("block 128x256", {})
    goal = f"12-layer transformer, {label}: at most 3 x its block, and a sixth of jax.jit's"
    if not ("mlc" in deep and "mlc" in one and "jax" in deep):
        return Line(goal, None, "not measured")
    blocks, faster = deep["mlc"] / one["mlc"], deep["jax"] / deep["mlc"]
    return Line(goal, blocks <= 3 and faster >= 6, f"{blocks:.2f} x the block, jax / mlc {faster:.2f}")


def _compile(data: Record) -> Iterator[Line]:
    results = data["results"]
    for key, label in _COLD.items():
        mean = report.geometric_mean(_quotients([r for r in results if r["group"] == "programs"], key).values())
        yield Line(f"first call, {label}: jax / mlc at least 5 in the geometric mean of the programs", None if mean is None else mean >= 5,
                   "not measured" if mean is None else f"{mean:.2f}")
    yield _layers(results, "cold_ms", "cold")
    yield _layers(results, "first_ms", "in a running process")
    block = [r for r in results if r["workload"].startswith("block ") and "mlc" in r["warm_ms"]]
    less = [{**r, "less": {x: ms for x in ("mlc", "jax") if (ms := report.beyond_a_call(r, x)) is not None}} for r in block]
    for label, key, records in (("block's first call", "warm_ms", block), ("the same less one steady call", "less", less)):
        yield _all(f"warm cache: {label}, 12 ms / mlc at least 1", {r["workload"]: 12 / r[key]["mlc"] for r in records if "mlc" in r[key]}, 1.0)
        yield _all(f"warm cache: {label}, jax / mlc at least 4", _quotients(records, key), 4.0)


def _memory(data: Record) -> Iterator[Line]:
    values = {}
    for r in data["results"]:
        ours, theirs = (report.total(r["memory"].get(x)) for x in ("mlc", "jax"))
        if ours is not None and theirs is not None:
            values[r["workload"]] = theirs / ours if ours else float("inf")
    line = _all("memory: jax's temp + constants / mlc's arena + packed + constants at least 1", values, 1.0)
    beside = {r["workload"]: nbytes for r in data["results"] if (nbytes := report.workspace(r["memory"].get("mlc"))) is not None}
    if beside:
        largest = max(beside, key=beside.__getitem__)
        most = f"{report.size(beside[largest])} ({largest})"
        line = replace(line, found=f"{line.found}; beside that each thread of mlc has a workspace, at most {most}")
    yield line


def lines(data: Record) -> list[Line]:
    """Every goal that a run can tell."""
    return [*_peers(data), *_floors(data), *_calls(data), *_compile(data), *_memory(data)]


def text(data: Record) -> str:
    """The lines, and how many passed."""
    found = lines(data)
    measured = [line for line in found if line.passed is not None]
    return "\n".join(map(str, found)) + f"\n\n{sum(line.passed for line in measured)} of {len(measured)} goals met; {data['seconds']} s\n"
