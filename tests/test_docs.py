"""The documentation is true: texts shown are what mlc prints today, blocks of Python run, promises are the registry's, recipes can be followed.

Blocks say what they are by an HTML comment above them: `shows STAGE`, `prints` (what the block above it prints), `file: NAME`,
`setup` and code. In shown texts, a line `...` stands for any lines and `...` within a line for anything in it.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import mlc
import mlc.numpy
from mlc.core.dtype import bf16, f16, f32, f64
from mlc.core.options import OPTIONS
from mlc.kernel.tiling import paths as contraction_paths
from mlc.ops.base import REGISTRY
from pytest_mlc.executor import PATH_WORDS, paths_of, ways_of_pairs
from pytest_mlc.golden import golden_executable, golden_options
from pytest_mlc.session import pytest_addoption

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("architecture", "numerics", "howto", "fuzzing", "status", "performance", "decisions"))]
# README's fragment of a model's test needs a model.
README_SETUP = """
import mlc
def model(params, x):
    return x @ params
params = __import__("numpy").ones((64, 3), "f4")
"""


@dataclass
class Block:
    """A fenced block: its page and line, the word behind the fence, its text, the section it is in, and the comments right above it."""

    page: str
    line: int
    language: str
    text: str
    section: str
    notes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def note(comment: str) -> tuple[str, str]:
    kind, _, rest = comment.strip().partition("\n" if comment.strip().startswith("setup") else " ")
    return kind.rstrip(":"), rest


@functools.cache
def blocks(page: str) -> list[Block]:
    found, notes, section = [], {}, ""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        line, start = lines[at], at
        if line.startswith("<!--"):
            while "-->" not in lines[at]:
                at += 1
            kind, rest = note("\n".join(lines[start:at + 1]).removeprefix("<!--").removesuffix("-->"))
            notes[kind] = rest
        elif line.startswith("```"):
            at += 1
            while not lines[at].startswith("```"):
                at += 1
            found.append(Block(page, start + 1, line[3:].strip(), "\n".join(lines[start + 1:at]) + "\n", section, notes))
            notes = {}
        elif line.strip():
            section = line[3:] if line.startswith("## ") else section
            notes = {}
        at += 1
    return found


def pattern(shown: str) -> str:
    """The regular expression of a shown text."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        lines.append(r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n")
    return "".join(lines)


def assert_shows(block: Block, shown: str, actual: str) -> None:
    actual = actual.rstrip("\n") + "\n"
    assert re.fullmatch(pattern(shown), actual), f"{block} shows\n{shown}\nbut today it is\n{actual}"


@pytest.mark.parametrize("shown, fits", [
    ("a\n...\nd", True), ("...", True), ("a\nb\nc\nd", True), ("a\n...\nb\nc\nd\n...", True), ("a\n...d\n...", False), ("a\n...\nc", False),
    ("a\nb\nd", False), ("a\n...\n...c\nd", True)])
def test_shown_lines_may_be_left_out_but_not_changed(shown, fits):
    assert bool(re.fullmatch(pattern(shown), "a\nb\nc\nd\n")) == fits


# --------------------------------------------------------------------------- the walk through the levels
@functools.cache
def walk() -> dict[str, str]:
    """The text of each stage of the architecture page's program, for the golden target."""
    (program,) = (b for b in blocks("docs/architecture.md") if "program" in b.notes)
    space = {"mlc": mlc}
    exec(program.text, space)
    with golden_options():
        executable = golden_executable(mlc.jit(space["head"]).lower(*space["specs"]))
        log = "\n".join(re.sub(r" +\d+\.\d ms", "", str(result)) for result in executable.pass_log)
        return {"passes": log, **{stage: executable.as_text(stage) for stage in ("graph", "optimized", "kernels", "loops", "memory", "llvm")}}


@pytest.mark.parametrize("block", [b for b in blocks("docs/architecture.md") if "shows" in b.notes], ids=lambda b: b.notes["shows"])
def test_the_levels_look_as_shown(block):
    assert_shows(block, block.text, walk()[block.notes["shows"]])


def test_every_level_is_shown():
    assert [b.notes["shows"] for b in blocks("docs/architecture.md") if "shows" in b.notes] == [
        "graph", "passes", "optimized", "kernels", "loops", "memory", "llvm"]


