"""Outputs as memory: temporaries lie in them until they are written, the plan stays right byte by byte, and the verifier knows it."""

import dataclasses
import random

import numpy as np
import pytest
from test_memory_plan import MODELS

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.errors import VerifyError
from mlc.kernel.ir import Kernel, KernelGraph, Param, Step, Value
from mlc.memory.plan import MemoryPlan, Request, parse_plan, plan_memory
from mlc.memory.verify import verify_plan
from mlc.plan import ProgramPlan, order_program

BLOCK = [Request("norm", 640, 1, 2), Request("sum", 640, 0, 3), Request("hidden", 2560, 2, 3), Request("out", 640, 3, 4, ("sum",), own=True)]


def with_outputs(requests: list[Request], count: int, rng: random.Random) -> list[Request]:
    """Some buffers, among them the last, made outputs, which stay to the end."""
    end = max(r.last for r in requests) + 1
    chosen = {r.name for r in rng.sample(requests[:-1], min(len(requests) - 1, count))} | {requests[-1].name}
    return [dataclasses.replace(r, last=end, own=True) if r.name in chosen else r for r in requests]


def play(requests: list[Request], plan: MemoryPlan) -> None:
    """Run the program on bytes, each home a memory of its own: every buffer holds its own pattern from its first step to its last."""
    sizes = {"": plan.arena_bytes, **{r.name: r.nbytes for r in requests if r.own}}
    memory = {home: np.full(size, -1, np.int64) for home, size in sizes.items()}
    place = {p.name: (p.home, p.offset) for p in plan.placements}
    place.update({r.name: (r.name, 0) for r in requests if r.own})
    taken_by = {p.in_place_of for p in plan.placements if p.in_place_of}

    def bytes_of(r: Request) -> np.ndarray:
        home, offset = place[r.name]
        found = memory[home][offset:offset + r.nbytes]
        assert found.size == r.nbytes
        return found
    for step in range(max(r.last for r in requests) + 1):
        alive = [(i, r) for i, r in enumerate(requests) if r.first <= step <= r.last]
        assert all((bytes_of(r) == i).all() for i, r in alive if r.first < step)
        for i, r in alive:
            if r.first == step:
                bytes_of(r)[:] = i
        assert all((bytes_of(r) == i).all() for i, r in alive if not (r.last == step and r.name in taken_by))


def test_what_the_last_kernel_reads_and_writes_at_the_same_index_lies_in_the_output():
    plan = verify_plan(BLOCK, plan_memory(BLOCK))
    assert {p.name: (p.home, p.in_place_of) for p in plan.placements} == {
        "norm": ("", ""), "hidden": ("", ""), "sum": ("out", ""), "out": ("out", "sum")}
    assert plan.arena_bytes == plan.lower_bound == 640 + 2560
    assert plan.text().splitlines()[-2:] == ["  %out[0, 640)  %sum     live k0..k3", "  %out[0, 640)  %out     live k3..k4  in place of %sum"]


def test_several_temporaries_share_an_output_before_it_is_written():
    requests = [Request("a", 640, 0, 1), Request("b", 600, 1, 2), Request("c", 320, 2, 3), Request("d", 320, 2, 3), Request("e", 64, 3, 4),
                Request("out", 1280, 4, 5, own=True)]
    plan = verify_plan(requests, plan_memory(requests))
    assert plan.arena_bytes == 64  # what the last kernel reads
    assert {p.home for p in plan.placements if p.name in "abcd"} == {"out"}


def test_the_larger_temporary_of_the_worst_step_goes_into_the_output():
    requests = [Request("small", 64, 0, 2), Request("large", 640, 0, 1), Request("last", 64, 1, 2), Request("out", 640, 2, 3, own=True)]
    plan = verify_plan(requests, plan_memory(requests))
    assert {p.name for p in plan.placements if p.home} == {"large", "out"} and plan.arena_bytes == 128


@pytest.mark.parametrize("requests", [
    [Request("a", 640, 0, 1), Request("out", 600, 1, 2, ("a",), own=True)],                                    # too large for it
    [Request("a", 640, 0, 1), Request("b", 64, 1, 2, ("a",)), Request("out", 64, 2, 3, ("b",), own=True)],      # the first of a chain is
    [Request("a", 64, 0, 1), Request("out", 64, 1, 2, own=True)],                                              # read while it is written
    [Request("a", 64, 0, 2), Request("out", 64, 1, 3, ("a",), own=True)],                                      # read later
    [Request("out", 64, 0, 3, own=True), Request("a", 64, 1, 2, ("out",))]])                                   # the output is written first
def test_what_does_not_fit_in_time_or_space_stays_in_the_arena(requests):
    plan = verify_plan(requests, plan_memory(requests))
    assert {p.name: p.home for p in plan.placements}["a"] == ""


def test_no_output_takes_over_another():
    requests = [Request("one", 64, 0, 3, own=True), Request("two", 64, 1, 3, ("one",), own=True)]
    assert verify_plan(requests, plan_memory(requests)).placements == ()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_plans_with_outputs_are_right_and_never_need_more(model, size):
    for seed in range(6):
        rng = random.Random(seed)
        requests = with_outputs(model(size, rng), rng.randrange(3), rng)
        plan = verify_plan(requests, plan_memory(requests))
        plain = plan_memory([r for r in requests if not r.own])
        assert plan.lower_bound <= plan.arena_bytes <= 1.10 * plan.lower_bound and plan.arena_bytes <= 1.05 * plain.arena_bytes
        assert plan.lower_bound <= plain.lower_bound and parse_plan(plan.text()) == plan
        if sum(r.nbytes for r in requests) < 1 << 23:
            play(requests, plan)


