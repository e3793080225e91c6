"""Memory plans: close to the lower bound, right when played out byte by byte, readable, and refused when broken by hand."""

import dataclasses
import random
import time

import numpy as np
import pytest

from mlc.core.errors import ParseError, VerifyError
from mlc.memory.plan import MemoryPlan, Request, parse_plan, plan_memory
from mlc.memory.verify import INVARIANTS, verify_plan


# --------------------------------------------------------------------------- programs like those of real models
def transformer(layers: int, rng: random.Random) -> list[Request]:
    """Blocks of attention and MLP with residuals that live across; softmax and the activation may work in place."""
    tokens, width = rng.choice([17, 128, 197]), rng.choice([256, 768, 1000])
    # part, width, which earlier part of the block it reads ("" is the block's input), what it may overwrite
    block = (("norm", width, ("",), ""), ("qkv", 3 * width, ("norm",), ""), ("scores", 12 * tokens, ("qkv",), ""),
             ("probs", 12 * tokens, ("scores",), "scores"), ("attn", width, ("probs", "qkv"), ""), ("res", width, ("attn", ""), "attn"),
             ("norm2_", width, ("res",), ""), ("up", 4 * width, ("norm2_",), ""), ("act", 4 * width, ("up",), "up"),
             ("down", width, ("act", "res"), ""))
    born, last, made = {"x": 0}, {"x": 0}, [("x", width, "")]
    source = "x"
    for layer in range(layers):
        for part, size, reads, over in block:
            name, step = f"{part}{layer}", len(made)
            for r in reads:
                last[f"{r}{layer}" if r else source] = step
            born[name] = last[name] = step
            made.append((name, size, f"{over}{layer}" if over else ""))
        source = f"down{layer}"
    return [Request(name, 4 * tokens * size, born[name], last[name], (over,) if over else (), f"f32[{tokens},{size}]") for name, size, over in made]


def chain_with_skips(count: int, rng: random.Random) -> list[Request]:
    """A CNN: mostly used by the next step, some by a step further on; many steps keep the size and can work in place."""
    found: list[Request] = []
    for i in range(count):
        reach = rng.choices((1, rng.randint(2, 8), rng.randint(10, 60)), (0.78, 0.2, 0.02))[0]
        size = found[-1].nbytes if found and rng.random() < 0.5 else rng.choice((1 << 20, 3 << 18, 605184, 4000, 64, 1, rng.randint(1, 1 << 20)))
        share = tuple(r.name for r in found[-3:] if r.last == i and r.nbytes == size and rng.random() < 0.7)
        found.append(Request(f"b{i}", size, i, min(i + reach, count), share))
    return found


