"""Random indices, updates, products, reductions and trees: capture against NumPy, or against the identity."""

import collections

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mlc
from mlc.frontend import tree

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def array(shape, start=1):
    return np.arange(start, start + int(np.prod(shape)), dtype=np.int64).reshape(shape)


@st.composite
def indexed(draw):
    shape = draw(SHAPES)
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=6))


@QUICK
@given(indexed())
def test_basic_index_reads_what_numpy_reads(case):
    shape, index = case
    x = array(shape)
    np.testing.assert_array_equal(mlc.jit(lambda x: x[index])(x), x[index])


@QUICK
@given(indexed(), st.sampled_from(["set", "add", "multiply", "max", "min"]))
def test_basic_update_writes_what_numpy_writes(case, name):
    shape, index = case
    x, expected = array(shape), array(shape)
    value = array(x[index].shape, start=7) % 11
    apply = {"set": lambda old, new: new, "add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[name]
    expected[index] = apply(expected[index], value)
    np.testing.assert_array_equal(mlc.jit(lambda x, v: getattr(x.at[index], name)(v))(x, value), expected)


@QUICK
@given(SHAPES, st.data())
def test_index_array_takes_what_numpy_takes(shape, data):
    x = array((*shape, 6))
    axis = data.draw(st.integers(0, x.ndim - 1))
    size = x.shape[axis]
    index = np.array(data.draw(st.lists(st.integers(-size, size - 1), max_size=8) if size else st.just([])), np.int64)
    np.testing.assert_array_equal(mlc.jit(lambda x: mlc.numpy.take(x, index, axis))(x), np.take(x, index, axis))
    whole = (slice(None),) * axis + (index,)
    np.testing.assert_array_equal(mlc.jit(lambda x: x[whole])(x), x[whole])


@st.composite
def matrices(draw):
    shapes = draw(hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=3, max_side=4))
    return shapes.input_shapes


@QUICK
@given(matrices())
def test_matmul_broadcasts_as_numpy_does(shapes):
    x, y = array(shapes[0]), array(shapes[1], start=3)
    np.testing.assert_array_equal(mlc.jit(lambda x, y: x @ y)(x, y), x @ y)


@QUICK
@given(SHAPES, st.data())
def test_reductions_over_any_axes(shape, data):
    x = array(shape) % 7
    axes = data.draw(st.none() | st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim).map(tuple)) if x.ndim else None
    keep = data.draw(st.booleans())
    for name in ("sum", "prod", "any", "all"):
        found = mlc.jit(lambda x, name=name: getattr(x, name)(axis=axes, keepdims=keep))(x)
        np.testing.assert_array_equal(found, getattr(x, name)(axis=axes, keepdims=keep))


@QUICK
@given(SHAPES, st.data())
def test_transpose_and_reshape_round_trip(shape, data):
    x = array(shape)
    perm = data.draw(st.permutations(range(x.ndim)))
    np.testing.assert_array_equal(mlc.jit(lambda x: (x.transpose(perm) + 0).reshape(-1 if x.size else 0))(x), x.transpose(perm).reshape(-1))


Pair = collections.namedtuple("Pair", "left right")
LEAVES = st.integers(-9, 9) | st.floats(-4, 4, width=16) | st.booleans()
KEYS = st.text("abXY 1.é", min_size=1, max_size=3)
TREES = st.recursive(LEAVES | st.none(), lambda t: st.lists(t, max_size=3) | st.lists(t, max_size=3).map(tuple)
                     | st.dictionaries(KEYS, t, max_size=3) | st.tuples(t, t).map(lambda p: Pair(*p)), max_leaves=8)


@QUICK
@given(TREES)
def test_any_tree_comes_back_as_it_went_in(value):
    f = mlc.jit(lambda t: t)
    assert f(value) == value
    names = f.lower(value).graph.param_names()
    assert len(set(names)) == len(names)


@QUICK
@given(TREES, TREES)
def test_structures_are_equal_exactly_when_trees_look_alike(a, b):
    first, second = tree.flatten_checked(a, "a")[1], tree.flatten_checked(b, "b")[1]
    assert (first == second) == (tree.describe(first) == tree.describe(second))
    if first == second:
        assert hash(first) == hash(second)


@QUICK
@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=6), elements=st.floats(-8, 8, width=32)), st.data())
def test_any_strides_are_read_as_they_look(base, data):
    index = data.draw(hnp.basic_indices(base.shape, allow_ellipsis=False))
    view = np.asarray(base[index]).T
    np.testing.assert_array_equal(mlc.jit(lambda x: x * 2)(view), view * 2)
