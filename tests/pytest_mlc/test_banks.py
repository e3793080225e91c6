"""Programs that hold many of JAX's ops: each op gives what it gives alone, and compiling is paid for once a signature."""

import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.graph.graph import Graph
from mlc.ops.base import ELEMENTWISE, REGISTRY
from pytest_mlc.banks import Banks, signature


@pytest.fixture(scope="module")
def banks():
    import jax
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield Banks(jax)
    jax.config.update("jax_enable_x64", before)


def _node(name, types, attrs=None, given=None):
    graph = Graph()
    return graph.nodes[graph.add(name, [graph.parameter(f"x{k}", t) for k, t in enumerate(types)], attrs or {}, given)]


@pytest.mark.parametrize("name", ["add", "sub", "div", "rem", "max", "shift_left", "xor"])
def test_each_op_of_a_bank_is_told_from_the_others(banks, name):
    x, y = np.array([7, -7, 100, 3], np.int32), np.array([2, 3, 7, 1], np.int32)
    node = _node(name, [TensorType((4,), dt.i32)] * 2)
    assert np.array_equal(banks.call(node, [x, y], {}, (4,)), REGISTRY[name].numpy(x, y))


def test_ops_of_one_signature_share_a_program(banks):
    known = len(banks.programs)
    x = np.linspace(0.5, 2, 6).astype(np.float32)
    for name in ("exp", "log", "tanh", "neg", "sqrt"):
        found = banks.call(_node(name, [TensorType((6,), dt.f32)]), [x], {}, (6,))
        assert np.allclose(found, REGISTRY[name].numpy(x), rtol=1e-6)
    assert len(banks.programs) == known + 1


def test_one_program_converts_to_every_dtype(banks):
    x = np.array([1.5, -2.5, 300], np.float32)
    known = len(banks.programs)
    for d in (dt.i8, dt.bool_, dt.f64):
        node = _node("convert_element_type", [TensorType((3,), dt.f32)], given=TensorType((3,), d))
        found = banks.call(node, [x], {}, (3,))
        assert found.dtype == d.numpy
        assert np.array_equal(found, {dt.i8: [1, -2, 127], dt.bool_: [True] * 3, dt.f64: x}[d])
    assert len(banks.programs) == known + 1


def test_an_attribute_is_part_of_a_signature(banks):
    x = np.array([2, 3], np.float64)
    for power in (2, 3):
        node = _node("integer_pow", [TensorType((2,), dt.f64)], {"y": power})
        assert np.array_equal(banks.call(node, [x], {"y": power}, (2,)), x ** power)


@pytest.mark.parametrize("name,expected", [("reduce_sum", [6, 15]), ("reduce_min", [1, 4]), ("reduce_prod", [6, 120])])
def test_reductions_share_a_program(banks, name, expected):
    node = _node(name, [TensorType((2, 3), dt.i64)], {"axes": (1,)})
    assert np.array_equal(banks.call(node, [np.arange(1, 7).reshape(2, 3)], {"axes": (1,)}, (2,)), expected)


def test_every_elementwise_op_without_attributes_is_in_some_bank():
    for name, op in REGISTRY.items():
        if op.fusion == ELEMENTWISE and not op.attrs and not op.typed:
            scalar = TensorType((), op.dtypes[-1])
            types = [scalar] * op.arity if name != "select" else [TensorType((), dt.bool_), scalar, scalar]
            assert name in signature(tuple(types), op.infer(types, {}, None), ()), name
