"""Review of changed snapshots: the summary, one question per distinct hunk, what accept, reject and skip do to the files."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from pytest_mlc import review
from pytest_mlc.__main__ import main
from pytest_mlc.summarize import summary

OLD = "graph @m(%x: f32[4]) -> f32[4] {\n  %0 = tanh %x : f32[4]\n  %1 = add %0, 1.0 : f32[4]\n  return %1\n}\n"
NEW = OLD.replace("add %0, 1.0", "mul %0, 2.0")


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """Writes `name -> (golden text or None, new text)` under golden/ of a fresh folder, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "golden").mkdir()

    def write(**files):
        for name, (old, new) in files.items():
            path = tmp_path / "golden" / "t" / f"{name}.optimized.mlc"
            path.parent.mkdir(exist_ok=True)
            if old is not None:
                path.write_text(old)
            path.with_name(path.name + ".new").write_text(new)
        return tmp_path
    return write


def texts(root):
    return {path.name: path.read_text() for path in sorted((root / "golden").rglob("*")) if path.is_file()}


def answers(*given):
    """An `ask` that plays back answers and remembers the questions."""
    asked, left = [], list(given)

    def ask(lines):
        asked.append("\n".join(lines))
        return left.pop(0)
    return ask, asked


# --------------------------------------------------------------------------- the summary
def test_node_counts_by_op():
    assert summary("optimized", OLD, NEW.replace("  return", "  %2 = mul %1, %1 : f32[4]\n  return")) == ["nodes: 2 -> 3 (add 1 -> 0, mul 0 -> 2)"]


def test_fusions_lost_and_gained_by_the_kernels_names():
    old = "kernel @dot_add_max#1(%x: f32[4]) -> f32[4] {\n}\n\nkernel @sum#2(%y: f32[4]) -> f32[] {\n}\n"
    new = "kernel @dot#1(%x: f32[4]) -> f32[4] {\n}\nkernel @add_max#2(%x: f32[4]) -> f32[4] {\n}\nkernel @sum#3(%y: f32[4]) -> f32[] {\n}\n"
    assert summary("kernels", old, new) == ["fusions lost: dot_add_max", "fusions gained: add_max, dot", "kernels: 2 -> 3"]


def test_peak_memory_in_bytes_and_percent():
    old, new = (f"memory  arena {size} B  peak/lower bound 1.00\n" for size in ("262,144", "131,072"))
    assert summary("memory", old, new) == ["peak memory: 262,144 B -> 131,072 B (-50.0%)"]


def test_buffers_that_are_gone():
    head, row = "memory  arena 1,024 B  peak/lower bound 1.00 (1,024 B)\n", "  [0, 1,024)  %t.7  f32[16,16]  live k0..k2\n"
    assert summary("memory", head + row + row.replace("t.7", "t.9"), head + row) == ["buffers: 2 -> 1"]


def test_a_difference_without_numbers_is_said_to_be_one():
    assert summary("optimized", OLD, OLD.replace("1.0", "3.0")) == ["same counts; the text differs"]


# --------------------------------------------------------------------------- deciding
def test_accept_moves_reject_deletes_skip_leaves(repo):
    root = repo(a=(OLD, NEW), b=(OLD, OLD.replace("1.0", "3.0")), c=(OLD, OLD.replace("1.0", "4.0")))
    ask, asked = answers("accept", "reject", "skip")
    done = review.decide(review.find_changes(root), root, ask)
    assert [len(done[k]) for k in ("accept", "reject", "skip")] == [1, 1, 1] and len(asked) == 3
    assert texts(root) == {"a.optimized.mlc": NEW, "b.optimized.mlc": OLD, "c.optimized.mlc": OLD,
                           "c.optimized.mlc.new": OLD.replace("1.0", "4.0")}


def test_the_same_hunk_in_three_files_is_one_question(repo):
    shifted = "; a comment\n" * 30
    root = repo(a=(OLD, NEW), b=(OLD, NEW), c=(shifted + OLD, shifted + NEW))
    ask, asked = answers("accept")
    review.decide(review.find_changes(root), root, ask)
    assert len(asked) == 1 and asked[0].count("--- golden/t/") == 3
    assert set(texts(root)) == {"a.optimized.mlc", "b.optimized.mlc", "c.optimized.mlc"}


def test_a_file_needs_all_of_its_hunks_accepted(repo):
    gap = "; a comment\n" * 30
    both_old, both_new = OLD + gap + "; end\n", NEW + gap + "; another end\n"
    root = repo(a=(OLD, NEW), b=(both_old, both_new))
    ask, asked = answers("accept", "reject")
    review.decide(review.find_changes(root), root, ask)
    assert len(asked) == 2
    assert texts(root) == {"a.optimized.mlc": NEW, "b.optimized.mlc": both_old}


def test_hunks_of_rejected_files_are_not_asked_about(repo):
    gap = "; a comment\n" * 30
    root = repo(a=(OLD + gap + "; end\n", NEW + gap + "; another end\n"))
    ask, asked = answers("reject")
    review.decide(review.find_changes(root), root, ask)
    assert len(asked) == 1 and set(texts(root)) == {"a.optimized.mlc"}


