"""The order of kernel steps: which topological order keeps the least memory alive at once.

Minimising the peak is NP-hard in general (register sufficiency; Sethi 1975), so: the program is cut at steps that every
other one must precede or follow, whose order is forced; each piece is searched best-first over sets of finished steps,
which is exact while a budget lasts; larger pieces take the best of a beam, greedy orders and a Sethi-Ullman postorder.
The written order wins ties, so a program that cannot gain stays as it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from mlc.core.dataclass import dataclass
from mlc.memory.plan import ALIGNMENT

# States that the exact search of one piece may expand, and candidate moves that a beam may look at.
_EXACT_MOVES = 2_000
_BEAM_MOVES = 8_000
# A finished order is improved in windows of this many steps, so many times over.
_WINDOW = 32
_PASSES = 6


@dataclass(frozen=True)
class Step:
    """A kernel call: the names it reads, and the (name, bytes) it writes; `in_place` pairs (written, read) may share memory if
    nothing reads the second one afterwards. Names that no step writes (inputs, constants) cost nothing."""

    reads: tuple[str, ...]
    writes: tuple[tuple[str, int], ...]
    in_place: tuple[tuple[str, str], ...] = ()


class _Program:
    """Steps and values as numbers. `readers[v]`: steps that read v; `uses[s]`: values some step wrote that s reads."""

    def __init__(self, steps: Sequence[Step], deps: Sequence[Sequence[int]], keep: Collection[str]):
        self.count = len(steps)
        self.size: list[int] = []
        self.made_by: list[int] = []
        number: dict[str, int] = {}
        for s, step in enumerate(steps):
            for name, nbytes in step.writes:
                if name in number:
                    raise ValueError(f"%{name} is written twice, by steps {self.made_by[number[name]]} and {s}")
                number[name] = len(self.size)
                self.size.append(-(-nbytes // ALIGNMENT))
                self.made_by.append(s)
        self.stays = [False] * len(self.size)
        for name in keep:
            if name in number:
                self.stays[number[name]] = True
        self.makes = [[number[name] for name, _ in step.writes] for step in steps]
        self.uses = [[number[name] for name in dict.fromkeys(step.reads) if name in number] for step in steps]
        self.shares = [sorted(((number[w], number[r]) for w, r in step.in_place if r in number),
                              key=lambda pair: (-min(self.size[pair[0]], self.size[pair[1]]), pair)) for step in steps]
        self.readers: list[list[int]] = [[] for _ in self.size]
        self.before: list[list[int]] = []
        for s, used in enumerate(self.uses):
            for v in used:
                self.readers[v].append(s)
            self.before.append(sorted({self.made_by[v] for v in used} | set(deps[s] if deps else ())))
        self.made = [sum(self.size[v] for v in made) for made in self.makes]
        self.kept = [sum(self.size[v] for v in made if self.readers[v] or self.stays[v]) for made in self.makes]
        self.after: list[list[int]] = [[] for _ in steps]
        for s, earlier in enumerate(self.before):
            for p in earlier:
                self.after[p].append(s)

    def cost(self, s: int, dying: Collection[int]) -> tuple[int, int]:
        """(memory on top of what is alive while step s runs, change of what is alive by it), given which of its operands die."""
        saved = 0
        if self.shares[s]:
            taken: set[int] = set()
            for w, r in self.shares[s]:
                if r in dying and w not in taken and r not in taken:
                    taken |= {w, r}
                    saved += min(self.size[w], self.size[r])
        freed = 0
        for v in dying:
            freed += self.size[v]
        return self.made[s] - saved, self.kept[s] - freed

    def simulate(self, order: Sequence[int]) -> list[int]:
        """Memory alive while each step of the order runs. ValueError if it is not a topological order."""
        left = [len(r) for r in self.readers]
        done = [False] * self.count
        alive, found = 0, []
        for s in order:
            if done[s] or not all(done[p] for p in self.before[s]):
                raise ValueError(f"step {s} comes too early or twice")
            done[s] = True
            for v in self.uses[s]:
                left[v] -= 1
            top, change = self.cost(s, {v for v in self.uses[s] if not left[v] and not self.stays[v]})
            found.append(alive + top)
            alive += change
        return found


def peak_bytes(steps: Sequence[Step], order: Sequence[int], deps: Sequence[Sequence[int]] = (), keep: Collection[str] = ()) -> int:
    """The most memory alive at once when the steps run in this order, in-place pairs sharing. ValueError if it breaks a dependency."""
    return max(_Program(steps, deps, keep).simulate(order), default=0) * ALIGNMENT


def order_steps(steps: Sequence[Step], deps: Sequence[Sequence[int]] = (), keep: Collection[str] = ()) -> list[int]:
    """An order of the steps with a low peak, never above that of the order given.

    A step runs after those that write what it reads, and after the steps `deps[s]`. Values in `keep` are alive to the end
    once written. Deterministic. ValueError if the given order is no topological order or a value is written twice.
    """
    program = _Program(steps, deps, keep)
    written = program.simulate(range(len(steps)))
    goal = max((_alone(program, s) for s in range(len(steps))), default=0)
    order = list(range(len(steps)))
    if max(written, default=0) <= goal:
        return order
    order, _, proven = _improve(program, list(_pieces(program)), goal)
    # One window over everything would be searched as the pieces were.
    for turn in range(int(len(steps) <= _WINDOW), 0 if proven else _PASSES):
        place = {s: i for i, s in enumerate(order)}
        moved = _Program([steps[s] for s in order], [[place[p] for p in deps[s]] for s in order] if deps else (), keep)
        starts = [0, *range(_WINDOW // 2 if turn % 2 else _WINDOW, len(steps), _WINDOW)]
        windows = [list(range(a, b)) for a, b in zip(starts, [*starts[1:], len(steps)])]
        found, better, _ = _improve(moved, windows, goal)
        order = [order[i] for i in found]
        if turn and not better:
            break
    return order if max(program.simulate(order)) < max(written) else list(range(len(steps)))


def _improve(program: _Program, stretches: list[list[int]], goal: int) -> tuple[list[int], bool, bool]:
    """Search stretches of the order 0, 1, ... again: the highest first, until one cannot get below the next.

    Returns (order, whether any got lower, whether no order of the steps within their stretches has a lower peak).
    """
    tops = program.simulate(range(program.count))
    order, floor, better, proven = list(range(program.count)), goal, False, True
    for stretch in sorted(stretches, key=lambda s: (-max(tops[s[0]:s[-1] + 1]), s[0])):
        now = max(tops[stretch[0]:stretch[-1] + 1])
        if now <= floor:
            break
        piece = _Piece(program, stretch)
        found, top, exact = piece.solve(max(floor, piece.at_least))
        if top < now:
            order[stretch[0]:stretch[-1] + 1] = found
            better = True
        if min(top, now) > floor:
            floor, proven = min(top, now), exact
    return order, better, proven


def _alone(program: _Program, s: int) -> int:
    """What step s needs whenever it runs."""
    used = {v for v in program.uses[s] if not program.stays[v]}
    return program.cost(s, used)[0] + sum(program.size[v] for v in program.uses[s])


def _pieces(program: _Program) -> Iterator[list[int]]:
    """The steps cut before and after each one that is comparable to all others. In the order given, that is one which is the
    only sink among the steps up to it, and the only source among those from it on."""
    n = program.count
    sinks, sources = [0] * (n + 1), [0] * (n + 1)
    for s in range(n):
        # s is a sink of every prefix that ends before its first successor, a source of every suffix from past its last predecessor.
        sinks[s] += 1
        sinks[min(program.after[s], default=n)] -= 1
        sources[max(program.before[s], default=-1) + 1] += 1
        sources[s + 1] -= 1
    piece: list[int] = []
    open_sinks = open_sources = 0
    for s in range(n):
        open_sinks += sinks[s]
        open_sources += sources[s]
        if open_sinks == 1 and open_sources == 1:
            if piece:
                yield piece
            yield [s]
            piece = []
        else:
            piece.append(s)
    if piece:
        yield piece


class _State(NamedTuple):
    """Finished steps (a bit set), what may run next, memory alive now and at the worst moment so far, and the last step run."""

    done: int
    ready: tuple[int, ...]
    alive: int
    peak: int
    step: int = -1
    parent: _State | None = None

    def steps(self) -> list[int]:
        found, state = [], self
        while state.parent is not None:
            found.append(state.step)
            state = state.parent
        return found[::-1]


class _Piece:
    """Steps that run together, numbered from 0, after everything before them and before everything after."""

    def __init__(self, program: _Program, steps: list[int]):
        self.program, self.steps = program, steps
        local = {s: i for i, s in enumerate(steps)}
        inside = set(steps)
        used = dict.fromkeys(v for s in steps for v in program.uses[s])
        # Operands that may die here, with the steps here that read them.
        self.readers = {v: sum(1 << local[s] for s in program.readers[v] if s in inside) for v in used
                        if not program.stays[v] and max(program.readers[v]) <= steps[-1]}
        self.uses = [[v for v in program.uses[s] if v in self.readers] for s in steps]
        self.before = [sum(1 << local[p] for p in program.before[s] if p in inside) for s in steps]
        self.after = [[local[t] for t in program.after[s] if t in inside] for s in steps]
        self.alive = sum(size for v, size in enumerate(program.size)
                         if program.made_by[v] < steps[0] and (program.stays[v] or max(program.readers[v], default=-1) >= steps[0]))
        outside = self.alive - sum(program.size[v] for v in used if program.made_by[v] < steps[0])
        self.at_least = max(_alone(program, s) for s in steps) + outside

    def start(self) -> _State:
        return _State(0, tuple(i for i, earlier in enumerate(self.before) if not earlier), self.alive, 0)

    def measure(self, state: _State, s: int) -> tuple[int, int]:
        """(memory while step s runs, change of what is alive)."""
        left, bit, dying = ~state.done, 1 << s, []
        for v in self.uses[s]:
            if self.readers[v] & left == bit:
                dying.append(v)
        top, change = self.program.cost(self.steps[s], dying)
        return state.alive + top, change

    def run(self, state: _State, s: int, top: int, change: int) -> _State:
        done = state.done | 1 << s
        ready = [t for t in state.ready if t != s]
        for t in self.after[s]:
            if not self.before[t] & ~done:
                ready.append(t)
        return _State(done, tuple(ready), state.alive + change, max(state.peak, top), s, state)

    def settle(self, state: _State, goal: int) -> tuple[_State, list[tuple[int, int, int]]]:
        """Run all that is free: a step which needs no more than the goal and leaves no more alive can only help the others.
        Returns the state, and the moves (memory, change, step) left to choose from."""
        moved = True
        while moved:
            moved, moves = False, []
            for s in state.ready:
                top, change = self.measure(state, s)
                if change <= 0 and top <= max(goal, state.peak):
                    state = self.run(state, s, top, change)
                    moved = True
                elif not moved:
                    moves.append((top, change, s))
        return state, moves

    def solve(self, goal: int) -> tuple[list[int], int, bool]:
        """The best order found, its peak, and whether that is the least there is; stops at `goal`, below which the whole program cannot get."""
        best = self.exact(goal)
        exact = best is not None
        if best is None:
            orders = [range(len(self.steps)), self.greedy(lambda top, change, age: (change, top)),
                      self.greedy(lambda top, change, age: (-age, change)), self.postorder()]
            measured = [self.replay(order) for order in orders]
            if len(self.steps) * max(len(s.ready) for s in self.trail(measured[1])) <= _BEAM_MOVES:
                measured += self.beam(goal)
            best = min(measured, key=lambda state: state.peak)
        return [self.steps[s] for s in best.steps()], best.peak, exact

    def trail(self, state: _State) -> Iterator[_State]:
        while state.parent is not None:
            yield state
            state = state.parent

    def replay(self, order: Sequence[int]) -> _State:
        state = self.start()
        for s in order:
            state = self.run(state, s, *self.measure(state, s))
        return state

    def exact(self, goal: int) -> _State | None:
        """Best-first over sets of finished steps: the first complete one out of the heap has the least peak. None once the budget is spent."""
        heap: list[tuple[int, int, int, int, _State]] = []
        seen: set[int] = set()
        serial, moves_left = 0, _EXACT_MOVES
        heapq.heappush(heap, (goal, 0, 0, serial, self.start()))
        everything = (1 << len(self.steps)) - 1
        while heap:
            state = heapq.heappop(heap)[-1]
            if state.done in seen:
                continue
            seen.add(state.done)
            state, moves = self.settle(state, goal)
            if state.done == everything:
                return state
            moves_left -= len(moves) + 1
            if moves_left < 0:
                return None
            for top, change, s in moves:
                following = self.run(state, s, top, change)
                if following.done not in seen:
                    serial += 1
                    heapq.heappush(heap, (max(goal, following.peak), -following.done.bit_count(), following.alive, serial, following))
        return None

    def beam(self, goal: int) -> list[_State]:
        """A few complete states, from a search that keeps the most promising states of each generation."""
        states, complete = [self.start()], []
        everything = (1 << len(self.steps)) - 1
        width = 4
        budget = _BEAM_MOVES
        while states:
            following: dict[int, _State] = {}
            looked = 0
            for state in states:
                state, moves = self.settle(state, goal)
                if state.done == everything:
                    complete.append(state)
                looked += len(moves) + 1
                for top, change, s in moves:
                    made = self.run(state, s, top, change)
                    known = following.get(made.done)
                    if known is None or made.peak < known.peak:
                        following[made.done] = made
            budget -= looked
            # As wide as the budget allows for the steps that are left.
            left = len(self.steps) - min((s.done.bit_count() for s in following.values()), default=0)
            each = max(1, looked // len(states))
            width = max(4, min(256, budget // max(1, left * each)))
            states = heapq.nsmallest(width, following.values(), key=lambda s: (max(goal, s.peak), s.alive, s.done))
        return complete

    def greedy(self, priority: Callable[[int, int, int], tuple]) -> list[int]:
        """List scheduling: always the ready step with the least priority(memory, change, when it became ready)."""
        left = {v: readers.bit_count() for v, readers in self.readers.items()}
        missing = [earlier.bit_count() for earlier in self.before]
        reading = {v: [] for v in left}
        for s, used in enumerate(self.uses):
            for v in used:
                reading[v].append(s)
        age = [0] * len(self.steps)
        order: list[int] = []
        done = [False] * len(self.steps)

        def entry(s: int) -> tuple:
            top, change = self.program.cost(self.steps[s], [v for v in self.uses[s] if left[v] == 1])
            return (*priority(top, change, age[s]), s)

        heap = [entry(s) for s, count in enumerate(missing) if not count]
        heapq.heapify(heap)
        while heap:
            s = heapq.heappop(heap)[-1]
            if done[s]:
                continue
            done[s] = True
            order.append(s)
            for v in self.uses[s]:
                left[v] -= 1
                if left[v] == 1:  # one reader is left: its step now frees v, so it moves up
                    for t in reading[v]:
                        if not done[t] and not missing[t]:
                            heapq.heappush(heap, entry(t))
            for t in self.after[s]:
                missing[t] -= 1
                if not missing[t]:
                    age[t] = len(order)
                    heapq.heappush(heap, entry(t))
        return order

    def postorder(self) -> list[int]:
        """Sethi and Ullman's order, as if the graph were a tree: finish the operand that needs most, relative to what it leaves, first."""
        program, need = self.program, []
        kept = [sum(program.size[v] for v in program.makes[s]) for s in self.steps]
        children = [_bits(earlier) for earlier in self.before]
        for s, operands in enumerate(children):
            operands.sort(key=lambda p: (kept[p] - need[p], p))
            held = most = 0
            for p in operands:
                most = max(most, held + need[p])
                held += kept[p]
            need.append(max(most, held + kept[s]))
        order: list[int] = []
        done = [False] * len(self.steps)
        sinks = [s for s in range(len(self.steps)) if not self.after[s]]
        for sink in sorted(sinks, key=lambda s: (kept[s] - need[s], s)):
            stack = [(sink, 0)]
            while stack:
                s, at = stack.pop()
                if done[s]:
                    continue
                if at < len(children[s]):
                    stack += [(s, at + 1), (children[s][at], 0)]
                else:
                    done[s] = True
                    order.append(s)
        return order


def _bits(mask: int) -> list[int]:
    """The positions of the set bits."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
