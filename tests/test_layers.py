"""The house rules: which way imports go, what stays out of `import mlc`, how large a file and a function may become."""

import ast
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each part of mlc may import besides itself. Parts below the line of `compile` see no more than this; the others see everything.
_GRAPH = {"core", "ops", "graph"}
_LOOP = {"core", "kernel", "loop"}
READS = {
    "core": set(),
    "errors": {"core"},
    "ops": {"core"},
    "graph": {"core", "ops"},
    "frontend": _GRAPH,
    "nn": {"frontend"},
    "numpy": {"frontend"},
    "passes": _GRAPH | {"kernel"},
    "memory": _GRAPH | {"kernel"},
    "kernel": {"core"},
    "loop": {"core", "kernel"},
    "codegen": _LOOP,
    "cache": {"core"},
    "runtime": _LOOP | {"codegen", "cache"},
    "tune": _LOOP | {"codegen", "runtime", "cache"},
}
TOP = {"__init__", "__main__", "jit", "variants", "guards", "compile", "stages", "plan", "tools"}

# Inside functions only: arrays tell their namespace, lazy arrays compile themselves when asked for a value, and `mlc.check` is the plugin's.
BACK = {("mlc.frontend.array", "numpy"), ("mlc.frontend.lazy", "compile")}
OUTSIDE = {"numpy", "llvmlite", "ml_dtypes"}
OUTSIDE_LATE = {("mlc.__init__", "pytest_mlc"), ("mlc.tools.bench.libraries", "jax"), ("mlc.tools.bench.libraries", "torch")}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """(module, whether it happens when the file is imported, line) of every import; those for type checkers left out."""
    pending = [(node, True) for node in tree(path).body]
    while pending:
        node, now = pending.pop()
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, now, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            for alias in node.names:
                # `from mlc import nn` reads mlc.nn; `from mlc.core import dtype` reads mlc.core: two parts of the name are enough.
                yield f"{node.module}.{alias.name}", now, node.lineno
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        pending += [(child, now and not inside) for child in ast.iter_child_nodes(node)]


def part_of(module: str) -> str:
    """The part of mlc that a module belongs to: `mlc.core.dtype` -> "core"; names that `mlc` itself offers -> "__init__"."""
    pieces = module.split(".")
    known = len(pieces) > 1 and ((ROOT / "mlc" / pieces[1]).is_dir() or (ROOT / "mlc" / f"{pieces[1]}.py").is_file())
    return pieces[1] if known else "__init__"


def test_every_part_has_its_place():
    parts = {part_of(module_name(path)) for path in sources("mlc")}
    assert parts <= READS.keys() | TOP, "a new part of mlc: say in READS what it may import"


def may_read(here: str, module: str, now: bool) -> bool:
    part, other = part_of(here), part_of(module)
    return part in TOP or other == part or other in READS[part] or (not now and (here, other) in BACK)


def test_imports_go_one_way():
    wrong = [f"{path.relative_to(ROOT)}:{line}: {part_of(module_name(path))} may not import {module}"
             for path in sources("mlc") for module, now, line in imports(path)
             if module.partition(".")[0] == "mlc" and not may_read(module_name(path), module, now)]
    assert not wrong, "\n".join(wrong)