# --------------------------------------------------------------------------- Python blocks
def run_as_test(code: str, folder: Path) -> None:
    """Run code that defines tests, or a script, as a user would."""
    path = folder / "test_block.py"
    path.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)], cwd=folder, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/howto.md"])
def test_blocks_of_python_run_and_print_what_is_shown(page, tmp_path, monkeypatch):
    """Blocks of a page share their names, in order. Those that define tests run under pytest; those of recipes with the recipe."""
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "block"}
    exec(README_SETUP if page == "README.md" else "", space)
    printed = ""
    for block in blocks(page):
        setup = block.notes.get("setup", "")
        if "prints" in block.notes:
            assert_shows(block, block.text, printed)
        if block.language != "python" or "recipe" in block.notes:
            continue
        if re.search(r"^(@mlc\.check|def test_)", block.text, re.M):
            run_as_test((README_SETUP if page == "README.md" else "") + setup + "\n" + block.text, tmp_path)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(setup + "\n" + block.text, str(block), "exec"), space)
        printed = output.getvalue()


# --------------------------------------------------------------------------- facts in the prose
@pytest.mark.parametrize("page", PAGES)
def test_files_and_pages_that_are_named_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    inside = {path.name for path in (ROOT / "mlc").iterdir() if path.is_dir()}
    named = re.findall(r"`([\w.]+/[\w./]*)`", prose)
    named = {n if n.partition("/")[0] in rooms else f"mlc/{n}" for n in named if n.partition("/")[0] in rooms | inside}
    assert not [n for n in named - {"tests/mlc_corpus"} if not (ROOT / n).exists() and not is_attribute(n)]  # that one is made when something fails
    if page != "README.md":
        links = [n for n in re.findall(r"\]\(([^)#]+)[^)]*\)", prose) if "://" not in n]
        assert not [n for n in links if not (ROOT / page).parent.joinpath(n).exists()]


def is_attribute(name: str) -> bool:
    """Whether `folder/module.name` is there."""
    path, _, attribute = name.rpartition(".")
    file = ROOT / f"{path}.py"
    return file.exists() and re.search(rf"^(def|class) {attribute}\b|^{attribute}\b", file.read_text(encoding="utf-8"), re.M) is not None


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose head line begins so."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    (at,) = (k for k, line in enumerate(lines) if line.startswith(head))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[at + 2:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_every_option_is_in_the_table_with_its_default_and_a_star_if_it_shapes_code():
    found = {}
    for names, default, _ in rows("docs/howto.md", "| option | default |"):
        for name in re.findall(r"`(\w+)`", names):
            alone = names.removesuffix(" *") == f"`{name}`"
            found[name] = (names.endswith("*"), default.replace(",", "") if alone else None)
    told = {name: (option.affects_code, str(option.default) if found.get(name, (0, ""))[1] is not None else None)
            for name, option in OPTIONS.items()}
    assert found == told


def test_every_option_of_fuzzing_is_in_its_page():
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    options = {name for option in parser.getgroup("mlc").options for name in option.names()}
    text = (ROOT / "docs/fuzzing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--mlc-fuzz[\w-]*", text)) == options


def words_given(function) -> set[str]:
    """The words that a function of `pytest_mlc.executor` adds to those it found."""
    words = set()
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("add", "update"):
            given = node.args[0].elt if isinstance(node.args[0], ast.GeneratorExp) else node.args[0]
            words |= {part.value for part in ast.walk(given) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return words


def test_every_way_of_computing_is_explained():
    (of_contractions,) = (node for node in ast.walk(ast.parse(inspect.getsource(contraction_paths))) if isinstance(node, ast.Dict))
    words = {key.value for key in of_contractions.keys} | words_given(paths_of) | words_given(ways_of_pairs)
    words |= set(re.fullmatch(r"\\b\(\?:(.*)\)\\b", PATH_WORDS.pattern)[1].split("|"))
    found = {word for row in rows("docs/fuzzing.md", "| word |") for word in [*row[0].split(", "), *re.findall(r"\*(.*?)\*", row[1])]}
    assert found == words and len(words) > 20


def test_constants_are_what_the_prose_says():
    text = (ROOT / "docs/numerics.md").read_text(encoding="utf-8")
    facts = [fact.partition("=") for comment in re.findall(r"<!-- constants: (.*?) -->", text) for fact in comment.split()]
    assert facts
    for name, _, value in facts:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute) == float(value), name


