"""Locks and lazily computed attributes that survive `os.fork`.

A lock that another thread holds at the moment of a fork stays locked in the child for ever. Ours start afresh there: what they
guard is either complete or will be made again. `lazy` takes no lock at all (`functools.cached_property` of Python 3.11
holds one per attribute for all instances).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A reentrant lock, as a context manager; free again in a forked child."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> ForkSafeLock:
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def _renew() -> None:
    for lock in list(_locks):
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class lazy:
    """An attribute computed when it is first read, and then stored in the instance. Two threads may both compute it."""

    def __init__(self, function: Callable[[Any], Any]):
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type | None = None):
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)
        return value
