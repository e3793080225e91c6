"""Does a linear equation over bounded integers have a solution? What race and aliasing proofs come down to."""

from __future__ import annotations

import math
from collections.abc import Iterable

# A proof that needs more steps than this is given up: mixed-radix indices need a handful.
_BUDGET = 20_000

Term = tuple[int, int, int]  # coefficient, least value, greatest value


def may_be_zero(offset: int, terms: Iterable[Term]) -> bool:
    """Whether offset + sum(c * x), low <= x <= high for each term (c, low, high), can be 0 over the integers.

    False is a proof. True is exact unless the search budget runs out. Depth first over terms from the largest coefficient down; what
    the rest can reach, and its gcd, leave only a few values for each (one, where indices are mixed-radix numbers).
    """
    ranges: dict[int, list[int]] = {}
    for c, low, high in terms:
        if low > high:
            return False
        if c < 0:
            c, low, high = -c, -high, -low
        if c:
            # Terms with one coefficient act as one variable: sums of integer ranges are integer ranges.
            span = ranges.setdefault(c, [0, 0])
            span[0] += low
            span[1] += high
    ordered = sorted(ranges.items(), reverse=True)
    # What the terms from position i on can reach, and the gcd of their coefficients.
    reach = [(0, 0, 0)]
    for c, (low, high) in reversed(ordered):
        least, most, divisor = reach[-1]
        reach.append((least + c * low, most + c * high, math.gcd(divisor, c)))
    reach.reverse()
    return _search(offset, ordered, reach)


def _search(offset: int, ordered: list[tuple[int, list[int]]], reach: list[tuple[int, int, int]]) -> bool:
    steps = 0
    todo = [(0, offset)]
    while todo:
        position, total = todo.pop()
        least, most, divisor = reach[position]
        if not total + least <= 0 <= total + most or (total % divisor if divisor else total):
            continue
        if position == len(ordered):
            return True
        c, (low, high) = ordered[position]
        rest_least, rest_most, _ = reach[position + 1]
        # total + c*x + rest = 0 for some rest in [rest_least, rest_most]
        first = max(low, -((total + rest_most) // c))
        last = min(high, -(total + rest_least) // c)
        steps += max(last - first + 1, 0) + 1
        if steps > _BUDGET:
            return True
        todo.extend((position + 1, total + c * x) for x in range(first, last + 1))
    return False
