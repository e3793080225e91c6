"""Object code in memory: loading, symbol addresses, lifetimes.

A `Library` is one linked object; its code goes away when the Library is dropped, so whatever holds an address must hold the
Library. Objects for x86-64 Linux are loaded by `mlc.runtime.elf`, others (and those it refuses) by LLVM's ORC linker, in a
dynamic library of their own of a JIT that stays until the process ends.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import sys
from collections.abc import Mapping, Sequence

from mlc.codegen.target import get_target, llvm
from mlc.core.errors import CodegenError
from mlc.runtime import elf
from mlc.runtime.once import once

# ORC never lets go of a library's name, so names are only ever counted up.
_serial = itertools.count()


@once
def _jit():
    # JITLink places a library's sections side by side (the older linker may not, and then relocations overflow).
    # The machine only supplies the data layout: nothing but object code is ever added.
    return llvm().create_lljit_compiler(get_target("generic").machine(), use_jit_link=sys.platform != "win32", suppress_errors=True)


def _link(object_code: bytes, exports: Sequence[str], given: Mapping[str, int]):
    """The object linked by LLVM: a tracker that gives addresses by name."""
    builder = llvm().JITLibraryBuilder().add_object_img(object_code)
    for name in exports:
        builder.export_symbol(name)
    for name, address in given.items():
        builder.import_symbol(name, address)
    builder.add_current_process()
    try:
        return builder.link(_jit(), f"mlc{next(_serial)}")
    except RuntimeError as error:
        missing = [name for name in undefined_symbols(object_code) if name not in given and not _in_process(name)]
        reason = f"nothing defines {', '.join(missing)}" if missing else str(error)
        raise CodegenError(f"cannot link the object code: {reason}") from None


class Library:
    """One object file, linked and ready to run.

    `exports` are the symbols whose addresses can be asked for. Undefined symbols resolve to `imports` (name -> address),
    then to the exports of the Libraries in `dependencies` (kept alive with this one), then to the process (libc, libm,
    CPython). CodegenError names those that resolve to nothing, and tells of object code that cannot be linked.
    """

    def __init__(self, object_code: bytes, exports: Sequence[str], *, dependencies: Sequence[Library] = (),
                 imports: Mapping[str, int] | None = None):
        self.exports = tuple(exports)
        self._dependencies = tuple(dependencies)
        given = {name: dependency.address(name) for dependency in self._dependencies for name in dependency.exports} | dict(imports or {})
        try:
            self._linked = elf.Image(object_code, self.exports, lambda name: given.get(name) or _in_process(name))
        except elf.Undefined as error:
            raise CodegenError(f"cannot link the object code: nothing defines {error}") from None
        except elf.Refused:
            self._linked = _link(object_code, self.exports, given)

    def address(self, name: str) -> int:
        """The address of an exported symbol; valid while this Library lives."""
        return self._linked[name]

    def function(self, name: str, result: object, *arguments: object):
        """An exported function as a ctypes function (which runs without the GIL), keeping this Library alive."""
        function = ctypes.CFUNCTYPE(result, *arguments)(self.address(name))
        function.library = self
        return function


@functools.cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _in_process(name: str) -> int | None:
    """The address of a symbol of libc, libm, CPython or whatever else the process has loaded for all."""
    try:
        return ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
    except (AttributeError, TypeError, OSError):  # no such symbol; no handle for "this process" on some systems
        return None


def undefined_symbols(object_code: bytes) -> list[str]:
    """Names of the undefined symbols of a 64-bit little-endian ELF object; [] for anything else. For messages only."""
    try:
        if object_code[:6] != b"\x7fELF\x02\x01":
            return []
        table, = struct.unpack_from("<Q", object_code, 0x28)
        size, count = struct.unpack_from("<HH", object_code, 0x3A)
        # A section header: name, type, flags, address, offset, size, link, info, alignment, entry size.
        headers = [struct.unpack_from("<IIQQQQIIQQ", object_code, table + i * size) for i in range(count)]
        names = []
        for _, kind, _, _, offset, length, link, *_ in headers:
            if kind != 2:  # SHT_SYMTAB
                continue
            strings = object_code[headers[link][4]:headers[link][4] + headers[link][5]]
            for at in range(offset + 24, offset + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", object_code, at)
                if section == 0 and name:
                    names.append(strings[name:strings.index(b"\0", name)].decode())
        return sorted(names)
    except (struct.error, IndexError, ValueError):
        return []
