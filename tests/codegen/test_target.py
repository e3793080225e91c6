"""Targets: what they promise, what their keys hold, and that bad modules are errors, not crashes."""

import ctypes
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from llvmlite import binding

from mlc.codegen import target as target_module
from mlc.codegen.target import Target, assembly, compile_object, get_target, host, host_features, host_lacks
from mlc.core.errors import CodegenError, OptionError

EMPTY = "define void @mlc_main(ptr %bufs) {\n  ret void\n}\n"


def test_importing_targets_does_not_import_llvmlite():
    code = "import sys, mlc.codegen.target; print('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout == "False\n"


def test_golden_target_is_the_same_on_every_machine():
    golden = get_target("golden-v3")
    assert golden.key == "triple=x86_64-unknown-linux-gnu;cpu=x86-64-v3;features=;vector=256;opt=1"
    assert (golden.fma, golden.sse41, golden.avx2, golden.f16c, golden.avx512, golden.bf16_dot) == (True, True, True, True, False, False)


def test_generic_is_the_baseline_of_the_architecture():
    generic = get_target("generic")
    assert generic.vector_bits == 128
    if generic.is_x86:
        assert not (generic.fma or generic.avx2 or generic.f16c or generic.sse41)
        assert "ymm" not in assembly(_scale(8), generic) and "fma" not in assembly(_scale(8), generic)


def test_native_target_is_what_the_kernel_says_the_cpu_has():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = set(re.search(r"flags\s*:(.*)", file.read())[1].split())
    except (OSError, TypeError):
        flags = None
    native = get_target("native")
    if flags:
        assert (native.fma, native.avx2, native.f16c, native.avx512) == ("fma" in flags, "avx2" in flags, "f16c" in flags, "avx512bw" in flags)
    assert host_lacks(native.triple, native.requires) == []
    assert native.key == get_target("native").key and native.cpu in native.key


def test_keys_tell_targets_apart():
    keys = {get_target(name).key for name in ("native", "generic", "golden-v3")}
    assert len(keys) == 3


def test_system_instructions_are_not_part_of_the_key():
    assert not re.search(r"rdpru|clzero|invpcid|xsave", get_target("native").key)


def test_a_machine_without_a_feature_is_told_which(monkeypatch):
    native = get_target("native")
    monkeypatch.setattr(target_module, "host_features", lambda: host_features() - {"avx2", "fma"})
    if native.is_x86 and native.avx2:
        assert host_lacks(native.triple, native.requires) == ["avx2", "fma"]
    assert "nvptx64" in host_lacks("nvptx64-nvidia-cuda", ())[0]


def test_matrix_registers_that_the_system_does_not_grant_are_not_there(monkeypatch):
    """Linux keeps their state for processes that ask; their instructions are illegal in others."""
    for granted in (True, False):
        monkeypatch.setattr(target_module, "host", lambda: {**host(), "features": {**host()["features"], "amx-tile": True, "amx-int8": True}})
        monkeypatch.setattr(target_module, "_may_use_matrix_registers", lambda granted=granted: granted)
        features, native = host_features.__wrapped__(), target_module._native.__wrapped__
        monkeypatch.setattr(target_module, "host_features", lambda features=features: features)
        assert ("amx-tile" in features, "amx-int8" in features) == (granted, granted)
        assert ("+amx-tile" in native().features, "-amx-tile" in native().features) == (granted, not granted)
        assert native().matrix_parts >= {"i8", "u8"} if granted and native().avx512 else not native().matrix_parts


def test_asking_for_matrix_registers_fails_softly(monkeypatch):
    monkeypatch.setattr(target_module, "_ARCH_REQ_XCOMP_PERM", -1)
    assert not target_module._may_use_matrix_registers()
    monkeypatch.setattr(target_module.sys, "platform", "darwin")
    assert not target_module._may_use_matrix_registers()


def test_the_vendor_in_a_triple_does_not_matter_but_the_system_does():
    arch = get_target("generic").arch
    if sys.platform == "linux":
        assert host_lacks(f"{arch}-conda-linux-gnu", ()) == [] != host_lacks(f"{arch}-apple-darwin24", ())


def test_unknown_target_lists_the_known_ones():
    with pytest.raises(OptionError, match="generic"):
        get_target("cray")


def _scale(lanes: int) -> str:
    return (f"define void @mlc_main(ptr %bufs) {{\n  %p = load ptr, ptr %bufs\n  %x = load <{lanes} x float>, ptr %p, align 4\n"
            f"  %y = fmul <{lanes} x float> %x, %x\n  %z = fadd <{lanes} x float> %y, %x\n"
            f"  store <{lanes} x float> %z, ptr %p, align 4\n  ret void\n}}\n")


