"""Static arguments as guard keys: by type and bits, so that 1, True, 1.0, np.float32(1), 0.0, -0.0 and NaN are all different."""

from __future__ import annotations

import dataclasses
import struct
from enum import Enum

import numpy as np

from mlc.core.errors import TraceError

_BY_VALUE = (int, str, bytes, type(None), type(...))


def static_key(value: object, what: str) -> object:
    """A hashable key that is equal only for values of the same type and bits. TraceError for mutable or unhashable values."""
    cls = value.__class__
    if cls is bool or cls in _BY_VALUE:
        return cls, value
    if isinstance(value, Enum):
        return cls, value.name
    if cls is float:
        return cls, struct.pack("<d", value)
    if cls is complex:
        return cls, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return cls, value.dtype.str, value.tobytes()
    if cls is tuple or (isinstance(value, tuple) and hasattr(cls, "_fields")):
        return (cls, *(static_key(v, f"{what}[{i}]") for i, v in enumerate(value)))
    if cls is frozenset:
        return cls, frozenset(static_key(v, what) for v in value)
    if cls in (slice, range):
        return (cls, *(static_key(v, what) for v in (value.start, value.stop, value.step)))
    return _object_key(value, cls, what)


def _object_key(value: object, cls: type, what: str) -> object:
    advice = {"list": "pass a tuple", "dict": "pass a tuple of pairs", "set": "pass a frozenset"}.get(
        cls.__name__, "static arguments must be immutable and hashable")
    if isinstance(value, (list, dict, set, bytearray, np.ndarray)):
        if isinstance(value, np.ndarray):
            advice = "pass it as an ordinary (traced) argument, or as a tuple"
        raise TraceError(f"{what} is a {cls.__name__}, which can change after the function was recorded; {advice}")
    if dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen and cls.__dataclass_params__.eq and not isinstance(value, type):
        return (cls, *((f.name, static_key(getattr(value, f.name), f"{what}.{f.name}")) for f in dataclasses.fields(cls)))
    try:
        hash(value)
    except TypeError:
        raise TraceError(f"{what} is a {cls.__name__}, which cannot be hashed; {advice}") from None
    return cls, _Held(value)


class _Held:
    """A hashable object as part of a key, compared by its own __eq__."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and (self.value is other.value or bool(self.value == other.value))
