"""Snapshots through the plugin: what is written where, what fails, and what a failure says."""

import os
import subprocess
import sys

import numpy as np
import pytest

import mlc
import mlc.numpy as mnp
import pytest_mlc.golden

pytest_plugins = ["pytester"]

W = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)


def model(w, x):
    """Two kernels, so that there is an arena; the weights are a constant if they are not passed."""
    hidden = mnp.tanh(x @ w)
    return hidden / hidden.sum(axis=1, keepdims=True)

# In-process runs drop the modules that they import, so all that they need is imported here, by doing what they do.
for stage in pytest_mlc.golden.STAGES:
    pytest_mlc.golden.golden_executable(mlc.jit(model).lower(W, mlc.spec("f32[32,16]")).compile()).as_text(stage)

HEAD = """
import pytest
from mlc.compile import compile_graph
from mlc.graph import parse_graph

TEXT = '''graph @model(%x: f32[4,8]) -> f32[4,8] {
  %0 = add %x, SHIFT : f32[4,8]
  %1 = tanh %0 : f32[4,8]
  return %1
}
'''

def take(mlc_snapshot, text=TEXT, **more):
    mlc_snapshot(compile_graph(parse_graph(text)), stages=("graph",), **more)

"""
TEST = "def test_model(mlc_snapshot):\n    take(mlc_snapshot)\n"
BY_PARAMETER = "@pytest.mark.parametrize('v', {!r})\ndef test_model(mlc_snapshot, v):\n    take(mlc_snapshot)\n"
GOLDEN = "graph @model(%x: f32[4,8]) -> f32[4,8] {\n  %0 = add %x, 1.0 : f32[4,8]\n  %1 = tanh %0 : f32[4,8]\n  return %1\n}\n"


@pytest.fixture
def project(pytester):
    pytester.makeini("[pytest]\n")

    def write(body=TEST, shift="1.0"):
        pytester.makepyfile(test_ir=HEAD.replace("SHIFT", shift) + body)
        return pytester
    return write


def run(project, *args):
    return project.runpytest("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q", *args)


def golden(project, name="test_ir/test_model.graph.mlc"):
    return project.path / "golden" / name


def updated(project):
    assert run(project, "--mlc-golden=update").ret == 0
    return golden(project)


def test_first_run_fails_and_says_how_to_create(project):
    p = project()
    result = run(p)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*MISSING golden/test_ir/test_model.graph.mlc*", "*create:*pytest --mlc-golden=update test_ir.py::test_model*"])
    assert not golden(p).exists() and golden(p, "test_ir/test_model.graph.mlc.new").read_text() == GOLDEN


def test_update_writes_the_text_alone_and_the_next_run_passes(project):
    p = project()
    assert updated(p).read_bytes() == GOLDEN.encode()
    run(p).assert_outcomes(passed=1)
    assert [f.name for f in golden(p, "test_ir").iterdir()] == ["test_model.graph.mlc"]


def test_a_changed_snapshot_fails_with_a_diff_and_leaves_the_new_text(project):
    updated(project())
    p = project(shift="2.0")
    result = run(p)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*CHANGED golden/test_ir/test_model.graph.mlc*", "*-  %0 = add %x, 1.0 : f32[[]4,8]",
                                 "*+  %0 = add %x, 2.0 : f32[[]4,8]", "*python -m pytest_mlc review*"])
    assert golden(p).read_text() == GOLDEN
    assert golden(p, "test_ir/test_model.graph.mlc.new").read_text() == GOLDEN.replace("1.0", "2.0")


def test_the_pending_file_goes_when_the_change_is_taken_back(project):
    updated(project())
    run(project(shift="2.0")).assert_outcomes(failed=1)
    p = project(shift="1.0")
    run(p).assert_outcomes(passed=1)
    assert not golden(p, "test_ir/test_model.graph.mlc.new").exists()


def test_a_long_diff_is_cut_and_says_how_much_is_left(project, monkeypatch):
    monkeypatch.delenv("CI", raising=False)  # there pytest prints the whole message a second time, in its summary
    nodes = "".join(f"  %{i} = tanh %{i - 1 if i else 'x'} : f32[4,8]\n" for i in range(100))
    long = f"graph @model(%x: f32[4,8]) -> f32[4,8] {{\n{nodes}  return %99\n}}\n"
    updated(project())
    result = run(project(TEST.replace("take(mlc_snapshot)", f"take(mlc_snapshot, {long!r})")))
    result.stdout.fnmatch_lines(["*... * more lines"])
    assert len(result.outlines) < 70


def test_update_rewrites_only_what_the_selected_tests_take(project):
    two = TEST + TEST.replace("test_model", "test_other")
    updated(project(two))
    p = project(two, shift="2.0")
    run(p, "--mlc-golden=update", "-k", "test_other").assert_outcomes(passed=1, deselected=1)
    assert "2.0" in golden(p, "test_ir/test_other.graph.mlc").read_text()
    assert golden(p).read_text() == GOLDEN


