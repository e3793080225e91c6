"""Vectors of bool that loops carry and folds shuffle are bytes where no register holds single bits, and mean the same."""

import re

import machine
import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.stages import Stages

READERS = {
    "all of it": lambda x: (mlc.numpy.any(x), mlc.numpy.all(x)),
    "rows": lambda x: (mlc.numpy.any(x, axis=1), mlc.numpy.all(x, axis=1)),
    "columns": lambda x: (mlc.numpy.any(x, axis=0), mlc.numpy.all(x, axis=0)),
    "compared": lambda x: (mlc.numpy.any(x, axis=1), mlc.numpy.sum(mlc.numpy.where(x, 1, 0), axis=1)),
    "positions": lambda x: (mlc.numpy.argmax(x, axis=1), mlc.numpy.argmin(x, axis=0))}


def compiled(reader, x, target):
    return Stages(mlc.jit(READERS[reader]).lower(x)._captured.graph, get_target(target))


def rows(length):
    """Rows of no and of all bits, and those with one that differs at every place."""
    one = np.eye(length, dtype=bool)
    return np.concatenate([np.zeros((1, length), bool), np.ones((1, length), bool), one, ~one])


@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("length", [1, 7, 31, 33, 129, 300])
def test_one_bit_is_found_wherever_it_stands(target, reader, length):
    x = rows(length)
    made = compiled(reader, x, target)
    found = made.build().run([x])
    for level in (made.run_kernels([x]), made.run_loops([x])):
        assert all(np.array_equal(a, b) for a, b in zip(level, found, strict=True))
    if reader == "rows":
        np.testing.assert_array_equal(found[0], x.any(axis=1))
        np.testing.assert_array_equal(found[1], x.all(axis=1))


@pytest.mark.parametrize("reader", ["all of it", "rows"])
def test_no_vector_of_bits_is_carried_or_shuffled(reader):
    text = compiled(reader, np.zeros((512, 512), bool), "golden-v3").module.text
    assert not re.search(r"(phi|shufflevector|extractelement) <\d+ x i1>", text) and re.search(r"phi <\d+ x i8>", text)
