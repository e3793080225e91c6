"""Programs run on what they were made for, on any layout of it, in any thread; and say what does not fit."""

import itertools
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from runtime_programs import elementwise, matrix, pointers, program, subtract

from mlc.codegen import target as target_module
from mlc.core.aligned import aligned_bytes, aligned_empty
from mlc.core.dtype import as_dtype, f16
from mlc.core.errors import ArtifactError, CodegenError, DtypeError, ShapeError, UnsupportedError
from mlc.runtime import executable
from mlc.runtime.executable import ConstantSpec, Manifest, TensorSpec


def test_inputs_and_outputs_are_in_order():
    x, y = matrix(), matrix(start=50)
    result, = subtract().run([x, y])
    assert np.array_equal(result, x - y) and result.shape == (3, 4) and result.dtype == np.float32


@pytest.mark.parametrize("entry", [False, True], ids=["from Python", "native"])
def test_a_call_that_memory_cannot_hold_says_what_it_needs(monkeypatch, entry):
    def none(*_):
        raise MemoryError
    made = subtract()
    monkeypatch.setattr(executable, "_runs_without_entry", itertools.repeat(not entry))
    monkeypatch.setattr(executable, "aligned_empty", none)
    made._native = none
    with pytest.raises(MemoryError, match=r"not enough memory for a call: output 0, f32\[3,4\]: 48 bytes; temporaries: \d+ bytes"):
        made.run([matrix(), matrix(start=50)])


@pytest.mark.parametrize("layout", [
    lambda a: np.asfortranarray(a), lambda a: np.repeat(a, 2, axis=1)[:, ::2], lambda a: a[::-1].copy()[::-1], lambda a: a.astype(">f4"),
    lambda a: _misaligned(a), lambda a: np.broadcast_to(a[:1], a.shape), lambda a: a.astype(">f4")[:, ::-1].copy()[:, ::-1],
], ids=["fortran", "strided", "negative", "big-endian", "misaligned", "broadcast", "big-endian-negative"])
def test_any_layout_of_an_input_gives_the_same_answer(layout):
    x, y = matrix(), matrix(start=50)
    changed = layout(x)
    assert np.array_equal(subtract().run([changed, y])[0], np.asarray(changed, np.float32) - y)
    assert np.array_equal(subtract().run([y, changed])[0], y - np.asarray(changed, np.float32))


def _misaligned(array: np.ndarray) -> np.ndarray:
    shifted = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    shifted[...] = array
    assert not shifted.flags.aligned
    return shifted


def test_read_only_inputs_are_fine_and_stay_unchanged():
    x, y = matrix(), matrix(start=50)
    before = x.copy()
    x.flags.writeable = False
    subtract().run([x, y])
    assert np.array_equal(x, before)


def test_outputs_are_fresh_and_aligned_to_a_cache_line():
    subtracting = subtract()
    results = [subtracting.run([matrix(), matrix()])[0] for _ in range(20)]
    assert len({result.ctypes.data for result in results}) == 20
    assert all(result.ctypes.data % 64 == 0 and result.flags.c_contiguous and result.flags.writeable for result in results)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4, 5)])
def test_aligned_arrays_have_the_shape_asked_for(shape):
    array = aligned_empty(shape, np.dtype(ml_dtypes.bfloat16))
    assert array.shape == shape and array.dtype == ml_dtypes.bfloat16 and array.flags.c_contiguous
    assert array.size == 0 or array.ctypes.data % 64 == 0


def test_a_wrong_shape_names_the_argument():
    with pytest.raises(ShapeError, match=r"argument y is f32\[4, 3\], the program takes f32\[3,4\]"):
        subtract().run([matrix(), matrix((4, 3))])


def test_a_wrong_dtype_names_the_argument():
    with pytest.raises(DtypeError, match=r"argument x is float64\[3, 4\], the program takes f32\[3,4\]; convert it with .astype\('float32'\)"):
        subtract().run([matrix().astype(np.float64), matrix()])


def test_a_wrong_number_of_arguments_is_refused():
    with pytest.raises(ShapeError, match="takes 2 arrays, got 3"):
        subtract().run([matrix()] * 3)


@pytest.mark.parametrize("dtype, ty", [(np.bool_, "i8"), (np.int8, "i8"), (np.uint16, "i16"), (np.float16, "i16"), (ml_dtypes.bfloat16, "i16"),
                                       (np.int32, "i32"), (np.float64, "i64"), (np.uint64, "i64")])
def test_every_width_passes_through(dtype, ty):
    name = as_dtype(dtype).name
    x = np.array([0, 1, 0, 1, 1]).astype(dtype)
    copy = program(elementwise(f"  %r = or {ty} %v0, 0\n", 5, ty, 1), [("x", (5,), name)], [("out", (5,), name)])
    result, = copy.run([x])
    assert result.dtype == x.dtype and result.tobytes() == x.tobytes()