def test_an_import_against_the_direction_is_seen(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("from mlc import jit\nfrom mlc.graph import Graph\nif True:\n    import mlc.loop.ir\ndef f():\n    from mlc.core import dtype\n")
    found = {module: may_read("mlc.ops.x", module, now) for module, now, _ in imports(path)}
    assert found == {"mlc.jit": False, "mlc.graph.Graph": False, "mlc.loop.ir": False, "mlc.core.dtype": True}
    assert not may_read("mlc.frontend.lazy", "mlc.compile", now=True) and may_read("mlc.frontend.lazy", "mlc.compile", now=False)


def test_the_compiler_imports_little_from_outside():
    wrong = []
    for path in sources("mlc"):
        here = module_name(path)
        for module, now, line in imports(path):
            root = module.partition(".")[0]
            if root in sys.stdlib_module_names or root == "mlc" or root in OUTSIDE or (not now and (here, root) in OUTSIDE_LATE):
                continue
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert not wrong, "\n".join(wrong)


def test_strategies_have_one_name():
    wrong = [f"{path.relative_to(ROOT)}:{line}" for path in sources("mlc", "pytest_mlc", "strategies", "tests", "examples", "ci")
             for module, _, line in imports(path) if module.partition(".")[0] == "strategies"]
    assert not wrong, "import mlc_strategies instead:\n" + "\n".join(wrong)


@functools.cache
def environment(bytecode: str) -> dict[str, str]:
    """One in which bytecode is kept (in a fresh folder), or not."""
    others = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}
    return others | ({"PYTHONPYCACHEPREFIX": tempfile.mkdtemp(prefix="mlc-pyc-")} if bytecode == "kept" else {"PYTHONDONTWRITEBYTECODE": "1"})


@pytest.mark.parametrize("bytecode", ["kept", "not kept"])
def test_importing_mlc_brings_neither_jax_nor_pytest_nor_the_compiler(bytecode):
    code = ("import sys, mlc\n"
            "print([m for m in ('jax', 'jaxlib', 'hypothesis', 'pytest', 'pytest_mlc', 'llvmlite', 'torch', 'mlc.passes', 'mlc.loop', 'mlc.kernel', "
            "'mlc.stages') if m in sys.modules])")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment(bytecode))
    assert found.stdout.strip() == "[]", found.stdout + found.stderr


def test_ml_dtypes_is_loaded_for_what_has_a_bfloat16_and_for_nothing_else():
    """Importing its version 0.7 takes a second."""
    code = ("import sys, numpy as np, mlc, mlc.numpy as mnp\n"
            "mlc.jit(lambda x: mnp.tanh(x @ x).astype(mnp.float16))(np.ones((3, 3), np.float32)), mnp.finfo(mnp.float32)\n"
            "before = 'ml_dtypes' in sys.modules\n"
            "y = mlc.jit(lambda x: x.astype('bfloat16') + 1)(np.ones(3, np.float32))\n"
            "print(before, y.dtype, mnp.bfloat16 is y.dtype.type, mnp.finfo(y.dtype).bits)")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment("kept"))
    assert found.stdout.strip() == "False bfloat16 True 16", found.stdout + found.stderr


@pytest.mark.parametrize("bytecode", ["kept", "not kept"])
def test_importing_mlc_is_quick(bytecode):
    """Processor time beside NumPy's (0.11 s on a slow machine), the least of some runs, because the machine may be busy."""
    code = "import time, numpy; begun = time.process_time(); import mlc; print(time.process_time() - begun)"
    env = environment(bytecode)
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env) for _ in range(5)]
    assert min(float(run.stdout) for run in runs) < 0.15


SIZED = sources("mlc", "pytest_mlc", "strategies", "ci", "examples")


def test_files_stay_small():
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path in SIZED
            if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500]
    assert not long, "\n".join(long)


def test_functions_stay_small():
    long = []
    for path in SIZED:
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno >= 60:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines")
    assert not long, "\n".join(long)


def test_every_file_says_what_it_is():
    silent = [str(path.relative_to(ROOT)) for path in SIZED
              if tree(path).body and ast.get_docstring(tree(path)) is None]
    assert not silent, "\n".join(silent)


def test_no_branch_asks_what_one_before_it_asked():
    dead = []
    for path in SIZED:
        for node in ast.walk(tree(path)):
            asked = set()
            while isinstance(node, ast.If):
                test = ast.dump(node.test)
                if test in asked and not any(isinstance(part, (ast.Call, ast.NamedExpr)) for part in ast.walk(node.test)):
                    dead.append(f"{path.relative_to(ROOT)}:{node.lineno}: elif {ast.unparse(node.test)}")
                asked.add(test)
                node = node.orelse[0] if len(node.orelse) == 1 else None
    assert not dead, "\n".join(dead)


def test_tests_leave_the_users_cache_alone():
    assert "mlc-tests-" in os.environ["MLC_CACHE_DIR"]
