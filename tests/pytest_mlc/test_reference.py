"""JAX in its child: eager, in few shapes, restarted when it dies."""

import random

import numpy as np
import pytest
from mlc_strategies import Config, Palette, build

from mlc.core import dtype as dt
from mlc.graph import parse_graph
from mlc.graph.interpreter import apply_node
from pytest_mlc import canonical
from pytest_mlc.child import ChildError
from pytest_mlc.oracle import judge
from pytest_mlc.reference import STRICT_FLAGS, Reference, kept_programs, render, run_jax
from pytest_mlc.service import run_request


def test_run_jax_gives_what_jax_gives_with_x64_on():
    graph = parse_graph("graph @main(%x: f64[3], %k: i64[3]) -> (f64[3], i64[3]) {\n  %0 = tanh %x : f64[3]\n"
                        "  %1 = add %k, 4 : i64[3]\n  return %0, %1\n}")
    x, k = np.array([0.5, 2, -1]), np.array([2**40, -1, 0])
    found = run_jax(graph, [x, k])
    assert found[0].dtype == np.float64 and np.allclose(found[0], np.tanh(x), rtol=1e-14) and np.array_equal(found[1], k + 4)


def test_the_reference_is_kept_alive_and_comes_back_after_its_death():
    from pytest_mlc import reference
    graph = parse_graph("graph @main(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  return %0\n}")
    x = np.arange(3, dtype=np.float32)
    run_jax(graph, [x])
    process = reference._shared.child.process
    run_jax(graph, [x])
    assert reference._shared.child.process is process
    process.kill()
    process.wait()
    with pytest.raises(Exception, match=r"crash|signal 9"):
        run_jax(graph, [x])
    assert np.array_equal(run_jax(graph, [x])[0], -x)


def test_a_child_killed_as_it_starts_keeps_the_flags_of_the_next():
    """Without them JAX is wrong where it was right: they are for jaxlibs that do not know them to refuse, by name."""
    reference = Reference()
    try:
        for _ in range(2):
            reference.launch()
            reference.child.process.kill()
            with pytest.raises(ChildError, match="signal 9"):
                reference.start()
        reference.start()
        assert reference.flags == STRICT_FLAGS
        reference.stop()
        reference.flags = (STRICT_FLAGS[0], STRICT_FLAGS[1], "--xla_cpu_of_another_version=true", STRICT_FLAGS[3])
        reference.start()
        assert reference.flags == STRICT_FLAGS[:2]
    finally:
        reference.stop()


def test_what_jax_raises_is_told():
    graph = parse_graph("graph @main(%x: f32[3]) -> f32[3] {\n  %0 = neg %x : f32[3]\n  return %0\n}")
    with pytest.raises(RuntimeError, match="JAX raised"):
        run_jax(graph, [np.zeros(3, np.float32)] * 2)


def test_render_may_be_jitted():
    import jax
    graph = parse_graph("graph @main(%x: f32[3]) -> f32[] {\n  %0 = mul %x, %x : f32[3]\n  %1 = reduce_sum %0 {axes=[0]} : f32[]\n  return %1\n}")
    assert float(jax.jit(render(graph))(np.array([1, 2, 3], np.float32))[0]) == 14


@pytest.mark.parametrize("n", [200, 5000])
def test_positions_that_do_not_fit_the_index_are_wrapped_after_they_are_chosen(n):
    """JAX itself answers -128 here: of equal elements it takes the one whose wrapped position is smallest."""
    graph = parse_graph(f"graph @main(%x: f32[{n}]) -> i8[] {{\n  %0 = argmax %x {{axes=[0]}} : i8[]\n  return %0\n}}")
    x = np.zeros(n, np.float32)
    assert run_jax(graph, [x])[0] == 0
    x[150] = 1
    assert run_jax(graph, [x])[0].dtype == np.int8 and run_jax(graph, [x])[0] == 150 - 256


def test_canonical_shapes_give_the_same_values():
    """With the op's NumPy meaning in place of JAX: layout and padding must change nothing but the order of sums."""
    def call(node, operands, attrs, shape):
        attrs = dict(attrs)
        if node.op.typed:
            attrs.update(shape=shape, dtype=node.type.dtype.numpy)
        return np.asarray(node.op.numpy(*operands, **attrs))
    taken = 0
    for seed in range(120):
        program = build(random.Random(seed), Config(Palette.number(seed), special=seed % 2 == 0, dtypes=(dt.i32, dt.u8, dt.bool_, dt.f32)))
        graph = program.graph
        for node in graph.nodes:
            if node.inputs and not node.regions and node.op.name != "tuple_get":
                operands = [program.values[k] for k in node.inputs]
                with np.errstate(all="ignore"):
                    found, expected = canonical.run(node, operands, call), apply_node(node, operands)
                if found is not None:
                    taken += 1
                    assert found.shape == expected.shape
                    if node.op.fusion == "elementwise" or not node.type.dtype.is_float:
                        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f"), node.op.name
                    elif all(np.abs(o[np.isfinite(o)]).max(initial=0) < 1e15 for o in operands):
                        # Larger values overflow in one order of the sum and not in another.
                        assert np.allclose(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True), node.op.name
    assert taken > 300


