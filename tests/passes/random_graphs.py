"""Random small graphs in which rewrites find much to do: splats of special values, movement on movement, calls, repeats."""

import math
import random

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.errors import MlcError
from mlc.graph import Graph
from mlc.ops.base import ELEMENTWISE, REDUCTION, REGISTRY

DTYPES = (dt.f32, dt.f32, dt.f16, dt.bf16, dt.f64, dt.i32, dt.i8, dt.u8, dt.bool_)
SHAPES = ((), (1,), (3,), (6,), (2, 3), (3, 2), (1, 6), (2, 1, 3), (6, 1), (4, 6), (0, 3))
UNARY = [op for op in REGISTRY.values() if op.fusion == ELEMENTWISE and op.arity == 1 and not op.attrs and not op.typed]
BINARY = [op for op in REGISTRY.values() if op.fusion == ELEMENTWISE and op.arity == 2]
REDUCE = [op for op in REGISTRY.values() if op.fusion == REDUCTION]


class Builder:
    def __init__(self, seed, size):
        self.random = random.Random(seed)
        self.graph = Graph(f"seed{seed}")
        for k in range(self.random.randint(1, 3)):
            self.graph.parameter(f"p{k}", TensorType(self.random.choice(SHAPES), self.random.choice(DTYPES)))
        while len(self.graph) < size:
            step = self.random.choice(self.STEPS)
            try:
                step(self)
            except MlcError:
                pass  # the op's own rule refused these operands
        values = [i for i, n in enumerate(self.graph.nodes) if isinstance(n.type, TensorType)]
        self.graph.set_outputs(self.random.sample(values[-6:], k=min(3, len(values[-6:]))))

    def pick(self, type=None):
        """A value (of this type, if given: made when there is none, or sometimes a splat of a special value)."""
        nodes = self.graph.nodes
        if type is None:
            found = [i for i, n in enumerate(nodes) if isinstance(n.type, TensorType)]
            return self.random.choice(found[-8:] if self.random.random() < 0.8 else found)
        same = [i for i, n in enumerate(nodes) if n.type == type]
        if same and self.random.random() < 0.6:
            return self.random.choice(same)
        return self.splat(type) if self.random.random() < 0.6 else self.spread(type)

    def splat(self, type):
        dtype = type.dtype
        special = {"f": [-0.0, -1, np.nan, np.inf, -np.inf, 0.5, 4], "i": [-1, dtype.min, dtype.max], "u": [dtype.max], "b": []}
        values = [0, 1, 2, *special[dtype.kind]]
        with np.errstate(all="ignore"):
            value = np.array(self.random.choice(values)).astype(dtype.numpy)
        return self.graph.constant(value, type)

    def spread(self, type):
        """A broadcast of something smaller, or array data."""
        if type.shape and self.random.random() < 0.7:
            kept = sorted(self.random.sample(range(type.rank), self.random.randint(0, type.rank)))
            small = TensorType([type.shape[i] if self.random.random() < 0.8 else 1 for i in kept], type.dtype)
            same = [i for i, n in enumerate(self.graph.nodes) if n.type == small] or [self.data(small)]
            return self.graph.add("broadcast_in_dim", (self.random.choice(same),), {"dims": tuple(kept)}, type)
        return self.data(type)

    def data(self, type):
        size = math.prod(type.shape)
        values = [self.random.randint(0, 1) if type.dtype is dt.bool_ else self.random.randint(0, 9) for _ in range(size)]
        return self.graph.constant(np.array(values).astype(type.dtype.numpy).reshape(type.shape))

    def again(self):
        """The same node once more, for CSE."""
        node = self.graph.nodes[self.pick()]
        if node.op.name not in ("parameter", "constant") and not node.regions:
            self.graph.add(node.op, node.inputs, node.attrs, node.type if node.op.typed else None)

    def unary(self):
        self.graph.add(self.random.choice(UNARY), (self.pick(),))

    def unary_twice(self):
        op = self.random.choice(UNARY)
        self.graph.add(op, (self.graph.add(op, (self.pick(),)),))

    def binary(self):
        x = self.pick()
        y = x if self.random.random() < 0.15 else self.pick(self.graph.type(x))
        pair = (x, y) if self.random.random() < 0.7 else (y, x)
        self.graph.add(self.random.choice(BINARY), pair)

    def ternary(self):
        x = self.pick()
        type = self.graph.type(x)
        if self.random.random() < 0.5:
            self.graph.add("clamp", (self.pick(type), x, self.pick(type)))
        else:
            self.graph.add("select", (self.pick(type.with_dtype(dt.bool_)), x, self.pick(type)))

    def convert(self):
        x = self.pick()
        self.graph.add("convert_element_type", (x,), {}, self.graph.type(x).with_dtype(self.random.choice(DTYPES)))

    def power(self):
        self.graph.add("integer_pow", (self.pick(),), {"y": self.random.randint(0, 4)})

    def reshape(self):
        x = self.pick()
        type = self.graph.type(x)
        fits = [s for s in (*SHAPES, (1, *type.shape), (*type.shape, 1), (2, 3, 4), (24,)) if math.prod(s) == type.size]
        self.graph.add("reshape", (x,), {}, TensorType(self.random.choice(fits), type.dtype))

    def transpose(self):
        x = self.pick()
        perm = list(range(self.graph.type(x).rank))
        self.random.shuffle(perm)
        self.graph.add("transpose", (x,), {"perm": tuple(perm)})

    def slice(self):
        x = self.pick()
        start, limit, strides = [], [], []
        for n in self.graph.type(x).shape:
            a, b = sorted((self.random.randint(0, n), self.random.randint(0, n))) if self.random.random() < 0.6 else (0, n)
            start.append(a), limit.append(b), strides.append(self.random.choice((1, 1, 2, 3)))
        self.graph.add("slice", (x,), {"start": tuple(start), "limit": tuple(limit), "strides": tuple(strides)})

    def rev(self):
        x = self.pick()
        self.graph.add("rev", (x,), {"axes": tuple(i for i in range(self.graph.type(x).rank) if self.random.random() < 0.5)})

    def concatenate(self):
        x = self.pick()
        type = self.graph.type(x)
        operands = [x if self.random.random() < 0.3 else self.pick(type) for _ in range(self.random.randint(0, 2))]
        self.graph.add("concatenate", (x, *operands), {"axis": self.random.randrange(max(type.rank, 1))})

    def pad(self):
        x = self.pick()
        type = self.graph.type(x)
        pads = tuple((self.random.randint(-1, 2), self.random.randint(-1, 2), self.random.choice((0, 0, 1))) for _ in type.shape)
        self.graph.add("pad", (x, self.splat(TensorType((), type.dtype))), {"pads": pads})

    def broadcast(self):
        x = self.pick()
        type = self.graph.type(x)
        if type.rank < 3:
            shape = list(type.shape)
            shape.insert(place := self.random.randint(0, type.rank), self.random.choice((1, 2, 3)))
            self.graph.add("broadcast_in_dim", (x,), {"dims": tuple(i for i in range(type.rank + 1) if i != place)}, TensorType(shape, type.dtype))

    def reduce(self):
        x = self.pick()
        op = self.random.choice(REDUCE)
        axes = tuple(i for i in range(self.graph.type(x).rank) if self.random.random() < 0.6)
        left = [n for i, n in enumerate(self.graph.type(x).shape) if i not in axes]
        self.graph.add(op, (x,), {"axes": axes}, TensorType(left, dt.i32) if op.typed else None)

    def dot(self):
        x = self.pick()
        type = self.graph.type(x)
        if type.rank != 2:
            return
        y = self.pick(TensorType((type.shape[1], self.random.choice((2, 3))), type.dtype))
        if self.random.random() < 0.5:
            y = self.graph.add("transpose", (y,), {"perm": (1, 0)})
            attrs = {"contract": ((1,), (1,)), "batch": ((), ())}
        else:
            attrs = {"contract": ((1,), (0,)), "batch": ((), ())}
        if self.random.random() < 0.5:
            x = self.graph.add("transpose", (x,), {"perm": (1, 0)})
            attrs = {"contract": ((0,), attrs["contract"][1]), "batch": ((), ())}
        self.graph.add("dot_general", (x, y), attrs, TensorType((type.shape[0], self.graph.type(y).shape[1 - attrs["contract"][1][0]]), type.dtype))

    def iota(self):
        shape = self.random.choice(SHAPES[1:])
        self.graph.add("iota", (), {"axis": self.random.randrange(len(shape))}, TensorType(shape, self.random.choice(DTYPES)))

    def call(self):
        x = self.pick()
        inner = Graph("inner")
        a = inner.parameter("a", self.graph.type(x))
        inner.set_outputs([inner.add(self.random.choice(UNARY), (a,)), a])
        results = self.graph.add("call", (x,), {}, regions=(inner,))
        self.graph.add("tuple_get", (results,), {"index": self.random.randint(0, 1)})

    STEPS = (again, unary, unary_twice, binary, binary, binary, binary, ternary, convert, power, reshape, reshape, transpose, slice, slice, rev,
             concatenate, pad, broadcast, broadcast, reduce, dot, iota, call)


def random_graph(seed, size=30):
    """A graph of about `size` nodes."""
    return Builder(seed, size).graph
