"""The run as a picture: a row for each kind of fault, and below it what clients achieved in each second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.chaos.conductor import Happening, Trouble
from bench.chaos.figures import Figures, per_second


def draw(
    path: Path,
    happenings: Sequence[Happening],
    troubles: Sequence[Trouble],
    figures: Figures,
    began_at: float,
    length_s: float,
    title: str,
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = sorted({happening.kind for happening in happenings})
    rows = max(len(kinds), 1)
    figure, axes = pyplot.subplots(
        3,
        1,
        figsize=(14, 0.28 * rows + 4.5),
        height_ratios=[0.28 * rows + 0.3, 1.6, 1.6],
        sharex=True,
        layout="constrained",
    )
    figure.suptitle(title, fontsize=10)
    _faults(axes[0], kinds, happenings, began_at)
    _rate(axes[1], "acknowledged writes a second", figures.acked_at, began_at, length_s, "#0f7b8a")
    _rate(axes[2], "transactions ended a second", figures.ended_at, began_at, length_s, "#8a4f0f")
    for axis in axes:
        for trouble in troubles:
            axis.axvline(trouble.at - began_at, color="#c62828", linewidth=0.8)
        axis.set_xlim(0, length_s)
        axis.grid(axis="x", alpha=0.3)
    axes[2].set_xlabel("seconds", fontsize=8)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _faults(axis: Any, kinds: Sequence[str], happenings: Sequence[Happening], began_at: float) -> None:
    for happening in happenings:
        row = kinds.index(happening.kind)
        begin = happening.began_at - began_at
        healed = (happening.healed_at or happening.began_at) - began_at
        axis.barh(row, max(healed - begin, 0.3), left=begin, height=0.7, color="#c62828", alpha=0.8)
        if happening.whole_at is not None:
            rest = happening.whole_at - began_at - healed
            axis.barh(row, rest, left=healed, height=0.3, color="#e8b4b4")
    axis.set_yticks(range(len(kinds)), kinds, fontsize=7)
    axis.invert_yaxis()
    axis.set_title("faults (pale: until every replica was in step again)", fontsize=8, loc="left")


def _rate(axis: Any, title: str, times: Sequence[float], began_at: float, length_s: float, colour: str) -> None:
    counts = per_second(times, began_at, length_s)
    axis.fill_between(range(len(counts)), counts, step="post", color=colour, alpha=0.8)
    axis.set_title(title, fontsize=8, loc="left")
    axis.tick_params(labelsize=7)
    axis.set_ylim(bottom=0)
