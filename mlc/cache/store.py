"""The persistent compilation cache: a folder of checksummed entries, safe without locks.

One file an entry, named by the SHA-256 of its key:

    0  magic "MLCCACHE"     8  format (u32), zero (u32)     16  lengths of key and data (u64 each)
    32 SHA-256 of key and data     64  key (UTF-8)     then the data

Entries appear by renaming a synced temporary file, so a reader sees a whole entry or none; whatever else it finds
(damage, another key, a vanished file) is a miss. Nothing that happens to the folder reaches the user as an exception.
The folder must be the user's own with mode 0700: what lies in it is run as code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import struct
import sys
import time
import warnings

from mlc.core import options
from mlc.core.dataclass import dataclass
from mlc.core.errors import CacheWarning, OptionError
from mlc.core.fingerprint import fingerprint, sources_fingerprint, versions

MAGIC = b"MLCCACHE"
FORMAT = 1
_HEADER = struct.Struct("<8sIIQQ32s")
_ENTRY = re.compile(r"[0-9a-f]{64}\.mlce")
_TEMPORARY = re.compile(r"\.tmp-\d+-[0-9a-f]{16}")
_TEMPORARY_SECONDS = 3600  # a temporary file this old belongs to a writer that died
_RESCAN_WRITES = 64        # other processes fill the folder too: measure it again after this many writes
_EVICT_TO = 0.9            # evicting a little more than needed keeps it rare

SETTING = "set MLC_CACHE_DIR to a folder of your own, or MLC_CACHE=0 to do without"


@dataclass
class Counters:
    """What happened so far in this process (approximate when threads share a cache)."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    writes: int = 0
    errors: int = 0
    evicted: int = 0


class Cache:
    """A cache in `directory`, or one that stores nothing (directory None).

    `max_bytes` bounds the folder; least recently used entries go first. Safe for threads, processes and forks.
    Raises OptionError if the directory cannot be used and `explicit` says that the user named it; otherwise such a
    cache warns once and stores nothing. `setting` is what warnings tell the user to do.
    """

    def __init__(self, directory: str | os.PathLike | None, *, max_bytes: int = 512 << 20, explicit: bool = False, setting: str = SETTING):
        self.directory = None if directory is None else os.path.abspath(os.fsdecode(directory))
        self.max_bytes = max_bytes
        self.setting = setting
        self.counters = Counters()
        self._warned: set[str] = set()
        self._total = 0
        self._until_rescan = 0
        problem = None if self.directory is None else _problem(self.directory)
        if problem and explicit:
            raise OptionError(f"the compilation cache cannot use {self.directory!r}: {problem}; {setting}")
        if problem:
            self._warn("unusable", f"not used: {problem}")
            self.directory = None

    @property
    def enabled(self) -> bool:
        return self.directory is not None

    def get(self, key: str) -> bytes | None:
        """The data stored under `key`, or None; never raises for anything on disk."""
        if self.directory is None:
            return None
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0, opener=_open_entry) as file:
                if not _trusted(os.fstat(file.fileno()), self.max_bytes):
                    return self._damage("is not a file of this user's")
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            self.counters.misses += 1
            return None
        except OSError as error:
            return self._damage(f"cannot be read: {error.strerror}")
        data = _unpack(content, key)
        if data is None:
            return self._damage("is damaged")
        self.counters.hits += 1
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> bool:
        """Store `data` under `key`; whether it was stored. Never raises for anything on disk."""
        if self.directory is None:
            return False
        echo = key.encode("utf-8", "surrogatepass")
        header = _HEADER.pack(MAGIC, FORMAT, 0, len(echo), len(data), hashlib.sha256(echo + data).digest())
        size = len(header) + len(echo) + len(data)
        if size > self.max_bytes:
            return False
        try:
            self._write(self._path(key), header + echo, data)
        except OSError as error:
            self.counters.errors += 1
            if not isinstance(error, FileNotFoundError):  # a folder that someone removes meanwhile is nobody's fault
                self._warn("write", f"not written: {error.strerror}")
            return False
        self.counters.writes += 1
        self._bound(size)
        return True

    def refuse(self, key: str, reason: str) -> None:
        """Take back a hit whose data turned out unusable: counted and warned about like damage."""
        self.counters.hits -= 1
        self._damage(f"is unusable: {reason}")

    def info(self) -> dict[str, object]:
        """Where the cache is, how full, and what happened in this process."""
        entries = self._entries()
        return {"directory": self.directory, "entries": len(entries), "bytes": sum(size for _, size, _ in entries),
                "max_bytes": self.max_bytes, **vars(self.counters)}

    def clear(self) -> int:
        """Remove every entry and temporary file (nothing else); the number of entries removed."""
        removed = sum(_unlink(path) for _, _, path in self._entries())
        self._remove_temporaries(older_than=0)
        self._total = self._until_rescan = 0
        return removed

    # ------------------------------------------------------------------ inside
    def _path(self, key: str) -> str:
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() + ".mlce"
        return os.path.join(self.directory, name)

    def _write(self, path: str, head: bytes, data: bytes) -> None:
        try:
            self._write_once(path, head, data)
        except FileNotFoundError:  # the folder was removed: make it again, if it is still ours to make
            if _problem(self.directory):
                raise
            self._write_once(path, head, data)

    def _write_once(self, path: str, head: bytes, data: bytes) -> None:
        temporary = os.path.join(self.directory, f".tmp-{os.getpid()}-{os.urandom(8).hex()}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o600)
        try:
            with open(handle, "wb", buffering=0) as file:
                for piece in (head, data):
                    view = memoryview(piece)
                    while view:
                        view = view[file.write(view):]
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            _unlink(temporary)
            raise

    def _damage(self, what: str) -> None:
        self.counters.damaged += 1
        self._warn("damage", f"holds an entry that {what}; compiled afresh")

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _say(f"compilation cache {self.directory!r} {what} ({self.setting})")

    def _entries(self) -> list[tuple[float, int, str]]:
        """(time of last use, size, path) of every entry."""
        found = []
        for entry in self._scan(_ENTRY):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, entry.path))
        return found

    def _scan(self, pattern: re.Pattern[str]) -> list[os.DirEntry]:
        if self.directory is None:
            return []
        try:
            with os.scandir(self.directory) as listing:
                return [entry for entry in listing if pattern.fullmatch(entry.name)]
        except OSError:
            return []

    def _remove_temporaries(self, older_than: float) -> None:
        limit = time.time() - older_than
        for entry in self._scan(_TEMPORARY):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime <= limit:
                    _unlink(entry.path)

    def _bound(self, added: int) -> None:
        """Keep the folder within `max_bytes`, counting `added` new bytes."""
        self._total += added
        self._until_rescan -= 1
        if self._until_rescan > 0 and self._total <= self.max_bytes:
            return
        if self._until_rescan <= 0:
            self._remove_temporaries(_TEMPORARY_SECONDS)
        entries = sorted(self._entries())
        self._total = sum(size for _, size, _ in entries)
        self._until_rescan = _RESCAN_WRITES
        if self._total <= self.max_bytes:
            return
        for _, size, path in entries:
            if self._total <= self.max_bytes * _EVICT_TO:
                break
            self._total -= size
            self.counters.evicted += _unlink(path)


