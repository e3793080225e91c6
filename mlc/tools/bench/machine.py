"""The machine's limits, probed by mlc's own kernels in the run that needs them: peak f32 flops and copy bandwidth of one thread."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Machine:
    """flops and bytes per second of one thread; bandwidth by size of the data: (bytes, bytes per second), growing."""

    peak_flops: float
    bandwidth: tuple[tuple[float, float], ...]

    def floor(self, flops: float, nbytes: float) -> float:
        """Seconds that no implementation on one thread can beat: the larger of compute and traffic."""
        rate = next((r for size, r in self.bandwidth if nbytes <= size), self.bandwidth[-1][1])
        return max(flops / self.peak_flops, nbytes / rate)


def _best(call, seconds: float = 0.25) -> float:
    call()
    until, best = time.perf_counter() + seconds, float("inf")
    while time.perf_counter() < until:
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best


def probe() -> Machine:
    """Measure on the thread that calls."""
    import mlc
    n = 256
    x = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    product = mlc.jit(lambda a, b: a @ b)
    peak = 2 * n**3 / _best(lambda: product(x, x))
    bandwidth = []
    for size in (1 << 16, 1 << 19, 1 << 23, 1 << 27):
        source = np.ones(size // 8, np.float32)
        target = np.empty_like(source)
        bandwidth.append((float(size), size / _best(lambda s=source, t=target: np.copyto(t, s))))
    return Machine(peak, tuple(bandwidth))
