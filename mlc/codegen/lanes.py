"""Where emission stands: the values of loop variables, and the block of a vector loop."""

from __future__ import annotations

from mlc.codegen.builder import Value
from mlc.core.dataclass import dataclass


@dataclass(frozen=True)
class Index:
    """A loop variable's value: `value` (None: 0) plus `offset`; `value` is a multiple of `step`."""

    value: Value | None
    offset: int = 0
    step: int = 1


@dataclass(frozen=True)
class Lane:
    """The block of a vector loop that is being emitted: `lanes` lanes of which the first `active` exist; `width` is the loop's."""

    var: str
    lanes: int
    active: int
    width: int


def last_lanes(var: str, rest: int, width: int) -> Lane:
    """The last block of a vector loop, as narrow as it may be."""
    return Lane(var, min(width, 1 << (rest - 1).bit_length()), rest, width)
