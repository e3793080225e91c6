"""What is recognised as attention, and what is refused, with the reason."""

import pytest

from mlc.core import options as opt
from mlc.graph import parse_graph
from mlc.graph.text import value_names
from mlc.kernel.ir import Attend
from mlc.passes.attention import find_attention
from mlc.passes.kernelize import partition

SOFTMAX = ["reduce_max %{s} {{axes=[1]}} : f32[9]", "broadcast_in_dim %{m} {{dims=[0]}} : f32[9,12]", "sub %{s}, %{b} : f32[9,12]",
           "exp %{d} : f32[9,12]", "reduce_sum %{e} {{axes=[1]}} : f32[9]", "broadcast_in_dim %{t} {{dims=[0]}} : f32[9,12]",
           "div %{e}, %{u} : f32[9,12]"]
PARAMS = "%q: f32[9,4], %k: f32[12,4], %v: f32[12,5]"
DOT = "dot_general %q, %k {contract=([1],[1])} : f32[9,12]"
LAST = "dot_general %{w}, %v {{contract=([1],[0])}} : f32[9,5]"


def softmax_of(s):
    """The lines of a softmax of node s, which are the next ones; the last is the weights."""
    names = {"s": s, **{name: s + 1 + k for k, name in enumerate("mbdetu")}}
    return [line.format(**names) for line in SOFTMAX]


def graph(lines, params=PARAMS, returned=None):
    returned = returned or [len(lines) - 1]
    types = ", ".join(lines[i].rsplit(" : ", 1)[1] for i in returned)
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    arrow = types if len(returned) == 1 else f"({types})"
    return parse_graph(f"graph @g({params}) -> {arrow} {{\n{body}  return {', '.join(f'%{i}' for i in returned)}\n}}")


def plain(scores=(DOT,), **given):
    lines = [*scores, *softmax_of(len(scores) - 1)]
    return graph([*lines, LAST.format(w=len(lines) - 1)], **given)


def stage_of(graph):
    (step,) = partition(graph).steps
    (stage,) = (s for s in step.kernel.stages if isinstance(s, Attend))
    return stage


def find(*lines):
    found = graph(*lines)
    return find_attention(found, value_names(found))


def reason(graph):
    found, notes = find_attention(graph, value_names(graph))
    assert not found and len(notes) == 1 and not any(isinstance(s, Attend) for k in partition(graph).kernels() for s in k.stages)
    return notes[0]


def test_the_plain_form_is_one_kernel_without_scratch():
    program = partition(plain())
    (step,) = program.steps
    assert step.kernel.name == "attention" and program.notes == [] and [p.role for p in step.kernel.params] == ["in", "in", "in", "out"]
    assert [extent for _, extent in stage_of(plain()).axes] == [9, 12, 4, 5]


def test_an_epilogue_of_one_shape_joins_the_kernel():
    lines = [DOT, *softmax_of(0)]
    g = graph([*lines, LAST.format(w=7), "tanh %8 : f32[9,5]", "add %9, %r : f32[9,5]"], PARAMS + ", %r: f32[9,5]")
    assert partition(g).steps[0].kernel.name == "attention_add" and len(stage_of(g).puts) == 1


def test_a_scale_a_bias_and_a_mask_are_part_of_the_score():
    scores = (DOT, "mul %0, 0.5 : f32[9,12]", "broadcast_in_dim %bias {dims=[1]} : f32[9,12]", "add %1, %2 : f32[9,12]",
              "iota {axis=0} : i32[9,12]", "iota {axis=1} : i32[9,12]", "ge %4, %5 : bool[9,12]", "select %6, %3, -inf : f32[9,12]")
    stage = stage_of(plain(scores, params=PARAMS + ", %bias: f32[12]"))
    assert stage.score.op == "select" and stage.weight.op == "mul"


def test_a_transpose_of_the_result_is_stored_in_its_order():
    lines = [DOT, *softmax_of(0)]
    stage = stage_of(graph([*lines, LAST.format(w=7), "transpose %8 {perm=[1,0]} : f32[5,9]"]))
    assert (stage.puts[0].index.coefficient("m"), stage.puts[0].index.coefficient("c")) == (1, 9)


def test_queries_of_several_axes_run_as_one_axis_where_all_accesses_allow_it():
    softmax = [line.replace("[9]", "[3,6]").replace("[9,12]", "[3,6,12]").replace("axes=[1]", "axes=[2]").replace("dims=[0]", "dims=[0,1]")
               for line in softmax_of(0)]
    g = graph(["dot_general %q, %k {contract=([2],[1])} : f32[3,6,12]", *softmax, "dot_general %7, %v {contract=([2],[0])} : f32[3,6,5]"],
              "%q: f32[3,6,4], %k: f32[12,4], %v: f32[12,5]")
    assert partition(g).steps[0].kernel.rows == () and stage_of(g).m[1] == 18


