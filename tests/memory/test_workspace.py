"""Scratch of a running kernel lies in the workspace of its thread: planned, verified, poisoned and told apart from the arena."""

import dataclasses
import threading

import numpy as np
import pytest

import mlc
from mlc.core.errors import VerifyError
from mlc.memory.plan import MemoryPlan, Request, parse_plan, plan_memory
from mlc.memory.verify import verify_plan
from mlc.plan import WORKSPACE_LIMIT

STEPS = [Request("h", 640, 0, 1, (), "f32[160]"), Request("0.b", 100, 0, 0, (), "f32[25]", scratch=True),
         Request("0.a", 64, 0, 0, (), "f32[16]", scratch=True), Request("1.b", 320, 1, 1, (), "f32[80]", scratch=True)]


def changed(which: str, **fields) -> MemoryPlan:
    plan = plan_memory(STEPS)
    return dataclasses.replace(plan, placements=tuple(dataclasses.replace(p, **fields) if p.name == which else p for p in plan.placements))


def test_steps_have_the_workspace_one_after_the_other():
    plan = verify_plan(STEPS, plan_memory(STEPS))
    assert plan.text() == (
        "memory  arena 640 B  peak/lower bound 1.00 (640 B)  workspace 320 B\n"
        "  [0, 640)              %h    f32[160]  live k0..k1\n"
        "  %workspace[0, 100)    %0.b  f32[25]   live k0..k0\n"
        "  %workspace[0, 320)    %1.b  f32[80]   live k1..k1\n"
        "  %workspace[128, 192)  %0.a  f32[16]   live k0..k0\n")
    assert parse_plan(plan.text()) == plan


BROKEN = [
    ("scratch_alone_is_in_the_workspace", "scratch in the arena", lambda: changed("0.a", home="", offset=0)),
    ("scratch_alone_is_in_the_workspace", "what outlives a step", lambda: dataclasses.replace(changed("h", home="workspace"), workspace_bytes=640)),
    ("placements_are_aligned_and_inside", "workspace too small", lambda: dataclasses.replace(plan_memory(STEPS), workspace_bytes=256)),
    ("placements_are_aligned_and_inside", "not aligned", lambda: changed("1.b", offset=32)),
    ("buffers_alive_together_never_overlap", "two of one step", lambda: changed("0.a", offset=64)),
]


@pytest.mark.parametrize("invariant,name,broken", BROKEN, ids=[f"{b[0]}: {b[1]}" for b in BROKEN])
def test_a_broken_workspace_is_refused_by_its_invariant(invariant, name, broken):
    with pytest.raises(VerifyError) as caught:
        verify_plan(STEPS, broken())
    assert caught.value.invariant == invariant


def test_scratch_is_for_one_step():
    with pytest.raises(ValueError, match=r"steps 0\.\.1"):
        plan_memory([Request("a", 64, 0, 1, scratch=True)])


def product(rows: int, depth: int, columns: int):
    """x @ w, whose panels of w are copied, its arguments, and what NumPy gives in float64."""
    rng = np.random.default_rng(depth)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (depth, columns)))
    return mlc.jit(lambda x, w: x @ w).lower(x, w).compile(), (x, w), x.astype(np.float64) @ w


def test_a_copied_panel_is_no_temporary_of_the_program():
    exe, _, _ = product(300, 1024, 640)
    memory = exe.memory_analysis()
    assert memory["arena"] == memory["max live"] == 0 and memory["workspace"] >= 1024 * 16 * 4
    assert memory["scratch per worker"] in (0, memory["workspace"])


def test_more_than_a_workspace_holds_is_in_the_arena():
    x, w = mlc.spec("f16[64,60000]"), mlc.spec("f32[60000,4096]")  # rows of x are converted once for all panels
    memory = mlc.jit(lambda x, w: x.astype("f4") @ w).lower(x, w).compile().memory_analysis()
    assert memory["workspace"] <= WORKSPACE_LIMIT < memory["arena"]


def test_the_workspace_is_dead_before_each_step():
    with mlc.options(check=1, cache=False):
        exe, args, wanted = product(300, 1024, 640)
        assert "; mlc_poison(4, #" in exe.as_text("llvm")
        np.testing.assert_allclose(exe(*args), wanted, rtol=0, atol=1e-3)


def test_calls_that_overlap_and_saved_programs_have_workspaces_of_their_own(tmp_path):
    exe, args, _ = product(300, 1024, 640)
    exe.save(tmp_path / "product.mlc")
    loaded = mlc.load(tmp_path / "product.mlc")
    assert loaded.memory_analysis() == exe.memory_analysis()
    given = [(args[0] * np.float32(k), args[1]) for k in range(1, 5)]
    wanted = [exe(*each).tobytes() for each in given]
    wrong = []

    def work(k: int) -> None:
        for _ in range(20):
            if any(each(*given[k]).tobytes() != wanted[k] for each in (exe, loaded)):
                wrong.append(k)
    with mlc.options(threads=2):
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_forked_child_has_a_workspace(in_a_child):
    exe, args, _ = product(300, 1024, 640)
    wanted = exe(*args).tobytes()
    assert in_a_child(lambda: exe(*args).tobytes() == wanted)
