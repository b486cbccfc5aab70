"""The run as one picture: throughput beside the machine's limits, latency, and what a node costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.workloads import Row

COLOURS = {"penstock": "#0f7b8a", "penstock+nofsync": "#7cc4cd", "kafka": "#3b3b3b", "kafka+fsync": "#9a9a9a"}
RATES = ("msg/s", "commits/s")
Figures = Mapping[str, Mapping[str, float]]


def draw(path: Path, rows: Sequence[Row], figures: Figures, limits: Mapping[str, float], subtitle: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        ("Throughput, MB/s (more is better; red: the machine's limit)", [r for r in rows if r.unit == "MB/s"], False),
        ("Messages or commits a second (more is better)", [r for r in rows if r.unit in RATES], False),
        ("Latency, ms (less is better, logarithmic)", [r for r in rows if r.unit == "ms"], True),
        (
            "Seconds to ready, memory in MB (less is better, logarithmic)",
            [r for r in rows if r.unit in ("s", "MB")],
            True,
        ),
    ]
    shown = [(title, [r for r in some if r.id in figures], log) for title, some, log in panels]
    shown = [panel for panel in shown if panel[1]]
    if not shown:
        return
    heights = [len(some) + 1.5 for _, some, _ in shown]
    figure, axes = pyplot.subplots(
        len(shown), 1, figsize=(11, 0.42 * sum(heights) + 1), height_ratios=heights, squeeze=False, layout="constrained"
    )
    figure.suptitle(f"Penstock next to Apache Kafka\n{subtitle}", fontsize=11)
    for axis, (title, some, is_log) in zip(axes[:, 0], shown, strict=True):
        _panel(axis, title, some, figures, limits, is_log)
    axes[0, 0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(
    axis: Any, title: str, rows: Sequence[Row], figures: Figures, limits: Mapping[str, float], is_log: bool
) -> None:
    names = [name for name in COLOURS if any(name in figures[row.id] for row in rows)]
    thickness = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        at = [i + (place - (len(names) - 1) / 2) * thickness for i in range(len(rows))]
        axis.barh(at, [figures[r.id].get(name, 0) for r in rows], thickness, color=COLOURS[name], label=name)
    for i, row in enumerate(rows):
        if row.limit and row.limit in limits:
            axis.plot([limits[row.limit]] * 2, [i - 0.42, i + 0.42], color="#c62828", linewidth=1.5)
    axis.set_yticks(range(len(rows)), [row.id for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_title(title, fontsize=9, loc="left")
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", alpha=0.3)
    if is_log:
        axis.set_xscale("log")
