"""The garbage collector, kept out of compilations and the imports that the first one makes: what they make stays, and a full collection
walks all that the process has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collections in this block, whose end leaves the collector as it was."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
