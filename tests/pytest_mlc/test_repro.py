"""Repro scripts compare like the oracle: they fail while the fault is there, and are content when it is gone."""

import subprocess
import sys

import numpy as np
import pytest

from mlc.graph import parse_graph
from pytest_mlc.corpus import Case
from pytest_mlc.repro import script

GRAPH = "graph @main(%x: {t}[3]) -> {t}[3] {{\n  %0 = {op} %x : {t}[3]\n  return %0\n}}"
# After the imports of the script: what the broken program answers.
BREAK = ("import mlc.runtime.executable as e\nright = e.Program.run\ndef wrong(self, inputs):\n    out, = right(self, inputs)\n"
         "    return [{answer}]\ne.Program.run = wrong\n")


def run(op, values, answer=None, bound=0.0, facts=None):
    """The script's exit status, last line and output for a graph of one op, its program broken so that it answers `answer`."""
    case = Case(parse_graph(GRAPH.format(op=op, t="f32")), [np.array(values, np.float32)], facts or {})
    text = script(case, "a failure", "said", bound, (0, (0,)))
    if answer:
        text = text.replace("\n\nGRAPH = ", f"\n{BREAK.format(answer=answer)}\nGRAPH = ", 1)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    return done.returncode, (done.stdout.splitlines() or [""])[-1], done.stdout + done.stderr


# What is right without a fault if the others are.
PLAIN = ([0, 1, 2], [1, 1, 2])


@pytest.mark.parametrize("op, values, answer, bound", [
    ("neg", [0, 1, 2], "out * np.float32([-1, 1, 1])", 0.0), ("neg", [np.nan, 1, 2], "np.float32([0, -1, -2])", 0.0),
    ("neg", [1, 1, 2], "out.astype(np.float64)", 0.0), ("tanh", [1, 2, 3], "out * np.float32(1.01)", 1e-7),
    ("neg", [np.inf, 1, 2], "-out", 0.0), ("neg", [1, 1, 2], "1 / 0", float("inf")),
], ids=["sign of zero", "nan", "dtype", "bound", "infinity", "exception"])
def test_a_script_fails_while_the_fault_is_there_and_not_after(op, values, answer, bound):
    status, last, output = run(op, values, answer, bound)
    assert status == 1 and (last == "FAILS" or "ZeroDivisionError" in output), output
    if values not in PLAIN:
        status, last, output = run(op, values, None, bound)
        assert status == 0 and last == "right", output


def test_a_script_compiles_with_the_options_of_its_case():
    answer = "1 / 0 if __import__('mlc').core.options.get('disable_passes') == 'fuse' else out"
    assert run("neg", [1, 2, 3], answer, facts={"disable_passes": "fuse", "check": "1"})[0] == 1
    assert run("neg", [1, 2, 3], answer, facts={"check": "2"})[0] == 0
