"""Fingerprints: SHA-256 over values with unambiguous framing, and over mlc's own sources.

Every part is hashed as type tag, length, payload, so ("ab", "c") and ("a", "bc"), 1 and True and 1.0, 0.0 and -0.0 all
differ. Dict entries are ordered by their keys' encodings, so insertion order and hash seeds don't matter.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time

import numpy as np

from mlc.core.facts import fact

VERSION = "0.1.0"  # the distribution's, as in pyproject.toml; asking importlib.metadata would cost 20 ms

_LOADED = time.time()


def _frame(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(8, "little") + payload


def _encode(part: object) -> bytes:
    """The framed bytes of one part; bools before ints, because bool is an int."""
    if part is None:
        return _frame(b"N", b"")
    if isinstance(part, (bool, np.bool_)):
        return _frame(b"B", b"\1" if part else b"\0")
    if type(part) is int:
        return _frame(b"I", str(part).encode())
    if type(part) is float:
        return _frame(b"F", struct.pack("<d", part))
    if isinstance(part, str):
        return _frame(b"S", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, (bytes, bytearray, memoryview)):
        return _frame(b"Y", bytes(part))
    if isinstance(part, (np.ndarray, np.generic)):
        return _frame(b"A" if isinstance(part, np.ndarray) else b"G", _array_header(part) + np.ascontiguousarray(part).tobytes())
    if isinstance(part, dict):
        items = sorted((_encode(key), _encode(value)) for key, value in part.items())
        return _frame(b"D", b"".join(key + value for key, value in items))
    if isinstance(part, (list, tuple)):
        return _frame(b"T", b"".join(map(_encode, part)))
    if isinstance(part, (set, frozenset)):
        return _frame(b"Z", b"".join(sorted(map(_encode, part))))
    raise TypeError(f"cannot fingerprint a {type(part).__name__}; pass its text")


def _array_header(array: np.ndarray | np.generic) -> bytes:
    if array.dtype.hasobject:
        raise TypeError("cannot fingerprint an object array")
    # The dtype's name tells bfloat16 from another 2-byte void type; `.str` gives the byte order.
    return f"{array.dtype.name} {array.dtype.str} {array.shape}\n".encode()


def fingerprint(*parts: object) -> str:
    """Hex SHA-256 of the parts, in order: None, bool, int, float, str, bytes, NumPy arrays and scalars, and dicts, lists
    (a tuple counts as a list) and sets of these. A value of another type is a TypeError."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_encode(part))
    return digest.hexdigest()


def array_digest(array: np.ndarray) -> str:
    """Hex SHA-256 of an array's dtype, shape and bytes, without copying a contiguous one: names a constant."""
    digest = hashlib.sha256(_array_header(array))
    contiguous = np.ascontiguousarray(array)
    if contiguous.size:  # a zero-size array has no buffer to view as bytes
        digest.update(contiguous.reshape(-1).view(np.uint8))
    return digest.hexdigest()


@fact
def sources_fingerprint() -> str:
    """Hex SHA-256 over the names and contents of every .py file of the package `mlc`; once per process.

    Code made by other sources of mlc must never be taken from a cache. Sources that cannot be read (a zipped or
    byte-code-only install), or that were edited after this process loaded them, give a value that no other process shares.
    """
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    digest = hashlib.sha256()
    found = 0
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            path = os.path.join(folder, name)
            try:
                with open(path, "rb", buffering=0) as file:
                    content = file.read()
                    edited = os.fstat(file.fileno()).st_mtime >= _LOADED
            except OSError:
                return _unshared()
            if edited:
                return _unshared()
            digest.update(_frame(b"P", path[len(root) + 1:].encode("utf-8", "surrogateescape")))
            digest.update(_frame(b"C", content))
            found += 1
    return digest.hexdigest() if found else _unshared()


def _unshared() -> str:
    return fingerprint("sources of this process only", os.urandom(16))


@fact
def versions() -> dict[str, str]:
    """The versions that object code depends on: mlc's, llvmlite's and LLVM's."""
    import llvmlite
    from llvmlite import binding
    return {"mlc": VERSION, "llvmlite": llvmlite.__version__, "llvm": ".".join(map(str, binding.llvm_version_info))}
