"""`python -m pytest_mlc review`: decide about changed snapshots, at a terminal or with `--accept`.

A changed snapshot is a `*.new` file beside its golden file. Accepting moves it there, rejecting deletes it, skipping leaves
it. The unit of a question is a hunk, by its removed and added lines: the same hunk in many files is asked about once, and
a file is accepted when all of its hunks are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mlc.tools.cli import UsageError
from pytest_mlc.golden import FOLDER, PENDING, SUFFIX, GoldenError, diff_lines, read_text
from pytest_mlc.summarize import stage_of, summary

ACCEPT, REJECT, SKIP, QUIT = "accept", "reject", "skip", "quit"
Hunk = tuple[str, ...]


@dataclass
class Change:
    """One `*.new` file: its golden file `path` (which may not exist yet), both texts, and its hunks by content."""

    path: Path
    old: str
    new: str
    is_new: bool
    hunks: dict[Hunk, list[str]] = field(default_factory=dict)

    @property
    def pending(self) -> Path:
        return self.path.with_name(self.path.name + PENDING)

    def accept(self) -> None:
        os.replace(self.pending, self.path)

    def reject(self) -> None:
        self.pending.unlink()


def load_change(pending: Path) -> Change | None:
    """The change that a `*.new` file stands for; None if it is no change any more (the file is deleted then) or is damaged."""
    path = pending.with_name(pending.name.removesuffix(PENDING))
    try:
        new = read_text(pending)
    except GoldenError:
        print(f"left out: {pending} cannot be read; delete it and run the tests again", file=sys.stderr)
        return None
    if new is None:  # taken away meanwhile
        return None
    try:
        old = read_text(path)
    except GoldenError:  # damaged: every line of it is shown as removed
        old = path.read_bytes().decode("utf-8", "replace")
    if old == new:
        pending.unlink(missing_ok=True)
        return None
    return Change(path, old or "", new, old is None, split_hunks(diff_lines(old or "", new)))


def split_hunks(lines: list[str]) -> dict[Hunk, list[str]]:
    """A unified diff's hunks: the removed and added lines -> the lines to show. A hunk that occurs twice is shown once."""
    hunks: dict[Hunk, list[str]] = {}
    current: list[str] = []
    for line in [*lines[2:], "@@"]:
        if line.startswith("@@"):
            if current:
                hunks.setdefault(tuple(text for text in current[1:] if not text.startswith(" ")), current)
            current = []
        current.append(line)
    return hunks


def find_changes(root: Path) -> list[Change]:
    """Every change under `root/golden`, by path."""
    found = (load_change(pending) for pending in sorted((root / FOLDER).rglob("*" + SUFFIX + PENDING)))
    return [change for change in found if change]


def find_root(start: Path) -> Path:
    """The nearest folder at or above `start` that holds `golden/`. Raises UsageError."""
    for folder in (start, *start.parents):
        if (folder / FOLDER).is_dir():
            return folder
    raise UsageError(f"no folder {FOLDER}/ in {start} or above; run it inside the repo or pass --root")


