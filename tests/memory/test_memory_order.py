"""Kernel order: legal, never above the order given, and no random order is better."""

import itertools
import random
import time

import pytest

from mlc.memory.order import Step, order_steps, peak_bytes


def random_program(count: int, width: int, rng: random.Random) -> list[Step]:
    """Steps that read up to three of the last `width` values; some values are read often, some never; some steps work in place."""
    steps = []
    for i in range(count):
        recent = range(max(0, i - width), i)
        reads = tuple(f"v{j}" for j in rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2, 3)))))
        writes = tuple((name, rng.choice((1, 64, 640, 6400, 64000, rng.randint(1, 100000)))) for name in
                       ((f"v{i}", f"w{i}") if rng.random() < 0.1 else (f"v{i}",)))
        steps.append(Step((*reads, "an_input"), writes, tuple((f"v{i}", r) for r in reads if rng.random() < 0.3)))
    return steps


def predecessors(steps: list[Step]) -> list[set[int]]:
    made_by = {name: s for s, step in enumerate(steps) for name, _ in step.writes}
    return [{made_by[r] for r in step.reads if r in made_by} for step in steps]


def random_order(before: list[set[int]], rng: random.Random) -> list[int]:
    missing = [set(b) for b in before]
    order: list[int] = []
    ready = [s for s, m in enumerate(missing) if not m]
    after = [[t for t, b in enumerate(before) if s in b] for s in range(len(before))]
    while ready:
        s = ready.pop(rng.randrange(len(ready)))
        order.append(s)
        for t in after[s]:
            missing[t].discard(s)
            if not missing[t]:
                ready.append(t)
    return order