def accuracy_rows() -> dict[str, list[float]]:
    text = (ROOT / "docs/numerics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \|((?: [0-9.]+(?:; [0-9.]+)? \|){5})$", text, re.M)
    return {name: [max(map(float, cell.split(";"))) for cell in cells.strip(" |").split("|")] for name, cells in rows}


def test_promised_accuracy_is_what_the_ops_say():
    rows = accuracy_rows()
    assert set(rows) == {op.name for op in REGISTRY.values() if not callable(op.ulp) and any(ulp > 0.5 for ulp in op.ulp.values())}
    for name, (found_single, found_double, single, double, half) in rows.items():
        op = REGISTRY[name]
        assert [op.ulp_of(d, {}) for d in (f32, f64, f16, bf16)] == [single, double, half, half], name
        assert found_single <= single and found_double <= double, name


# --------------------------------------------------------------------------- recipes
RECIPES = list(dict.fromkeys(b.section for b in blocks("docs/howto.md") if b.language in ("diff", "console")))


def apply_diff(diff: str, root: Path) -> None:
    """Apply a unified diff without line numbers: each hunk must fit in exactly one place."""
    for part in re.split(r"^(?=--- )", diff, flags=re.M)[1:]:
        head, *hunks = re.split(r"^@@.*\n", part, flags=re.M)
        path = root / re.search(r"^\+\+\+ (\S+)", head, re.M)[1]
        text = "" if "--- /dev/null" in head else path.read_text(encoding="utf-8")
        for hunk in hunks:
            lines = [line or " " for line in hunk.rstrip("\n").split("\n")]
            old, new = ("".join(line[1:] + "\n" for line in lines if line[0] in kept) for kept in (" -", " +"))
            assert old == text == "" or text.count(old) == 1, f"{path.relative_to(root)} has {text.count(old)} times\n{old}"
            text = text.replace(old, new) if old else new
        path.write_text(text, encoding="utf-8")


def copy_of_the_repo(folder: Path) -> Path:
    """What a recipe may touch, and `strategies` under the name it is installed as."""
    for name in ("mlc", "pytest_mlc", "tests", "examples", "ci", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "mlc_corpus"))
    shutil.copytree(ROOT / "strategies", folder / "mlc_strategies", ignore=shutil.ignore_patterns("__pycache__"))
    os.symlink("mlc_strategies", folder / "strategies")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.parametrize("section", RECIPES)
def test_the_diffs_of_a_recipe_apply(section, tmp_path):
    diffs = [b.text for b in blocks("docs/howto.md") if b.section == section and b.language == "diff"]
    for name in {n for diff in diffs for n in re.findall(r"^--- ([^/\s]\S*)", diff, re.M)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in {n for diff in diffs for n in re.findall(r"^\+\+\+ (\S+)", diff, re.M)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for diff in diffs:
        apply_diff(diff, tmp_path)


COMMANDS = {"pytest": ["-m", "pytest"], "mlc": ["-m", "mlc"], "python": []}


def run_command(line: str, root: Path) -> str:
    """A command of a console block, without a shell: its output, standard error last."""
    words = shlex.split(line, comments=True)
    settings = {}
    while re.match(r"MLC_\w+=", words[0]):
        settings.update([words.pop(0).split("=", 1)])
    command = [sys.executable, *COMMANDS[words[0]], *words[1:]]
    environment = {**os.environ, **settings, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, env=environment)
    return done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("section", RECIPES)
def test_a_recipe_does_what_it_shows(section, tmp_path):
    """Followed from the top on a fresh copy: files written, diffs applied, commands run, outputs compared."""
    root = copy_of_the_repo(tmp_path)
    for block in blocks("docs/howto.md"):
        if block.section != section:
            continue
        if "file" in block.notes:
            (root / block.notes["file"]).write_text(block.text, encoding="utf-8")
        elif block.language == "diff":
            apply_diff(block.text, root)
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                line, _, shown = part.partition("\n")
                output = run_command(line, root)
                if shown:
                    assert_shows(block, shown, output)
