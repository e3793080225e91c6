"""Placing boxes in an arena: offsets for pieces of memory with lifetimes, so that none alive together overlap and the top is low.

Dynamic storage allocation is NP-hard, so several heuristics run, cheapest first, until one meets the lower bound: an
allocator's free list forward and backward in time; greedy placement by breadth, size, area and lifetime (Pisarchyk and
Lee, "Efficient memory management for deep neural net inference", 2020); then a bounded local search over placement orders
around the boxes that stick out on top. Everything is deterministic. Sizes are in units of the alignment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import random

# What a box occupies: disjoint (first step, last step, units), in order of time.
Box = tuple[tuple[int, int, int], ...]

# Above this many neighbours on average, conflicts are found with NumPy over all boxes instead of through lists.
_DENSE = 150
# Effort is counted in conflicts looked at. Past the first limit a top within 5% of the bound will do, past the second any.
_WORK, _MOST_WORK = 300_000, 800_000
# Placement runs of the local search while the top is over 2% above the bound, and once it is not.
_SEARCH_RUNS, _CLOSE_RUNS = 400, 60


def lower_bound(boxes: Sequence[Box]) -> int:
    """The most units that are occupied at one step."""
    change: dict[int, int] = {}
    for box in boxes:
        for first, last, size in box:
            change[first] = change.get(first, 0) + size
            change[last + 1] = change.get(last + 1, 0) - size
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most


def place(boxes: Sequence[Box], bound: int) -> list[int]:
    """An offset for each box; `bound` is `lower_bound(boxes)`, at which the search stops."""
    solid = [i for i, box in enumerate(boxes) if any(size for _, _, size in box)]
    problem = _Problem([boxes[i] for i in solid], bound)
    best = problem.solve() if solid else []
    offsets = [0] * len(boxes)
    for i, offset in zip(solid, best):
        offsets[i] = offset
    return offsets


class _Problem:
    def __init__(self, boxes: list[Box], bound: int):
        self.boxes, self.bound, self.work = boxes, bound, 0
        self.size = [max(size for _, _, size in box) for box in boxes]
        self.first = [box[0][0] for box in boxes]
        self.last = [box[-1][1] for box in boxes]
        self.area = [sum((last - first + 1) * size for first, last, size in box) for box in boxes]

    def solve(self) -> list[int]:
        best: list[int] = []
        chosen: list[int] = []
        least = -1
        for order, offsets in self.candidates():
            top = self.top(offsets)
            if least < 0 or top < least:
                best, least, chosen = offsets, top, order
            if self.enough(least):
                return best
        return self.search(chosen or sorted(range(len(best)), key=lambda i: (best[i], -self.size[i], i)), best, least)

    def enough(self, top: int) -> bool:
        return top == self.bound or (self.work > _WORK and (top <= 1.05 * self.bound or self.work > _MOST_WORK))

    def top(self, offsets: Sequence[int]) -> int:
        return max(offset + size for offset, size in zip(offsets, self.size))

    def candidates(self) -> Iterable[tuple[list[int], list[int]]]:
        """(order, or [] if there was none, offsets) of each heuristic."""
        for backward in (False, True):
            for tight in (False, True):
                yield [], _free_list(self.first, self.last, self.size, backward, tight)
        self.conflicts = _conflicts(self.boxes)
        for order in self.orders():
            for tight in (False, True):
                yield order, self.greedy(order, tight)

    def orders(self) -> list[list[int]]:
        everyone = range(len(self.boxes))
        lifetime = [last - first for first, last in zip(self.first, self.last)]
        crowd = self.crowds()
        return [sorted(everyone, key=key) for key in (
            lambda i: (-crowd[i], -self.size[i], i),
            lambda i: (-self.size[i], -lifetime[i], i), lambda i: (-self.area[i], -self.size[i], i),
            lambda i: (-lifetime[i], -self.size[i], i))]

    def crowds(self) -> list[int]:
        """For each box, the most units alive at any step of its life: what must fit together goes first."""
        steps = sorted({step for box in self.boxes for first, last, _ in box for step in (first, last + 1)})
        place = {step: i for i, step in enumerate(steps)}
        change = np.zeros(len(steps), np.int64)
        for box in self.boxes:
            for first, last, size in box:
                change[place[first]] += size
                change[place[last + 1]] -= size
        # levels[k][i] is the most alive in the 2^k intervals from i on.
        levels = [np.cumsum(change)]
        while 1 << len(levels) <= len(steps):
            half = 1 << len(levels) - 1
            levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
        found = []
        for first, last in zip(self.first, self.last):
            low, high = place[first], place[last + 1]
            k = (high - low).bit_length() - 1
            found.append(int(max(levels[k][low], levels[k][high - (1 << k)])))
        return found

    def greedy(self, order: Sequence[int], tight: bool) -> list[int]:
        """Each box in turn at the lowest free offset, or (tight) in the gap it fills best."""
        offsets = [-1] * len(self.boxes)
        for i in order:
            offsets[i] = lowest(self.conflicts.of(i, offsets), tight)
            self.conflicts.placed(i, offsets[i])
        self.conflicts.clear()
        self.work += self.conflicts.work
        return offsets

    def search(self, order: list[int], best: list[int], least: int) -> list[int]:
        """Hill climbing on the order: boxes on top, and boxes below that they rest on, go earlier."""
        import random  # few plans need a search, and every process that compiles would pay for it
        rng = random.Random(len(self.boxes))
        current, height = best, least
        for run in range(_SEARCH_RUNS):
            if self.enough(least) or (run >= _CLOSE_RUNS and least <= 1.02 * self.bound):
                break
            trial = self.perturbed(order, current, height, rng)
            offsets = self.greedy(trial, run % 2 == 1)
            top = self.top(offsets)
            if top <= height:
                order, current, height = trial, offsets, top
                if top < least:
                    best, least = offsets, top
        return best

    def perturbed(self, order: list[int], offsets: list[int], top: int, rng: random.Random) -> list[int]:
        """The order with a box on top, or one alive with it, moved to an earlier place (now and then swapped with any)."""
        peaks = [i for i in order if offsets[i] + self.size[i] == top]
        chosen = rng.choice(peaks)
        if rng.random() < 0.6:
            chosen = rng.choice([j for j in order if self.first[j] <= self.last[chosen] and self.first[chosen] <= self.last[j]])
        at = order.index(chosen)
        to = rng.randrange(at + 1) if rng.random() < 0.8 else rng.randrange(len(order))
        trial = order[:at] + order[at + 1:]
        trial.insert(to, chosen)
        return trial


def lowest(forbidden: list[tuple[int, int]], tight: bool) -> int:
    """The least x >= 0 with no `low < x < high` among the forbidden intervals; `tight`: the one with least room above it."""
    forbidden.sort()
    x, best, room = 0, -1, -1
    for low, high in forbidden:
        if low >= x:
            if not tight:
                return x
            if room < 0 or low - x < room:
                best, room = x, low - x
        if high > x:
            x = high
    return x if best < 0 else best


class _Lists:
    """For each box, its neighbours in time, with the sizes that meet."""

    def __init__(self, boxes: Sequence[Box], pairs: list[list[tuple[int, int, int]]]):
        self.pairs = pairs
        self.work = sum(map(len, pairs)) + len(boxes)

    def of(self, i: int, offsets: list[int]) -> list[tuple[int, int]]:
        return [(offsets[j] - ours, offsets[j] + theirs) for j, ours, theirs in self.pairs[i] if offsets[j] >= 0]

    def placed(self, i: int, offset: int) -> None:
        """Nothing to do: `of` reads the offsets."""

    def clear(self) -> None:
        """Nothing to forget."""


class _Arrays:
    """The same for crowded problems: every placed segment in arrays that are searched at once."""

    def __init__(self, boxes: Sequence[Box]):
        self.boxes, self.count = boxes, 0
        self.rows = np.zeros((4, sum(map(len, boxes))), np.int64)  # first, last, low, high of placed segments
        self.work = len(boxes) * 100

    def of(self, i: int, offsets: list[int]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        first, last, low, high = self.rows[:, :self.count]
        for begin, end, size in self.boxes[i]:
            meet = np.flatnonzero((first <= end) & (last >= begin))
            if meet.size:
                found += _merged(low[meet] - size, high[meet])
        return found

    def placed(self, i: int, offset: int) -> None:
        for begin, end, size in self.boxes[i]:
            self.rows[:, self.count] = begin, end, offset, offset + size
            self.count += 1

    def clear(self) -> None:
        self.count = 0


def _merged(low: np.ndarray, high: np.ndarray) -> list[tuple[int, int]]:
    """Open intervals that overlap, merged: few are left, and Python walks those."""
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    # A new run starts where an interval begins at or above everything before it ends.
    starts = np.flatnonzero(np.concatenate(([True], low[1:] >= high[:-1])))
    ends = np.concatenate((starts[1:] - 1, [len(low) - 1]))
    return list(zip(low[starts].tolist(), high[ends].tolist()))


def _conflicts(boxes: Sequence[Box]) -> _Lists | _Arrays:
    segments = sorted((first, last, size, i) for i, box in enumerate(boxes) for first, last, size in box)
    alive: list[tuple[int, int, int]] = []  # (last, size, box)
    pairs: list[list[tuple[int, int, int]]] = [[] for _ in boxes]
    total = 0
    for first, last, size, i in segments:
        del alive[:bisect_left(alive, (first, 0, 0))]
        total += len(alive)
        if total > _DENSE * len(boxes):
            return _Arrays(boxes)
        for _, other, j in alive:
            pairs[i].append((j, size, other))
            pairs[j].append((i, other, size))
        insort(alive, (last, size, i))
    return _Lists(boxes, pairs)


def _free_list(first: Sequence[int], last: Sequence[int], size: Sequence[int], backward: bool, tight: bool) -> list[int]:
    """What an allocator would do as time passes (or runs backward): lowest or tightest free gap, freed when dead."""
    if backward:
        end = max(last)
        first, last = [end - step for step in last], [end - step for step in first]
    offsets = [0] * len(size)
    gaps: list[tuple[int, int]] = []  # free [low, high) below `top`, in order
    top = 0
    dying = sorted(range(len(size)), key=lambda i: last[i])
    dead = 0
    for i in sorted(range(len(size)), key=lambda i: (first[i], -size[i], i)):
        while last[dying[dead]] < first[i]:
            gone = dying[dead]
            dead += 1
            top = _release(gaps, offsets[gone], offsets[gone] + size[gone], top)
        fits = [(high - low, low) for low, high in gaps if high - low >= size[i]]
        if not fits:
            offsets[i], top = top, top + size[i]
            continue
        room, low = min(fits) if tight else min(fits, key=lambda fit: fit[1])
        offsets[i] = low
        at = bisect_left(gaps, (low, 0))
        gaps[at:at + 1] = [(low + size[i], low + room)] if room > size[i] else []
    return offsets


def _release(gaps: list[tuple[int, int]], low: int, high: int, top: int) -> int:
    """Give [low, high) back to the gaps, joined with its neighbours; returns the new top."""
    at = bisect_left(gaps, (low, 0))
    if at < len(gaps) and gaps[at][0] == high:
        high = gaps.pop(at)[1]
    if at and gaps[at - 1][1] == low:
        at -= 1
        low = gaps.pop(at)[0]
    if high == top:
        return low
    gaps.insert(at, (low, high))
    return top
