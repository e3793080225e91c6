"""The machine's limits, and the floor of a workload: the least time that they leave it.

The figures come from `mlc.tools.bench.probe`; here is only what follows from them, so that a stored run can be read anywhere.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

Curve = list[list[float]]  # [bytes of the working set, bytes per second], growing in the first


@dataclass(frozen=True)
class Limits:
    """What a number of threads can do at most: operations a second by dtype, bandwidth by kind and working set, seconds an element by function."""

    peak: dict[str, float]
    bandwidth: dict[str, Curve]
    functions: dict[str, float] = field(default_factory=dict)

    def operations(self, dtype: str) -> float:
        """Operations a second; a dtype without instructions of its own computes as f32, and so does bf16 where those are slower."""
        own, single = self.peak.get(dtype, 0.0), self.peak["f32"]
        return max(own, single) if dtype == "bf16" else own or single

    def rate(self, kind: str, working_set: float) -> float:
        """Bytes a second of "read", "write" or "copy", by the better of the ways probed."""
        return max(_at(envelope(self.bandwidth[name]), working_set) for name in self.bandwidth
                   if name.partition("_")[0] == kind)

    def traffic(self, read: float, written: float) -> float:
        """Seconds to read and write so much: what pairs up is copied, the rest only read, or only written."""
        total = read + written
        if not total:
            return 0.0
        paired = min(read, written)
        return (2 * paired / self.rate("copy", total) + (read - paired) / self.rate("read", total)
                + (written - paired) / self.rate("write", total))

    def parts(self, dtype: str, flops: float, read: float, written: float, functions: dict[str, float], clock: float = 1.0) -> dict[str, float]:
        """The three floors in seconds: "compute", "memory" and "functions"; `clock` is how fast the core ran, against when it was probed."""
        return {"compute": flops / self.operations(dtype) / clock, "memory": self.traffic(read, written),
                "functions": sum(count * self.functions.get(name, 0.0) for name, count in functions.items()) / clock}


@dataclass(frozen=True)
class Machine:
    """The limits by number of threads, and what the CPU calls itself."""

    cpu: str
    limits: dict[int, Limits]

    def to_json(self) -> dict[str, Any]:
        return {"cpu": self.cpu, "limits": {str(n): asdict(limits) for n, limits in self.limits.items()}}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Machine:
        return Machine(data["cpu"], {int(n): Limits(**limits) for n, limits in data["limits"].items()})

    def merged(self, other: Machine) -> Machine:
        """The better of two probings in everything: a shared machine has bad moments, never too good ones."""
        return Machine(self.cpu, {n: _merged(limits, other.limits[n]) for n, limits in self.limits.items()})


def _merged(a: Limits, b: Limits) -> Limits:
    return Limits({k: max(v, b.peak.get(k, 0.0)) for k, v in a.peak.items()},
                  {k: [[size, max(rate, other)] for (size, rate), (_, other) in zip(v, b.bandwidth[k])] for k, v in a.bandwidth.items()},
                  {k: min(v, b.functions.get(k, math.inf)) for k, v in a.functions.items()})


def envelope(curve: Curve) -> Curve:
    """The curve made to fall with size: a larger set that went faster shows that the smaller one was disturbed."""
    best, result = 0.0, []
    for size, rate in reversed(curve):
        best = max(best, rate)
        result.append([size, best])
    return result[::-1]


def _at(curve: Curve, size: float) -> float:
    """The rate at a size: between two measured sizes linear in its logarithm, outside of them the nearest."""
    for (low, fast), (high, slow) in zip(curve, curve[1:]):
        if low <= size <= high:
            share = math.log(size / low) / math.log(high / low)
            return fast + (slow - fast) * share
    return curve[0][1] if size < curve[0][0] else curve[-1][1]