@pytest.mark.parametrize("op, dtype, shape, axes", [("reduce_sum", "i64", (3, 5000), (1,)), ("reduce_max", "f32", (70001,), (0,)),
    ("reduce_and", "bool", (2, 3, 4099), (0, 2)), ("argmax", "i64", (5, 6177), (1,)), ("reduce_sum", "i16", (5000, 3), (1,)),
    ("reduce_min", "u8", (3, 0), (0,))])
def test_long_rows_many_rows_and_empty_results_need_no_program_of_their_own(op, dtype, shape, axes):
    def call(node, operands, attrs, shape):
        calls.append((operands[0].shape, shape))
        return np.asarray(node.op.numpy(*operands, **attrs, **({"shape": shape, "dtype": node.type.dtype.numpy} if node.op.typed else {})))
    calls: list = []
    kind, result = ("i64" if dtype == "bool" else dtype), ",".join(str(n) for a, n in enumerate(shape) if a not in axes)
    text = (f"graph @main(%x: {dtype}[{','.join(map(str, shape))}]) -> {dtype}[{result}] {{\n"
            f"  %0 = {op} %x {{axes=[{','.join(map(str, axes))}]}} : {dtype}[{result}]\n  return %0\n}}")
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dt.parse_dtype(kind).numpy).astype(dt.parse_dtype(dtype).numpy)
    node = parse_graph(text).nodes[-1]
    assert np.array_equal(canonical.run(node, [x], call), apply_node(node, [x]))
    assert {c for c in calls} <= {((rows, columns), (rows,)) for rows, columns in canonical.ROWS} and bool(calls) == bool(node.type.size)


def test_jax_and_the_referee_agree_on_generated_graphs():
    """Apart from what is known of JAX: integer powers with large exponents, and log1p in f64."""
    from mlc.graph import evaluate
    reference, found = Reference(), {}
    try:
        for seed in range(25):
            program = build(random.Random(seed), Config(Palette.number(0), dtypes=(dt.f32, dt.i32, dt.bool_), steps=(1, 5)))
            answer = reference.ask(run_request(program.graph, program.args, frugal=True), 120)
            with np.errstate(all="ignore"):
                own = evaluate(program.graph, program.args)
            verdict = judge(program.graph, program.args, own, answer["outputs"])
            if verdict.kind == "finding" and not any(n.op.name == "pow" for n in program.graph.nodes):
                found[seed] = str(verdict.worst)
    finally:
        reference.stop()
    assert not found


def test_programs_that_ops_share_are_kept_for_the_next_campaign(tmp_path, monkeypatch):
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    x = np.linspace(0.5, 2, 12).astype(np.float32).reshape(3, 4)
    graph = parse_graph("graph @main(%x: f32[3,4]) -> (f32[3,4], f32[2,3]) {\n  %0 = exp %x : f32[3,4]\n"
                        "  %1 = slice %x {start=[0,0], limit=[2,3], strides=[1,1]} : f32[2,3]\n  return %0, %1\n}")
    answers, kept = [], []
    for turn in range(3):
        for path in tmp_path.glob("fuzz-reference-*/*-cache"):
            if turn == 2:
                path.write_bytes(path.read_bytes()[:5000])  # a child was killed while it wrote
        reference = Reference()
        try:
            answers.append(reference.ask(run_request(graph, [x]), 60)["outputs"])
        finally:
            reference.stop()
        kept.append(sorted(path.name for path in tmp_path.glob("fuzz-reference-*/*-cache")))
    assert kept[0] == kept[1] and len(kept[0]) == 1  # not the slice, which has a shape of its own
    assert all(np.array_equal(a, b) and np.array_equal(a, c) for a, b, c in zip(*answers))


def test_nothing_is_kept_without_a_cache_or_where_the_user_says_where(monkeypatch):
    monkeypatch.setenv("MLC_CACHE", "0")
    assert kept_programs() == {}
    monkeypatch.setenv("MLC_CACHE", "1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    assert kept_programs() == {}
