"""Rewrites of movement ops, and of contractions and exact reductions that absorb movement. Nothing here touches a value.

Directions, so that rules cannot chase each other: reshapes that only add unit axes become broadcasts; transposes, slices
and reversals move below broadcasts (towards the smaller operand); broadcasts move above elementwise ops (towards the
outputs, where the op then runs on fewer elements). Reshapes among elementwise ops are `motion`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlc.core.dims import Dim, Shape, TensorType
from mlc.graph.graph import Node
from mlc.ops.base import COMMUTATIVE, ELEMENTWISE, EXACT, INJECTIVE, REDUCTION, REGISTRY, OpDef
from mlc.passes.pattern import BITWISE, RESULT, Attr, Match, RuleSet, Splat, Term, Var, lifted, term

RULES = RuleSet()
rewrite = RULES.rewrite

x, y, v, xs = Var("x"), Var("y"), Var("v"), Var("xs", rest=True)
p, q, a, b, d, e = map(Attr, "pqabde")
start, limit, strides, start2, limit2, strides2 = map(Attr, ("start", "limit", "strides", "start2", "limit2", "strides2"))
transpose, reshape, broadcast, slice_, rev, concatenate, pad = map(
    term, ("transpose", "reshape", "broadcast_in_dim", "slice", "rev", "concatenate", "pad"))
constant, dot_general, iota = map(term, ("constant", "dot_general", "iota"))


@lifted
def compose(first: tuple, second: tuple) -> tuple:
    """The permutation that applies `first`, then `second`."""
    return tuple(first[i] for i in second)


@lifted
def is_identity(perm: tuple) -> bool:
    """The permutation that moves nothing."""
    return perm == tuple(range(len(perm)))


@lifted
def same_type(one: Node, other: Node) -> bool:
    """Equal shape and dtype."""
    return one.type == other.type


def is_static(*nodes: Node) -> bool:
    """No symbolic dims: sizes may be computed with."""
    return not any(isinstance(dim, Dim) for node in nodes for dim in node.type.shape)


def unit_free(shape: Shape) -> tuple:
    """The axes that matter: sizes other than 1, in order."""
    return tuple(dim for dim in shape if dim != 1)


# --------------------------------------------------------------------------- transpose
rewrite("transpose-of-transpose", exact=BITWISE, match=transpose(transpose(x, perm=p), perm=q), to=transpose(x, perm=compose(p, q)),
        why="one movement instead of two")
rewrite("transpose-identity", exact=BITWISE, match=transpose(x, perm=p), to=x, when=is_identity(p), why="nothing moves")


@lifted
def moves_only_units(node: Node, perm: tuple) -> bool:
    """The axes of size other than 1 keep their order, so that no element moves in memory."""
    moved = [i for i in perm if node.type.shape[i] != 1]
    return moved == sorted(moved) and is_static(node)


rewrite("transpose-of-unit-axes", exact=BITWISE, match=transpose(x, perm=p), to=reshape(x), when=moves_only_units(x, p),
        why="a view instead of a movement: the other axes keep their order")


# --------------------------------------------------------------------------- reshape
@lifted
def only_adds_units(source: Node, result: Node) -> bool:
    """The result's shape is the source's with unit axes added."""
    return unit_axes_added(source.type.shape, result.type.shape) is not None


@lifted
def added_at(source: Node, result: Node) -> tuple:
    """Where the source's axes stand in the result."""
    return unit_axes_added(source.type.shape, result.type.shape)


def unit_axes_added(small: Shape, large: Shape) -> tuple[int, ...] | None:
    """Where the axes of `small` are found in `large` if the rest of `large` are 1s; None if it is not so."""
    if len(large) <= len(small):
        return None
    dims, axis = [], 0
    for position, dim in enumerate(large):
        if axis < len(small) and dim == small[axis]:
            dims.append(position)
            axis += 1
        elif dim != 1:
            return None
    return tuple(dims) if axis == len(small) else None


