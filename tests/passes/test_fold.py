"""Constant folding: what folds, to which bits, and what never does."""

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.dims import parse_type
from mlc.graph import Graph, parse_graph, verify
from mlc.passes import fold
from mlc.passes.fold import EXTRA_BYTES, FOLD
from mlc.passes.manager import PassContext


def fold_lines(lines, params=""):
    body = "".join(f"  %{i} = {line}\n" for i, line in enumerate(lines))
    result = lines[-1].rsplit(" : ", 1)[1]
    graph = parse_graph(f"graph @g({params}) -> {result} {{\n{body}  return %{len(lines) - 1}\n}}")
    result = FOLD.run(graph, PassContext())
    verify(result.graph)
    return result


def value_of(result):
    node = result.graph.nodes[result.graph.outputs[0]]
    assert node.op.name == "constant", result.graph
    return node.attrs["value"].array


@pytest.mark.parametrize("line, want", [
    ("add %0, %1 : f32[5]", np.float32(0.1) + np.float32(3)), ("div %0, %1 : f32[5]", np.float32(0.1) / np.float32(3)),
    ("sqrt %1 : f32[5]", np.sqrt(np.float32(3))), ("lt %0, %1 : bool[5]", np.True_), ("max %0, %1 : f32[5]", np.float32(3)),
    ("convert_element_type %0 : f16[5]", np.float16(np.float32(0.1))), ("rem %1, %0 : f32[5]", np.fmod(np.float32(3), np.float32(0.1))),
], ids=lambda v: str(v).split(" : ")[0])
def test_correctly_rounded_ops_of_splats_fold_to_a_splat(line, want):
    found = value_of(fold_lines(["constant {value=0x1.99999ap-4} : f32[5]", "constant {value=3.0} : f32[5]", line]))
    assert found.shape == () and found.dtype == want.dtype and found.tobytes() == want.tobytes()


@pytest.mark.parametrize("line, want", [
    ("div %0, %1 : i32[4]", -1), ("rem %0, %1 : i32[4]", 7), ("shift_left %0, %2 : i32[4]", 0), ("pow %0, %0 : i32[4]", 7 ** 7),
    ("mul %3, %3 : i32[4]", (2 ** 31 - 1) ** 2 % 2 ** 32),
], ids=lambda v: str(v).split(" : ")[0])
def test_integer_corner_cases_fold_to_what_the_ops_mean(line, want):
    lines = [f"constant {{value={v}}} : i32[4]" for v in (7, 0, 40, 2 ** 31 - 1)]
    assert int(value_of(fold_lines([*lines, line]))) == want


def test_movement_and_arithmetic_of_array_data_fold():
    lines = ["constant {value=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]} : f32[2,3]", "transpose %0 {perm=[1,0]} : f32[3,2]", "mul %1, %1 : f32[3,2]"]
    np.testing.assert_array_equal(value_of(fold_lines(lines)), [[1, 16], [4, 25], [9, 36]])


def test_exact_reductions_fold_and_integer_contractions_too():
    data = "constant {value=[5, -3, 100, 2, 7, 100]} : i8[2,3]"
    np.testing.assert_array_equal(value_of(fold_lines([data, "reduce_sum %0 {axes=[1]} : i8[2]"])), [102, 109])
    np.testing.assert_array_equal(value_of(fold_lines([data, "argmax %0 {axes=[1]} : i32[2]"])), [2, 2])
    dot = fold_lines([data, "dot_general %0, %0 {contract=([1],[1])} : i8[2,2]"])
    exact = np.array([[5, -3, 100], [2, 7, 100]]) @ np.array([[5, -3, 100], [2, 7, 100]]).T
    np.testing.assert_array_equal(value_of(dot), exact.astype(np.int8))


@pytest.mark.parametrize("line", ["reduce_sum %0 {axes=[1]} : f32[2]", "reduce_prod %0 {axes=[0]} : f32[3]",
                                  "dot_general %0, %0 {contract=([1],[1])} : f32[2,2]"])
def test_float_sums_are_left_to_the_kernels(line):
    assert not fold_lines(["constant {value=[0.5, 2.0, 3.0, 4.0, 5.0, 6.0]} : f32[2,3]", line]).changed


@pytest.mark.parametrize("line, want", [
    ("reduce_sum %x {axes=[0]} : f32[3]", 0.0), ("reduce_prod %x {axes=[0]} : f32[3]", 1.0), ("reduce_max %x {axes=[0]} : f32[3]", -np.inf),
    ("reduce_min %x {axes=[0]} : f32[3]", np.inf), ("dot_general %y, %x {contract=([1],[0])} : f32[2,3]", 0.0),
])
def test_reductions_over_nothing_are_their_identity(line, want):
    found = value_of(fold_lines([line], "%x: f32[0,3], %y: f32[2,0]"))
    assert found.tobytes() == np.float32(want).tobytes()


@pytest.mark.parametrize("op, kind, want", [("reduce_max", "i8", -128), ("reduce_min", "u16", 65535), ("reduce_and", "i32", -1),
                                            ("reduce_or", "bool", False), ("reduce_max", "f16", -np.inf), ("reduce_sum", "bf16", 0)])
