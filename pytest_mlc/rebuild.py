"""Graph surgery for the reducer: a new case from an old one with nodes replaced, other outputs, or smaller sizes.

Each function returns None where the result would not be a valid graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlc.core.dims import TensorType
from mlc.core.errors import MlcError
from mlc.core.literal import Literal
from mlc.graph.graph import Graph, Node, inline_call
from mlc.ops.base import ELEMENTWISE
from pytest_mlc.corpus import Case


def needed(graph: Graph, outputs: Sequence[int], replace: Mapping[int, Any]) -> set[int]:
    """The nodes that the outputs still need once replaced nodes no longer read their operands."""
    live: set[int] = set()
    todo = list(outputs)
    while todo:
        node = todo.pop()
        if node in live:
            continue
        live.add(node)
        found = replace.get(node)
        if isinstance(found, int):
            todo.append(found)
        elif found is None:
            todo.extend(graph.nodes[node].inputs)
    return live


def rebuild(case: Case, replace: Mapping[int, Any] | None = None, outputs: Sequence[int] | None = None) -> Case | None:
    """The case with some nodes replaced: by an earlier node (int), by a parameter holding an array, or by a Literal constant.

    Parameters that nothing reads are dropped.
    """
    replace, graph = replace or {}, case.graph
    outputs = graph.outputs if outputs is None else outputs
    live = needed(graph, outputs, replace)
    given = dict(zip(graph.params, case.args))
    new, ids, args = Graph(graph.name), {}, []

    def parameter(type: TensorType, array: np.ndarray) -> int:
        args.append(array)
        return new.parameter(f"x{len(new.params)}", type)
    try:
        for i, node in enumerate(graph.nodes):
            if i not in live:
                continue
            found = replace.get(i)
            if isinstance(found, int):
                ids[i] = ids[found]
            elif isinstance(found, Literal):
                ids[i] = new.constant(found, node.type)
            elif found is not None:
                ids[i] = parameter(node.type, found)
            elif i in given:
                ids[i] = parameter(node.type, given[i])
            elif node.op.name == "constant":
                ids[i] = new.constant(node.attrs["value"], node.type)
            else:
                ids[i] = new.add(node.op, [ids[k] for k in node.inputs], node.attrs, node.type, node.regions)
    except (MlcError, KeyError):
        return None
    return Case(new.set_outputs(ids[o] for o in outputs), args, case.facts)


def dropped(case: Case, gone: Mapping[int, int]) -> Case | None:
    """The case without some nodes: what read one of them reads an earlier node, whatever that one's type; what follows gets the types
    that come of it, arguments and constants beside it included. So a transpose, a slice or a conversion can go, which `rebuild` can't do."""
    graph = case.graph
    live = needed(graph, graph.outputs, gone)
    given = dict(zip(graph.params, case.args))
    new, ids, args = Graph(graph.name), {}, []

    def leaf(i: int, type: TensorType) -> int:
        array = given[i] if i in given else np.broadcast_to(graph.nodes[i].attrs["value"].array, graph.nodes[i].type.shape)
        with np.errstate(all="ignore"):
            array = np.resize(array, type.shape).astype(type.dtype.numpy)
        if i not in given:
            return new.constant(Literal(array), type)
        args.append(array)
        return new.parameter(f"x{len(new.params)}", type)
    try:
        for i, node in enumerate(graph.nodes):
            if i not in live:
                continue
            if i in gone:
                ids[i] = ids[gone[i]]
            elif i in given:
                ids[i] = leaf(i, node.type)
            elif node.op.name == "constant":
                ids[i] = new.constant(node.attrs["value"], node.type)
            else:
                inputs = [ids[k] for k in node.inputs]
                if node.op.fusion == ELEMENTWISE and isinstance(node.type, TensorType):
                    inputs = _alike(new, graph, node, inputs, leaf)
                ids[i] = _add_retyped(new, graph, node, inputs)
    except (MlcError, KeyError, IndexError):
        return None
    small = Case(new.set_outputs(ids[o] for o in graph.outputs), args, case.facts)
    return rebuild(small)


