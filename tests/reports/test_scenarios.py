"""Faults that need more than one call: stale and damaged caches, changed globals, strange paths, forks, threads, hash seeds, deep programs."""

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from report_values import F32, F64, I32, f32, leaves

import mlc
import mlc.numpy as mnp
from mlc.cache.store import CacheWarning, default_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A persistent cache of this test's own."""
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MLC_CACHE", raising=False)
    return tmp_path / "cache"


def script(code: str, *arguments: object, timeout: float = 120, **environment: str) -> str:
    """What a new process prints."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], env={**kept, **environment}, capture_output=True,
                          timeout=timeout)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


def entries(folder) -> list:
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []


def model(x):
    h = mnp.tanh(x @ mnp.asarray(np.linspace(-1, 1, 48, dtype=F32).reshape(6, 8)) + 0.5)
    return mlc.nn.softmax(h, axis=-1), h.max(0), mnp.mean(x)


X = np.linspace(-2, 2, 30, dtype=F32).reshape(5, 6)


# ------------------------------------------------------------------------------------------------ the cache
def test_a_setting_that_changes_the_code_is_part_of_the_key(folder, monkeypatch):
    # pytorch/pytorch#184444, pytorch/pytorch#117888
    monkeypatch.delenv("MLC_TARGET", raising=False)
    settings = [{}, {"target": "generic"}, {"disable_passes": "fuse"}, {"disable_passes": "simplify"}, {"pass_limit": 1}]

    def code(**options):
        with mlc.options(**options):
            return mlc.jit(model).lower(X).compile().executable.program.object_code
    fresh = [code(**s, cache=False) for s in settings]
    for order in (settings, settings[::-1], settings):  # the first fills the cache, the others find it filled
        for s in order:
            assert code(**s) == fresh[settings.index(s)]
    assert len(entries(folder)) >= len(settings)


def test_the_number_of_threads_changes_no_bit(folder):
    # pytorch/pytorch#184444
    x = np.random.default_rng(0).normal(size=(700, 65)).astype(F32)
    answers = []
    for threads in (1, 2, 3, 2, 1):
        with mlc.options(threads=threads):
            answers.append([a.tobytes() for a in leaves(mlc.jit(lambda x: (mlc.nn.softmax(x), mnp.sum(x, axis=0), x @ x.T))(x))])
    assert all(a == answers[0] for a in answers)


def test_cold_and_cached_answers_have_the_same_bits(folder):
    cold = [a.tobytes() for a in mlc.jit(model)(X)]
    counters = default_cache().counters
    hits = counters.hits
    assert [a.tobytes() for a in mlc.jit(model)(X)] == cold and counters.hits == hits + 1
    with mlc.options(cache=False):
        assert [a.tobytes() for a in mlc.jit(model)(X)] == cold


OFFSET = 1.0


def test_changed_globals_closures_and_attributes_are_never_half_seen(folder, monkeypatch):
    # jax-ml/jax#13992, jax-ml/jax#28418: a compiled variant keeps what it was recorded with; a new one sees what is there now
    scale, weights = [2.0], np.ones(3, F32)

    class Model:
        shift = 10.0

    def f(x):
        return x * scale[0] * weights + Model.shift + OFFSET
    x = f32(1, 2, 3)
    old = mlc.jit(f)
    assert old(x).tolist() == [13, 15, 17]
    for change in (lambda: scale.__setitem__(0, 3.0), lambda: weights.__setitem__(1, 5.0), lambda: setattr(Model, "shift", 20.0),
                   lambda: monkeypatch.setitem(globals(), "OFFSET", 2.0)):
        change()
        for _ in range(3):
            assert old(x).tolist() == [13, 15, 17]
            np.testing.assert_array_equal(mlc.jit(f)(x), f(x))
    assert mlc.jit(f)(x).tolist() == [25, 52, 31]


def test_two_constants_of_one_shape_are_not_taken_for_each_other(folder):
    # jax-ml/jax#13992: weights are not in the text, so their values must be in the key or in the call
    x, weights = f32(1, 2, 3), [f32(1, 2, 3), f32(3, 2, 1), f32(1, 2, -3), f32(0, 0, 0), f32(-0.0, 0, 0)]
    for _ in range(2):
        for w in weights:
            found = mlc.jit(lambda x, w=w: x * w)(x)
            assert found.tobytes() == (x * w).tobytes()


def test_a_cache_that_cannot_be_used_costs_one_warning(tmp_path, monkeypatch):
    # HypothesisWorks/hypothesis#768, HypothesisWorks/hypothesis#3764, jax-ml/jax#12594
    (tmp_path / "file").write_text("in the way")
    monkeypatch.delenv("MLC_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert [mlc.jit(lambda x, k=k: x + k)(1.0).item() for k in range(3)] == [1, 2, 3]
    assert [str(tmp_path / "file") in str(w.message) and "MLC_CACHE_DIR" in str(w.message) for w in seen if w.category is CacheWarning] == [True]
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "file" / "mine"))
    with pytest.raises(mlc.errors.OptionError, match="MLC_CACHE_DIR"):
        mlc.jit(lambda x: x + 1)(1.0)


def test_damaged_and_half_written_entries_are_compiled_again(folder):
    # pytorch/pytorch#172144
    right = [a.tobytes() for a in mlc.jit(model)(X)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        for damage in (b"", b"MLCCACHE", bytes(5000)):
            for path in entries(folder):
                path.write_bytes(damage)
            (folder / ".tmp-1-0123456789abcdef").write_bytes(b"half")
            assert [a.tobytes() for a in mlc.jit(model)(X)] == right
        wholes = {path: path.read_bytes() for path in entries(folder)}
        for path, at in [(path, len(whole) * n // 12) for path, whole in wholes.items() for n in range(12)]:
            whole = wholes[path]
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1:])
            assert [a.tobytes() for a in mlc.jit(model)(X)] == right


def test_a_cache_wiped_while_functions_compile(folder):
    # sgl-project/sglang#34231
    stop = threading.Event()

    def wipe():
        while not stop.is_set():
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.0005)
    wiper = threading.Thread(target=wipe)
    wiper.start()
    try:
        for k in range(25):
            np.testing.assert_array_equal(mlc.jit(lambda x, k=k: x * (k % 5) + 1)(X), X * F32(k % 5) + F32(1))
    finally:
        stop.set()
        wiper.join()


SHARED = """
import numpy as np, pytest, mlc

