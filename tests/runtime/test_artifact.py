"""Saved programs: whole and equal, or an error that says what is wrong."""

import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from runtime_programs import matrix, pointers, program, subtract

from mlc.codegen import target as target_module
from mlc.core.errors import ArtifactError
from mlc.runtime import artifact
from mlc.runtime.executable import Manifest, Program


def two_constants() -> Program:
    text = (f"define void @mlc_main(ptr %bufs) {{\n{pointers(4)}  %k = load float, ptr %p2, align 64\n  %b = load i16, ptr %p3, align 64\n"
            "  %w = sitofp i16 %b to float\n  %r = fsub float %k, %w\n  store float %r, ptr %p1, align 64\n  ret void\n}\n")
    return program(text, [("x", (), "f32")], [("out", (), "f32")], [np.array([2.5, 7], np.float32), np.array([1, 2, 3], ml_dtypes.bfloat16)])


@pytest.mark.parametrize("folder", ["plain", "a b/é中", "{x}", "ORG\\user", "%s"])
def test_a_saved_program_runs_the_same(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / folder / "model.mlc"
    original = two_constants()
    original.save(path)
    again = Program.load(path)
    x = np.zeros((), np.float32)
    assert again.run([x])[0].tobytes() == original.run([x])[0].tobytes() != bytes(4)
    assert again.manifest == original.manifest and again.object_code == original.object_code
    assert [c.tobytes() for c in again.constants] == [c.tobytes() for c in original.constants]
    assert os.listdir(tmp_path / folder) == ["model.mlc"]


def test_loaded_constants_are_used_where_they_lie(tmp_path):
    two_constants().save(tmp_path / "p")
    constants = Program.load(str(tmp_path / "p")).constants
    assert all(constant.ctypes.data % 64 == 0 and constant.base is not None and not constant.flags.writeable for constant in constants)


def test_a_program_without_constants_takes_the_callers(tmp_path):
    original = two_constants()
    data = b"".join(artifact.to_bytes(original, constants=False))
    again = artifact.from_bytes(data, constants=original.constants)
    assert again.run([np.zeros((), np.float32)])[0] == original.run([np.zeros((), np.float32)])[0]
    with pytest.raises(ArtifactError):
        artifact.from_bytes(data)


def test_bytes_are_deterministic():
    assert b"".join(artifact.to_bytes(two_constants())) == b"".join(artifact.to_bytes(two_constants()))


def test_truncation_anywhere_is_noticed():
    data = b"".join(artifact.to_bytes(two_constants()))
    for length in [*range(0, 200), *range(200, len(data), 23), len(data) - 1]:
        with pytest.raises(ArtifactError):
            artifact.from_bytes(data[:length])
    with pytest.raises(ArtifactError, match="damaged"):
        artifact.from_bytes(data + b"\0")


def test_a_flipped_bit_anywhere_is_noticed():
    data = bytearray(b"".join(artifact.to_bytes(two_constants())))
    for at in [*range(0, 128), *range(128, len(data), 19)]:
        data[at] ^= 1 << at % 8
        with pytest.raises(ArtifactError):
            artifact.from_bytes(bytes(data))
        data[at] ^= 1 << at % 8
    artifact.from_bytes(bytes(data))


def test_the_error_names_the_file(tmp_path):
    path = tmp_path / "é.mlc"
    path.write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=r"é\.mlc is not a saved mlc program"):
        Program.load(path)
    with pytest.raises(FileNotFoundError):
        Program.load(tmp_path / "missing")


def _resaved(original: Program, **changes: object) -> bytes:
    original.manifest = Manifest(**{**vars(original.manifest), **changes})
    return b"".join(artifact.to_bytes(original))


@pytest.mark.parametrize("name", ["mlc", "llvmlite", "llvm"])
def test_another_version_is_refused_by_name(name):
    original = subtract()
    data = _resaved(original, versions={**original.manifest.versions, name: "0.0.1"})
    with pytest.raises(ArtifactError, match=rf"made by {name} 0\.0\.1 \(here"):
        artifact.from_bytes(data)


def test_another_format_is_refused(monkeypatch):
    data = b"".join(artifact.to_bytes(subtract()))
    monkeypatch.setattr(artifact, "FORMAT", 4)
    with pytest.raises(ArtifactError, match="has format 3, this mlc reads format 4"):
        artifact.from_bytes(data)


def test_another_cpu_is_refused_and_generic_code_is_not(monkeypatch):
    native, generic = (b"".join(artifact.to_bytes(subtract(target=name))) for name in ("native", "generic"))
    monkeypatch.setattr(target_module, "host_features", lambda: frozenset({"sse2"}))
    if "avx2" in target_module.get_target("native").requires:
        with pytest.raises(ArtifactError, match=r"made for a CPU with .*avx2"):
            artifact.from_bytes(native)
    assert np.array_equal(artifact.from_bytes(generic).run([matrix(), matrix(start=5)])[0], matrix() - matrix(start=5))


def test_another_architecture_is_refused():
    data = _resaved(subtract(), triple="riscv64-unknown-linux-gnu")
    with pytest.raises(ArtifactError, match="riscv64"):
        artifact.from_bytes(data)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "p"
    subtract().save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        two_constants().save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["p"]


def test_a_program_of_two_thousand_kernels_loads_in_a_new_process_on_a_small_stack(tmp_path):
    text = "".join(f"define void @k{i}(ptr %p) {{\n  %x = load i64, ptr %p\n  %y = add i64 %x, {i}\n  store i64 %y, ptr %p\n  ret void\n}}\n"
                   for i in range(2000))
    text += f"define void @mlc_main(ptr %bufs) {{\n{pointers(2)}  store i64 0, ptr %p1\n"
    text += "".join(f"  call void @k{i}(ptr %p1)\n" for i in range(2000)) + "  ret void\n}\n"
    deep = program(text, [("x", (), "i64")], [("out", (), "i64")], kernels=tuple(f"k{i}" for i in range(2000)))
    deep.save(tmp_path / "deep")
    code = ("import sys, threading, numpy as np\nfrom mlc.runtime.executable import Program\nthreading.stack_size(512 * 1024)\n"
            "def work(): print(Program.load(sys.argv[1]).run([np.array(0)])[0])\n"
            "thread = threading.Thread(target=work)\nthread.start(); thread.join()\n")
    output = subprocess.run([sys.executable, "-c", code, tmp_path / "deep"], capture_output=True, text=True, timeout=100, check=True)
    assert output.stdout == f"{1999 * 1000}\n"


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "p"
    original = two_constants()
    original.save(path)
    errors, stop = [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                artifact.load(path)
            except Exception as error:
                errors.append(error)
    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(50):
        original.save(path)
    stop.set()
    thread.join()
    assert not errors
