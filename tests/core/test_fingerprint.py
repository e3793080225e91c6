"""Fingerprints tell apart what must be told apart, and nothing else."""

import hashlib
import itertools
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mlc.core import fingerprint as fp
from mlc.core.fingerprint import array_digest, fingerprint, sources_fingerprint


def test_values_that_python_calls_equal_have_different_fingerprints():
    values = [0, False, 0.0, -0.0, "0", b"0", None, "", b"", (), {}, frozenset(), 1, True, 1.0, "1", (1,), ((1,),), {1: 1},
              np.int64(1), np.int32(1), np.float32(1), np.array(1), np.array([1]), np.array([[1]])]
    prints = [fingerprint(value) for value in values]
    for (i, a), (j, b) in itertools.combinations(enumerate(prints), 2):
        assert a != b, (values[i], values[j])


def test_moving_a_character_between_parts_changes_the_fingerprint():
    assert fingerprint("ab", "c") != fingerprint("a", "bc") != fingerprint("abc")
    assert fingerprint(["a"], "b") != fingerprint(["a", "b"])
    assert fingerprint(b"S\1\0\0\0\0\0\0\0x") != fingerprint("x")


def test_nan_payload_is_kept():
    quiet, loud = (np.array([bits], np.uint64).view(np.float64) for bits in (0x7FF8000000000000, 0x7FF8000000000001))
    assert fingerprint(float(quiet[0])) != fingerprint(float(loud[0]))


def test_dict_and_set_order_do_not_matter_but_list_order_does():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({1, "x", None}) == fingerprint({None, 1, "x"})
    assert fingerprint([1, 2]) != fingerprint([2, 1])


def test_array_layout_does_not_matter_but_dtype_and_shape_do():
    a = np.arange(12, dtype=np.uint16).reshape(3, 4)
    assert array_digest(a) == array_digest(np.asfortranarray(a)) == array_digest(a[::-1][::-1])
    digests = {array_digest(x) for x in (a, a.T, a.reshape(4, 3), a.view(np.int16), a.view(np.float16), a.view(ml_dtypes.bfloat16), a[:0], a[:, :0])}
    assert len(digests) == 8


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="object"):
        fingerprint(object())
    with pytest.raises(TypeError, match="object array"):
        fingerprint(np.array([None]))


def test_fingerprint_is_the_framed_sha256():
    assert fingerprint("é") == hashlib.sha256(b"S" + (2).to_bytes(8, "little") + "é".encode()).hexdigest()


def test_fingerprint_is_the_same_in_every_process_and_hash_seed():
    code = "from mlc.core.fingerprint import *; print(fingerprint({'a', 'b', 'c'}, {'k': (1, None)}))"
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert outputs == {f"{fingerprint({'a', 'b', 'c'}, {'k': (1, None)})}\n"}


@pytest.fixture
def copied_package(tmp_path, monkeypatch):
    """A small package tree that `sources_fingerprint` takes for mlc's own; returns (root, function computing afresh)."""
    root = tmp_path / "mlc"
    (root / "core").mkdir(parents=True)
    (root / "a.py").write_text("x = 1\n")
    (root / "core" / "fingerprint.py").write_text("y = 2\n")
    monkeypatch.setattr(fp, "_LOADED", time.time() + 1000)
    monkeypatch.setattr(fp, "__file__", str(root / "core" / "fingerprint.py"))
    return root, sources_fingerprint.__wrapped__


def test_any_change_of_a_source_changes_the_sources_fingerprint(copied_package):
    root, compute = copied_package
    seen = [compute()]
    assert compute() == seen[0]
    (root / "a.py").write_text("x = 2\n")
    seen.append(compute())
    (root / "a.py").rename(root / "b.py")
    seen.append(compute())
    (root / "core" / "extra.py").write_text("")
    seen.append(compute())
    assert len(set(seen)) == 4
    (root / "notes.txt").write_text("not a source")
    assert compute() == seen[-1]


def test_unreadable_sources_are_never_shared(copied_package):
    root, compute = copied_package
    (root / "a.py").unlink()
    (root / "a.py").symlink_to(root / "gone.py")
    assert compute() != compute()


def test_sources_edited_after_the_process_loaded_them_are_never_shared(copied_package, monkeypatch):
    _root, compute = copied_package
    monkeypatch.setattr(fp, "_LOADED", time.time() - 1000)
    assert compute() != compute()


def test_the_version_is_the_distributions():
    with open(Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["version"] == fp.VERSION == fp.versions()["mlc"]


def test_sources_fingerprint_is_quick():
    best = min(_seconds(sources_fingerprint.__wrapped__) for _ in range(5))
    assert best < 0.025  # 1-5 ms measured; the bound leaves room for a loaded machine


def _seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start
