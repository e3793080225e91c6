"""The campaign from outside: `pytest --mlc-fuzz` in a project of its own, with mlc broken in several ways.

A fault is planted by a `sitecustomize` module that only the worker's process acts on.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from pytest_mlc.fuzz import Campaign
from pytest_mlc.settings import Settings

pytest_plugins = ["pytester"]

PLANT = '''
import sys
role = sys.orig_argv[-1] if "pytest_mlc.worker" in sys.orig_argv else ""
if role == {role!r}:
{code}
'''
BROKEN_TANH = '''
    import mlc.ops
    tanh = mlc.ops.REGISTRY["tanh"]
    right = tanh.scalar
    object.__setattr__(tanh, "scalar", lambda x: right(x) * 1.01)
'''
BROKEN_RULE = '''
    from mlc.passes import rules_algebra as r
    from mlc.passes.pattern import BITWISE
    r.rewrite("tanh-forgets-the-sign", exact=BITWISE, match=r.term("tanh")(r.neg(r.x)), to=r.term("tanh")(r.x), why="wrong on purpose")
'''
ON_OP = '''
    import mlc.compile, ctypes, os, time
    right = mlc.compile.compile_graph
    def broken(graph):
        if any(n.op.name == {op!r} for n in graph.nodes):
            {what}
        return right(graph)
    mlc.compile.compile_graph = broken
'''
BROKEN_CACHE = '''
    import mlc.compile as c
    right = c._from_cache
    def wrong(*a):
        found = right(*a)
        if found is not None:
            run = found.run
            found.run = lambda inputs: [(o ^ 1).astype(o.dtype) for o in run(inputs)]
        return found
    c._from_cache = wrong
'''
ON_JAX_OP = '''
    import mlc.ops, ctypes
    object.__setattr__(mlc.ops.REGISTRY["rev"], "jax", lambda jnp, lax, x, *, axes: ctypes.string_at(0))
'''


@pytest.fixture
def project(pytester, monkeypatch, kept_jax_programs):
    """A project with one ordinary test, and ways to plant a fault and to run pytest in it."""
    pytester.makepyfile(test_ordinary="def test_ordinary():\n    pass\n")
    pytester.makeini("[pytest]\nstrict = true\n")
    # A cache of compiled code would serve what was compiled before the fault was planted.
    monkeypatch.setenv("MLC_CACHE", "0")

    def plant(code, role="mlc"):
        folder = pytester.path / "site"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(PLANT.format(role=role, code=code))
        monkeypatch.setenv("PYTHONPATH", str(folder))

    def run(*args, status=0, plugins=("-p", "no:xdist")):
        result = pytester.runpytest_subprocess("--mlc-fuzz", *plugins, "--mlc-fuzz-seed", "5", *args, timeout=280)
        assert result.ret == status, result.stdout.str() + result.stderr.str()
        return result.stdout.str()
    run.plant, run.path = plant, pytester.path
    return run


def summary(project, name="report"):
    return json.loads((project.path / name / "summary.json").read_text())


def test_tests_of_configured_paths_are_deselected_without_being_imported(project):
    (project.path / "suite").mkdir()
    (project.path / "suite" / "test_other.py").write_text(
        "open('imported', 'w')\n\ndef test_one(): pass\n\nclass TestMore:\n    def test_two(self): pass\n\ndef helper(): pass\n")
    (project.path / "tox.ini").write_text("[pytest]\ntestpaths = suite\n")
    text = project("--mlc-fuzz-budget", "2")
    assert "collected 2 items / 2 deselected" in text and not (project.path / "imported").exists()
    assert "2 deselected" in project("--mlc-fuzz-budget", "2", "suite") and (project.path / "imported").exists()


def test_a_campaign_of_this_repository_keeps_what_jax_compiled(tmp_path):
    """The tests' own cache, gone when they end, is not for campaigns: they would compile all of it each time."""
    environment = {**{k: v for k, v in os.environ.items() if k not in ("MLC_CACHE_DIR", "PYTEST_XDIST_WORKER")}, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--mlc-fuzz", "--mlc-fuzz-budget", "4", "--mlc-fuzz-ops", "add,exp"]
    root = os.path.join(os.path.dirname(__file__), "..", "..")
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    assert list(tmp_path.glob("mlc/fuzz-reference-*/*-cache"))


def test_a_campaign_reports_what_it_did_and_deselects_other_tests(project):
    text = project("--mlc-fuzz-budget", "25", "--mlc-fuzz-report", "report", "-W", "error")
    assert "1 deselected" in text and "seed 5" in text and "25 cases" in text
    found = summary(project)
    assert found["cases"] == found["generated"] == 25 and found["seed"] == 5 and found["failures"] == 0 and found["valid_fraction"] == 1.0
    assert {"seconds", "cases_per_second", "vacuous", "findings_about_reference", "ops", "passes_fired"} <= found.keys()
    assert found["first_failure"] is None and found["options"]["disable_passes=fuse"] == 4 and found["options"]["check=2"] == 2
    assert found["options"]["variant cached"] >= 1
    assert found["options"]["bf16_pairs=on"] == 9 and found["options"]["fork_us=0"] == 5 and found["options"]["stream_kb=0"] == 2
    assert "ways of computing: " in text and f"tail {found['paths']['tail']}" in text
    assert len(found["ops"]) > 20 and sum(found["ops"].values()) > 100 and found["vacuous"] <= 2 and found["passes_fired"]


def test_a_broken_op_is_named_reduced_stored_and_replayed(project):
    project.plant(BROKEN_TANH)
    only = ("--mlc-fuzz-ops", "tanh,transpose,add", "--mlc-fuzz-dtypes", "f32")
    text = project("--mlc-fuzz-budget", "6", *only, "--mlc-fuzz-report", "report", status=1)
    assert re.search(r"mlc-fuzz: WRONG  max error \S+ against a bound of \S+  \(mlc \S+, jax \S+, float64 \S+ at out\[.*\]\)", text)
    assert "guilty: kernels" in text and "smallest: 1 node, f32[" in text and "= tanh %x0 : f32[" in text
    # Folding uses the same code, so constants may show the fault as well.
    signature = next(f["signature"] for f in summary(project)["failing"] if "guilty: kernels" in f["text"])
    assert f"run again:  pytest --mlc-fuzz --mlc-fuzz-replay tests/mlc_corpus/{signature}.mlc" in text
    assert {p.name for p in (project.path / "report" / signature).iterdir()} == {"failure.txt", f"{signature}.mlc", f"repro_{signature}.py"}
    script = project.path / "report" / signature / f"repro_{signature}.py"
    stored = f"tests/mlc_corpus/{signature}.mlc"

    again = project("--mlc-fuzz-replay", stored, status=1)
    assert "guilty: kernels" in again and f"replay {stored}" in again.replace("--mlc-fuzz-replay", "replay")
    # A campaign runs the stored case first.
    stored_first = project("--mlc-fuzz-budget", "1", "--mlc-fuzz-ops", "neg", status=1)
    assert "mlc-fuzz stored" in stored_first and stored in stored_first

    project.plant("    pass")
    assert "1 passed" in project("--mlc-fuzz-replay", stored)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("right\n"), done.stdout + done.stderr


def test_the_script_fails_while_the_fault_is_there(project):
    project.plant(BROKEN_TANH)
    project("--mlc-fuzz-budget", "2", "--mlc-fuzz-ops", "tanh", "--mlc-fuzz-dtypes", "f32", "--mlc-fuzz-report", "report", status=1)
    script = next((project.path / "report").glob("*/repro_*.py"))
    text = script.read_text()
    assert "pytest" not in text.split('"""')[2]
    planted = text.replace("jax.config.update(", "import mlc.ops\ntanh = mlc.ops.REGISTRY['tanh']\nold = tanh.scalar\n"
                           "object.__setattr__(tanh, 'scalar', lambda x: old(x) * 1.01)\njax.config.update(", 1)
    script.write_text(planted)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout.endswith("FAILS\n"), done.stdout + done.stderr


def test_a_broken_rewrite_is_named(project):
    project.plant(BROKEN_RULE)
    text = project("--mlc-fuzz-budget", "25", "--mlc-fuzz-ops", "tanh,neg", "--mlc-fuzz-dtypes", "f32", status=1)
    assert re.search(r"guilty: pass simplify, rewrite \d+ of \d+ \(tanh-forgets-the-sign\)", text) and "smallest: 2 nodes" in text


def test_a_broken_cache_is_blamed_and_its_case_replayed(project, monkeypatch):
    monkeypatch.delenv("MLC_CACHE")
    project.plant(BROKEN_CACHE)
    text = project("--mlc-fuzz-budget", "60", "--mlc-fuzz-ops", "neg", "--mlc-fuzz-dtypes", "i32", "-x", "--mlc-fuzz-report", "report", status=1)
    assert "guilty: cache" in text
    found = summary(project)
    assert any(name.startswith("variant ") for name in found["options"])
    assert found["first_failure"]["case"] > 0 and found["first_failure"]["seconds"] > 0
    assert "guilty: cache" in project("--mlc-fuzz-replay", found["failing"][0]["stored"], status=1)


def test_a_patched_mlc_is_fuzzed_in_its_own_process(project, monkeypatch):
    (project.path / "trial.py").write_text("def loose_tanh():" + BROKEN_TANH)
    monkeypatch.setenv("PYTHONPATH", str(project.path))
    monkeypatch.setenv("MLC_FUZZ_PRELOAD", "trial:loose_tanh")
    text = project("--mlc-fuzz-budget", "40", "--mlc-fuzz-ops", "tanh", "--mlc-fuzz-dtypes", "f32", "-x", "--mlc-fuzz-report", "report", status=1)
    assert "guilty: kernels" in text and "1 distinct failures (1 cases)" in text
    monkeypatch.delenv("MLC_FUZZ_PRELOAD")
    project("--mlc-fuzz-replay", summary(project)["failing"][0]["stored"])


@pytest.mark.parametrize("what, says", [
    pytest.param("ctypes.string_at(0)", r"CRASH  signal 11 \(SIGSEGV\)", id="crash"),
    pytest.param("raise ArithmeticError('no luck')", "ERROR  ArithmeticError: no luck", id="error", marks=pytest.mark.nightly),
])
def test_a_fault_of_the_compiler_costs_one_case_each_and_is_reported_once(project, what, says):
    project.plant(ON_OP.format(op="rev", what=what))
    text = project("--mlc-fuzz-budget", "6", "--mlc-fuzz-ops", "rev,neg", "--mlc-fuzz-dtypes", "f32", "--mlc-fuzz-report", "report", status=1)
    assert re.search(f"mlc-fuzz: {says}", text) and "smallest: 1 node" in text
    found = summary(project)
    assert found["cases"] == 6 and found["failures"] == 1


def test_a_hanging_compiler_is_ended_by_the_watchdog(project, monkeypatch):
    monkeypatch.setenv("MLC_FUZZ_TIMEOUT", "1")
    project.plant(ON_OP.format(op="rev", what="time.sleep(600)"))
    text = project("--mlc-fuzz-budget", "1", "--mlc-fuzz-ops", "rev", "--mlc-fuzz-dtypes", "f32", status=1)
    assert "mlc-fuzz: HANG" in text


def test_a_crash_of_the_reference_is_a_finding_and_the_campaign_goes_on(project):
    project.plant(ON_JAX_OP, role="jax")
    project("--mlc-fuzz-budget", "14", "--mlc-fuzz-ops", "rev,neg", "--mlc-fuzz-dtypes", "f32,i8", "--mlc-fuzz-report", "report")
    found = summary(project)
    assert found["cases"] == 14 and found["failures"] == 0
    assert [f["headline"] for f in found["findings"]] == ["oracle crashed (signal 11 (SIGSEGV))"]


def test_a_damaged_stored_case_fails_the_run_and_the_others_still_run(project, pytester):
    folder = project.path / "kept"
    folder.mkdir()
    (folder / "cut.mlc").write_text("; mlc-case 1\n; kind: wrong\n")
    text = project("--mlc-fuzz-budget", "1", "--mlc-fuzz-ops", "neg", "--mlc-fuzz-corpus", "kept", "--mlc-fuzz-report", "report", status=1)
    assert "mlc-fuzz: UNUSABLE  stored case cut.mlc" in text and "restore it from version control, or delete it" in text
    assert "skipped stored case: cut.mlc" in text and summary(project)["stored_cases_skipped"]
    assert summary(project)["failures"] == 1 and summary(project)["cases"] == 1  # the fresh graph was compared
    refused = pytester.runpytest_subprocess("--mlc-fuzz-replay", "kept/cut.mlc", timeout=60)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR and "cut off" in refused.stderr.str()


def test_workers_share_the_budget_and_explore_different_graphs(project):
    text = project("--mlc-fuzz-budget", "21", "--mlc-fuzz-report", "report", "-n", "2", "-W", "error", plugins=())
    found = summary(project)
    assert found["generated"] == 21 and "21 cases" in text and found["seed"] == 5


def test_broken_test_files_do_not_stop_a_campaign(project):
    (project.path / "test_broken.py").write_text("import no_such_module\n")
    text = project("--mlc-fuzz-budget", "1", "--mlc-fuzz-ops", "neg", status=1)
    assert "1 cases" in text and "no_such_module" in text


# --------------------------------------------------------------------------- refusals, and doing nothing
@pytest.mark.parametrize("args, says", [
    (("--mlc-fuzz-budget", "soon"), "give a time like 60s"), (("--mlc-fuzz-budget", "0"), "give a time like 60s"),
    (("--mlc-fuzz-shard", "3/2"), "1 <= i <= n"), (("--mlc-fuzz-ops", "neg,nonsense"), "unknown op"),
    (("--mlc-fuzz-dtypes", "f99"), "f99"), (("--mlc-fuzz-replay", "gone.mlc"), "no such file"),
    (("--mlc-fuzz-replay", "test_ordinary.py"), "not a case of format"), (("--mlc-fuzz-corpus", "test_ordinary.py"), "is not a folder"),
    (("--mlc-fuzz-report", "test_ordinary.py/below"), "is not a folder"),
    (("--mlc-fuzz-ops", "exp", "--mlc-fuzz-dtypes", "i32"), "exp take bf16, f16, f32, f64, not i32"),
    (("--mlc-fuzz-ops", "call,tuple_get"), "nothing can be computed by these alone"), (("--mlc-fuzz-dtypes", ","), "give dtypes with commas"),
    (("--mlc-fuzz-replay", ""), "give the file of a stored case"), (("--mlc-fuzz-replay", "."), "not a file"),
], ids=["budget", "zero", "shard", "op", "dtype", "replay", "no-case", "corpus", "report", "nothing-to-draw", "nothing-alone", "no-dtype", "no-file",
        "folder"])
def test_bad_values_are_usage_errors(project, pytester, args, says):
    result = pytester.runpytest_subprocess("--mlc-fuzz", *args, timeout=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and says in result.stderr.str()


def test_a_time_limit_that_is_none_is_a_usage_error(project, pytester, monkeypatch):
    monkeypatch.setenv("MLC_FUZZ_TIMEOUT", "soon")
    result = pytester.runpytest_subprocess("--mlc-fuzz", timeout=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "MLC_FUZZ_TIMEOUT='soon' is no number of seconds" in result.stderr.str()


def test_what_cannot_be_preloaded_ends_the_campaign_and_is_no_fault_of_mlc(project, monkeypatch):
    monkeypatch.setenv("MLC_FUZZ_PRELOAD", "no_such_module:f")
    text = project("--mlc-fuzz-budget", "4", status=1)
    assert "mlc cannot start: ModuleNotFoundError: No module named 'no_such_module'" in text and "0 distinct failures" in text
    assert not list(project.path.glob("tests/mlc_corpus/*"))


def test_what_is_stored_stays_as_it_is_when_nothing_can_start(project, monkeypatch):
    project.plant(BROKEN_TANH)
    project("--mlc-fuzz-budget", "40", "--mlc-fuzz-ops", "tanh", "--mlc-fuzz-dtypes", "f32", "-x", status=1)
    before = {path: path.read_bytes() for path in project.path.glob("tests/mlc_corpus/*")}
    monkeypatch.setenv("MLC_FUZZ_PRELOAD", "no_such_module:f")
    text = project("--mlc-fuzz-budget", "1", status=1)
    assert "mlc cannot start: ModuleNotFoundError" in text and "0 distinct failures" in text
    assert len(before) == 2 and {path: path.read_bytes() for path in before} == before


def test_a_compiler_that_is_killed_as_it_starts_is_started_again(tmp_path, monkeypatch):
    campaign = Campaign(Settings(seconds=None, graphs=2, corpus=tmp_path))
    (compiler, *_), launch = campaign.compilers, campaign.compilers[0].launch

    def killed():
        launch()
        if compiler.child.starts == 1:
            compiler.child.process.kill()
    monkeypatch.setattr(compiler, "launch", killed)
    try:
        assert campaign.run_fresh() == [] and campaign.tally.cases == 2 and compiler.child.starts == 2
    finally:
        campaign.close()


def _without_jax(pytester, *args):
    """Pytest where `jax` cannot be found."""
    (pytester.path / "hide.py").write_text(
        "import importlib.util as u, sys\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'jax' else find(name, *more)\nsys.modules['jax'] = None\n")
    return pytester.runpytest_subprocess("-p", "hide", *args, timeout=60)


def test_without_jax_fuzzing_is_refused_and_nothing_else_harmed(project, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    refused = _without_jax(pytester, "--mlc-fuzz")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR and "JAX is not installed" in refused.stderr.str()
    _without_jax(pytester).assert_outcomes(passed=1)


def test_with_no_option_used_nothing_heavy_is_imported(pytester):
    pytester.makepyfile("""
        import sys
        def test_modules():
            heavy = {"jax", "numpy", "hypothesis", "llvmlite", "mlc", "mlc_strategies", "pytest_mlc.oracle", "pytest_mlc.fuzz"}
            assert not heavy & set(sys.modules)
    """)
    pytester.runpytest_subprocess("-W", "error", "-p", "no:hypothesispytest", timeout=60).assert_outcomes(passed=1)


def test_two_owners_of_the_package_are_refused(pytester, monkeypatch):
    info = pytester.path / "site" / "mlc_python-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mlc-python\nVersion: 0.1\n")
    (info / "top_level.txt").write_text("mlc\n")
    monkeypatch.setenv("PYTHONPATH", str(info.parent))
    result = pytester.runpytest_subprocess(timeout=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "mlc-compiler and mlc-python" in result.stderr.str()


def test_owners_are_found_by_their_file_lists_too(tmp_path):
    from pytest_mlc.owners import owners_of
    (tmp_path / "mlc").mkdir()
    for name, files in (("mlc_python-0.1", "mlc/__init__.py,sha256=x,1\n"), ("other-1", "mlcx/__init__.py,,\nother.py,,\n")):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info" / "RECORD").write_text(files)
    assert owners_of("mlc", [str(tmp_path)]) == ["mlc-python"]


@pytest.mark.parametrize("cores, workers, compilers", [(1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 2, 2), (2, 2, 1), (64, 1, 2)])
def test_two_children_compile_where_there_are_cores_for_them(monkeypatch, cores, workers, compilers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert Settings(stream=(0, workers)).compilers == compilers


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A campaign of eight cases that has ended, and how many of them each child was asked to run: two compilers and JAX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
        campaign = Campaign(Settings(seconds=None, graphs=8, corpus=tmp_path_factory.mktemp("corpus")))
        served = [0, 0, 0]
        for k, service in enumerate([*campaign.compilers, campaign.reference]):
            def send(request, k=k, right=service.send):
                served[k] += request["do"] == "run"
                right(request)
            patch.setattr(service, "send", send)
        try:
            assert campaign.run_fresh() == [] and campaign.tally.cases == 8
        finally:
            campaign.close()
    return campaign, served


def test_children_that_compile_take_turns_and_share_a_cache(ended):
    campaign, served = ended
    assert served[:2] == [4, 4] and len({compiler.folder for compiler in campaign.compilers}) == 1
    assert not os.path.exists(campaign.compilers[0].folder)


def test_jax_is_asked_only_for_what_is_compared_with_it(ended):
    campaign, served = ended
    counted = campaign.tally.reference
    assert counted["cases of subnormals"] > 0  # cases 1 and 7 probe edges
    assert served[2] == counted["cases eager"] == 8 - counted["cases of subnormals"]


def test_shards_and_workers_have_lanes_of_their_own():
    from mlc.graph import print_graph
    from pytest_mlc.stream import Stream
    lanes = [Settings(seed=1, shard=(i, 2), stream=(k, 2)) for i in (1, 2) for k in (0, 1)]
    assert [s.lane for s in lanes] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    texts = [[print_graph(Stream(s).case(i).program.graph) for i in range(4)] for s in lanes]
    assert len({t for lane in texts for t in lane}) >= 15
    assert print_graph(Stream(lanes[2]).case(3).program.graph) == texts[2][3]
    assert sum(Settings(seconds=None, graphs=10, stream=(k, 3)).share for k in range(3)) == 10


@pytest.mark.parametrize("script", ["ci/fuzz", "ci/test", "ci/setup.sh"])
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", os.path.join(os.path.dirname(__file__), "..", "..", script)], check=True)
