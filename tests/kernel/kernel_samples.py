"""Small graphs whose kernels the tests look at, written with the graph builder so that no frontend is involved."""

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.graph import Graph


class Builder(Graph):
    """A graph with a few shorthands."""

    def input(self, name, *shape, dtype=dt.f32):
        return self.parameter(name, TensorType(shape, dtype))

    def spread(self, node, shape, dims):
        return self.add("broadcast_in_dim", (node,), {"dims": dims}, TensorType(shape, self.nodes[node].dtype))

    def splat(self, value, shape, dtype=dt.f32):
        return self.constant(value, TensorType(shape, dtype))

    def fold(self, op, node, *axes):
        return self.add(op, (node,), {"axes": axes})

    def matmul(self, x, y):
        shape = (self.nodes[x].shape[0], self.nodes[y].shape[1])
        return self.add("dot_general", (x, y), {"contract": ((1,), (0,)), "batch": ((), ())}, TensorType(shape, self.nodes[x].dtype))


def softmax(rows=8, width=37):
    g = Builder("softmax")
    shape = (rows, width)
    x = g.input("x", *shape)
    e = g.add("exp", (g.add("sub", (x, g.spread(g.fold("reduce_max", x, 1), shape, (0,)))),))
    total = g.spread(g.fold("reduce_sum", e, 1), shape, (0,))
    return g.set_outputs([g.add("div", (e, total))])


def layer_norm(rows=8, width=48):
    g = Builder("layer_norm")
    shape = (rows, width)
    x, scale, bias = g.input("x", *shape), g.input("scale", width), g.input("bias", width)
    count = g.splat(width, (rows,))
    centred = g.add("sub", (x, g.spread(g.add("div", (g.fold("reduce_sum", x, 1), count)), shape, (0,))))
    variance = g.add("div", (g.fold("reduce_sum", g.add("mul", (centred, centred)), 1), count))
    inverse = g.add("rsqrt", (g.add("add", (variance, g.splat(1e-5, (rows,)))),))
    scaled = g.add("mul", (g.add("mul", (centred, g.spread(inverse, shape, (0,)))), g.spread(scale, shape, (1,))))
    return g.set_outputs([g.add("add", (scaled, g.spread(bias, shape, (1,))))])


def dense(rows=19, inner=24, width=50):
    """relu(x @ w + b)"""
    g = Builder("dense")
    x, w, b = g.input("x", rows, inner), g.input("w", inner, width), g.input("b", width)
    biased = g.add("add", (g.matmul(x, w), g.spread(b, (rows, width), (1,))))
    return g.set_outputs([g.add("max", (biased, g.splat(0.0, (rows, width))))])


def chain(length, size=1000):
    g = Builder("chain")
    x = y = g.input("x", size)
    for k in range(length):
        y = g.add(("add", "mul", "sub")[k % 3], (y, x))
    return g.set_outputs([y])


def diamond(levels, size=64):
    g = Builder("diamond")
    a, b = g.input("a", size, dtype=dt.i32), g.input("b", size, dtype=dt.i32)
    for k in range(levels):
        doubled = g.add("mul", (b, g.splat(2, (size,), dt.i32)))
        a, b = g.add("add", (a, doubled)), g.add("xor", (g.add("sub", (a, b)), g.splat(k, (size,), dt.i32)))
    return g.set_outputs([a, b])