def test_values_that_are_not_contiguous_are_packed_first():
    lines = [DOT, *softmax_of(0), "transpose %v {perm=[1,0]} : f32[12,5]", "dot_general %7, %8 {contract=([1],[0])} : f32[9,5]"]
    g = graph(lines, "%q: f32[9,4], %k: f32[12,4], %v: f32[5,12]")
    (step,) = partition(g).steps
    assert [type(s).__name__ for s in step.kernel.stages] == ["Stage", "Attend"]


def test_the_option_switches_it_off():
    with opt.options(disable_passes="attention"):
        assert len(partition(plain()).steps) > 1
    with opt.options(disable_passes="fuse"):
        assert all(not isinstance(s, Attend) for k in partition(plain()).kernels() for s in k.stages)


@pytest.mark.parametrize("kept", [0, 4, 7])
def test_scores_or_weights_that_are_outputs_are_stored(kept):
    lines = [DOT, *softmax_of(0), LAST.format(w=7)]
    name = lines[kept].split()[0]
    assert f"its {name} is an output" in reason(graph(lines, returned=[8, kept]))


def test_weights_that_something_else_reads_are_stored():
    lines = [DOT, *softmax_of(0), LAST.format(w=7), "reduce_sum %7 {axes=[0]} : f32[12]"]
    assert "its div is read by reduce_sum, too" in reason(graph(lines, returned=[8, 9]))


def test_values_made_of_the_weights_are_refused():
    lines = ["dot_general %q, %q {contract=([1],[1])} : f32[9,9]", *(line.replace("9,12", "9,9") for line in softmax_of(0))]
    g = graph([*lines, "dot_general %7, %7 {contract=([1],[0])} : f32[9,9]"], "%q: f32[9,4]")
    assert "depend on its scores" in reason(g)


def test_a_maximum_over_other_axes_is_no_softmax():
    lines = [DOT, *softmax_of(0), LAST.format(w=7)]
    lines[1], lines[2] = "reduce_max %0 {axes=[0]} : f32[12]", "broadcast_in_dim %1 {dims=[1]} : f32[9,12]"
    assert find(lines) == ({}, [])


def test_a_sum_of_something_else_is_no_softmax():
    lines = [DOT, *softmax_of(0), LAST.format(w=7)]
    lines[5] = "reduce_sum %3 {axes=[1]} : f32[9]"
    assert find(lines) == ({}, [])


def test_a_contraction_over_queries_is_no_attention():
    lines = ["dot_general %q, %k {contract=([1],[1])} : f32[9,9]", *(line.replace("9,12", "9,9") for line in softmax_of(0)),
             "dot_general %7, %v {contract=([0],[0])} : f32[9,5]"]
    assert find(lines, "%q: f32[9,4], %k: f32[9,4], %v: f32[9,5]") == ({}, [])


def test_scores_read_transposed_and_as_they_are_are_refused():
    lines = ["dot_general %q, %k {contract=([1],[1])} : f32[9,9]", "transpose %0 {perm=[1,0]} : f32[9,9]", "add %0, %1 : f32[9,9]",
             *(line.replace("9,12", "9,9") for line in softmax_of(2)), "dot_general %9, %v {contract=([1],[0])} : f32[9,5]"]
    assert "an order of their own" in reason(graph(lines, "%q: f32[9,4], %k: f32[9,4], %v: f32[9,5]"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_refused(dtype):
    lines = [line.replace("f32", dtype) for line in (DOT, *softmax_of(0), LAST.format(w=7))]
    assert f"rounds to {dtype} by itself" in reason(graph(lines, PARAMS.replace("f32", dtype)))


def test_weights_rounded_to_halves_are_refused():
    lines = [DOT, *softmax_of(0), "convert_element_type %7 : bf16[9,12]", "dot_general %8, %v {contract=([1],[0])} : bf16[9,5]"]
    assert "rounded to bf16" in reason(graph(lines, PARAMS.replace("%v: f32", "%v: bf16")))


def test_every_one_of_three_hundred_layers_is_found():
    lines, names = [], "%x"
    for _ in range(300):
        s = len(lines)
        lines += [f"dot_general {names}, {names} {{contract=([1],[1])}} : f32[9,9]", *(line.replace("9,12", "9,9") for line in softmax_of(s)),
                  f"dot_general %{s + 7}, {names} {{contract=([1],[0])}} : f32[9,9]"]
        names = f"%{s + 8}"
    found, notes = find(lines, "%x: f32[9,9]")
    assert len(found) == 300 and notes == []
