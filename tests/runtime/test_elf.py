"""The small object loader: links as LLVM does what mlc emits, and refuses everything else."""

import ctypes
import gc
import os
import re
import struct
import weakref

import pytest

from mlc.codegen.target import compile_object, get_target
from mlc.errors import CodegenError
from mlc.runtime import elf, orc

pytestmark = pytest.mark.skipif(not (elf.SUPPORTED and get_target("generic").is_x86), reason="x86-64 Linux only")

# Own and external functions, constants, variables, addresses in constants, and an external variable through the table of addresses.
EVERYTHING = """
@counter = internal global i64 40, align 8
@zeros = internal global [100 x i64] zeroinitializer, align 64
@shared = external global i64
@visible = global i64 0
@table = internal constant [2 x ptr] [ptr @double, ptr @labs], align 16
declare i64 @labs(i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define internal i64 @double(i64 %x) noinline {
  %y = add i64 %x, %x
  ret i64 %y
}
define i64 @f(i64 %x) {
  %c = load i64, ptr @counter
  %c.next = add i64 %c, 1
  store i64 %c.next, ptr @counter
  %i = and i64 %x, 1
  %at = getelementptr ptr, ptr @table, i64 %i
  %function = load ptr, ptr %at
  %a = call i64 %function(i64 %x)
  %b = call i64 @labs(i64 %a)
  %size = mul i64 %i, 80
  call void @llvm.memset.p0.i64(ptr @zeros, i8 1, i64 %size, i1 false)
  %z.at = getelementptr i64, ptr @zeros, i64 3
  %z = load i64, ptr %z.at
  %s = load i64, ptr @shared
  %old = load i64, ptr @visible
  store i64 %x, ptr @visible
  %d = uitofp i64 %c.next to double
  %e = fmul double %d, 3.5
  %g = fptosi double %e to i64
  %r1 = add i64 %b, %z
  %r2 = add i64 %r1, %s
  %r3 = add i64 %r2, %g
  %r4 = sub i64 %r3, %old
  ret i64 %r4
}
"""


def expected(x: int, calls: int, shared: int) -> int:
    odd = x & 1
    seen = 0x0101010101010101 if odd else 0
    return (abs(x) if odd else abs(2 * x)) + seen + shared + int((40 + calls) * 3.5)


def object_code(text: str = EVERYTHING) -> bytes:
    return compile_object(text, get_target("native"))


@pytest.mark.parametrize("linker", ["own", "llvm"])
def test_both_linkers_make_the_same_of_an_object(monkeypatch, linker):
    if linker == "llvm":
        monkeypatch.setattr(elf, "SUPPORTED", False)
    shared = ctypes.c_int64(7)
    library = orc.Library(object_code(), ["f"], imports={"shared": ctypes.addressof(shared)})
    assert isinstance(library._linked, elf.Image) == (linker == "own")
    function = library.function("f", ctypes.c_int64, ctypes.c_int64)
    assert [function(x) for x in (-4, 6)] == [expected(-4, 1, 7), expected(6, 2, 7) + 4]
    shared.value = 1000
    assert function(-5) == expected(-5, 3, 1000) - 6


def test_code_and_constants_cannot_be_written_and_data_not_run():
    shared = ctypes.c_int64(7)
    library = orc.Library(object_code(), ["f"], imports={"shared": ctypes.addressof(shared)})
    start = library._linked.base
    with open("/proc/self/maps") as file:
        maps = [(int(m[1], 16), m[2]) for line in file if (m := re.match(r"(\w+)-\w+ (\S+)", line))]
    rights = [right for at, right in maps if start <= at < start + library._linked.size]
    assert len(rights) == 3 and not any("w" in each and "x" in each for each in rights) and rights[0].startswith("r-x")


def test_memory_goes_with_the_image():
    image = orc.Library(object_code("define void @f() {\n  ret void\n}\n"), ["f"])._linked
    memory = weakref.ref(image)
    del image
    gc.collect()
    assert memory() is None


def test_a_forked_child_has_variables_of_its_own():
    library = orc.Library(object_code("@n = internal global i64 5\ndefine i64 @f(i64 %x) {\n  store i64 %x, ptr @n\n  ret i64 0\n}\n"
                                      "define i64 @g() {\n  %x = load i64, ptr @n\n  ret i64 %x\n}\n"), ["f", "g"])
    write, read = library.function("f", ctypes.c_int64, ctypes.c_int64), library.function("g", ctypes.c_int64)
    child = os.fork()
    if child == 0:
        write(6)
        os._exit(int(read()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6 and read() == 5


def test_what_is_not_for_this_loader_is_refused():
    good = object_code("define void @f() {\n  ret void\n}\n")
    arm = bytearray(good)
    struct.pack_into("<H", arm, 18, 183)
    local = object_code("@t = thread_local global i32 1\ndefine ptr @f() {\n  ret ptr @t\n}\n")
    for bad in (b"", b"\x7fELF", good[:70], bytes(arm), good[:-100], local):
        with pytest.raises(elf.Refused):
            elf.Image(bad, ["f"], lambda name: None)


def test_a_relocation_it_does_not_know_is_refused():
    data = bytearray(object_code("declare void @g()\ndefine void @f() {\n  call void @g()\n  ret void\n}\n"))
    table, = struct.unpack_from("<Q", data, 0x28)
    count, = struct.unpack_from("<H", data, 0x3C)
    for i in range(count):
        section = elf._SECTION.unpack_from(data, table + i * 64)
        if section[1] == 4:
            struct.pack_into("<I", data, section[4] + 8, 10)  # R_X86_64_32: an absolute address in 32 bits
    with pytest.raises(elf.Refused, match="relocation 10"):
        elf.Image(bytes(data), ["f"], lambda name: 1 << 40)


def test_what_the_loader_refuses_is_linked_by_llvm(monkeypatch):
    def refuse(*_):
        raise elf.Refused("all")
    monkeypatch.setattr(elf, "Image", refuse)
    base = orc.Library(object_code("define i64 @g(i64 %x) {\n  %y = add i64 %x, 100\n  ret i64 %y\n}\n"), ["g"])
    text = "declare i64 @g(i64)\ndefine i64 @f(i64 %x) {\n  %y = call i64 @g(i64 %x)\n  ret i64 %y\n}\n"
    user = orc.Library(object_code(text), ["f"], dependencies=(base,))
    assert user.function("f", ctypes.c_int64, ctypes.c_int64)(1) == 101
    with pytest.raises(CodegenError, match="nothing defines g"):
        orc.Library(object_code("declare void @g()\ndefine void @f() {\n  call void @g()\n  ret void\n}\n"), ["f"])


def test_the_native_entry_and_its_support_need_no_other_linker():
    from mlc.runtime import entry, support
    assert isinstance(support.support()._linked, elf.Image)
    assert entry.unavailable() or isinstance(entry._native().library._linked, elf.Image)
