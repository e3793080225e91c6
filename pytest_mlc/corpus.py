"""Stored cases: IR text with its arguments in one readable file, so that a failure can be replayed anywhere.

    ; mlc-case 1
    ; kind: wrong                           free `key: value` lines
    ; argument f32[4,17]: eNpjYGBgY...      one a parameter, in order: zlib and base64 of the bytes
    ; constant <digest> f32[64,64]: ...     data that the text names by digest
    ; check: 3f9a1c...                      of everything else
    graph @main(...) -> ... { ... }

Everything is a comment to the IR parser, which reads the rest. A damaged file raises CaseError; the campaign goes on, and fails.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mlc.core.dims import TensorType, parse_type
from mlc.core.dtype import as_dtype
from mlc.core.errors import MlcError
from mlc.core.literal import Literal
from mlc.graph.graph import Graph
from mlc.graph.text import parse_graph, print_graph
from mlc.graph.verify import verify

FORMAT = 1
SUFFIX = ".mlc"


class CaseError(MlcError):
    """A stored case that cannot be used: damaged, of another format, or refused by today's ops."""


@dataclass
class Case:
    """A graph with arguments, and what is known of it (`facts`: kind, guilty, seed, ...)."""

    graph: Graph
    args: list[np.ndarray]
    facts: dict[str, str] = field(default_factory=dict)


def _pack(array: np.ndarray, level: int = 6) -> str:
    type = TensorType(array.shape, as_dtype(array.dtype))
    return f"{type}: {base64.b64encode(zlib.compress(array.tobytes(), level)).decode()}"


def _unpack(text: str) -> np.ndarray:
    head, _, data = text.partition(": ")
    type = parse_type(head)
    raw = zlib.decompress(base64.b64decode(data, validate=True))
    if len(raw) != type.nbytes:
        raise CaseError(f"{len(raw)} bytes of data for {type}")
    return np.frombuffer(raw, type.dtype.numpy).reshape(type.shape).copy()


def dump(case: Case, level: int = 6) -> str:
    """The text of a case. `level`: how hard zlib tries; 0 is for what is removed again soon."""
    lines = [f"; mlc-case {FORMAT}"]
    lines += [f"; {key}: {' '.join(str(value).split())}" for key, value in case.facts.items()]
    lines += [f"; argument {_pack(np.asarray(a), level)}" for a in case.args]
    lines += [f"; constant {digest} {_pack(literal.array, level)}" for digest, literal in sorted(case.graph.constants().items())]
    body = print_graph(case.graph)
    check = hashlib.sha256(("\n".join(lines) + body).encode()).hexdigest()[:16]
    return "\n".join([*lines, f"; check: {check}", body])


def load(text: str, name: str = "case") -> Case:
    """Read what `dump` wrote. Raises CaseError."""
    lines = text.split("\n")
    count = next((i for i, line in enumerate(lines) if not line.startswith(";")), len(lines))
    head, body = lines[:count], "\n".join(lines[count:])
    if not head or head[0] != f"; mlc-case {FORMAT}":
        raise CaseError(f"{name}: not a case of format {FORMAT} (first line {lines[0][:40]!r})")
    if not head[-1].startswith("; check: "):
        raise CaseError(f"{name}: the check line is missing, the file is cut off")
    check = hashlib.sha256(("\n".join(head[:-1]) + body).encode()).hexdigest()[:16]
    if head[-1] != f"; check: {check}":
        raise CaseError(f"{name}: the checksum is wrong, the file is damaged")
    try:
        return _read(head[1:-1], body, name)
    except (MlcError, ValueError, zlib.error) as error:
        raise CaseError(f"{name}: {error}") from None


def _read(head: list[str], body: str, name: str) -> Case:
    facts, args, constants = {}, [], {}
    for line in head:
        key, _, value = line[2:].partition(" ")
        if key == "argument":
            args.append(_unpack(value))
        elif key == "constant":
            digest, _, packed = value.partition(" ")
            constants[digest] = Literal(_unpack(packed))
        else:
            key, _, value = line[2:].partition(": ")
            facts[key] = value
    graph = verify(parse_graph(body, constants, name), name)
    found = [TensorType(a.shape, as_dtype(a.dtype)) for a in args]
    if found != graph.input_types():
        raise CaseError(f"arguments are {found}, the graph takes {graph.input_types()}")
    return Case(graph, args, facts)


def write(path: Path, case: Case, level: int = 6) -> None:
    """Store a case, whole or not at all."""
    write_text(path, dump(case, level))


def keep(folder: Path, name: str, case: Case) -> Path:
    """Store a case as `name`.mlc or, where another graph or other arguments have that name, as `name`-2.mlc and so on; returns the path.

    Workers that keep cases at the same time never overwrite each other's.
    """
    with _written(folder, name, dump(case)) as temporary:
        for number in itertools.count(1):
            path = folder / f"{name}{f'-{number}' if number > 1 else ''}{SUFFIX}"
            try:
                _take(path, temporary)
            except FileExistsError:
                if not _holds(path, case):
                    continue
                os.replace(temporary, path)
            return path


def _take(path: Path, temporary: str) -> None:
    """Give a whole file its name. Raises FileExistsError where somebody has it: a name never stands for less than a whole case."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: the name has to be taken first
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        os.replace(temporary, path)


def _holds(path: Path, case: Case) -> bool:
    """Whether a file holds this graph with these arguments, whatever else is known of them."""
    try:
        known = read(path)
    except CaseError:
        return False
    return dump(Case(known.graph, known.args)) == dump(Case(case.graph, case.args))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file under a temporary name, then move it into place: other workers read the same folders."""
    with _written(path.parent, path.name, text) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def _written(folder: Path, name: str, text: str) -> Iterator[str]:
    """The path of a temporary file that holds a text; what is still there after the block is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def read(path: Path) -> Case:
    """Read a stored case. Raises CaseError, also when the file is gone or unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path.name}: {error}") from None
    return load(text, path.name)


def entries(folder: Path) -> Iterator[Path]:
    """The stored cases of a folder in order; none when there is no folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name.endswith(SUFFIX) and not name.startswith("."):
            yield folder / name