def _alike(new: Graph, old: Graph, node: Node, inputs: list[int], leaf: Callable[[int, TensorType], int]) -> list[int]:
    """The operands of an elementwise node after one of them has changed its type: leaves beside it change theirs in the same way."""
    for k, operand in enumerate(node.inputs):
        now, before = new.type(inputs[k]), old.type(operand)
        if now != before:
            break
    else:
        return inputs
    found = []
    for i, operand in zip(inputs, node.inputs):
        type = TensorType(now.shape, now.dtype if old.type(operand).dtype is before.dtype else old.type(operand).dtype)
        is_leaf = old.nodes[operand].op.name in ("parameter", "constant")
        found.append(leaf(operand, type) if is_leaf and new.type(i) != type else i)
    return found


def _add_retyped(new: Graph, old: Graph, node: Node, inputs: list[int]) -> int:
    """Add the node with the type that its operands give it; a declared one stays, but for an elementwise node's shape."""
    if node.regions or not isinstance(node.type, TensorType) or [new.type(k) for k in inputs] == [old.type(k) for k in node.inputs]:
        return new.add(node.op, inputs, node.attrs, node.type, node.regions)
    shape = new.type(inputs[0]).shape if node.op.fusion == ELEMENTWISE else node.type.shape
    return new.add(node.op, inputs, node.attrs, TensorType(shape, node.type.dtype) if node.op.typed else None)


def inlined(case: Case) -> Case | None:
    """The case with every region in place of its `call`; None when there is none."""
    graph = case.graph
    if not any(node.regions for node in graph.nodes):
        return None
    new, ids = Graph(graph.name), {}
    for i, node in enumerate(graph.nodes):
        if node.op.name == "parameter":
            ids[i] = new.parameter(node.attrs["name"], node.type)
        elif node.op.name == "constant":
            ids[i] = new.constant(node.attrs["value"], node.type)
        elif node.regions:
            ids[i] = inline_call(new, node.regions[0], [ids[k] for k in node.inputs])
        elif node.inputs and isinstance(ids[node.inputs[0]], list):
            ids[i] = ids[node.inputs[0]][node.attrs["index"]]
        else:
            ids[i] = new.add(node.op, [ids[k] for k in node.inputs], node.attrs, node.type)
    return rebuild(Case(new.set_outputs(ids[o] for o in graph.outputs), case.args, case.facts))


def resized(case: Case, old: int, size: int) -> Case | None:
    """The case with every axis of `old` elements cut to `size`, where every op still accepts that."""
    graph = case.graph

    def cut(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array[tuple(slice(0, size if n == old else n) for n in array.shape)]) if array.ndim else array

    def smaller(type: TensorType) -> TensorType:
        return TensorType([size if n == old else n for n in type.shape], type.dtype)
    new, ids = Graph(graph.name), {}
    try:
        for i, node in enumerate(graph.nodes):
            if node.regions or not isinstance(node.type, TensorType):
                return None
            if node.op.name == "parameter":
                ids[i] = new.parameter(node.attrs["name"], smaller(node.type))
            elif node.op.name == "constant":
                ids[i] = new.constant(Literal(cut(node.attrs["value"].array)), smaller(node.type))
            else:
                ids[i] = _add_resized(new, node, [ids[k] for k in node.inputs], smaller(node.type), old, size)
    except MlcError:
        return None
    return Case(new.set_outputs(ids[o] for o in graph.outputs), [cut(a) for a in case.args], case.facts)


def _add_resized(new: Graph, node, inputs: list[int], type: TensorType, old: int, size: int) -> int:
    """Add the node with its attributes as they are or, where the op refuses that, with `old` replaced in them too."""
    try:
        found = new.add(node.op, inputs, node.attrs, type)
        if node.op.typed or new.type(found) == type:
            return found
        new.nodes.pop()
    except MlcError:
        pass

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return size if value == old and not isinstance(value, bool) else value
    return new.add(node.op, inputs, {name: changed(value) for name, value in node.attrs.items()}, type)
