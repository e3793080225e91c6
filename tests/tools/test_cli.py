"""The command line: what each command prints, and that bad input is one line on stderr and exit code 2."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlc.cache.store import Cache
from mlc.core.literal import Literal
from mlc.graph import parse_graph, print_graph
from mlc.passes import pipeline
from mlc.passes.manager import Pass, PassResult
from mlc.tools.cli import COMMANDS, main

GRAPH = """graph @twice(%x: f32[4,8]) -> f32[4,8] {
  %0 = transpose %x {perm=[1,0]} : f32[8,4]
  %1 = transpose %0 {perm=[1,0]} : f32[4,8]
  %2 = tanh %1 : f32[4,8]
  %3 = tanh %1 : f32[4,8]
  %4 = add %2, %3 : f32[4,8]
  return %4
}
"""
MODEL = """
import mlc
import mlc.numpy as mnp

def forward(params, x):
    return mnp.tanh(x @ params["w"] + 1.0)

def noise():
    return mnp.ones((2, 3))

class Model:
    @staticmethod
    def call(x):
        return x + x

jitted = mlc.jit(forward)
number = 3

@mlc.check(inputs={"x": "f32[B,4]"}, dims={"B": (1, 48)})
def test_forward(x):
    return mnp.exp(x)

def branches(x):
    return x if x else -x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with graph.mlc and a module `model_under_test`, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "graph.mlc").write_text(GRAPH)
    (tmp_path / "model_under_test.py").write_text(MODEL)
    yield tmp_path
    sys.modules.pop("model_under_test", None)


def output(capsys, *arguments, code=0):
    """What a command prints; it must end with this exit code and print nothing to stderr."""
    assert main(arguments) == code
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def bad(capsys, *arguments):
    """The one line that bad input gets."""
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    found = capsys.readouterr()
    assert code == 2 and found.out == "" and found.err.count("\n") == 1 and found.err.endswith("\n")
    return found.err


