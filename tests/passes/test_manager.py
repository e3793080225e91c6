"""The pass manager and the pipeline: what is logged, checked, counted, bounded, and that a pass's bug is named."""

import random
import sys

import numpy as np
import pytest
from random_graphs import random_graph

from mlc.core import options as opt
from mlc.core.dims import parse_type
from mlc.core.errors import OptionError, VerifyError
from mlc.graph import Graph, Node, parse_graph, print_graph
from mlc.ops.base import REGISTRY
from mlc.passes import pipeline
from mlc.passes.manager import Pass, PassContext, PassResult, run_passes
from mlc.passes.pipeline import PIPELINE, active_passes, describe_pipeline, run_pipeline

TEXT = """graph @g(%x: f32[4,3], %y: f32[4,3]) -> (f32[4,3], f32[4,3]) {
  %0 = transpose %x {perm=[1,0]} : f32[3,4]
  %1 = transpose %0 {perm=[1,0]} : f32[4,3]
  %2 = add %1, %y : f32[4,3]
  %3 = add %x, %y : f32[4,3]
  %4 = mul %3, 1.0 : f32[4,3]
  return %2, %4
}
"""
OPTIMIZED = """graph @g(%x: f32[4,3], %y: f32[4,3]) -> (f32[4,3], f32[4,3]) {
  %0 = add %x, %y : f32[4,3]
  return %0, %0
}
"""


def rebuilt(graph, change):
    """A copy of the graph with `change(copy)` applied to it: what a faulty pass would make."""
    copy = parse_graph(print_graph(graph))
    change(copy)
    return copy


def faulty(change, name="faulty"):
    return Pass(name, 1, lambda graph, ctx: PassResult(rebuilt(graph, change), changed=True))


def replace(graph, index, op=None, inputs=None, attrs=None, type=None):
    node = graph.nodes[index]
    graph.nodes[index] = Node(REGISTRY[op] if op else node.op, node.inputs if inputs is None else inputs,
                              node.attrs if attrs is None else attrs, type or node.type)


# --------------------------------------------------------------------------- the pipeline
def test_the_pipeline_reaches_the_expected_form_and_leaves_its_input_alone():
    graph = parse_graph(TEXT)
    after, _ = run_pipeline(graph)
    assert print_graph(after) == OPTIMIZED
    assert print_graph(graph) == TEXT


def test_the_log_tells_name_version_nodes_time_and_rewrites():
    with opt.options(check=0):
        _, log = run_pipeline(parse_graph(TEXT))
    simplify = next(r for r in log if r.name == "simplify")
    assert simplify.version == 1 and simplify.changed and simplify.milliseconds > 0
    assert simplify.nodes_before == 8 and simplify.nodes_after <= 8
    assert simplify.stats == {"transpose-of-transpose": 1, "transpose-identity": 1, "mul-one": 1}
    assert [r.name for r in log][:len(PIPELINE)] == [p.name for p in PIPELINE]
    assert all(r.graph is None for r in log), "the log must not keep every graph alive"
    assert "3 rewrites (mul-one 1, transpose-identity 1, transpose-of-transpose 1)" in str(simplify)


def test_a_settled_graph_is_returned_itself():
    once, _ = run_pipeline(parse_graph(TEXT))
    again, log = run_pipeline(once)
    assert again is once and not any(r.changed for r in log) and len(log) == len(PIPELINE)


def test_dropped_nodes_leave_nothing_to_find_for_the_passes_before():
    for seed in range(80):
        graph = random_graph(seed)
        found, log = run_pipeline(graph)
        every = [Pass(p.name, p.version, p.function, p.options, p.required) for p in PIPELINE]
        often, whole = run_passes(graph, every, PassContext())
        assert print_graph(found) == print_graph(often) and len(log) <= len(whole)
        assert not any(each.run(found, PassContext()).changed for each in PIPELINE)


def test_observers_see_each_graph():
    seen = []
    after, log = run_pipeline(parse_graph(TEXT), observe=lambda result: seen.append((result.name, result.graph)))
    assert [name for name, _ in seen] == [r.name for r in log] and seen[-1][1] is after