def test_an_unchanged_golden_file_is_not_touched_by_update(project):
    p = project()
    path = updated(p)
    os.utime(path, ns=(1, 1))
    updated(p)
    assert path.stat().st_mtime_ns == 1


@pytest.mark.parametrize("content, message", [
    (GOLDEN.replace("tanh %0", "tanh %7").encode(), "*BROKEN*does not parse*line 3*'%7' is not a value defined above*"),
    (b"\xff\xfe graph", "*is not UTF-8 (byte 0)*"),
    (b"", "*BROKEN*does not parse*line 1*"),
])
def test_a_golden_file_damaged_by_hand_is_named(project, content, message):
    p = project()
    updated(p).write_bytes(content)
    result = run(p)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])
    assert "Traceback" not in result.stdout.str()


def test_a_constant_by_digest_in_a_golden_file_is_not_taken_for_damage():
    from pytest_mlc.golden import parse_problem
    text = 'graph @m() -> f32[5,7] {\n  %0 = constant {value="0123456789abcdef0123456789abcdef"} : f32[5,7]\n  return %0\n}\n'
    assert parse_problem("graph", text) == ""


@pytest.mark.parametrize("stage", ["graph", "optimized", "kernels", "memory", "loops"])
def test_every_stage_with_a_parser_is_checked_by_it(stage):
    text = pytest_mlc.golden.golden_executable(mlc.jit(model).lower(W, mlc.spec("f32[32,16]"))).as_text(stage)
    assert pytest_mlc.golden.parse_problem(stage, text) == ""
    assert "line" in pytest_mlc.golden.parse_problem(stage, text.replace("(", "(!", 1))


def test_windows_line_ends_do_not_count(project):
    p = project()
    updated(p).write_bytes(GOLDEN.replace("\n", "\r\n").encode())
    run(p).assert_outcomes(passed=1)


def test_ids_that_no_file_system_likes_get_distinct_ascii_names(project):
    ids = ["naïve", "a/b", "a\\b", "{x}", "a b", "F32", "f32", "x" * 300, "x" * 299 + "y", "..", "CON", "a:b", "a*b"]
    p = project(BY_PARAMETER.format(ids))
    run(p, "--mlc-golden=update").assert_outcomes(passed=len(ids))
    names = [f.name for f in golden(p, "test_ir").iterdir()]
    assert len({name.lower() for name in names}) == len(ids)
    assert all(name.isascii() and len(name) < 120 and not set(name) & set('\\/{} :*"<>|?') for name in names)
    assert "test_model-f32.graph.mlc" in names
    run(p).assert_outcomes(passed=len(ids))


def test_methods_of_two_classes_have_files_of_their_own(project):
    method = "class Test{}:\n    def test_model(self, mlc_snapshot):\n        take(mlc_snapshot)\n"
    p = project(TEST + method.format("A") + method.format("B"))
    updated(p)
    assert sorted(f.name for f in golden(p, "test_ir").iterdir()) == [
        "TestA.test_model.graph.mlc", "TestB.test_model.graph.mlc", "test_model.graph.mlc"]


def test_folders_repeat_those_of_the_tests(project):
    p = project()
    folder = p.mkdir("suite")
    (p.path / "test_ir.py").rename(folder / "test_ir.py")
    run(p, "--mlc-golden=update").assert_outcomes(passed=1)
    assert golden(p, "suite/test_ir/test_model.graph.mlc").exists()


def test_two_snapshots_in_one_test_need_names(project):
    body = TEST + "    take(mlc_snapshot, TEXT.replace('1.0', '3.0'){})\n"
    result = run(project(body.format("")), "--mlc-golden=update")
    result.stdout.fnmatch_lines(["*two different snapshots called test_model.graph.mlc; give one a name*"])
    p = project(body.format(", name='third'"))
    run(p, "--mlc-golden=update").assert_outcomes(passed=1)
    assert sorted(f.name for f in golden(p, "test_ir").iterdir()) == ["test_model+third.graph.mlc", "test_model.graph.mlc"]


def test_something_that_is_not_compiled_is_refused(project):
    p = project("def test_model(mlc_snapshot):\n    mlc_snapshot(lambda x: x)\n")
    run(p).stdout.fnmatch_lines(["*mlc_snapshot takes mlc.jit(fn).lower(...) or its .compile(), got a function*"])


def test_a_stage_that_does_not_exist_is_refused(project):
    p = project(TEST.replace("take(mlc_snapshot)", "mlc_snapshot(compile_graph(parse_graph(TEXT)), stages=('optimised',))"))
    run(p).stdout.fnmatch_lines(["*mlc-golden: no stage is called 'optimised'; known: graph, optimized, *"])


