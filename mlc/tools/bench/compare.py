"""What became slower or faster between two runs, beyond what their rounds vary by."""

from __future__ import annotations

import statistics
from typing import Any

from mlc.tools.bench.report import Record, geometric_mean, number, size, table, total, workspace

LEAST = 0.03  # changes below this are never told
SINGLE = 0.1  # what one round may be off
FIRST_CALL = 0.25  # first calls are few, and vary more


def noise(rounds: list[float]) -> float:
    """How far the median of these rounds may be off, relative: three times their median distance from it."""
    if len(rounds) < 2:
        return SINGLE
    middle = statistics.median(rounds)
    return 3 * statistics.median(abs(x - middle) for x in rounds) / middle


def changes(before: Record, after: Record) -> tuple[list[list[str]], float | None]:
    """Rows of what changed, the largest first; and by what factor the peers became slower on the whole, which is the machine's doing."""
    old, found, peers = {r["workload"]: r for r in before["results"]}, [], []
    for new in after["results"]:
        was = old.get(new["workload"])
        if was is None:
            continue
        for threads in new["us"].keys() & was["us"].keys():
            now, then = new["us"][threads], was["us"][threads]
            peers += [now[x] / then[x] for x in now.keys() & then.keys() if x != "mlc"]
            if "mlc" in now and "mlc" in then:
                spread = sum(noise(r["rounds"].get(threads, {}).get("mlc", [])) for r in (new, was))
                _note(found, new["workload"], f"us, {threads} thread{'s' * (threads != '1')}", then["mlc"], now["mlc"], max(LEAST, spread), number)
        for key, label in (("cold_ms", "cold"), ("start_ms", "whole process to"), ("loaded_ms", "loaded"), ("warm_ms", "warm")):
            then, now = (r.get(key, {}).get("mlc") for r in (was, new))
            if then is not None and now is not None:
                _note(found, new["workload"], f"{label} first call, ms", then, now, FIRST_CALL, number)
        for what, measure in (("memory", total), ("workspace", workspace)):
            then, now = (measure(r["memory"].get("mlc")) for r in (was, new))
            if then is not None and now is not None:
                _note(found, new["workload"], what, then, now, 0.0, size)
        if "mlc" in new["skip"] and "mlc" not in was["skip"]:
            found.append((float("inf"), [new["workload"], "runs", "yes", "no", "-", new["skip"]["mlc"]]))
    found.sort(key=lambda item: -abs(item[0]))
    return [row for _, row in found], geometric_mean(peers)


def _note(found: list[tuple[float, list[str]]], workload: str, what: str, then: float, now: float, allowed: float, style: Any) -> None:
    """Add a row if the change is beyond `allowed`, up or down alike."""
    if then == now or (then and now and max(now / then, then / now) <= 1 + allowed):
        return
    change = max(now, 1.0) / max(then, 1.0) if not (then and now) else now / then
    factor = change if change >= 1 else -1 / change
    found.append((factor, [workload, what, style(then), style(now), f"{abs(factor):.2f}", "slower or larger" if factor > 0 else "better"]))


def text(before: Record, after: Record) -> str:
    """The comparison in Markdown."""
    rows, peers = changes(before, after)
    lines = [f"## against the run of {before['date']}\n"]
    lines.append(table(["workload", "what", "was", "is", "factor", ""], rows) if rows else "nothing changed beyond the noise\n")
    if peers is not None:
        lines.append(f"the peers took {peers:.2f} x their time of then on the whole: that is the machine\n")
    return "\n".join(lines)