rewrite("reshape-to-same", exact=BITWISE, match=reshape(x), to=x, when=same_type(x, RESULT), why="the shape it has already")
rewrite("reshape-of-reshape", exact=BITWISE, match=reshape(reshape(x)), to=reshape(x), why="only the last shape counts")
rewrite("reshape-adding-units", exact=BITWISE, match=reshape(x), to=broadcast(x, dims=added_at(x, RESULT)), when=only_adds_units(x, RESULT),
        why="the one form of an added axis, so that kernels index it instead of breaking at a reshape")


def _reshape_of_broadcast(match: Match) -> Term | None:
    """The broadcast made straight to the new shape, if the operand's axes survive the reshape as axes."""
    middle = match.nodes[match.root.inputs[0]]
    if not is_static(match.node("x"), middle, match.root):
        return None
    source = match.node("x").type
    if middle.type.size == source.size:
        return reshape(match["x"])  # only unit axes were added
    dims = surviving_axes(source.shape, match["d"], middle.type.shape, match.root.type.shape)
    if dims is None:
        return None
    kept = unit_free(source.shape)
    operand = match["x"] if kept == source.shape else reshape(match["x"], type=TensorType(kept, source.dtype))
    return broadcast(operand, dims=dims)


def surviving_axes(source: Shape, dims: Sequence[int], middle: Shape, result: Shape) -> tuple[int, ...] | None:
    """Where the non-unit axes of `source`, broadcast to `middle` at `dims`, stand in `result`, a reshape of `middle`."""
    found = []
    for axis, size in enumerate(source):
        if size == 1:
            continue
        before = math.prod(middle[:dims[axis]])
        place = next((i for i, n in enumerate(result) if n == size and math.prod(result[:i]) == before), None)
        if place is None:
            return None
        found.append(place)
    return tuple(found) if found == sorted(set(found)) else None


rewrite("reshape-of-broadcast", exact=BITWISE, match=reshape(broadcast(x, dims=d)), to=_reshape_of_broadcast,
        why="a broadcast is indexed, a reshape of one would have to be stored")

# --------------------------------------------------------------------------- broadcast
rewrite("broadcast-to-same", exact=BITWISE, match=broadcast(x), to=x, when=same_type(x, RESULT), why="the shape it has already")
rewrite("broadcast-of-broadcast", exact=BITWISE, match=broadcast(broadcast(x, dims=p), dims=q), to=broadcast(x, dims=compose(q, p)),
        why="one movement instead of two")


def _splat_moved(match: Match) -> Term | None:
    """A splat stays a splat of the same value under any movement."""
    found = [match.nodes[i] for i in match.root.inputs]
    first = found[0].attrs["value"] if found and found[0].is_splat else None
    if first is None or any(not n.is_splat or n.attrs["value"] != first for n in found):
        return None
    return constant(value=first)


for _op in REGISTRY.values():
    if _op.fusion == INJECTIVE and _op.arity == 1:
        rewrite(f"{_op.name}-of-splat", exact=BITWISE, match=term(_op.name)(Term(REGISTRY["constant"], (), {})), to=_splat_moved,
                why="the same value everywhere")
rewrite("pad-splat-with-itself", exact=BITWISE, match=pad(x, v), to=_splat_moved, why="the same value everywhere")
rewrite("concatenate-splats", exact=BITWISE, match=concatenate(xs), to=_splat_moved, why="the same value everywhere")


# --------------------------------------------------------------------------- movement below broadcast
def _transpose_of_broadcast(match: Match) -> Term:
    """Result axis j is broadcast axis perm[j]."""
    perm, dims = match["p"], match["d"]
    places = [perm.index(dim) for dim in dims]
    order = tuple(sorted(range(len(places)), key=places.__getitem__))
    operand = match["x"] if order == tuple(range(len(places))) else transpose(match["x"], perm=order)
    return broadcast(operand, dims=tuple(sorted(places)))


rewrite("transpose-of-broadcast", exact=BITWISE, match=transpose(broadcast(x, dims=d), perm=p), to=_transpose_of_broadcast,
        why="transposes the smaller operand, if anything")


