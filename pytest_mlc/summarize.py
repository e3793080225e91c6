"""What a changed snapshot means: fusions lost and gained, peak memory, node counts. Read from the text, so a damaged file has a summary too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_NODE = re.compile(r"^\s*%\S+ = ([A-Za-z_][\w.]*)", re.M)
_KERNEL = re.compile(r"^\s*kernel @([^\s(]+?)(?:#\d+)?\(", re.M)
_BUFFER = re.compile(r"^\s*\[[\d,]+, [\d,]+\)\s+%", re.M)
_ARENA = re.compile(r"\barena ([\d,]+) B")


def stage_of(file_name: str) -> str:
    """The stage in a snapshot's file name: "optimized" of `test_mlp-4.optimized.mlc`."""
    return file_name.removesuffix(".new").removesuffix(".mlc").rpartition(".")[2]


def node_counts(text: str) -> Counter:
    """How many nodes of each op a graph's text has."""
    return Counter(_NODE.findall(text))


def kernel_names(text: str) -> Counter:
    """The kernels of a text by name, without their numbers: the name lists what is fused."""
    return Counter(_KERNEL.findall(text))


def arena_bytes(text: str) -> int | None:
    """The arena's size in a memory plan's text."""
    found = _ARENA.search(text)
    return int(found[1].replace(",", "")) if found else None


def summary(stage: str, old: str, new: str) -> list[str]:
    """One line per kind of difference between two texts of a stage; at least one line."""
    lines = []
    if stage == "kernels":
        before, after = kernel_names(old), kernel_names(new)
        lines += [f"fusions lost: {_listed(before - after)}"] * bool(before - after)
        lines += [f"fusions gained: {_listed(after - before)}"] * bool(after - before)
        if before.total() != after.total():
            lines.append(f"kernels: {before.total()} -> {after.total()}")
    if stage == "memory":
        before, after = arena_bytes(old), arena_bytes(new)
        if before != after:
            lines.append(f"peak memory: {_bytes(before)} -> {_bytes(after)}{_percent(before, after)}")
        before, after = (len(_BUFFER.findall(text)) for text in (old, new))
        lines += [f"buffers: {before} -> {after}"] * (before != after)
    before, after = node_counts(old), node_counts(new)
    if stage in ("graph", "optimized") and before != after:
        lines.append(f"nodes: {before.total()} -> {after.total()} ({_changed_counts(before, after)})")
    return lines or ["same counts; the text differs"]


def _listed(names: Counter) -> str:
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in sorted(names.items()))


def _changed_counts(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    names = sorted(set(before) | set(after))
    return ", ".join(f"{name} {before.get(name, 0)} -> {after.get(name, 0)}" for name in names if before.get(name, 0) != after.get(name, 0))


def _bytes(count: int | None) -> str:
    return "none" if count is None else f"{count:,} B"


def _percent(before: int | None, after: int | None) -> str:
    return f" ({(after - before) / before:+.1%})" if before and after is not None else ""
