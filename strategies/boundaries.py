"""Lengths just around the compiler's own boundaries, on the axis for which each matters.

Loops are cut by lanes, by several vectors at once, by the chunks of a sum, by register tiles; what is left over runs elsewhere.
A length here is some multiple of such a unit, one less, one more, or a remainder of any size beyond.
"""

from __future__ import annotations

from mlc_strategies import values
from mlc_strategies.draws import Draws
from mlc_strategies.idioms import _spread
from mlc_strategies.ingredients import placeable
from mlc_strategies.recipe import Builder

from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.kernel.schedule import CHUNK, MANY_POINTS, SHORT_ROW
from mlc.kernel.tiling import DOT_CHUNK
from mlc.ops.base import CONTRACTION, ELEMENTWISE, INJECTIVE, REDUCTION, REGISTRY

# Lanes of a vector in any dtype of any target, and how many vectors a loop or a tile takes at once.
LANES, AT_ONCE = (2, 4, 8, 16, 32, 64), (1, 2, 3, 4)
TILE_ROWS = (1, 4, 6, 8, 10, 12, 14)
# Elements of one tensor: mostly, and at most.
USUAL, MOST = 1 << 14, 1 << 16
SMALL = (1, 2, 3, 5, 7)


def around(draws: Draws, unit: int, counts: tuple[int, ...]) -> int:
    """Some count of units, exactly, one off, or with a remainder of less than a unit."""
    found = unit * draws.choice(counts) + draws.choice([0, 1, -1, draws.integer(0, unit - 1)])
    return max(found, 1)


def minor(draws: Draws) -> int:
    """Of the axis that runs in vectors: few vectors, or one more or less than what makes a row short or a loop heavy."""
    if draws.chance(0.2):
        return around(draws, SHORT_ROW, (1, 4))
    return around(draws, draws.choice(LANES) * draws.choice(AT_ONCE), (1, 2, 3))


def reduced(draws: Draws) -> int:
    """Of a reduced axis: as `minor`, or some chunks of steps and a rest of whole and partial steps."""
    if draws.chance(0.3):
        return minor(draws)
    step = draws.choice(LANES) * draws.choice((1, 2, 4)) if draws.chance(0.8) else 1
    steps = CHUNK * draws.choice((1, 2, 2, 3, 5)) + draws.choice([0, 1, -1, draws.integer(2, CHUNK - 1), draws.integer(2, CHUNK - 1)])
    return around(draws, step, (steps,))


def contracted(draws: Draws) -> int:
    """Of a contracted axis: short ones for the unrolled loop, or around what one run of the accumulators takes."""
    if draws.chance(0.5):
        return around(draws, draws.choice((2, 4, 8, 16)), (1, 2, 3))
    return around(draws, DOT_CHUNK, (1, 1, 2)) if draws.chance(0.6) else reduced(draws)


def rows(draws: Draws) -> int:
    """Of the rows of a contraction's result."""
    return around(draws, draws.choice(TILE_ROWS), (1, 1, 2, 3))


# --------------------------------------------------------------------------- programs
def reach(b: Builder) -> int | None:
    """Add a reduction, a contraction, a transpose or an elementwise op with such lengths; its id, or None when nothing fits."""
    names = placeable(b.config)
    kinds = [(family, make) for family, make in _MAKERS if any(REGISTRY[n].fusion == family for n in names)]
    for _ in range(4 if kinds else 0):
        family, make = b.draws.choice(kinds)
        fitting = [n for n in names if REGISTRY[n].fusion == family]
        name = b.draws.choice(fitting)
        if family == REDUCTION and "reduce_sum" in fitting and b.draws.chance(0.4):
            name = "reduce_sum"  # in which every element counts
        dtypes = [d for d in REGISTRY[name].dtypes if d in b.config.dtypes]
        made = make(b, name, b.draws.choice(dtypes)) if dtypes else None
        if made is not None:
            return made
    return None


def _fits(*shapes: tuple[int, ...]) -> bool:
    sizes = [1] * len(shapes)
    for k, shape in enumerate(shapes):
        for n in shape:
            sizes[k] *= n
    return max(sizes) <= MOST


