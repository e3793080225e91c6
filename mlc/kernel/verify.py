"""The verifiers of kernels and of the partition: one function an invariant, sharing no code with what builds them."""

from __future__ import annotations

import math

from mlc.core import expr as ex
from mlc.core.errors import VerifyError
from mlc.kernel.attention import AttendSchedule
from mlc.kernel.ir import Attend, Bind, Dot, Kernel, KernelGraph, Put, Stage
from mlc.kernel.plain import SweepSchedule, TransposeSchedule
from mlc.kernel.schedule import Schedule, StageSchedule, TileSchedule
from mlc.kernel.tiling import DOT_CHUNK


def _fail(invariant: str, where: str, found: object, expected: object) -> None:
    raise VerifyError(invariant, where, found, expected)


# --------------------------------------------------------------------------- one kernel
def _parts(stage: Stage | Dot | Attend):
    """(expression, loop extents it runs over) for every expression, and (put, extents) for every put."""
    if isinstance(stage, Attend):
        m, n, k, c = (dict([axis]) for axis in stage.axes)
        yield from ((stage.query, m | k, None), (stage.key, n | k, None), (stage.score, m | n, None), (stage.weight, {}, None))
        yield from ((stage.value, n | c, None), *((put.value, m | c, put) for put in stage.puts))
        return
    if isinstance(stage, Dot):
        m, n, k = (dict([axis]) for axis in (stage.m, stage.n, stage.k))
        yield stage.a, m | k, None
        yield stage.b, n | k, None
        for put in stage.puts:
            yield put.value, m | n, put
        return
    kept, every = dict(stage.axes), dict(stage.axes) | dict(stage.over)
    for reduce in stage.reduces:
        for value in reduce.values:
            yield value, every, None
    for put in stage.puts:
        yield put.value, every, put
    for action in stage.finish:
        yield action.value, kept, action if isinstance(action, Put) else None


def axes_are_distinct(kernel: Kernel) -> None:
    """Within a stage no axis is named twice, and extents are not negative."""
    for s, stage in enumerate(kernel.stages):
        own = [*stage.axes, *getattr(stage, "over", ())]
        names = [name for name, _ in (*kernel.rows, *own)]
        if len(set(names)) != len(names):
            _fail("axes_are_distinct", f"kernel @{kernel.name} stage {s}", names, "distinct names")
        for name, extent in (*kernel.rows, *own):
            if extent < 0:
                _fail("axes_are_distinct", f"kernel @{kernel.name} stage {s}", f"{name}:{extent}", "an extent of at least 0")


def every_access_in_bounds(kernel: Kernel) -> None:
    """Loads and stores stay inside their buffer, over the whole domain of their stage."""
    params, rows = {p.name: p for p in kernel.params}, dict(kernel.rows)
    for s, stage in enumerate(kernel.stages):
        for value, extents, put in _parts(stage):
            accesses = [e.attr for e in ex.topological([value]) if e.op == "load"]
            if put is not None:
                accesses.append((put.target, put.index))
            domain = rows | extents
            if 0 in domain.values():
                continue
            for name, index in accesses:
                where = f"kernel @{kernel.name} stage {s}, {name}[{index}]"
                if name not in params:
                    _fail("every_access_in_bounds", where, f"buffer {name}", f"one of {sorted(params)}")
                unknown = [v for v, _ in index.terms if v not in domain]
                if unknown:
                    _fail("every_access_in_bounds", where, f"axes {unknown}", f"axes among {sorted(domain)}")
                low, high = index.bounds(domain)
                if low < 0 or high >= params[name].type.size:
                    _fail("every_access_in_bounds", where, f"indices {low}..{high}", f"0..{params[name].type.size - 1}")


