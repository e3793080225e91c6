"""Attention kernels written by hand: softmax(q k^T / 4) v for some heads."""

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dims import TensorType
from mlc.kernel.ir import Attend, Kernel, Param, Put
from mlc.ops.base import op


def load(name, dtype=dt.f32, offset=0, **terms):
    return ex.make("load", dtype, (), (name, Affine(offset, terms)))


def attention(heads=2, queries=9, keys=12, depth=4, columns=5, dtype=dt.f32, score=lambda dot: dot * 0.25):
    """The kernel; its one stage is `kernel.stages[0]`."""
    stage = Attend(
        "t0", dtype, ("m", queries), ("n", keys), ("k", depth), ("c", columns),
        query=load("a0", dtype, i0=queries * depth, m=depth, k=1), key=load("a1", dtype, i0=keys * depth, n=depth, k=1),
        score=score(ex.var("t0.s", dtype)), weight=op("exp").scalar(ex.var("t0.x", dtype)),
        value=load("a2", dtype, i0=keys * columns, n=columns, c=1),
        puts=(Put("o0", Affine(0, {"i0": queries * columns, "m": columns, "c": 1}), ex.var("t0", dtype)),))
    sizes = {"a0": queries * depth, "a1": keys * depth, "a2": keys * columns, "o0": queries * columns}
    params = tuple(Param(name, TensorType((heads * size,), dtype), "out" if name == "o0" else "in") for name, size in sizes.items())
    return Kernel("attention", params, (("i0", heads),), (stage,))
