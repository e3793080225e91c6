"""Seeded faults: each function breaks one function of the compiler, in this process and until it ends.

A campaign gets one by `MLC_FUZZ_PRELOAD=faults:<name>`: its worker then compiles with a broken mlc, while the harness and
the referee know nothing of it. A fault that finds no place to sit (the code was renamed) raises, so none is silently void.
Those held out were written after the fuzzer was finished, and nothing in it was changed for them before they were hunted: they are
scored apart. What the first of them (1) showed of the fuzzer has since been mended; the later ones (2) came after that.
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
    held_out: int = 0

    @property
    def breaks(self) -> str:
        """What is wrong, in a line."""
        return self.install.__doc__


FAULTS: dict[str, Fault] = {}


def fault(*guilty: str, held_out: int = 0) -> Callable:
    """Enter a fault under its function's name."""
    def enter(install: Callable[[], None]) -> Callable[[], None]:
        FAULTS[install.__name__] = Fault(install.__name__, guilty, install, held_out)
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


# --------------------------------------------------------------------------- held out: passes
@fault("pass inline", held_out=1)
def inlined_arguments_reversed() -> None:
    """The arguments of an inlined call are bound to its parameters from the last to the first."""
    from mlc.passes import inline
    right = inline._enter
    put_in_place(right, lambda frame, call, region, inputs: right(frame, call, region, tuple(reversed(inputs))))


@fault("pass simplify", held_out=1)
def conversions_merge_through_anything() -> None:
    """Two conversions in a row become one, whatever the dtype between them loses."""
    from mlc.passes import rules_algebra
    put_in_place(rules_algebra.embeds, lambda source, target: True)


# --------------------------------------------------------------------------- held out: kernels and loops
@fault("kernels", held_out=1)
def transposed_reads_fuse() -> None:
    """Fusion looks at how far a read strays within a row, but not at whether it goes from row to row with its reader."""
    from mlc.passes import fuse

    def row_aligned(index, reader, producer, rows):
        for name, _ in reader.axes[:rows]:
            index = index.without(name)
        low, high = index.bounds(dict(reader.axes))
        return 0 <= low and high < max(int(np.prod(producer[rows:], dtype=np.int64)), 1)
    put_in_place(fuse.row_aligned, row_aligned)