@pytest.mark.parametrize("k", range(16))
def test_case(k):
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(mlc.jit(lambda x: x * (k % 4) + 1)(x), x * np.float32(k % 4) + np.float32(1))
"""


def test_workers_of_one_test_run_share_a_cache(tmp_path, folder):
    # lance-format/lance#9355, HypothesisWorks/hypothesis#1995, HypothesisWorks/hypothesis#372
    (tmp_path / "test_shared.py").write_text(SHARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.Popen([sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_shared.py"],
                            cwd=tmp_path, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    begun = time.monotonic()
    while done.poll() is None and time.monotonic() - begun < 120:
        for path in entries(folder):
            path.unlink(missing_ok=True)
        time.sleep(0.01)
    output = done.communicate(timeout=10)[0].decode()
    assert done.returncode == 0 and "16 passed" in output and "CacheWarning" not in output, output


# ------------------------------------------------------------------------------------------------ static arguments
def test_static_arguments_that_are_equal_but_not_the_same(folder):
    # jax-ml/jax#9273
    values = [1, True, 1.0, np.float32(1), np.int64(1), 0.0, -0.0, 0, False]

    def f(x, s):
        return x * s, mnp.copysign(mnp.asarray(1.0), mnp.asarray(float(s))), mnp.asarray(s)

    def answer(function, s):
        return [(a.dtype, a.tobytes()) for a in function(np.array([2, 3], I32), s)]
    with mlc.options(cache=False):
        right = {i: answer(mlc.jit(f, static_argnums=1), s) for i, s in enumerate(values)}
    assert right[0] != right[2] != right[3] and right[5] != right[6] and right[0] != right[1]
    assert [right[i][2][0] for i in range(5)] == [np.int64, np.bool_, F64, F32, np.int64]
    for order in (range(9), range(8, -1, -1), (3, 6, 0, 1, 5, 2, 8, 4, 7)):
        one = mlc.jit(f, static_argnums=1)
        for i in itertools.chain(order, order):
            assert answer(one, values[i]) == right[i], values[i]


# ------------------------------------------------------------------------------------------------ the environment
STRANGE = """
import os, sys
import numpy as np, mlc
sys.path.insert(0, os.fsdecode(os.environb[b"WHERE"]))
import programme
x = np.arange(6, dtype=np.float32)
exe = mlc.jit(programme.größe).lower(x).compile()
path = os.fsdecode(os.environb[b"WHERE"] + "/gespeichert é中.mlc".encode())
exe.save(path)
assert mlc.load(path)(x).tolist() == exe(x).tolist() == [1, 3, 5, 7, 9, 11]
try:
    mlc.jit(programme.falsch)(x)
