"""Seeded faults: each function breaks one function of the compiler, in this process and until it ends.

A campaign gets one by `MLC_FUZZ_PRELOAD=faults:<name>`: its worker then compiles with a broken mlc, while the harness and
the referee know nothing of it. A fault that finds no place to sit (the code was renamed) raises, so none is silently void.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

import mlc.compile  # noqa: F401  loads every stage, so that `put_in_place` finds who calls what


@dataclass(frozen=True)
class Fault:
    """`guilty`: the names of levels or passes that a report may give; `install` breaks mlc."""

    name: str
    guilty: tuple[str, ...]
    install: Callable[[], None]

    @property
    def breaks(self) -> str:
        """What is wrong, in a line."""
        return self.install.__doc__


FAULTS: dict[str, Fault] = {}


def fault(*guilty: str) -> Callable:
    """Enter a fault under its function's name."""
    def enter(install: Callable[[], None]) -> Callable[[], None]:
        FAULTS[install.__name__] = Fault(install.__name__, guilty, install)
        return install
    return enter


def put_in_place(right: Callable, wrong: Callable) -> None:
    """Let every module of mlc that knows the function by a name know the other instead."""
    found = 0
    for module in [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "mlc" and m is not None]:
        for name, value in list(vars(module).items()):
            if value is right:
                setattr(module, name, wrong)
                found += 1
    assert found, f"no module of mlc knows {right}"


# --------------------------------------------------------------------------- passes
@fault("pass cse")
def cse_ignores_axes() -> None:
    """CSE merges nodes that differ in their attribute `axes` only."""
    from mlc.graph.graph import Node
    from mlc.passes import cse
    right = cse._key

    def key(node, inputs, texts):
        attrs = {k: v for k, v in node.attrs.items() if k != "axes"}
        return right(Node(node.op, node.inputs, attrs, node.type, node.regions), inputs, texts)
    put_in_place(right, key)


@fault("pass fold")
def fold_computes_in_f32() -> None:
    """Constants of f64 are folded in f32."""
    from mlc.passes import fold
    right = fold._evaluate

    def narrow(array):
        return array.astype(np.float32).astype(np.float64) if array is not None and array.dtype == np.float64 else array

    def evaluate(node, arrays, exact):
        with np.errstate(all="ignore"):
            return narrow(right(node, [narrow(a) for a in arrays], exact))
    put_in_place(right, evaluate)


@fault("pass simplify")
def product_with_zero_is_zero() -> None:
    """x * 0 becomes 0 in every dtype, NaN and infinity or not."""
    from mlc.passes.simplify import RULES
    (rule,) = (rule for rule in RULES.rules if rule.name == "mul-zero")
    assert rule.when
    object.__setattr__(rule, "when", ())


# --------------------------------------------------------------------------- kernels and loops
@fault("kernels")
def fusion_drops_a_broadcast() -> None:
    """A broadcast that is inlined into its reader repeats the first element along the last axis of its operand."""
    from mlc.core.affine import ZERO
    from mlc.passes.access import Inliner
    right = Inliner._operands

    def operands(self, n, at):
        found = right(self, n, at)
        if self.graph.nodes[n].op.name == "broadcast_in_dim" and found[0][1]:
            ((operand, index),) = found
            return [(operand, (*index[:-1], ZERO))]
        return found
    Inliner._operands = operands


@fault("loops")
def maximum_starts_from_zero() -> None:
    """The loop that reduces to a maximum starts from 0 instead of from the lowest value."""
    from mlc.core import expr as ex
    from mlc.loop.lower import _Reducer
    right = _Reducer.__init__

    def init(self, stage, *rest):
        def started(reduce):
            if reduce.combine[0].op != "max":
                return reduce
            return replace(reduce, identity=tuple(ex.const(0, d) for d in reduce.dtypes))
        right(self, replace(stage, reduces=tuple(map(started, stage.reduces))), *rest)
    _Reducer.__init__ = init


# --------------------------------------------------------------------------- memory
@fault("memory")
def lifetimes_end_a_step_early() -> None:
    """The planner lets a buffer's memory be taken by what is written in the step that reads it last."""
    from mlc.memory import plan
    right = plan._box

    def box(chain):
        return right([replace(r, last=max(r.first, r.last - 1)) for r in chain])
    put_in_place(right, box)


@fault("memory", "kernels")
def in_place_at_another_index() -> None:
    """A kernel may write its result over an operand that it reads at another index, so that it reads its own output."""
    from mlc.kernel.ir import Dot
    from mlc.passes import kernelize
    right = kernelize.in_place

    def in_place(params, stages):
        outs = [p for p in params if p.role == "out"]
        if len(stages) != 1 or isinstance(stages[0], Dot) or stages[0].over or len(outs) != 1:
            return right(params, stages)
        (out,) = outs
        return frozenset((p.name, out.name) for p in params if p.role == "in" and p.type.size == out.type.size
                         and p.type.dtype.itemsize == out.type.dtype.itemsize)
    put_in_place(right, in_place)


@fault("cache")
def cache_key_without_dtype() -> None:
    """The persistent cache's key leaves out the dtypes of the graph."""
    from mlc.cache import store
    right = store.cache_key

    def cache_key(graph, **rest):
        return right(re.sub(r"\b(bool|bf16|[iuf]\d+)\b(?=\[)", "dtype", graph), **rest)
    put_in_place(right, cache_key)


# --------------------------------------------------------------------------- machine code
@fault("machine code")
def vector_tail_one_short() -> None:
    """The last block of a vector loop leaves out its last element, unless it has only one."""
    from mlc.codegen import lanes
    right = lanes.last_lanes

    def last_lanes(var, rest, width):
        found = right(var, rest, width)
        return replace(found, active=max(1, rest - 1))
    put_in_place(right, last_lanes)


@fault("machine code")
def max_drops_nan() -> None:
    """max(NaN, y) is y: one compare and select."""
    from mlc.codegen import instructions
    right = instructions._pick_bits

    def pick(at, dtype, x, y, larger):
        if not larger:
            return right(at, dtype, x, y, larger)
        return at.select(at(f"fcmp ogt {at.type(dtype)} {x}, {y}"), dtype, x, y)
    put_in_place(right, pick)


@fault("machine code")
def signed_division_unguarded() -> None:
    """Signed division by zero, or of INT_MIN by -1, reaches the CPU's instruction."""
    from mlc.codegen import instructions
    right = instructions._quotient

    def quotient(at, dtype, x, y):
        if dtype.kind != "i":
            return right(at, dtype, x, y)
        return at(f"sdiv {at.type(dtype)} {x.text}, {y.text}"), y.text
    put_in_place(right, quotient)


@fault("machine code")
def shift_past_the_width_raw() -> None:
    """A shift to the left by the width or more is left to the CPU."""
    from mlc.codegen import instructions
    assert "shl" in instructions._INT
    instructions._INT["shl"] = instructions._plain("shl")
