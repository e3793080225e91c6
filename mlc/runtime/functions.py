"""The code of functions, which programs share: what a process has compiled it does not compile again.

A function's name says what its text is (`mlc.codegen.module.Function`). Functions of the library, whose sizes are arguments, are compiled
when first asked for, each as an object of its own that is kept beside the package's bytecode; the others of a program are one object.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.cache.package import package_cache
from mlc.cache.store import cache_key
from mlc.codegen.module import Function, module_text
from mlc.codegen.target import Target, compile_object

# So many functions a process remembers; the oldest go first.
_MOST = 2048


class Object:
    """Object code, and the names of the functions in it."""

    def __init__(self, code: bytes, names: tuple[str, ...]):
        self.code, self.names = code, names


_known: dict[tuple[str, str], Object] = {}


def objects(functions: Sequence[Function], target: Target) -> list[Object]:
    """Objects that hold these functions, and maybe others. Raises CodegenError."""
    missing = [f for f in functions if (target.key, f.name) not in _known]
    own = [f for f in missing if not f.library]
    made = [_from_library(f, target) for f in missing if f.library]
    if own:
        made.append(Object(compile_object(module_text(own), target), tuple(f.name for f in own)))
    fresh = {(target.key, name): each for each in made for name in each.names}
    found = [fresh.get((target.key, f.name)) or _known[target.key, f.name] for f in functions]
    _known.update(fresh)
    while len(_known) > _MOST:
        _known.pop(next(iter(_known)), None)
    return list(dict.fromkeys(found))


def _from_library(function: Function, target: Target) -> Object:
    """A function of the library, compiled if no process did so before."""
    cache, text = package_cache(), module_text([function])
    key = cache_key(text, pipeline="library", target=target.key)
    code = cache.get(key)
    if code is None:
        code = compile_object(text, target)
        cache.put(key, code)
    return Object(code, (function.name,))


def forget() -> None:
    """Compile again what this process has compiled: for measurements of first calls."""
    _known.clear()
