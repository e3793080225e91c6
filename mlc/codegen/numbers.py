"""The sizes of a function that are arguments instead of constants, so that kernels that differ in nothing else are one function.

Arguments: extents of loops and of sums, distances in the caller's arrays, places that they start from, and the floats that a row is
scaled and shifted by (one over its length). What decides how code looks stays a constant: register tiles, lanes, what is left over in a last
block, unrolled loops, distances in the kernel's own scratch.
"""

from __future__ import annotations

from collections.abc import Hashable


class Numbers:
    """The numbers of one function, in the order in which its code first asks for them."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._names: dict[Hashable, str] = {}

    def text(self, key: Hashable, value: int) -> str:
        """The operand for a number. `key` says what it is in the code (two that are equal by chance stay two)."""
        name = self._names.get((key, value))
        if name is None:
            name = self._names[key, value] = f"%n{len(self.values)}"
            self.values.append(value)
        return name

    def loads(self, first: int) -> str:
        """Lines that take them from word `first` of the context on."""
        return "".join([f"  %n{i}.at = getelementptr i64, ptr %ctx, i64 {first + i}\n  %n{i} = load i64, ptr %n{i}.at, align 8\n"
                        for i in range(len(self.values))])