def _slice_of_broadcast(match: Match) -> Term | None:
    """Axes that the operand spans are sliced in the operand; the others just get their new size."""
    source, dims = match.node("x").type, match["d"]
    middle = match.nodes[match.root.inputs[0]].type
    whole = [source.shape[axis] == 1 and middle.shape[dim] != 1 for axis, dim in enumerate(dims)]
    if not is_static(match.node("x")):
        return None
    begin = tuple(0 if w else match["start"][dim] for w, dim in zip(whole, dims))
    end = tuple(1 if w else match["limit"][dim] for w, dim in zip(whole, dims))
    step = tuple(1 if w else match["strides"][dim] for w, dim in zip(whole, dims))
    return broadcast(slice_(match["x"], start=begin, limit=end, strides=step), dims=dims)


rewrite("slice-of-broadcast", exact=BITWISE, match=slice_(broadcast(x, dims=d), start=start, limit=limit, strides=strides), to=_slice_of_broadcast,
        why="slices the smaller operand, if anything")


@lifted
def spanned(axes: tuple, dims: tuple) -> tuple:
    """Operand axes that stand at the given result axes."""
    return tuple(axis for axis, dim in enumerate(dims) if dim in axes)


rewrite("rev-of-broadcast", exact=BITWISE, match=rev(broadcast(x, dims=d), axes=a), to=broadcast(rev(x, axes=spanned(a, d)), dims=d),
        why="reverses the smaller operand, if anything")


# --------------------------------------------------------------------------- broadcast above elementwise
def _broadcast_of_elementwise(match: Match) -> Term | None:
    """op(broadcast x, broadcast y, splats) with equal broadcasts is broadcast(op(x, y, splats)): fewer elements to compute, or
    fewer unit axes, so that the broadcast meets the next one."""
    root, nodes = match.root, match.nodes
    operands = [nodes[i] for i in root.inputs]
    spread = [n for n in operands if n.op.name == "broadcast_in_dim"]
    first = spread[0]
    small = nodes[first.inputs[0]].type.shape
    if any(n.attrs["dims"] != first.attrs["dims"] or nodes[n.inputs[0]].type.shape != small for n in spread):
        return None
    if len(small) == first.type.rank and (not is_static(first, nodes[first.inputs[0]]) or math.prod(small) >= math.prod(first.type.shape)):
        return None
    if any(n.op.name != "broadcast_in_dim" and not n.is_splat for n in operands):
        return None
    inputs = tuple(
        n.inputs[0] if n.op.name == "broadcast_in_dim" else constant(value=n.attrs["value"], type=TensorType(small, n.type.dtype)) for n in operands)
    inner = Term(root.op, inputs, dict(root.attrs), TensorType(small, root.type.dtype) if root.op.typed else None)
    return broadcast(inner, dims=first.attrs["dims"])


def _any_operand_broadcast(op: OpDef) -> tuple[Term, ...]:
    """The op with a broadcast at one of its operands; commutative ops match in either order anyhow."""
    places = range(1 if op.has(COMMUTATIVE) else op.arity)
    return tuple(Term(op, tuple(broadcast(x) if k == place else Var(f"o{k}") for k in range(op.arity)), {}) for place in places)


for _op in REGISTRY.values():
    if _op.fusion == ELEMENTWISE:
        rewrite(f"{_op.name}-of-broadcast", exact=BITWISE, match=_any_operand_broadcast(_op), to=_broadcast_of_elementwise,
                why="computes the smaller operand once instead of every copy of it")


# --------------------------------------------------------------------------- slice and rev
@lifted
def is_whole(node: Node, begin: tuple, end: tuple, step: tuple) -> bool:
    """A slice that takes everything."""
    return all(i == 0 for i in begin) and end == node.type.shape and all(i == 1 for i in step)


@lifted
def symmetric_difference(one: tuple, other: tuple) -> tuple:
    """Axes in one of the two, but not in both."""
    return tuple(sorted(set(one) ^ set(other)))


