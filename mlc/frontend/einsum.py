"""einsum: diagonals by strided slices, sums of axes that one operand alone has, then pairwise dot_general from left to right."""

from __future__ import annotations

from mlc.core.errors import ShapeError, UnsupportedError
from mlc.frontend.api import public
from mlc.frontend.array import Array
from mlc.frontend.linalg import diagonal, dot_general
from mlc.frontend.manipulation import _shaped, permuted
from mlc.frontend.promotion import broadcast, promote_dtypes
from mlc.frontend.record import emit
from mlc.frontend.reductions import sum_

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _parse(equation: str, arrays: list[Array]) -> tuple[list[str], str]:
    """One label an axis for every operand and for the result; `...` becomes letters of its own."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        raise ShapeError(f"{equation!r} names {len(terms)} operands, {len(arrays)} were given")
    free = [c for c in _LETTERS if c not in text]
    wide = max((x.ndim - len(t.replace("...", "")) for t, x in zip(terms, arrays) if "..." in t), default=0)
    dots = "".join(free[:max(wide, 0)])
    labels = []
    for term, x in zip(terms, arrays):
        count = x.ndim - len(term.replace("...", ""))
        if count < 0 or (count and "..." not in term):
            raise ShapeError(f"{equation!r}: {term!r} does not name the axes of {x.type}")
        labels.append(term.replace("...", dots[len(dots) - count:]))
    if not arrow:
        used = "".join(labels)
        right = dots + "".join(sorted(c for c in set(used) if used.count(c) == 1 and c not in dots))
    right = right.replace("...", dots)
    if any(not c.isalpha() for c in "".join(labels) + right):
        raise ShapeError(f"{equation!r}: labels are letters, with ',', '->' and '...' between")
    if len(set(right)) != len(right) or not set(right) <= set("".join(labels)):
        raise ShapeError(f"{equation!r}: the result's labels must be different, and each must be in some operand")
    return labels, right


def _sizes(equation: str, labels: list[str], arrays: list[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(labels, arrays):
        for label, n in zip(term, x.type.shape):
            if sizes.setdefault(label, n) == 1:
                sizes[label] = n
            elif n not in (1, sizes[label]):
                raise ShapeError(f"{equation!r}: {label!r} is {sizes[label]} in one operand and {n} in another ({x.type})")
    return sizes


def _clean(x: Array, term: str, needed: set[str], sizes: dict[str, int]) -> tuple[Array, str]:
    """Repeated labels to their diagonal; axes of size 1 that others have larger dropped; labels nobody else needs summed."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            i = term.index(label)
            j = term.index(label, i + 1)
            x = diagonal(x, 0, i, j)
            term = term[:i] + term[i + 1:j] + term[j + 1:] + label
    thin = [i for i, c in enumerate(term) if x.type.shape[i] == 1 and sizes[c] != 1]
    if thin:
        x = _shaped(x, [n for i, n in enumerate(x.type.shape) if i not in thin])
        term = "".join(c for i, c in enumerate(term) if i not in thin)
    gone = tuple(i for i, c in enumerate(term) if c not in needed)
    if gone:
        x = sum_(x, gone, dtype=x.type.dtype)
        term = "".join(c for i, c in enumerate(term) if i not in gone)
    return x, term


def _pair(x: Array, left: str, y: Array, right: str, needed: set[str], preferred) -> tuple[Array, str]:
    both = [c for c in left if c in right]
    contract = [c for c in both if c not in needed]
    batch = [c for c in both if c in needed]
    if not contract and not any(c not in both for c in left + right):
        # The same labels on both sides and nothing to sum: a product of elements.
        y = permuted(y, [right.index(c) for c in left])
        return emit("and" if x.type.dtype.kind == "b" else "mul", (x, y)), left
    def places(labels: list[str]) -> tuple:
        return tuple(map(left.index, labels)), tuple(map(right.index, labels))
    out = dot_general(x, y, places(contract), places(batch), preferred)
    return out, "".join(batch) + "".join(c for c in left + right if c not in both)


@public
def einsum(subscripts, /, *operands, out=None, optimize=None, precision=None, preferred_element_type=None, dtype=None, **kwargs):
    """Sums of products by labelled axes, e.g. `einsum("bij,bjk->bik", x, y)`. `optimize` is accepted: contraction goes left to right."""
    if out is not None or not isinstance(subscripts, str):
        raise UnsupportedError("einsum takes an equation such as 'ij,jk->ik' and arrays, without out=")
    arrays = promote_dtypes(*operands)
    labels, result = _parse(subscripts, arrays)
    sizes = _sizes(subscripts, labels, arrays)
    x, term = arrays[0], labels[0]
    for k in range(len(arrays)):
        later = set(result).union(*labels[k + 1:])
        if k:
            y, other = _clean(arrays[k], labels[k], later | set(term), sizes)
            x, term = _clean(x, term, later | set(other), sizes)
            x, term = _pair(x, term, y, other, later, preferred_element_type)
        else:
            x, term = _clean(x, term, later, sizes)
    missing = [c for c in result if c not in term]
    if missing:  # only ever of size 1 where it was present
        x, term = _shaped(x, (*x.type.shape, *[1] * len(missing))), term + "".join(missing)
        x = broadcast(x, tuple(sizes[c] for c in term))
    return permuted(x, [term.index(c) for c in result])