def types_match(kernel: Kernel) -> None:
    """A load has its buffer's dtype, a store stores its buffer's dtype, inputs are not stored."""
    params = {p.name: p for p in kernel.params}
    for s, stage in enumerate(kernel.stages):
        for value, _, put in _parts(stage):
            for e in ex.topological([value]):
                if e.op == "load" and params[e.attr[0]].type.dtype is not e.dtype:
                    _fail("types_match", f"kernel @{kernel.name} stage {s}, load of {e.attr[0]}", e.dtype, params[e.attr[0]].type.dtype)
            if put is not None:
                param = params[put.target]
                if param.role == "in" or param.type.dtype is not value.dtype:
                    _fail("types_match", f"kernel @{kernel.name} stage {s}, store to {put.target}", f"{value.dtype} into {param.role}",
                          f"{param.type.dtype} into out or scratch")


def values_come_first(kernel: Kernel) -> None:
    """Scratch and outputs are stored by an earlier stage before they are loaded; variables are bound before they are read."""
    stored: set[str] = {p.name for p in kernel.params if p.role == "in"}
    bound: set[str] = set()
    for s, stage in enumerate(kernel.stages):
        if isinstance(stage, Attend):
            _values_of_attention(kernel, s, stage, bound, stored)
            bound |= {stage.name}
            stored |= {put.target for put in stage.puts}
            continue
        here = {stage.name} if isinstance(stage, Dot) else {n for r in stage.reduces for n in r.names}
        fed = [v for r in getattr(stage, "reduces", ()) for v in r.values]
        for value, _, _ in _parts(stage):
            finishing = isinstance(stage, Dot) or value not in fed
            for e in ex.topological([value]):
                where = f"kernel @{kernel.name} stage {s}"
                if e.op == "load" and e.attr[0] not in stored:
                    _fail("values_come_first", where, f"a load of {e.attr[0]}", "a store in an earlier stage")
                if e.op == "var" and e.attr not in bound and not (finishing and e.attr in here):
                    _fail("values_come_first", where, f"variable {e.attr}", f"one of {sorted(bound | here)}")
            if not isinstance(stage, Dot):
                for action in stage.finish:
                    if isinstance(action, Bind) and action.value is value:
                        here.add(action.name)
        bound |= here
        stored |= {put.target for _, _, put in _parts(stage) if put is not None}


def _values_of_attention(kernel: Kernel, s: int, stage: Attend, bound: set[str], stored: set[str]) -> None:
    """The product is read by the score only, the distance by the weight, the result by what is stored."""
    parts = [(stage.query, ""), (stage.key, ""), (stage.score, f"{stage.name}.s"), (stage.weight, f"{stage.name}.x"), (stage.value, "")]
    for value, own in [*parts, *((put.value, stage.name) for put in stage.puts)]:
        for e in ex.topological([value]):
            if e.op == "load" and e.attr[0] not in stored:
                _fail("values_come_first", f"kernel @{kernel.name} stage {s}", f"a load of {e.attr[0]}", "a store in an earlier stage")
            if e.op == "var" and e.attr not in bound and e.attr != own:
                _fail("values_come_first", f"kernel @{kernel.name} stage {s}", f"variable {e.attr}", f"one of {sorted({*bound, own} - {''})}")


def attention_is_well_formed(kernel: Kernel) -> None:
    """All parts are of one float dtype, no axis is empty, a weight depends on its distance alone, values are contiguous."""
    for s, stage in enumerate(kernel.stages):
        if not isinstance(stage, Attend):
            continue
        where = f"kernel @{kernel.name} stage {s}"
        parts = (stage.query, stage.key, stage.score, stage.weight, stage.value)
        if not stage.dtype.is_float or stage.dtype.is_half or any(part.dtype is not stage.dtype for part in parts):
            _fail("attention_is_well_formed", where, f"{stage.dtype} of {[str(part.dtype) for part in parts]}", "f32 or f64 throughout")
        if min(extent for _, extent in stage.axes) < 1 or stage.k[1] > DOT_CHUNK:
            _fail("attention_is_well_formed", where, stage.axes, f"extents of at least 1, and k of at most {DOT_CHUNK}")
        for e in ex.topological([stage.weight]):
            if e.op in ("load", "index") or (e.op == "var" and e is not stage.distance):
                _fail("attention_is_well_formed", where, f"{e.op} {e.attr} in the weight", f"only {stage.distance.attr}")
        for e in ex.topological([stage.value]):
            if e.op == "load" and e.attr[1].coefficient(stage.c[0]) not in (0, 1):
                _fail("attention_is_well_formed", where, f"the value loads {e.attr[0]}[{e.attr[1]}]", f"coefficient 0 or 1 of {stage.c[0]}")


