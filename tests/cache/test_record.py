"""The record of a process's surroundings: read only while it holds, and then nothing has to be found out again."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mlc
from mlc.cache import record
from mlc.cache.store import Cache
from mlc.core import fingerprint as fp
from mlc.core.facts import fact

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="records are made on Linux")


@pytest.fixture
def installed(tmp_path) -> Path:
    """A folder with a copy of mlc that nobody edits."""
    shutil.copytree(Path(mlc.__file__).parent, tmp_path / "site" / "mlc", ignore=shutil.ignore_patterns("__pycache__"))
    past = time.time() - 1000
    for path in (tmp_path / "site").rglob("*.py"):
        os.utime(path, (past, past))
    return tmp_path / "site"


def run(installed: Path, code: str, cache: str = "cache", **more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed), "MLC_CACHE_DIR": str(installed.parent / cache), **more}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=installed, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout


CALL = """
import sys, numpy as np, mlc
x = np.arange(6, dtype=np.float32)
print(mlc.jit(lambda a: mlc.nn.softmax(a * 2))(x).tobytes().hex())
print(*sorted(m for m in sys.modules if m.split('.')[0] == 'llvmlite' or m.startswith(('mlc.passes', 'mlc.loop', 'mlc.kernel', 'mlc.codegen.m'))))
"""


def test_a_cached_call_in_a_new_process_loads_neither_llvm_nor_the_compiler(installed):
    cold, warm = (run(installed, CALL).splitlines() for _ in range(2))
    assert cold[0] == warm[0] and "llvmlite.binding" in cold[1] and "mlc.passes.pipeline" in cold[1]
    assert warm[1:] == [""]


def test_a_saved_executable_is_loaded_without_llvm_where_a_record_is(installed):
    run(installed, "import numpy as np, mlc; mlc.jit(lambda a: a * 2).lower(np.ones(3)).compile().save('exe')")
    loaded = run(installed, "import sys, numpy as np, mlc; print(mlc.load('exe')(np.ones(3)), 'llvmlite.binding' in sys.modules)")
    assert loaded == "[2. 2. 2.] False\n"


def test_a_process_with_an_empty_cache_reads_no_sources_where_bytecode_is_kept(installed):
    code = """
import numpy as np, mlc
from mlc.core import fingerprint
read = []
found = fingerprint.sources_fingerprint.__wrapped__
fingerprint.sources_fingerprint.__wrapped__ = lambda: read.append(1) or found()
mlc.jit(lambda a: a + 1)(np.ones(2))
print(len(read))
"""
    assert [run(installed, code, cache, PYTHONDONTWRITEBYTECODE="") for cache in ("one", "two")] == ["1\n", "0\n"]


def test_an_edited_source_is_seen(installed):
    digest = "import mlc, numpy as np; mlc.jit(lambda a: a + 1)(np.ones(2)); print(mlc.core.fingerprint.sources_fingerprint(), end='')"
    first, again = run(installed, digest), run(installed, digest)
    path = installed / "mlc" / "core" / "text.py"
    path.write_text(path.read_text() + "# edited\n")
    os.utime(path, (time.time() - 500,) * 2)
    edited = run(installed, digest)
    assert first == again and edited not in (first, "")


def test_files_of_this_very_moment_have_no_record(tmp_path, monkeypatch):
    (tmp_path / "core").mkdir()
    source = tmp_path / "core" / "fingerprint.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(fp, "__file__", str(source))
    monkeypatch.setattr(fp, "_LOADED", time.time() + 1000)
    assert record.record_key() is None
    os.utime(source, (time.time() - 100,) * 2)
    old = record.record_key()
    os.utime(source, (time.time() - 101,) * 2)
    assert old is not None and record.record_key() not in (None, old)
    monkeypatch.setattr(fp, "_LOADED", time.time() - 1000)
    assert record.record_key() is None


@pytest.mark.parametrize("change", [b"flags\t\t: fpu avx2", b"model name\t: other"])
def test_another_cpu_has_another_record(monkeypatch, change):
    lines = record._cpu()
    monkeypatch.setattr(fp, "_LOADED", time.time() + 1000)
    monkeypatch.setattr(record, "_RACY_SECONDS", -1000)
    here = record.record_key()
    monkeypatch.setattr(record, "_cpu", lambda: [change if line.startswith(change[:5]) else line for line in lines])
    assert here is not None and record.record_key() != here


def test_without_knowledge_of_the_cpu_or_of_llvm_there_is_no_record(monkeypatch):
    monkeypatch.setattr(record, "_RACY_SECONDS", -1000)
    monkeypatch.setattr(fp, "_LOADED", time.time() + 1000)
    monkeypatch.setattr(record, "_cpu", lambda: None)
    assert record.record_key() is None
    monkeypatch.undo()
    monkeypatch.setattr(record, "_llvm_library", list)
    monkeypatch.setattr(record, "_sources", lambda: [("a", 1, 2)])
    assert record.record_key() is None


def test_a_record_that_is_none_is_refused(tmp_path):
    cache = Cache(tmp_path / "cache")
    cache.put("key", b"no json")
    with pytest.warns(match="not a record"):
        assert record.read(cache, "key") is None
    record.write(cache, "key", {"a": [1]})
    assert record.read(cache, "key") == {"a": [1]} and record.read(cache, "other") is None


def test_a_fact_is_found_out_once_and_an_assumption_does_not_replace_it():
    found = []
    known, assumed = (fact(lambda: found.append(1) or 7) for _ in range(2))
    assumed.assume(5)
    assert (known(), known(), assumed(), len(found)) == (7, 7, 5, 1)
    known.assume(9)
    assert known() == 7
