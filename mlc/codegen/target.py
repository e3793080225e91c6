"""Targets: which CPU code is generated for, and the step from LLVM IR text to object code.

`native` is the CPU this process runs on, `generic` its architecture's baseline, `golden-v3` a fixed x86-64-v3 that does
not depend on the machine (snapshots). Every module is verified before code generation, and intrinsics the target lacks
are refused: LLVM ends the process on either. llvmlite is imported when first needed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mlc.core.dataclass import dataclass
from mlc.core.errors import CodegenError, OptionError
from mlc.core.facts import fact
from mlc.core.locks import ForkSafeLock

# Levels of the x86-64 psABI (https://gitlab.com/x86-psABIs/x86-64-ABI), by LLVM's feature names.
_X86_V1 = frozenset({"cmov", "cx8", "fxsr", "mmx", "sse", "sse2"})
_X86_V3 = _X86_V1 | {"cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2",
                     "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_AVX512_CORE = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
# Instructions that only special intrinsics emit. They don't touch our code, and hypervisors switch them at will, so they
# stay out of keys and requirements. A feature that is not listed here counts.
_SYSTEM = frozenset("""cldemote clflushopt clwb clzero enqcmd fsgsbase hreset invpcid kl lwp movdir64b movdiri mwaitx pconfig pku
    prefetchi ptwrite rdpid rdpru rdrnd rdseed rtm serialize sgx shstk tsxldtrk uintr usermsr waitpkg wbnoinvd widekl
    xsave xsavec xsaveopt xsaves""".split())

# The system call, its command and the feature by which a process asks for matrix registers.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18

# Codegen level 1: level 0 loses half of a matmul, level 2 costs time and gains nothing on explicitly vectorised code.
_OPT_LEVEL = 1

# What an x86 intrinsic needs, longest prefix first; alternatives are sets of features. None: always there on x86-64.
_INTRINSIC_NEEDS: tuple[tuple[str, tuple[frozenset[str], ...] | None], ...] = (
    ("tdpbf16ps", (frozenset({"amx-bf16"}),)),
    ("tdpb", (frozenset({"amx-int8"}),)),
    ("tile", (frozenset({"amx-tile"}),)),
    ("ldtilecfg", (frozenset({"amx-tile"}),)),
    ("avx512bf16.", (frozenset({"avx512bf16"}),)),
    ("avx512fp16.", (frozenset({"avx512fp16"}),)),
    ("avx512.vpdp", (frozenset({"avx512vnni"}), frozenset({"avxvnni"}))),
    ("avx512.", (_AVX512_CORE,)),
    ("avx2.", (frozenset({"avx2"}),)),
    ("avx.", (frozenset({"avx"}),)),
    ("fma.", (frozenset({"fma"}),)),
    ("vcvt", (frozenset({"f16c"}),)),
    ("sse42.", (frozenset({"sse4.2"}),)),
    ("sse41.", (frozenset({"sse4.1"}),)),
    ("ssse3.", (frozenset({"ssse3"}),)),
    ("sse3.", (frozenset({"sse3"}),)),
    ("sse2.", None),
    ("sse.", None),
)


@dataclass(frozen=True)
class Target:
    """A CPU to generate code for. `requires` lists the LLVM features that a machine must have to run the code."""

    name: str
    triple: str
    cpu: str
    features: str
    requires: tuple[str, ...]
    vector_bits: int
    vector_registers: int

    def has(self, feature: str) -> bool:
        """Whether code for this target may use an LLVM feature, such as "avx512vnni"."""
        return feature in self.requires

    @property
    def arch(self) -> str:
        return self.triple.split("-", 1)[0]

    @property
    def is_x86(self) -> bool:
        return self.arch == "x86_64"

    @property
    def fma(self) -> bool:
        """Fused multiply-add in one instruction; without it `llvm.fma` is a (correctly rounded) libm call per element."""
        return self.has("fma") or self.arch in ("aarch64", "arm64")

    @property
    def sse41(self) -> bool:
        """floor, ceil, rint and trunc in one instruction; without it they are a libm call per element."""
        return self.has("sse4.1") or not self.is_x86

    @property
    def avx2(self) -> bool:
        return self.has("avx2")

    @property
    def avx512(self) -> bool:
        """The five AVX-512 subsets that every server core since 2017 has: F, BW, CD, DQ, VL."""
        return _AVX512_CORE <= set(self.requires)

    @property
    def f16c(self) -> bool:
        """f16 <-> f32 conversion in one instruction; without it they are calls to mlc's own support library."""
        return self.has("f16c") or self.arch in ("aarch64", "arm64")

    @property
    def bf16_dot(self) -> bool:
        """`vdpbf16ps`: pairs of bf16 products added to f32."""
        return self.avx512 and self.has("avx512bf16")

    @property
    def int8_dot(self) -> bool:
        """`vpdpbusd` on 512-bit vectors: groups of four u8 * i8 products added to i32."""
        return self.avx512 and self.has("avx512vnni")

    @property
    def int16_dot(self) -> bool:
        """`vpmaddwd`: sums of two i16 * i16 products."""
        return self.is_x86 and self.has("avx2")

    @property
    def matrix_parts(self) -> frozenset[str]:
        """The numbers that products of matrix registers (AMX: 16 rows of 64 bytes) take, by dtype: i8 and u8, bf16."""
        if not (self.avx512 and self.has("amx-tile")):
            return frozenset()
        return frozenset({"i8", "u8"} if self.has("amx-int8") else ()) | frozenset({"bf16"} if self.has("amx-bf16") else ())

    @property
    def key(self) -> str:
        """Everything about the target that object code depends on, as text."""
        return f"triple={self.triple};cpu={self.cpu};features={self.features};vector={self.vector_bits};opt={_OPT_LEVEL}"

    def machine(self, level: int = _OPT_LEVEL):
        """The llvmlite TargetMachine (one per target, level and process)."""
        return _machine(self, level)