def test_describe_pipeline_names_versions_and_options():
    assert describe_pipeline().splitlines() == [p.describe() for p in PIPELINE]
    assert "simplify v1 {exact=bitwise}" in describe_pipeline()
    with opt.options(disable_passes="cse, motion"):
        assert "cse" not in describe_pipeline() and "dce v1" in describe_pipeline()


def test_disabled_passes_do_not_run():
    with opt.options(disable_passes="cse"):
        after, log = run_pipeline(parse_graph(TEXT))
    assert "cse" not in {r.name for r in log} and sum(n.op.name == "add" for n in after.nodes) == 2


@pytest.mark.parametrize("value, message", [("cze", "no pass is called 'cze'"), ("inline", "required")])
def test_names_that_cannot_be_disabled_are_refused(value, message):
    with opt.options(disable_passes=value), pytest.raises(OptionError, match=message):
        active_passes()


def test_later_stages_may_be_named_in_disable_passes():
    with opt.options(disable_passes="fuse"):
        assert active_passes() == list(PIPELINE)


# --------------------------------------------------------------------------- counting and bisection
def test_rewrites_are_numbered_in_order_and_the_limit_stops_them():
    ctx = PassContext()
    full, _ = run_pipeline(parse_graph(TEXT), ctx)
    assert ctx.trace[:3] == [("simplify", "transpose-of-transpose"), ("simplify", "transpose-identity"), ("simplify", "mul-one")]
    assert ctx.applied == len(ctx.trace)
    texts = []
    for limit in range(ctx.applied + 1):
        with opt.options(limit=limit):
            after, log = run_pipeline(parse_graph(TEXT))
        assert sum(sum(r.stats.values()) for r in log) == limit
        texts.append(print_graph(after))
    assert texts[0] == TEXT and texts[-1] == print_graph(full) and len(set(texts)) > 2


def test_the_limit_is_logged():
    with opt.options(limit=1):
        _, log = run_pipeline(parse_graph(TEXT))
    assert any("limit" in note for r in log for note in r.notes)


def test_bisection_over_the_limit_finds_the_guilty_rewrite():
    """A wrong rule among right ones: the smallest limit at which the answer changes names it."""
    def run(limit):
        ctx = PassContext(limit=limit)

        def swap(graph, ctx):
            if any(n.op.name == "add" for n in graph.nodes) and ctx.permit("add-to-sub"):
                at = next(i for i, n in enumerate(graph.nodes) if n.op.name == "add")
                return PassResult(rebuilt(graph, lambda g: replace(g, at, "sub")), changed=True)
            return PassResult(graph, changed=False)

        graph, _ = run_passes(parse_graph(OPTIMIZED), [*PIPELINE, Pass("guilty", 1, swap)], ctx)
        return any(n.op.name == "sub" for n in graph.nodes), ctx
    _, ctx = run(-1)
    first_bad = next(limit for limit in range(ctx.applied + 1) if run(limit)[0])
    assert ctx.trace[first_bad - 1] == ("guilty", "add-to-sub")


# --------------------------------------------------------------------------- convergence
def test_a_pipeline_that_never_settles_is_stopped_and_says_so():
    flip = {"neg": "abs", "abs": "neg"}

    def step(graph, ctx):
        return PassResult(rebuilt(graph, lambda g: replace(g, 1, flip[g.nodes[1].op.name])), changed=True, settled=False)

    graph = parse_graph("graph @g(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  return %0\n}")
    with opt.options(pass_limit=5, check=0):
        _, log = run_passes(graph, [Pass("flip", 1, step)], PassContext())
    assert len(log) == 5 and "not converged" in log[-1].notes[-1]


