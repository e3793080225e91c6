"""A record of what every process would find out again, kept beside mlc's own code: the CPU as LLVM sees it, versions, the hash of mlc's
sources.

Finding out means to load LLVM and to read every source file: more work than all the rest of a cached call. The record is
named by what tells that it still holds: path, time and size of each source file and of LLVM's library, and the CPU's model and flags.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time

from mlc.cache.store import Cache
from mlc.core import fingerprint as fp

_RACY_SECONDS = 2.0  # a file this young may change again without a change of its time
_CPU_FIELDS = (b"model", b"flags", b"features", b"vendor_id", b"stepping", b"cpu family", b"cpu implementer", b"cpu part", b"cpu variant",
               b"cpu revision", b"isa", b"microcode")


def record_key() -> str | None:
    """The key of this process's record; None where there can be none."""
    files = [*_sources(), *_llvm_library()]
    cpu = _cpu()
    newest = max((time_ns for _, time_ns, _ in files), default=0)
    if cpu is None or len(files) < 2 or newest >= min(fp._LOADED * 1e9, (time.time() - _RACY_SECONDS) * 1e9):
        return None
    return fp.fingerprint("mlc surroundings", fp.VERSION, repr(sorted(files)), b"\n".join(cpu))


def _stat(path: str, status: os.stat_result) -> tuple[str, int, int]:
    return path, status.st_mtime_ns, status.st_size


def _sources() -> list[tuple[str, int, int]]:
    """(path, time, size) of every source file of mlc; [] if one cannot be seen."""
    found, pending = [], [os.path.dirname(os.path.dirname(os.path.abspath(fp.__file__)))]
    try:
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        found.append(_stat(entry.path, entry.stat()))
                    elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                        pending.append(entry.path)
    except OSError:
        return []
    return found


def _llvm_library() -> list[tuple[str, int, int]]:
    """The files that say which llvmlite and which LLVM would be loaded."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = spec.submodule_search_locations[0]
    try:
        return [_stat(path, os.stat(path)) for path in (os.path.join(folder, "binding", "libllvmlite.so"), os.path.join(folder, "_version.py"))]
    except OSError:
        return []


def _cpu() -> list[bytes] | None:
    """What Linux says about the first processor, without what changes from moment to moment."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(8192).split(b"\n\n")[0]  # one read: the rest of a large machine's list takes milliseconds
    except OSError:
        return None
    lines = [line for line in first.split(b"\n") if line.lower().startswith(_CPU_FIELDS)]
    return lines if any(line.lower().startswith((b"flags", b"features")) for line in lines) else None


def read(cache: Cache, key: str) -> dict | None:
    """The record stored under the key, if any."""
    data = cache.get(key)
    if data is None:
        return None
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError) as error:
        cache.refuse(key, f"not a record: {error}")
        return None


def write(cache: Cache, key: str, record: dict) -> None:
    """Store a record of JSON values."""
    cache.put(key, json.dumps(record, sort_keys=True).encode())