@functools.cache
def llvm():
    """`llvmlite.binding`, imported when first needed; LLVM's lock is then held over every `fork`.

    A child forked while another thread is inside LLVM would otherwise wait for that thread for ever.
    """
    from llvmlite import binding
    lock = getattr(binding.ffi.lib, "_lock", None)
    if lock is not None and hasattr(os, "register_at_fork"):
        def release() -> None:
            lock.__exit__(None, None, None)
        os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)
    return binding


def get_target(name: str) -> Target:
    """The target with this name: "native", "generic" or "golden-v3"; OptionError for another."""
    if name not in _TARGETS:
        raise OptionError(f"unknown target {name!r}; known: {', '.join(_TARGETS)}")
    return _TARGETS[name]()


@fact
def host() -> dict:
    """This process's machine as LLVM sees it: "triple", "cpu", and "features" {name: whether it is there}."""
    return {"triple": llvm().get_process_triple(), "cpu": llvm().get_host_cpu_name(), "features": dict(llvm().get_host_cpu_features())}


@functools.cache
def _native() -> Target:
    triple = host()["triple"]
    enabled = host_features()
    relevant = sorted((feature, feature in enabled) for feature in host()["features"] if feature not in _SYSTEM)
    # Absent ones are named too: the CPU's name implies features that a virtual machine may have switched off.
    text = ",".join(("+" if on else "-") + feature for feature, on in relevant)
    if triple.startswith("x86_64"):
        text += ",-prefer-256-bit,-prefer-128-bit"
    bits = 512 if _AVX512_CORE <= enabled else 256 if "avx2" in enabled else 128
    wide = bits == 512 or not triple.startswith("x86_64")
    return Target("native", triple, host()["cpu"], text, tuple(sorted(enabled)), bits, 32 if wide else 16)


@functools.cache
def _generic() -> Target:
    triple = host()["triple"]
    if triple.startswith("x86_64"):
        return Target("generic", triple, "x86-64", "", tuple(sorted(_X86_V1)), 128, 16)
    return Target("generic", triple, "generic", "", (), 128, 32)


@functools.cache
def _golden_v3() -> Target:
    return Target("golden-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", "", tuple(sorted(_X86_V3)), 256, 16)


_TARGETS = {"native": _native, "generic": _generic, "golden-v3": _golden_v3}


@functools.cache
def host_features() -> frozenset[str]:
    """LLVM's names of the features that this process's CPU and operating system offer, without system instructions."""
    found = frozenset(feature for feature, on in host()["features"].items() if on) - _SYSTEM
    if "amx-tile" in found and not _may_use_matrix_registers():
        found = frozenset(feature for feature in found if not feature.startswith("amx-"))
    return found