# --------------------------------------------------------------------------- the verifier
def changed(which: str, **fields) -> MemoryPlan:
    plan = plan_memory(BLOCK)
    return dataclasses.replace(plan, placements=tuple(dataclasses.replace(p, **fields) if p.name == which else p for p in plan.placements))


BROKEN = [
    ("every_request_is_placed_once", "an output that holds something is not told",
     lambda: dataclasses.replace(plan_memory(BLOCK), placements=tuple(p for p in plan_memory(BLOCK).placements if p.name != "out"))),
    ("placements_are_aligned_and_inside", "larger than the output", lambda: changed("hidden", home="out", offset=0)),
    ("placements_are_aligned_and_inside", "in what is no output", lambda: changed("norm", home="hidden")),
    ("outputs_are_at_home", "an output in the arena", lambda: changed("out", home="")),
    ("outputs_are_at_home", "an output further on", lambda: changed("out", offset=0, home="out", last=4)),
    ("buffers_alive_together_never_overlap", "two temporaries in an output at once", lambda: changed("norm", home="out", offset=0)),
    ("buffers_alive_together_never_overlap", "read while the output is written, elsewhere than in place", lambda: changed("out", in_place_of="")),
]


@pytest.mark.parametrize("invariant,name,broken", BROKEN, ids=[f"{b[0]}: {b[1]}" for b in BROKEN])
def test_a_broken_use_of_outputs_is_refused_by_its_invariant(invariant, name, broken):
    requests = [dataclasses.replace(r, last=4) if r.name == "hidden" and name == "an output further on" else r for r in BLOCK]
    plan = broken()
    plan = dataclasses.replace(plan, placements=tuple(
        dataclasses.replace(p, last=next(r.last for r in requests if r.name == p.name)) for p in plan.placements))
    with pytest.raises(VerifyError) as caught:
        verify_plan(requests, plan)
    assert caught.value.invariant == invariant


# --------------------------------------------------------------------------- programs
def random_program(count: int, width: int, outputs: int, rng: random.Random) -> KernelGraph:
    """Steps that read up to three of the last `width` values, some in place; the last values that nothing reads are outputs, and another."""
    values, steps = {}, []
    for i in range(count):
        recent = range(max(0, i - width), i)
        reads = [f"v{j}" for j in rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2, 3))))]
        over = [r for r in reads if rng.random() < 0.3][:1]
        size = values[over[0]].type.size if over else rng.choice((16, 160, 1600, 16000, rng.randint(1, 25000)))
        values[f"v{i}"] = Value(f"v{i}", TensorType((size,), dt.f32), "temp", i)
        params = [*(Param(f"a{k}", values[r].type, "in") for k, r in enumerate(reads)), Param("o0", values[f"v{i}"].type, "out")]
        alias = frozenset((f"a{reads.index(r)}", "o0") for r in over)
        steps.append(Step(Kernel(f"k{i}", tuple(params), (), (), alias), (*reads, f"v{i}")))
    unread = [v for v in values if not any(v in s.reads() for s in steps)]
    found = tuple(dict.fromkeys([*unread, *rng.sample(sorted(values), outputs)]))
    values.update({o: dataclasses.replace(values[o], role="output") for o in found})
    return KernelGraph("random", values, steps, (), found)


def random_order(steps: list[Step], rng: random.Random) -> list[Step]:
    made = {s.writes()[0]: k for k, s in enumerate(steps)}
    left, done, order = set(range(len(steps))), set(), []
    while left:
        k = rng.choice(sorted(k for k in left if {made[r] for r in steps[k].reads()} <= done))
        order.append(steps[k])
        left.discard(k)
        done.add(k)
    return order


@pytest.mark.parametrize("count,width,outputs", [(6, 3, 1), (9, 9, 1), (12, 5, 0), (18, 18, 2), (25, 6, 1)])
def test_no_random_order_of_a_program_with_outputs_has_a_smaller_arena(count, width, outputs):
    rng = random.Random(count)
    program = random_program(count, width, outputs, rng)
    spilled = {s.kernel: () for s in program.steps}

    def arena(steps: list[Step]) -> int:
        plan = ProgramPlan(dataclasses.replace(program, steps=steps), spilled)
        return verify_plan(plan.requests, plan.memory).arena_bytes
    found = arena(order_program(program, spilled).steps)
    assert found <= min(arena(random_order(program.steps, rng)) for _ in range(1000))


def test_dead_memory_is_poisoned_in_outputs_too():
    types = {name: TensorType((size,), dt.f32) for name, size in (("x", 160), ("a", 160), ("b", 640), ("out", 160))}
    values = {name: Value(name, type, {"x": "input", "out": "output"}.get(name, "temp"), 0) for name, type in types.items()}

    def step(target: str, *reads: str) -> Step:
        params = [*(Param(f"a{k}", types[r], "in") for k, r in enumerate(reads)), Param("o0", types[target], "out")]
        return Step(Kernel(target, tuple(params), (), ()), (*reads, target))
    program = KernelGraph("p", values, [step("a", "x"), step("b", "a"), step("out", "b")], ("x",), ("out",))
    plan = ProgramPlan(program, {s.kernel: () for s in program.steps})
    assert plan.places(0, program.steps[0]) == [(0, 0), (1, 0)] and plan.memory.arena_bytes == 2560
    assert plan.dead_before(0) == [((1, 0), 640), ((2, 0), 2560)]  # the output and the arena, whole
    assert plan.dead_before(2) == [((1, 0), 640)]                  # %a, before the output is written where it was
