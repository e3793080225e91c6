"""What a graph repeats is worked out once, and gives the kernels that it gave when each root and group was worked out by itself."""

import numpy as np
import pytest

import mlc
from mlc.core import options as opt
from mlc.core.errors import UnsupportedError
from mlc.graph import parse_graph
from mlc.kernel.program_text import print_kernel_graph
from mlc.passes import attention, kernelize, repeat
from mlc.passes.kernelize import partition
from mlc.passes.pipeline import run_pipeline
from tests.passes.random_graphs import Builder


def text(graph):
    found = partition(graph)
    return print_kernel_graph(found, {}) + "".join(found.notes)


def alone(graph, monkeypatch):
    """The text when no cone, and no surroundings of an attention, equal others."""
    whole, around = repeat.Roots._cone, attention._Finder._surroundings
    with monkeypatch.context() as patch:
        patch.setattr(attention._Finder, "_surroundings", lambda self, n: (n, around(self, n)[1]))
        patch.setattr(repeat.Roots, "_cone", lambda self, n: (n, whole(self, n)[1]))
        return text(graph)


def layers(count, heads=2, seed=0, shown=-1):
    """Transformer blocks with a mask, weights as arguments; the weights of attention in block `shown` are a result, too."""
    rng = np.random.default_rng(seed)
    x, mask = rng.normal(size=(12, 16)).astype("f4"), rng.random((12, 12)) < 0.5
    weights = [{name: rng.normal(size=(16, 16)).astype("f4") for name in "qkvo"} | {"s": np.ones(16, "f4")} for _ in range(count)]

    def split(x):
        return mlc.numpy.swapaxes(mlc.numpy.reshape(x, (12, heads, 16 // heads)), 0, 1)

    def run(x, mask, weights):
        results = []
        for k, w in enumerate(weights):
            h = mlc.nn.layer_norm(x, w["s"], w["s"])
            scores = mlc.numpy.where(mask, split(h @ w["q"]) @ mlc.numpy.swapaxes(split(h @ w["k"]), -1, -2) * 0.5, -mlc.numpy.inf)
            seen = mlc.nn.softmax(scores, axis=-1)
            results += [seen] if k == shown else []
            a = seen @ split(h @ w["v"])
            x = x + mlc.numpy.reshape(mlc.numpy.swapaxes(a, 0, 1), x.shape) @ w["o"]
        return [x, *results]
    return run_pipeline(mlc.jit(run).lower(x, mask, weights).graph)[0]


@pytest.mark.parametrize("off", ["", "attention", "fuse"])
def test_layers_give_the_kernels_they_gave_alone(off, monkeypatch):
    graph = layers(3)
    with opt.options(disable_passes=off):
        assert text(graph) == alone(graph, monkeypatch)


@pytest.mark.parametrize("shown", [0, 1, 3])
def test_an_attention_that_others_read_is_none_among_some_that_are(shown, monkeypatch):
    graph = layers(4, shown=shown)
    found, notes = attention.find_attention(graph, dict(enumerate(map(str, range(len(graph))))))
    assert len(found) == 3 and len(notes) == 1 and len(set().union(*[a.hidden for a in found.values()])) == sum(len(a.hidden) for a in found.values())
    assert text(graph) == alone(graph, monkeypatch)


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_give_the_kernels_they_gave_alone(seed, monkeypatch):
    graph = Builder(seed, 40).graph
    try:
        graph = run_pipeline(graph)[0]
        wanted = alone(graph, monkeypatch)
    except UnsupportedError:
        return
    assert text(graph) == wanted


def test_an_attention_reads_behind_movement_that_is_stored_for_others(monkeypatch):
    """Found by the fuzzer: the values are a broadcast that is an output too, and the attention reads what is broadcast."""
    lines, layers = [], 2
    for k in range(layers):
        q, v, s = 12 * k, "xy"[k], 12 * k
        lines += [f"%{s} = broadcast_in_dim %{v} {{dims=[0]}} : f32[2,2]", f"%{s + 1} = dot_general %a, %b {{contract=([1],[0])}} : f32[4,2]",
                  f"%{s + 2} = mul %{s + 1}, {k + 2}.0 : f32[4,2]", f"%{s + 3} = reduce_max %{s + 2} {{axes=[1]}} : f32[4]",
                  f"%{s + 4} = broadcast_in_dim %{s + 3} {{dims=[0]}} : f32[4,2]", f"%{s + 5} = sub %{s + 2}, %{s + 4} : f32[4,2]",
                  f"%{s + 6} = exp %{s + 5} : f32[4,2]", f"%{s + 7} = reduce_sum %{s + 6} {{axes=[1]}} : f32[4]",
                  f"%{s + 8} = broadcast_in_dim %{s + 7} {{dims=[0]}} : f32[4,2]", f"%{s + 9} = div %{s + 6}, %{s + 8} : f32[4,2]",
                  f"%{s + 10} = dot_general %{s + 9}, %{q} {{contract=([1],[1])}} : f32[4,2]", f"%{s + 11} = exp %{s + 10} : f32[4,2]"]
    types = ", ".join(["f32[4,2]", "f32[2,2]"] * layers)
    graph = parse_graph(f"graph @g(%x: f32[2], %y: f32[2], %a: f32[4,1], %b: f32[1,2]) -> ({types}) {{\n" + "".join(f"  {x}\n" for x in lines)
                        + "  return " + ", ".join(f"%{12 * k + 11}, %{12 * k}" for k in range(layers)) + "\n}")
    assert "attention" in text(graph)
    assert text(graph) == alone(graph, monkeypatch)


def test_kernels_are_made_for_the_first_layers_only(monkeypatch):
    made = []
    monkeypatch.setattr(kernelize, "canonical_kernel", lambda *args, whole=kernelize.canonical_kernel: made.append(1) or whole(*args))
    few = len(partition(layers(3)).steps), len(made)
    made.clear()
    many = len(partition(layers(9)).steps), len(made)
    assert many[0] == 3 * few[0]
    assert many[1] == few[1] < few[0]


PAIRS = {
    "attribute": ("%0 = integer_pow %x {y=2} : f32[5]", "%1 = integer_pow %y {y=3} : f32[5]"),
    "constant": ("%0 = mul %x, 2.0 : f32[5]", "%1 = mul %y, 3.0 : f32[5]"),
    "sign of zero": ("%0 = add %x, 0.0 : f32[5]", "%1 = add %y, -0.0 : f32[5]"),
    "one value twice": ("%0 = mul %x, %z : f32[5]", "%1 = mul %y, %y : f32[5]"),
    "op": ("%0 = exp %x : f32[5]", "%1 = log %y : f32[5]"),
    "dtype": ("%0 = exp %h : f16[5]", "%1 = exp %y : f32[5]"),
    "shape": ("%0 = exp %w : f32[7]", "%1 = exp %y : f32[5]"),
    "constant data": ("%0 = neg [1.0,2.0,3.0,4.0,5.0] : f32[5]", "%1 = neg %y : f32[5]"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_roots_that_differ_are_told_apart(pair, monkeypatch):
    first, second = PAIRS[pair]
    types = ", ".join(line.rsplit(" : ", 1)[1] for line in (first, second))
    if pair == "constant data":
        first = first.replace("neg [1.0,2.0,3.0,4.0,5.0]", "neg %c")
    graph = parse_graph(f"graph @g(%x: f32[5], %y: f32[5], %z: f32[5], %h: f16[5], %w: f32[7]) -> ({types}) {{\n"
                        + ("  %c = constant {value=[1.0,2.0,3.0,4.0,5.0]} : f32[5]\n" if "%c" in first else "")
                        + f"  {first}\n  {second}\n  return %0, %1\n}}")
    roots = repeat.Roots(graph, [False] * len(graph), {})
    a, b = (roots.root(n) for n in graph.outputs)
    assert a.key != b.key
    assert a.whole() is a and b.whole() is b
    assert text(graph) == alone(graph, monkeypatch)


def test_a_repeated_root_reads_its_own_operands():
    graph = parse_graph("graph @g(%x: f32[5], %y: f32[5], %z: f32[5]) -> (f32[5], f32[5]) {\n  %0 = sub %x, %y : f32[5]\n"
                        "  %1 = sub %z, %x : f32[5]\n  return %0, %1\n}")
    roots = repeat.Roots(graph, [False] * len(graph), {})
    a, b = (roots.root(n) for n in graph.outputs)
    assert a.key == b.key and a.value is not b.whole().value
    x, y, z = graph.params
    assert (list(a.reads()), list(b.reads())) == ([x, y], [z, x])
    assert b.reads() == b.whole().reads()


def test_groups_that_read_each_other_otherwise_are_told_apart(monkeypatch):
    """a - b beside b - a: equal roots, but the second reads them in the other order."""
    graph = parse_graph("graph @g(%x: f32[5,3], %y: f32[5,3]) -> (f32[5], f32[5]) {\n" + "".join(
        f"  %{k} = reduce_sum %{p} {{axes=[1]}} : f32[5]\n" for k, p in enumerate("xyxy"))
        + "  %4 = sub %0, %1 : f32[5]\n  %5 = sub %3, %2 : f32[5]\n  return %4, %5\n}")
    assert text(graph) == alone(graph, monkeypatch)
