"""Maxima that loops carry negated have the bits of maxima: NaN from anywhere, +0 above -0."""

import machine
import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.stages import Stages


def compiled(function, args, target):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target(target))


def largest(x):
    return mlc.numpy.max(x, axis=-1)


@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("length", [1, 7, 33, 64, 100])
def test_zeros_and_nans_wherever_they_stand(target, dtype, length):
    x = np.full((2 * length + 3, length), -0.0, dtype)
    x[range(length), range(length)] = 0.0
    x[range(length, 2 * length), range(length)] = np.nan
    x[2 * length] = -np.inf
    x[2 * length + 1] = np.linspace(-5, 5, length)
    x[2 * length + 1, -1] = -7
    made = compiled(largest, [x], target)
    (found,) = made.build().run([x])
    np.testing.assert_array_equal(found[length:], x[length:].max(axis=1))
    assert not np.signbit(found[:length]).any() and np.signbit(found[-1])
    for level in (made.run_kernels([x]), made.run_loops([x])):
        assert machine.same_bits(level[0], found).all()


READERS = {
    "columns": lambda x: (mlc.numpy.max(x, axis=0), mlc.numpy.max(x)),
    "softmax": lambda x: mlc.nn.softmax(x),
    "several": lambda x: (mlc.numpy.max(x, axis=1), mlc.numpy.sum(x, axis=1), mlc.numpy.max(-x, axis=1)),
    "computed": lambda x: mlc.numpy.max(mlc.numpy.maximum(x, 0.5) - mlc.numpy.minimum(x, -0.5), axis=1)}


@pytest.mark.parametrize("reader", READERS)
def test_what_else_reads_them_finds_the_maxima(reader):
    x = np.random.default_rng(0).normal(size=(67, 301)).astype("f4")
    x[3, 5] = np.nan
    made = compiled(READERS[reader], [x], "golden-v3" if "golden-v3" in machine.runnable_targets() else "native")
    found = made.build().run([x])
    for level in (made.run_kernels([x]), made.run_loops([x])):
        assert all(machine.same_bits(a, b).all() for a, b in zip(level, found, strict=True))


def test_a_loop_chooses_for_nan_only_where_a_maximum_is_not_carried():
    x = np.zeros((4, 512), "f4")
    text = compiled(largest, [x], "golden-v3").module.text
    loop = text[text.rindex("\nloop"):text.index("\ndone")]
    assert "fneg <" in loop and "fcmp uno" not in loop and "fcmp uno" in text
