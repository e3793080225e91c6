"""Constant folding, bounded: nodes whose operands are all constants become constants, if NumPy gives the very bits
that compiled code gives.

Folded: movement, integers and bools, float ops that round correctly (no `ulp` in their definition), and transcendentals,
by the interpreter of their own scalar expressions, which has the bits of machine code. Values without elements, and
reductions and contractions over nothing, whatever their operands. Other float reductions and contractions stay.
Splats fold to splats for free; other results may add at most EXTRA_BYTES to the program in all. A broadcast of a constant stays
one, for kernels read the constant through it; what is computed of such broadcasts folds, if anything else goes in. Runs after
simplify, which makes splats of broadcast constants, and before CSE, which then merges equal results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mlc.core import expr as ex
from mlc.core import scalar_eval
from mlc.core.dims import Dim, TensorType
from mlc.core.dtype import as_dtype
from mlc.core.literal import Literal
from mlc.graph.graph import Graph, GraphRewriter, Node
from mlc.graph.interpreter import apply_node
from mlc.ops.base import CONTRACTION, ELEMENTWISE, EXACT, INJECTIVE, LEAF, REDUCTION
from mlc.passes.manager import Pass, PassContext, PassResult

# What folding may add to the program's constants in one compilation, in bytes; and the most elements it looks at for one node.
EXTRA_BYTES = 1 << 16
MOST_ELEMENTS = 1 << 17


def same_as_compiled(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether the NumPy interpreter gives the bits of compiled code: nothing inexact, or one correctly rounded result."""
    op = node.op
    if op.has(EXACT):
        return True
    floats = node.type.dtype.is_float or any(nodes[i].type.dtype.is_float for i in node.inputs)
    return not floats or (op.fusion == ELEMENTWISE and op.ulp == {})


def flushes_subnormals() -> bool:
    """Whether this process computes with subnormals flushed (a library may have switched that on): NumPy would fold wrongly."""
    tiny = np.array([1e-40], np.float32)
    return bool((tiny * np.float32(1.0) == 0).any())


def _nothing(node: Node, nodes: Sequence[Node]) -> Literal | None:
    """The constant that a node is because it, or what it reduces, has no elements."""
    shape = node.type.shape
    if 0 in shape:
        return Literal(np.zeros((), node.type.dtype.numpy))
    if node.op.fusion == REDUCTION and node.op.reduce is not None and 0 in nodes[node.inputs[0]].type.shape:
        source = nodes[node.inputs[0]].type.dtype
        result = node.op.reduce.finish(node.op.reduce.identity(source), node.type.dtype)
        return Literal(scalar_eval.evaluate([result], _no_leaf)[0])
    if node.op.fusion == CONTRACTION and _contracts_nothing(node, nodes):
        return Literal(np.zeros((), node.type.dtype.numpy))
    return None


def _no_leaf(node) -> np.ndarray:
    raise AssertionError(f"the identity of a reduction reads {node}")


def _contracts_nothing(node: Node, nodes: Sequence[Node]) -> bool:
    return 0 in nodes[node.inputs[0]].type.shape or 0 in nodes[node.inputs[1]].type.shape


def _evaluate(node: Node, arrays: Sequence[np.ndarray], exact: bool) -> np.ndarray | None:
    with np.errstate(all="ignore"):
        if exact:
            return apply_node(node, arrays)
    if node.op.fusion != ELEMENTWISE:
        return None
    attrs = {**node.attrs, "shape": node.type.shape, "dtype": node.type.dtype} if node.op.typed else node.attrs
    operands = [ex.arg(k, as_dtype(a.dtype)) for k, a in enumerate(arrays)]
    (value,) = scalar_eval.evaluate([node.op.scalar(*operands, **attrs)], lambda leaf: arrays[leaf.attr])
    return np.asarray(value)


