"""The bench command: workers asked in turn, medians of rounds, tables, a summary, JSON and a chart.

Each library runs in a process of its own, pinned to as many cores as it may use threads; a time is the median over rounds of the least of
many short windows. docs/performance.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

from mlc.tools.bench import chart, compare, pages, report
from mlc.tools.bench.libraries import installed
from mlc.tools.bench.machine import Machine
from mlc.tools.bench.peers import CLOCK, Peer, first_calls, measure, new_record, prepare_first_calls, probe_machine, set_floors
from mlc.tools.bench.workloads import GROUPS, Workload, all_workloads, select
from mlc.tools.cli import UsageError

HELP = "time mlc against jax.jit, torch and NumPy"
FORMAT = 1
PROBE_SECONDS = 0.03  # for each figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `mlc bench`."""
    parser.add_argument("only", nargs="*", metavar="NAME", help=f"workloads whose name contains one of these words, or groups: {', '.join(GROUPS)}")
    parser.add_argument("-k", action="append", default=[], metavar="NAME", help="the same")
    parser.add_argument("--list", action="store_true", help="list the workloads and stop")
    parser.add_argument("--quick", action="store_true", help="few workloads (unless named), fewer rounds, one process for first calls")
    parser.add_argument("--libraries", help="comma-separated, mlc among them; default: what is installed of mlc, jax, torch, torch.compile, numpy")
    parser.add_argument("--threads", default="1,2", help="threads (and cores) of each library, comma-separated; default 1,2")
    parser.add_argument("--rounds", type=int, help="times each library is asked; default 5, quick 3")
    parser.add_argument("--seconds", type=float, help="how long it repeats the call each time; default 0.03, quick 0.02")
    parser.add_argument("--no-first-calls", action="store_true", help="leave out first calls in new processes, and memory")
    parser.add_argument("--json", metavar="FILE", help="write every figure as JSON")
    parser.add_argument("--chart", metavar="FILE", help="write the chart as SVG")
    parser.add_argument("--pages", metavar="FOLDER", help="write tables into the marked blocks of performance.md and status.md, and the chart")
    parser.add_argument("--against", metavar="FILE", help="the JSON of an earlier run: say what became slower or faster")
    parser.add_argument("--show", metavar="FILE", help="measure nothing: tables (and chart, and comparison) of the JSON of an earlier run")


def _read(path: str) -> dict[str, Any]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} was not written by this version of mlc bench")
    return data


def _check(options: argparse.Namespace) -> tuple[list[Workload], list[str], list[int]]:
    """Workloads, libraries and thread counts asked for. Raises UsageError for what there is not."""
    here, words = installed(), [*options.only, *options.k]
    libraries = options.libraries.split(",") if options.libraries else here
    unknown = [x for x in libraries if x not in here]
    if unknown:
        raise UsageError(f"not installed: {', '.join(unknown)}")
    chosen = select(words, options.quick)
    if not chosen:
        raise UsageError(f"no workload's name contains {' or '.join(map(repr, words))}; see --list")
    try:
        threads = [int(word) for word in options.threads.split(",")]
    except ValueError:
        raise UsageError(f"--threads {options.threads}: write numbers with commas between them") from None
    if "mlc" not in libraries or min(*threads, options.rounds or 1) < 1:
        raise UsageError("mlc must be among the libraries, and threads and rounds at least 1")
    return chosen, libraries, threads


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _versions(libraries: list[str]) -> dict[str, str]:
    names = {"mlc": "mlc-compiler"}
    return {x: importlib.metadata.version(names.get(x, x)) for x in libraries if x != "torch.compile"}


def _steady(chosen: list[Workload], records: dict[str, Any], libraries: list[str], threads: int, options: argparse.Namespace,
            first: bool) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Times with one number of threads. Gives the libraries that do not work, and the ulp of their functions."""
    reference = Peer("reference", threads) if first else None
    clock = Peer(CLOCK, threads)
    peers = [Peer(x, threads) for x in libraries]
    broken = {p.library: p.broken for p in peers if p.broken}
    for library, why in broken.items():
        _say(f"{library} is left out: {why}")
    peers = [p for p in peers if not p.broken]
    functions: dict[str, dict[str, float]] = {}
    try:
        if first and any(w.functions for w in chosen):
            functions = {p.library: answer for p in peers if "skip" not in (answer := p.ask("functions"))}
        for workload in chosen:
            record = records[workload.name]
            measure(workload, record, peers, options.rounds, options.seconds, reference, clock)
            _say(report.progress(record, threads))
    finally:
        for peer in [*peers, clock, *([reference] if reference else [])]:
            peer.close()
    return broken, functions


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    chosen, libraries, threads = _check(options)
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.02 if options.quick else 0.03)
    probe_seconds = PROBE_SECONDS / 3 if options.quick else PROBE_SECONDS
    begun, records = time.time(), {w.name: new_record(w) for w in chosen}
    machine = probe_machine(threads, probe_seconds)
    broken: dict[str, str] = {}
    functions: dict[str, dict[str, float]] = {}
    for number, count in enumerate(threads):
        failed, found = _steady(chosen, records, [x for x in libraries if x not in broken], count, options, number == 0)
        broken |= failed
        functions |= found
    if not options.no_first_calls and any(w.cold for w in chosen):
        prepare_first_calls(libraries)
        for workload in (w for w in chosen if w.cold):
            first_calls(workload, records[workload.name], [x for x in libraries if x not in broken], 1 if options.quick else 2)
            _say(report.first_call_progress(records[workload.name]))
    machine = machine.merged(probe_machine(threads, probe_seconds))
    for record in records.values():
        set_floors(record, machine)
    return {"format": FORMAT, "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun)), "seconds": round(time.time() - begun),
            "python": platform.python_version(), "versions": _versions(libraries), "libraries": [x for x in libraries if x not in broken],
            "broken": broken, "threads": threads, "machine": machine.to_json(), "function_ulp": functions, "results": list(records.values())}


def run(options: argparse.Namespace) -> int:
    """Measure and print. Raises UsageError for libraries, workloads or files that there are not."""
    if options.list:
        for w in all_workloads():
            print(f"{w.group:12} {w.name}{'  (quick)' if w.quick else ''}")
        return 0
    before = _read(options.against) if options.against else None
    data = _read(options.show) if options.show else _measure(options)
    if options.json:
        Path(options.json).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.pages:
        pages.write(Path(options.pages), data)
        options.chart = options.chart or Path(options.pages) / "performance.svg"
    if options.chart:
        Path(options.chart).write_text(chart.svg(data), encoding="utf-8")
    print(report.machine(Machine.from_json(data["machine"])))
    print(report.everything(data))
    if before:
        print(compare.text(before, data))
    return 0