@fault("loops", held_out=1)
def chunk_remainder_forgotten() -> None:
    """A reduction that is summed in chunks leaves out what is left after the last full one."""
    from mlc.loop import lower
    right = lower._Reducer._span

    def span(self, suffix, name, extent, step, rest, at, start):
        found = right(self, suffix, name, extent, step, rest, at, start)
        chunked = lower.chunk_steps(-(-extent // step), lower.additions([self._steps(axis) for axis in rest]))
        return found[:1] if chunked else found
    lower._Reducer._span = span


@fault("loops", held_out=1)
def last_tile_a_row_early() -> None:
    """The tile with the rows that are left over starts a row too early, so the last row is never written."""
    from mlc.core.affine import Affine
    from mlc.loop.lower_dot import DotLoops
    right = DotLoops._tile

    def tile(self, rows, columns, *way):
        start, size = rows
        early = size < self.plan.m and start.offset and not start.terms
        return right(self, (start + Affine(-1), size) if early else rows, columns, *way)
    DotLoops._tile = tile


@fault("kernels", held_out=1)
def exp_half_is_off() -> None:
    """A coefficient of exp's polynomial in f32 is off, in whichever formula the target has, which makes some 50 ulp."""
    from mlc.core.dtype import f32
    from mlc.ops import vecmath, vecmath_tables
    vecmath.EXP_NEAR = (vecmath.EXP_NEAR[0], vecmath.EXP_NEAR[1] * (1 + 5.5e-4))
    *rest, half = vecmath_tables.EXP[f32]
    assert abs(half - 0.5) < 1e-3
    vecmath_tables.EXP[f32] = (*rest, half * (1 + 2.4e-5))


@fault("kernels", held_out=1)
def log_without_subnormals() -> None:
    """Logarithms read the exponent of a subnormal as if it were that of a normal number."""
    from mlc.ops import vecmath
    right = vecmath._split
    put_in_place(right, lambda x, normal=False: right(x, normal=True))


# --------------------------------------------------------------------------- held out: memory and runtime
@fault("memory", held_out=1)
def outputs_of_one_type_swapped() -> None:
    """Of several outputs with one shape and dtype, the first two are written to each other's place."""
    from mlc.plan import ProgramPlan
    right = ProgramPlan.__init__

    def init(self, program, spilled):
        right(self, program, spilled)
        seen = {}
        for name in program.outputs:
            other = seen.setdefault(program.values[name].type, name)
            if other != name:
                self.slots[name], self.slots[other] = self.slots[other], self.slots[name]
                break
    ProgramPlan.__init__ = init


@fault("machine code", "runtime", held_out=1)
def strided_arguments_read_as_contiguous() -> None:
    """An argument that is not contiguous is handed to the code without a copy."""
    from mlc.runtime import executable
    right = executable._prepare

    def prepare(value, spec, dtype):
        array = right(value, spec, dtype)
        return value if isinstance(value, np.ndarray) and value.flags.aligned and value.dtype == dtype else array
    put_in_place(right, prepare)


# --------------------------------------------------------------------------- held out: machine code
@fault("machine code", held_out=1)
def unsigned_compared_as_signed() -> None:
    """Comparisons of unsigned integers look at the sign bit."""
    from mlc.codegen import instructions
    for name in ("lt", "le", "gt", "ge"):
        assert name in instructions._INT
        instructions._INT[name] = instructions._plain(f"icmp s{name}")


@fault("machine code", held_out=1)
def saturation_one_short() -> None:
    """Conversion of floats to 8 and 16 bit integers clamps to one less than the largest."""
    from mlc.codegen import instructions
    right = instructions._saturate

    def saturate(at, source, dtype, x):
        if dtype.bits <= 16:
            high = at.const(instructions._float_bits(dtype.max - 1, source), source)
            x = at.select(at(f"fcmp ogt {at.type(source)} {x}, {high}"), source, high, x)
        return right(at, source, dtype, x)
    put_in_place(right, saturate)


@fault("machine code", held_out=1)
def reversed_tail_forward() -> None:
    """The last, partial block of a vector load that runs backwards is not reversed."""
    from mlc.codegen import memory
    right = memory._vector_load

    def vector_load(b, level, scalar, pointer, grain, lanes, active, stride):
        return right(b, level, scalar, pointer, grain, lanes, active, abs(stride) if active < lanes else stride)
    put_in_place(right, vector_load)


@fault("machine code", held_out=1)
def bf16_truncates() -> None:
    """Rounding to bf16 cuts the lower half off."""
    from mlc.codegen import halves
    from mlc.codegen.builder import Value, type_text, vector_text
    from mlc.core.dtype import bf16, f32
    right = halves.rounded

    def rounded(b, value, dtype):
        if dtype is not bf16:
            return right(b, value, dtype)
        lanes, level = value.lanes, value.level
        raw = b.emit(level, f"bitcast {type_text(f32, lanes)} {value.text} to {vector_text('i32', lanes)}")
        return Value("", dtype, lanes, level, rounded=raw)
    put_in_place(right, rounded)


# --------------------------------------------------------------------------- held out later: passes
@fault("pass cse", held_out=2)
def cse_sorts_all_operands() -> None:
    """CSE takes x - y and y - x for the same, and so on for every op."""
    from mlc.passes import cse
    right = cse._key
    put_in_place(right, lambda node, inputs, texts: right(node, tuple(sorted(inputs)), texts))


@fault("pass simplify", held_out=2)
def division_by_any_constant_multiplies() -> None:
    """x / c becomes x * (1 / c) for every constant c, rounded twice."""
    from mlc.core.literal import Literal
    from mlc.passes import rules_algebra as r
    from mlc.passes.simplify import RULES

    def reciprocal(match):
        divisor = match.node("c")
        value = float(divisor.attrs["value"].array) if divisor.is_splat and divisor.type.dtype.is_float else 0.0
        if value == 0 or not np.isfinite(value):
            return None
        with np.errstate(all="ignore"):
            inverse = np.array(1.0 / value, divisor.type.dtype.numpy)
        return r.mul(match["x"], r.term("constant")(value=Literal(inverse), type=divisor.type))
    (rule,) = (rule for rule in RULES.rules if rule.name == "division-by-power-of-two")
    object.__setattr__(rule, "to", reciprocal)


# --------------------------------------------------------------------------- held out later: what kernels are made of
@fault("kernels", held_out=2)
def and_of_i16_starts_positive() -> None:
    """The fold of reduce_and starts from the largest number in i16, which lacks the sign bit."""
    from mlc.core import dtype as dt
    from mlc.core import expr as ex
    from mlc.ops.base import REGISTRY
    op = REGISTRY["reduce_and"]
    right = op.reduce.identity
    object.__setattr__(op, "reduce", replace(op.reduce, identity=lambda d: (ex.const(d.max, d),) if d is dt.i16 else right(d)))


@fault("kernels", held_out=2)
def interior_padding_dropped() -> None:
    """Kernels write the elements of a pad next to each other, whatever goes between them."""
    from mlc.ops.base import REGISTRY
    op = REGISTRY["pad"]
    right = op.pieces
    object.__setattr__(op, "pieces", lambda types, attrs, out: [replace(p, stride=(1,) * out.rank) for p in right(types, attrs, out)])


@fault("kernels", held_out=2)
def a_far_coefficient_of_erf_is_off() -> None:
    """A coefficient of erf's polynomial in f64, for arguments beyond 1, is off by one part in ten million."""
    from mlc.core.dtype import f64
    from mlc.ops import vecmath_tables
    *head, linear, last = vecmath_tables.ERF_FAR[f64]
    vecmath_tables.ERF_FAR[f64] = (*head, linear * (1 + 1e-7), last)


# --------------------------------------------------------------------------- held out later: cache, runtime, machine code
@fault("cache", held_out=2)
def cache_key_without_splats() -> None:
    """The persistent cache's key leaves out the numbers that stand in the graph."""
    from mlc.cache import store
    right = store.cache_key
    put_in_place(right, lambda graph, **rest: right(re.sub(r"(?<=[ ,=])-?(\d+\.\d+|0x[0-9a-f.]+p[-+]\d+)\b", "number", graph), **rest))


@fault("machine code", held_out=2)
def strided_loads_too_close() -> None:
    """Elements that lie three or more apart are loaded from one place too near, after the first."""
    from mlc.codegen import memory
    right = memory._strided_load

    def strided_load(b, level, scalar, pointer, size, lanes, active, stride):
        return right(b, level, scalar, pointer, size, lanes, active, stride - 1 if stride >= 3 else stride)
    put_in_place(right, strided_load)


@fault("machine code", held_out=2)
def narrowing_saturates() -> None:
    """Signed integers that do not fit a narrower type are clamped to its largest instead of wrapped."""
    from mlc.codegen import instructions
    right = instructions._convert_text

    def convert_text(at, source, dtype, x):
        if source.kind == dtype.kind == "i" and dtype.bits < source.bits:
            high = at.const(dtype.max, source)
            x = at.select(at(f"icmp sgt {at.type(source)} {x}, {high}"), source, high, x)
        return right(at, source, dtype, x)
    put_in_place(right, convert_text)
