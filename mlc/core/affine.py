"""Affine index forms: offset + sum of coefficient * loop variable. Every memory access of a kernel is one, so bounds and races are provable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Affine:
    """offset + sum(coefficient * variable); immutable and hashable, terms sorted by variable, no zero coefficients."""

    __slots__ = ("_hash", "offset", "terms")

    def __init__(self, offset: int = 0, terms: Mapping[str, int] | Iterable[tuple[str, int]] = ()):
        self.offset = offset
        items = terms.items() if isinstance(terms, Mapping) else terms
        self.terms: tuple[tuple[str, int], ...] = tuple(sorted([(v, c) for v, c in items if c]))
        self._hash = hash((offset, self.terms))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Affine) and self.offset == other.offset and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [v if c == 1 else f"{c}*{v}" for v, c in self.terms]
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return _sorted(self.offset + other, self.terms)
        if not other.terms or not self.terms:
            return _sorted(self.offset + other.offset, self.terms or other.terms)
        total = dict(self.terms)
        for v, c in other.terms:
            total[v] = total.get(v, 0) + c
        return Affine(self.offset + other.offset, total)

    def __mul__(self, factor: int) -> Affine:
        return _sorted(self.offset * factor, tuple([(v, c * factor) for v, c in self.terms]) if factor else ())

    def coefficient(self, variable: str) -> int:
        for v, c in self.terms:
            if v == variable:
                return c
        return 0

    def without(self, variable: str) -> Affine:
        """The form with this variable at 0."""
        return _sorted(self.offset, tuple([(v, c) for v, c in self.terms if v != variable]))

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        """Replace variables by affine forms."""
        offset, total = self.offset, {}
        for v, c in self.terms:
            form = values.get(v)
            if form is None:
                total[v] = total.get(v, 0) + c
                continue
            offset += form.offset * c
            for inner, coefficient in form.terms:
                total[inner] = total.get(inner, 0) + coefficient * c
        return Affine(offset, total)

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Least and greatest value when each variable runs over 0..extent-1. KeyError for an unknown variable."""
        low = high = self.offset
        for v, c in self.terms:
            reach = c * (extents[v] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def evaluate(self, values: Mapping[str, object]):
        """The number (or NumPy array) at these variable values."""
        total = self.offset
        for v, c in self.terms:
            total = total + c * values[v]
        return total


def _sorted(offset: int, terms: tuple[tuple[str, int], ...]) -> Affine:
    """The form of terms that are in order already, without zeros."""
    form = object.__new__(Affine)
    form.offset, form.terms, form._hash = offset, terms, hash((offset, terms))
    return form


def variable(name: str) -> Affine:
    return Affine(0, ((name, 1),))


ZERO = Affine()