def _reduction(b: Builder, name: str, dtype: DType) -> int | None:
    """Rows, columns, planes or all of it; often read again by what has the operand's shape, as a softmax does."""
    draws, n = b.draws, reduced(b.draws)
    few = draws.choice(SMALL) if n * 7 > USUAL or draws.chance(0.5) else minor(draws)
    shape, axes = draws.choice([((n,), (0,)), ((few, n), (1,)), ((n, few), (0,)), ((few, n), (0, 1)), ((2, n, few), (1,)), ((2, few, n), (0, 2))])
    op = REGISTRY[name]
    if set(op.attrs) != {"axes"} or not _fits(shape):
        return None
    x = b.source(TensorType(shape, dtype), op.inputs[0])
    if draws.chance(0.4):
        mapped = _mapped(b, x)
        x = mapped if mapped is not None and b.type(mapped).dtype in op.dtypes else x  # is_finite of floats is a bool
    if op.typed:
        integers = [d for d in b.config.dtypes if d.is_int and max(shape) * few < d.max]
        if not integers:
            return None
        kept = [size for a, size in enumerate(shape) if a not in axes]
        return b.emit(name, [x], {"axes": axes}, TensorType(kept, draws.choice(integers)))
    made = b.emit(name, [x], {"axes": axes})
    if made is not None and draws.chance(0.3) and b.config.allows("broadcast_in_dim") and b.config.allows("max"):
        b.kept.append(made)
        spread = _spread(b, made, axes, x)
        made = b.emit("max", [x, spread]) if spread is not None else made
    return made


def _mapped(b: Builder, x: int) -> int | None:
    """An elementwise op of one operand on x, so that there is something to fuse."""
    names = [n for n in placeable(b.config) if REGISTRY[n].fusion == ELEMENTWISE and REGISTRY[n].arity == 1 and not REGISTRY[n].attrs
             and not REGISTRY[n].typed and b.type(x).dtype in REGISTRY[n].dtypes]
    return b.emit(b.draws.choice(names), [x]) if names else None


def _contraction(b: Builder, name: str, dtype: DType) -> int | None:
    """A product of matrices or of a matrix and a vector, either operand transposed or not, sometimes several of them."""
    draws = b.draws
    m = rows(draws) if draws.chance(0.75) else 0
    n = around(draws, draws.choice(LANES), AT_ONCE) if draws.chance(0.8) else 0
    k, batch = contracted(draws), (draws.choice((2, 3)),) if draws.chance(0.15) else ()
    left = draws.choice([("m", "k"), ("k", "m")]) if m else ("k",)
    right = draws.choice([("k", "n"), ("n", "k")]) if n else ("k",)
    size, lead = {"m": m, "n": n, "k": k}, len(batch)
    shapes = [(*batch, *(size[a] for a in side)) for side in (left, right)]
    if set(REGISTRY[name].attrs) != {"contract", "batch"} or not _fits(*shapes) or k * max(m, 1) * max(n, 1) > 1 << 22:
        return None
    attrs = {"contract": ((lead + left.index("k"),), (lead + right.index("k"),)), "batch": (tuple(range(lead)),) * 2}
    operands = [b.source(TensorType(shape, dtype), domain) for shape, domain in zip(shapes, REGISTRY[name].inputs)]
    return b.emit(name, operands, attrs, TensorType([*batch, *([m] if m else []), *([n] if n else [])], dtype))


def _elementwise(b: Builder, name: str, dtype: DType) -> int | None:
    """Along one axis or two, heavy or light, now and then from where a loop counts as heavy."""
    from mlc_strategies.ingredients import elementwise, ingredient
    n = around(b.draws, MANY_POINTS, (1,)) if b.draws.chance(0.1) else minor(b.draws)
    shape = b.draws.choice([(n,), (b.draws.choice(SMALL), n), (n, b.draws.choice(SMALL))])
    if not _fits(shape) or ingredient(name) is not elementwise:
        return None
    first = b.source(TensorType(shape, dtype), values.ORDINARY)
    made = elementwise(b, REGISTRY[name], dtype)
    return made if made is not None else _mapped(b, first)


def _movement(b: Builder, name: str, dtype: DType) -> int | None:
    """A transpose of lengths around vectors and tiles, mostly under an op that computes something."""
    shape = (minor(b.draws), minor(b.draws), *((b.draws.choice((2, 3)),) if b.draws.chance(0.3) else ()))
    if not b.config.allows("transpose") or not _fits(shape):
        return None
    perm = (1, 0) if len(shape) == 2 else b.draws.choice([(2, 1, 0), (0, 2, 1), (1, 0, 2)])
    made = b.emit("transpose", [b.source(TensorType(shape, dtype), values.ORDINARY)], {"perm": perm})
    return made if made is None or b.draws.chance(0.3) else _mapped(b, made) or made


_MAKERS = ((REDUCTION, _reduction), (REDUCTION, _reduction), (CONTRACTION, _contraction), (CONTRACTION, _contraction), (ELEMENTWISE, _elementwise),
           (INJECTIVE, _movement))
