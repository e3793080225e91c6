"""Programs: object code, what it expects and returns, its constants; and how to run and store them.

The object defines functions that find their arguments in an array of words; the manifest's steps say in what order they run, and on
what places among the inputs, outputs, residents (constants and packed weights), the arena and the workspace.
Memory is C-contiguous in native byte order, aligned to the element; outputs, constants, arena and workspace to 64 bytes.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mlc.codegen.target import Target, host_lacks
from mlc.core.aligned import ALIGNMENT, Block, address, aligned_empty
from mlc.core.dataclass import dataclass, field
from mlc.core.dtype import DType, as_dtype, parse_dtype
from mlc.core.errors import ArtifactError, DtypeError, MlcError, ShapeError, UnsupportedError
from mlc.core.fingerprint import versions
from mlc.core.locks import lazy
from mlc.runtime.buffers import ArenaPool, frozen
from mlc.runtime.bulk import pack
from mlc.runtime.orc import Library
from mlc.runtime.support import call_table, libraries, native_call, support
from mlc.runtime.threads import use_threads

# A process that runs a few programs once each needs no native entry, which takes 6 ms to make (and is made for whatever is run again).
_runs_without_entry = iter((True,) * 8)


class TensorSpec(NamedTuple):
    """An input or output: its name for messages, its shape, its dtype's short name ("f32")."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class ConstantSpec(NamedTuple):
    """A constant: its shape, its dtype's short name."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: np.ndarray) -> ConstantSpec:
        return cls(array.shape, as_dtype(array.dtype).name)


@dataclass(frozen=True)
class Manifest:
    """All that is known about a program besides its code; JSON keeps every field.

    `heavy` says that a call is long enough (tens of microseconds) for other Python threads to run meanwhile.
    `residents` says what lies in memory between calls: (constant,) for a constant as it is, (constant, depth, columns, panels, transposed)
    for one that is packed, by number; None: all constants as they are.
    `steps`: what `mlc.runtime.support.call_table` takes. `objects`: (bytes, names of the functions in it) of each object that the code is
    made of, one after the other.
    `extra` is free for analyses and texts: JSON values only.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[ConstantSpec, ...] = ()
    arena_bytes: int = 0
    workspace_bytes: int = 0
    target: str = ""
    triple: str = ""
    requires: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    heavy: bool = True
    residents: tuple[tuple, ...] | None = None
    steps: tuple[tuple, ...] = ()
    objects: tuple[tuple[int, tuple[str, ...]], ...] = ()
    extra: dict[str, object] = field(default_factory=dict)

    @classmethod
    def make(cls, target: Target, inputs: Sequence[tuple], outputs: Sequence[tuple], constants: Sequence[np.ndarray] = (),
             **fields: object) -> Manifest:
        """A manifest for code generated now for `target`; inputs and outputs are (name, shape, dtype or its name)."""
        specs = [tuple(TensorSpec(name, tuple(int(d) for d in shape), dtype.name if isinstance(dtype, DType) else parse_dtype(dtype).name)
                       for name, shape, dtype in group) for group in (inputs, outputs)]
        return cls(*specs, tuple(map(ConstantSpec.of, constants)), target=target.key, triple=target.triple, requires=target.requires,
                   versions=versions(), **fields)

    def to_json(self) -> str:
        """Deterministic JSON text."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest of `to_json`'s text; ArtifactError if it is not one."""
        try:
            fields = json.loads(text)
            for name in ("inputs", "outputs"):
                fields[name] = tuple(TensorSpec(label, tuple(shape), parse_dtype(dtype).name) for label, shape, dtype in fields[name])
            fields["constants"] = tuple(ConstantSpec(tuple(shape), parse_dtype(dtype).name) for shape, dtype in fields["constants"])
            for name in ("requires", "kernels"):
                fields[name] = tuple(fields[name])
            if fields["residents"] is not None:
                fields["residents"] = tuple(map(tuple, fields["residents"]))
            fields["steps"] = tuple((*rest, tuple(map(tuple, places)), tuple(numbers)) for *rest, places, numbers in fields["steps"])
            fields["objects"] = tuple((size, tuple(names)) for size, names in fields["objects"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, MlcError) as error:
            raise ArtifactError(f"not a manifest of this version of mlc: {error}") from None


class Program:
    """Loaded, callable code. `run` may be called from several threads at once.

    Raises CodegenError if the code cannot be linked, ArtifactError if the constants are not those of the manifest, and
    UnsupportedError if this machine's CPU cannot run code for the manifest's target.
    Constants are copied, unless `own_constants` says that nobody else will write to them.
    """

    def __init__(self, object_code: bytes, manifest: Manifest, constants: Sequence[np.ndarray] = (), *,
                 own_constants: bool = False):
        self.object_code, self.manifest = bytes(object_code), manifest
        self.constants, self.residents = _in_memory(manifest, [np.asarray(constant) for constant in constants], own_constants)
        lacking = host_lacks(manifest.triple, manifest.requires)
        if lacking:
            raise UnsupportedError(f"this CPU cannot run the program, which needs {', '.join(lacking)}; compile for the target native or generic")
        self.table = self._link()
        use_threads()
        self._dtypes = [parse_dtype(spec.dtype).numpy for spec in manifest.inputs]
        self._outputs = [(spec.shape, parse_dtype(spec.dtype).numpy) for spec in manifest.outputs]
        self._resident_addresses = [address(array) for array in self.residents]
        self._pool = ArenaPool(manifest.arena_bytes + manifest.workspace_bytes)
        self._fresh = True
        self._bufs = ctypes.c_void_p * (len(self._dtypes) + len(self._outputs) + len(self.residents) + 2)

    def _link(self) -> ctypes.Array:
        """The program as `mlc_call` runs it; its code is in `self.libraries`."""
        self.libraries, homes, at = [], dict.fromkeys(support().exports, support()), 0
        for size, names in self.manifest.objects:
            self.libraries.append(_loaded(self.object_code[at:at + size], names))
            homes.update(dict.fromkeys(names, self.libraries[-1]))
            at += size
        return call_table(self.manifest.steps, lambda name: homes[name].address(name))

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on arrays of the manifest's shapes and dtypes; returns fresh C-contiguous, 64-byte-aligned arrays.

        Strided, misaligned and byte-swapped arrays are copied first. ShapeError and DtypeError name the argument.
        Runs without the GIL and under IEEE floating-point settings, whatever the thread's are.
        """
        if len(inputs) != len(self._dtypes):
            raise ShapeError(f"the program takes {len(self._dtypes)} arrays, got {len(inputs)}")
        arrays = [_prepare(value, spec, dtype) for value, spec, dtype in zip(inputs, self.manifest.inputs, self._dtypes)]
        first, self._fresh = self._fresh, False
        native = None if first and next(_runs_without_entry, False) else self._native
        try:
            outcome = NotImplemented if native is None else native(*arrays)
            if outcome is not NotImplemented:
                return [outcome] if len(self._outputs) == 1 else list(outcome)
            results = [aligned_empty(shape, dtype) for shape, dtype in self._outputs]
            arena = self._pool.take()
        except MemoryError:
            raise MemoryError(self._needs()) from None
        temporaries = address(arena), address(arena) + self.manifest.arena_bytes
        bufs = self._bufs(*map(address, arrays), *map(address, results), *self._resident_addresses, *temporaries)
        native_call()(ctypes.addressof(self.table), bufs)
        self._pool.give(arena)
        return results

    def _needs(self) -> str:
        """What a call allocates, for an error."""
        outputs = "; ".join(f"output {k}, {spec.dtype}[{','.join(map(str, spec.shape))}]: {math.prod(shape) * dtype.itemsize:,} bytes"
                            for k, (spec, (shape, dtype)) in enumerate(zip(self.manifest.outputs, self._outputs)))
        return f"not enough memory for a call: {outputs}; temporaries: {self.manifest.arena_bytes + self.manifest.workspace_bytes:,} bytes"

    @lazy
    def _native(self) -> Callable | None:
        return self.native_function()

    def native_function(self, fallback: Callable | None = None) -> Callable | None:
        """The program as a built-in function of positional arrays, None where there can be none; see `mlc.runtime.entry`."""
        from mlc.runtime.entry import native_function
        return native_function(self, fallback)

    def save(self, path: str | os.PathLike) -> None:
        """Write code, manifest and constants to one file, whole or not at all; see `mlc.runtime.artifact`."""
        from mlc.runtime.artifact import save
        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike) -> Program:
        """The program that `save` wrote; ArtifactError if the file is damaged or made for another CPU or version."""
        from mlc.runtime.artifact import load
        return load(path)


_libraries: weakref.WeakValueDictionary[bytes, Library] = weakref.WeakValueDictionary()


def _loaded(code: bytes, names: tuple[str, ...]) -> Library:
    """The object in memory, one copy for all programs."""
    found = _libraries.get(code)
    if found is None or not set(names) <= set(found.exports):
        found = _libraries[code] = Library(code, names, dependencies=libraries(code))
    return found


def _in_memory(manifest: Manifest, constants: list[np.ndarray], own: bool) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """The constants, and what calls read: constants (aligned, copied unless `own`) and packed ones. Constants that are only packed stay
    where they are, for `save`."""
    _check_constants(manifest, constants)
    residents = [(k,) for k in range(len(constants))] if manifest.residents is None else manifest.residents
    kept = {k for k, *packed in residents if not packed}
    constants = [frozen(constant, own) if k in kept else constant for k, constant in enumerate(constants)]
    block = Block(sum(constants[k].nbytes + ALIGNMENT for k, *packed in residents if packed))
    found = [pack(np.ascontiguousarray(constants[k]), *packed, block.empty) if packed else constants[k] for k, *packed in residents]
    return tuple(constants), tuple(frozen(array, True) for array in found)


def _check_constants(manifest: Manifest, constants: Sequence[np.ndarray]) -> None:
    wanted = [(spec.shape, spec.dtype) for spec in manifest.constants]
    given = [(constant.shape, as_dtype(constant.dtype).name) for constant in constants]
    if wanted != given:
        raise ArtifactError(f"the program's constants are {wanted}, got {given}")


def _prepare(value: object, spec: TensorSpec, dtype: np.dtype) -> np.ndarray:
    """The value as the code reads it: the array itself if it is contiguous, aligned and in native byte order, else a copy."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.dtype != dtype and array.dtype.newbyteorder("=") != dtype:
        raise DtypeError(f"argument {spec.name} is {array.dtype}{list(array.shape)}, the program takes {spec}; "
                         f"convert it with .astype({dtype.name!r})")
    if array.shape != spec.shape:
        raise ShapeError(f"argument {spec.name} is {spec.dtype}{list(array.shape)}, the program takes {spec}")
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype == dtype:
        return array
    return np.require(array, dtype, ("C", "A"))
