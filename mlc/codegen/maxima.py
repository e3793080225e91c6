"""Maxima that loops carry as minima of negated numbers, where that is shorter.

x86 before AVX-512 takes five instructions for a maximum (NaN from either side, -0 below +0: `instructions._pick_bits`), and for a minimum
three, because "or" keeps NaN and makes -0. max(t, x) = -min(-t, -x), so a total that a loop carries negated takes four an iteration.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlc.codegen.builder import Builder, Value
from mlc.codegen.instructions import instruction
from mlc.codegen.target import Target
from mlc.core import dtype as dt
from mlc.core.expr import Expr
from mlc.loop.ir import Assign, Stmt


def grows(name: str, value: Expr) -> bool:
    """Whether a variable is assigned the maximum of itself and something else."""
    return value.op == "max" and value.dtype in (dt.f32, dt.f64) and value.args[0].op == "var" and value.args[0].attr == name


def carried_negated(statements: Iterable[Stmt], target: Target) -> frozenset[str]:
    """The variables that these statements of a loop assign nothing but such maxima."""
    if not target.is_x86 or target.avx512:
        return frozenset()
    assigned = [(name, value) for s in statements if isinstance(s, Assign) for name, value in zip(s.names, s.values)]
    others = {name for name, value in assigned if not grows(name, value)}
    return frozenset(name for name, _ in assigned if name not in others)


def minus(b: Builder, value: Value) -> Value:
    """-value, which may be there already."""
    return value.minus or instruction(b, "neg", value.dtype, (value,))


def from_minus(b: Builder, negated: Value) -> Value:
    """The number of which this is the negative; it costs nothing unless somebody reads it."""
    found = instruction(b, "neg", negated.dtype, (negated,))
    found.minus = negated
    return found


def maximum(b: Builder, total: Value, other: Value) -> Value:
    """max(total, other) by way of their negatives."""
    return from_minus(b, instruction(b, "min", total.dtype, (minus(b, total), minus(b, other))))
