"""JAX's ops compiled many at a time: one program holds all ops of a signature and runs the one that it is told to.

What XLA compiles costs some 30 ms however small it is, and a few more for each op in it. A campaign meets every op in every
dtype, so it pays for about sixty programs instead of nearly a thousand. Each op is a branch (`lax.switch`) of its own: nothing of
another one runs, and nothing is fused. Ops with attributes of their own, and contractions, have a program each. They are the same in
every campaign, so JAX's persistent cache keeps them where it has a folder; what only this campaign needs is not written there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from mlc.core.dims import TensorType
from mlc.core.dtype import DType, as_dtype
from mlc.core.errors import MlcError
from mlc.graph.graph import Node
from mlc.ops.base import ELEMENTWISE, REGISTRY, OpDef

# Longer than anything takes to compile, in seconds.
NEVER = 1e9


class Banks:
    """The programs compiled so far, by signature. `jax` is the module."""

    def __init__(self, jax):
        self.jax, self.jnp, self.lax = jax, jax.numpy, jax.lax
        self.programs: dict[tuple, tuple[Callable, tuple]] = {}
        self._keep(NEVER)

    def _keep(self, seconds: float) -> None:
        """JAX writes what took at least so long to compile to its persistent cache."""
        self.jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)

    def call(self, node: Node, operands: Sequence[np.ndarray], attrs: dict, shape: Sequence[int]) -> np.ndarray:
        """The op on operands of a canonical shape. Raises what JAX raises; arguments as for `canonical.Call`."""
        known = len(self.programs)
        run = self._program(node, operands, attrs, shape)
        if len(self.programs) == known:
            return np.asarray(run())
        self._keep(0.0)
        try:
            return np.asarray(run())  # the first call compiles
        finally:
            self._keep(NEVER)

    def _program(self, node: Node, operands: Sequence[np.ndarray], attrs: dict, shape: Sequence[int]) -> Callable[[], object]:
        types = tuple(TensorType(o.shape, as_dtype(o.dtype)) for o in operands)
        result = TensorType(shape, node.type.dtype)
        chosen = tuple(sorted(attrs.items()))
        if _plain(node.op):
            program, names = self._once(("ops", types, result, chosen), lambda: self._ops(types, result, attrs))
            return lambda: program(np.int32(names.index(node.op.name)), *operands)
        if node.op.typed and node.op.fusion == ELEMENTWISE and not attrs:
            program, dtypes = self._once((node.op.name, types), lambda: self._conversions(node.op, types))
            return lambda: program(*operands)[dtypes.index(result.dtype)]
        program, _ = self._once((node.op.name, types, result, chosen), lambda: self._one(node, attrs, shape))
        return lambda: program(*operands)

    def _once(self, key: tuple, make: Callable[[], tuple[Callable, tuple]]) -> tuple[Callable, tuple]:
        if key not in self.programs:
            self.programs[key] = make()
        return self.programs[key]

    def _ops(self, types: tuple[TensorType, ...], result: TensorType, attrs: dict) -> tuple[Callable, tuple[str, ...]]:
        names = signature(types, result, tuple(sorted(attrs.items())))
        branches = [functools.partial(REGISTRY[name].jax, self.jnp, self.lax, **attrs) for name in names]
        return self.jax.jit(lambda which, *arrays: self.lax.switch(which, branches, *arrays)), names

    def _conversions(self, op: OpDef, types: tuple[TensorType, ...]) -> tuple[Callable, tuple[DType, ...]]:
        """To all dtypes at once: that costs less than compiling once more."""
        shape, dtypes = types[0].shape, op.dtypes
        return self.jax.jit(lambda *arrays: [op.jax(self.jnp, self.lax, *arrays, shape=shape, dtype=d.numpy) for d in dtypes]), dtypes

    def _one(self, node: Node, attrs: dict, shape: Sequence[int]) -> tuple[Callable, tuple]:
        given = {"shape": tuple(shape), "dtype": node.type.dtype.numpy} if node.op.typed else {}
        return self.jax.jit(functools.partial(node.op.jax, self.jnp, self.lax, **attrs, **given)), ()


def _plain(op: OpDef) -> bool:
    """Whether its literal alone says what it computes: no attributes but a reduction's axes, no declared type."""
    return not op.typed and set(op.attrs) == ({"axes"} if op.reduce is not None else set()) and (op.fusion == ELEMENTWISE or op.reduce is not None)


@functools.cache
def signature(types: tuple[TensorType, ...], result: TensorType, attrs: tuple) -> tuple[str, ...]:
    """The ops that take these operands and attributes and give this result."""
    found = []
    for name, op in REGISTRY.items():
        if _plain(op) and op.arity == len(types) and set(op.attrs) == {name for name, _ in attrs}:
            try:
                fits = op.infer(list(types), dict(attrs), None) == result
            except MlcError:
                continue
            found += [name] * fits
    return tuple(found)
