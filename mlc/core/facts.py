"""Facts about the surroundings of a process (its CPU, mlc's sources): found out at first use, or known from a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class fact:
    """A function without arguments whose first value stays. Threads that race may both compute it; all get the same value."""

    def __init__(self, find_out: Callable[[], Any]):
        self.__wrapped__, self.__doc__, self.__name__ = find_out, find_out.__doc__, find_out.__name__
        self._found: dict[None, Any] = {}

    def __call__(self) -> Any:
        try:
            return self._found[None]
        except KeyError:
            return self._found.setdefault(None, self.__wrapped__())

    def assume(self, value: Any) -> None:
        """Take `value` for the fact, unless it is known already."""
        self._found.setdefault(None, value)
