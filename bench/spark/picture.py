"""The medians of a run as bars, a panel for each row; goals are dotted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

_PENSTOCK = "#0f7b8a"
_PENSTOCK_LESS = "#7cc4cd"  # with a weaker promise
_OTHERS = "#9a9a9a"
_KAFKA = "#3b3b3b"
_BAR_INCHES = 0.33
_PANEL_INCHES = 0.75


def draw(
    path: Path, figures: Mapping[str, Mapping[str, list[float]]], goals: Mapping[str, float], subtitle: str
) -> None:
    """``figures`` are values by row and name, ``goals`` what Penstock should reach, by row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "spark"
    heights = [_BAR_INCHES * len(by_name) + _PANEL_INCHES for by_name in figures.values()]
    figure, axes = pyplot.subplots(
        len(figures),
        1,
        figsize=(9, sum(heights) + 0.6),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(f"Spark on Penstock\n{subtitle}", fontsize=10)
    for axis, (row, by_name) in zip(axes[:, 0], figures.items(), strict=True):
        medians = [statistics.median(values) for values in by_name.values()]
        bars = axis.barh(list(by_name), medians, color=[_colour(name) for name in by_name])
        axis.bar_label(bars, [f"{median:,.0f}" for median in medians], fontsize=8, padding=3)
        if row in goals:
            axis.axvline(goals[row], color="#c62828", linewidth=1, linestyle=":")
        axis.set_title(row, fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.15 * max(*medians, goals.get(row, 0)))
        axis.xaxis.set_major_formatter("{x:,.0f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _colour(name: str) -> str:
    if name.startswith("penstock"):
        return _PENSTOCK_LESS if "at-least-once" in name else _PENSTOCK
    return _KAFKA if "Kafka" in name else _OTHERS