def _may_use_matrix_registers() -> bool:
    """Ask Linux, which keeps 8 KiB more of a thread's state only for processes that have asked: until then the instructions are illegal
    (https://docs.kernel.org/arch/x86/xstate.html)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0
    except (AttributeError, OSError):
        return False


def host_lacks(triple: str, requires: tuple[str, ...]) -> list[str]:
    """Why code for (triple, required features) cannot run here: [] if it can, else the missing platform or features."""
    here = host()["triple"]
    if _platform(triple) != _platform(here):
        return [f"{triple} (this machine is {here})"]
    # Baseline features are implied by the triple; some LLVM versions do not list them all for a host.
    lacking = sorted(set(requires) - host_features() - _X86_V1)
    return [f"{name} (which the system does not grant to this process)" if name.startswith("amx-") and host()["features"].get(name) else name
            for name in lacking]


def _platform(triple: str) -> tuple[str, str]:
    """Architecture and operating system; distributions differ in the vendor that they write between the two."""
    arch = triple.split("-", 1)[0]
    system = next((name for name in ("linux", "darwin", "macosx", "windows") if name in triple), triple)
    return {"arm64": "aarch64"}.get(arch, arch), {"macosx": "darwin"}.get(system, system)


@functools.cache
def _initialize(everything: bool) -> None:
    if everything:
        llvm().initialize_all_targets()
        llvm().initialize_all_asmprinters()
    else:
        llvm().initialize_native_target()
        llvm().initialize_native_asmprinter()


@functools.lru_cache(maxsize=16)
def _machine(target: Target, level: int):
    _initialize(host()["triple"].split("-", 1)[0] != target.arch)
    return llvm().Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="small")


_INTRINSIC = re.compile(r"@llvm\.(x86|nvvm|aarch64|arm|amdgcn)\.([A-Za-z0-9_.]+)")


def _check_intrinsics(ir_text: str, target: Target) -> None:
    """Refuse target intrinsics that the target lacks: instruction selection would end the process."""
    for family, name in sorted(set(_INTRINSIC.findall(ir_text))):
        own = {"x86_64": "x86", "arm64": "aarch64"}.get(target.arch, target.arch)
        needs = _needs(name) if family == "x86" else None
        if family != own or (needs is not None and not any(option <= set(target.requires) for option in needs)):
            raise CodegenError(f"llvm.{family}.{name} is not available on target {target.name} ({target.cpu})\n{_lines_with(ir_text, name)}")


def _needs(name: str) -> tuple[frozenset[str], ...] | None:
    for prefix, needs in _INTRINSIC_NEEDS:
        if name.startswith(prefix):
            return needs
    return ()  # an unknown family: no option can hold


def _lines_with(ir_text: str, fragment: str, most: int = 3) -> str:
    lines = [f"  line {number}: {line.strip()}" for number, line in enumerate(ir_text.splitlines(), 1) if fragment in line]
    return "\n".join(lines[:most])


def _parse_failure(ir_text: str, message: str) -> CodegenError:
    """LLVM's message with the lines around the one that it names."""
    where = re.search(r"<string>:(\d+):(\d+): error: (.*)", message)
    if not where:
        return CodegenError(f"LLVM cannot parse the module: {message.strip()}")
    number = int(where[1])
    lines = ir_text.splitlines()
    around = [f"{'>' if n == number else ' '} {n:5d}  {lines[n - 1]}" for n in range(max(1, number - 2), min(len(lines), number + 2) + 1)]
    return CodegenError(f"LLVM cannot parse the module, line {number}: {where[3]}\n" + "\n".join(around))


def _verify_failure(ir_text: str, message: str) -> CodegenError:
    """LLVM's message with the numbers of the lines that hold the instructions it quotes."""
    text = message.strip()
    quoted = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    found = [located for line in quoted if (located := _lines_with(ir_text, line, 1))]
    return CodegenError(f"LLVM refuses the module: {text}" + ("\n" + "\n".join(found) if found else ""))


@contextmanager
def _module(ir_text: str, target: Target) -> Iterator:
    """The verified llvmlite module of the text, in a context of its own (whose end frees types and constants)."""
    machine = target.machine()
    _check_intrinsics(ir_text, target)
    # On the text's first line, so that LLVM's line numbers are the text's.
    header = f'target triple = "{target.triple}" target datalayout = "{machine.target_data}" '
    with llvm().create_context() as context:
        try:
            module = llvm().parse_assembly(header + ir_text, context)
        except RuntimeError as error:
            raise _parse_failure(ir_text, str(error)) from None
        # Closed here, not by the collector: a module that outlives its context crashes.
        with module:
            try:
                module.verify()
            except RuntimeError as error:
                raise _verify_failure(ir_text, str(error)) from None
            yield module


_emission = ForkSafeLock()
# LLVM exits the process at an option that it does not know: these versions know it.
_LSR_VERSIONS = range(15, 23)


@contextmanager
def _addresses_as_written() -> Iterator[None]:
    """Emit without loop strength reduction: our loops already step as they should, and it takes a fifth of the time.

    LLVM has only a switch for the whole process, so it is put back at once: another user of llvmlite does not notice.
    """
    if llvm().llvm_version_info[0] not in _LSR_VERSIONS:
        yield
        return
    with _emission:
        llvm().set_option("mlc", "-disable-lsr=true")
        try:
            yield
        finally:
            llvm().set_option("mlc", "-disable-lsr=false")


def compile_object(ir_text: str, target: Target, level: int = _OPT_LEVEL) -> bytes:
    """Object code of one LLVM module in text without triple and data layout; no pass pipeline runs. Level 0 compiles several times
    faster, and is for code without loops that matter.

    Raises CodegenError, with the offending lines, for text that LLVM's parser or verifier refuses and for intrinsics
    that the target lacks.
    """
    with _module(ir_text, target) as module, _addresses_as_written():
        return target.machine(level).emit_object(module)


def assembly(ir_text: str, target: Target) -> str:
    """The assembly text that `compile_object` encodes; the same errors."""
    with _module(ir_text, target) as module, _addresses_as_written():
        return target.machine().emit_assembly(module)
