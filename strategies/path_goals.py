"""Programs for ways of computing that the compiler takes from some size on or for one form only: each at the least size that reaches it.

Case streams take them in turn, so that no way is left to chance. What a program is made for is a wish: the compiler may choose otherwise.
"""

from __future__ import annotations

from mlc_strategies.attention import attention
from mlc_strategies.boundaries import LANES, around
from mlc_strategies.recipe import Builder

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.kernel.plain import SWEEP_FROM
from mlc.kernel.schedule import JAM_BYTES, JAM_ROW_BYTES
from mlc.kernel.tiling import BESIDE_COLUMNS, PACK_BYTES, PACK_ROWS_ALIASED, STREAM_LEAST
from mlc.kernel.words import BLOCK, LEAST_DEPTH, LEAST_USES, MATRIX, MATRIX_DEPTH
from mlc.ops.base import REDUCTION, REGISTRY, Domain

# Elements of a sum that is long enough to be shared out among threads.
LONG_SUM = 1 << 12


def _dtype(b: Builder, dtypes: tuple[DType, ...], least: int = 1) -> DType | None:
    fitting = [d for d in dtypes if d in b.config.dtypes and d.itemsize >= least]
    return b.draws.choice(fitting) if fitting else None


def _reductions(b: Builder) -> list[str]:
    """Those over axes alone whose result has the dtype that their rule gives."""
    return [n for n, op in REGISTRY.items() if b.config.allows(n) and op.fusion == REDUCTION and set(op.attrs) == {"axes"} and not op.typed]


