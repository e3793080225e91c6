"""Blame: the first level that is wrong, and the rewrite that made it so."""

import numpy as np
import pytest

from mlc.graph import parse_graph
from pytest_mlc.blame import blame, levels
from pytest_mlc.executor import Compiler
from pytest_mlc.oracle import judge

GRAPH = parse_graph("graph @main(%x: f32[3,17]) -> f32[3] {\n  %0 = neg %x : f32[3,17]\n  %1 = tanh %0 : f32[3,17]\n"
                    "  %2 = reduce_sum %1 {axes=[1]} : f32[3]\n  return %2\n}")
ARGS = [np.random.default_rng(0).normal(size=(3, 17)).astype(np.float32)]

PLANT = """
import sys
if "pytest_mlc.worker" in sys.orig_argv:
{code}
"""
BROKEN = {
    "kernels": "    import mlc.ops\n    tanh = mlc.ops.REGISTRY['tanh']\n    right = tanh.scalar\n"
               "    object.__setattr__(tanh, 'scalar', lambda x: right(x) * 1.5)\n",
    "pass simplify": "    from mlc.passes import rules_algebra as r\n    from mlc.passes.pattern import BITWISE\n"
                     "    r.rewrite('no-sign', exact=BITWISE, match=r.term('tanh')(r.neg(r.x)), to=r.term('tanh')(r.x), why='wrong')\n",
    "graph": "    import mlc.ops, numpy as np\n    object.__setattr__(mlc.ops.REGISTRY['tanh'], 'numpy', lambda x: np.tanh(x) * np.float32(2))\n",
    "machine code": "    import mlc.runtime.executable as e\n    right = e.Program.run\n"
                    "    e.Program.run = lambda self, inputs: [o + np.float32(1) for o in right(self, inputs)]\n    import numpy as np\n",
}


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A worker in which something may be planted first."""
    def start(code=""):
        (tmp_path / "sitecustomize.py").write_text(PLANT.format(code=code or "    pass"))
        monkeypatch.syspath_prepend(str(tmp_path))
        found.append(Compiler())
        return found[-1]
    found = []
    yield start
    for each in found:
        each.stop()


def test_every_level_is_run_in_order_and_is_right():
    found = [(name, judge(GRAPH, ARGS, outputs).kind) for name, outputs in levels(GRAPH, ARGS) if outputs is not None]
    names = [name for name, _ in found]
    assert names[0] == "graph" and names[-4:] == ["kernels", "loops", "memory", "machine code"]
    assert all(name.startswith("pass ") for name in names[1:-4]) and {kind for _, kind in found} == {"ok"}


@pytest.mark.parametrize("level", BROKEN)
def test_the_broken_level_is_guilty(compiler, level):
    found = blame(compiler(BROKEN[level]), GRAPH, ARGS)
    assert found.guilty == level
    if level == "pass simplify":
        assert found.detail.endswith("(no-sign)") and found.detail.startswith("rewrite ")
    assert (found.after == "") == (level == "graph")


@pytest.mark.parametrize("code, guilty, detail", [
    ("import mlc.stages, ctypes\n    mlc.stages.Stages.run_loops = lambda *a: ctypes.string_at(0)", "loops", "SIGSEGV"),
    ("import mlc.runtime.executable as e, os, signal\n    e.Program.run = lambda *a: os.kill(os.getpid(), signal.SIGFPE)", "machine code", "SIGFPE"),
    ("import mlc.stages\n    mlc.stages.Stages.run_kernels = lambda *a: 1 / 0", "kernels", "ZeroDivisionError"),
    ("import mlc.loop.program as p\n    p.lower = lambda *a: 1 / 0", "loops", "ZeroDivisionError"),
    ("import mlc.plan as p\n    p.plan_memory = lambda *a: 1 / 0", "memory", "ZeroDivisionError"),
    ("import mlc.kernel.verify as v\n    def bad(p): raise v.VerifyError('arguments_fit', 'step 0', 1, 2)\n    v.arguments_fit = bad", "kernels",
     "arguments_fit after fuse"),
    ("import mlc.passes.simplify as s\n    def bad(*a, **k): raise KeyError('gone')\n    object.__setattr__(s.SIMPLIFY, 'function', bad)",
     "pass simplify", "KeyError"),
], ids=["crash", "trap", "level", "lowering", "plan", "check", "pass"])
def test_a_level_that_crashes_or_raises_is_guilty_by_its_own_name(compiler, code, guilty, detail):
    found = blame(compiler(f"    {code}\n"), GRAPH, ARGS, options={"check": "1"})
    assert found.guilty == guilty and detail in found.detail


BREAKS_TYPES = """
    import mlc.passes.inline as i, mlc.passes.fold as f
    from mlc.core import dtype as dt
    from mlc.graph.graph import Graph, Node
    from mlc.passes.manager import PassResult
    def breaks(graph, ctx):
        if len(graph.params) != 1 or any(n.type.dtype is dt.f64 for n in graph.nodes):
            return PassResult(graph, False, settled=True)
        new = Graph(graph.name)
        new.nodes, new.params, new.outputs = list(graph.nodes), graph.params, graph.outputs
        node = new.nodes[1]
        new.nodes[1] = Node(node.op, node.inputs, node.attrs, node.type.with_dtype(dt.f64), node.regions)
        return PassResult(new, True, settled=True)
    object.__setattr__(i.INLINE, "function", breaks)
    right = f.FOLD.function
    def picky(graph, ctx, **rest):
        if any(n.type.dtype is dt.f64 for n in graph.nodes):
            raise TypeError("two dtypes")
        return right(graph, ctx, **rest)
    object.__setattr__(f.FOLD, "function", picky)
"""


def test_a_pass_that_leaves_an_invalid_graph_is_guilty_not_the_one_that_trips_over_it(compiler):
    """Also where the case was compiled without checks, and the pass between them has rewritten something."""
    graph = parse_graph("graph @main(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  %1 = mul %x, 1.0 : f32[3]\n"
                        "  %2 = add %0, %1 : f32[3]\n  return %2\n}")
    found = blame(compiler(BREAKS_TYPES), graph, [np.arange(3, dtype=np.float32)], options={"check": "0"})
    assert found.guilty == "pass inline" and found.raised


def test_levels_are_compiled_with_the_options_of_the_case(compiler):
    broken = compiler("    import mlc.stages as s\n    from mlc.core import options as o\n    right = s.Stages.run_loops\n"
                      "    s.Stages.run_loops = lambda *a: 1 / 0 if 'fuse' in o.get('disable_passes') else right(*a)\n")
    assert blame(broken, GRAPH, ARGS).guilty == "none"
    assert blame(broken, GRAPH, ARGS, options={"disable_passes": "fuse"}).guilty == "loops"


def test_outputs_that_are_not_written_are_seen(compiler):
    found = blame(compiler("    import mlc.stages as s\n    right = s.emit_module\n"
                           "    s.emit_module = lambda calls, target, dead: right([], target, [])\n"), GRAPH, ARGS)
    assert found.guilty == "machine code"


def test_a_right_graph_has_no_guilty_level(compiler):
    assert blame(compiler(), GRAPH, ARGS).guilty == "none"