def test_rules_that_undo_each_other_end_as_a_note():
    from mlc.passes.driver import apply_rules
    from mlc.passes.pattern import BITWISE, RuleSet, Var, term
    rules, x, y = RuleSet(), Var("x"), Var("y")
    add, mul = term("add"), term("mul")
    rules.rewrite("there", exact=BITWISE, match=add(x, y), to=mul(x, y), why="test")
    rules.rewrite("back", exact=BITWISE, match=mul(x, y), to=add(x, y), why="test")
    ctx = PassContext()
    result = apply_rules(rules, parse_graph("graph @g(%x: f32[3]) -> f32[3] {\n  %0 = add %x, %x : f32[3]\n  return %0\n}"), ctx)
    assert result.changed and not result.settled and "still rewriting" in ctx.notes[0]


def test_deep_results_are_left_to_the_next_round_instead_of_recursing():
    graph = Graph("deep")
    x = graph.parameter("x", parse_type("f32[1,8]"))
    for k in range(1500):  # slice goes below broadcast, then into the concatenation's operand, and so on down
        wide = graph.add("broadcast_in_dim", (x,), {"dims": (0, 1)}, parse_type("f32[2,8]"))
        other = graph.add("concatenate", (wide, wide), {"axis": 0})
        x = graph.add("slice", (other,), {"start": (0, 0), "limit": (1, 8), "strides": (1, 1)}) if k % 2 else graph.add(
            "slice", (other,), {"start": (3, 0), "limit": (4, 8), "strides": (1, 1)})
    graph.set_outputs([x])
    with opt.options(check=0):
        after, _ = run_pipeline(graph)
    assert len(after) < 10


# --------------------------------------------------------------------------- blame
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("change, invariant", [
    (lambda g: replace(g, 4, inputs=(4, 1)), "edges_point_backwards"),
    (lambda g: replace(g, 4, type=parse_type("f32[3,4]")), "types_match_the_rules"),
    (lambda g: replace(g, 2, attrs={"perm": (0, 0)}), "types_match_the_rules"),
    (lambda g: setattr(g, "outputs", (99, 0)), "outputs_exist"),
    (lambda g: setattr(g, "outputs", (2, 4)), "signature_is_kept"),
    (lambda g: replace(g, 1, attrs={"name": "z"}), "signature_is_kept"),
], ids=["cycle", "type", "attribute", "output", "output-type", "parameter"])
def test_a_pass_that_breaks_an_invariant_is_named(level, change, invariant):
    with opt.options(check=level), pytest.raises(VerifyError) as caught:
        run_passes(parse_graph(TEXT), [*PIPELINE[:1], faulty(change)], PassContext())
    assert caught.value.invariant == invariant and "pass faulty" in str(caught.value)
    assert caught.value.where and caught.value.stage == "pass faulty"


def test_a_pass_that_changes_the_meaning_is_named_at_level_2_only():
    wrong = faulty(lambda g: replace(g, 4, "sub"))
    with opt.options(check=1, pass_limit=1):
        run_passes(parse_graph(TEXT), [wrong], PassContext())
    with opt.options(check=2), pytest.raises(VerifyError, match=r"meaning_is_kept after pass faulty at graph @g output 0 at \[0, 0\]"):
        run_passes(parse_graph(TEXT), [wrong], PassContext())


def test_a_change_that_only_nan_or_signed_zero_can_tell_is_found():
    text = "graph @g(%x: f32[40]) -> f32[40] {\n  %0 = add %x, 0.0 : f32[40]\n  return %0\n}"
    drop = Pass("drop-add-zero", 1, lambda g, ctx: PassResult(rebuilt(g, lambda c: c.set_outputs((0,))), changed=True))
    with opt.options(check=2), pytest.raises(VerifyError, match="drop-add-zero"):
        run_passes(parse_graph(text), [drop], PassContext())


def test_a_pass_that_mutates_its_input_is_named():
    def mutate(graph, ctx):
        copy = parse_graph(print_graph(graph))
        replace(graph, 4, "sub")
        return PassResult(copy, changed=True)
    with opt.options(check=2), pytest.raises(VerifyError, match="input_is_not_mutated after pass mutate"):
        run_passes(parse_graph(TEXT), [Pass("mutate", 1, mutate)], PassContext())


