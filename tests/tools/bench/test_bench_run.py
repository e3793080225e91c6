"""The command from end to end with mlc and NumPy, what it refuses, and worker processes that fail."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from mlc.tools.bench import firstcall
from mlc.tools.bench.machine import Limits, Machine
from mlc.tools.bench.peers import Peer, environment, first_calls, measure, new_record
from mlc.tools.bench.workloads import all_workloads
from mlc.tools.cli import main

TINY = next(w for w in all_workloads() if w.name == "matmul 32")


@pytest.fixture
def peer():
    """A NumPy worker with one thread."""
    found = Peer("numpy", 1)
    yield found
    found.close()


# --------------------------------------------------------------------------- the whole
def test_one_tiny_workload_goes_through_to_json_chart_and_comparison(tmp_path, capsys, monkeypatch):
    limits = Limits({"f32": 1e11}, {kind: [[1e4, 1e11]] for kind in ("read", "write", "copy")}, {})
    monkeypatch.setattr("mlc.tools.bench.run.probe_machine", lambda threads, seconds: Machine("test", dict.fromkeys(threads, limits)))
    file, picture = tmp_path / "run.json", tmp_path / "run.svg"
    words = ["bench", "matmul 32", "--libraries", "mlc,numpy", "--threads", "1", "--rounds", "2", "--seconds", "0.001"]
    assert main([*words, "--json", str(file), "--chart", str(picture)]) == 0
    data = json.loads(file.read_text())
    record, = data["results"]
    assert record["us"]["1"].keys() == {"mlc", "numpy"} and not record["skip"]
    assert len(record["rounds"]["1"]["mlc"]) == 2 and len(record["clock"]["1"]) == 2
    assert 0 < record["floor_us"]["1"] < 1000 and record["ulp"]["mlc"] < 20
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    printed = capsys.readouterr().out
    assert "| matmul 32 |" in printed and "## summary" in printed

    assert main(["bench", "--show", str(file), "--against", str(file)]) == 0
    again = capsys.readouterr().out
    assert again.startswith(printed.rstrip("\n")) and "nothing changed beyond the noise" in again


def test_workloads_are_listed_without_measuring(capsys):
    assert main(["bench", "--list"]) == 0
    assert ["matmul", "matmul", "2048"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("words, said", [
    (["no such workload"], "no workload's name contains 'no such workload'; see --list"),
    (["--libraries", "mlc,caffe"], "not installed: caffe"),
    (["--libraries", "numpy"], "mlc must be among the libraries"),
    (["--threads", "two"], "--threads two: write numbers with commas between them"),
    (["--threads", "0"], "threads and rounds at least 1"),
    (["--against", "absent.json"], "FileNotFoundError"),
], ids=["workload", "library", "without-mlc", "threads", "no-thread", "file"])
def test_what_there_is_not_is_refused_in_a_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("text, said", [("{", "is not JSON"), ("[]", "was not written by this version"), ('{"format": 0}', "was not written by")])
def test_other_files_are_not_taken_for_runs(text, said, tmp_path, capsys):
    (tmp_path / "run.json").write_text(text)
    assert main(["bench", "--show", str(tmp_path / "run.json")]) == 2
    assert said in capsys.readouterr().err


# --------------------------------------------------------------------------- processes that fail
def test_what_a_library_cannot_do_is_a_reason(peer):
    assert peer.ask("load", workload="erf 16K") == {"skip": "NumPy has no erf"}
    assert peer.ask("load", workload="no such")["skip"].startswith("KeyError")
    assert "first_ms" in peer.ask("load", workload="matmul 32")


def test_a_library_that_cannot_start_is_broken():
    broken = Peer("no such library", 1)
    assert broken.broken.startswith("KeyError") and "skip" in broken.ask("load", workload="matmul 32")
    broken.close()


def test_a_process_that_dies_costs_one_workload(peer):
    assert "first_ms" in peer.ask("load", workload="matmul 32")
    killed = peer.process
    killed.kill()
    assert "ended" in peer.ask("time", seconds=0.001)["skip"]
    killed.wait()
    assert "first_ms" in peer.ask("load", workload="matmul 32")


def test_a_silent_process_is_given_up(monkeypatch, peer):
    monkeypatch.setattr("mlc.tools.bench.peers.PATIENCE", 0.3)
    monkeypatch.setattr(peer, "_signal", lambda number: None)  # it stays halted
    assert peer.ask("load", workload="matmul 32") == {"skip": "no answer in 0 s"}


def test_a_process_is_halted_while_others_are_asked(peer):
    def halted():
        begun = time.monotonic()
        while time.monotonic() - begun < 10:  # a signal takes its time
            with open(f"/proc/{peer.process.pid}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    return True
        return False
    assert halted()
    assert "first_ms" in peer.ask("load", workload="matmul 32")
    assert halted()


def test_a_failing_peer_leaves_the_others_their_times(peer):
    failing = Peer("no such library", 1)
    failing.library = "torch"
    record = new_record(TINY)
    measure(TINY, record, [failing, peer], 2, 0.001, None, None)
    assert record["us"]["1"].keys() == {"numpy"} and record["skip"].keys() == {"torch"}
    failing.close()


def test_results_are_compared_with_float64(peer, tmp_path):
    reference, file = Peer("reference", 1), str(tmp_path / "x.npy")
    assert reference.ask("reference", workload="matmul 32", file=file) == {}
    reference.close()
    wanted = np.load(file)
    x, y = (a.astype(np.float64) for a in TINY.args())
    assert wanted.dtype == np.float64 and np.array_equal(wanted, (x @ y).ravel())
    assert 0 < peer.ask("load", workload="matmul 32", reference=file)["ulp"] < 20
    np.save(file, wanted * 1.001)
    assert peer.ask("load", workload="matmul 32", reference=file)["ulp"] > 1000


# --------------------------------------------------------------------------- first calls
def test_workers_keep_bytecode_elsewhere_when_it_may_not_be_written(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    env = environment(1)
    assert "PYTHONDONTWRITEBYTECODE" not in env and os.path.isdir(env["PYTHONPYCACHEPREFIX"])
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert "PYTHONPYCACHEPREFIX" not in environment(1)


def test_one_thread_is_one_thread_for_every_library():
    env = environment(1)
    assert {env[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MLC_THREADS")} == {"1"}
    assert "intra_op_parallelism_threads=1" in env["XLA_FLAGS"] and environment(None).get("MLC_CACHE") != "0"


def test_first_calls_are_cold_then_warm_and_tell_memory():
    workload = next(w for w in all_workloads() if w.name == "digits MLP batch 64")
    record = new_record(workload)
    first_calls(workload, record, ["mlc"], 1)
    assert not record["skip"] and record["cold_ms"]["mlc"] > record["warm_ms"]["mlc"] > 0
    assert record["start_ms"]["mlc"] > record["cold_ms"]["mlc"] > record["loaded_ms"]["mlc"] > 0
    assert 0 < record["warm_steady_ms"]["mlc"] < record["warm_ms"]["mlc"]
    assert {"arena", "constants", "workspace"} <= record["memory"]["mlc"].keys()


def test_a_loaded_compiler_is_the_whole_compiler(tmp_path):
    code = ("import sys; from mlc.tools.bench import firstcall; firstcall._load_compiler(); before = set(sys.modules); "
            "firstcall.measure('mlc', 'digits ViT batch 1'); "
            "print(sorted(m for m in set(sys.modules) - before if m.startswith(('mlc.', 'llvm')) and '.tools.' not in m))")
    env = os.environ | {"MLC_CACHE": "0", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # `import mlc` loads less where no bytecode is kept
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_first_call_that_fails_is_a_reason():
    record = new_record(TINY)
    first_calls(TINY, record, ["numpy"], 1)
    assert not record["cold_ms"]  # only mlc and jax are asked
    with pytest.raises(StopIteration):
        firstcall.measure("numpy", "no such")
