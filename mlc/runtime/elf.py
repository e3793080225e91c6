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
def _protect() -> Callable:
    function = ctypes.CDLL(None).mprotect
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return function


class Image:
    """One loaded object; its memory goes with it."""

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
        offsets, bounds = _layout(sections, len(undefined))
        self.memory = mmap.mmap(-1, bounds[-1])
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for section, offset in zip(sections, offsets):
            if offset is not None and section[1] != _NOBITS:
                self.memory[offset:offset + section[5]] = data[section[4]:section[4] + section[5]]
        stubs, slots = self._externals(found, bounds)
        values = [found[i] if i in found else self.base + offsets[s[3]] + s[4] if s[3] < 0xFF00 and offsets[s[3]] is not None else None
                  for i, s in enumerate(symbols)]
        for section in sections:
            if section[1] == _RELA and offsets[section[7]] is not None:
                self._relocate(data[section[4]:section[4] + section[5]], offsets[section[7]], values, stubs, slots)
        self._addresses = {name: values[i] for i, name in names.items() if name in exports and i not in found}
        missing = [name for name in exports if name not in self._addresses]
        if missing:
            raise Undefined(missing)
        for start, stop, rights in ((0, bounds[0], _CODE_RIGHTS), (bounds[0], bounds[1], _READ_ONLY_RIGHTS)):
            if stop > start and _protect()(self.base + start, stop - start, rights):
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

    def _externals(self, found: dict[int, int], bounds: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Write a jump stub and an address slot for each external symbol: {symbol: its stub's address}, {symbol: its slot's}."""
        stubs, slots = {}, {}
        for number, (i, address) in enumerate(found.items()):
            stub, slot = bounds[3] + number * _STUB_SIZE, bounds[4] + number * 8
            self.memory[stub:stub + 14] = _STUB + address.to_bytes(8, "little")
            self.memory[slot:slot + 8] = address.to_bytes(8, "little")
            stubs[i], slots[i] = self.base + stub, self.base + slot
        return stubs, slots

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


def _layout(sections: list[tuple], externals: int) -> tuple[list[int | None], list[int]]:
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
            at += externals * (_STUB_SIZE if kind == _EXEC else 8)
        at = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
        ends.append(at)
    if any(section[2] & _ALLOC and section[2] & (_EXEC | _WRITE) == _EXEC | _WRITE for section in sections):
        raise Refused("code that is written to")
    return offsets, [*ends, *extra, max(at, mmap.PAGESIZE)]