def test_a_pass_that_lies_about_having_changed_something_is_named():
    lie = Pass("lie", 1, lambda g, ctx: PassResult(g, changed=True))
    with opt.options(check=1), pytest.raises(VerifyError, match="result_says_whether_it_changed after pass lie"):
        run_passes(parse_graph(TEXT), [lie], PassContext())


def test_a_crash_on_a_broken_graph_is_blamed_on_the_pass_that_broke_it():
    def swap_types(graph, ctx):
        broken = parse_graph(print_graph(graph))
        broken.nodes[-1].type = parse_type("f32[77]")
        return PassResult(broken, changed=True)

    def crash(graph, ctx):
        raise KeyError("oops")
    with opt.options(check=0), pytest.raises(VerifyError, match="types_match_the_rules after pass swap"):
        run_passes(parse_graph(TEXT), [Pass("swap", 1, swap_types), Pass("crash", 1, crash)], PassContext())


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_pass_that_crashes_is_named(level):
    def crash(graph, ctx):
        raise KeyError("oops")
    with opt.options(check=level), pytest.raises(VerifyError, match=r"pass_ends_normally after pass crash.*KeyError: 'oops'"):
        run_passes(parse_graph(TEXT), [Pass("crash", 1, crash)], PassContext())


def test_large_graphs_are_not_interpreted_and_the_log_says_so():
    text = TEXT.replace("4,3", "4000,3000").replace("3,4", "3000,4000")
    with opt.options(check=2):
        _, log = run_pipeline(parse_graph(text))
    assert any("not interpreted" in note for r in log for note in r.notes)


# --------------------------------------------------------------------------- what checking costs
def calls_during(run):
    """The qualified names of all Python functions called."""
    called = []
    sys.setprofile(lambda frame, event, arg: called.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}") if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return called


def test_without_checking_no_call_is_added():
    graph = parse_graph(TEXT)
    run_pipeline(graph)  # fills the memos of the rule index
    with opt.options(check=0):
        called = calls_during(lambda: run_pipeline(graph))
    checking = ("mlc.graph.verify.", "mlc.graph.text.", "mlc.passes.checks.", "mlc.graph.interpreter.")
    assert not [name for name in called if name.startswith(checking)]
    with opt.options(check=1):
        verified = calls_during(lambda: run_pipeline(graph))
    assert [name for name in verified if name.startswith("mlc.graph.verify.")]
    assert not [name for name in verified if name.startswith(("mlc.graph.text.", "mlc.graph.interpreter."))]


# --------------------------------------------------------------------------- random graphs
def random_graphs(first, count):
    return [random_graph(seed) for seed in range(first, first + count)]


@pytest.mark.parametrize("first", range(0, 250, 50))
def test_random_graphs_keep_their_meaning_through_every_pass(first):
    for graph in random_graphs(first, 50):
        text = print_graph(graph)
        with opt.options(check=2):
            after, log = run_pipeline(graph)
        assert print_graph(graph) == text
        assert not any("not converged" in note or "still rewriting" in note for r in log for note in r.notes)
        assert run_pipeline(after)[0] is after, "the fixed point is one"


@pytest.mark.nightly
def test_many_random_graphs_keep_their_meaning_through_every_pass():
    for graph in random_graphs(10_000, 5_000):
        with opt.options(check=2):
            run_pipeline(graph)


def test_the_pipeline_is_deterministic():
    for graph in random_graphs(900, 40):
        first, second = (print_graph(run_pipeline(parse_graph(print_graph(graph), graph.constants()))[0]) for _ in range(2))
        assert first == second


# --------------------------------------------------------------------------- size
def chain(count):
    graph = Graph("chain")
    x = graph.parameter("x", parse_type("f32[8]"))
    half = graph.constant(0.5, parse_type("f32[8]"))
    for k in range(count):
        x = graph.add(("mul", "add", "tanh")[k % 3], (x, half) if k % 3 < 2 else (x,))
    return graph.set_outputs([x])


