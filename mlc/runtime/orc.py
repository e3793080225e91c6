"""Object code in memory: loading with LLVM's ORC JIT linker, symbol addresses, lifetimes.

A `Library` is one linked object in a dynamic library of its own; its code goes away when the Library is dropped, so
whatever holds an address must hold the Library. The JIT itself stays until the process ends.
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
from mlc.runtime.once import once

# ORC never lets go of a library's name, so names are only ever counted up.
_serial = itertools.count()


@once
def _jit():
    # JITLink places a library's sections side by side (the older linker may not, and then relocations overflow).
    # The machine only supplies the data layout: nothing but object code is ever added.
    return llvm().create_lljit_compiler(get_target("generic").machine(), use_jit_link=sys.platform != "win32", suppress_errors=True)


class Library:
    """One object file, linked and ready to run.

    `exports` are the symbols whose addresses can be asked for. Undefined symbols resolve to `imports` (name -> address),
    then to the exports of the Libraries in `dependencies` (kept alive with this one), then to the process (libc, libm,
    CPython). CodegenError names those that resolve to nothing, and tells of object code that cannot be linked.
    """

    def __init__(self, object_code: bytes, exports: Sequence[str], *, dependencies: Sequence[Library] = (),
                 imports: Mapping[str, int] | None = None):
        imports = dict(imports or {})
        self.name = f"mlc{next(_serial)}"
        self.exports = tuple(exports)
        self._dependencies = tuple(dependencies)
        builder = llvm().JITLibraryBuilder().add_object_img(object_code)
        for name in self.exports:
            builder.export_symbol(name)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        for dependency in self._dependencies:
            builder.add_jit_library(dependency.name)
        builder.add_current_process()
        try:
            self._tracker = builder.link(_jit(), self.name)
        except RuntimeError as error:
            known = set(imports).union(*(dependency.exports for dependency in self._dependencies))
            missing = [name for name in undefined_symbols(object_code) if name not in known and not _in_process(name)]
            reason = f"nothing defines {', '.join(missing)}" if missing else str(error)
            raise CodegenError(f"cannot link the object code: {reason}") from None

    def address(self, name: str) -> int:
        """The address of an exported symbol; valid while this Library lives."""
        return self._tracker[name]

    def function(self, name: str, result: object, *arguments: object):
        """An exported function as a ctypes function (which runs without the GIL), keeping this Library alive."""
        function = ctypes.CFUNCTYPE(result, *arguments)(self.address(name))
        function.library = self
        return function


@functools.cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _in_process(name: str) -> bool:
    try:
        return hasattr(_process(), name)
    except (TypeError, OSError):  # no handle for "this process" on some systems
        return False


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
