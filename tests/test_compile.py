"""The compile driver: cache hits skip the compiler, texts come on demand, dumps, saved executables, blame's levels."""

import os
import pickle
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest

import mlc
from mlc.compile import STAGES, compile_graph, trace_levels
from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.errors import ArtifactError, OptionError, ShapeError, UnsupportedError
from mlc.graph import Graph
from mlc.stages import Stages


def small_graph(weights=None):
    """tanh(x @ w) + 1, with w a parameter or, if given, a constant."""
    g = Graph("small")
    x = g.parameter("x", TensorType((4, 8), dt.f32))
    w = g.parameter("w", TensorType((8, 8), dt.f32)) if weights is None else g.constant(weights)
    y = g.add("dot_general", (x, w), {"contract": ((1,), (0,)), "batch": ((), ())}, TensorType((4, 8), dt.f32))
    y = g.add("tanh", (y,))
    return g.set_outputs([g.add("add", (y, g.constant(1.0, TensorType((4, 8), dt.f32))))])


X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
W = np.linspace(1, -1, 64, dtype=np.float32).reshape(8, 8)
EXPECTED = np.tanh(X.astype(np.float64) @ W.astype(np.float64)) + 1


def test_a_hit_skips_optimising_and_code_generation(tmp_path, monkeypatch):
    with mlc.options(cache_dir=str(tmp_path / "cache")):
        (cold,) = compile_graph(small_graph()).run([X, W])
        monkeypatch.setattr(Stages, "build", lambda self: pytest.fail("code was generated"))
        monkeypatch.setattr("mlc.stages.run_pipeline", lambda graph: pytest.fail("passes ran"))
        warm = compile_graph(small_graph())
        assert warm.run([X, W])[0].tobytes() == cold.tobytes()
        monkeypatch.undo()
        assert "tanh" in warm.as_text("optimized") and [r.name for r in warm.pass_log][-1] == "plan"
    np.testing.assert_allclose(cold, EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("level", [1, 2])
def test_checks_run_whatever_the_cache_holds_and_leave_it_alone(tmp_path, monkeypatch, level):
    import mlc.kernel.verify
    ran = []
    right = mlc.kernel.verify.verify_program
    monkeypatch.setattr(mlc.kernel.verify, "verify_program", lambda *a, **k: (ran.append(a), right(*a, **k)))
    with mlc.options(cache_dir=str(tmp_path / "cache")):
        compile_graph(small_graph())
        entries = sorted(os.listdir(tmp_path / "cache"))
        assert entries and not ran
        for again in (1, 2):
            with mlc.options(check=level):
                compile_graph(small_graph())
            assert len(ran) == 2 * again  # after fusion, and after packing
        assert sorted(os.listdir(tmp_path / "cache")) == entries


def test_a_second_process_hits(tmp_path):
    script = """
import sys
import numpy as np
import mlc
from mlc.stages import Stages
if sys.argv[1] == "warm":
    Stages.build = lambda self: sys.exit("code was generated")
    import mlc.codegen.target as target
    target.compile_object = lambda *a: sys.exit("LLVM ran")
x = np.linspace(-2, 2, 40, dtype=np.float32).reshape(5, 8)
sys.stdout.write(mlc.jit(lambda a: mlc.nn.softmax(a) * 3)(x).tobytes().hex())
"""
    env = os.environ | {"MLC_CACHE_DIR": str(tmp_path / "cache")}
    cold, warm = (subprocess.run([sys.executable, "-c", script, kind], env=env, capture_output=True, text=True, timeout=120)
                  for kind in ("cold", "warm"))
    assert cold.returncode == 0 and (warm.returncode, warm.stdout) == (0, cold.stdout), warm.stderr


def test_weights_that_are_constants_are_part_of_the_program_but_not_of_its_entry(tmp_path):
    big = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    folder = tmp_path / "cache"
    with mlc.options(cache_dir=str(folder)):
        for _ in range(2):
            (result,) = compile_graph(small_graph(big)).run([X])
            np.testing.assert_allclose(result, np.tanh(X.astype(np.float64) @ big.astype(np.float64)) + 1, rtol=1e-5)
        (other,) = compile_graph(small_graph(W)).run([X])
    np.testing.assert_allclose(other, EXPECTED, rtol=1e-6)
    assert not any(big.tobytes() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_every_stage_has_a_text_and_unknown_ones_are_refused():
    with mlc.options(cache=False):
        executable = compile_graph(small_graph())
    for stage in STAGES:
        assert executable.as_text(stage).strip()
    with pytest.raises(OptionError, match="unknown stage 'hlo'; known: graph, passes, optimized"):
        executable.as_text("hlo")


@pytest.mark.parametrize("options", [{"disable_passes": "fuse"}, {"limit": 0}, {"fork_us": 0}, {"target": "generic"}], ids=str)
def test_after_a_hit_texts_and_analyses_are_those_of_the_options_it_was_compiled_under(tmp_path, options):
    with mlc.options(cache_dir=str(tmp_path / "cache"), **options):
        lowered = mlc.jit(lambda x, w: mlc.numpy.tanh(x @ w) * 1.0).lower(mlc.spec("f32[64,8]"), mlc.spec("f32[8,8]"))
        cold, warm = lowered.compile(), lowered.compile()
    assert warm.executable._pass_log is None, "it was no hit"
    for stage in set(STAGES) - {"passes"}:  # which tells milliseconds
        assert warm.as_text(stage) == cold.as_text(stage)
    assert warm.memory_analysis() == cold.memory_analysis() and warm.cost_analysis() == cold.cost_analysis()
    assert [(r.name, r.stats) for r in warm.pass_log] == [(r.name, r.stats) for r in cold.pass_log]
    warm.save(tmp_path / "saved")
    loaded = mlc.load(tmp_path / "saved")
    assert loaded.as_text("kernels") == cold.as_text("kernels") and loaded.memory_analysis() == cold.memory_analysis()


def test_code_of_the_interpreter_backend_is_that_of_the_options_it_was_compiled_under():
    lowered = mlc.jit(lambda x: mlc.numpy.sum(mlc.numpy.exp(x @ x))).lower(mlc.spec("f32[64,64]"))
    with mlc.options(backend="interpreter", check=1):
        asked_later, asked_here = lowered.compile(), lowered.compile()
        text = asked_here.as_text("llvm")
    plain = lowered.compile().as_text("llvm")
    assert asked_later.as_text("llvm") == text != plain, "checked code overwrites memory that nobody reads any more"


def test_the_dump_folder_receives_every_stage(tmp_path):
    with mlc.options(cache=False, dump=str(tmp_path / "dump")):
        executable = compile_graph(small_graph())
    for stage in STAGES:
        (file,) = (tmp_path / "dump").glob(f"small-*.{stage}.mlc")
        assert file.read_text(encoding="utf-8") == executable.as_text(stage)
    (tmp_path / "file").touch()
    with mlc.options(cache=False, dump=str(tmp_path / "file")), pytest.raises(OptionError, match="MLC_DUMP"):
        compile_graph(small_graph())


def test_analyses_count_flops_and_bytes():
    with mlc.options(cache=False):
        executable = compile_graph(small_graph())
    cost, memory = executable.cost_analysis(), executable.memory_analysis()
    assert cost["flops"] >= 2 * 4 * 8 * 8 and cost["bytes accessed"] == 4 * (32 + 64 + 32)
    assert [k["kernel"] for k in cost["kernels"]] == ["dot_general_add#0"]
    assert (memory["inputs"], memory["outputs"], memory["constants"], memory["arena"]) == (4 * 96, 4 * 32, 0, 0)


def test_saved_executables_keep_texts_and_analyses(tmp_path):
    exe = mlc.jit(lambda x, w: mlc.numpy.tanh(x @ w) + 1).lower(X, W).compile()
    path = tmp_path / "model.mlc"
    exe.save(path)
    loaded = mlc.load(path)
    assert loaded(X, W).tobytes() == exe(X, W).tobytes()
    assert loaded.as_text("kernels") == exe.as_text("kernels") and loaded.cost_analysis() == exe.cost_analysis()
    loaded.save(tmp_path / "again.mlc")
    assert mlc.load(tmp_path / "again.mlc")(X, W).tobytes() == exe(X, W).tobytes()
    with pytest.raises(UnsupportedError, match="as_text"):
        _ = loaded.graph
    for copy in (pickle.dumps, deepcopy):
        with pytest.raises(UnsupportedError, match="save"):
            copy(exe)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ArtifactError, match="damaged"):
        mlc.load(path)


def test_levels_for_blame_come_in_order_and_agree():
    levels = list(trace_levels(small_graph(), [X, W]))
    names = [name for name, _ in levels]
    assert names[0] == "graph" and names[-4:] == ["kernels", "loops", "memory", "machine code"]
    for _, (value,) in levels:
        np.testing.assert_allclose(value, EXPECTED, rtol=1e-6)


def test_check_0_calls_no_verifier(monkeypatch):
    import mlc.kernel.verify
    import mlc.loop.verify
    import mlc.memory.verify
    for module, name in ((mlc.kernel.verify, "verify_program"), (mlc.kernel.verify, "verify_kernel"), (mlc.loop.verify, "verify"),
                         (mlc.memory.verify, "verify_plan"), (mlc.graph, "verify")):
        monkeypatch.setattr(module, name, lambda *a, **k: pytest.fail("a verifier ran"))
    monkeypatch.setattr("mlc.compile.verify", lambda *a: pytest.fail("the graph verifier ran"))
    monkeypatch.setattr("mlc.plan.verify_plan", lambda *a: pytest.fail("the plan verifier ran"))
    with mlc.options(check=0, cache=False):
        compile_graph(small_graph())


@pytest.mark.parametrize(("function", "message"), [
    (lambda x: mlc.numpy.broadcast_to(x, (2**31,) * 3).sum(), "fewer than"),
    (lambda x: mlc.numpy.zeros(2**62) + x, "fewer than"),
    (lambda x: mlc.numpy.zeros((0, 2**40, 2**40)) + x, "fewer than"),
    (lambda x: mlc.numpy.ones((1,) * 70) + x, "at most 64")], ids=["broadcast", "long", "empty", "rank 70"])
def test_arrays_that_cannot_exist_are_refused_where_they_are_made(function, message):
    with pytest.raises(ShapeError, match=message):
        mlc.jit(function)(1.0)


def test_types_that_cannot_exist_are_refused_in_specs():
    with pytest.raises(ShapeError, match="bytes"):
        mlc.jit(lambda x: x + 1).lower(mlc.spec("f64[4000000000,4000000000]"))


def test_every_option_is_checked_when_compiling(monkeypatch):
    monkeypatch.setenv("MLC_THREADS", "0")
    with pytest.raises(OptionError, match="MLC_THREADS"):
        compile_graph(small_graph())


def test_a_child_forked_while_a_thread_compiles_can_compile():
    script = """
import os, threading, time
import numpy as np, mlc
def slow(x):
    for i in range(1500):
        x = x * 1.5 + i
    return x
f = mlc.jit(slow)
f(np.ones(2, np.float32))
for delay in (0.05, 0.15):
    thread = threading.Thread(target=f, args=(np.ones(int(delay * 100), np.float32),))
    thread.start()
    time.sleep(delay)
    child = os.fork()
    if child == 0:
        f(np.ones(4, np.float32))
        assert mlc.jit(lambda x: x + 1)(np.ones(3, np.float32)).sum() == 6
        assert float(mlc.numpy.sum(mlc.asarray(np.ones(3)))) == 3
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=os.environ | {"MLC_CACHE": "0"},
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_repeated_layers_compile_their_kernels_once():
    def layer(x, w):
        return x + mlc.nn.gelu(mlc.nn.softmax(x @ w, axis=-1))

    def stages(depth):
        def model(x, ws):
            for w in ws:
                x = layer(x, w)
            return x
        return mlc.jit(model).lower(mlc.spec("f32[16,24]"), [mlc.spec("f32[24,24]")] * depth).compile().executable.stages
    few, many = stages(4), stages(12)
    assert len(many.loops) == len(few.loops) and len(many.kernels.steps) > 2 * len(few.kernels.steps)
    assert many.llvm[:many.llvm.index("; k0(")] == few.llvm[:few.llvm.index("; k0(")]
