"""What an op is: `OpDef`, one literal per op, and the helpers that write such literals briefly.

Everything known about an op stands in its literal; nothing elsewhere may ask for an op by name to learn what it means.
The helpers (`elementwise`, `movement`, `reduction`, `contraction`) only fill in what a family has in common.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dataclass import dataclass
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.errors import DtypeError, ShapeError
from mlc.core.expr import Expr

# Fusion classes: how a kernel may use the op.
ELEMENTWISE, INJECTIVE, REDUCTION, CONTRACTION, OPAQUE, LEAF = "elementwise", "injective", "reduction", "contraction", "opaque", "leaf"
# Aliasing: may the result take over an operand's buffer? FRESH: never; INPLACE: same index read before it is written;
# VIEW: the result IS the operand's memory.
FRESH, INPLACE, VIEW = "fresh", "inplace", "view"

# Algebraic facts, for the rewriter and for the oracle's error analysis.
COMMUTATIVE, ODD, EVEN, MONOTONE, IDEMPOTENT, INVOLUTION, EXACT, DISCONTINUOUS = (
    "commutative", "odd", "even", "monotone", "idempotent", "involution", "exact", "discontinuous")


@dataclass(frozen=True)
class Range:
    """The result lies in [lo, hi] whenever it is not NaN."""

    lo: float
    hi: float


@dataclass(frozen=True)
class Domain:
    """How to generate one operand: floats mostly in [lo, hi], plus `edges`; ints are clipped to their dtype."""

    lo: float = -10.0
    hi: float = 10.0
    edges: tuple[float, ...] = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)


@dataclass(frozen=True)
class Piece:
    """A part of an injective op's result. For index i in the box `shape`, element `start + i * stride` of the result is
    operand number `operand` at `source(i)`: for each operand axis an affine form (offset, ((axis of i, coefficient), ...)).
    Later pieces overwrite earlier ones (pad fills first)."""

    operand: int
    shape: tuple[int, ...]
    start: tuple[int, ...]
    stride: tuple[int, ...]
    source: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True)
class Reduction:
    """A reduction as a fold: per element, `lift` makes the tuple that is combined; `combine` is associative up to rounding.

    `accumulator(dtype)`: dtype of each tuple member while reducing. `finish` turns the final tuple into the result.
    `lift(x, position)` receives the element (already in accumulator dtype) and its row-major position among the reduced elements.
    """

    accumulator: Callable[[DType], tuple[DType, ...]]
    identity: Callable[[DType], tuple[Expr, ...]]
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]
    lift: Callable[[Expr, Expr], tuple[Expr, ...]] = lambda x, position: (x,)
    finish: Callable[[tuple[Expr, ...], DType], Expr] = lambda acc, dtype: ex.convert(acc[0], dtype)
    needs_position: bool = False


Attrs = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OpDef:
    """All that is known of one op.

    infer(types, attrs, given) -> TensorType; `given` is the declared result type of a `typed` op (else None).
    numpy(*arrays, **attrs) -> array in the operands' own dtype; a typed op's also gets `shape` and `dtype` (np.dtype).
    jax(jnp, lax, *arrays, **attrs): the same op as JAX calls it; a typed op's also gets `shape` and `dtype`.
    scalar(*Expr, **attrs) -> Expr (elementwise); pieces(types, attrs, out) (injective); reduce (reduction);
    generate(indices, attrs, out) -> Expr (no operands: the value at an index). `attrs` names each attribute and its kind:
    "axes" (sorted tuple), "ints", "int", "pairs", "dtype", "literal", "str".
    ulp: dtype -> worst error in ulp of mlc's own code, or a function of attrs giving that dict; absent means 0.5 (correctly rounded).
    """

    name: str
    version: int
    arity: int | None
    attrs: Mapping[str, str]
    dtypes: tuple[DType, ...]
    infer: Callable[[Sequence[TensorType], Attrs, TensorType | None], TensorType]
    numpy: Callable[..., np.ndarray] | None
    jax: Callable[..., Any] | None
    fusion: str
    alias: str
    facts: tuple[object, ...]
    ulp: Mapping[DType, float] | Callable[[Attrs], Mapping[DType, float]]
    inputs: tuple[Domain, ...]
    typed: bool = False
    scalar: Callable[..., Expr] | None = None
    pieces: Callable[[Sequence[TensorType], Attrs, TensorType], list[Piece]] | None = None
    reduce: Reduction | None = None
    generate: Callable[[Sequence[Expr], Attrs, TensorType], Expr] | None = None
    cost: float = 1.0

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self):
        return op, (self.name,)

    def has(self, fact: object) -> bool:
        return fact in self.facts

    def ulp_of(self, dtype: DType, attrs: Attrs) -> float:
        """Worst error of mlc's compiled code in ulp of the result."""
        table = self.ulp(attrs) if callable(self.ulp) else self.ulp
        return table.get(dtype, 0.5)


REGISTRY: dict[str, OpDef] = {}