def test_every_option_that_shapes_code_is_fixed_inside_the_test(project, monkeypatch):
    monkeypatch.setenv("MLC_DISABLE_PASSES", "cse")
    monkeypatch.setenv("MLC_TARGET", "generic")
    monkeypatch.setenv("MLC_THREADS", "7")
    p = project("""
from mlc.core import options
def test_inside(mlc_snapshot):
    assert options.get("target") == "golden-v3" and options.get("threads") == 1
    assert options.get("disable_passes") == "" and options.get("cache") is False
def test_outside():
    assert options.get("target") == "generic" and options.get("threads") == 7
""")
    run(p).assert_outcomes(passed=2)


def test_a_folder_that_cannot_be_written_is_a_clear_failure(project):
    p = project()
    folder = golden(p, "test_ir")
    folder.parent.mkdir()
    folder.write_text("a file where the folder should be")
    result = run(p, "--mlc-golden=update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*mlc-golden: cannot*golden/test_ir*"])
    assert "Traceback" not in result.stdout.str()


def test_a_change_is_still_shown_where_nothing_can_be_written(project, monkeypatch):
    updated(project())
    p = project(shift="2.0")

    def refuse(path, text):
        raise pytest_mlc.golden.GoldenError(f"cannot write {path}: Read-only file system")
    monkeypatch.setattr(pytest_mlc.golden, "write_text", refuse)
    run(p).stdout.fnmatch_lines(["*CHANGED*", "*+  %0 = add %x, 2.0*", "*the new text is not kept: cannot write*Read-only file system*"])


def test_a_whole_run_hints_at_files_that_no_test_took(project):
    p = project()
    updated(p)
    golden(p, "test_ir/test_gone.graph.mlc").write_text(GOLDEN)
    result = run(p)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*golden files that no test took*", "golden/test_ir/test_gone.graph.mlc"])
    assert "test_gone" not in run(p, "test_ir.py::test_model").stdout.str()


def test_workers_of_xdist_write_and_compare_like_one_process(project):
    ids = [f"n{i}" for i in range(6)]
    p = project("@pytest.mark.xdist_group('g')\n" + BY_PARAMETER.format(ids))
    assert p.runpytest_subprocess("-q", "-n2", "--dist=loadgroup", "--mlc-golden=update").ret == 0
    assert sorted(f.name for f in golden(p, "test_ir").iterdir()) == [f"test_model-{i}.graph.mlc" for i in ids]
    run(p).assert_outcomes(passed=6)


def test_bytes_do_not_depend_on_the_hash_seed_or_the_locale(project):
    seen = set()
    for seed, locale in (("1", "C"), ("2", "C.UTF-8")):
        p = project()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
        command = [sys.executable, "-m", "pytest", "-q", "--mlc-golden=update", "-p", "no:cacheprovider"]
        assert subprocess.run(command, cwd=p.path, env=environment, capture_output=True, timeout=60).returncode == 0
        seen.add(golden(p).read_bytes())
        golden(p).unlink()
    assert seen == {GOLDEN.encode()}


END_TO_END = """
import numpy as np, mlc, mlc.numpy as mnp

W = np.linspace(-1, 1, 16 * 24, dtype=np.float32).reshape(16, 24)

def model(x):
    hidden = mnp.tanh(x @ W)
    return hidden / hidden.sum(axis=1, keepdims=True)

before = mlc.jit(model).lower(mlc.spec("f32[32,16]")).compile()

def test_lowered(mlc_snapshot):
    mlc_snapshot(mlc.jit(model).lower(mlc.spec("f32[32,16]")))

def test_compiled(mlc_snapshot):
    compiled = mlc.jit(model).lower(mlc.spec("f32[32,16]")).compile()
    assert compiled(np.ones((32, 16), np.float32)).shape == (32, 24)
    mlc_snapshot(compiled)

def test_compiled_for_this_machine(mlc_snapshot):
    mlc_snapshot(before)
"""


def test_a_jitted_model_gives_the_same_bytes_however_and_wherever_it_was_compiled(pytester, monkeypatch):
    pytester.makepyfile(test_ir=END_TO_END)
    run(pytester, "--mlc-golden=update").assert_outcomes(passed=3)
    files = sorted(golden(pytester, "test_ir").iterdir())
    assert [f.name for f in files] == [f"test_{name}.{stage}.mlc" for name in ("compiled", "compiled_for_this_machine", "lowered")
                                       for stage in ("kernels", "memory", "optimized")]
    texts = [f.read_bytes() for f in files]
    assert texts[0:3] == texts[3:6] == texts[6:9] and b"arena" in texts[1] and b"kernel @" in texts[0]
    monkeypatch.setenv("MLC_TARGET", "generic")
    monkeypatch.setenv("MLC_DISABLE_PASSES", "fuse")
    run(pytester).assert_outcomes(passed=3)


def test_the_plugin_imports_nothing_when_unused(pytester):
    pytester.makepyfile("""
        import sys
        def test_nothing():
            heavy = {"mlc", "jax", "hypothesis", "llvmlite", "numpy", "pytest_mlc.golden", "pytest_mlc.check"}
            assert not heavy & set(sys.modules)
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)
