"""The tables of a run, from its JSON: times, accuracy, first calls, memory, geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mlc.tools.bench.machine import Machine
from mlc.tools.bench.workloads import MEANS

Record = dict[str, Any]
NEAR = 4.0  # ulp: a peer further off is not the best one


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many significant digits, and no exponent."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}"


def size(nbytes: float | None) -> str:
    """Bytes in KB or MB (of 1,000)."""
    if nbytes is None:
        return "-"
    return f"{number(nbytes / 1e6)} MB" if nbytes >= 1e6 else f"{number(nbytes / 1e3)} KB" if nbytes >= 1e3 else f"{nbytes:.0f} B"


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


def geometric_mean(values: Iterable[float]) -> float | None:
    """None for no values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


# --------------------------------------------------------------------------- who is near enough to be compared with
def is_near(record: Record, library: str, function_ulp: dict[str, dict[str, float]]) -> bool:
    """Whether a peer is within 4 ulp: in the transcendentals where those are what the workload is about, in each element where that is a
    function's own. Sums and products err by their order and length; there a peer is only far if it computed in a smaller dtype."""
    about_functions = record["group"] in ("functions", "elementwise")
    worst = max((function_ulp.get(library, {}).get(name, 0.0) for name in record["functions"]), default=0.0) if about_functions else 0.0
    own = record["ulp"].get(library, 0.0)
    ours = record["ulp"].get("mlc", 0.0)
    allowed = NEAR if record["exact_ulp"] else max(NEAR, 64 * ours)
    return worst <= NEAR and (own <= allowed or (about_functions and not record["exact_ulp"]))


def best_peer(record: Record, threads: int, function_ulp: dict[str, dict[str, float]], near: bool = True) -> tuple[str, float] | None:
    """(library, us) of the fastest peer among those within 4 ulp, or among the others."""
    times = {k: v for k, v in record["us"].get(str(threads), {}).items() if k != "mlc" and is_near(record, k, function_ulp) == near}
    return min(times.items(), key=lambda item: item[1]) if times else None


def ratio(record: Record, threads: int, function_ulp: dict[str, dict[str, float]]) -> float | None:
    """Time of the best peer over ours; None when one of them is missing."""
    ours, best = record["us"].get(str(threads), {}).get("mlc"), best_peer(record, threads, function_ulp)
    return best[1] / ours if ours and best else None


def against(record: Record, threads: int, function_ulp: dict[str, dict[str, float]], near: bool = True) -> str:
    """That ratio as a cell with the peer's name, of those within 4 ulp or of the others."""
    ours, best = record["us"].get(str(threads), {}).get("mlc"), best_peer(record, threads, function_ulp, near)
    return f"{best[1] / ours:.2f} ({best[0]})" if ours and best else "-"


def share(record: Record, threads: int) -> float | None:
    """The floor over our time; None where there is no floor."""
    ours, floor = record["us"].get(str(threads), {}).get("mlc"), record["floor_us"].get(str(threads))
    return floor / ours if ours and floor else None


def speedup(record: Record) -> float | None:
    """Our time with one thread over that with two."""
    one, two = (record["us"].get(n, {}).get("mlc") for n in ("1", "2"))
    return one / two if one and two else None


def means(data: Record, threads: int) -> dict[str, float]:
    """The geometric means of the ratios to the best peer by kind of workload."""
    found = {}
    for name, groups in MEANS.items():
        values = [r for record in data["results"] if record["group"] in groups
                  and (r := ratio(record, threads, data["function_ulp"])) is not None]
        if values:
            found[name] = geometric_mean(values)
    return found


# --------------------------------------------------------------------------- tables
def times(data: Record, threads: int) -> str:
    """The main table for a number of threads."""
    return table(*times_rows(data, threads))


def times_rows(data: Record, threads: int) -> tuple[list[str], list[list[str]]]:
    """Its head, and a row for each workload."""
    libraries, functions = data["libraries"], data["function_ulp"]
    with_speedup = threads == 2 and 1 in data["threads"]
    head = ["workload", *(f"{x} us" for x in libraries), "floor us", "bound by", "share of floor", "best peer / mlc", "past 4 ulp / mlc",
            *(["1 thread / 2"] if with_speedup else [])]
    rows = []
    for record in data["results"]:
        us, key = record["us"].get(str(threads), {}), str(threads)
        reached, floor = share(record, threads), record["floor_us"].get(key)
        rows.append([record["workload"], *(number(us.get(x)) for x in libraries), number(floor) if floor else "-",
                     record["bound"].get(key, "-") if floor else "-", f"{100 * reached:.0f}%" if reached else "-",
                     *(against(record, threads, functions, near) for near in (True, False)),
                     *([number(speedup(record))] if with_speedup else [])])
    return head, rows


