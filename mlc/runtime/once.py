"""Values that a process makes once, at first use, without locks (a fork could inherit a held one)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(build: Callable[[], T]) -> Callable[[], T]:
    """`build` as a function that always returns the first value built. Threads that race may build more than one, but
    all get the same: unlike with functools.cache, nobody holds a value that the others don't. `.loaded()`: whether it is built."""
    made: dict[None, T] = {}

    def get() -> T:
        try:
            return made[None]
        except KeyError:
            return made.setdefault(None, build())
    get.loaded = lambda: None in made
    get.__doc__, get.__name__, get.__wrapped__ = build.__doc__, build.__name__, build
    return get