except mlc.errors.MlcError as error:
    print(ascii(str(error)))
"""


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["utf8", "C"])
def test_paths_and_names_of_any_letters(tmp_path, locale):
    # Theano/Theano#5221, pytorch/pytorch#189342, pytorch/pytorch#110945, numba/numba#10094
    where = tmp_path / "a b" / "é中 {x} %s" / "ORG\\user"
    where.mkdir(parents=True)
    (where / "programme.py").write_text("def größe(ß):\n    return ß * 2 + 1\n\n\ndef falsch(ß):\n    return ß.reshape(4)\n", encoding="utf-8")
    (where / "run.py").write_text("# -*- coding: utf-8 -*-\n" + STRANGE, encoding="utf-8")
    environment = {**os.environ, **locale, "WHERE": str(where), "MLC_CACHE_DIR": str(where / "cache"), "MLC_DUMP": str(where / "dump")}
    for _ in range(2):  # the second finds the cache filled
        done = subprocess.run([sys.executable, str(where / "run.py")], env=environment, capture_output=True, timeout=120)
        assert done.returncode == 0 and not done.stderr, done.stderr.decode(errors="replace")
        assert b"programme.py" in done.stdout
    assert len(entries(where / "cache")) >= 1
    dumped = {path.name.partition(".")[2] for path in (where / "dump").iterdir()}
    assert dumped == {f"{stage}.mlc" for stage in ("graph", "passes", "optimized", "kernels", "loops", "memory", "llvm", "asm")}
    for path in (where / "dump").iterdir():
        path.read_text(encoding="utf-8")


TEXTS = """
import hashlib
import numpy as np, mlc, mlc.numpy as mnp
def f(params, x):
    h = x
    for name in params:
        h = h + 0 * params[name].sum()
    return {"out": mlc.nn.softmax(mnp.tanh(h @ params["w1"]) @ params["w2"]), "norm": mnp.sum(h * h), "c": mnp.asarray(np.arange(3.0)) * x[0, :3]}
spec = {"w2": mlc.spec("f32[8,3]"), "w1": mlc.spec("f32[6,8]")}
with mlc.options(target="golden-v3", cache=False):
    exe = mlc.jit(f).lower(spec, mlc.spec("f32[4,6]")).compile()
    for stage in ("optimized", "kernels", "loops", "memory", "llvm", "asm"):
        print(exe.as_text(stage))
    print(hashlib.sha256(exe.executable.program.object_code).hexdigest())