def alive_at_most(steps: list[Step], order: list[int], keep: frozenset[str] = frozenset()) -> int:
    """The peak from its definition, without in-place pairs: what was written and is still to be read (or kept), plus what the step writes."""
    position = {s: i for i, s in enumerate(order)}
    size = {name: -(-n // 64) * 64 for step in steps for name, n in step.writes}
    born = {name: position[s] for s, step in enumerate(steps) for name, _ in step.writes}
    dies = {name: max([born[name]] + [position[s] for s, step in enumerate(steps) if name in step.reads]) for name in size}
    dies.update({name: len(order) for name in keep if name in dies})
    return max(sum(size[v] for v in size if born[v] <= at <= dies[v]) for at in range(len(order)))


@pytest.mark.parametrize("seed", range(10))
def test_the_peak_is_what_is_alive_together(seed):
    rng = random.Random(seed)
    steps = [Step(s.reads, s.writes) for s in random_program(20, 6, rng)]
    order = random_order(predecessors(steps), rng)
    assert peak_bytes(steps, order) == alive_at_most(steps, order)
    keep = frozenset(f"v{i}" for i in range(0, 20, 3))
    assert peak_bytes(steps, order, keep=keep) == alive_at_most(steps, order, keep)


def test_in_place_pairs_share_when_the_operand_dies():
    steps = [Step((), (("a", 640),)), Step(("a",), (("b", 640),), (("b", "a"),)), Step(("a",), (("c", 64),)), Step(("b", "c"), (("d", 64),))]
    assert peak_bytes(steps, [0, 1, 2, 3]) == 640 + 640 + 64
    assert peak_bytes(steps, [0, 2, 1, 3]) == 640 + 64 + 64 == peak_bytes(steps, order_steps(steps))


@pytest.mark.parametrize("count,width", [(4, 4), (6, 3), (9, 9), (12, 5), (18, 18), (25, 6), (35, 35), (50, 10)])
def test_no_random_order_is_better(count, width):
    for seed in range(3):
        rng = random.Random(count * 100 + seed)
        steps = random_program(count, width, rng)
        before = predecessors(steps)
        order = order_steps(steps)
        assert sorted(order) == list(range(count))
        found = peak_bytes(steps, order)
        assert found <= peak_bytes(steps, range(count))
        assert found <= min(peak_bytes(steps, random_order(before, rng)) for _ in range(1000))


@pytest.mark.parametrize("seed", range(25))
def test_small_programs_get_the_best_order_there_is(seed):
    rng = random.Random(seed)
    steps = random_program(7, 7, rng)
    before = predecessors(steps)
    best = min(peak_bytes(steps, order) for order in itertools.permutations(range(7))
               if all(before[s] <= set(order[:i]) for i, s in enumerate(order)))
    assert peak_bytes(steps, order_steps(steps)) == best


def attention_heads(heads: int) -> list[Step]:
    """All queries, then all keys, ...: the way a traced loop over heads after a batched projection comes out."""
    steps = [Step((), (("x", 16384),))]
    for part, size, reads in (("q", 4096, "x"), ("k", 4096, "x"), ("v", 4096, "x"), ("s", 25600, "qk"), ("p", 25600, "s"), ("o", 4096, "pv")):
        for h in range(heads):
            names = tuple(r if r == "x" else f"{r}{h}" for r in reads)
            steps.append(Step(names, ((f"{part}{h}", size),), ((f"{part}{h}", names[0]),) if part == "p" else ()))
    return [*steps, Step(tuple(f"o{h}" for h in range(heads)), (("y", 16384),))]


@pytest.mark.parametrize("heads", [2, 4, 8, 12])
def test_attention_heads_run_one_by_one(heads):
    steps = attention_heads(heads)
    one_by_one = [0, *(1 + part * heads + h for h in range(heads) for part in range(6)), len(steps) - 1]
    found = peak_bytes(steps, order_steps(steps))
    assert found <= peak_bytes(steps, one_by_one) < peak_bytes(steps, range(len(steps)))


def test_a_tree_is_evaluated_its_hungrier_side_first():
    """Sethi and Ullman: the side that needs more while it runs goes first, as the other's result is small."""
    steps = [Step((), (("a", 64),)), Step((), (("b0", 6400),)), Step(("b0",), (("b", 64),)), Step(("a", "b"), (("c", 64),))]
    assert order_steps(steps) == [1, 2, 0, 3]


@pytest.mark.parametrize("steps", [[], [Step((), (("a", 1),))], [Step((f"v{i - 1}",), ((f"v{i}", 64 * (i % 5)),)) for i in range(300)]])
def test_a_program_that_cannot_gain_stays_as_it_is(steps):
    assert order_steps(steps) == list(range(len(steps)))


def test_dependencies_beyond_reads_are_kept():
    steps = [Step((), (("a", 64),)), Step((), (("b0", 6400),)), Step(("b0",), (("b", 64),)), Step(("a", "b"), (("c", 64),))]
    deps = [[], [0], [], []]
    order = order_steps(steps, deps)
    assert order.index(0) < order.index(1)
    with pytest.raises(ValueError, match="too early"):
        peak_bytes(steps, [1, 2, 0, 3], deps)


def test_kept_values_stay_alive():
    steps = [Step((), (("a", 6400),)), Step(("a",), (("b", 64),)), Step((), (("c", 640),))]
    assert peak_bytes(steps, [0, 1, 2]) == 6464 and peak_bytes(steps, [0, 1, 2], keep=("a", "b")) == 6400 + 64 + 640


def test_wrong_programs_are_refused():
    with pytest.raises(ValueError, match="written twice"):
        order_steps([Step((), (("a", 1),)), Step((), (("a", 1),))])
    with pytest.raises(ValueError, match="too early"):
        order_steps([Step(("a",), (("b", 1),)), Step((), (("a", 1),))])
    with pytest.raises(ValueError, match="twice"):
        peak_bytes([Step((), (("a", 1),))], [0, 0])


@pytest.mark.parametrize("width", [3, 10, 5000])
def test_5000_steps_are_ordered_in_time(width):
    steps = random_program(5000, width, random.Random(1))
    start = time.process_time()
    order = order_steps(steps)
    assert time.process_time() - start < 10
    assert peak_bytes(steps, order) <= peak_bytes(steps, range(5000))


def test_order_is_deterministic():
    steps = random_program(60, 12, random.Random(2))
    assert order_steps(steps) == order_steps(list(steps))
