"""Golden IR snapshots: their file names, how they are read, compared and written, and what a mismatch says.

A snapshot of test `tests/passes/test_fuse.py::test_mlp[4-f32]` at stage "optimized" is the file
`golden/tests/passes/test_fuse/test_mlp-4-f32.optimized.mlc`: the stage's text and nothing else, in UTF-8 with LF.
Only the standard library is imported at module level: `pytest` loads this file in every session.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlc.compile import Executable

FOLDER = "golden"
TARGET = "golden-v3"
STAGES = ("optimized", "kernels", "memory")
SUFFIX, PENDING = ".mlc", ".new"
_DIFF_LINES = 40
_LONGEST_NAME = 80


class GoldenError(Exception):
    """A snapshot that cannot be taken or compared: a wrong use, an unreadable or unwritable file. The message is for the user."""


# --------------------------------------------------------------------------- names
def safe_name(text: str, shown: str = "") -> str:
    """`text` as a file name that every file system takes and no other text maps to.

    `shown` is the readable form to keep (default: `text`). A form that is not plain ASCII letters, digits, `_`, `-`, `.`,
    or is long, is cut to that and gets `@` and a digest of the whole text; `@` occurs in no plain name.
    """
    shown = shown or text
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", shown) and not shown.endswith(".") and len(shown) <= _LONGEST_NAME
    # File systems that ignore case would merge [f32] and [F32]; identifiers before the bracket rarely differ so.
    parameters = shown.partition("-")[2]
    if plain and parameters == parameters.lower():
        return shown
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", shown)[:_LONGEST_NAME - 20].strip("-.")
    return f"{readable}@{digest}"


def test_name(classes: Sequence[str], function: str, parameters: str = "") -> str:
    """The file stem of a test: `Class.test_x-4-f32` for `Class::test_x[4-f32]`; an identifier holds no `-`, so it is distinct."""
    full = ".".join([*classes, function])
    return safe_name(f"{full}[{parameters}]", f"{full}-{parameters}") if parameters else safe_name(full)


def golden_path(root: Path, module: Path, test: str, stage: str, name: str = "") -> Path:
    """Where a snapshot lives. `module` is the test file; `name` tells several snapshots of one test apart.

    Raises GoldenError for a test file outside `root`.
    """
    try:
        inside = module.relative_to(root).with_suffix("")
    except ValueError:
        raise GoldenError(f"{module} lies outside the root folder {root}; run pytest with --rootdir set to a folder above it") from None
    stem = f"{test}+{safe_name(name)}" if name else test
    return root.joinpath(FOLDER, *map(safe_name, inside.parts), f"{stem}.{stage}{SUFFIX}")


# --------------------------------------------------------------------------- files
def read_text(path: Path) -> str | None:
    """A snapshot's text with LF line ends; None if there is no such file. Raises GoldenError if it cannot be read or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise GoldenError(f"{path} is not UTF-8 (byte {error.start}): restore it from version control, or pass --mlc-golden=update") from None
    except OSError as error:
        raise GoldenError(f"cannot read {path}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: other processes may read or write the same name. Raises GoldenError."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(text.encode("utf-8"))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise GoldenError(f"cannot write {path}: {error.strerror}") from None


def pending_path(path: Path) -> Path:
    """The `*.new` file beside a golden file."""
    return path.with_name(path.name + PENDING)


def _forget_pending(path: Path) -> None:
    try:
        pending_path(path).unlink(missing_ok=True)
    except OSError:  # a read-only checkout: the stale file is harmless
        pass


def parse_problem(stage: str, text: str) -> str:
    """Why a stage's text does not parse, or "" if it does or the stage has no parser."""
    from mlc.core.errors import MlcError
    try:
        if stage in ("graph", "optimized"):
            from mlc.graph import parse_graph
            parse_graph(text, _placeholder_constants(text), "golden file")
        elif stage == "kernels":
            from mlc.kernel.program_text import parse_kernel_graph
            parse_kernel_graph(text)
        elif stage == "memory":
            from mlc.memory.plan import parse_plan
            parse_plan(text)
        elif stage == "loops":
            from mlc.loop.text import parse_kernel
            for kernel in re.split(r"^; .*$", text, flags=re.M):
                if kernel.strip():
                    parse_kernel(kernel)
    except MlcError as error:
        return str(error)
    return ""


def _placeholder_constants(text: str) -> dict:
    """Zeros for every constant that the text names by digest: its data lives with the model, not with the snapshot."""
    import numpy as np

    from mlc.core.dims import parse_type
    from mlc.core.errors import MlcError
    from mlc.core.literal import Literal
    found = {}
    for digest, type_text in re.findall(r'\{value="([0-9a-f]+)"\} : ([a-z0-9]+\[[0-9,]*\])', text):
        try:
            type = parse_type(type_text)
        except MlcError:
            continue
        found[digest] = Literal(np.zeros(type.shape, type.dtype.numpy))
    return found


# --------------------------------------------------------------------------- differences
def diff_lines(old: str, new: str, context: int = 3) -> list[str]:
    """A unified diff without line ends; a missing last newline is written out."""
    def lines(text: str) -> list[str]:
        found = text.split("\n")
        return found[:-1] if found[-1] == "" else [*found[:-1], found[-1] + "  (no newline at the end)"]
    return list(difflib.unified_diff(lines(old), lines(new), "golden", "now", n=context, lineterm=""))


def diff_head(old: str, new: str, most: int = _DIFF_LINES) -> str:
    """The first lines of the diff, indented, and how many more there are."""
    lines = diff_lines(old, new)
    more = [f"... {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join("  " + line for line in lines[:most] + more)


# --------------------------------------------------------------------------- the comparison
@dataclass
class Snapshots:
    """The snapshots of one test. `update` rewrites instead of comparing; `rerun` is the test's id, quoted for a shell."""

    root: Path
    module: Path
    test: str
    update: bool
    rerun: str
    taken: dict[Path, str] = field(default_factory=dict)

    def take(self, compiled: object, stages: Sequence[str] = STAGES, name: str = "") -> list[str]:
        """Compare (or rewrite) every stage; returns one message per stage that differs. Raises GoldenError for a wrong use."""
        if isinstance(stages, str):
            stages = (stages,)
        executable = golden_executable(compiled)
        from mlc.compile import STAGES as EVERY
        known = [stage for stage in EVERY if stage != "passes"]  # which tells milliseconds
        unknown = [stage for stage in stages if stage not in known]
        if unknown:
            raise GoldenError(f"no stage is called {unknown[0]!r}; known: {', '.join(known)}")
        problems = []
        for stage in stages:
            path = golden_path(self.root, self.module, self.test, stage, name)
            text = executable.as_text(stage)
            text = text if text.endswith("\n") or not text else text + "\n"
            if self.taken.setdefault(path, text) != text:
                raise GoldenError(f"this test takes two different snapshots called {path.name}; give one a name: mlc_snapshot(exe, name=\"second\")")
            problems.append(self._update(path, text) if self.update else self._compare(path, stage, text))
        return [problem for problem in problems if problem]

    def shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _update(self, path: Path, text: str) -> str:
        try:
            same = read_text(path) == text
        except GoldenError:
            same = False
        if not same:
            write_text(path, text)
        _forget_pending(path)
        return ""

    def _compare(self, path: Path, stage: str, text: str) -> str:
        golden = read_text(path)
        if golden == text:
            _forget_pending(path)
            return ""
        try:
            write_text(pending_path(path), text)
            left = f"  the new text is in {self.shown(pending_path(path))}"
        except GoldenError as error:
            left = f"  the new text is not kept: {error}"
        update = f"pytest --mlc-golden=update {self.rerun}"
        if golden is None:
            return f"mlc-golden: MISSING {self.shown(path)}: no golden file yet\n{left}\n  create:  {update}"
        broken = parse_problem(stage, golden)
        if broken:
            return (f"mlc-golden: BROKEN {self.shown(path)} does not parse: {broken}\n"
                    f"  was it edited by hand? restore it from version control\n{left}\n  rewrite: {update}")
        return (f"mlc-golden: CHANGED {self.shown(path)}\n{diff_head(golden, text)}\n{left}\n"
                f"  review:  python -m pytest_mlc review\n  rewrite: {update}")


@contextmanager
def golden_options() -> Iterator[None]:
    """The options that snapshots are compiled under: whatever shapes the code is fixed, so the environment has no say.

    The interpreter backend leaves every text as it is, and no code for a foreign CPU is loaded.
    """
    from mlc.core.options import OPTIONS, options
    fixed = {name: option.default for name, option in OPTIONS.items() if option.affects_code}
    with options(**{**fixed, "target": TARGET, "backend": "interpreter", "threads": 1, "cache": False}):
        yield


def golden_executable(compiled: object) -> Executable:
    """The stages of `mlc.jit(fn).lower(...)`, or of its `.compile()`, for the golden target; anew if it was compiled for another.

    Nothing is linked or run, so any machine can take snapshots. Raises GoldenError for anything else.
    """
    from mlc.codegen.target import get_target
    from mlc.compile import Executable
    from mlc.graph import Graph
    executable = getattr(compiled, "executable", compiled)
    if isinstance(executable, Executable) and executable.stages.target.name == TARGET:
        return executable
    graph = getattr(compiled, "graph", None)
    if not isinstance(graph, Graph):
        raise GoldenError(f"mlc_snapshot takes mlc.jit(fn).lower(...) or its .compile(), got a {type(compiled).__name__}")
    return Executable(graph, get_target(TARGET), None)


def stray_files(root: Path, used: set[str]) -> list[str]:
    """Golden files below `root`, relative to it, that no test of this session looked at."""
    found = (path.relative_to(root).as_posix() for path in (root / FOLDER).rglob("*" + SUFFIX))
    return sorted(set(found) - used)