def outputs_are_filled(kernel: Kernel) -> None:
    """There are outputs, and the stores to each have at least as many points as it has elements."""
    if all(p.role != "out" for p in kernel.params):
        _fail("outputs_are_filled", f"kernel @{kernel.name}", "no output", "one or more")
    rows = math.prod(e for _, e in kernel.rows)
    points: dict[str, int] = {}
    for stage in kernel.stages:
        for _, extents, put in _parts(stage):
            if put is not None:
                points[put.target] = points.get(put.target, 0) + rows * math.prod(extents.values())
    for p in kernel.params:
        if p.role == "out" and points.get(p.name, 0) < p.type.size:
            _fail("outputs_are_filled", f"kernel @{kernel.name}, {p.name}", f"{points.get(p.name, 0)} stores", f"{p.type.size} elements")


def aliases_are_read_before_they_are_written(kernel: Kernel) -> None:
    """Where an output may lie on an input, element i of the input is only loaded for the store of element i of the output, or for one before it."""
    for source, target in sorted(kernel.may_alias):
        where = f"kernel @{kernel.name}, {target} in place of {source}"
        stores = [(s, put) for s, stage in enumerate(kernel.stages) for _, _, put in _parts(stage) if put is not None]
        first = next((k for k, (_, put) in enumerate(stores) if put.target == target), None)
        operands = [e for s in kernel.stages if isinstance(s, Dot) for e in (s.a, s.b)]
        if len(kernel.stages) != 1 or (kernel.rows and not operands) or first is None:
            _fail("aliases_are_read_before_they_are_written", where, f"{len(kernel.stages)} stages", "one stage, which stores it")
        if any(e.op == "load" and e.attr[0] == source for e in ex.topological(operands)):
            _fail("aliases_are_read_before_they_are_written", where, "an operand of the contraction", "loads for stores only")
        for position, (_, put) in enumerate(stores):
            for e in ex.topological([put.value]):
                if e.op == "load" and e.attr[0] == source and (position > first or e.attr[1] != stores[first][1].index):
                    _fail("aliases_are_read_before_they_are_written", where, f"a load at {e.attr[1]} for store {position}",
                          f"loads at {stores[first][1].index} for stores up to {first}")


KERNEL_INVARIANTS = (axes_are_distinct, every_access_in_bounds, types_match, values_come_first, attention_is_well_formed, outputs_are_filled,
                     aliases_are_read_before_they_are_written)