def register(definition: OpDef) -> OpDef:
    """Enter an op into the registry; a second op of the same name is an error."""
    if definition.name in REGISTRY:
        raise ValueError(f"op {definition.name!r} is defined twice")
    REGISTRY[definition.name] = definition
    return definition


def op(name: str) -> OpDef:
    """The op of this name. Raises KeyError."""
    return REGISTRY[name]


# --------------------------------------------------------------------------- checks that infer functions share
def require_dtype(name: str, dtype: DType, allowed: Sequence[DType], what: str = "operand") -> None:
    if dtype not in allowed:
        raise DtypeError(f"{name}: {what} is {dtype}; it takes {', '.join(d.name for d in allowed)}")


def require_same(name: str, types: Sequence[TensorType], shapes_only: bool = False) -> None:
    for other in types[1:]:
        if other.shape != types[0].shape:
            raise ShapeError(f"{name}: operands are {' and '.join(map(str, types))}; shapes must be equal (broadcast first)")
        if not shapes_only and other.dtype is not types[0].dtype:
            raise DtypeError(f"{name}: operands are {' and '.join(map(str, types))}; dtypes must be equal (convert first)")


def _positional(function: Callable) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(function).parameters.values())


ANY = Domain()


def elementwise(
    name: str, *, version: int, dtypes: tuple[DType, ...], scalar: Callable[..., Expr], numpy: Callable[..., np.ndarray],
    jax: Callable[..., Any], arity: int | None = None, attrs: Mapping[str, str] | None = None, facts: tuple = (),
    ulp: Any = None, inputs: Domain | tuple[Domain, ...] = ANY, result: DType | None = None, alias: str = INPLACE,
    infer: Callable | None = None, typed: bool = False, cost: float = 1.0,
) -> OpDef:
    """An op applied to each element; operands and result share shape and dtype (or the result is `result`)."""
    count = arity if arity is not None else _positional(scalar)

    def infer_same(types: Sequence[TensorType], attrs: Attrs, given: TensorType | None) -> TensorType:
        require_dtype(name, types[0].dtype, dtypes)
        require_same(name, types)
        return types[0] if result is None else types[0].with_dtype(result)

    return register(OpDef(
        name=name, version=version, arity=count, attrs=attrs or {}, dtypes=dtypes, infer=infer or infer_same, numpy=numpy, jax=jax,
        fusion=ELEMENTWISE, alias=alias, facts=facts, ulp=ulp or {}, scalar=scalar, typed=typed, cost=cost,
        inputs=inputs if isinstance(inputs, tuple) else (inputs,) * count))


def movement(
    name: str, *, version: int, arity: int | None, attrs: Mapping[str, str], infer: Callable, numpy: Callable, jax: Callable,
    pieces: Callable | None = None, generate: Callable | None = None, typed: bool = False, fusion: str = INJECTIVE, alias: str = FRESH,
    facts: tuple = (), dtypes: tuple[DType, ...] = dt.ALL, inputs: tuple[Domain, ...] | None = None,
) -> OpDef:
    """An op that only moves elements: exact in every dtype."""
    return register(OpDef(
        name=name, version=version, arity=arity, attrs=attrs, dtypes=dtypes, infer=infer, numpy=numpy, jax=jax, fusion=fusion, alias=alias,
        facts=(EXACT, *facts), ulp={}, pieces=pieces, generate=generate, typed=typed,
        inputs=inputs if inputs is not None else (ANY,) * (1 if arity is None else arity)))


def reduction(
    name: str, *, version: int, dtypes: tuple[DType, ...], reduce: Reduction, numpy: Callable, jax: Callable,
    attrs: Mapping[str, str] | None = None, facts: tuple = (), inputs: Domain = ANY, infer: Callable | None = None, typed: bool = False,
) -> OpDef:
    """An op that folds the axes `axes` away."""
    def infer_reduced(types: Sequence[TensorType], attrs: Attrs, given: TensorType | None) -> TensorType:
        (x,), axes = types, attrs["axes"]
        require_dtype(name, x.dtype, dtypes)
        check_axes(name, axes, x.rank)
        return TensorType([d for i, d in enumerate(x.shape) if i not in axes], x.dtype)

    return register(OpDef(
        name=name, version=version, arity=1, attrs=attrs or {"axes": "axes"}, dtypes=dtypes, infer=infer or infer_reduced, numpy=numpy, jax=jax,
        fusion=REDUCTION, alias=FRESH, facts=facts, ulp={}, reduce=reduce, inputs=(inputs,), typed=typed))


def check_axes(name: str, axes: object, rank: int) -> None:
    """Axes must be sorted, unique and in range: graphs are canonical, frontends normalise."""
    if not isinstance(axes, tuple) or list(axes) != sorted(set(axes)) or any(not 0 <= a < rank for a in axes):
        raise ShapeError(f"{name}: axes {axes} must be sorted, distinct and within 0..{rank - 1}")