# --------------------------------------------------------------------------- what is shown
def show(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def overview(changes: list[Change], root: Path) -> list[str]:
    """Every change with its semantic summary."""
    lines = [f"{len(changes)} changed snapshot{'s' * (len(changes) != 1)}"]
    for change in changes:
        lines.append(f"  {show(change.path, root)}{'  (new)' * change.is_new}")
        lines += [f"      {line}" for line in summary(stage_of(change.path.name), change.old, change.new)]
    return lines


def question(hunk: list[str], files: list[Change], root: Path) -> list[str]:
    """A hunk with the files it occurs in."""
    lines = [f"--- {show(change.path, root)}" for change in files[:8]]
    if len(files) > 8:
        lines.append(f"--- and {len(files) - 8} more files")
    return ["", *lines, *hunk]


# --------------------------------------------------------------------------- what is decided
def decide(changes: list[Change], root: Path, ask: Callable[[list[str]], str]) -> dict[str, list[Change]]:
    """Ask about each distinct hunk once and act; returns the changes by what became of them.

    A file is rejected with its first rejected hunk, and hunks that occur in rejected files only are not asked about.
    """
    answers: dict[Hunk, str] = {}
    where: dict[Hunk, list[Change]] = {}
    for change in changes:
        for hunk in change.hunks:
            where.setdefault(hunk, []).append(change)
    rejected: set[Path] = set()
    for hunk, files in where.items():
        undecided = [change for change in files if change.path not in rejected]
        if not undecided:
            continue
        answer = ask(question(undecided[0].hunks[hunk], undecided, root))
        if answer == QUIT:
            break
        answers[hunk] = answer
        if answer == REJECT:
            rejected.update(change.path for change in files)
    done: dict[str, list[Change]] = {ACCEPT: [], REJECT: [], SKIP: []}
    for change in changes:
        given = {answers.get(hunk, SKIP) for hunk in change.hunks}
        outcome = REJECT if REJECT in given else ACCEPT if given == {ACCEPT} else SKIP
        {ACCEPT: change.accept, REJECT: change.reject, SKIP: lambda: None}[outcome]()
        done[outcome].append(change)
    return done


def ask_at_terminal(lines: list[str]) -> str:
    """Print a question and read accept, reject, skip or quit; end of input quits."""
    print("\n".join(lines))
    while True:
        try:
            answer = input("accept, reject, skip, quit? [a/r/s/q] ").strip().lower()
        except EOFError:
            print()
            return QUIT
        for choice in (ACCEPT, REJECT, SKIP, QUIT):
            if answer and choice.startswith(answer):
                return choice


def select(changes: list[Change], paths: Iterable[str], root: Path) -> list[Change]:
    """The changes that `--accept` paths name: golden files, their `*.new` files, or folders. Raises UsageError for a path without a change."""
    chosen: dict[Path, Change] = {}
    for text in paths:
        given = Path(text.removesuffix(PENDING))
        candidates = {(Path.cwd() / given).resolve(), (root / given).resolve()}
        matching = [change for change in changes if candidates & {change.path.resolve(), *change.path.resolve().parents}]
        if not matching:
            raise UsageError(f"{text}: no changed snapshot there (run the tests first; `review --list` shows what changed)")
        chosen.update((change.path, change) for change in matching)
    return list(chosen.values())


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", help="the folder that holds golden/ (default: the nearest one at or above this)")
    parser.add_argument("--list", action="store_true", help="show what changed and decide nothing; exits 1 if anything did")
    parser.add_argument("--accept", metavar="PATH", action="append", default=[], help="accept this golden file, or all below this folder")
    parser.add_argument("--accept-all", action="store_true", help="accept every changed snapshot")


def review(args: argparse.Namespace) -> int:
    """Run the command; 0 if nothing is left to decide, 1 if something is. Raises UsageError, GoldenError or OSError."""
    root = Path(args.root).resolve() if args.root else find_root(Path.cwd())
    if not (root / FOLDER).is_dir():
        raise UsageError(f"no folder {FOLDER}/ in {root}")
    changes = find_changes(root)
    if args.accept or args.accept_all:
        chosen = changes if args.accept_all else select(changes, args.accept, root)
        for change in chosen:
            change.accept()
            print(f"accepted {show(change.path, root)}")
        if not chosen:
            print("no changed snapshots")
        return int(len(chosen) < len(changes))
    if not changes:
        print("no changed snapshots")
        return 0
    if args.list:
        print("\n".join(overview(changes, root)))
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("no terminal to ask at: use --list to look, --accept PATH or --accept-all to decide")
    print("\n".join(overview(changes, root)))
    done = decide(changes, root, ask_at_terminal)
    print(", ".join(f"{len(done[outcome])} {word}" for outcome, word in ((ACCEPT, "accepted"), (REJECT, "rejected"), (SKIP, "left"))))
    return int(bool(done[SKIP]))
