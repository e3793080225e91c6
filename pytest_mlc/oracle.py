"""The oracle: mlc's answer, JAX's answer and the referee's bound, judged element by element.

The referee decides: mlc outside the bound derived for mlc is wrong, whatever JAX says. JAX outside the bound derived for
JAX while mlc is inside is a finding about JAX. Elements of which the referee knows nothing are unjudged; with more than a
fifth of them the comparison is vacuous. A graph that touches subnormals is judged without JAX, which flushes them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dtype import DType
from mlc.graph.analysis import live_nodes
from mlc.graph.graph import Graph
from mlc.graph.interpreter import wide_dtype
from pytest_mlc import models
from pytest_mlc.bounds import Value, analyse, region_values
from pytest_mlc.models import ErrorModel, min_normal

VACUOUS_FRACTION = 0.2


@dataclass(frozen=True)
class Worst:
    """The element that is farthest outside (or nearest to) its bound. `float64` is the referee's value."""

    output: int
    index: tuple[int, ...]
    mlc: object
    jax: object
    float64: object
    bound: float

    def __str__(self) -> str:
        where = f"out{self.output if self.output else ''}[{','.join(map(str, self.index))}]"
        jax = "" if self.jax is None else f"jax {_show(self.jax)}, "
        return f"mlc {_show(self.mlc)}, {jax}float64 {_show(self.float64)} at {where}, bound {self.bound:.2g}"

    @property
    def error(self) -> float:
        """|mlc - float64|; inf where only one of them is NaN or they are different infinities."""
        with np.errstate(all="ignore"):
            apart = abs(float(self.mlc) - float(self.float64))
        return apart if apart == apart else float("inf")


def _show(value: object) -> str:
    return str(value) if isinstance(value, (bool, int, np.integer, np.bool_)) else f"{float(value):.6g}"


@dataclass(frozen=True)
class Verdict:
    """What was found. kind: "ok", "wrong" (mlc), "vacuous", or "finding" (about JAX, mlc being right)."""

    kind: str
    worst: Worst | None = None
    unjudged: float = 0.0
    coverage: frozenset[tuple[str, str]] = frozenset()
    reason: str = ""
    outputs: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind == "wrong"


@dataclass
class _Compared:
    """One output against one bound: where it is outside, where nothing is known, and how many bounds it is away."""

    wrong: np.ndarray
    unjudged: np.ndarray
    ratio: np.ndarray
    reason: str = ""


@dataclass
class Referee:
    """The values of every node for mlc's error model, and for JAX's once they are needed."""

    graph: Graph
    args: Sequence[np.ndarray]
    values: list = field(default_factory=list)
    _jax: list | None = None

    @classmethod
    def of(cls, graph: Graph, args: Sequence[np.ndarray], model: ErrorModel = models.MLC) -> Referee:
        return cls(graph, args, analyse(graph, args, model))

    def outputs(self) -> list[Value]:
        return [self.values[o] for o in self.graph.outputs]

    def jax_outputs(self) -> list[Value]:
        if self._jax is None:
            self._jax = analyse(self.graph, self.args, models.JAX)
        return [self._jax[o] for o in self.graph.outputs]

    @functools.cached_property
    @np.errstate(all="ignore")
    def touches_subnormals(self) -> bool:
        """Whether an input or intermediate that reaches an output, also one inside a region, is subnormal in a dtype in which JAX flushes."""
        todo = [(self.graph, self.values)]
        while todo:
            graph, values = todo.pop()
            for node, value, alive in zip(graph.nodes, values, live_nodes(graph)):
                if alive and _has_subnormal(value):
                    return True
                if alive and node.regions:
                    todo.append((node.regions[0], region_values(node.regions[0], [values[k] for k in node.inputs], models.MLC)))
        return False


def _has_subnormal(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_subnormal, value))
    if not value.dtype.is_float or value.dtype is dt.f16:
        return False
    array = value.own if value.exact else value.mid
    if not array.size:
        return False
    size = np.abs(np.asarray(array, wide_dtype(value.dtype)))
    return bool(((size < min_normal(value.dtype)) & (size > 0)).any())


def judge(graph: Graph, args: Sequence[np.ndarray], mlc_outputs: Sequence[np.ndarray],
          jax_outputs: Sequence[np.ndarray] | None = None, referee: Referee | None = None) -> Verdict:
    """Judge mlc's outputs for these arguments (both in graph order) against the referee, and JAX's if they are given.

    `referee` may carry an analysis over from an earlier judgement of the same graph and arguments.
    """
    referee = referee or Referee.of(graph, args)
    with np.errstate(all="ignore"):
        return _judge(graph, mlc_outputs, jax_outputs, referee)


def _judge(graph: Graph, mlc_outputs, jax_outputs, referee: Referee) -> Verdict:
    values, types = referee.outputs(), graph.output_types()
    if len(mlc_outputs) != len(values):
        return Verdict("wrong", reason=f"{len(mlc_outputs)} outputs, the graph has {len(values)}", outputs=tuple(range(len(values))))
    if jax_outputs is not None and referee.touches_subnormals:
        jax_outputs = None
    compared = [compare(v, t.dtype, t.shape, np.asarray(o), models.MLC) for v, t, o in zip(values, types, mlc_outputs)]
    worst = _worst(compared, values, mlc_outputs, jax_outputs)
    unjudged = _fraction([c.unjudged for c in compared])
    coverage = _coverage(graph, compared)
    bad = tuple(k for k, c in enumerate(compared) if c.wrong.any())
    if bad:
        return Verdict("wrong", worst, unjudged, coverage, compared[bad[0]].reason, bad)
    if jax_outputs is not None:
        found = _judge_jax(types, jax_outputs, mlc_outputs, referee, compared)
        if found is not None:
            return Verdict("finding", found[0], unjudged, coverage, found[1], (found[0].output,) if found[0] else ())
    return Verdict("vacuous" if unjudged > VACUOUS_FRACTION else "ok", worst, unjudged, coverage)


