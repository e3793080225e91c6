"""A small loader of x86-64 ELF objects as mlc's code generator writes them, so that running cached code needs no LLVM.

Sections go into one mapping: code and jump stubs, constants and the table of addresses, variables, each from a page of its
own with only the rights that it needs. Whatever is not listed here (other machines, relocations, thread-local data) is
refused, and the caller links with LLVM instead.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
import weakref
from collections.abc import Callable, Sequence

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_SYMTAB, _RELA, _NOBITS, _REL = 2, 4, 8, 9
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
_READ_ONLY_RIGHTS, _CODE_RIGHTS = 1, 5  # PROT_READ, and with PROT_EXEC
_R_64, _R_PC32, _R_PLT32, _R_GOT, _R_PC64 = 1, 2, 4, frozenset({9, 41, 42}), 24
_STUB = b"\xff\x25\0\0\0\0"  # jmp [rip + 0], the address follows
_STUB_SIZE = 16

SUPPORTED = sys.platform == "linux" and sys.byteorder == "little" and ctypes.sizeof(ctypes.c_void_p) == 8


class Refused(Exception):
    """The object needs a full linker."""


class Undefined(Exception):
    """Nothing defines these symbols."""

    def __init__(self, names: Sequence[str]):
        super().__init__(", ".join(names))
        self.names = list(names)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return libc


class Image:
    """One loaded object; its memory goes with it, but not while the interpreter ends: threads and arrays may still need the code."""

    def __init__(self, data: bytes, exports: Sequence[str], resolve: Callable[[str], int | None]):
        """`resolve` gives the address of an undefined symbol, or None. Raises Refused and Undefined."""
        try:
            self._load(data, exports, resolve)
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise Refused(f"not an object as expected: {error}") from None

    def _load(self, data: bytes, exports: Sequence[str], resolve: Callable[[str], int | None]) -> None:
        if not SUPPORTED or data[:7] != b"\x7fELF\x02\x01\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):  # relocatable, x86-64
            raise Refused("not a relocatable object for x86-64")
        table, = struct.unpack_from("<Q", data, 0x28)
        count, = struct.unpack_from("<H", data, 0x3C)
        sections = [_SECTION.unpack_from(data, table + i * _SECTION.size) for i in range(count)]
        if any(s[1] == _REL or s[2] & _TLS or (s[2] & _ALLOC and s[1] in (14, 15, 16)) for s in sections):  # constructors are nobody's
            raise Refused("sections of other kinds")
        symbols, names = self._symbols(data, sections)
        undefined = [i for i, s in enumerate(symbols) if i and s[3] == 0]
        if any(s[1] & 15 == 6 or (s[3] >= 0xFF00 and s[1] & 15 != 4) for s in symbols):
            raise Refused("symbols of other kinds")
        found = {i: resolve(names[i]) for i in undefined}
        if None in found.values():
            raise Undefined([names[i] for i, address in found.items() if address is None])
        loaded = [(data[s[4]:s[4] + s[5]], s[7]) for s in sections if s[1] == _RELA and sections[s[7]][2] & _ALLOC]
        listed = sorted({info >> 32 for entries, _ in loaded for _, info, _ in _RELOCATION.iter_unpack(entries) if info & 0xFFFFFFFF in _R_GOT})
        offsets, bounds = _layout(sections, len(undefined), len(listed))
        self.base, self.size = _libc().mmap(None, bounds[-1], 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0), bounds[-1]
        if self.base in (None, ctypes.c_void_p(-1).value):
            raise Refused("the system gives no memory")
        weakref.finalize(self, _libc().munmap, self.base, self.size).atexit = False  # (once exit hooks run, nothing is finalized)
        self.memory = memoryview((ctypes.c_char * self.size).from_address(self.base)).cast("B")
        for section, offset in zip(sections, offsets):
            if offset is not None and section[1] != _NOBITS:
                self.memory[offset:offset + section[5]] = data[section[4]:section[4] + section[5]]
        values = [found[i] if i in found else self.base + offsets[s[3]] + s[4] if s[3] < 0xFF00 and offsets[s[3]] is not None else None
                  for i, s in enumerate(symbols)]
        stubs = self._write(bounds[3], _STUB_SIZE, {i: _STUB + found[i].to_bytes(8, "little") for i in undefined})
        slots = self._write(bounds[4], 8, {i: values[i].to_bytes(8, "little") for i in listed if values[i] is not None})
        for entries, target in loaded:
            if offsets[target] is not None:
                self._relocate(entries, offsets[target], values, stubs, slots)
        self._addresses = {name: values[i] for i, name in names.items() if name in exports and i not in found}
        missing = [name for name in exports if name not in self._addresses]
        if missing:
            raise Undefined(missing)
        for start, stop, rights in ((0, bounds[0], _CODE_RIGHTS), (bounds[0], bounds[1], _READ_ONLY_RIGHTS)):
            if stop > start and _libc().mprotect(self.base + start, stop - start, rights):
                raise Refused("the system refuses executable memory")

    @staticmethod
    def _symbols(data: bytes, sections: list[tuple]) -> tuple[list[tuple], dict[int, str]]:
        """Symbols (name, info, other, section, value, size), and the names of those that others can see, by number."""
        table = next((s for s in sections if s[1] == _SYMTAB), None)
        if table is None:
            raise Refused("no symbols")
        symbols = list(_SYMBOL.iter_unpack(data[table[4]:table[4] + table[5]]))
        start = sections[table[6]][4]
        return symbols, {i: data[start + s[0]:data.index(b"\0", start + s[0])].decode() for i, s in enumerate(symbols) if s[1] >> 4}

    def _write(self, start: int, size: int, contents: dict[int, bytes]) -> dict[int, int]:
        """Write what belongs to each symbol, `size` bytes apart: {symbol: address}."""
        for number, content in enumerate(contents.values()):
            self.memory[start + number * size:start + number * size + len(content)] = content
        return {symbol: self.base + start + number * size for number, symbol in enumerate(contents)}

    def _relocate(self, entries: bytes, start: int, values: list, stubs: dict[int, int], slots: dict[int, int]) -> None:
        memory, base = self.memory, self.base
        for offset, info, addend in _RELOCATION.iter_unpack(entries):
            symbol, kind, at = info >> 32, info & 0xFFFFFFFF, start + offset
            value = values[symbol]
            if kind in (_R_PC32, _R_PLT32):
                struct.pack_into("<i", memory, at, (stubs.get(symbol, value) if kind == _R_PLT32 else value) + addend - base - at)
            elif kind == _R_64:
                struct.pack_into("<Q", memory, at, (value + addend) & 0xFFFFFFFFFFFFFFFF)
            elif kind in _R_GOT and symbol in slots:
                struct.pack_into("<i", memory, at, slots[symbol] + addend - base - at)
            elif kind == _R_PC64:
                struct.pack_into("<q", memory, at, value + addend - base - at)
            else:
                raise Refused(f"relocation {kind}")

    def __getitem__(self, name: str) -> int:
        """The address of an exported symbol."""
        return self._addresses[name]


def _layout(sections: list[tuple], stubs: int, slots: int) -> tuple[list[int | None], list[int]]:
    """The offset of each section that is loaded, and [end of code, end of constants, end of variables, stubs, slots, size]."""
    offsets: list[int | None] = [None] * len(sections)
    at, ends, extra = 0, [], []
    for kind in (_EXEC, 0, _WRITE):
        for i, section in enumerate(sections):
            if section[2] & _ALLOC and section[2] & (_EXEC | _WRITE) == kind and section[5]:
                at = -(-at // max(section[8], 1)) * max(section[8], 1)
                offsets[i] = at
                at += section[5]
        at = -(-at // 16) * 16
        if kind != _WRITE:
            extra.append(at)
            at += stubs * _STUB_SIZE if kind == _EXEC else slots * 8
        at = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
        ends.append(at)
    if any(section[2] & _ALLOC and section[2] & (_EXEC | _WRITE) == _EXEC | _WRITE for section in sections):
        raise Refused("code that is written to")
    return offsets, [*ends, *extra, max(at, mmap.PAGESIZE)]
