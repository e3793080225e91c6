"""What `MLC_CHECK` does after a pass: verify; at level 2 also print -> parse -> compare, and interpret before and after.

Every failure is a VerifyError that names the pass. Interpretation is in own dtype, must agree bit for bit (any NaN equals
any NaN), and is left out, with a note in the log, for graphs above MOST_WORK.
"""

from __future__ import annotations

import math

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import Dim, TensorType
from mlc.core.errors import MlcError, VerifyError
from mlc.core.literal import Literal
from mlc.graph.graph import Graph, GraphRewriter
from mlc.graph.interpreter import evaluate
from mlc.graph.text import parse_graph, print_graph
from mlc.graph.verify import verify
from mlc.ops.base import CONTRACTION
from mlc.passes.manager import PassResult

# Elements computed (a contraction counts its products) above which a graph is not interpreted.
MOST_WORK = 1 << 21


def check_pass(before: Graph, text: str, result: PassResult, level: int) -> None:
    """Check one pass's result against its input, whose `text` was taken before the pass ran (at level 2; else empty).

    Raises VerifyError naming the pass.
    """
    stage = f"pass {result.name}"
    after = result.graph
    verify(after, stage)
    signature_is_kept(before, after, stage)
    result_says_whether_it_changed(before, after, result.changed, stage)
    if level >= 2:
        input_is_not_mutated(before, text, stage)
        text_round_trips(after, stage)
        if result.changed:
            note = meaning_is_kept(with_values(before, result.given), after, stage)
            if note:
                result.notes.append(note)


def signature_is_kept(before: Graph, after: Graph, stage: str) -> None:
    """Parameters (names, order, types) and output types are the caller's."""
    for what in ("param_names", "input_types", "output_types"):
        found, expected = getattr(after, what)(), getattr(before, what)()
        if found != expected:
            raise VerifyError("signature_is_kept", f"graph @{after.name}", f"{what} {found}", expected, stage)


def result_says_whether_it_changed(before: Graph, after: Graph, changed: bool, stage: str) -> None:
    """`changed` is false exactly when the pass returned its input."""
    if changed == (after is before):
        raise VerifyError("result_says_whether_it_changed", f"graph @{after.name}", f"changed={changed}",
                          "the input itself exactly when nothing changed", stage)


def text_round_trips(graph: Graph, stage: str) -> None:
    """parse(print(g)) == g."""
    text = print_graph(graph)
    try:
        again = print_graph(parse_graph(text, graph.constants()))
    except MlcError as error:
        raise VerifyError("text_round_trips", f"graph @{graph.name}", str(error), "text that parses", stage) from None
    if again != text:
        lines = enumerate(zip([*again.splitlines(), ""], [*text.splitlines(), ""]), 1)
        line, (found, expected) = next((n, pair) for n, pair in lines if pair[0] != pair[1])
        raise VerifyError("text_round_trips", f"graph @{graph.name} line {line}", found, expected, stage)


def input_is_not_mutated(before: Graph, text: str, stage: str) -> None:
    """Nodes are shared between graphs, so a pass must leave its input's text as it was."""
    if print_graph(before) != text:
        raise VerifyError("input_is_not_mutated", f"graph @{before.name}", "another text than before the pass", "the same", stage)


def work(graph: Graph) -> float:
    """Elements that interpretation computes; infinite for symbolic shapes."""
    total = 0.0
    todo = [graph]
    while todo:
        current = todo.pop()
        for node in current.nodes:
            todo.extend(node.regions)
            for type in node.type if isinstance(node.type, tuple) else (node.type,):
                if any(isinstance(dim, Dim) for dim in type.shape):
                    return math.inf
                total += math.prod(type.shape)
            if node.op.fusion == CONTRACTION:
                total += math.prod(node.type.shape) * math.prod(current.nodes[node.inputs[0]].type.shape[a] for a in node.attrs["contract"][0])
    return total


def random_input(rng: np.random.Generator, type: TensorType, special: bool) -> np.ndarray:
    """A small random array: mild values, or with `special` also zeros of both signs, subnormals, infinities, NaN and integer limits."""
    dtype, shape = type.dtype, type.shape
    if dtype is dt.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_int:
        value = rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype.numpy)
        edges = np.array([dtype.min, dtype.max, 0, 1], dtype.numpy)
    else:
        value = rng.standard_normal(shape).astype(dtype.numpy)
        edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0 ** dt.MIN_EXPONENT[dtype] / 4, 1.0], np.float64).astype(dtype.numpy)
    if not special:
        return value
    return np.where(rng.random(shape) < 0.3, edges[rng.integers(0, len(edges), shape)], value).astype(dtype.numpy)


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elementwise: equal bits, or both NaN."""
    if a.dtype.kind in "biu":
        return a == b
    integer = dt.uint_of(dt.as_dtype(a.dtype)).numpy
    with np.errstate(all="ignore"):
        return (np.ascontiguousarray(a).view(integer) == np.ascontiguousarray(b).view(integer)) | (np.isnan(a) & np.isnan(b))


def with_values(graph: Graph, given: dict[int, Literal]) -> Graph:
    """The graph with some nodes replaced by constants."""
    if not given:
        return graph
    rewriter = GraphRewriter(graph)
    for i, node in enumerate(graph.nodes):
        if i in given:
            rewriter.map[i] = rewriter.new.constant(given[i], node.type)
        else:
            rewriter.copy(i)
    return rewriter.finish()


def meaning_is_kept(before: Graph, after: Graph, stage: str) -> str:
    """Both graphs, interpreted on the same random inputs, give the same bits. Returns a note if that was not tried."""
    amount = max(work(before), work(after))
    if amount == math.inf:
        return "not interpreted: a shape is symbolic"
    if amount > MOST_WORK:
        return f"not interpreted: {amount:.2g} elements, at most {MOST_WORK} are checked"
    for special in (False, True):
        rng = np.random.default_rng(7)
        args = [random_input(rng, t, special) for t in before.input_types()]
        with np.errstate(all="ignore"):
            expected, found = evaluate(before, args), evaluate(after, args)
        for k, (want, got) in enumerate(zip(expected, found)):
            equal = same_bits(np.asarray(want), np.asarray(got))
            if not equal.all():
                at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(equal))[0]) if want.ndim else ()
                raise VerifyError("meaning_is_kept", f"graph @{after.name} output {k} at {list(at)}", got[at], want[at], stage)
    return ""
