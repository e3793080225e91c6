"""The campaign's options, read and checked: what may be wrong with them is said before anything runs."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_BUDGET = "60s"
DEFAULT_CORPUS = "tests/mlc_corpus"


class SettingError(Exception):
    """An option's value that cannot be used; the message names the option and says what it takes."""


def timeout() -> float:
    """Seconds after which a case counts as hanging (MLC_FUZZ_TIMEOUT; 30). Raises SettingError."""
    text = os.environ.get("MLC_FUZZ_TIMEOUT", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise SettingError(f"MLC_FUZZ_TIMEOUT={text!r} is no number of seconds; 30 is the default")
    return seconds


@dataclass(frozen=True)
class Settings:
    """One campaign. Exactly one of `seconds` and `graphs` is set; `shard` is (i, n) with 1 <= i <= n; `stream` is this process's (k, n);
    `stop` at the first failing case (pytest's -x)."""

    seed: int = 0
    seconds: float | None = 60.0
    graphs: int | None = None
    shard: tuple[int, int] = (1, 1)
    stream: tuple[int, int] = (0, 1)
    ops: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    root: Path = field(default_factory=Path.cwd)
    corpus: Path = Path(DEFAULT_CORPUS)
    report: Path | None = None
    replay: Path | None = None
    stop: bool = False

    @property
    def lane(self) -> tuple[int, int]:
        """This process's number among all processes of all shards, and how many those are."""
        (i, n), (k, workers) = self.shard, self.stream
        return (i - 1) * workers + k, n * workers

    @property
    def share(self) -> int | None:
        """How many of the budget's graphs fall to this process."""
        if self.graphs is None:
            return None
        k, workers = self.stream
        return self.graphs // workers + (k < self.graphs % workers)

    @property
    def compilers(self) -> int:
        """How many children compile: two where each process of the campaign has two cores."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return 2 if self.replay is None and cores >= 2 * self.stream[1] else 1

    def shown(self, path: Path) -> str:
        """A path as a person would type it from the root folder."""
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return str(path)


def parse_budget(text: str) -> tuple[float | None, int | None]:
    """"60s", "30m" or "2h" -> (seconds, None); "1000" -> (None, graphs). Raises SettingError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    if match and match[2]:
        seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
        if seconds > 0:
            return seconds, None
    elif match and "." not in match[1] and int(match[1]) > 0:
        return None, int(match[1])
    raise SettingError(f"--mlc-fuzz-budget={text}: give a time like 60s, 30m or 2h, or a number of graphs like 1000")


def parse_shard(text: str) -> tuple[int, int]:
    """"2/4" -> (2, 4). Raises SettingError."""
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text.strip())
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise SettingError(f"--mlc-fuzz-shard={text}: give i/n with 1 <= i <= n, like 1/4")


def parse_ops(text: str | None) -> tuple[str, ...] | None:
    """Comma-separated names of ops. Raises SettingError for an unknown one."""
    if not text:
        return None
    import mlc.ops
    names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    unknown = [n for n in names if n not in mlc.ops.REGISTRY]
    if unknown or not names:
        raise SettingError(f"--mlc-fuzz-ops: unknown op {', '.join(unknown) or text!r}; known: {', '.join(sorted(mlc.ops.REGISTRY))}")
    return names


def require_pairs(ops: tuple[str, ...] | None, dtypes: tuple[str, ...] | None) -> None:
    """SettingError when none of the ops takes any of the dtypes, or when no graph can be made of the ops."""
    if ops is None:
        return
    from mlc_strategies.ingredients import placeable
    from mlc_strategies.recipe import Config

    import mlc.ops
    if set(placeable(Config(ops=ops))) <= {"call"}:
        raise SettingError(f"--mlc-fuzz-ops={','.join(ops)}: nothing can be computed by these alone; name the ops they are to hold together, too")
    if dtypes is None:
        return
    taken = sorted({d.name for name in ops for d in mlc.ops.REGISTRY[name].dtypes})
    if not set(taken) & set(dtypes):
        raise SettingError(f"--mlc-fuzz-ops and --mlc-fuzz-dtypes: {', '.join(ops)} take {', '.join(taken)}, not {', '.join(dtypes)}")


def require_folder(option: str, path: Path | None) -> None:
    """SettingError unless the path is, or can become, a folder to write to."""
    if path is None:
        return
    there = next((p for p in (path, *path.parents) if p.exists() or p.is_symlink()), path)
    if not there.is_dir():
        raise SettingError(f"{option}={path}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(f"{option}={path}: {there} is not writable, and what is found must be stored")


def require_case(path: Path | None) -> None:
    """SettingError unless the file to replay is a whole stored case."""
    from pytest_mlc.corpus import CaseError, read
    if path is None:
        return
    if not path.is_file():
        raise SettingError(f"--mlc-fuzz-replay={path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        read(path)
    except CaseError as error:
        raise SettingError(f"--mlc-fuzz-replay={path}: {error}") from None


def parse_dtypes(text: str | None) -> tuple[str, ...] | None:
    """Comma-separated dtypes, by short or NumPy name. Raises SettingError for an unknown one."""
    if not text:
        return None
    from mlc.core.dtype import as_dtype
    from mlc.core.errors import DtypeError
    try:
        found = tuple(dict.fromkeys(as_dtype(n.strip()).name for n in text.split(",") if n.strip()))
    except DtypeError as error:
        raise SettingError(f"--mlc-fuzz-dtypes={text}: {error}") from None
    if not found:
        raise SettingError(f"--mlc-fuzz-dtypes={text}: give dtypes with commas between them, like f32,i8")
    return found
