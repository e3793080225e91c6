"""Programs as bytes: what `save` writes to a file, and what the compilation cache keeps.

    0   magic "MLCPROG\\n"          8   format version (u32), zero (u32)      16  payload length (u64)
    24  SHA-256 of the payload     56  zeros                                 64  payload

The payload: length of the manifest and of the object code (u64 each), then manifest JSON, object code and each
constant, every one padded to a multiple of 64 so that constants can be used where they lie.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlc.codegen.target import host_lacks
from mlc.core.aligned import ALIGNMENT, lasting_bytes
from mlc.core.dataclass import replace
from mlc.core.dtype import parse_dtype
from mlc.core.errors import ArtifactError, CodegenError
from mlc.core.fingerprint import versions
from mlc.runtime.executable import Manifest, Program

MAGIC = b"MLCPROG\n"
FORMAT = 3
_HEADER = struct.Struct("<8sIIQ32s8s")
_LENGTHS = struct.Struct("<QQ48x")


def _padding(length: int) -> bytes:
    return bytes(-length % ALIGNMENT)


def to_bytes(program: Program, *, constants: bool = True, extra: Mapping[str, object] | None = None) -> list[bytes | memoryview]:
    """The program as consecutive pieces, with `extra` in its manifest; without constants (the cache's form) whoever loads it must supply them."""
    manifest = replace(program.manifest, extra={**program.manifest.extra, **(extra or {})}).to_json().encode("utf-8")
    pieces: list[bytes | memoryview] = [_LENGTHS.pack(len(manifest), len(program.object_code))]
    for piece in (manifest, program.object_code):
        pieces += [piece, _padding(len(piece))]
    for constant in program.constants if constants else ():
        raw = constant.reshape(-1).view(np.uint8) if constant.size else np.empty(0, np.uint8)
        pieces += [memoryview(raw), _padding(len(raw))]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [_HEADER.pack(MAGIC, FORMAT, 0, sum(map(len, pieces)), digest.digest(), b""), *pieces]


def from_bytes(data: bytes | memoryview | np.ndarray, *,
               constants: Sequence[np.ndarray] | Callable[[Manifest], Sequence[np.ndarray]] | None = None, own_constants: bool = False,
               source: str = "artifact") -> Program:
    """The program in `data`; `constants` are those it was made with (or a function that picks them for its manifest), None to use the stored ones.
    With `own_constants` nobody else will write to them.

    ArtifactError, naming `source`, for anything but the whole, undamaged output of `to_bytes`, for another version of
    mlc, llvmlite or LLVM, and for code that needs CPU features this machine lacks.
    """
    view = memoryview(data).cast("B")
    payload = _checked_payload(view, source)
    manifest_length, object_length = _LENGTHS.unpack_from(payload)
    at = _LENGTHS.size
    manifest = Manifest.from_json(_piece(payload, at, manifest_length, source).tobytes().decode("utf-8", "replace"))
    _check_origin(manifest, source)
    at += manifest_length + len(_padding(manifest_length))
    object_code = _piece(payload, at, object_length, source).tobytes()
    stored = constants is None
    if callable(constants):
        constants = constants(manifest)
    if stored:
        constants = _stored_constants(payload, at + object_length + len(_padding(object_length)), manifest, source)
    try:
        return Program(object_code, manifest, constants, own_constants=stored or own_constants)
    except CodegenError as error:
        raise ArtifactError(f"{source}: {error}") from None


def _checked_payload(view: memoryview, source: str) -> memoryview:
    if len(view) < _HEADER.size or bytes(view[:8]) != MAGIC:
        raise ArtifactError(f"{source} is not a saved mlc program")
    _, version, zero, length, digest, zeros = _HEADER.unpack_from(view)
    if zero or any(zeros):
        raise ArtifactError(f"{source} is damaged: its header holds what was never written")
    if version != FORMAT:
        raise ArtifactError(f"{source} has format {version}, this mlc reads format {FORMAT}; save it again")
    payload = view[_HEADER.size:]
    if len(payload) != length:
        raise ArtifactError(f"{source} is damaged: {len(payload)} bytes of payload where {length} were written")
    if hashlib.sha256(payload).digest() != digest:
        raise ArtifactError(f"{source} is damaged: its checksum is wrong")
    if length < _LENGTHS.size:
        raise ArtifactError(f"{source} is damaged: it holds no program")
    return payload


def _piece(payload: memoryview, at: int, length: int, source: str) -> memoryview:
    if at + length > len(payload):
        raise ArtifactError(f"{source} is damaged: a part reaches past its end")
    return payload[at:at + length]


def _check_origin(manifest: Manifest, source: str) -> None:
    now = versions()
    if manifest.versions != now:
        then = manifest.versions
        differing = [f"{name} {then.get(name, 'unknown')} (here {here})" for name, here in now.items() if then.get(name) != here]
        raise ArtifactError(f"{source} was made by {', '.join(differing) or 'another version of mlc'}; compile and save it again")
    lacking = host_lacks(manifest.triple, manifest.requires)
    if lacking:
        raise ArtifactError(f"{source} was made for a CPU with {', '.join(lacking)}, which this one lacks; "
                            "compile it here, or for the target generic")


def _stored_constants(payload: memoryview, at: int, manifest: Manifest, source: str) -> list[np.ndarray]:
    constants = []
    for spec in manifest.constants:
        dtype = parse_dtype(spec.dtype).numpy
        length = dtype.itemsize
        for extent in spec.shape:
            length *= extent
        array = np.frombuffer(_piece(payload, at, length, source), np.uint8).view(dtype).reshape(spec.shape)
        array.flags.writeable = False
        constants.append(array)
        at += length + len(_padding(length))
    return constants


def save(program: Program, path: str | os.PathLike) -> None:
    """Write the program to `path`; readers see the old file or the whole new one. OSError as from any write."""
    path = os.fsdecode(path)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, f"cannot save {path!r}: no such folder", folder)
    temporary = os.path.join(os.path.dirname(path), f".mlc-{os.getpid()}-{os.urandom(8).hex()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(to_bytes(program))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: str | os.PathLike) -> Program:
    """The program that `save` wrote; ArtifactError if the file is damaged or foreign, OSError if it cannot be read."""
    with open(path, "rb", buffering=0) as file:
        data = lasting_bytes(os.fstat(file.fileno()).st_size)
        filled, view = 0, memoryview(data)
        while filled < len(data) and (count := file.readinto(view[filled:])):
            filled += count
    return from_bytes(data[:filled], source=os.fsdecode(path))