@lifted
def without_units(axes: tuple, node: Node) -> tuple:
    """The axes whose size is not 1."""
    return tuple(i for i in axes if node.type.shape[i] != 1)


@lifted
def has_units(axes: tuple, node: Node) -> bool:
    """Whether an axis of size 1 is among them."""
    return any(node.type.shape[i] == 1 for i in axes)


@lifted
def only_units(axes: int | tuple, node: Node) -> bool:
    """Whether the axis, or every one of the axes, has size 1."""
    return all(node.type.shape[i] == 1 for i in (axes if isinstance(axes, tuple) else (axes,)))


rewrite("slice-whole", exact=BITWISE, match=slice_(x, start=start, limit=limit, strides=strides), to=x, when=is_whole(x, start, limit, strides),
        why="everything is taken")


def _slice_of_slice(match: Match) -> Term | None:
    """Element j of the outer slice is element i + s * j of the operand; the limit is just past the last one taken."""
    if not is_static(match.root, match.node("x")):
        return None
    begin, step, begin2, end2 = match["start"], match["strides"], match["start2"], match["limit2"]
    first = [i + s * j for i, s, j in zip(begin, step, begin2)]
    last = [i + s * (k - 1) + 1 if k > j else i + s * j for i, s, j, k in zip(begin, step, begin2, end2)]
    size = match.node("x").type.shape
    return slice_(match["x"], start=tuple(map(min, first, size)), limit=tuple(map(min, last, size)),
                  strides=tuple(s * t for s, t in zip(step, match["strides2"])))


rewrite("slice-of-slice", exact=BITWISE, why="one movement instead of two", to=_slice_of_slice,
        match=slice_(slice_(x, start=start, limit=limit, strides=strides), start=start2, limit=limit2, strides=strides2))
rewrite("rev-of-rev", exact=BITWISE, match=rev(rev(x, axes=a), axes=b), to=rev(x, axes=symmetric_difference(a, b)), why="twice reversed is as it was")
rewrite("rev-of-units", exact=BITWISE, match=rev(x, axes=a), to=rev(x, axes=without_units(a, x)), when=has_units(a, x),
        why="one element has no order")
rewrite("rev-of-nothing", exact=BITWISE, match=rev(x, axes=()), to=x, why="no axis is reversed")
rewrite("iota-of-one", exact=BITWISE, match=iota(axis=a), to=Splat(0), when=only_units(a, RESULT), why="the only index is 0")


# --------------------------------------------------------------------------- concatenate and pad
MOST_OPERANDS = 64  # flattening stops there, so that a chain of concatenations cannot grow quadratically


def _concatenate_fewer(match: Match) -> int | Term | None:
    """Operands without elements are dropped, adjacent slices of one value joined, nested concatenations opened."""
    axis, nodes, given = match["a"], match.nodes, list(match["xs"])
    kept = [i for i in given if nodes[i].type.shape[axis] != 0] or given[:1]
    opened: list[int] = []
    for i in kept:
        inner = nodes[i]
        nested = inner.op.name == "concatenate" and inner.attrs["axis"] == axis and len(kept) + len(inner.inputs) <= MOST_OPERANDS
        opened.extend(inner.inputs if nested else [i])
    parts: list[int | Term] = []
    for i in opened:
        joined = _joined_slices(nodes, parts[-1], i, axis) if parts else None
        if joined is None:
            parts.append(i)
        else:
            parts[-1] = joined
    if parts == given and len(parts) > 1:
        return None
    return parts[0] if len(parts) == 1 else concatenate(*parts, axis=axis)


def _slice_parts(nodes: Sequence[Node], part: int | Term) -> tuple[int, dict] | None:
    """The sliced value and the slice's attributes, of a node or of a term made here."""
    if isinstance(part, Term):
        return part.args[0], part.attrs
    node = nodes[part]
    return (node.inputs[0], node.attrs) if node.op.name == "slice" else None