def unet(count: int, rng: random.Random) -> list[Request]:
    """Large maps of the way down are read on the way up."""
    found = []
    for i in range(count):
        depth = min(i, count - 1 - i)
        last = count - 1 - i if i < count // 2 and i % 4 == 0 else i + 1
        found.append(Request(f"b{i}", ((1 << 22) >> depth // 4) + 64, i, max(last, i + 1)))
    return found


def training(count: int, rng: random.Random) -> list[Request]:
    """Activations are read again in reverse by the backward pass."""
    half, size = count // 2, lambda: rng.choice((1 << 16, 1 << 18, 3 << 16, rng.randint(100, 1 << 18)))
    forward = [Request(f"a{i}", size(), i, count - 1 - i) for i in range(half)]
    return forward + [Request(f"g{i}", size(), i, min(count, i + rng.randint(1, 3))) for i in range(half, count)]


def anything(count: int, rng: random.Random) -> list[Request]:
    """Lifetimes and sizes at random, in-place wishes of all kinds (buffers of any two sizes)."""
    found: list[Request] = []
    for i in range(count):
        first = rng.randrange(count)
        last = min(count, first + int(rng.expovariate(1 / 6)))
        share = tuple(r.name for r in found if r.last == first and rng.random() < 0.5)
        found.append(Request(f"b{i}", int(rng.lognormvariate(6, 2)), first, last, (*share, "an_input")))
    return found


MODELS = (transformer, chain_with_skips, unet, training, anything)


def play(requests: list[Request], plan: MemoryPlan) -> None:
    """Run the program on bytes: every buffer holds its own pattern from its first step to its last, unless taken over in its last."""
    arena = np.full(plan.arena_bytes, -1, np.int64)
    place = {p.name: p for p in plan.placements}
    number = {r.name: i for i, r in enumerate(requests)}
    taken_by = {p.in_place_of: p.name for p in plan.placements if p.in_place_of}
    for step in sorted({s for r in requests for s in (r.first, r.last)}):
        alive = [r for r in requests if r.first <= step <= r.last]
        for r in alive:
            if r.first < step:
                here = arena[place[r.name].offset:place[r.name].offset + r.nbytes]
                assert (here == number[r.name]).all(), f"%{r.name} is overwritten before step {step}"
        for r in alive:
            if r.first == step:
                arena[place[r.name].offset:place[r.name].offset + r.nbytes] = number[r.name]
        for r in alive:
            if not (r.last == step and r.name in taken_by):
                here = arena[place[r.name].offset:place[r.name].offset + r.nbytes]
                assert (here == number[r.name]).all(), f"%{r.name} is overwritten at step {step}"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [1, 2, 7, 30, 120])
def test_plans_are_right_and_close_to_the_lower_bound(model, size):
    for seed in range(6):
        requests = model(size, random.Random(seed))
        plan = verify_plan(requests, plan_memory(requests))
        assert plan.lower_bound <= plan.arena_bytes <= 1.10 * plan.lower_bound
        assert parse_plan(plan.text()) == plan
        if size <= 30 and plan.arena_bytes < 1 << 22:
            play(requests, plan)


def most_alive(requests: list[Request], plan: MemoryPlan) -> int:
    """The lower bound from its definition: a chain of in-place buffers counts once a step, as its largest live member."""
    roots, most = plan.alias_classes(), 0
    for step in range(max(r.last for r in requests) + 1):
        classes: dict[str, int] = {}
        for r in requests:
            if r.first <= step <= r.last:
                classes[roots[r.name]] = max(classes.get(roots[r.name], 0), -(-r.nbytes // 64) * 64)
        most = max(most, sum(classes.values()))
    return most


@pytest.mark.parametrize("model", MODELS)
def test_the_lower_bound_is_what_is_alive_together(model):
    for seed in range(4):
        requests = model(25, random.Random(seed))
        plan = plan_memory(requests)
        if plan.ratio == 1.0:
            assert plan.lower_bound == most_alive(requests, plan)
        assert plan.lower_bound <= most_alive(requests, plan)


@pytest.mark.parametrize("model", MODELS[1:])
def test_5000_buffers_are_planned_in_time_and_well(model):
    requests = model(5000, random.Random(0))
    start = time.process_time()
    plan = plan_memory(requests)
    assert time.process_time() - start < 5
    assert plan.ratio <= 1.05
    verify_plan(requests, plan)


def test_lifetimes_that_all_cross_are_planned_in_time_and_well():
    rng = random.Random(3)
    requests = []
    for i in range(1500):
        first, last = sorted((rng.randrange(1500), rng.randrange(1500)))
        requests.append(Request(f"b{i}", int(rng.lognormvariate(9, 2)) + 1, first, last))
    start = time.process_time()
    plan = plan_memory(requests)
    assert time.process_time() - start < 5 and plan.ratio <= 1.08
    verify_plan(requests, plan)


def test_plans_do_not_depend_on_anything_but_the_requests():
    requests = anything(200, random.Random(5))
    assert plan_memory(requests) == plan_memory(list(requests))


# --------------------------------------------------------------------------- in place
def test_an_elementwise_chain_lives_in_one_place():
    requests = [Request(f"h{i}", 4096, i, i + 1, (f"h{i - 1}",) if i else ()) for i in range(10)]
    plan = plan_memory(requests)
    assert plan.arena_bytes == plan.lower_bound == 4096
    assert set(plan.alias_classes().values()) == {"h0"}


def test_a_chain_that_shrinks_gives_back_its_tail():
    """b takes over the front of a; what a leaves free is used by c while b lives on."""
    requests = [Request("a", 6400, 0, 1), Request("b", 64, 1, 9, ("a",)), Request("c", 6336, 2, 3)]
    plan = plan_memory(requests)
    assert plan.arena_bytes == plan.lower_bound == 6400
    assert plan.offsets() == {"a": 0, "b": 0, "c": 64}


def test_a_chain_that_grows_only_reserves_when_it_has_grown():
    requests = [Request("a", 64, 0, 1), Request("b", 6400, 1, 9, ("a",)), Request("c", 6336, 0, 0)]
    plan = plan_memory(requests)
    assert plan.arena_bytes == plan.lower_bound == 6400


def test_only_one_of_two_outputs_takes_over_an_input():
    requests = [Request("x", 640, 0, 1), Request("y", 640, 1, 2, ("x",)), Request("z", 640, 1, 2, ("x",))]
    plan = plan_memory(requests)
    assert plan.arena_bytes == 1280 and len(set(plan.alias_classes().values())) == 2


def test_the_larger_saving_is_preferred():
    requests = [Request("big", 6400, 0, 1), Request("small", 64, 0, 1), Request("y", 6400, 1, 2, ("small", "big"))]
    assert {p.name: p.in_place_of for p in plan_memory(requests).placements}["y"] == "big"


@pytest.mark.parametrize("first,last", [(0, 3), (2, 2), (0, 1)])
def test_nothing_takes_over_a_buffer_that_is_read_later_or_dead_at_birth_or_dead_before(first, last):
    requests = [Request("a", 64, first, last), Request("b", 64, 2, 4, ("a",))]
    assert not any(p.in_place_of for p in plan_memory(requests).placements)


def test_empty_buffers_and_empty_programs_need_nothing():
    assert plan_memory([]) == MemoryPlan((), 0, 0) and plan_memory([]).ratio == 1.0
    requests = [Request("nothing", 0, 0, 5), Request("a", 100, 0, 5), Request("b", 1, 0, 0)]
    plan = verify_plan(requests, plan_memory(requests))
    assert plan.arena_bytes == 192 and parse_plan(plan.text()) == plan


@pytest.mark.parametrize("requests", [
    [Request("a", 1, 0, 1), Request("a", 1, 2, 3)], [Request("a", 1, 3, 2)], [Request("a", -1, 0, 1)], [Request("a b", 1, 0, 1)],
    [Request("", 1, 0, 1)]])
def test_impossible_requests_are_refused(requests):
    with pytest.raises(ValueError, match=r"%|name"):
        plan_memory(requests)


# --------------------------------------------------------------------------- text
def test_a_person_can_read_a_plan():
    requests = [Request("h1", 131072, 0, 1, (), "f32[64,512]"), Request("h2", 131072, 1, 2, (), "f32[64,512]"),
                Request("h3", 512, 2, 3, ("h2",), "f32[128]")]
    assert plan_memory(requests).text() == (
        "memory  arena 262,144 B  peak/lower bound 1.00 (262,144 B)\n"
        "  [0, 131,072)        %h1  f32[64,512]  live k0..k1\n"
        "  [131,072, 262,144)  %h2  f32[64,512]  live k1..k2\n"
        "  [131,072, 131,584)  %h3  f32[128]     live k2..k3  in place of %h2\n")


@pytest.mark.parametrize("text,line", [("", 1), ("memory  arena x B", 1), ("memory  arena 0 B  peak/lower bound 1.00 (0 B)\n  nonsense\n", 2)])
def test_text_that_is_no_plan_says_which_line(text, line):
    with pytest.raises(ParseError, match=f"line {line}"):
        parse_plan(text)


# --------------------------------------------------------------------------- the verifier
GOOD = [Request("a", 100, 0, 2), Request("b", 200, 1, 3), Request("c", 100, 2, 4, ("a",)), Request("d", 64, 3, 3)]


def changed(which: str, **fields) -> MemoryPlan:
    plan = plan_memory(GOOD)
    return dataclasses.replace(plan, placements=tuple(dataclasses.replace(p, **fields) if p.name == which else p for p in plan.placements))


def without(name: str) -> MemoryPlan:
    plan = plan_memory(GOOD)
    return dataclasses.replace(plan, placements=tuple(p for p in plan.placements if p.name != name))


def twice(name: str) -> MemoryPlan:
    plan = plan_memory(GOOD)
    return dataclasses.replace(plan, placements=plan.placements + tuple(p for p in plan.placements if p.name == name))


BROKEN = [
    ("every_request_is_placed_once", "one left out", lambda: without("b")),
    ("every_request_is_placed_once", "one placed twice", lambda: twice("b")),
    ("every_request_is_placed_once", "too small", lambda: changed("b", nbytes=100)),
    ("every_request_is_placed_once", "dies too early", lambda: changed("b", last=2)),
    ("every_request_is_placed_once", "born too late", lambda: changed("b", first=2)),
    ("every_request_is_placed_once", "one nobody asked for", lambda: changed("b", name="e")),
    ("placements_are_aligned_and_inside", "not aligned", lambda: changed("d", offset=1000 * 64 + 32)),
    ("placements_are_aligned_and_inside", "past the end", lambda: changed("d", offset=plan_memory(GOOD).arena_bytes)),
    ("placements_are_aligned_and_inside", "before the start", lambda: changed("d", offset=-64)),
    ("placements_are_aligned_and_inside", "arena too small", lambda: dataclasses.replace(plan_memory(GOOD), arena_bytes=256)),
    ("buffers_alive_together_never_overlap", "on a live buffer", lambda: changed("d", offset=plan_memory(GOOD).offsets()["b"])),
    ("buffers_alive_together_never_overlap", "partly on a live buffer", lambda: changed("a", offset=plan_memory(GOOD).offsets()["b"] + 64)),
    ("buffers_alive_together_never_overlap", "in place without saying so", lambda: changed("c", in_place_of="")),
    ("buffers_alive_together_never_overlap", "in place where that is not allowed",
     lambda: changed("d", in_place_of="b", offset=plan_memory(GOOD).offsets()["b"])),
]


@pytest.mark.parametrize("invariant,name,broken", BROKEN, ids=[f"{b[0]}: {b[1]}" for b in BROKEN])
def test_a_broken_plan_is_refused_by_its_invariant(invariant, name, broken):
    verify_plan(GOOD, plan_memory(GOOD))
    with pytest.raises(VerifyError) as caught:
        verify_plan(GOOD, broken())
    assert caught.value.invariant == invariant


def test_a_takeover_must_start_where_the_old_buffer_does():
    requests = [Request("a", 128, 0, 1), Request("b", 64, 1, 2, ("a",))]
    plan = plan_memory(requests)
    moved = tuple(dataclasses.replace(p, offset=64) if p.name == "b" else p for p in plan.placements)
    with pytest.raises(VerifyError, match="never_overlap"):
        verify_plan(requests, dataclasses.replace(plan, placements=moved))


def test_two_buffers_cannot_take_over_the_same_one():
    requests = [Request("a", 64, 0, 1), Request("b", 64, 1, 2, ("a",)), Request("c", 64, 1, 2, ("a",))]
    plan = plan_memory(requests)
    both = tuple(dataclasses.replace(p, offset=0, in_place_of="a" if p.name != "a" else "") for p in plan.placements)
    with pytest.raises(VerifyError, match=r"%[bc] and %[bc]"):
        verify_plan(requests, dataclasses.replace(plan, placements=both))


def test_a_buffer_still_read_later_cannot_be_taken_over():
    requests = [Request("a", 64, 0, 3), Request("b", 64, 1, 2, ("a",))]
    plan = plan_memory(requests)
    both = tuple(dataclasses.replace(p, offset=0, in_place_of="a" if p.name == "b" else "") for p in plan.placements)
    with pytest.raises(VerifyError, match="never_overlap"):
        verify_plan(requests, dataclasses.replace(plan, placements=both))


def test_every_invariant_has_a_plan_that_breaks_it():
    from test_memory_outputs import BROKEN as WITH_OUTPUTS
    from test_workspace import BROKEN as WITH_SCRATCH
    assert {f.__name__ for f in INVARIANTS} == {b[0] for b in (*BROKEN, *WITH_OUTPUTS, *WITH_SCRATCH)}
