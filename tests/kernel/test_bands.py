"""Rows in bands: which kernels have them, that bits stay, that every level agrees."""

import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.kernel import bands
from mlc.stages import Stages

RNG = np.random.default_rng(11)


def softmax(x):
    return mlc.nn.softmax(x, axis=-1)


def spread(x, y):
    """Several values a row, of which one is made of another where it is bound, and two outputs."""
    m = mlc.numpy.mean(x * y, axis=-1, keepdims=True)
    d = x - m
    s = mlc.numpy.sqrt(mlc.numpy.sum(d * d, axis=-1, keepdims=True) + 1)
    return d / s * y, s[..., 0]


def stages(function, *args):
    return Stages(mlc.jit(function).lower(*args)._captured.graph, get_target("native"))


def normal(*shape):
    return (RNG.normal(size=shape) * 3).astype("f4")


@pytest.mark.parametrize("shape, size", [((128, 768), 4), ((126, 768), 3), ((130, 768), 2), ((127, 768), 1), ((3, 64, 512), 4), ((64, 2000), 2),
                                         ((30, 1500), 2), ((8, 4096), 1), ((4096, 48), 1), ((64, 256), 1), ((1024, 512), 1)])
def test_rows_in_cache_are_in_bands(shape, size):
    (kernel,) = stages(softmax, normal(*shape)).kernels.kernels()
    assert np.prod([extent for _, extent in kernel.rows]) * size == np.prod(shape[:-1])
    assert all(stage.axes[:1] == ((f"{kernel.rows[-1][0]}.r", size),) for stage in kernel.stages) or size == 1


@pytest.mark.parametrize("function, shapes", [(softmax, [(64, 512)]), (spread, [(72, 500), (72, 500)]), (softmax, [(3, 32, 400)])])
def test_every_level_agrees_with_single_rows(function, shapes, monkeypatch):
    args = [normal(*shape) for shape in shapes]
    args[0].reshape(-1, shapes[0][-1])[3, 5] = np.nan
    with mlc.options(fork_us=0, check=2):
        made = stages(function, *args)
        assert any(stage.axes and stage.axes[0][0].endswith(".r") for kernel in made.kernels.kernels() for stage in kernel.stages)
        found = made.build().run(args)
        levels = [made.run_kernels(args), made.run_loops(args), made.run_planned(args)]
        monkeypatch.setattr(bands, "BANDS", ())
        single = stages(function, *args)
        assert not any(stage.axes and stage.axes[0][0].endswith(".r") for kernel in single.kernels.kernels() for stage in kernel.stages)
        for level in (*levels, single.build().run(args)):
            for one, want in zip(level, found, strict=True):
                np.testing.assert_array_equal(one, want)
    rows = found[0].reshape(-1, shapes[0][-1])
    assert np.isnan(rows[3]).any() and not np.isnan(rows[4]).any()
