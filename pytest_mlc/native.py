"""The user's own function in JAX, in this process and with the user's 64-bit setting: jitted with XLA's known faults switched off, or eagerly.

Trees are flattened by mlc's own rules, so that whatever mlc takes as an argument (dataclasses too) JAX gets as arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.frontend import tree
from pytest_mlc.reference import STRICT_FLAGS


@dataclass(frozen=True)
class NativeAnswer:
    """What JAX gave: flat arrays and their structure, and how it ran. Without `leaves` it could not run, for the reason `problem`."""

    how: str
    leaves: list[np.ndarray] | None = None
    structure: Any = None
    problem: str = ""


def x64() -> bool:
    """Whether the user has switched JAX's 64-bit types on."""
    import jax
    return bool(jax.config.jax_enable_x64)


def canonical_dtype(dtype: np.dtype) -> np.dtype:
    """What JAX makes of a dtype under the user's 64-bit setting: a 32-bit one of a 64-bit one when it is off."""
    from jax import dtypes
    return np.dtype(dtypes.canonicalize_dtype(dtype))


def canonical_tree(value: Any) -> Any:
    """The tree with every array in its canonical dtype; Python scalars stay. Raises TypeError for a leaf that is neither."""
    leaves: list = []
    structure = tree.flatten(value, leaves)
    return tree.unflatten(structure, map(_canonical_leaf, leaves))


def _canonical_leaf(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float)):
        return leaf
    array = np.asarray(leaf)
    return array.astype(canonical_dtype(array.dtype), copy=False)


def strict_options() -> dict[str, object]:
    """`STRICT_FLAGS` as options of one compilation, so that the user's other JAX code is left alone."""
    pairs = (flag.removeprefix("--").partition("=")[::2] for flag in " ".join(STRICT_FLAGS).split())
    words = {"true": True, "false": False}
    return {name: words.get(value, int(value) if value.isdigit() else value) for name, value in pairs}


@functools.cache
def accepted_options() -> dict[str, object]:
    """The strict options that this jaxlib knows."""
    import jax
    trivial = jax.jit(lambda x: x).lower(0.0)

    def takes(options: dict[str, object]) -> bool:
        try:
            trivial.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError:
            return False
        return True
    options = strict_options()
    return options if takes(options) else {name: value for name, value in options.items() if takes({name: value})}


def _as_jax(leaf: Any) -> Any:
    import jax.numpy as jnp
    return leaf if isinstance(leaf, (bool, int, float)) else jnp.asarray(leaf)


def _flat_function(function: Callable, structure: Any, results: list) -> Callable:
    """`function` from flat leaves to flat leaves; the structure of what it returned is left in `results`."""
    def flat(*leaves: Any) -> list:
        args, kwargs = tree.unflatten(structure, iter(leaves))
        found: list = []
        results.append(tree.flatten(function(*args, **kwargs), found))
        return found
    return flat


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def run_jitted(function: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> NativeAnswer:
    """Under `jax.jit`, with the strict options that this jaxlib knows; eagerly where XLA cannot compile it."""
    import jax
    leaves: list = []
    structure = tree.flatten((tuple(args), kwargs), leaves)
    results: list = []
    how = f"JAX, jitted, 64-bit types {'on' if x64() else 'off'}"
    try:
        lowered = jax.jit(_flat_function(function, structure, results)).lower(*map(_as_jax, leaves))
    except Exception as error:  # whatever the user's function raises when JAX traces it
        return NativeAnswer(how, problem=_reason(error))
    try:
        compiled = lowered.compile(compiler_options=accepted_options())
    except jax.errors.JaxRuntimeError:
        return run_eagerly(function, args, kwargs)
    return NativeAnswer(how, [np.asarray(leaf) for leaf in compiled(*map(_as_jax, leaves))], results[-1])


def run_eagerly(function: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> NativeAnswer:
    """Without `jax.jit` around it."""
    leaves: list = []
    structure = tree.flatten((tuple(args), kwargs), leaves)
    results: list = []
    how = f"JAX, eager, 64-bit types {'on' if x64() else 'off'}"
    try:
        found = _flat_function(function, structure, results)(*map(_as_jax, leaves))
        return NativeAnswer(how, [np.asarray(leaf) for leaf in found], results[-1])
    except Exception as error:  # as above
        return NativeAnswer(how, problem=_reason(error))
