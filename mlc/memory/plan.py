"""The memory plan: where each buffer of a program lives, in one arena or in an output, and for how long.

A buffer is a `Request`: so many bytes from kernel step `first` (which writes it) to `last` (which reads it last). It may
take over, in place, the memory of a buffer that its own kernel reads last. An output has memory of its own, which others may
use until the output is written. `plan_memory` decides who takes over what, which of the resulting chains lie in outputs
(`mlc.memory.house`), then places the others in the arena (`mlc.memory.place`); `mlc.memory.verify` checks the outcome
without sharing any of this. Scratch of one step is no value of the program: it lies in the workspace of the thread that runs the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlc.core.dataclass import dataclass
from mlc.core.errors import ParseError
from mlc.memory.house import Room, house
from mlc.memory.place import Box, lower_bound, place

ALIGNMENT = 64
# The home of what lies in the workspace. No output is called so.
WORKSPACE = "workspace"


@dataclass(frozen=True)
class Request:
    """`nbytes` alive in kernel steps first..last, both inclusive.

    `may_share` names buffers whose memory this one may take over at step `first`; names outside the arena are ignored.
    `label` is for readers of the plan (a type, such as f32[64,512]). `own`: it is an output, which has memory of its own and is
    alive to the end, so `last` is past every step. `scratch`: it is for one step only, in the workspace.
    """

    name: str
    nbytes: int
    first: int
    last: int
    may_share: tuple[str, ...] = ()
    label: str = ""
    own: bool = False
    scratch: bool = False


@dataclass(frozen=True)
class Placement:
    """A request's place: bytes [offset, offset + nbytes) of the arena, or of its `home`, an output or the workspace. `in_place_of` names
    the buffer it takes over, if any."""

    name: str
    offset: int
    nbytes: int
    first: int
    last: int
    in_place_of: str = ""
    label: str = ""
    home: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """Placements by home (the arena first), offset, time, name; outputs are among them where others lie in their memory.

    `lower_bound`: the most bytes (each buffer rounded up to 64) alive at one step, once in-place buffers share and without what
    lies in outputs; no arena can be smaller. Outputs count neither in it nor in `arena_bytes`: the caller has them anyway. Nor does the
    workspace, of which a running call needs `workspace_bytes`.
    """

    placements: tuple[Placement, ...]
    arena_bytes: int
    lower_bound: int
    workspace_bytes: int = 0

    @property
    def ratio(self) -> float:
        """arena_bytes / lower_bound; 1.0 for an empty arena."""
        return self.arena_bytes / self.lower_bound if self.lower_bound else 1.0

    def offsets(self) -> dict[str, int]:
        """Byte offset by name, in the arena or in its home."""
        return {p.name: p.offset for p in self.placements}

    def alias_classes(self) -> dict[str, str]:
        """For each name, the first buffer of the chain of in-place buffers it belongs to (itself, if it took over nothing)."""
        taken = {p.name: p.in_place_of for p in self.placements}
        root: dict[str, str] = {}
        for p in sorted(self.placements, key=lambda p: p.first):
            root[p.name] = root[taken[p.name]] if taken[p.name] else p.name
        return root

    def text(self) -> str:
        """The plan as people read it, by offset; `parse_plan` reads it back."""
        lines = [f"memory  arena {self.arena_bytes:,} B  peak/lower bound {self.ratio:.2f} ({self.lower_bound:,} B)"
                 + (f"  workspace {self.workspace_bytes:,} B" if self.workspace_bytes else "")]
        columns = [[(f"%{p.home}" if p.home else "") + f"[{p.offset:,}, {p.offset + p.nbytes:,})" for p in self.placements],
                   [f"%{p.name}" for p in self.placements], [p.label for p in self.placements]]
        widths = [max(map(len, column), default=0) for column in columns]
        for *cells, p in zip(*columns, self.placements):
            shown = [cell.ljust(width) for cell, width in zip(cells, widths) if width]
            lines.append("  ".join(["", *shown, f"live k{p.first}..k{p.last}"]) + (f"  in place of %{p.in_place_of}" if p.in_place_of else ""))
        return "\n".join(lines) + "\n"


_HEAD = re.compile(r"memory\s+arena ([\d,]+) B\s+peak/lower bound [\d.]+ \(([\d,]+) B\)(?:\s+workspace ([\d,]+) B)?")
_ROW = re.compile(r"\s*(?:%([^\s\[]+))?\[([\d,]+), ([\d,]+)\)\s+%(\S+)\s+(?:(\S+)\s+)?live k(\d+)\.\.k(\d+)(?:\s+in place of %(\S+))?\s*")


def parse_plan(text: str) -> MemoryPlan:
    """Read what `MemoryPlan.text` wrote. Raises ParseError with the line."""
    def number(digits: str) -> int:
        return int(digits.replace(",", ""))

    lines = text.rstrip().split("\n")
    head = _HEAD.fullmatch(lines[0].rstrip())
    if not head:
        raise ParseError(f"memory plan, line 1: expected 'memory  arena N B  peak/lower bound R (N B)  [workspace N B]', found {lines[0]!r}")
    found = []
    for at, line in enumerate(lines[1:], 2):
        row = _ROW.fullmatch(line)
        if not row:
            raise ParseError(f"memory plan, line {at}: expected '[from, to)  %name  [label]  live kA..kB', found {line!r}")
        offset, end = number(row[2]), number(row[3])
        found.append(Placement(row[4], offset, end - offset, int(row[6]), int(row[7]), row[8] or "", row[5] or "", row[1] or ""))
    return MemoryPlan(tuple(found), number(head[1]), number(head[2]), number(head[3] or "0"))


def _units(nbytes: int) -> int:
    """Bytes in multiples of the alignment."""
    return -(-nbytes // ALIGNMENT)


def _take_over(requests: Sequence[Request], similar: float) -> dict[int, int]:
    """Which request takes over which (by position): the largest savings first, each buffer taken over and taking over at most once.

    `similar` is how much of the larger buffer the smaller must be, at least.
    """
    position = {r.name: i for i, r in enumerate(requests)}
    wishes = []
    for i, r in enumerate(requests):
        for name in r.may_share:
            j = position.get(name)
            # A buffer that nothing reads is dead where it was born: there is no later step at which to take it over.
            if j is not None and requests[j].first < requests[j].last == r.first and not (r.own and requests[j].nbytes > r.nbytes):
                small, large = sorted((_units(requests[j].nbytes), _units(r.nbytes)))
                if small and small >= similar * large:
                    wishes.append((-small, large - small, i, j))
    taken: dict[int, int] = {}
    gone: set[int] = set()
    for _, _, i, j in sorted(wishes):
        if i not in taken and j not in gone:
            taken[i] = j
            gone.add(j)
    for i, r in enumerate(requests):
        # What an output takes over fits into it, from the first of the chain on.
        while r.own and i in taken:
            i = taken[i] if requests[taken[i]].nbytes <= r.nbytes else taken.pop(i)
    return taken


def _chains(count: int, taken: dict[int, int]) -> list[list[int]]:
    """Requests that share memory, each chain in order of time."""
    following = {j: i for i, j in taken.items()}
    chains = []
    for start in range(count):
        if start not in taken:
            chain = [start]
            while chain[-1] in following:
                chain.append(following[chain[-1]])
            chains.append(chain)
    return chains


def _box(chain: Sequence[Request]) -> Box:
    """What a chain occupies over time: disjoint (first, last, units); a step that two members share goes to the larger."""
    box: list[tuple[int, int, int]] = []
    for r in chain:
        first, size = r.first, _units(r.nbytes)
        while box and box[-1][1] >= first:
            before, last, old = box.pop()
            if old == size:
                first = before
            elif old > size:
                box.append((before, last, old))
                first = last + 1
                break
            elif before < first:
                box.append((before, first - 1, old))
        if first <= r.last:
            box.append((first, r.last, size))
    return tuple(box)


def _in_workspace(requests: Sequence[Request]) -> tuple[list[Placement], int]:
    """Places in the workspace, which each step has for itself; and its size."""
    used: dict[int, int] = {}
    found = []
    for r in requests:
        offset = used.get(r.first, 0)
        used[r.first] = offset + _units(r.nbytes) * ALIGNMENT
        found.append(Placement(r.name, offset, r.nbytes, r.first, r.last, "", r.label, WORKSPACE))
    return found, max(used.values(), default=0)


def plan_memory(requests: Sequence[Request]) -> MemoryPlan:
    """Place every request, in one arena but for outputs, what fits into those, and scratch. Deterministic. ValueError for two requests of one
    name, names or labels with spaces, negative sizes, lifetimes that end before they begin, and scratch of several steps."""
    if len({r.name for r in requests}) != len(requests):
        raise ValueError("two requests have one name")
    for r in requests:
        if not r.name or any(c.isspace() for c in r.name + r.label):
            raise ValueError(f"name {r.name!r} or label {r.label!r} is empty or has spaces")
        if r.first > r.last or r.nbytes < 0 or (r.scratch and r.first != r.last):
            raise ValueError(f"%{r.name} needs {r.nbytes} bytes in steps {r.first}..{r.last}")
    placements, workspace = _in_workspace([r for r in requests if r.scratch])
    requests = [r for r in requests if not r.scratch]
    # Buffers of very different size that must start together pack badly: where all takeovers miss the bound, fewer are tried.
    best: _Layout | None = None
    bound, tried = -1, []
    for similar in (0.0, 0.5, 1.0):
        taken = _take_over(requests, similar)
        if taken in tried:
            continue
        tried.append(taken)
        layout = _lay_out(requests, taken)
        bound = layout.bound if bound < 0 else min(bound, layout.bound)
        if best is None or layout.top < best.top:
            best = layout
        if best.top == bound:
            break
    homes = {home for i, (home, _) in best.places.items() if home != i}
    for i, r in enumerate(requests):
        home, offset = best.places[i]
        if not r.own or i in homes:
            over = requests[best.taken[i]].name if i in best.taken else ""
            placements.append(Placement(r.name, offset * ALIGNMENT, r.nbytes, r.first, r.last, over, r.label,
                                        requests[home].name if home >= 0 else ""))
    placements.sort(key=lambda p: (p.home, p.offset, p.first, p.name))
    return MemoryPlan(tuple(placements), best.top * ALIGNMENT, bound * ALIGNMENT, workspace)


@dataclass(frozen=True)
class _Layout:
    """Who takes over whom, each one's place (the output that is its home or -1 for the arena, and the offset), all by position; the top
    of the arena and its lower bound. In units."""

    taken: dict[int, int]
    places: dict[int, tuple[int, int]]
    top: int
    bound: int


def _lay_out(requests: Sequence[Request], taken: dict[int, int]) -> _Layout:
    chains = _chains(len(requests), taken)
    boxes = {chain[-1]: _box([requests[i] for i in chain]) for chain in chains}
    rooms = {i: Room(r.nbytes, ALIGNMENT) for i, r in enumerate(requests) if r.own}
    places = {i: (i, 0) for i in rooms}
    for i, room in rooms.items():
        room.add(boxes.pop(i), 0)
    if rooms:
        largest = {chain[-1]: max(requests[i].nbytes for i in chain) for chain in chains}
        ends = list(boxes)
        for position, (room, offset) in house(list(boxes.values()), [largest[i] for i in ends], list(rooms.values())).items():
            places[ends[position]] = (list(rooms)[room], offset)
            del boxes[ends[position]]
    rest = list(boxes.values())
    bound = lower_bound(rest)
    places.update(zip(boxes, ((-1, offset) for offset in place(rest, bound))))
    top = max((places[i][1] + size for i, box in boxes.items() for _, _, size in box), default=0)
    return _Layout(taken, {i: places[chain[-1]] for chain in chains for i in chain}, top, bound)