# --------------------------------------------------------------------------- the program
@pytest.mark.parametrize("arguments", [[], *[[name] for name in COMMANDS]], ids=["mlc", *COMMANDS])
def test_help_everywhere(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--help"])
    assert stopped.value.code == 0
    assert f"usage: {' '.join(['mlc', *arguments])}" in capsys.readouterr().out


def test_wrong_command_lines_are_one_line(capsys):
    assert "required: COMMAND" in bad(capsys)
    assert "invalid choice: 'frobnicate'" in bad(capsys, "frobnicate")
    assert "unrecognized arguments: --frob" in bad(capsys, "cache", "info", "--frob")
    assert "argument action" in bad(capsys, "cache", "burn")


@pytest.mark.parametrize("command", [[sys.executable, "-m", "mlc"], [str(Path(sys.executable).with_name("mlc"))]], ids=["module", "script"])
def test_it_runs_as_a_module_and_as_a_script(folder, command):
    done = subprocess.run([*command, "opt", "graph.mlc", "-p", "simplify"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("graph @twice(")
    done = subprocess.run([*command, "opt", "nothing.mlc"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == "mlc opt: error: FileNotFoundError: [Errno 2] No such file or directory: 'nothing.mlc'\n"


def test_a_closed_pipe_is_no_error(folder):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "mlc", "opt", "graph.mlc"], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert done.returncode == 0 and done.stderr == b""


# --------------------------------------------------------------------------- opt
def test_opt_runs_the_named_passes_in_order(folder, capsys):
    merged = output(capsys, "opt", "graph.mlc", "-p", "cse,dce")
    assert merged.count("tanh") == 1 and merged.count("transpose") == 2
    simple = output(capsys, "opt", "graph.mlc", "--passes", "simplify, dce")
    assert simple.count("tanh") == 2 and simple.count("transpose") == 0


def test_opt_runs_the_pipeline_by_default_and_its_output_is_input_again(folder, capsys, monkeypatch):
    text = output(capsys, "opt", "graph.mlc")
    assert text.count("tanh") == 1 and "transpose" not in text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert output(capsys, "opt", "-", "-p", "cse") == text


def test_opt_follows_the_options_of_passes_for_named_ones_too(folder, capsys, monkeypatch):
    monkeypatch.setenv("MLC_LIMIT", "0")
    assert output(capsys, "opt", "graph.mlc", "-p", "simplify") == output(capsys, "opt", "graph.mlc", "-p", "inline") == GRAPH
    monkeypatch.delenv("MLC_LIMIT")
    monkeypatch.setenv("MLC_DISABLE_PASSES", "simplify")
    assert output(capsys, "opt", "graph.mlc", "-p", "simplify,cse") == output(capsys, "opt", "graph.mlc", "-p", "cse")
    monkeypatch.setenv("MLC_DISABLE_PASSES", "frob")
    assert "no pass is called 'frob'" in bad(capsys, "opt", "graph.mlc", "-p", "cse")


def test_opt_checks_named_passes_as_the_pipeline_does(folder, capsys, monkeypatch):
    def multiply_instead(graph, context):
        return PassResult(parse_graph(GRAPH.replace("add %2, %3", "mul %2, %3")), True)
    monkeypatch.setattr(pipeline, "PIPELINE", (*pipeline.PIPELINE, Pass("evil", 1, multiply_instead)))
    monkeypatch.setenv("MLC_CHECK", "1")
    assert "mul" in output(capsys, "opt", "graph.mlc", "-p", "evil")
    monkeypatch.setenv("MLC_CHECK", "2")
    assert main(["opt", "graph.mlc", "-p", "evil"]) == 1
    assert "meaning_is_kept after pass evil" in capsys.readouterr().err


def test_opt_lists_the_passes(capsys):
    assert [line.split()[0] for line in output(capsys, "opt", "--list").splitlines()] == [each.name for each in pipeline.PIPELINE]


def test_opt_lists_the_rewrites_with_their_reasons(capsys):
    lines = output(capsys, "opt", "--rules").splitlines()
    assert "transpose(transpose(x, perm=p), perm=q) -> transpose(x, perm=compose(p, q))  (bitwise; one movement instead of two)" in "\n".join(lines)
    assert len(lines) > 100


def test_opt_prints_the_log_to_stderr(folder, capsys):
    assert main(["opt", "graph.mlc", "-p", "cse,dce", "--log"]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("graph @twice") and [line.split()[0] for line in found.err.splitlines()] == ["cse", "dce"]


def test_opt_takes_constants_from_an_npz_file(folder, capsys):
    table = np.arange(40, dtype=np.float32).reshape(4, 10)
    digest = Literal(table).digest
    (folder / "big.mlc").write_text(f'graph @big() -> f32[4,10] {{\n  %0 = constant {{value="{digest}"}} : f32[4,10]\n  return %0\n}}\n')
    np.savez(folder / "constants.npz", weights=table)
    assert digest in output(capsys, "opt", "big.mlc", "-p", "dce", "--constants", "constants.npz")
    assert f"constant {digest} is not in the side file" in bad(capsys, "opt", "big.mlc")
    assert "graph.mlc is not an .npz file" in bad(capsys, "opt", "big.mlc", "--constants", "graph.mlc")


@pytest.mark.parametrize("text, said", [
    ("", "line 1, column 1: expected 'graph'"),
    (GRAPH.replace("%2, %3", "%2, %9"), "line 6, column 16: '%9' is not a value defined above"),
    (GRAPH.replace("tanh %1", "tanh %0", 1), "tanh gives f32[8,4], the text says f32[4,8]"),
    (GRAPH.replace("tanh", "tahn"), "unknown op 'tahn'"),
    (GRAPH + "x", "expected the end"),
    ("\0", "unexpected character"),
], ids=["empty", "undefined", "mistyped", "unknown", "trailing", "binary"])
def test_opt_refuses_what_is_no_graph_with_its_place(folder, capsys, text, said):
    (folder / "bad.mlc").write_text(text)
    assert said in bad(capsys, "opt", "bad.mlc")


def test_opt_refuses_other_bad_input(folder, capsys):
    (folder / "latin.mlc").write_bytes(GRAPH.encode().replace(b"twice", b"\xe9"))
    assert "latin.mlc is not UTF-8 text (byte 7)" in bad(capsys, "opt", "latin.mlc")
    assert "no pass is called 'frob'; known: inline, simplify" in bad(capsys, "opt", "graph.mlc", "-p", "cse,frob")
    assert "no pass is called ''" in bad(capsys, "opt", "graph.mlc", "-p", "")
    assert "IsADirectoryError" in bad(capsys, "opt", str(folder))
    assert "give the FILE" in bad(capsys, "opt")


def test_a_pass_that_breaks_is_named_and_is_not_the_users_fault(folder, capsys, monkeypatch):
    def broken(graph, ctx):
        raise RuntimeError("boom")
    monkeypatch.setattr(pipeline, "PIPELINE", (Pass("evil", 1, broken),))
    assert main(["opt", "graph.mlc", "-p", "evil"]) == 1
    assert "pass evil" in capsys.readouterr().err


# --------------------------------------------------------------------------- explain
SPECS = ('{"w": "f32[8,3]"}', "f32[5,8]")


def test_explain_prints_every_stage(folder, capsys):
    text = output(capsys, "explain", "model_under_test:forward", *SPECS)
    heads = [line.strip("= ") for line in text.splitlines() if line.startswith("== ")]
    assert heads == ["graph", "passes", "optimized", "kernels", "loops", "memory", "llvm", "asm"]
    assert "graph @forward(%params.w: f32[8,3], %x: f32[5,8]) -> f32[5,3] {" in text
    assert "define void @k0" in text and "k0:" in text


def test_explain_prints_one_stage_bare(folder, capsys):
    text = output(capsys, "explain", "model_under_test:jitted", *SPECS, "--stage", "graph")
    assert print_graph(parse_graph(text)) == text


def test_explain_finds_files_methods_and_functions_without_arguments(folder, capsys):
    assert "add" in output(capsys, "explain", str(folder / "model_under_test.py") + ":Model.call", "f32[3]", "-s", "graph")
    assert "return" in output(capsys, "explain", "model_under_test:noise", "-s", "optimized")


def test_explain_takes_inputs_and_sizes_from_a_check(folder, capsys):
    assert "f32[48,4]" in output(capsys, "explain", "model_under_test:test_forward", "-s", "graph")
    assert "f32[7,4]" in output(capsys, "explain", "model_under_test:test_forward", "-s", "graph", "--dim", "B=7")


def test_explain_gives_named_dims_their_sizes(folder, capsys):
    assert "f32[9]" in output(capsys, "explain", "model_under_test:Model.call", "f32[B]", "--dim", "B=9", "-s", "graph")


def test_explain_shows_the_users_lines(folder, capsys):
    text = output(capsys, "explain", "model_under_test:Model.call", "f32[3]", "-s", "graph", "--locations")
    assert "model_under_test.py:" in text


def test_explain_compiles_for_another_target(folder, capsys):
    asm = output(capsys, "explain", "model_under_test:Model.call", "f32[64]", "-s", "asm", "--target", "golden-v3")
    assert "ymm" in asm and "zmm" not in asm


@pytest.mark.parametrize("arguments, said", [
    (["model_under_test"], "'model_under_test' is not MODULE:FN"),
    (["no_such_module:f"], "cannot import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
    (["nothing.py:f"], "cannot import nothing.py: FileNotFoundError"),
    (["model_under_test:absent"], "model_under_test has no 'absent'"),
    (["model_under_test:number"], "is a int, not a function"),
    (["model_under_test:forward", "f32[4]"], "the function takes (params, x), 1 specs are given"),
    (["model_under_test:Model.call", "f33[4]"], "unknown dtype 'f33'"),
    (["model_under_test:Model.call", "f32[B]"], "symbolic dim 'B'"),
    (["model_under_test:Model.call", "{f32[4]}"], "neither a type nor a Python literal"),
    (["model_under_test:Model.call", "f32[4]", "--dim", "B=x"], "--dim B=x: write NAME=SIZE"),
    (["model_under_test:forward", '{"v": "f32[8,3]"}', "f32[5,8]"], "KeyError: 'w'"),
    (["model_under_test:branches", "f32[]"], "bool()"),
    (["math:sin", "f32[4]"], "math:sin cannot be recorded: float(): the value f32[4] is traced"),
    (["math:sin", "f32[4]"], "sin is a built-in function; name a Python function of arrays, which calls mlc.numpy instead"),
], ids=lambda value: None if isinstance(value, str) else "-".join(value)[:40])
def test_explain_refuses_bad_input(folder, capsys, arguments, said):
    assert said in bad(capsys, "explain", *arguments)


def test_explain_names_no_line_of_what_launched_it():
    done = subprocess.run([sys.executable, "-m", "mlc", "explain", "math:sin", "f32[4]"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "float():" in done.stderr and "runpy" not in done.stderr and done.stderr.count("\n") == 1


# --------------------------------------------------------------------------- cache
def test_cache_info_and_clear(tmp_path, capsys):
    cache = Cache(tmp_path / "cache")
    cache.put("one", b"x" * 1000)
    cache.put("two", b"y" * 1000)
    lines = dict(line.split(maxsplit=1) for line in output(capsys, "cache", "info", "--dir", str(tmp_path / "cache")).splitlines())
    assert lines["directory"] == str(tmp_path / "cache") and lines["entries"] == "2" and lines["size"].endswith(" B of 512.0 MiB")
    assert output(capsys, "cache", "clear", "--dir", str(tmp_path / "cache")) == f"removed 2 entries from {tmp_path / 'cache'}\n"
    assert output(capsys, "cache", "clear", "--dir", str(tmp_path / "cache")).startswith("removed 0 entries")


def test_cache_follows_the_environment_even_when_it_is_off(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("MLC_CACHE", "0")
    assert f"directory  {tmp_path / 'here'}\n" in output(capsys, "cache", "info")


def test_a_folder_that_cannot_be_a_cache_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "the compilation cache cannot use" in bad(capsys, "cache", "info", "--dir", str(tmp_path / "file"))