"""


def test_every_text_and_the_object_code_are_the_same_in_every_process():
    # syrupy-project/syrupy#1159
    texts = {script(TEXTS, PYTHONHASHSEED=seed) for seed in ("0", "1", "77")}
    assert len(texts) == 1
    text = texts.pop()
    assert os.getcwd() not in text and sys.executable not in text


# ------------------------------------------------------------------------------------------------ threads, forks, processes
FORK = """
import os, signal, sys, warnings
import numpy as np, mlc, mlc.numpy as mnp
warnings.simplefilter("ignore")
x = np.random.default_rng(0).normal(size=(600, 65)).astype(np.float32)
f = mlc.jit(lambda x: mlc.nn.softmax(x * 2))
with mlc.options(threads=2):
    want = f(x)
    if sys.argv[1] == "jax":
        import jax
        jax.jit(lambda x: x @ x.T)(x).block_until_ready()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        same = f(x).tobytes() == want.tobytes()
        again = mlc.jit(lambda x: mlc.nn.softmax(x * 2) + 0)(x).tobytes() == (want + np.float32(0)).tobytes()
        os._exit(7 if same and again else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, f(x).tobytes() == want.tobytes())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("other", ["alone", "jax"])
def test_a_child_forked_after_parallel_work_computes(other):
    # numba/numba#7872
    assert script(FORK, other).split() == ["7", "True"]


LEAK = """
import threading
import numpy as np, mlc
x = np.array([1e-40, -3e-42, 1e-38] * 2000, np.float32).reshape(600, 10)
answers = []
def go():
    for threads in (1, 2):
        with mlc.options(threads=threads):
            answers.append(mlc.jit(lambda x: x * 1.0 + np.float32(1e-45))(x).tobytes())
def everywhere():
    go()
    t = threading.Thread(target=go); t.start(); t.join()
everywhere()
import jax
everywhere()
jax.jit(lambda x: (x * 2).sum())(x).block_until_ready()
everywhere()
print(len(answers), len(set(answers)), answers[0] == (x + np.float32(1e-45)).tobytes())
"""


def test_subnormals_are_the_same_before_and_after_jax_and_in_every_thread():
    # HypothesisWorks/hypothesis#3156, clearlinux/distribution#2809
    assert script(LEAK).split() == ["12", "1", "True"]


def test_a_thread_that_flushes_subnormals_neither_compiles_nor_computes_otherwise(flushing):
    # HypothesisWorks/hypothesis#3156, clearlinux/distribution#2809: constants are folded under the caller's settings, too
    tiny = f32(1e-40, -3e-42, 1.1e-38)

    def f(x):
        c = mnp.asarray(tiny)
        product = mnp.asarray(1e-20, dtype=mnp.float32) * 1e-22
        return x * 1, x + 1e-45, x > 0, c * 2 + c, mnp.sum(c), c.astype(mnp.float64), product, mnp.exp(c[:1] - 100)
    with mlc.options(cache=False):
        right = [a.tobytes() for a in mlc.jit(f)(tiny)]
        with flushing():
            found = mlc.jit(f)(tiny)
            still = tiny[0] * F32(1)
    assert still == 0, "the caller's settings were not put back"
    assert [a.tobytes() for a in found] == right


def test_many_threads_compile_and_share_one_cache(folder):
    # lance-format/lance#9355
    def work(k):
        return mlc.jit(lambda x: x * (k % 3) - mnp.max(x))(X).tobytes()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(24)))
    assert found == [(X * F32(k % 3) - X.max()).tobytes() for k in range(24)]


SMALL_STACK = """
import sys, threading
import numpy as np, mlc
sys.setrecursionlimit(200)
out = []
threading.stack_size(512 * 1024)
t = threading.Thread(target=lambda: out.append(mlc.load(sys.argv[1])(np.array([3, 1, 4, 1, 5, 9], np.int32))))
t.start(); t.join()
print(out[0].tolist())
"""


def test_a_program_of_many_kernels_loads_and_runs_on_a_small_stack(tmp_path):
    # uwplasma/vmex#142
    def chain(x):
        for k in range(300):
            x = x - mnp.max(x, axis=0) + np.int32(k)
        return x
    exe = mlc.jit(chain).lower(np.array([3, 1, 4, 1, 5, 9], I32)).compile()
    exe.save(tmp_path / "deep.mlc")
    want = exe(np.array([3, 1, 4, 1, 5, 9], I32)).tolist()
    assert want == [293, 291, 294, 291, 295, 299]
    assert script(SMALL_STACK, tmp_path / "deep.mlc").strip() == str(want)