def test_quit_leaves_what_is_undecided(repo):
    root = repo(a=(OLD, NEW), b=(OLD, OLD.replace("1.0", "3.0")))
    ask, _ = answers("accept", "quit")
    review.decide(review.find_changes(root), root, ask)
    assert set(texts(root)) == {"a.optimized.mlc", "b.optimized.mlc", "b.optimized.mlc.new"}


def test_a_damaged_golden_file_can_be_replaced(repo):
    root = repo(a=(OLD, NEW))
    (root / "golden/t/a.optimized.mlc").write_bytes(b"\xff\xfe")
    assert main(["review", "--accept-all"]) == 0
    assert texts(root) == {"a.optimized.mlc": NEW}


def test_a_damaged_new_file_is_named_and_stops_nothing(repo, capsys):
    root = repo(a=(OLD, NEW), b=(OLD, NEW))
    (root / "golden/t/b.optimized.mlc.new").write_bytes(b"\xff\xfe")
    assert main(["review", "--accept-all"]) == 0
    assert "b.optimized.mlc.new cannot be read" in capsys.readouterr().err
    assert (root / "golden/t/a.optimized.mlc").read_text() == NEW


def test_a_new_file_that_is_no_change_any_more_is_dropped(repo, capsys):
    root = repo(a=(OLD, OLD))
    assert main(["review"]) == 0
    assert capsys.readouterr().out == "no changed snapshots\n" and set(texts(root)) == {"a.optimized.mlc"}


# --------------------------------------------------------------------------- the command line
@pytest.mark.parametrize("path", ["golden/t/a.optimized.mlc", "golden/t/a.optimized.mlc.new"])
def test_accept_a_path(repo, path, capsys):
    root = repo(a=(OLD, NEW), b=(None, NEW))
    assert main(["review", "--accept", path]) == 1
    assert capsys.readouterr().out == "accepted golden/t/a.optimized.mlc\n"
    assert texts(root) == {"a.optimized.mlc": NEW, "b.optimized.mlc.new": NEW}


def test_accept_a_folder_from_a_folder_below_the_root(repo, monkeypatch):
    root = repo(a=(OLD, NEW), b=(None, NEW))
    monkeypatch.chdir(root / "golden" / "t")
    assert main(["review", "--accept", "."]) == 0
    assert texts(root) == {"a.optimized.mlc": NEW, "b.optimized.mlc": NEW}


def test_accept_all(repo):
    root = repo(a=(OLD, NEW), b=(None, NEW))
    assert main(["review", "--accept-all"]) == 0
    assert texts(root) == {"a.optimized.mlc": NEW, "b.optimized.mlc": NEW}


def test_list_shows_the_summary_and_decides_nothing(repo, capsys):
    root = repo(a=(OLD, NEW), b=(None, NEW))
    before = texts(root)
    assert main(["review", "--list"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "2 changed snapshots", "  golden/t/a.optimized.mlc", "      nodes: 2 -> 2 (add 1 -> 0, mul 0 -> 1)",
        "  golden/t/b.optimized.mlc  (new)", "      nodes: 0 -> 2 (mul 0 -> 1, tanh 0 -> 1)"]
    assert texts(root) == before


def usage_error(capsys, *arguments):
    """The one line that a wrong command line prints to stderr, with exit code 2."""
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    output = capsys.readouterr()
    assert code == 2 and output.err.count("\n") == 1
    return output.err


def test_without_a_terminal_it_says_what_to_use(repo, capsys):
    repo(a=(OLD, NEW))
    assert "no terminal to ask at: use --list to look, --accept PATH or --accept-all" in usage_error(capsys, "review")


def test_wrong_command_lines_are_one_line(repo, capsys, tmp_path):
    repo(a=(OLD, NEW))
    assert "no changed snapshot there" in usage_error(capsys, "review", "--accept", "golden/t/z.optimized.mlc")
    assert "no changed snapshot there" in usage_error(capsys, "review", "--accept", "/etc/passwd")
    assert "no folder golden/" in usage_error(capsys, "review", "--root", str(tmp_path / "golden"))
    assert "unrecognized arguments: --frob" in usage_error(capsys, "review", "--frob")
    assert "COMMAND" in usage_error(capsys)


def test_help_is_there_for_the_program_and_the_command(capsys):
    for arguments in (["--help"], ["review", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0 and "usage: python -m pytest_mlc" in capsys.readouterr().out


def read_terminal(terminal):
    """What is there to read within a tenth of a second; "" at the end, which Linux reports as an error."""
    try:
        return os.read(terminal, 4096).decode() if select.select([terminal], [], [], 0.1)[0] else ""
    except OSError:
        return ""


def test_at_a_terminal_it_asks(repo):
    root = repo(a=(OLD, NEW), b=(OLD, NEW))
    here, there = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "pytest_mlc", "review"], cwd=root, stdin=there, stdout=there, stderr=there)
    os.close(there)
    seen, replies, deadline = "", [b"what\n", b"a\n"], time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        seen += read_terminal(here)
        if seen.count("[a/r/s/q]") > 2 - len(replies):
            os.write(here, replies.pop(0))
    seen += read_terminal(here)
    os.close(here)
    assert process.wait(5) == 0
    assert seen.count("[a/r/s/q]") == 2 and "-  %1 = add %0, 1.0" in seen and "2 accepted, 0 rejected, 0 left" in seen
    assert set(texts(root)) == {"a.optimized.mlc", "b.optimized.mlc"}