def _repeats(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether a node is a broadcast of array data: nothing but the same elements more often."""
    if node.op.fusion != INJECTIVE or len(node.inputs) != 1 or nodes[node.inputs[0]].op.name != "constant" or nodes[node.inputs[0]].is_splat:
        return False
    shapes = node.type.shape, nodes[node.inputs[0]].type.shape
    return not any(isinstance(dim, Dim) for shape in shapes for dim in shape) and math.prod(shapes[0]) > math.prod(shapes[1])


def _is_known(node: Node, nodes: Sequence[Node]) -> bool:
    return node.op.name == "constant" or _repeats(node, nodes)


def _array(node: Node, nodes: Sequence[Node]) -> np.ndarray:
    """The elements of a constant, or of a broadcast of one."""
    if node.op.name == "constant":
        return np.array(np.broadcast_to(node.attrs["value"].array, node.type.shape), order="C")
    return np.array(apply_node(node, [_array(nodes[node.inputs[0]], nodes)]), order="C")


def _only_repeated(node: Node, operands: Sequence[Node]) -> bool:
    """Whether an elementwise op reads one broadcast and otherwise splats: motion does it before the broadcast, on fewer elements."""
    return node.op.fusion == ELEMENTWISE and [n.op.name for n in operands if not n.is_splat].count("constant") == 0 \
        and len({i for i, n in zip(node.inputs, operands) if not n.is_splat}) == 1


def _computed(node: Node, nodes: Sequence[Node], ctx: PassContext, extra_bytes: int) -> Literal | None:
    """An op of constants: on one element if they are splats and the op is elementwise, else if the result fits the budget."""
    operands = [nodes[i] for i in node.inputs]
    exact = same_as_compiled(node, nodes)
    if node.op.fusion == ELEMENTWISE and all(n.is_splat for n in operands):
        scalar = Node(node.op, node.inputs, node.attrs, TensorType((), node.type.dtype))
        result = _evaluate(scalar, [n.attrs["value"].array for n in operands], exact)
        return None if result is None else Literal(result)
    if any(isinstance(dim, Dim) for n in (node, *operands) for dim in n.type.shape):
        return None
    if _repeats(node, nodes) or _only_repeated(node, operands):
        return None
    largest = max(math.prod(n.type.shape) for n in (node, *operands))
    if ctx.folded_bytes + node.type.nbytes > extra_bytes or largest > MOST_ELEMENTS:
        return None
    result = _evaluate(node, [_array(n, nodes) for n in operands], exact)
    if result is None:
        return None
    ctx.folded_bytes += node.type.nbytes
    return Literal(result)


def _is_candidate(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether a node has a chance: it or an operand has no elements, or every operand is a constant."""
    if node.type.__class__ is not TensorType or node.op.fusion == LEAF or node.op.name == "constant":
        return False
    if 0 in node.type.shape:
        return True
    constant = bool(node.inputs)
    for i in node.inputs:
        operand = nodes[i]
        if not _is_known(operand, nodes):
            constant = False
        if operand.type.__class__ is TensorType and 0 in operand.type.shape:
            return True
    return constant


def _folded(node: Node, nodes: Sequence[Node], ctx: PassContext, extra_bytes: int) -> Literal | None:
    """The constant that a candidate is, or None."""
    found = _nothing(node, nodes)
    if found is not None or node.op.numpy is None or not all(_is_known(nodes[i], nodes) for i in node.inputs):
        return found
    return _computed(node, nodes, ctx, extra_bytes)


def _run(graph: Graph, ctx: PassContext, *, extra_bytes: int) -> PassResult:
    nodes = graph.nodes
    start = next((i for i, node in enumerate(nodes) if _is_candidate(node, nodes)), None)
    if start is None:
        return PassResult(graph, changed=False)
    if flushes_subnormals():
        ctx.note("nothing folded: this process flushes subnormals")
        return PassResult(graph, changed=False)
    rewriter = GraphRewriter(graph, shared=start)
    new, placed, changed = rewriter.new, rewriter.map, False
    given: dict[int, Literal] = {}
    for i in range(start, len(nodes)):
        new_id = rewriter.copy(i)
        node = new.nodes[new_id]
        if new_id != len(new) - 1 or not _is_candidate(node, new.nodes):
            continue
        literal = _folded(node, new.nodes, ctx, extra_bytes)
        if literal is not None and ctx.permit(f"fold-{node.op.name}"):
            if not same_as_compiled(node, new.nodes):
                given[i] = literal
            new.nodes.pop()
            placed[i] = new.constant(literal, node.type, node.meta)
            changed = True
    return PassResult(rewriter.finish(), changed=True, given=given) if changed else PassResult(graph, changed=False)


FOLD = Pass("fold", 2, _run, {"extra_bytes": EXTRA_BYTES})
