"""Rebasing and collapsing of loop axes: in expressions, stages and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mlc.core import expr as ex
from mlc.core.affine import ZERO, Affine, variable
from mlc.core.dataclass import replace
from mlc.core.expr import Expr, make
from mlc.kernel.ir import Attend, Axis, Dot, Kernel, Put, Stage


def rebase(exprs: Sequence[Expr], axes: Mapping[str, Affine], loads: Callable[[str, Affine, Affine], Expr | None] | None = None) -> list[Expr]:
    """Expressions with axes replaced by affine forms of other axes.

    A load becomes what `loads(buffer, old index, new index)` gives, or is only re-indexed where that is None.
    """
    if not axes and loads is None:
        return list(exprs)

    def leaf(node: Expr) -> Expr | None:
        if node.op == "index":
            return ex.affine_value(axes[node.attr]) if node.attr in axes else None
        if node.op == "load":
            name, index = node.attr
            moved = index.substitute(axes)
            found = loads(name, index, moved) if loads else None
            return found if found is not None else make("load", node.dtype, (), (name, moved))
        return None

    return ex.substitute(exprs, leaf)


def renaming(names: Mapping[str, str]) -> dict[str, Affine]:
    """Axis names as the mapping that `rebase` takes."""
    return {old: variable(new) for old, new in names.items()}


def rebase_put(put: Put, axes: Mapping[str, Affine], loads: Callable | None = None) -> Put:
    return Put(put.target, put.index.substitute(axes), rebase([put.value], axes, loads)[0])


def collapsible(index: Affine, axes: Sequence[Axis]) -> bool:
    """May these adjacent axes, outer first, run as one loop for this access?"""
    return all(index.coefficient(outer) == index.coefficient(inner) * extent
               for (outer, _), (inner, extent) in zip(axes, axes[1:]))


def uses_index(exprs: Iterable[Expr], names: Iterable[str]) -> bool:
    """Does an expression read one of these axes as a number?"""
    wanted = set(names)
    return any(e.op == "index" and e.attr in wanted for e in ex.topological(exprs))


def all_collapsible(exprs: Sequence[Expr], indices: Sequence[Affine], axes: Sequence[Axis]) -> bool:
    """May the axes run as one loop for every load under `exprs`, every index in `indices`, and every use of an axis as a number?"""
    if len(axes) < 2:
        return True
    if uses_index(exprs, [name for name, _ in axes]):
        return False
    loads = [e.attr[1] for e in ex.topological(exprs) if e.op == "load"]
    return all(collapsible(index, axes) for index in (*loads, *indices))


def collapsing(axes: Sequence[Axis], new: str) -> dict[str, Affine]:
    """Collapsible axes, outer first, as one axis: the mapping that `rebase` takes. An access steps through them as through the last one."""
    return {name: variable(new) if (name, extent) == axes[-1] else ZERO for name, extent in axes}


def place_axis(stage: Stage | Dot | Attend, axis: str, place: Affine, size: int) -> Stage | Dot | Attend:
    """The stage over `size` iterations of an axis of its own or of a row axis, from `place` on; size 0: at `place`, the axis being gone."""
    def sized(a: Axis) -> Axis:
        return (axis, size) if a[0] == axis else a

    at = {axis: place + Affine(0, ((axis, 1),)) if size else place}

    def moved(exprs: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(rebase(exprs, at))
    puts = tuple(rebase_put(p, at) for p in stage.puts)
    if isinstance(stage, Dot):
        a, b = moved([stage.a, stage.b])
        return replace(stage, m=sized(stage.m), n=sized(stage.n), a=a, b=b, puts=puts)
    if isinstance(stage, Attend):
        query, key, score, value = moved([stage.query, stage.key, stage.score, stage.value])
        return replace(stage, m=sized(stage.m), query=query, key=key, score=score, value=value, puts=puts)
    reduces = tuple(replace(r, values=moved(r.values)) for r in stage.reduces)
    finish = tuple(rebase_put(f, at) if isinstance(f, Put) else replace(f, value=moved([f.value])[0]) for f in stage.finish)
    axes, over = (tuple(sized(a) for a in axes if size or a[0] != axis) for axes in (stage.axes, stage.over))
    return replace(stage, axes=axes, over=over, reduces=reduces, puts=puts, finish=finish)


# --------------------------------------------------------------------------- stages and kernels
def stage_parts(stage: Stage | Dot | Attend) -> tuple[list[Expr], list[Put]]:
    """All expressions of a stage and its puts."""
    if isinstance(stage, Attend):
        return [stage.query, stage.key, stage.score, stage.weight, stage.value, *(p.value for p in stage.puts)], list(stage.puts)
    if isinstance(stage, Dot):
        return [stage.a, stage.b, *(p.value for p in stage.puts)], list(stage.puts)
    values = [v for r in stage.reduces for v in r.values]
    puts = [*stage.puts, *(f for f in stage.finish if isinstance(f, Put))]
    return [*values, *(p.value for p in stage.puts), *(f.value for f in stage.finish)], puts


def _merge_pair(stage: Stage, which: str, position: int) -> Stage | None:
    """The stage with axes `position` and `position + 1` of `which` run as one loop, or None where an access forbids it."""
    axes = getattr(stage, which)
    pair = axes[position:position + 2]
    exprs, puts = stage_parts(stage)
    if not all_collapsible(exprs, [p.index for p in puts], pair):
        return None
    (outer, n), (inner, m) = pair
    # Rows where the inner axis has the step s and the outer one s * m: replacing outer by 0 leaves the inner axis to run over both.
    drop = {outer: Affine()}
    reduces = tuple(replace(r, values=tuple(rebase(r.values, drop))) for r in stage.reduces)
    finish = tuple(rebase_put(f, drop) if isinstance(f, Put) else replace(f, value=rebase([f.value], drop)[0]) for f in stage.finish)
    merged = (*axes[:position], (inner, n * m), *axes[position + 2:])
    puts = tuple(rebase_put(p, drop) for p in stage.puts)
    return replace(stage, reduces=reduces, puts=puts, finish=finish, **{which: merged})


def collapse_stage(stage: Stage | Dot | Attend) -> Stage | Dot | Attend:
    """Adjacent axes that every access steps through as one are one axis."""
    if isinstance(stage, (Dot, Attend)):
        return stage
    for which in ("axes", "over"):
        position = len(getattr(stage, which)) - 2
        while position >= 0:
            merged = _merge_pair(stage, which, position)
            stage = merged or stage
            position -= 1
    return stage


def collapse_kernel(kernel: Kernel) -> Kernel:
    """Collapse the axes of every stage."""
    return replace(kernel, stages=tuple(collapse_stage(s) for s in kernel.stages))
