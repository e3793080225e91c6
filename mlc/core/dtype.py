"""The thirteen dtypes, and JAX's promotion lattice as one table.

A dtype's short name (`f32`, `bf16`, `u8`, `bool`) is what every text form prints. Weak types (Python scalars) are
nodes of the lattice only: they exist in frontends, never in a graph.
"""

from __future__ import annotations

import functools

import numpy as np

from mlc.core.errors import DtypeError


class DType:
    """A scalar type: `name`, `kind` ('b', 'i', 'u' or 'f'), `bits`, and the NumPy dtype `numpy`. Compared by identity."""

    __slots__ = ("bits", "itemsize", "kind", "name", "numpy")

    def __init__(self, name: str, kind: str, bits: int, numpy: object | None):
        self.name, self.kind, self.bits = name, kind, bits
        self.itemsize = bits // 8
        if numpy is not None:
            self.numpy = np.dtype(numpy)

    def __getattr__(self, name: str):
        """bfloat16's `numpy`, when it is first asked for: importing ml_dtypes 0.7 takes a second, and most programs have no bfloat16."""
        if name != "numpy":
            raise AttributeError(f"DType has no attribute {name!r}")
        import ml_dtypes
        self.numpy = np.dtype(ml_dtypes.bfloat16)
        return self.numpy

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return parse_dtype, (self.name,)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_half(self) -> bool:
        """float16 and bfloat16: every op computes in f32 and rounds back."""
        return self.kind == "f" and self.bits == 16

    @property
    def eps(self) -> float:
        """Distance from 1 to the next float."""
        return 2.0 ** -(MANTISSA[self] - 1)

    @property
    def min(self):
        """Smallest value: -inf for floats, False for bool."""
        return {"f": -np.inf, "b": False, "u": 0, "i": -(1 << (self.bits - 1))}[self.kind]

    @property
    def max(self):
        """Largest value: inf for floats, True for bool."""
        return {"f": np.inf, "b": True, "u": (1 << self.bits) - 1, "i": (1 << (self.bits - 1)) - 1}[self.kind]


bool_ = DType("bool", "b", 8, np.bool_)
i8, i16, i32, i64 = (DType(f"i{b}", "i", b, f"int{b}") for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{b}", "u", b, f"uint{b}") for b in (8, 16, 32, 64))
f16 = DType("f16", "f", 16, np.float16)
bf16 = DType("bf16", "f", 16, None)
f32 = DType("f32", "f", 32, np.float32)
f64 = DType("f64", "f", 64, np.float64)

BOOL = (bool_,)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
INTS = SIGNED + UNSIGNED
FLOATS = (f16, bf16, f32, f64)
NUMERIC = INTS + FLOATS
ALL = BOOL + NUMERIC

# Precision in bits (with the hidden one), and exponent of the smallest normal number.
MANTISSA = {f16: 11, bf16: 8, f32: 24, f64: 53}
MIN_EXPONENT = {f16: -14, bf16: -126, f32: -126, f64: -1022}
MAX_EXPONENT = {f16: 15, bf16: 127, f32: 127, f64: 1023}

_BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL if d is not bf16}
_AMBIGUOUS = {"i8": "int", "u8": "uint"}
_UINT = {8: u8, 16: u16, 32: u32, 64: u64}
_SINT = {8: i8, 16: i16, 32: i32, 64: i64}


def uint_of(dtype: DType) -> DType:
    """The unsigned integer of the same width: what `bitcast` goes through."""
    return _UINT[dtype.bits]


def sint_of(dtype: DType) -> DType:
    """The signed integer of the same width."""
    return _SINT[dtype.bits]


def parse_dtype(name: str) -> DType:
    """The dtype with this short name; DtypeError lists the known ones."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise DtypeError(f"unknown dtype {name!r}; known: {', '.join(_BY_NAME)}") from None


def as_dtype(value: object) -> DType:
    """The DType of a DType, short name, NumPy dtype or scalar type (`np.float32`, `"float32"`, `float`, `bool`)."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:
        if isinstance(value, np.dtype) and value in _BY_NUMPY:
            return _BY_NUMPY[value]
        if value == "bfloat16":
            return bf16
        found = np.dtype(value).newbyteorder("=")
        if found not in _BY_NUMPY and found.name == "bfloat16" and found == bf16.numpy:
            _BY_NUMPY[found] = bf16
        return _BY_NUMPY[found]
    except (KeyError, TypeError):
        raise DtypeError(f"dtype {value!r} is not supported; mlc has {', '.join(_BY_NAME)}") from None


def asked_dtype(value: object) -> DType:
    """`as_dtype` of what an array function is given, where NumPy's names are expected too. DtypeError also for "i8" and "u8", which are bytes by
    mlc's names and eight bytes by NumPy's."""
    if isinstance(value, str) and value in _AMBIGUOUS:
        whole = _AMBIGUOUS[value]
        raise DtypeError(f"dtype {value!r} has 8 bits by mlc's names and 8 bytes by NumPy's; write '{whole}8' or '{whole}64'")
    return as_dtype(value)


# --------------------------------------------------------------------------- promotion
# Edges of the lattice in https://docs.jax.dev/en/latest/type_promotion.html; "i*" and "f*" are the weak types.
_EDGES = {
    "bool": ("i*",), "i*": ("u8", "i8"), "u8": ("i16", "u16"), "u16": ("i32", "u32"), "u32": ("i64", "u64"),
    "i8": ("i16",), "i16": ("i32",), "i32": ("i64",), "u64": ("f*",), "i64": ("f*",), "f*": ("bf16", "f16"),
    "bf16": ("f32",), "f16": ("f32",), "f32": ("f64",), "f64": (),
}


def _reachable(start: str) -> frozenset[str]:
    seen, todo = {start}, [start]
    while todo:
        for following in _EDGES[todo.pop()]:
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return frozenset(seen)


_UPPER = {name: _reachable(name) for name in _EDGES}


@functools.cache
def _join(a: str, b: str) -> str:
    common = _UPPER[a] & _UPPER[b]
    return max(common, key=lambda name: len(_UPPER[name]))


def lattice_name(dtype: DType, weak: bool) -> str:
    """The lattice node of a dtype: weak ints and floats have nodes of their own (a weak bool is a bool)."""
    return {"b": "bool", "i": "i*", "u": "i*", "f": "f*"}[dtype.kind] if weak else dtype.name


@functools.lru_cache(4096)
def promote(*operands: tuple[DType, bool]) -> tuple[DType, bool]:
    """Least upper bound of (dtype, weak) pairs, as `jnp.promote_types` gives it; returns (dtype, weak).

    A weak result has the 64-bit default dtype of its kind (x64 on).
    """
    top = functools.reduce(_join, (lattice_name(*operand) for operand in operands))
    if top == "i*":
        return i64, True
    if top == "f*":
        return f64, True
    return _BY_NAME[top], False


def promote_types(a: DType, b: DType) -> DType:
    """`jnp.promote_types` for two strong dtypes (x64 on)."""
    return promote((a, False), (b, False))[0]
