"""`mlc.jit` and `mlc.load`: the doors to `mlc.variants`, which is loaded when one of them is first used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlc.variants import Compiled

__all__ = ["jit", "load"]


def jit(fn: Callable | None = None, *, static_argnums: int | Sequence[int] | None = None, static_argnames: str | Sequence[str] | None = None,
        donate_argnums: int | Sequence[int] | None = None, donate_argnames: str | Sequence[str] | None = None, name: str = "") -> Any:
    """Compile `fn` for the arguments it is called with; also a decorator, with or without keywords.

    Arguments are pytrees of arrays and Python scalars (weakly typed); the result is the same pytree of fresh NumPy
    arrays. Static arguments are passed to `fn` as they are and select the variant. Donation is accepted and has no
    effect: the caller's NumPy arrays stay valid, and temporaries are reused anyway.
    """
    if fn is None:
        return functools.partial(jit, static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums,
                                 donate_argnames=donate_argnames, name=name)
    if not callable(fn):
        raise TypeError(f"mlc.jit takes a function, got a {type(fn).__name__}; keywords such as static_argnums are given by name")
    from mlc.variants import Jit
    return Jit(fn, static_argnums, static_argnames, donate_argnums, donate_argnames, name)


def load(path: str | os.PathLike) -> Compiled:
    """An executable that `exe.save` wrote, without tracing, passes or code generation.

    Raises ArtifactError for a file that is damaged, foreign, or made for another CPU or version.
    """
    from mlc.variants import load_compiled
    return load_compiled(path)
