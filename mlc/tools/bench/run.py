"""The bench command: workers asked in turn, medians of rounds, a table, and JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from mlc.tools.bench.machine import Machine, probe
from mlc.tools.bench.worker import installed
from mlc.tools.bench.workloads import WORKLOADS, Workload
from mlc.tools.cli import UsageError

HELP = "time mlc against jax.jit, torch and NumPy"


class Peer:
    """A worker process, pinned to the cores that its threads may use."""

    def __init__(self, library: str, threads: int):
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MLC_THREADS")}
        # Some machines force an old OpenBLAS kernel by these two; a peer is measured at its best.
        env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")} | limits
        env |= {"JAX_PLATFORMS": "cpu", "MLC_CACHE": "0"}
        if threads == 1:
            env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else None
        self.library = library
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "mlc.tools.bench.worker", library], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=env, preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None)
        self._read()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.library} worker ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(workload: Workload, peers: list[Peer], rounds: int, seconds: float) -> dict[str, Any]:
    """First-call time and the median over rounds of the median call, per library."""
    found: dict[str, Any] = {"workload": workload.name, "group": workload.group, "first_ms": {}, "us": {}}
    present = []
    for peer in peers:
        answer = peer.ask(do="load", workload=workload.name)
        if "skip" not in answer:
            found["first_ms"][peer.library] = answer["first_ms"]
            present.append(peer)
    times: dict[str, list[float]] = {peer.library: [] for peer in present}
    for _ in range(rounds):
        for peer in present:
            times[peer.library].append(peer.ask(do="time", workload=workload.name, seconds=seconds)["us"])
    found["us"] = {library: statistics.median(values) for library, values in times.items()}
    return found


def _row(result: dict[str, Any], machine: Machine, workload: Workload, libraries: list[str]) -> str:
    ours = result["us"]["mlc"]
    floor = machine.floor(workload.flops, workload.bytes) * 1e6
    cells = [workload.name, *(f"{result['us'][x]:,.0f}" if x in result["us"] else "-" for x in libraries)]
    peers = {k: v for k, v in result["us"].items() if k != "mlc"}
    best = min(peers, key=peers.get) if peers else ""
    cells += [f"{peers[best] / ours:.2f} ({best})" if best else "-", f"{100 * floor / ours:.0f}%"]
    cells += [f"{result['first_ms'][x]:,.0f}" if x in result["first_ms"] else "-" for x in ("mlc", "jax")]
    return "| " + " | ".join(cells) + " |"


def table(results: list[dict[str, Any]], machine: Machine, libraries: list[str]) -> str:
    """The results as a Markdown table."""
    workloads = {w.name: w for w in WORKLOADS}
    head = ["workload", *(f"{x} us" for x in libraries), "best peer / mlc", "share of floor", "first call mlc ms", "first call jax ms"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [_row(r, machine, workloads[r["workload"]], libraries) for r in results]
    return "\n".join(lines) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `mlc bench`."""
    parser.add_argument("only", nargs="*", help="workloads whose name contains one of these words; all if left out")
    parser.add_argument("--libraries", help="comma-separated, mlc among them; default: what is installed of mlc, jax, torch, numpy")
    parser.add_argument("--threads", type=int, default=1, help="threads (and cores) of each library; default 1")
    parser.add_argument("--rounds", type=int, default=5, help="times each library is asked; default 5")
    parser.add_argument("--seconds", type=float, default=0.15, help="how long it repeats the call each time; default 0.15")
    parser.add_argument("--json", metavar="FILE", help="also write every figure as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure and print. Raises UsageError for libraries or workloads that there are not."""
    libraries = options.libraries.split(",") if options.libraries else installed()
    unknown = [x for x in libraries if x not in installed()]
    chosen = [w for w in WORKLOADS if not options.only or any(word in w.name for word in options.only)]
    if unknown:
        raise UsageError(f"not installed: {', '.join(unknown)}")
    if not chosen:
        raise UsageError(f"no workload's name contains {' or '.join(map(repr, options.only))}; there are {', '.join(w.name for w in WORKLOADS)}")
    if "mlc" not in libraries or min(options.threads, options.rounds) < 1:
        raise UsageError("mlc must be among the libraries, and threads and rounds at least 1")
    machine = probe()
    peers = [Peer(x, options.threads) for x in libraries]
    results = []
    try:
        for workload in chosen:
            results.append(measure(workload, peers, options.rounds, options.seconds))
            print(_row(results[-1], machine, workload, libraries), file=sys.stderr, flush=True)
    finally:
        for peer in peers:
            peer.close()
    print(f"one thread: {machine.peak_flops / 1e9:.0f} GFLOP/s (f32); copy " + ", ".join(
        f"{rate / 1e9:.0f} GB/s up to {size / 1024:,.0f} KiB" for size, rate in machine.bandwidth) + f"; {options.threads} thread(s) each\n")
    print(table(results, machine, libraries))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": asdict(machine), "threads": options.threads, "results": results}, file, indent=1)
    return 0