def test_identities_have_the_dtype_of_the_result(op, kind, want):
    found = value_of(fold_lines([f"{op} %x {{axes=[0]}} : {kind}[3]"], f"%x: {kind}[0,3]"))
    assert found.dtype == parse_type(f"{kind}[]").dtype.numpy and found == want


def test_values_without_elements_are_constants():
    result = fold_lines(["exp %x : f32[0,3]", "dot_general %0, %y {contract=([1],[0])} : f32[0,4]"], "%x: f32[0,3], %y: f32[3,4]")
    assert value_of(result).shape == () and result.graph.output_types() == [parse_type("f32[0,4]")]


def test_parameters_stay_parameters():
    assert not fold_lines(["neg %x : f32[3]"], "%x: f32[3]").changed


def folded_bytes(count):
    """Bytes of constants before and after folding `count` arrays that each become four times as large."""
    g = Graph("g")
    outputs = []
    for k in range(count):
        row, column = g.constant(np.arange(1024, dtype=np.float32) + k), g.constant(np.arange(4, dtype=np.float32))
        wide = [g.add("broadcast_in_dim", (x,), {"dims": (axis,)}, parse_type("f32[4,1024]")) for x, axis in ((row, 1), (column, 0))]
        outputs.append(g.add("mul", tuple(wide)))
    g.set_outputs(outputs)
    after = FOLD.run(g, PassContext()).graph

    def size(graph):
        return sum(n.attrs["value"].array.nbytes for n in graph.nodes if n.op.name == "constant")
    return size(g), size(after)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_folding_adds_at_most_the_stated_amount(count):
    before, after = folded_bytes(count)
    assert after <= before + EXTRA_BYTES
    assert after > before


def test_broadcasts_of_constants_stay_broadcasts():
    data, wide = "constant {value=[1.0, 2.0, 3.0]} : f32[3]", "broadcast_in_dim %0 {dims=[1]} : f32[2,3]"
    assert not fold_lines([data, wide]).changed
    assert not fold_lines([data, wide, "neg %1 : f32[2,3]"]).changed  # motion takes it to the three elements, where it folds


def test_what_two_broadcasts_make_is_a_constant():
    lines = ["constant {value=[1.0, 2.0, 3.0]} : f32[3]", "constant {value=[10.0, 20.0]} : f32[2]", "broadcast_in_dim %0 {dims=[1]} : f32[2,3]",
             "broadcast_in_dim %1 {dims=[0]} : f32[2,3]", "mul %2, %3 : f32[2,3]"]
    np.testing.assert_array_equal(value_of(fold_lines(lines)), [[10, 20, 30], [20, 40, 60]])


def test_the_budget_holds_over_all_rounds_of_one_compilation():
    ctx = PassContext(folded_bytes=EXTRA_BYTES)
    g = Graph("g")
    g.set_outputs([g.add("neg", (g.constant(np.arange(5, dtype=np.float32)),))])
    assert not FOLD.run(g, ctx).changed


def test_large_constants_are_not_walked_through():
    import time
    g = Graph("g")
    big = g.constant(np.arange(1 << 20, dtype=np.int32).reshape(1024, 1024))
    g.set_outputs([g.add("slice", (g.add("rev", (big,), {"axes": (0,)}),), {"start": (0, 3), "limit": (1, 4), "strides": (1, 1)})])
    started = time.process_time()
    result = FOLD.run(g, PassContext())
    assert not result.changed and time.process_time() - started < 0.5


def test_iota_is_not_turned_into_data():
    assert not fold_lines(["iota {axis=0} : i32[100]"]).changed


def test_nothing_folds_while_the_process_flushes_subnormals(monkeypatch):
    monkeypatch.setattr(fold, "flushes_subnormals", lambda: True)
    result = fold_lines(["constant {value=0x1.0p-126} : f32[5]", "mul %0, %0 : f32[5]"])
    assert not result.changed and "subnormals" in result.notes[0]


def test_this_process_keeps_subnormals():
    assert not fold.flushes_subnormals()


def test_subnormals_fold_exactly():
    found = value_of(fold_lines(["constant {value=0x1.0p-126} : f32[5]", "constant {value=0.25} : f32[5]", "mul %0, %1 : f32[5]"]))
    assert found == np.float32(2.0 ** -128) and found != 0


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_transcendentals_fold_to_the_bits_of_their_scalar_expression(dtype):
    """Machine code follows the expression bit for bit; NumPy's own exp may differ from it."""
    from mlc.core import expr as ex
    from mlc.core.scalar_eval import evaluate
    from mlc.ops.base import REGISTRY
    array = np.array([0.3, -1.7, 2.5], np.float64).astype(dtype.numpy)
    g = Graph("g")
    node = g.add("exp", (g.constant(array),))
    g.set_outputs([node])
    found = value_of(FOLD.run(g, PassContext()))
    (want,) = evaluate([REGISTRY["exp"].scalar(ex.arg(0, dtype))], lambda leaf: array)
    assert found.tobytes() == want.tobytes()