def _judge_jax(types, jax_outputs, mlc_outputs, referee: Referee, mlc: list[_Compared]) -> tuple[Worst | None, str] | None:
    """The worst element of JAX outside JAX's own bound, or None. The cheap test comes first: inside mlc's bound is inside."""
    def check(values):
        return [compare(v, t.dtype, t.shape, np.asarray(o), models.JAX) for v, t, o in zip(values, types, jax_outputs)]
    if not any(c.wrong.any() for c in check(referee.outputs())):
        return None
    values = referee.jax_outputs()
    compared = check(values)
    if not any(c.wrong.any() for c in compared):
        return None
    worst = _worst(compared, values, mlc_outputs, jax_outputs)
    return worst, next((c.reason for c in compared if c.reason), "JAX is outside its own bound")


def compare(value: Value, dtype: DType, shape: Sequence[int], got: np.ndarray, model: ErrorModel) -> _Compared:
    """One array against the referee's value. Exact values must match in every bit, NaNs apart; JAX's zeros may have any sign."""
    if got.dtype != dtype.numpy or got.shape != tuple(shape):
        everywhere = np.ones(tuple(shape) or (), bool)
        found = f"the result is {got.dtype}{list(got.shape)}, the graph says {dtype}{list(shape)}"
        return _Compared(everywhere if everywhere.size else np.ones(1, bool), np.zeros(everywhere.shape, bool),
                         np.full(everywhere.shape, np.inf), found)
    if value.exact:
        own = value.own
        same = got == own
        if dtype.is_float:
            wide, wide_own = got.astype(wide_dtype(dtype)), value.mid
            same = (wide == wide_own) | (np.isnan(wide) & np.isnan(wide_own))
            if not model.flush:
                same &= (wide != 0) | (np.signbit(wide) == np.signbit(wide_own))
        wrong = np.asarray(~same)
        return _Compared(wrong, np.zeros(wrong.shape, bool), np.where(wrong, np.inf, 0.0))
    unjudged = np.isinf(value.error)
    if not dtype.is_float:
        wrong = (got != value.mid) & ~unjudged
        return _Compared(wrong, unjudged, np.where(wrong, np.inf, 0.0))
    wide = got.astype(wide_dtype(dtype))
    apart = np.abs(wide - value.mid)
    same = (wide == value.mid) | (np.isnan(wide) & np.isnan(value.mid))
    apart = np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))
    wrong = (apart > value.error) & ~unjudged
    ratio = np.where(apart == 0, 0, apart / np.maximum(value.error, np.finfo(wide.dtype).tiny))
    loose = unjudged | ((value.error > np.abs(value.mid)) & (value.error > min_normal(dtype)))
    return _Compared(np.asarray(wrong), np.asarray(loose), np.where(unjudged, 0, ratio).astype(np.float64))


def _fraction(masks: Sequence[np.ndarray]) -> float:
    total = sum(m.size for m in masks)
    return sum(int(m.sum()) for m in masks) / total if total else 0.0


def _worst(compared: list[_Compared], values: list[Value], mlc_outputs, jax_outputs) -> Worst | None:
    """The element with the largest error in units of its bound; among the wrong ones if there are any."""
    best: tuple | None = None
    for k, c in enumerate(compared):
        if not c.ratio.size or c.reason:
            continue
        score = np.where(c.wrong, np.inf, c.ratio) if c.wrong.any() else c.ratio
        if c.wrong.any():
            score = np.where(c.wrong, c.ratio, -1)
        at = int(np.argmax(score))
        key = (bool(c.wrong.any()), float(score.reshape(-1)[at]))
        if best is None or key > best[0]:
            best = (key, k, np.unravel_index(at, c.ratio.shape))
    if best is None:
        return None
    _, k, index = best
    index = tuple(int(i) for i in index)

    def element(array):
        array = np.asarray(array)
        return array[index] if array.ndim == len(index) and all(i < n for i, n in zip(index, array.shape)) else None

    value = values[k]
    jax = None if jax_outputs is None else element(jax_outputs[k])
    return Worst(k, index, element(mlc_outputs[k]), jax, value.mid[index], float(value.error[index]))


def _coverage(graph: Graph, compared: list[_Compared]) -> frozenset[tuple[str, str]]:
    """(op, dtype) of every node whose value reaches an output of which at least four fifths of the elements were judged."""
    live = [False] * len(graph)
    for output, c in zip(graph.outputs, compared):
        if c.unjudged.size and c.unjudged.mean() <= VACUOUS_FRACTION:
            live[output] = True
    found = set()
    for i in range(len(graph) - 1, -1, -1):
        node = graph.nodes[i]
        if not live[i]:
            continue
        for operand in node.inputs:
            live[operand] = True
        found.update(_names(graph, i))
    return frozenset(found)


def _names(graph: Graph, i: int) -> list[tuple[str, str]]:
    node = graph.nodes[i]
    if node.op.name == "parameter":
        return []
    if node.regions:
        inner = node.regions[0]
        return [(node.op.name, "-")] + [pair for k in range(len(inner)) for pair in _names(inner, k)]
    operands = [graph.nodes[k].type for k in node.inputs]
    # The dtype an op is exercised over is that of its last operand (select's first is bool), or its own.
    dtype = operands[-1].dtype if operands and not isinstance(operands[-1], tuple) else getattr(node.type, "dtype", None)
    return [(node.op.name, dtype.name if dtype is not None else "-")]