def diamonds(levels):
    graph = Graph("diamonds")
    x, y = (graph.parameter(name, parse_type("f32[8]")) for name in "xy")
    for _ in range(levels):
        x, y = graph.add("add", (x, y)), graph.add("sub", (x, y))
    return graph.set_outputs([x, y])


@pytest.mark.parametrize("make, nodes", [(lambda: chain(5000), 5002), (lambda: diamonds(30), 62)], ids=["chain", "diamonds"])
def test_deep_graphs_are_quick_and_need_no_recursion(make, nodes):
    import time
    graph = make()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        started = time.process_time()
        with opt.options(check=0):
            after, _ = run_pipeline(graph)
        seconds = time.process_time() - started
    finally:
        sys.setrecursionlimit(limit)
    assert len(after) == nodes and seconds < 1.0


def test_equal_chains_collapse_in_linear_time():
    graph = Graph("twins")
    x = graph.parameter("x", parse_type("f32[8]"))
    ends = []
    for _ in range(2):
        y = x
        for k in range(2000):
            y = graph.add("sin" if k % 2 else "neg", (y,))
        ends.append(y)
    graph.set_outputs([graph.add("sub", tuple(ends))])
    with opt.options(check=0):
        after, log = run_pipeline(graph)
    assert len(after) == 2002 and sum(r.milliseconds for r in log) < 1000


SYMBOLIC = """graph @g(%x: f32[B,128], %z: f32[128,B], %w: f32[1,B]) -> (f32[B,128], f32[B,B], f32[128], f32[B,4]) {
  %0 = add %x, -0.0 : f32[B,128]
  %1 = transpose %z {perm=[1,0]} : f32[B,128]
  %2 = mul %1, %0 : f32[B,128]
  %3 = reduce_max %2 {axes=[1]} : f32[B]
  %4 = broadcast_in_dim %3 {dims=[0]} : f32[B,128]
  %5 = exp %4 : f32[B,128]
  %6 = sub %5, %2 : f32[B,128]
  %7 = dot_general %1, %x {contract=([1],[1])} : f32[B,B]
  %8 = constant {value=1.5} : f32[B,128]
  %9 = reduce_max %8 {axes=[0]} : f32[128]
  %10 = broadcast_in_dim %w {dims=[0,1]} : f32[4,B]
  %11 = transpose %10 {perm=[1,0]} : f32[B,4]
  return %6, %7, %9, %11
}
"""


def test_symbolic_dims_pass_through_every_pass():
    with opt.options(check=2):
        after, log = run_pipeline(parse_graph(SYMBOLIC))
    fired = {rule for r in log for rule in r.stats}
    assert {"add-negative-zero", "exp-of-broadcast", "dot-of-transposed-left", "transpose-of-broadcast"} <= fired
    assert any(n.op.name == "reduce_max" and n.type == parse_type("f32[128]") for n in after.nodes), "B may be 0, then it is -inf"
    assert any("symbolic" in note for r in log for note in r.notes)


def test_an_empty_graph_passes_through():
    graph = Graph("empty").set_outputs([])
    with opt.options(check=2):
        assert run_pipeline(graph)[0] is graph


def test_shuffled_disabling_never_changes_answers():
    rng = random.Random(3)
    for graph in random_graphs(500, 30):
        names = [p.name for p in PIPELINE if not p.required]
        off = rng.sample(names, rng.randint(1, len(names)))
        with opt.options(check=2, disable_passes=",".join(off)):
            pipeline.run_pipeline(graph)


def test_every_pass_has_a_reason_beside_it():
    import inspect
    source = inspect.getsource(pipeline)
    listed = source[source.index("PIPELINE:"):source.index(")\n\n#")].splitlines()[1:]
    assert len(listed) == len(PIPELINE) and all("#" in line for line in listed)


def test_results_may_hold_numpy_free_stats():
    _, log = run_pipeline(parse_graph(TEXT))
    assert all(type(count) is int for r in log for count in r.stats.values()) and not isinstance(log[0].milliseconds, np.floating)