def test_constants_come_after_outputs_and_are_the_programs_own():
    constant = matrix((4,), start=3)
    kept = constant.copy()
    scale = program(f"define void @mlc_main(ptr %bufs) {{\n{pointers(3)}  %x = load <4 x float>, ptr %p0, align 4\n"
                    "  %k = load <4 x float>, ptr %p2, align 64\n  %r = fsub <4 x float> %x, %k\n"
                    "  store <4 x float> %r, ptr %p1, align 64\n  ret void\n}\n",
                    [("x", (4,), "f32")], [("out", (4,), "f32")], [constant])
    constant[...] = -1
    x = matrix((4,))
    assert np.array_equal(scale.run([x])[0], x - kept)
    with pytest.raises(ValueError):
        scale.constants[0][0] = 1


def test_constants_that_do_not_fit_the_manifest_are_refused():
    fields = [("x", (4,), "f32")], [("out", (4,), "f32")]
    good = program(elementwise("  %r = fsub float %v0, %v1\n", 4, "float", 2), [*fields[0], ("y", (4,), "f32")], fields[1])
    manifest = Manifest(**{**vars(good.manifest), "constants": (ConstantSpec((2,), "f32"),)})
    for constants in ([], [np.zeros(3, np.float32)], [np.zeros(2)]):
        with pytest.raises(ArtifactError, match="constants"):
            type(good)(good.object_code, manifest, constants)


ARENA = 4096
SQUARE_THROUGH_ARENA = f"""define void @mlc_main(ptr %bufs) {{
entry:
{pointers(3)}  br label %fill
fill:
  %i = phi i64 [ 0, %entry ], [ %i1, %fill ]
  %x = load volatile i64, ptr %p0
  %slot = getelementptr i64, ptr %p2, i64 %i
  store volatile i64 %x, ptr %slot
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, {ARENA // 8}
  br i1 %more, label %fill, label %sum
sum:
  %j = phi i64 [ 0, %fill ], [ %j1, %sum ]
  %total = phi i64 [ 0, %fill ], [ %next, %sum ]
  %place = getelementptr i64, ptr %p2, i64 %j
  %y = load volatile i64, ptr %place
  %next = add i64 %total, %y
  %j1 = add i64 %j, 1
  %again = icmp ult i64 %j1, {ARENA // 8}
  br i1 %again, label %sum, label %done
done:
  store i64 %next, ptr %p1
  ret void
}}
"""


def test_overlapping_calls_have_arenas_of_their_own():
    filling = program(SQUARE_THROUGH_ARENA, [("x", (), "i64")], [("out", (), "i64")], arena_bytes=ARENA)
    wrong = []

    def work(value: int) -> None:
        for _ in range(2000):
            result, = filling.run([np.array(value)])
            if result != value * (ARENA // 8):
                wrong.append((value, int(result)))
    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_can_run_a_program_of_its_parent(in_a_child):
    subtracting = subtract()
    want = subtracting.run([matrix(), matrix(start=9)])[0]
    assert in_a_child(lambda: np.array_equal(subtracting.run([matrix(), matrix(start=9)])[0], want))


def test_a_program_without_the_entry_point_is_an_error():
    with pytest.raises(CodegenError, match="mlc_main"):
        program("define void @other(ptr %bufs) {\n  ret void\n}\n", [], [("out", (), "f32")])


def test_code_for_another_cpu_is_refused_before_it_can_crash(monkeypatch):
    monkeypatch.setattr(target_module, "host_features", lambda: frozenset({"sse2"}))
    with pytest.raises(UnsupportedError, match=r"needs avx, avx2.*compile for the target native or generic"):
        subtract(target="golden-v3")


def test_manifest_survives_json():
    manifest = subtract(arena_bytes=128, kernels=("a#1", "b"), heavy=False, extra={"flops": 12.0, "text": 'é "quoted"\n', "none": None}).manifest
    again = Manifest.from_json(manifest.to_json())
    assert again == manifest and again.to_json() == manifest.to_json()
    assert isinstance(again.inputs[0], TensorSpec) and str(again.inputs[0]) == "f32[3,4]"


def test_manifest_takes_dtypes_and_their_names():
    manifest = Manifest.make(_native(), [("x", [2], f16)], [("y", (2,), "bf16")])
    assert (manifest.inputs[0].dtype, manifest.outputs[0].dtype) == ("f16", "bf16")


def _native():
    from mlc.codegen.target import get_target
    return get_target("native")


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "null", '{"inputs":[["x",[2],"f99"]],"outputs":[],"constants":[],"requires":[],"kernels":[]}'])
def test_a_text_that_is_no_manifest_is_an_artifact_error(text):
    with pytest.raises(ArtifactError):
        Manifest.from_json(text)


def test_aligned_bytes_are_writable():
    block = aligned_bytes(100)
    block[:] = 7
    assert block.ctypes.data % 64 == 0 and len(block) == 100


def test_the_native_entry_is_made_when_a_program_runs_again():
    """Or when many programs have run: a process that runs some once does not pay for it."""
    code = """
import numpy as np, mlc
from mlc.runtime import entry
made = []
entry.native_function = lambda program, fallback=None, kept=entry.native_function: (made.append(program), kept(program, fallback))[1]
x = np.ones(3, np.float32)
programs = [mlc.jit(lambda a, k=k: a + k).lower(x).compile().executable for k in range(10)]
counts = []
for program in programs:
    program.run([x])
    counts.append(len(made))
programs[0].run([x])
print(counts, len(made))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert output.strip() == f"{[0] * 8 + [1, 2]} 3"