def test_multiply_and_add_are_not_contracted():
    text = assembly(_scale(8), get_target("golden-v3"))
    assert "vmulps" in text and "vaddps" in text and "fmadd" not in text


def test_native_vectors_have_the_width_that_the_target_names():
    native = get_target("native")
    register = {512: "zmm", 256: "ymm", 128: "xmm"}[native.vector_bits]
    if native.is_x86:
        assert register in assembly(_scale(native.vector_bits // 32), native)


def test_wide_vectors_are_not_split_on_cores_that_prefer_narrow_ones():
    features = "-prefer-256-bit,-prefer-128-bit"
    skylake = Target("native", "x86_64-unknown-linux-gnu", "skylake-avx512", features, tuple(sorted(target_module._AVX512_CORE)), 512, 32)
    assert "zmm" in assembly(_scale(16), skylake)


def test_object_code_is_deterministic():
    for name in ("native", "generic", "golden-v3"):
        assert compile_object(_scale(8), get_target(name)) == compile_object(_scale(8), get_target(name))


def test_every_target_makes_an_elf_object_on_linux():
    if sys.platform == "linux":
        assert all(compile_object(EMPTY, get_target(name)).startswith(b"\x7fELF") for name in ("native", "generic", "golden-v3"))


def test_other_architectures_can_be_targeted():
    arm = Target("generic", "aarch64-unknown-linux-gnu", "generic", "", (), 128, 32)
    assert "fmul" in assembly(_scale(4), arm)


def test_parse_error_shows_the_line_of_the_callers_text():
    text = "define void @f() {\n  %a = add i32 1, 2\n  %b = fadd i32 %a, 1\n  ret void\n}\n"
    with pytest.raises(CodegenError, match=r"line 3: invalid operand type") as error:
        compile_object(text, get_target("native"))
    assert ">     3    %b = fadd i32 %a, 1" in str(error.value)


@pytest.mark.parametrize("text, message", [
    ("", None),
    ("garbage", "line 1"),
    ("define void @f() {\n", "line"),
    ("define i32 @f() {\n  br label %a\na:\n  %y = add i32 %z, 1\n  br label %b\nb:\n  %z = add i32 1, 2\n  ret i32 %z\n}\n",
     "line 4: %y = add i32 %z, 1"),
    ("define void @f() {\n  ret void\n}\ndefine void @f() {\n  ret void\n}\n", "line 4"),
    ("define i32 @f() {\na:\n  br label %b\nb:\n  %x = phi i32 [ 1, %a ], [ 2, %a ]\n  ret i32 %x\n}\n", "%x = phi"),
])
def test_broken_modules_are_refused_with_the_offending_line(text, message):
    if message is None:
        compile_object(text, get_target("native"))
        return
    with pytest.raises(CodegenError) as error:
        compile_object(text, get_target("native"))
    assert message in str(error.value)


@pytest.mark.parametrize("name, declaration", [
    ("generic", "declare <16 x float> @llvm.x86.avx512.rcp14.ps.512(<16 x float>, <16 x float>, i16)"),
    ("golden-v3", "declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)"),
    ("generic", "declare <8 x float> @llvm.x86.avx2.permps(<8 x float>, <8 x i32>)"),
    ("generic", "declare <4 x float> @llvm.x86.sse41.round.ps(<4 x float>, i32)"),
    ("native", "declare float @llvm.nvvm.ex2.approx.f(float)"),
    ("native", "declare void @llvm.x86.invented.thing()"),
])
def test_an_intrinsic_that_the_target_lacks_is_refused_instead_of_ending_the_process(name, declaration):
    with pytest.raises(CodegenError, match=r"not available on target .*\n +line 1: declare"):
        compile_object(declaration + "\n", get_target(name))


def test_an_intrinsic_that_the_target_has_is_accepted():
    declaration = "declare <8 x float> @llvm.x86.avx2.permps(<8 x float>, <8 x i32>)\n"
    compile_object(declaration + EMPTY, get_target("golden-v3"))


# ------------------------------------------------------------- correctly rounded instructions on every target
# On the generic target these are libm calls per element; the values must be the same bits as on any other.
ROUNDED = ("floor", "ceil", "rint", "trunc", "sqrt")


def _unary_module(op: str, ty: str, lanes: int, suffix: str) -> str:
    vector = f"<{lanes} x {ty}>"
    return (f"declare {vector} @llvm.{op}.v{lanes}{suffix}({vector})\ndefine void @f(ptr %x, ptr %y) {{\n  %v = load {vector}, ptr %x, align 1\n"
            f"  %r = call {vector} @llvm.{op}.v{lanes}{suffix}({vector} %v)\n  store {vector} %r, ptr %y, align 1\n  ret void\n}}\n")


def _fma_module(ty: str, lanes: int, suffix: str) -> str:
    vector = f"<{lanes} x {ty}>"
    loads = "".join(f"  %{c} = load {vector}, ptr %p{c}, align 1\n" for c in "abc")
    name = f"{vector} @llvm.fma.v{lanes}{suffix}"
    return (f"declare {name}({vector}, {vector}, {vector})\ndefine void @f(ptr %pa, ptr %pb, ptr %pc, ptr %y) {{\n{loads}"
            f"  %r = call {name}({vector} %a, {vector} %b, {vector} %c)\n  store {vector} %r, ptr %y, align 1\n  ret void\n}}\n")


def _function(text: str, name: str, arguments: int):
    from mlc.runtime.orc import Library
    library = Library(compile_object(text, get_target(name)), ("f",))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(library.address("f"))
    return library, function


TRICKY = np.array([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388607.5, -8388608.5, 1e-45, -1e-45, 3.4e38, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("name", ["native", "generic"])
@pytest.mark.parametrize("op", ROUNDED)
@pytest.mark.parametrize("dtype, ty, suffix", [(np.float32, "float", "f32"), (np.float64, "double", "f64")])
def test_rounding_instructions_are_exact_on_every_target(name, op, dtype, ty, suffix):
    x = TRICKY.astype(dtype)
    got = np.empty_like(x)
    _library, function = _function(_unary_module(op, ty, 16, suffix), name, 2)
    function(x.ctypes.data, got.ctypes.data)
    with np.errstate(invalid="ignore"):
        want = {"floor": np.floor, "ceil": np.ceil, "rint": np.rint, "trunc": np.trunc, "sqrt": np.sqrt}[op](x)
    finite = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert got[finite].tobytes() == want[finite].tobytes()


@pytest.mark.parametrize("name", ["native", "generic"])
@pytest.mark.parametrize("dtype, ty, suffix, uint", [(np.float32, "float", "f32", np.uint32), (np.float64, "double", "f64", np.uint64)])
def test_fma_rounds_once_on_every_target(name, dtype, ty, suffix, uint):
    from fractions import Fraction
    random = np.random.default_rng(7)
    bits = 8 * np.dtype(dtype).itemsize
    a, b, c = (random.integers(0, 2**bits, 160, dtype=uint).view(dtype) for _ in range(3))
    # c close to -a*b: cancellation shows every digit of the product that a double rounding would lose.
    with np.errstate(all="ignore"):
        c[::2] = (-(a * b))[::2]
    got = np.empty_like(a)
    _library, function = _function(_fma_module(ty, 16, suffix), name, 4)
    step = 16 * a.itemsize
    for offset in range(0, a.nbytes, step):
        function(a.ctypes.data + offset, b.ctypes.data + offset, c.ctypes.data + offset, got.ctypes.data + offset)
    checked = 0
    for x, y, z, r in zip(a, b, c, got):
        if not np.isfinite([x, y, z]).all():
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if abs(exact) <= Fraction(float(np.finfo(dtype).max)):
            assert _is_nearest(r, exact, dtype), (x, y, z, r)
            checked += 1
    assert checked > 60


def _is_nearest(value, exact, dtype) -> bool:
    """Whether `value` is `exact` rounded to nearest even, decided with rational arithmetic."""
    from fractions import Fraction
    if not np.isfinite(value):
        return False
    below, above = np.nextafter(value, dtype(-np.inf)), np.nextafter(value, dtype(np.inf))
    error = abs(Fraction(float(value)) - exact)
    for other in (below, above):
        if not np.isfinite(other):
            continue
        distance = abs(Fraction(float(other)) - exact)
        if distance < error or (distance == error and int(value.view(f"u{value.itemsize}")) & 1):
            return False
    return True


def test_golden_assembly_does_not_depend_on_the_process():
    code = f"import json; from mlc.codegen.target import *; print(json.dumps(assembly({_scale(8)!r}, get_target('golden-v3'))))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(output) == assembly(_scale(8), get_target("golden-v3"))


def test_other_users_of_llvm_keep_its_loop_strength_reduction():
    target = get_target("native")
    steps = "\n".join(f"""  %a{n} = mul i64 %i, {stride}
  %p{n} = getelementptr float, ptr %x, i64 %a{n}
  %v{n} = load float, ptr %p{n}
  %q{n} = getelementptr float, ptr %y, i64 %a{n}
  store float %v{n}, ptr %q{n}""" for n, stride in enumerate((3, 7, 11, 13)))
    text = f"""define void @f(ptr %x, ptr %y) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{steps}
  %j = add i64 %i, 1
  %c = icmp ult i64 %j, 1000
  br i1 %c, label %loop, label %done
done:
  ret void
}}
"""

    def others() -> bytes:
        with binding.create_context() as context, binding.parse_assembly(text, context) as module:
            return target.machine().emit_object(module)
    before = others()
    ours = compile_object(text, target)
    assert others() == before != ours