def _say(message: str) -> None:
    """Warn; under `-W error` the message goes to stderr, since no state of the folder may stop a program that is right without it."""
    try:
        warnings.warn(message, CacheWarning, stacklevel=4)
    except CacheWarning:
        print(f"CacheWarning: {message}", file=sys.stderr)


def _open_entry(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _trusted(status: os.stat_result, max_bytes: int) -> bool:
    """Whether an opened entry is a plain file that only this user can have written (the folder may have been swapped)."""
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        return False
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _unpack(content: bytes, key: str) -> bytes | None:
    """The data of an entry for `key`; None unless every byte is as it was written."""
    echo = key.encode("utf-8", "surrogatepass")
    if len(content) < _HEADER.size:
        return None
    magic, version, _, key_length, data_length, digest = _HEADER.unpack_from(content)
    body = memoryview(content)[_HEADER.size:]
    if magic != MAGIC or version != FORMAT or key_length + data_length != len(body) or body[:key_length] != echo:
        return None
    return bytes(body[key_length:]) if hashlib.sha256(body).digest() == digest else None


def _problem(directory: str) -> str | None:
    """Why the directory cannot be used, after creating it if it is missing. One that can only be read is used for what it holds."""
    for _ in range(10):  # a folder that someone removes at this moment looks like other problems: believe only what stays
        problem = _problem_now(directory)
        if problem is None:
            break
    return problem


def _problem_now(directory: str) -> str | None:
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        status = os.stat(directory)
    except FileExistsError:
        return "it is not a folder"
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        return f"it cannot be created: {getattr(error, 'strerror', None) or error}"
    if hasattr(os, "getuid"):
        if status.st_uid != os.getuid():
            return "it belongs to another user"
        if stat.S_IMODE(status.st_mode) != 0o700:
            return f"its mode is {stat.S_IMODE(status.st_mode):04o}, not 0700; `chmod 700` it"
    return None if os.access(directory, os.R_OK | os.X_OK) else "it is not readable"


def default_directory() -> str | None:
    """`$XDG_CACHE_HOME/mlc`, else `~/.cache/mlc`; None without a home directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification says to ignore relative ones
        return os.path.join(base, "mlc")
    home = os.environ.get("HOME" if os.name == "posix" else "USERPROFILE", "")
    return os.path.join(home, ".cache", "mlc") if os.path.isabs(home) else None


def default_cache() -> Cache:
    """The cache that the options in force ask for: one object a directory and process, so that it warns once.

    Raises OptionError if the user set `cache_dir` (MLC_CACHE_DIR) to something that cannot be used.
    """
    if not options.get("cache"):
        return _cache(None, 0, False)
    named = str(options.get("cache_dir"))
    directory = os.path.abspath(os.path.expanduser(named)) if named else default_directory()
    if directory is None:
        _warn_homeless()
    return _cache(directory, int(options.get("cache_max_mb")) << 20, bool(named))


@functools.lru_cache(maxsize=64)
def _cache(directory: str | None, max_bytes: int, explicit: bool) -> Cache:
    return Cache(directory, max_bytes=max_bytes, explicit=explicit)


@functools.cache
def _warn_homeless() -> None:
    _say(f"compilation cache not used: neither XDG_CACHE_HOME nor HOME names a folder ({SETTING})")


def cache_key(graph: str, *, pipeline: str, target: str, tuning: str = "", extra: object = None) -> str:
    """The key of a compilation: everything that its object code depends on, hashed.

    `graph`: canonical text with its dims. `pipeline`: names, versions and options of the passes. `target`: `Target.key`.
    `tuning`: the tuning record's text. `extra`: whatever else `fingerprint` takes. mlc's own sources, the versions of
    llvmlite and LLVM, and every option that affects code are added here.
    """
    return fingerprint("mlc compilation", graph, pipeline, sources_fingerprint(), versions(), target, options.affecting_code(), tuning, extra)
