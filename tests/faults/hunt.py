"""Hunts one seeded fault with a fuzz campaign of its own, from outside: `pytest --mlc-fuzz -x`, then what its report says.

`python tests/faults/hunt.py [NAME ...]` (or `ci/faults`) hunts all of them, or the named ones, and prints the table of docs/status.md.
Every fault gets the same command, environment and budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from faults import FAULTS, Fault

from pytest_mlc import corpus

HERE = Path(__file__).resolve().parent
# Seconds that a campaign may take in all: budget, imports, looking into the failure, and other processes on the machine.
TIMEOUT = 900


@dataclass
class Hunt:
    """What became of a hunt. `nodes` counts the reduced graph's ops without parameters and constants."""

    fault: Fault
    found: bool = False
    seconds: float = 0.0
    cases: int = 0
    guilty: str = ""
    nodes: int = 0
    headline: str = ""
    text: str = ""
    note: str = ""

    @property
    def named(self) -> bool:
        """Whether the right level or pass is blamed."""
        return self.found and self.guilty in self.fault.guilty

    def row(self) -> str:
        """The table's line."""
        if not self.found:
            return f"| {self.fault.name} | not in {self.seconds:.0f} s, {self.cases} cases | {self.note} | | |"
        blamed = self.guilty if self.named else f"**{self.guilty}**, not {' or '.join(self.fault.guilty)}"
        return f"| {self.fault.name} | {self.seconds:.1f} s, {self.cases} cases | {blamed} | {self.nodes} | {self.headline[:90]} |"


def _pytest(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "--mlc-fuzz", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--rootdir", ".", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLC_")}
    return subprocess.run(command, cwd=folder, env={**inherited, **environment}, capture_output=True, text=True, timeout=TIMEOUT)


def hunt(fault: Fault, budget: str = "60s", seed: int = 0, folder: Path | None = None) -> Hunt:
    """Fuzz with the fault in place until the first failing case, and read the report. The failure must go away with the fault.

    Raises RuntimeError when the campaign itself goes wrong.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="mlc-fault-") as made:
            return hunt(fault, budget, seed, Path(made))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "cache").mkdir(mode=0o700)
    common = {"JAX_PLATFORMS": "cpu", "MLC_CACHE": "1", "MLC_CACHE_DIR": str(folder / "cache")}
    broken = {**common, "MLC_FUZZ_PRELOAD": f"faults:{fault.name}", "PYTHONPATH": str(HERE)}
    done = _pytest(folder, broken, "--mlc-fuzz-budget", budget, "--mlc-fuzz-seed", str(seed), "--mlc-fuzz-report", "report",
                   "--mlc-fuzz-corpus", "stored")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    summary = json.loads((folder / "report" / "summary.json").read_text())
    result = Hunt(fault, seconds=summary["seconds"], cases=summary["cases"])
    if done.returncode == 0:
        return result
    if not summary["failing"]:
        raise RuntimeError(f"{fault.name}: the campaign failed without a failure\n{done.stdout[-3000:]}")
    failure = summary["failing"][0]
    case = corpus.read(folder / failure["stored"])
    result.guilty, result.headline, result.text = case.facts["guilty"], failure["headline"], failure["text"]
    result.nodes = sum(node.op.name not in ("parameter", "constant") for node in case.graph.nodes)
    again = _pytest(folder, {**common, "MLC_CACHE": "0"}, "--mlc-fuzz-replay", failure["stored"])
    result.found = again.returncode == 0
    if not result.found:
        result.note = "failed without the fault, too"
    return result


def score(hunts: list[Hunt]) -> str:
    """The three numbers that count."""
    nodes = [h.nodes for h in hunts if h.found]
    return f"{len(nodes)} of {len(hunts)} found, {sum(h.named for h in hunts)} named rightly, {median(nodes or [0]):g} nodes in the median"


def table(hunts: list[Hunt]) -> str:
    """The hunts as Markdown tables, and a score, of each part: the faults known while the fuzzer was made, and those held out."""
    parts = []
    for held_out, title in enumerate(("Known", "Held out", "Held out later")):
        part = [h for h in hunts if h.fault.held_out == held_out]
        if part:
            head = ["| fault | found after | blamed | nodes | verdict |", "|---|---|---|---|---|"]
            parts.append("\n".join([*head, *(h.row() for h in part), "", f"{title}: {score(part)}"]))
    return "\n\n".join(parts)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="ci/faults", description="Break mlc in known ways and let the fuzzer find it; prints a table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"faults to hunt; all by default: {', '.join(FAULTS)}")
    parser.add_argument("--budget", default="60s", help="of each hunt, as in --mlc-fuzz-budget: time (60s by default) or a number of graphs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the campaigns")
    parser.add_argument("--verbose", action="store_true", help="print every report")
    parser.add_argument("--held-out", action="store_true", help="hunt those that were held out only")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in FAULTS]
    if unknown:
        parser.error(f"no fault is called {unknown[0]!r}")
    hunts = []
    for name in given.names or [name for name, known in FAULTS.items() if known.held_out or not given.held_out]:
        hunts.append(hunt(FAULTS[name], given.budget, given.seed))
        print(hunts[-1].row(), file=sys.stderr, flush=True)
        if given.verbose:
            print(hunts[-1].text, file=sys.stderr, flush=True)
    print(table(hunts))
    return 0 if all(h.found for h in hunts) else 1


if __name__ == "__main__":
    sys.exit(main())