def schedule_is_legal(kernel: Kernel, schedule: Schedule) -> None:
    """One entry a stage; vector axes exist and widths are powers of two; tiles fit; lanes over rows leave no row scratch."""
    where = f"kernel @{kernel.name} schedule"
    if len(schedule.stages) != len(kernel.stages):
        _fail("schedule_is_legal", where, f"{len(schedule.stages)} entries", f"{len(kernel.stages)} stages")
    if not set(schedule.streams) <= {p.name for p in kernel.params if p.role == "out"}:
        _fail("schedule_is_legal", where, f"stream {schedule.streams}", "outputs")
    if schedule.row_vector and (schedule.row_vector not in dict(kernel.rows) or any(p.role == "scratch" for p in kernel.params)):
        _fail("schedule_is_legal", where, f"rows {schedule.row_vector} as lanes", "a row axis, and no row scratch")
    _rows_may_be_jammed(kernel, schedule, where)
    _cuts_are_legal(kernel, schedule, where)
    for s, (stage, plan) in enumerate(zip(kernel.stages, schedule.stages)):
        if isinstance(stage, Dot) != isinstance(plan, TileSchedule) or isinstance(stage, Attend) != isinstance(plan, AttendSchedule):
            _fail("schedule_is_legal", f"{where} stage {s}", plan, "a tile for a contraction, blocks for attention, a vector axis for other stages")
        if isinstance(plan, AttendSchedule):
            if min(plan.queries, plan.keys, *plan.scores, *plan.sums) < 1 or plan.keys > DOT_CHUNK:
                _fail("schedule_is_legal", f"{where} stage {s}", plan, f"blocks and tiles of at least 1, at most {DOT_CHUNK} keys")
            if any(lanes < 1 or lanes & (lanes - 1) for lanes in (plan.width, plan.by)):
                _fail("schedule_is_legal", f"{where} stage {s}", f"{plan.width} and {plan.by} lanes", "powers of two")
            continue
        if isinstance(stage, Dot):
            if min(plan.m, plan.n, *plan.rest) < 1:
                _fail("schedule_is_legal", f"{where} stage {s}", plan, "a tile of at least 1 x 1")
            _words_fit(stage, plan, {p.name for p in kernel.params if p.role == "in"}, f"{where} stage {s}")
        elif plan.axis and plan.axis not in dict((*stage.axes, *stage.over)):
            _fail("schedule_is_legal", f"{where} stage {s}", plan.axis, f"an axis among {[n for n, _ in (*stage.axes, *stage.over)]}")
        if plan.width & (plan.width - 1) or plan.width < 1:
            _fail("schedule_is_legal", f"{where} stage {s}", f"width {plan.width}", "a power of two")
        around = getattr(plan, "around", "")
        if around and (stage.reduces or plan.axis == around or not {plan.axis, around} <= set(dict(stage.axes))):
            _fail("schedule_is_legal", f"{where} stage {s}", plan.text(), "two kept axes of a stage that only stores")
        if isinstance(plan, TransposeSchedule):
            kept = dict(stage.axes)
            if stage.reduces or plan.down == plan.axis or not {plan.down, plan.axis} <= set(kept) or plan.block_axis not in (plan.down, plan.axis):
                _fail("schedule_is_legal", f"{where} stage {s}", plan.text(), "two kept axes of a stage that only stores, and blocks of one of them")
            inner, outer = (plan.height, plan.width) if plan.block_axis == plan.down else (plan.width, plan.height)
            if min(plan.height, plan.block) < 1 or plan.staged < 0 or plan.block % inner or plan.staged % outer:
                _fail("schedule_is_legal", f"{where} stage {s}", plan.text(), "tiles of at least 1 x 1, and whole ones in a block")
        if isinstance(plan, SweepSchedule):
            if not stage.reduces or len(stage.over) != 1 or plan.axis not in dict(stage.axes):
                _fail("schedule_is_legal", f"{where} stage {s}", plan.text(), "a kept axis of a reduction over one axis")
            if plan.rows < 1 or plan.block < 1 or plan.block % plan.width:
                _fail("schedule_is_legal", f"{where} stage {s}", plan.text(), "at least one row, and whole vectors in a block")


def _rows_may_be_jammed(kernel: Kernel, schedule: Schedule, where: str) -> None:
    """Rows side by side are of the last row axis, and each only sums, into scalars of its own."""
    if schedule.jam == ("", 1):
        return
    stages = kernel.stages
    sums = len(stages) == 1 and isinstance(stages[0], Stage) and stages[0].reduces and not stages[0].puts and not stages[0].axes
    last = bool(kernel.rows) and kernel.rows[-1][0] == schedule.jam[0]
    if not (sums and last and not schedule.row_vector and isinstance(schedule.stages[0], StageSchedule)) or schedule.jam[1] < 2:
        _fail("schedule_is_legal", where, f"jam rows {schedule.jam[0]}:{schedule.jam[1]}",
              "two rows or more of the last row axis, of one stage that sums each up")