def sweep(b: Builder) -> int | None:
    """A reduction down the columns of a matrix just too large to be read column by column."""
    names = _reductions(b)
    if not names:
        return None
    name = "reduce_sum" if "reduce_sum" in names and b.draws.chance(0.5) else b.draws.choice(names)
    dtype = _dtype(b, REGISTRY[name].dtypes, 2)
    if dtype is None:
        return None
    rows = b.draws.integer(16, 64)
    columns = -(-SWEEP_FROM // (rows * dtype.itemsize)) + b.draws.choice([0, 1, b.draws.integer(0, 64)])
    return b.emit(name, [b.source(TensorType((rows, columns), dtype), REGISTRY[name].inputs[0])], {"axes": (0,)})


def matvec(b: Builder) -> int | None:
    """One row times a matrix, which streams by."""
    dtype = _dtype(b, REGISTRY["dot_general"].dtypes) if b.config.allows("dot_general") else None
    if dtype is None:
        return None
    k, n = around(b.draws, 8, (1, 2, 5)), STREAM_LEAST + around(b.draws, b.draws.choice(LANES), (1, 2))
    lead = b.draws.choice([(), (1,)])
    x, y = (b.source(TensorType(shape, dtype), domain) for shape, domain in zip([(*lead, k), (k, n)], REGISTRY["dot_general"].inputs))
    return b.emit("dot_general", [x, y], {"contract": ((len(lead),), (0,)), "batch": ((), ())}, TensorType((*lead, n), dtype))


def split(b: Builder) -> int | None:
    """A long sum of all, or into few, which threads share where the fork costs nothing."""
    dtype = _dtype(b, REGISTRY["reduce_sum"].dtypes) if b.config.allows("reduce_sum") else None
    if dtype is None:
        return None
    n = LONG_SUM + b.draws.integer(0, 200)
    shape, axes = b.draws.choice([((n,), (0,)), ((2, n), (1,)), ((n, 3), (0,))])
    return b.emit("reduce_sum", [b.source(TensorType(shape, dtype), REGISTRY["reduce_sum"].inputs[0])], {"axes": axes})


def pairs(b: Builder) -> int | None:
    """A product of bf16 that is worth doing in pairs; of numbers so small that sums become subnormal, or nearly so, in some."""
    if not b.config.allows("dot_general") or dt.bf16 not in b.config.dtypes:
        return None
    m, n, k = LEAST_USES + around(b.draws, 8, (1, 2)), LEAST_USES + around(b.draws, 16, (1, 2)), LEAST_DEPTH + around(b.draws, 8, (1, 2))
    domains = [Domain(-(2.0 ** e), 2.0 ** e) for e in b.draws.choice([(2, 2), (2, 2), (-50, -56), (-60, -66), (-128, 2)])]
    x, y = (b.source(TensorType(shape, dt.bf16), domain) for shape, domain in zip([(m, k), (k, n)], domains))
    dtype = b.draws.choice([d for d in (dt.bf16, dt.f32) if d in b.config.dtypes])
    return b.emit("dot_general", [x, y], {"contract": ((1,), (0,)), "batch": ((), ())}, TensorType((m, n), dtype))


def matrix(b: Builder) -> int | None:
    """A product of bytes, or of bf16 of any size, that is worth matrix registers: around one, two and more of them."""
    dtype = _dtype(b, (dt.i8, dt.u8, dt.bf16)) if b.config.allows("dot_general") else None
    if dtype is None:
        return None
    widens = not dtype.is_float and dt.i32 in b.config.dtypes and b.config.allows("convert_element_type") and b.draws.chance(0.7)
    parts = [dtype, _dtype(b, (dt.i8, dt.u8)) if widens else dtype]
    uses = LEAST_USES if dtype is dt.bf16 else MATRIX
    m, n = (uses + around(b.draws, MATRIX, (1, 2)) for _ in "mn")
    k = 4 * MATRIX_DEPTH // dtype.itemsize + around(b.draws, 4 * BLOCK // dtype.itemsize, (1, 2))
    domains = [Domain(-(2.0 ** e), 2.0 ** e) for e in b.draws.choice([(2, 2), (2, 2), (-60, -66)])] if dtype.is_float else [Domain(-128, 255)] * 2
    sides = [b.source(TensorType(shape, part), domain) for shape, part, domain in zip([(m, k), (k, n)], parts, domains)]
    if widens:
        sides = [b.emit("convert_element_type", [side], {}, b.type(side).with_dtype(dt.i32)) for side in sides]
        if None in sides:  # too large for the program's palette
            return None
    result = dt.i32 if widens else _dtype(b, (dt.bf16, dt.f32)) if dtype.is_float else dtype
    return b.emit("dot_general", sides, {"contract": ((1,), (0,)), "batch": ((), ())}, TensorType((m, n), result))


def beside(b: Builder) -> int | None:
    """A product whose right operand is just too large to be read in place, so that panels are copied while others are multiplied."""
    dtype = _dtype(b, (dt.f32, dt.f64)) if b.config.allows("dot_general") else None
    if dtype is None:
        return None
    n = BESIDE_COLUMNS + around(b.draws, 16, (1, 2))
    m, k = PACK_ROWS_ALIASED + around(b.draws, 8, (1, 2)), PACK_BYTES // (n * dtype.itemsize) + around(b.draws, 8, (1, 2))
    x, y = (b.source(TensorType(shape, dtype), domain) for shape, domain in zip([(m, k), (k, n)], REGISTRY["dot_general"].inputs))
    return b.emit("dot_general", [x, y], {"contract": ((1,), (0,)), "batch": ((), ())}, TensorType((m, n), dtype))


def attend(b: Builder) -> int | None:
    """Attention, in a form that becomes one kernel or nearly so; mostly in a dtype whose errors leave something to judge."""
    dtype = _dtype(b, tuple(d for d in b.config.dtypes if d.is_float), 4 if b.draws.chance(0.8) else 2)
    if dtype is None or b.config.ops is not None:
        return None
    for _ in range(3):
        known = len(b.graph)
        made = attention(b, dtype)
        if made is not None:
            return made
        b.shunned |= set(range(known, len(b.graph)))
    return None


def jam(b: Builder) -> int | None:
    """A reduction of rows just long enough, and just enough of them, to be read side by side by narrow registers."""
    names = _reductions(b)
    name = b.draws.choice(names) if names else None
    dtype = _dtype(b, REGISTRY[name].dtypes, 4) if name else None
    if dtype is None:
        return None
    # In few shapes, as they are large: with and without something left over of either.
    columns, rows = JAM_ROW_BYTES // dtype.itemsize + b.draws.choice((0, 8, 37)), JAM_BYTES // JAM_ROW_BYTES + b.draws.choice((0, 3))
    return b.emit(name, [b.source(TensorType((rows, columns), dtype), REGISTRY[name].inputs[0])], {"axes": (1,)})


PATHS = {"sweep": sweep, "attend": attend, "matvec": matvec, "split": split, "pairs": pairs, "matrix": matrix, "beside": beside, "jam": jam}