def accuracy(data: Record) -> str:
    """Worst ulp by library: of the transcendentals, then of each workload's result."""
    libraries = data["libraries"]
    names = sorted({name for found in data["function_ulp"].values() for name in found})
    rows = [[f"{name}()", *(number(data["function_ulp"].get(x, {}).get(name)) for x in libraries)] for name in names]
    rows += [[r["workload"], *(number(r["ulp"].get(x)) for x in libraries)] for r in data["results"] if r["ulp"]]
    return table(["worst ulp", *libraries], rows)


def total(memory: dict[str, float] | None) -> float | None:
    """Bytes of a program's temporaries, packed weights and constants. What a kernel has while it runs, its workspace, is beside them."""
    return sum(nbytes for part, nbytes in memory.items() if part != "workspace") if memory else None


def workspace(memory: dict[str, float] | None) -> float | None:
    """Bytes that the kernel that runs has for itself, on one thread; None where a library does not tell."""
    return memory.get("workspace") if memory else None


def beyond_a_call(record: Record, library: str) -> float | None:
    """A first call with the cache, less what a call takes anyhow; ms."""
    first, steady = record["warm_ms"].get(library), record.get("warm_steady_ms", {}).get(library)
    return None if first is None or steady is None else first - steady


def first_calls(data: Record) -> str:
    """First calls and memory of what was started in new processes; else of the running worker."""
    head = ["workload", "from process start mlc ms", "jax ms", "cold mlc ms", "jax ms", "cold, compiler loaded mlc ms", "jax ms",
            "warm mlc ms", "jax ms", "warm less one call mlc ms", "jax ms", "in a running process mlc ms", "jax ms", "torch.compile ms",
            "memory mlc", "memory jax", "workspace mlc", "process grew mlc", "jax"]
    rows = []
    for r in data["results"]:
        cells = [number(r.get(key, {}).get(x)) for key in ("start_ms", "cold_ms", "loaded_ms", "warm_ms") for x in ("mlc", "jax")]
        cells += [number(beyond_a_call(r, x)) for x in ("mlc", "jax")] + [number(r["first_ms"].get(x)) for x in ("mlc", "jax", "torch.compile")]
        cells += [size(total(r["memory"].get(x))) for x in ("mlc", "jax")] + [size(workspace(r["memory"].get("mlc")))]
        cells += [size(r["grown"].get(x)) for x in ("mlc", "jax")]
        rows.append([r["workload"], *cells])
    return table(head, rows)


def left_out(data: Record) -> str:
    """What could not be measured, and why."""
    lines = [f"- {library}: {why}" for library, why in data["broken"].items()]
    lines += [f"- {r['workload']}, {library}: {why}" for r in data["results"] for library, why in r["skip"].items()]
    return "\n".join(lines)


def machine(found: Machine) -> str:
    """The limits in a few lines."""
    lines = [found.cpu]
    for threads, limits in found.limits.items():
        peak = ", ".join(f"{k} {v / 1e9:,.0f}" for k, v in limits.peak.items())
        functions = ", ".join(f"{k} {v * 1e9:.3f}" for k, v in limits.functions.items())
        lines.append(f"{threads} thread(s): Gop/s {peak}; ns an element: {functions}; GB/s (read, written, copied) " + ", ".join(
            f"{nbytes >> 10:,} KiB " + "/".join(f"{limits.rate(kind, nbytes) / 1e9:.0f}" for kind in ("read", "write", "copy"))
            for nbytes in (1 << 15, 1 << 19, 1 << 23, 1 << 27)))
    return "\n".join(lines) + "\n"


def everything(data: Record) -> str:
    """All tables and the summary, in Markdown."""
    from mlc.tools.bench import summary
    parts = []
    for threads in data["threads"]:
        parts += [f"## {threads} thread{'s' if threads > 1 else ''}\n", times(data, threads)]
        parts.append("geometric means, best peer / mlc: " + (", ".join(f"{k} {v:.2f}" for k, v in means(data, threads).items()) or "-") + "\n")
    parts += ["## accuracy\n", accuracy(data), "## first calls and memory\n", first_calls(data)]
    missing = left_out(data)
    parts += ["## not measured\n", missing + "\n"] if missing else []
    return "\n".join([*parts, "## summary\n", summary.text(data)])


# --------------------------------------------------------------------------- while it runs
def progress(record: Record, threads: int) -> str:
    """A line for the terminal when a workload is done."""
    us = record["us"].get(str(threads), {})
    line = f"{threads}  {record['workload']:36} " + "  ".join(f"{k} {number(v)}" for k, v in us.items())
    return line + "".join(f"  ({k}: {why})" for k, why in record["skip"].items())


def first_call_progress(record: Record) -> str:
    """A line for the terminal when first calls are done."""
    return f"first {record['workload']:32} " + "  ".join(
        f"{x} {number(record['cold_ms'].get(x))} -> {number(record['warm_ms'].get(x))} ms" for x in ("mlc", "jax"))