def _joined_slices(nodes: Sequence[Node], left: int | Term, right: int, axis: int) -> Term | None:
    """One slice for two whose boxes meet along `axis`."""
    one, two = _slice_parts(nodes, left), _slice_parts(nodes, right)
    if one is None or two is None or one[0] != two[0] or one[1]["strides"] != two[1]["strides"]:
        return None
    (source, first), (_, second) = one, two
    step = first["strides"][axis]
    count = -(-(first["limit"][axis] - first["start"][axis]) // step)
    if first["start"][axis] + count * step != second["start"][axis]:
        return None
    rank = len(first["start"])
    if any(first[k][i] != second[k][i] for k in ("start", "limit") for i in range(rank) if i != axis):
        return None
    return slice_(source, start=first["start"], strides=first["strides"],
                  limit=tuple(second["limit"][i] if i == axis else first["limit"][i] for i in range(rank)))


rewrite("concatenate-fewer", exact=BITWISE, match=concatenate(xs, axis=a), to=_concatenate_fewer, why="fewer operands, the same elements")


def _slice_of_concatenate(match: Match) -> Term | None:
    """The slice lies within one operand."""
    nodes, root = match.nodes, match.root
    inner = nodes[root.inputs[0]]
    axis, begin, end = inner.attrs["axis"], match["start"], match["limit"]
    offset = 0
    for i in inner.inputs:
        size = nodes[i].type.shape[axis]
        if offset <= begin[axis] and end[axis] <= offset + size and begin[axis] < offset + size:
            move = [offset if k == axis else 0 for k in range(len(begin))]
            return slice_(i, start=tuple(s - m for s, m in zip(begin, move)), limit=tuple(s - m for s, m in zip(end, move)), strides=match["strides"])
        offset += size
    return None


rewrite("slice-of-concatenate", exact=BITWISE, match=slice_(concatenate(xs), start=start, limit=limit, strides=strides), to=_slice_of_concatenate,
        why="reads the one operand it needs")


def _slice_of_pad(match: Match) -> Term | None:
    """The slice lies within what was padded."""
    low = tuple(pad_[0] for pad_ in match["p"])
    size = match.node("x").type.shape
    if any(inner for _, _, inner in match["p"]) or not is_static(match.node("x")):
        return None
    begin, end = (tuple(i - j for i, j in zip(match[k], low)) for k in ("start", "limit"))
    if any(i < 0 or j > n for i, j, n in zip(begin, end, size)):
        return None
    return slice_(match["x"], start=begin, limit=end, strides=match["strides"])


rewrite("slice-of-pad", exact=BITWISE, match=slice_(pad(x, v, pads=p), start=start, limit=limit, strides=strides), to=_slice_of_pad,
        why="reads none of the padding")


def _pad_less(match: Match) -> int | Term | None:
    """No padding; padding of nothing; or only cropping."""
    size, pads = match.node("x").type.shape, match["p"]
    if all(pad_ == (0, 0, 0) or (pad_[:2] == (0, 0) and n in (0, 1)) for n, pad_ in zip(size, pads)):
        return match["x"]
    if not is_static(match.node("x")):
        return None
    if 0 in size:
        return broadcast(match["v"], dims=())
    if all(low <= 0 and high <= 0 and inner == 0 for low, high, inner in pads):
        return slice_(match["x"], start=tuple(-low for low, _, _ in pads), limit=tuple(n + high for n, (_, high, _) in zip(size, pads)),
                      strides=(1,) * len(pads))
    return None


rewrite("pad-less", exact=BITWISE, match=pad(x, v, pads=p), to=_pad_less, why="nothing is padded, or everything")


# --------------------------------------------------------------------------- dot_general absorbs transposes
def _dot_of_transpose(side: int):
    """The dot with its attributes renamed to the untransposed operand's axes, if its free axes keep their order. The
    sequence of contracted axis pairs, and so the order of summation, stays."""
    def result(match: Match) -> Term | None:
        perm = match["p"]
        contract, batch = match["a"], match["b"]
        named = set(contract[side] + batch[side])
        free = [perm[i] for i in range(len(perm)) if i not in named]
        if free != sorted(free):
            return None
        renamed = [tuple(tuple(perm[i] for i in axes) if k == side else axes for k, axes in enumerate(pair)) for pair in (contract, batch)]
        return dot_general(match["x"], match["y"], contract=renamed[0], batch=renamed[1])
    return result


rewrite("dot-of-transposed-left", exact=BITWISE, match=dot_general(transpose(x, perm=p), y, contract=a, batch=b), to=_dot_of_transpose(0),
        why="a dot reads either operand in any axis order")
rewrite("dot-of-transposed-right", exact=BITWISE, match=dot_general(x, transpose(y, perm=p), contract=a, batch=b), to=_dot_of_transpose(1),
        why="a dot reads either operand in any axis order")


# --------------------------------------------------------------------------- reductions whose order does not matter
def exact_in_any_order(node: Node) -> bool:
    """Max, min and logic; sums and products of integers (modulo 2^n). One result per reduction: not argmax."""
    return not node.op.typed and (node.op.has(EXACT) or not node.type.dtype.is_float)


def _reduce_one_element(match: Match) -> Term | None:
    """Every reduced axis has one element. A float sum is left alone: 0.0 + -0.0 would not be what it is given."""
    shape = match.node("x").type.shape
    if any(shape[i] != 1 for i in match["a"]) or not is_static(match.root) or not exact_in_any_order(match.root):
        return None
    return reshape(match["x"])


def _reduce_of_reduce(match: Match) -> Term | None:
    inner = match.nodes[match.root.inputs[0]]
    if inner.op is not match.root.op or not exact_in_any_order(match.root):
        return None
    kept = [i for i in range(match.node("x").type.rank) if i not in match["a"]]
    return Term(inner.op, (match["x"],), {"axes": tuple(sorted(match["a"] + tuple(kept[i] for i in match["b"])))})


def _reduce_of_transpose(match: Match) -> Term | None:
    """Reduce the untransposed operand, if the axes that are kept keep their order."""
    perm, axes = match["p"], match["a"]
    kept = [perm[i] for i in range(len(perm)) if i not in axes]
    if kept != sorted(kept) or not exact_in_any_order(match.root):
        return None
    return Term(match.root.op, (match["x"],), {"axes": tuple(sorted(perm[i] for i in axes))})


def _reduce_of_splat(match: Match) -> Term | None:
    """The best of equal values; of none it would be the identity, and a symbolic dim may turn out 0."""
    source = match.nodes[match.root.inputs[0]]
    if not source.is_splat or not is_static(source) or 0 in source.type.shape or not match.root.op.has(EXACT) or match.root.op.typed:
        return None
    return constant(value=source.attrs["value"])


for _op in REGISTRY.values():
    if _op.fusion == REDUCTION:
        _reduce = term(_op.name)
        if not _op.typed:
            rewrite(f"{_op.name}-of-one", exact=BITWISE, match=_reduce(x, axes=a), to=_reduce_one_element, why="one element is its own result")
            rewrite(f"{_op.name}-of-{_op.name}", exact=BITWISE, match=_reduce(_reduce(x, axes=a), axes=b), to=_reduce_of_reduce,
                    why="one reduction instead of two; its order does not matter")
            rewrite(f"{_op.name}-of-transpose", exact=BITWISE, match=_reduce(transpose(x, perm=p), axes=a), to=_reduce_of_transpose,
                    why="the order of reduction does not matter")
        if _op.has(EXACT) and not _op.typed:
            rewrite(f"{_op.name}-of-splat", exact=BITWISE, match=_reduce(Term(REGISTRY["constant"], (), {}), axes=a), to=_reduce_of_splat,
                    why="all elements are equal")
        if _op.typed:
            rewrite(f"{_op.name}-of-one", exact=BITWISE, match=_reduce(x, axes=a), to=Splat(0), when=only_units(a, x), why="the only position is 0")
