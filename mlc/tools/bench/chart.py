"""The chart of a run: a row for each workload, our time at 1, the floor and the peers around it, a panel for each number of threads.

SVG without dependencies; colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

Record = dict[str, Any]
ROW, TOP, LABEL, PANEL, GAP = 15, 62, 250, 330, 24
LOW, HIGH = 1 / 4, 16.0  # times relative to ours that the axis shows; what lies beyond sits on its end
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16)
MARKS = {"jax": "jax", "torch": "torch", "torch.compile": "compiled", "numpy": "numpy"}
STYLE = """.page{fill:#ffffff}text{font:11px system-ui,sans-serif;fill:#1f2328}.dim{fill:#59636e}.head{font-weight:600}
.grid{stroke:#d1d9e0}.one{stroke:#1f2328;stroke-width:1.5}.floor{fill:#bcc4cd}.band{fill:#f6f8fa}
.jax{fill:#0969da}.torch{fill:#d1242f}.compiled{fill:#bf8700}.numpy{fill:#1a7f37}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.dim{fill:#9198a1}.grid{stroke:#3d444d}.one{stroke:#e6edf3}.floor{fill:#545d68}
.band{fill:#161b22}.jax{fill:#58a6ff}.torch{fill:#ff7b72}.compiled{fill:#e3b341}.numpy{fill:#56d364}}"""


def position(relative: float) -> float:
    """Where in a panel a relative time lies, in pixels."""
    share = math.log(min(max(relative, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(share * PANEL, 1)


def _marks(record: Record, threads: int, x: float, y: float) -> list[str]:
    """The floor as a bar up to our time, the peers as dots with their times as titles."""
    us = record["us"].get(str(threads), {})
    ours = us.get("mlc")
    if not ours:
        return [f'<text class="dim" x="{x + position(1) + 4}" y="{y + 4}">{escape("does not run" if "mlc" in record["skip"] else "-")}</text>']
    lines = []
    floor = record["floor_us"].get(str(threads))
    if floor:
        start = x + position(floor / ours)
        lines.append(f'<rect class="floor" x="{start}" y="{y - 4}" width="{round(max(0.0, x + position(1) - start), 1)}" height="8">'
                     f"<title>floor {floor:.4g} us, {floor / ours:.0%} reached</title></rect>")
    lines += [f'<circle class="{mark}" cx="{x + position(us[library] / ours)}" cy="{y}" r="3.5"><title>{library} {us[library]:.4g} us, '
              f"{us[library] / ours:.2f} x mlc</title></circle>" for library, mark in MARKS.items() if library in us]
    return lines


def _legend(data: Record) -> list[str]:
    x, lines = LABEL, []
    lines.append(f'<text x="8" y="16" class="head">time relative to mlc (logarithmic): right of 1, mlc is faster</text>'
                 f'<rect class="floor" x="{x}" y="24" width="18" height="8"/><text x="{x + 22}" y="32">floor to mlc</text>')
    x += 110
    for library in (name for name in MARKS if name in data["libraries"]):
        lines.append(f'<circle class="{MARKS[library]}" cx="{x}" cy="28" r="3.5"/><text x="{x + 8}" y="32">{library}</text>')
        x += 24 + 7 * len(library)
    return lines


def _panel(threads: int, x: float, bottom: float) -> list[str]:
    """The axis of a panel."""
    lines = [f'<text class="head" x="{x}" y="{TOP - 16}">{threads} thread{"s" if threads > 1 else ""}</text>']
    for tick in TICKS:
        at = x + position(tick)
        lines.append(f'<line class="{"one" if tick == 1 else "grid"}" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>'
                     f'<text class="dim" text-anchor="middle" x="{at}" y="{TOP - 3}">{tick:g}</text>')
    return lines


def svg(data: Record) -> str:
    """The whole chart."""
    rows: list[tuple[str, Record | None]] = []
    for record in data["results"]:
        if not rows or record["group"] not in {r["group"] for _, r in rows if r}:
            rows.append((record["group"], None))
        rows.append((record["workload"], record))
    threads = data["threads"]
    width, bottom = LABEL + len(threads) * (PANEL + GAP), TOP + ROW * len(rows) + 6
    panels = [LABEL + i * (PANEL + GAP) for i in range(len(threads))]
    lines = _legend(data)
    for number, (_, record) in enumerate(rows):
        if record is None:
            lines.append(f'<rect class="band" x="0" y="{TOP + ROW * number + 2}" width="{width}" height="{ROW}"/>')
    for count, x in zip(threads, panels):
        lines += _panel(count, x, bottom)
    for number, (name, record) in enumerate(rows):
        y = TOP + ROW * number + ROW / 2 + 2
        kind = "head" if record is None else "dim"
        lines.append(f'<text class="{kind}" x="8" y="{y + 4}">{escape(name)}</text>')
        if record is not None:
            lines += [mark for count, x in zip(threads, panels) for mark in _marks(record, count, x, y)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 8}" width="{width}" role="img" aria-label="mlc bench">'
    return "\n".join([head, f"<style>{STYLE}</style>", f'<rect class="page" width="{width}" height="{bottom + 8}"/>', *lines, "</svg>"]) + "\n"
