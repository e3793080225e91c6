"""Code that programs share: in a process, and beside the package's bytecode."""

import os
import sys

import numpy as np
import pytest

import mlc
from mlc.cache import package, record
from mlc.cache.store import CacheWarning
from mlc.runtime import functions

RNG = np.random.default_rng(5)
# Tiles of 6, 7 and 8 rows, whichever the machine's registers make, leave nothing over: what is left over is part of the code.
ROWS = 168


@pytest.fixture
def compiled(monkeypatch):
    """The texts that LLVM gets; nothing is known at first."""
    texts, compile_object = [], functions.compile_object
    monkeypatch.setattr(functions, "compile_object", lambda text, target: texts.append(text) or compile_object(text, target))
    monkeypatch.setattr(functions, "_known", {})
    return texts


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A place for bytecode, and no other cache; nothing else is kept there."""
    monkeypatch.setattr(record, "record_key", lambda: None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(mlc.__spec__, "cached", str(tmp_path / "__init__.pyc"))
    with mlc.options(cache=False):
        yield tmp_path


def product(m, n, k):
    a, b = RNG.normal(size=(m, k)).astype("f4"), RNG.normal(size=(k, n)).astype("f4")
    found = mlc.jit(lambda x, y: x @ y).lower(a, b).compile()(a, b)
    assert np.allclose(found, a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-4)


def test_a_product_of_another_size_is_not_compiled(compiled, beside):
    product(ROWS, 128, 96)
    assert len(compiled) == 1
    for sizes in ((ROWS, 128, 100), (2 * ROWS, 128, 96), (3 * ROWS, 128, 100)):
        product(*sizes)
    assert len(compiled) == 1


def test_programs_share_what_is_loaded():
    sizes = (ROWS, 96), (2 * ROWS, 100)
    with mlc.options(cache=False):
        one, two = (mlc.jit(lambda x, y: x @ y).lower(mlc.spec(f"f32[{m},{k}]"), mlc.spec(f"f32[{k},128]")).compile().executable.program
                    for m, k in sizes)
    assert one.libraries == two.libraries and one.manifest.steps != two.manifest.steps


def test_the_library_lies_beside_the_bytecode(compiled, beside, monkeypatch):
    product(ROWS, 128, 96)
    monkeypatch.setattr(functions, "_known", {})
    product(2 * ROWS, 128, 50)
    assert len(compiled) == 1
    assert os.stat(beside / "native").st_mode & 0o777 == 0o700 and len(os.listdir(beside / "native")) == 1


def test_a_damaged_function_is_compiled_afresh(compiled, beside, monkeypatch):
    product(ROWS, 128, 96)
    monkeypatch.setattr(functions, "_known", {})
    (name,) = os.listdir(beside / "native")
    data = bytearray((beside / "native" / name).read_bytes())
    data[-100] ^= 1
    (beside / "native" / name).write_bytes(data)
    with pytest.warns(CacheWarning, match="damaged"):
        product(ROWS, 128, 96)
    assert len(compiled) == 2


@pytest.mark.parametrize("mode, written", [(0o755, True), (0o775, False), (0o777, False), (0o555, True)])
def test_nothing_is_believed_of_a_folder_that_others_may_write_to(beside, mode, written):
    os.chmod(beside, mode)
    allowed = written and os.access(beside, os.W_OK)
    assert package.package_cache().enabled == allowed
    os.chmod(beside, 0o755)


def test_without_bytecode_the_users_cache_serves(beside, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert not package.package_cache().enabled
    os.mkdir(tmp_path / "own", 0o700)
    with mlc.options(cache=True, cache_dir=str(tmp_path / "own")):
        assert package.package_cache().directory == str(tmp_path / "own")


def test_saved_programs_bring_their_code_along(compiled, tmp_path, monkeypatch):
    a, b = RNG.normal(size=(64, 96)).astype("f4"), RNG.normal(size=(96, 128)).astype("f4")
    with mlc.options(cache=False):
        made = mlc.jit(lambda x, y: mlc.nn.softmax(mlc.nn.relu(x @ y) @ y.T)).lower(a, b).compile()
        made.save(tmp_path / "program")
        monkeypatch.setattr(functions, "_known", {})
        count = len(compiled)
        assert np.array_equal(mlc.load(tmp_path / "program")(a, b), made(a, b)) and len(compiled) == count
