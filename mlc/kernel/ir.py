"""Fused kernels: stages of expressions, and the graph of kernels that a program becomes.

A kernel runs `rows` (outer axes, in any order), and for each row its stages one after another. A stage is a loop nest over
`axes` (kept) and `over` (reduced away); at every point it evaluates expressions whose leaves are `const`, `index` (an axis),
`load` (attr: (value name, Affine over axes)) and `var` (a per-row scalar bound by an earlier stage, or a reduction's result).

    for i:64   m = max j:512 of x[512*i + j]                      a stage with over=(j), bound per row
    for i:64 j:512   e[j] = exp(x[512*i + j] - m)                 a stage with axes=(j), a store into row scratch

Every value is a flat, C-contiguous buffer. Scratch values are private to a row. The order in which a reduction combines is
written in the schedule (`mlc.kernel.schedule`) and depends on shape, dtype and target only.
"""

from __future__ import annotations

from mlc.core.affine import Affine
from mlc.core.dataclass import dataclass, field
from mlc.core.dims import TensorType
from mlc.core.dtype import DType
from mlc.core.expr import Expr, var

Axis = tuple[str, int]


@dataclass(frozen=True)
class Param:
    """A buffer the kernel is given: role "in", "out", or "scratch" (private to a row, type = its shape per row)."""

    name: str
    type: TensorType
    role: str


@dataclass(frozen=True)
class Put:
    """target[index] = value, at every point of the stage (or, in `finish`, at every kept point)."""

    target: str
    index: Affine
    value: Expr


@dataclass(frozen=True)
class Bind:
    """A per-row scalar: name = value; later stages read it as var(name). Only in stages without kept axes."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Reduce:
    """Accumulators `names` (with their dtypes and identities), fed with `values` at every point, combined by `combine`:
    expressions over var("a.k") and var("b.k"). After the `over` loop, var(name) is the total."""

    names: tuple[str, ...]
    dtypes: tuple[DType, ...]
    identity: tuple[Expr, ...]
    values: tuple[Expr, ...]
    combine: tuple[Expr, ...]


@dataclass(frozen=True)
class Stage:
    """A loop nest over `axes` + `over`. Without reductions, `over` is empty and `puts` are all it does."""

    axes: tuple[Axis, ...]
    over: tuple[Axis, ...] = ()
    reduces: tuple[Reduce, ...] = ()
    puts: tuple[Put, ...] = ()
    finish: tuple[Put | Bind, ...] = ()


@dataclass(frozen=True)
class Dot:
    """A contraction: acc[m, n] = sum over k of a(m, k) * b(k, n), then `puts` at every (m, n), where var(name) is acc[m, n].

    `m`, `n`, `k` are single axes (frontends of this level collapse them); batch axes are rows.
    Each run of `tiling.dot_chunk` steps of k is summed from zero, one step after the other, and the sums are added in order.
    `panels` > 0: b loads one buffer, at n_extent * k + n, whose elements are stored panel by panel of so many columns (the last has what
    is left): element (k, n) of the panel from p on, w wide, lies at p * k_extent + k * w + n - p.
    """

    name: str
    dtype: DType
    m: Axis
    n: Axis
    k: Axis
    a: Expr
    b: Expr
    puts: tuple[Put, ...]
    panels: int = 0

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.m, self.n, self.k


@dataclass(frozen=True)
class Attend:
    """Softmax-weighted sums that never hold all scores: out[m, c] = sum over n of w[m, n] * value(n, c) / sum over n of w[m, n], where

        s[m, n] = score, in which var(name + ".s") is the sum over k of query(m, k) * key(n, k)
        w[m, n] = weight, in which var(name + ".x") is s[m, n] - max over n of s[m, n]     (the exponential)

    then `puts` at every (m, c), where var(name) is out[m, c]. `m`, `n`, `k`, `c` are single axes; batch axes are rows. `value` is
    contiguous in c. It runs block by block of keys with a running maximum and sum; the order is in `schedule.AttendSchedule`.
    """

    name: str
    dtype: DType
    m: Axis
    n: Axis
    k: Axis
    c: Axis
    query: Expr
    key: Expr
    score: Expr
    weight: Expr
    value: Expr
    puts: tuple[Put, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.m, self.n, self.k, self.c

    @property
    def dot(self) -> Expr:
        """The leaf of `score` that stands for the product of a query and a key."""
        return var(f"{self.name}.s", self.dtype)

    @property
    def distance(self) -> Expr:
        """The leaf of `weight` that stands for a score less the largest."""
        return var(f"{self.name}.x", self.dtype)


@dataclass(frozen=True)
class Kernel:
    """Hash-consed before scheduling: equal kernels are lowered and compiled once. Parameter names are canonical."""

    name: str
    params: tuple[Param, ...]
    rows: tuple[Axis, ...]
    stages: tuple[Stage | Dot | Attend, ...]
    may_alias: frozenset[tuple[str, str]] = frozenset()

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:  # tables of kernels ask for it once a step
            found = self.__dict__["_hash"] = hash((self.name, self.params, self.rows, self.stages, self.may_alias))
        return found


@dataclass(frozen=True)
class Packing:
    """How a packed value is made of the constant `of`: a matrix of depth x columns (columns x depth if `transposed`), in panels of so many
    columns, as `Dot.panels` has it."""

    of: str
    depth: int
    columns: int
    panels: int
    transposed: bool = False


@dataclass(frozen=True)
class Value:
    """A buffer of the program. role: "input", "output", "constant", "temp", "packed"; `source` is the graph node it holds."""

    name: str
    type: TensorType
    role: str
    source: int
    packing: Packing | None = None


@dataclass(frozen=True)
class Step:
    """One kernel call: `args` name the program values bound to the kernel's in/out params, in order (scratch is not bound here)."""

    kernel: Kernel
    args: tuple[str, ...]

    def reads(self) -> tuple[str, ...]:
        return tuple(a for a, p in zip(self.args, self.kernel.params) if p.role == "in")

    def writes(self) -> tuple[str, ...]:
        return tuple(a for a, p in zip(self.args, self.kernel.params) if p.role == "out")


@dataclass
class KernelGraph:
    """The partitioned program: values, steps in order, the names of inputs and outputs, and why edges were not fused."""

    name: str
    values: dict[str, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def kernels(self) -> list[Kernel]:
        """The distinct kernels, in order of first use."""
        return list(dict.fromkeys(step.kernel for step in self.steps))

    def residents(self) -> list[str]:
        """The constants that steps read, then the packed values: what stays in memory between calls."""
        read = {name for step in self.steps for name in step.reads()}
        return [c for c in self.constants if c in read] + [v.name for v in self.values.values() if v.role == "packed"]


def extents(axes: tuple[Axis, ...]) -> dict[str, int]:
    return dict(axes)
