"""What is measured: each workload is one function of a library's `np` and `nn` namespaces, its arguments, and what it costs at least.

`mlc.tools.bench.ops` has the single ops, `mlc.tools.bench.programs` the programs; `mlc.tools.bench.worker` says what `np` and `nn` are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Function = Callable[..., Any]

# What the geometric means of the summary are over: a name, and the groups that belong to it.
MEANS = {"matmul": ("matmul",), "memory-bound": ("rows", "elementwise", "functions"), "programs": ("programs", "attention")}
GROUPS = ("matmul", "skinny", "dtypes", "rows", "elementwise", "functions", "integers", "programs", "attention", "compile", "calls")

# torch.compile needs seconds for each, and calls eager torch's functions for contractions: it is asked where it fuses something.
COMPILED = frozenset((
    "softmax 1024x512", "layer norm 1024x512", "softmax 16384x1024", "layer norm 16384x1024", "column sums 1024x1024", "full sum 1024x1024",
    "transpose 1024x1024", "multiply-add chain 1M", "multiply-add chain 16M", "exp/tanh chain 1M", "gelu tanh 1M", "gelu erf 1M", "tanh 1M",
    "call 3 tiny arrays", "MLP batch 1", "MLP batch 64", "digits MLP batch 64", "block 1x256", "block 128x256", "block 128x768"))


@dataclass(frozen=True)
class Workload:
    """`build(np, nn)` returns the function, `args()` its arguments, the last `constants` of which are bound before it is compiled.

    `flops` are of `dtype`; `read` and `written` are bytes; `functions` counts elements by transcendental: what any implementation must
    do. `dram`: larger than the caches. `cold`: first calls are also measured in new processes. `exact_ulp`: the result's error is a
    function's own, so it counts an element at a time; elsewhere it counts in units of the typical element. `check`: compare with float64.
    """

    name: str
    group: str
    build: Callable[[Any, Any], Function]
    args: Callable[[], list[Any]]
    flops: float
    read: float
    written: float
    dtype: str = "f32"
    functions: dict[str, float] = field(default_factory=dict)
    constants: int = 0
    dram: bool = False
    cold: bool = False
    check: bool = True
    exact_ulp: bool = False
    quick: bool = False
    libraries: tuple[str, ...] = ("mlc", "jax", "torch", "numpy")

    def asks(self, library: str) -> bool:
        """Whether a library is measured on it."""
        return self.name in COMPILED if library == "torch.compile" else library in self.libraries


def leaves(tree: Any) -> Iterator[np.ndarray]:
    """The arrays in dicts, lists and tuples."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with its arrays replaced."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, item) for item in tree)
    return function(tree)


def normal(*shapes: tuple[int, ...], scale: float = 1.0, dtype: Any = np.float32) -> Callable[[], list[np.ndarray]]:
    """Arguments from a normal distribution."""
    def make() -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [(rng.standard_normal(size=s, dtype=np.float32) * np.float32(scale)).astype(dtype) for s in shapes]
    return make


def positive(*shapes: tuple[int, ...]) -> Callable[[], list[np.ndarray]]:
    """Arguments between 0.1 and 10."""
    return lambda: [np.random.default_rng(0).uniform(0.1, 10.0, size=s).astype(np.float32) for s in shapes]


def all_workloads() -> tuple[Workload, ...]:
    """Every workload, group by group."""
    from mlc.tools.bench import ops, programs
    return (*ops.WORKLOADS, *programs.WORKLOADS)


def select(words: list[str], quick: bool = False) -> list[Workload]:
    """Those that belong to a group named, or whose name contains a word; without words all, or the quick ones."""
    found = [w for w in all_workloads() if not words or any(word == w.group or word in w.name for word in words)]
    return [w for w in found if w.quick] if quick and not words else found
