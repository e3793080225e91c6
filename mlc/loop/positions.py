"""Reductions that carry positions (argmax), where elements arrive in the order of their positions: no position needs to be compared then."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.core import expr as ex
from mlc.core.expr import Expr
from mlc.kernel.ir import Axis, Reduce


def increases(position: Expr, over: Sequence[Axis]) -> bool:
    """Whether a position (that may be narrowed, but fits) grows from each step of a nest over the axes (outer first) to the next."""
    index, inside = ex.affine_of(position.args[0] if position.op == "convert" else position), 0
    if index is None:
        return False
    for name, extent in reversed(over):
        step = index.coefficient(name)
        if step <= inside:
            return False
        inside += step * (extent - 1)
    return True


def later(reduce: Reduce, over: Sequence[Axis]) -> tuple[Expr, ...]:
    """`reduce.combine` for elements of a nest over the axes: where their position (the last member) always grows, comparisons
    that ask whether it is smaller than the one so far are known to fail."""
    if len(reduce.names) < 2 or not over or not increases(reduce.values[-1], over):
        return reduce.combine
    last, dtype = len(reduce.names) - 1, reduce.dtypes[-1]
    false = ex.const(0, ex.dt.bool_)
    known = {ex.var(f"b.{last}", dtype) < ex.var(f"a.{last}", dtype): false}
    for e in ex.topological(reduce.combine):
        args = [known.get(a, a) for a in e.args]
        if e.op == "and" and false in args:
            known[e] = false
        elif e.op == "or" and false in args and e.dtype is ex.dt.bool_:
            known[e] = args[0] if args[1] is false or args[1] == false else args[1]
        elif e not in known and tuple(args) != e.args:
            known[e] = ex.make(e.op, e.dtype, tuple(args), e.attr)
    return tuple(known.get(e, e) for e in reduce.combine)
