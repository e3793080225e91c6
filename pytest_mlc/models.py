"""Error models: how accurate each backend claims to be. The oracle's bound is derived from one of these, node by node.

mlc: the ulp of each op's literal; a reduction adds at most CHUNK partial results a level, then the lanes as a tree, so a
term passes through `depth(n)` additions, which grows with log n; a contraction runs along k, one fma a term, and adds what
each DOT_CHUNK terms gave. JAX: its own, looser, measured ulp table; its sums may be sequential, halves in halves; results
below the smallest normal number are flushed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlc.core import dtype as dt
from mlc.core.dtype import DType
from mlc.graph.graph import Node
from mlc.kernel.schedule import CHUNK
from mlc.kernel.tiling import DOT_CHUNK


@dataclass(frozen=True)
class ErrorModel:
    """What one backend promises. `flush` adds the smallest normal number to every float result's error."""

    name: str
    flush: bool = False

    def ulp(self, node: Node) -> float:
        """Worst error of one elementwise op, in ulp of its result."""
        raise NotImplementedError

    def exact(self, node: Node) -> bool:
        """Whether the op, given exact operands, returns the own-dtype interpreter's bits."""
        raise NotImplementedError

    def depth(self, terms: int) -> float:
        """How many roundings one term of an n-term sum or product may pass through."""
        raise NotImplementedError

    def contraction_depth(self, terms: int) -> float:
        """The same for a contraction over n terms; 1 is added for the product's own rounding."""
        return float(terms)

    def accumulator(self, dtype: DType) -> DType:
        """The dtype in which a sum or product of `dtype` is accumulated."""
        return dt.f32 if dtype.is_half else dtype


# Levels of the tree that adds the lanes of a vector accumulator: at most 256 lanes.
LANE_LEVELS = 8


class MlcModel(ErrorModel):
    """mlc: the ops' own literals, and sums whose depth grows with log n."""

    def ulp(self, node: Node) -> float:
        return node.op.ulp_of(node.type.dtype, node.attrs)

    def exact(self, node: Node) -> bool:
        return self.ulp(node) <= 0.5

    def depth(self, terms: int) -> float:
        # The innermost partial sum may have 2 * CHUNK terms; the others add up to less than 14 additions a doubling of the length, whatever the axes.
        return float(min(terms, LANE_LEVELS + 2 * CHUNK + 14 * math.log2(max(1, terms / 32))))

    def contraction_depth(self, terms: int) -> float:
        return float(min(terms, DOT_CHUNK + -(-terms // DOT_CHUNK)))


# Measured on jaxlib 0.10.2 (CPU), eager, against float64: worst ulp over the ops' own domains, rounded up.
JAX_ULP = {"tanh": 8.0, "erf": 8.0, "logistic": 8.0, "pow": 16.0, "log1p": 6.0, "expm1": 6.0, "rsqrt": 4.0, "sin": 4.0, "cos": 4.0,
           "exp2": 128.0}
JAX_DEFAULT_ULP = 4.0


class JaxModel(ErrorModel):
    """JAX on CPU, op by op: a looser table, sums that may be sequential and in the operand's own dtype, subnormals flushed."""

    def ulp(self, node: Node) -> float:
        own = node.op.ulp_of(node.type.dtype, node.attrs)
        if own <= 0.5:
            return own
        table = JAX_ULP.get(node.op.name, JAX_DEFAULT_ULP)
        return max(own, min(table, 32.0) if node.type.dtype.is_half else table)

    def exact(self, node: Node) -> bool:
        return node.op.ulp_of(node.type.dtype, node.attrs) <= 0.5

    def depth(self, terms: int) -> float:
        return float(terms)

    def accumulator(self, dtype: DType) -> DType:
        return dtype


class NumpyModel(MlcModel):
    """The graph interpreter in own dtypes: NumPy's functions, and its pairwise or sequential sums."""

    def ulp(self, node: Node) -> float:
        own = super().ulp(node)
        return own if own <= 0.5 else own + 4.0

    def depth(self, terms: int) -> float:
        return float(terms)

    def contraction_depth(self, terms: int) -> float:
        return float(terms)


MLC = MlcModel("mlc")
NUMPY = NumpyModel("numpy")
JAX = JaxModel("jax", flush=True)


def min_normal(dtype: DType) -> float:
    return 2.0 ** dt.MIN_EXPONENT[dtype]


def min_subnormal(dtype: DType) -> float:
    """The smallest positive number (0.0 would be wrong for f64, so it is made by ldexp)."""
    return math.ldexp(1.0, dt.MIN_EXPONENT[dtype] - dt.MANTISSA[dtype] + 1)