def _words_fit(dot: Dot, plan: TileSchedule, given: set[str], where: str) -> None:
    """Words have parts that hold every value of the narrow integers which both sides are converted from; bytes of a may be moved by 128.
    Or both sides are bf16 that the kernel is given."""
    if not plan.parts:
        if plan.block:
            _fail("schedule_is_legal", where, f"block {plan.block} without parts", "blocks of words")
        return
    narrow = tuple(side.args[0].dtype.name if side.op == "convert" else side.dtype.name for side in (dot.a, dot.b))
    parts = tuple(part.name for part in plan.parts)
    fit = {narrow[0], narrow[1]} <= {"i8", "u8", "i16"} if parts == ("i16", "i16") else (
        parts in (("u8", "i8"), ("i8", "u8")) and narrow[0] in ("i8", "u8") and narrow[1] == parts[1])
    if plan.block:
        fit = parts == narrow and set(narrow) <= {"i8", "u8"}
    total = ("i32", "i8", "u8")
    if "bf16" in parts:
        loads = [side.args[0] for side in (dot.a, dot.b) if side.op == "convert" and side.args[0].op == "load"]
        total, fit = ("f32",), parts == ("bf16", "bf16") == narrow and len(loads) == 2 and {e.attr[0] for e in loads} <= given
    if not fit or dot.dtype.name not in total or plan.stream or plan.block < 0:
        _fail("schedule_is_legal", where, f"parts {' '.join(parts)} for {narrow[0]} times {narrow[1]} in {dot.dtype}",
              "parts that hold both sides, no stream")


def _cuts_are_legal(kernel: Kernel, schedule: Schedule, where: str) -> None:
    """What is cut into parallel blocks is a row axis or a kept one of the only stage, or, without rows, one a stage; never one that is
    summed over. Blocks of lanes and of register tiles are whole."""
    if not schedule.parallel:
        return
    alone = len(kernel.stages) == 1
    count = 1 if kernel.rows or alone else len(kernel.stages)
    if len(schedule.parallel) != count:
        _fail("schedule_is_legal", where, f"{len(schedule.parallel)} parallel axes", f"{count}")
    for s, (axis, block) in enumerate(schedule.parallel):
        if not axis and count > 1:
            continue
        stage, plan = kernel.stages[s], schedule.stages[s]
        wholes = {schedule.row_vector: schedule.row_width, schedule.jam[0]: schedule.jam[1]}
        if isinstance(stage, Stage):
            wholes |= {plan.axis: plan.width, getattr(plan, "down", ""): getattr(plan, "height", 1)}
        kept = (stage.m, stage.n) if isinstance(stage, Dot) else (stage.m,) if isinstance(stage, Attend) else stage.axes
        allowed = dict(kernel.rows) | (dict(kept) if alone or not kernel.rows else {})
        if axis not in allowed:
            _fail("schedule_is_legal", f"{where} parallel {s}", f"axis {axis}", f"one of {sorted(allowed)}: rows, or kept by its stage")
        if block < 1 or block > allowed[axis] or block % wholes.get(axis, 1):
            _fail("schedule_is_legal", f"{where} parallel {axis}", f"blocks of {block}", f"1..{allowed[axis]}, a multiple of {wholes.get(axis, 1)}")


def verify_kernel(kernel: Kernel, schedule: Schedule | None = None) -> Kernel:
    """Check a kernel, and its schedule if given. Raises VerifyError; returns the kernel."""
    for invariant in KERNEL_INVARIANTS:
        invariant(kernel)
    if schedule is not None:
        schedule_is_legal(kernel, schedule)
    return kernel


