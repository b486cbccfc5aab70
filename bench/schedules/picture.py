"""How late messages come, as a picture: for each server the share that has come by then."""

from __future__ import annotations

from pathlib import Path

from bench.schedules.rows import Lateness

_COLOURS = {"penstock": "#0f7b8a", "redis": "#c62828", "redis+always": "#ef6c00"}
_POINTS = 400


def draw(path: Path, found: dict[str, Lateness], goal_ms: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    pyplot.rcParams["svg.hashsalt"] = "schedules"
    figure, axis = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    rate = next(iter(found.values())).rate
    axis.set_title(f"{rate:,} messages due a second: how late they are", fontsize=11)
    for name, each in found.items():
        # From the median to the last one, more closely the nearer to the end.
        shares = [1 - 0.5 ** (1 + 12 * step / _POINTS) for step in range(_POINTS)]
        late = [max(each.at(share), 0.1) for share in shares]
        axis.plot(late, [1 / (1 - share) for share in shares], color=_COLOURS.get(name, "#6a8caf"), label=name)
    axis.axvline(goal_ms, color="#9a9a9a", linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda late_ms, _: f"{late_ms:,g}"))
    axis.set_yticks([2, 10, 100, 1000], ["median", "90 %", "99 %", "99.9 %"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(f"milliseconds after they are due (dotted: {goal_ms:.0f} ms)", fontsize=9)
    axis.set_ylabel("share of messages that have come", fontsize=9)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=9, loc="upper left")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
