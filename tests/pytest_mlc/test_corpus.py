"""Stored cases: what is written is read, bit for bit; what is damaged is refused by name."""

import concurrent.futures
import os
import random

import numpy as np
import pytest
from mlc_strategies import Config, Palette, build

from mlc.core import dtype as dt
from mlc.graph import parse_graph, print_graph
from pytest_mlc.corpus import Case, CaseError, dump, entries, keep, load, read, write


def a_case():
    graph = parse_graph("graph @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}")
    return Case(graph, [np.array([-0.0, np.nan], np.float32)], {"kind": "wrong", "found": "two\nlines"})


def test_cases_of_every_dtype_come_back_bit_by_bit():
    for seed in range(60):
        program = build(random.Random(seed), Config(Palette.number(seed), special=True, dtypes=(dt.ALL[seed % 13], dt.f32)))
        case = Case(program.graph, program.args, {"seed": str(seed)})
        found = load(dump(case))
        assert print_graph(found.graph) == print_graph(case.graph) and found.facts == case.facts
        assert [(a.dtype, a.shape, a.tobytes()) for a in found.args] == [(a.dtype, a.shape, a.tobytes()) for a in case.args]
        assert dump(found) == dump(case)


def test_files_are_written_whole_and_read_in_order(tmp_path):
    folder = tmp_path / "a b" / "é中{x}"
    write(folder / "b.mlc", a_case())
    write(folder / "a.mlc", a_case())
    (folder / ".c.mlc.part").write_text("half a fi")
    (folder / "notes.txt").write_text("no case")
    assert [p.name for p in entries(folder)] == ["a.mlc", "b.mlc"]
    assert read(folder / "a.mlc").facts["found"] == "two lines"
    assert sorted(p.name for p in folder.iterdir()) == [".c.mlc.part", "a.mlc", "b.mlc", "notes.txt"]
    assert list(entries(tmp_path / "absent")) == []


@pytest.mark.parametrize("damage, says", [
    (lambda t: "", "not a case"),
    (lambda t: t.replace("mlc-case 1", "mlc-case 9"), "not a case of format 1"),
    (lambda t: t[:60], "cut off"),
    (lambda t: t[:-20], "damaged"),
    (lambda t: t.replace("neg", "abs"), "damaged"),
    (lambda t: t.replace("f32[2]: eJ", "f32[2]: eK"), "damaged"),
], ids=["empty", "format", "cut off", "end lost", "op changed", "data changed"])
def test_damage_is_told(damage, says):
    with pytest.raises(CaseError, match=says):
        load(damage(dump(a_case())))


def _resigned(text):
    """The text with a check line that fits, so that the reader gets past it."""
    import hashlib
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("; check: "))
    head, body = lines[:at], "\n".join(lines[at + 1:])
    return "\n".join([*head, "; check: " + hashlib.sha256(("\n".join(head) + body).encode()).hexdigest()[:16], body])


@pytest.mark.parametrize("change", [
    lambda t: t.replace("%0 = neg", "%0 = no_such_op"),
    lambda t: t.replace("; argument f32[2]", "; argument f32[3]"),
    lambda t: t.replace("; argument f32[2]: ", "; argument f32[2]: !!"),
    lambda t: "\n".join(line for line in t.split("\n") if not line.startswith("; argument")),
    lambda t: t.replace("(%x: f32[2]) -> f32[2]", "(%x: f32[2]) -> f32[7]"),
], ids=["op", "size", "data", "arguments", "head"])
def test_cases_that_todays_ops_refuse_are_told(change):
    with pytest.raises(CaseError):
        load(_resigned(change(dump(a_case()))), "old.mlc")


def test_an_unreadable_or_vanished_file_is_told(tmp_path):
    (tmp_path / "a.mlc").write_bytes(b"\xff\xfe\x00")
    for name in ("a.mlc", "gone.mlc"):
        with pytest.raises(CaseError, match=name):
            read(tmp_path / name)


def test_cases_of_one_name_are_all_kept_and_the_same_case_once(tmp_path):
    folder, one, other = tmp_path / "new", a_case(), Case(a_case().graph, [np.ones(2, np.float32)])
    assert [keep(folder, "abc", case).name for case in (one, other, one, other)] == ["abc.mlc", "abc-2.mlc", "abc.mlc", "abc-2.mlc"]
    again = Case(one.graph, one.args, {"kind": "crash"})
    assert keep(folder, "abc", again).name == "abc.mlc" and read(folder / "abc.mlc").facts == {"kind": "crash"}
    assert read(folder / "abc-2.mlc").args[0].tobytes() == other.args[0].tobytes()
    (folder / "cut.mlc").write_text("; mlc-case 1")
    assert keep(folder, "cut", one).name == "cut-2.mlc"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_workers_that_keep_cases_of_one_name_keep_them_all(tmp_path, monkeypatch, links):
    def refused(*paths):
        raise PermissionError("no links here")
    if not links:
        monkeypatch.setattr(os, "link", refused)
    cases = [Case(a_case().graph, [np.full(2, k, np.float32)]) for k in range(16)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda case: keep(tmp_path, "abc", case), cases))
    assert sorted(paths) == sorted(entries(tmp_path)) and len(set(paths)) == 16
    assert [read(path).args[0][0] for path in paths] == list(range(16))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_name_is_taken_only_by_a_whole_case(tmp_path, monkeypatch):
    names = []

    def full(*arguments, **more):
        names.extend(entries(tmp_path))  # what a process that is killed here would leave
        raise OSError("no space left")
    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="no space"):
        keep(tmp_path, "abc", a_case())
    assert names == list(entries(tmp_path)) == []