# --------------------------------------------------------------------------- the partition
def arguments_fit(program: KernelGraph) -> None:
    """Each step binds one value of the right dtype and size to each in and out parameter."""
    for k, step in enumerate(program.steps):
        params = [p for p in step.kernel.params if p.role != "scratch"]
        if len(step.args) != len(params):
            _fail("arguments_fit", f"step {k} ({step.kernel.name})", f"{len(step.args)} arguments", len(params))
        for name, param in zip(step.args, params):
            value = program.values.get(name)
            if value is None or value.type.dtype is not param.type.dtype or value.type.size != param.type.size:
                _fail("arguments_fit", f"step {k} ({step.kernel.name}), {param.name}", value, param.type)


def steps_follow_their_operands(program: KernelGraph) -> None:
    """Kernels are in a total order in which every value is stored once, before it is loaded: no cycle between kernels."""
    ready = {v.name for v in program.values.values() if v.role in ("input", "constant", "packed")}
    for k, step in enumerate(program.steps):
        for name in step.reads():
            if name not in ready:
                _fail("steps_follow_their_operands", f"step {k} ({step.kernel.name})", f"%{name} read", "a value stored by an earlier step")
        for name in step.writes():
            if name in ready:
                _fail("steps_follow_their_operands", f"step {k} ({step.kernel.name})", f"%{name} stored again", "each value stored once")
            ready.add(name)
    for name in program.outputs:
        if name not in ready:
            _fail("steps_follow_their_operands", "outputs", f"%{name} never stored", "a stored value")


def packings_fit(program: KernelGraph) -> None:
    """A packed value is a whole constant matrix in another order, and only contractions with panels of its width read it, as b."""
    for value in program.values.values():
        if (value.role == "packed") != (value.packing is not None):
            _fail("packings_fit", f"%{value.name}", f"role {value.role}", "a packing on packed values only")
    for value in (v for v in program.values.values() if v.packing):
        packing, source = value.packing, program.values.get(value.packing.of)
        size = packing.depth * packing.columns
        if source is None or source.role != "constant" or packing.panels < 1 or not source.type.size == value.type.size == size \
                or source.type.dtype is not value.type.dtype:
            _fail("packings_fit", f"%{value.name}", packing, "a constant of as many elements, and panels of at least 1")
    for k, step in enumerate(program.steps):
        params = [p.name for p in step.kernel.params if p.role != "scratch"]
        packed = {p: program.values[a].packing for p, a in zip(params, step.args) if program.values[a].packing}
        for stage in step.kernel.stages:
            shape = (stage.k[1], stage.n[1], stage.panels) if isinstance(stage, Dot) else None
            inside = {e.attr[0] for e in ex.topological([stage.b]) if e.op == "load"} if shape and stage.panels else set()
            if shape and stage.panels and not all(p in packed and shape == (packed[p].depth, packed[p].columns, packed[p].panels) for p in inside):
                _fail("packings_fit", f"step {k} ({step.kernel.name})", f"panels of {stage.panels}", "b packed like that")
            apart = [value for value, _, _ in _parts(stage) if not (inside and value is stage.b)]
            others = {e.attr[0] for e in ex.topological(apart) if e.op == "load"}
            if others & set(packed):
                _fail("packings_fit", f"step {k} ({step.kernel.name})", sorted(others & set(packed)), "packed values read as b only")


def verify_program(program: KernelGraph, stage: str = "") -> KernelGraph:
    """Check the partition and each distinct kernel. VerifyError names the stage, the invariant and the step or kernel."""
    try:
        arguments_fit(program)
        packings_fit(program)
        steps_follow_their_operands(program)
        for kernel in program.kernels():
            verify_kernel(kernel)
    except VerifyError as error:
        raise VerifyError(error.invariant, error.where, error.found, error.expected, stage) from None
    return program
