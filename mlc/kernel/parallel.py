"""What of a kernel runs in parallel: which axis is cut into blocks, and how large they are.

A choice depends on the kernel, its schedule and the option `fork_us` only, never on the number of threads: blocks are handed out to
however many there are. Nothing is summed across blocks, so the choice has no influence on bits. Sums that have no kept axis to
cut were split into partial sums before, see `mlc.kernel.split`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.core import options
from mlc.kernel.cost import stage_cost
from mlc.kernel.ir import Attend, Axis, Dot, Kernel, Stage
from mlc.kernel.plain import SweepSchedule, TransposeSchedule
from mlc.kernel.tiling import MOST_GROUPED

# (axis, iterations of it in a block); ("", 0): the stage runs in one piece.
Parallel = tuple[str, int]

# As many blocks share out evenly among some threads; more only cost.
BLOCKS = 64
DOT_BLOCKS = 16
# Seconds of work beside which some milliseconds of compilation are little.
MUCH = 1e-3
# A right operand that streams past all rows is read in lines at least so long.
LEAST_COLUMNS = 384
# From so many iterations on an axis is good enough to look no further inside.
ENOUGH = 8


def fork_seconds() -> float:
    """Estimated time from which work is worth sharing."""
    return int(options.get("fork_us")) * 1e-6


def split_seconds() -> float:
    """Estimated time from which work is worth splitting up: it becomes two kernels, and more code."""
    return 8 * fork_seconds()


def block_count(seconds: float, short: float = 1.0) -> int:
    """How many blocks work of this length is cut into: none too short to be worth handing out, or walking over: `short` of what is worth sharing."""
    least = fork_seconds() * short
    return BLOCKS if seconds >= BLOCKS * least else max(2, int(seconds / least))


def block_size(extent: int, count: int, multiple: int = 1) -> int:
    """Iterations of a block when an axis is cut into `count` blocks, or down to half as many where that leaves a smaller rest (which one thread
    runs alone); 0 if it cannot be cut."""
    sizes = [-(-extent // (blocks * multiple)) * multiple for blocks in range(count, max(count // 2, 1), -1)]
    return min((size for size in sizes if size < extent), key=lambda size: (extent % size, size), default=0)


def _cuts(stage: Stage | Attend, plan: object) -> list[tuple[Axis, int]]:
    """The axes of a stage that may be cut, outer first, and what a block of each must be a multiple of; 0: iteration by iteration."""
    if isinstance(stage, Attend):
        return [(stage.m, plan.queries)]
    wholes = {plan.axis: plan.width}
    if isinstance(plan, SweepSchedule):  # long pieces of rows, so that they stream
        wholes = {plan.axis: max(1, plan.block // 2 // plan.width) * plan.width}
    elif isinstance(plan, TransposeSchedule):  # the loop over its blocks is outside anyway: cut there, the rest is as in one piece
        wholes = {plan.axis: plan.width, plan.down: plan.height} | {plan.block_axis: plan.block}
        return sorted([(axis, wholes.get(axis[0], 0)) for axis in stage.axes], key=lambda cut: (cut[0][0] in wholes, cut[0][0] != plan.block_axis))
    return [(axis, wholes.get(axis[0], 0)) for axis in stage.axes]


def _choose(cuts: Sequence[tuple[Axis, int]], seconds: float) -> tuple[Parallel, int]:
    """The first axis with enough blocks, else the one with the most, and how many it has."""
    best, most = ("", 0), 1
    for (axis, extent), multiple in cuts:
        size = block_size(extent, block_count(seconds, 0.5), multiple) if multiple else 1
        count = -(-extent // size) if size else 1
        if count > most:
            best, most = (axis, size), count
        if most >= ENOUGH:
            break
    return best, most


def dot_block(extent: int, count: int, multiple: int, tile: int, least: float, much: bool, fine: bool = False) -> int:
    """Iterations of a block, for some `count` blocks or down to half as many: those that two threads are through with first, then four, then
    eight; of those alike the largest, or, if `fine`, the smallest, which even out cores of unequal speed. What is left over runs on one thread,
    after the blocks. The last tile of a block is narrower than the others, but takes as long as `least` iterations. Tiles are code: unless there
    is `much` to do, one more has to gain a seventh at least. 0 if there are no two blocks."""
    def cost(some: int) -> float:
        return some // tile * tile + (max(some % tile, least) if some % tile else 0)

    def until(size: int, threads: int) -> float:
        full, rest = divmod(extent, size)
        return -(-full // threads) * cost(size) + cost(rest)

    def weight(size: int) -> float:
        return 1.0 if much else 1.0 + 0.25 * sum((part >= tile) + (part % tile > 0) for part in (size, extent % size))
    shares = [extent // blocks for blocks in range(count, max(count // 2, 1), -1)]
    sizes = {-(-share // multiple) * multiple for share in shares} | {share // tile * tile for share in shares if tile % multiple == 0}
    return min((size for size in sizes if 0 < size < extent), default=0, key=lambda size: (
        until(size, 2) * weight(size), until(size, 4), until(size, 8), size if fine else -size))


def _choose_dot(dot: Dot, plan: object, seconds: float) -> tuple[Parallel, int]:
    """Blocks of the larger operand: each reads the whole of the other one, so there are few. Of columns where the right one is copied (a
    block of rows would copy all of it) or streamed past all rows."""
    most, much = min(DOT_BLOCKS, block_count(seconds)), seconds >= MUCH
    (m, rows), (n, columns) = dot.m, dot.n
    fine = "b" in plan.pack and plan.group == 1 and not plan.beside  # a panel by itself is copied, and passes all rows
    grouped = plan.group if plan.group > MOST_GROUPED else 2
    least = LEAST_COLUMNS if plan.stream else plan.n * (1 if fine else 4 if plan.beside else grouped)
    panels = max(2, min(most, columns // least))
    # Even blocks of columns are better than whole panels: nothing is left to one thread alone.
    multiple = plan.n if plan.beside else dot.panels or plan.width
    along = dot_block(columns, panels, multiple, *((1, 0.0) if plan.stream else (plan.n, 1.75 * plan.width)), much, fine)
    across = 0 if plan.stream or (("b" in plan.pack or plan.beside) and along) else dot_block(rows, most, plan.m, plan.m, 0.9 * plan.m, much)
    counts = {(m, across): -(-rows // across) if across else 1, (n, along): -(-columns // along) if along else 1}
    order = [(n, along), (m, across)] if "b" in plan.pack or plan.stream or columns >= rows else [(m, across), (n, along)]
    best = next((cut for cut in order if counts[cut] >= DOT_BLOCKS // 4), max(order, key=counts.__getitem__))
    return (best, counts[best]) if counts[best] > 1 else (("", 0), 1)


def _of_stage(stage: Stage | Dot | Attend, plan: object, seconds: float) -> tuple[Parallel, int]:
    return _choose_dot(stage, plan, seconds) if isinstance(stage, Dot) else _choose(_cuts(stage, plan), seconds)


def parallel_axes(kernel: Kernel, plans: Sequence[object], row_vector: str, whole: tuple[str, int]) -> tuple[Parallel, ...]:
    """What is cut: one entry for the kernel if it has rows or one stage, else one a stage; () if nothing is. `whole`: a row axis of which so
    many iterations stay together."""
    costs = [stage_cost(kernel, stage).seconds for stage in kernel.stages]
    threshold = fork_seconds()
    if kernel.rows:
        if sum(costs) < threshold:
            return ()
        best, count = _choose([((name, extent), whole[1] if name == whole[0] else 0) for name, extent in kernel.rows], sum(costs))
        if count < ENOUGH and len(kernel.stages) == 1 and not row_vector:
            inner, inner_count = _of_stage(kernel.stages[0], plans[0], sum(costs))
            best = inner if inner_count > count else best
        found = (best,)
    else:
        found = tuple(_of_stage(*each, cost)[0] if cost >= threshold else ("", 0) for *each, cost in zip(kernel.stages, plans, costs))
    return found if any(axis for axis, _ in found) else ()
