"""The tables of a run in the pages of docs/: what stands between `<!-- bench: NAME -->` and `<!-- /bench -->` is written anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlc.tools.bench import report, summary
from mlc.tools.bench.machine import Machine
from mlc.tools.bench.report import number
from mlc.tools.cli import UsageError

Record = dict[str, Any]
PAGES = ("performance.md", "status.md")
# What docs/status.md shows: the digits models, and one of each kind.
SHORT = ("digits MLP batch 1", "digits MLP batch 64", "digits ViT batch 1", "digits ViT batch 64", "softmax 1024x512", "layer norm 1024x512",
         "gelu tanh 1M", "gelu erf 1M", "exp/tanh chain 1M", "matmul 512")
_BLOCK = re.compile(r"(<!-- bench: ([a-z ]+) -->\n).*?(<!-- /bench -->)", re.S)


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _limits(data: Record) -> str:
    return _fenced(report.machine(Machine.from_json(data["machine"])))


def _times(data: Record) -> str:
    """One thread in full; of two threads our time, the best peer's ratio and what the second thread gains."""
    head, rows = report.times_rows(data, 1)
    for record, row in zip(data["results"], rows):
        row += [number(record["us"]["2"].get("mlc")), report.against(record, 2, data["function_ulp"]), number(report.speedup(record))]
    return report.table([*head, "2 threads: mlc us", "best peer / mlc", "1 thread / 2"], rows)


def _goals(data: Record) -> str:
    lines = [f"{n} thread{'s' if n > 1 else ''}: geometric means, best peer / mlc: "
             + ", ".join(f"{k} {v:.2f}" for k, v in report.means(data, n).items()) + "." for n in data["threads"]]
    return " ".join(lines) + "\n\n" + _fenced(summary.text(data))


def _first_calls(data: Record) -> str:
    return report.first_calls({**data, "results": [r for r in data["results"] if r.get("cold_ms")]})


def _short(data: Record) -> str:
    chosen, rows = {r["workload"]: r for r in data["results"]}, []
    for r in (chosen[name] for name in SHORT if name in chosen):
        us, reached = r["us"]["1"], report.share(r, 1)
        rows.append([r["workload"], *(number(us.get(x)) for x in ("mlc", "jax", "torch", "numpy")), report.against(r, 1, data["function_ulp"]),
                     f"{us['jax'] / us['mlc']:.2f}" if {"mlc", "jax"} <= us.keys() else "-", f"{100 * reached:.0f}%" if reached else "-",
                     *(number(r["first_ms"].get(x)) for x in ("mlc", "jax"))])
    return report.table(["workload", "mlc us", "jax us", "torch us", "numpy us", "best peer / mlc", "jax / mlc", "share of floor",
                         "first call mlc ms", "first call jax ms"], rows)


BLOCKS: dict[str, Callable[[Record], str]] = {
    "limits": _limits, "times": _times, "goals": _goals, "first calls": _first_calls, "short": _short}


def rewrite(text: str, data: Record) -> str:
    """The page with its blocks written from a run with one and two threads. Raises UsageError for other runs, and for a block of an unknown name."""
    if not {1, 2} <= set(data["threads"]):
        raise UsageError("the pages tell of one thread and of two: write them from a run with --threads 1,2")
    unknown = {name for _, name, _ in _BLOCK.findall(text)} - BLOCKS.keys()
    if unknown:
        raise UsageError(f"no block of a page is called {', '.join(sorted(unknown))}; there are: {', '.join(BLOCKS)}")
    return _BLOCK.sub(lambda m: m[1] + BLOCKS[m[2]](data) + m[3], text)


def write(folder: Path, data: Record) -> None:
    """Write the blocks of all pages in a folder."""
    for name in PAGES:
        page = folder / name
        page.write_text(rewrite(page.read_text(encoding="utf-8"), data), encoding="utf-8")
