"""`dataclass`, `field` and `replace` as in the standard library, for a tenth of its time at import.

The standard decorator writes and compiles six methods a class, 0.3 to 0.5 ms, whether or not they are ever called: for mlc's
classes that was more than all other work of importing the compiler. Here a method is written when it has been called some times: that
takes 0.1 ms, and of most classes a program needs few instances. Until then a function that goes by the fields does the same. Instances
are dataclasses for everybody else (`fields`, `asdict`, `replace`, `match`). Not supported, as not needed: order, slots, `InitVar`,
`ClassVar`, `__post_init__`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field
from types import SimpleNamespace
from typing import Any, TypeVar, dataclass_transform

__all__ = ["dataclass", "field", "replace"]

T = TypeVar("T")
# Calls of a method before it is written.
FEW = 40


@dataclass_transform(field_specifiers=(field,))
def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
    """`dataclasses.dataclass` with three of its options."""
    if cls is None:
        return lambda cls: dataclass(cls, frozen=frozen, eq=eq, kw_only=kw_only)
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(getattr(base, "__dataclass_fields__", {}))
    own = cls.__dict__
    for name, annotation in own.get("__annotations__", {}).items():
        fields[name] = _field(cls, name, annotation, kw_only)
    cls.__dataclass_fields__ = fields
    cls.__dataclass_params__ = SimpleNamespace(frozen=frozen, eq=eq)
    cls.__match_args__ = tuple(name for name, f in fields.items() if not f.kw_only)
    _written_later(cls, "__init__", _init, _filled)
    if "__repr__" not in own:
        cls.__repr__ = _repr
    hashed = own.get("__hash__") is not None
    if eq and "__eq__" not in own:
        _written_later(cls, "__eq__", _eq, _equal)
    if eq and not hashed:
        if frozen:
            _written_later(cls, "__hash__", _hash, _hashed)
        else:
            cls.__hash__ = None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse, _refuse
    return cls


def replace(instance: T, /, **changes: Any) -> T:
    """A copy with other values in some fields."""
    values = instance.__dict__
    return instance.__class__(**{**{name: values[name] for name in instance.__dataclass_fields__}, **changes})


def _field(cls: type, name: str, annotation: object, kw_only: bool) -> Field:
    given = cls.__dict__.get(name, MISSING)
    found = given if isinstance(given, Field) else field(default=given)
    if found.default is not MISSING:
        setattr(cls, name, found.default)
    elif given is not MISSING:
        delattr(cls, name)
    found.name, found.type, found.kw_only = name, annotation, kw_only
    found._field_type = dataclasses._FIELD  # what `dataclasses.fields` asks for
    return found


def _written_later(cls: type, name: str, write: Callable[[type], tuple[str, dict[str, Any]]], meanwhile: Callable[..., Any]) -> None:
    """Give the class a method that replaces itself by what `write` says, (source text, names in it), when it has been called some times;
    `meanwhile` does the same, or returns `_UNUSUAL`, having done nothing that counts."""
    called = 0

    def method(self, *args, **kwargs):
        nonlocal called
        if cls.__dict__[name] is method:  # another thread may have been here
            called += 1
            if called <= FEW and (done := meanwhile(cls, self, args, kwargs)) is not _UNUSUAL:
                return done
            text, names = write(cls)
            names["__builtins__"] = __builtins__
            exec(text, names)
            written = names[name]
            written.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, written)
        return cls.__dict__[name](self, *args, **kwargs)
    setattr(cls, name, method)


_UNUSUAL = object()


def _filled(cls: type, self, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`__init__`; wrong arguments are left to the written one."""
    names = cls.__match_args__
    given = dict(zip(names, args))
    if len(args) > len(names) or not given.keys().isdisjoint(kwargs):
        return _UNUSUAL
    given.update(kwargs)
    fields = cls.__dataclass_fields__
    if not given.keys() <= fields.keys():
        return _UNUSUAL
    values = self.__dict__
    for name, each in fields.items():
        if name in given:
            values[name] = given[name]
        elif each.default is not MISSING:
            values[name] = each.default
        elif each.default_factory is not MISSING:
            values[name] = each.default_factory()
        else:
            return _UNUSUAL
    return None


def _equal(cls: type, self, args: tuple, kwargs: dict[str, Any]) -> Any:
    (other,) = args
    return _values(cls, self) == _values(cls, other) if other.__class__ is self.__class__ else NotImplemented


def _hashed(cls: type, self, args: tuple, kwargs: dict[str, Any]) -> Any:
    return hash(_values(cls, self))


def _values(cls: type, self) -> tuple:
    return tuple([getattr(self, name) for name in cls.__dataclass_fields__])


def _init(cls: type) -> tuple[str, dict[str, Any]]:
    """Through the instance's dict, which frozen classes allow, and which is faster from three fields on."""
    fields, names, parameters, body = cls.__dataclass_fields__, {"MISSING": MISSING}, [], []
    for name, each in sorted(fields.items(), key=lambda item: item[1].kw_only):
        value = name
        if each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            parameter, value = f"{name}=MISSING", f"_make_{name}() if {name} is MISSING else {name}"
        elif each.default is not MISSING:
            names[f"_default_{name}"] = each.default
            parameter = f"{name}=_default_{name}"
        else:
            parameter = name
        if each.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(parameter)
        body.append(f" _fields[{name!r}] = {value}")
    return "\n".join([f"def __init__(self{''.join(', ' + p for p in parameters)}):", " _fields = self.__dict__", *body]), names


def _eq(cls: type) -> tuple[str, dict[str, Any]]:
    return (f"def __eq__(self, other):\n return {_tuple(cls, 'self')} == {_tuple(cls, 'other')} "
            "if other.__class__ is self.__class__ else NotImplemented", {})


def _hash(cls: type) -> tuple[str, dict[str, Any]]:
    return f"def __hash__(self):\n return hash({_tuple(cls, 'self')})", {}


def _tuple(cls: type, of: str) -> str:
    return "(" + "".join(f"{of}.{name}, " for name in cls.__dataclass_fields__) + ")"


def _repr(self) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name, each in self.__dataclass_fields__.items() if each.repr)
    return f"{self.__class__.__qualname__}({values})"


def _refuse(self, name: str, *value: object) -> None:
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
