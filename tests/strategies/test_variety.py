"""What the campaign's stream is made of: rewrite rules, near misses, near-duplicates, long graphs, twins, notable numbers."""

import random
from collections import Counter

import numpy as np
import pytest
from mlc_strategies import Config, Palette, build, values
from mlc_strategies.attention import attention
from mlc_strategies.draws import RandomDraws
from mlc_strategies.idioms import read_elsewhere
from mlc_strategies.recipe import LEAVES, Builder
from mlc_strategies.rule_goals import fires, goals, named, place
from mlc_strategies.temptations import TEMPTATIONS
from mlc_strategies.variations import twin

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.graph import print_graph, verify
from mlc.kernel.text import print_kernel
from mlc.passes.kernelize import partition
from mlc.passes.pipeline import run_pipeline
from mlc.passes.simplify import RULES


def builder(name: str, k: int, special: bool = True) -> Builder:
    return Builder(RandomDraws(random.Random(f"{name} {k}")), Config(Palette.number(k), special=special), seed=k)


def test_every_rule_has_instances_in_which_it_fires():
    idle = []
    with np.errstate(all="ignore"):
        for rule in RULES.rules:
            tries = (builder(rule.name, k, special=k % 2 == 1) for k in range(16))
            if not any(node is not None and fires(rule, b.graph, node) for b in tries for node in [place(b, named(rule.name))]):
                idle.append(rule.name)
    assert not idle


@pytest.mark.parametrize("name", ["add-zero", "mul-zero", "sub-of-same", "eq-of-same", "div-negated-twice", "not-lt"])
def test_near_misses_hold_what_the_condition_refuses(name):
    """A rule for integers is tempted by floats, too."""
    found = Counter()
    with np.errstate(all="ignore"):
        for k in range(60):
            b = builder(name, k)
            node = place(b, named(name), miss=True)
            if node is not None and not fires(named(name).rule, b.graph, node):
                found[b.graph.nodes[b.graph.nodes[node].inputs[0]].type.dtype.is_float] += 1
    assert sum(found.values()) > 20 and (found[True] > 5 or found[False] > 5)


def test_every_temptation_can_be_built():
    with np.errstate(all="ignore"):
        barren = [name for name in TEMPTATIONS if not any(place(builder(name, k), named(name)) is not None for k in range(6))]
    assert not barren


def test_goals_keep_to_the_ops_and_dtypes_allowed():
    config = Config(ops=("add", "sub", "neg"), dtypes=(dt.f32,))
    found = goals(config)
    assert {"add-negated", "x - x"} <= {g.name for g in found} and all(g.ops <= {"add", "sub", "neg", "constant"} for g in found)
    for goal in found:
        program = build(random.Random(1), Config(ops=config.ops, dtypes=config.dtypes, rule=goal.name))
        assert {n.op.name for n in program.graph.nodes} <= {*config.ops, *LEAVES}


def test_some_steps_repeat_others_exactly_or_nearly_and_reach_outputs():
    exact = near = 0
    for seed in range(200):
        graph = build(random.Random(seed), Config(Palette.number(seed), steps=(6, 10))).graph
        nodes = [n for n in graph.nodes if n.inputs and not n.regions]
        keys = Counter((n.op.name, n.inputs, str(n.attrs), str(n.type)) for n in nodes)
        exact += max(keys.values(), default=0) > 1
        near += max(Counter((name, frozenset(inputs)) for name, inputs, _, _ in keys).values(), default=0) > 1
    assert exact > 40 and near > 25, (exact, near)


def test_stored_results_are_read_at_other_places_than_their_reader_writes():
    """By every kind of movement that keeps the type, beside the result itself or another value."""
    seen = Counter()
    with np.errstate(all="ignore"):
        for k in range(80):
            b = builder("elsewhere", k, special=False)
            made = read_elsewhere(b, dt.f32)
            if made is not None:
                nodes = [b.graph.nodes[i] for i in b.graph.nodes[made].inputs]
                seen.update({n.op.name for n in nodes})
                assert nodes[0].type == nodes[1].type == b.type(made)
                verify(b.graph.set_outputs([made]))
    assert min(seen[name] for name in ("transpose", "rev", "concatenate", "pad")) >= 5, seen


def test_long_graphs_are_long_and_read_values_late():
    late = wide = 0
    sizes = []
    for seed in range(40):
        graph = build(random.Random(seed), Config(Palette.plain(seed), dtypes=(dt.f32, dt.i32), steps=(15, 40), long=True)).graph
        verify(graph)
        sizes.append(len(graph))
        readers: dict[int, list[int]] = {}
        for i, node in enumerate(graph.nodes):
            for k in node.inputs:
                if graph.nodes[k].op.name not in LEAVES:
                    readers.setdefault(k, []).append(i)
        late += any(r[-1] - k > len(graph) / 2 for k, r in readers.items())
        wide += any(len(r) >= 4 for r in readers.values())
    assert np.median(sizes) > 20 and late > 15 and wide > 20, (sizes, late, wide)


def test_twins_are_valid_and_mostly_differ_in_one_thing():
    differing = 0
    for seed in range(120):
        config = Config(Palette.number(seed))
        model = build(random.Random(seed), config)
        made = twin(random.Random(seed), model, config)
        verify(made.graph)
        assert [n.op.name in LEAVES for n in made.graph.nodes] == [n.op.name in LEAVES for n in model.graph.nodes]
        assert made.graph.param_names() == model.graph.param_names() and made.graph.outputs == model.graph.outputs
        assert [a.shape for a in made.args] == [tuple(t.shape) for t in made.graph.input_types()]
        differing += print_graph(made.graph) != print_graph(model.graph)
    assert differing > 80, differing


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_notable_numbers_are_the_corners_of_the_dtype(dtype):
    rng = np.random.default_rng(0)
    found = {values.notable(rng, dtype).tobytes() for _ in range(600)}
    wanted = {values.nearest(v, dtype).tobytes() for v in ((0.0, -0.0, 1.0, -1.0, 2.0, np.inf) if dtype.is_float else (0, 1))}
    if dtype.is_int:
        wanted |= {np.array(dtype.min, dtype.numpy).tobytes(), np.array(dtype.max, dtype.numpy).tobytes()}
    assert wanted <= found


def test_special_arguments_have_ties():
    rng = np.random.default_rng(0)
    tied = sum(len(np.unique(values.special(rng, TensorType((64,), dt.f32)).view(np.uint32))) <= 4 for _ in range(60))
    assert 8 < tied < 40


def test_attention_is_generated_in_many_forms_most_of_which_become_one_kernel():
    made, kernels, ops = 0, 0, set()
    for seed in range(80):
        b = Builder(RandomDraws(random.Random(seed)), Config(Palette.number(seed), dtypes=(dt.f32,)), seed=seed)
        result = attention(b, dt.f32)
        if result is not None:
            made += 1
            kernels += any("attend %" in print_kernel(k) for k in partition(run_pipeline(b.graph.set_outputs([result]))[0]).kernels())
            ops |= {node.op.name for node in b.graph.nodes}
    assert made > 40 and kernels > made / 2, (made, kernels)
    assert {"dot_general", "exp", "div", "mul", "transpose", "broadcast_in_dim", "select", "iota", "add"} <= ops
