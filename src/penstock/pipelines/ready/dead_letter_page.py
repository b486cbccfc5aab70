"""The report on dead letters as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from penstock.pipelines.ready.charts import COLORS, bars_by_name, bars_over_time

_SHOWN_MAX: Final = len(COLORS) - 1  # the last color is for all others
_OTHERS: Final = "others"
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;"
    "vertical-align:top}td.number{text-align:right}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0}"
    "i.color{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 .8rem}"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A message that died."""

    place: str
    at: str
    key: str
    value: str
    reason: str
    tries: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of a topic and group that died of the same."""

    topic: str
    group: str
    failure: str
    letters: int
    first_at: str
    last_at: str
    samples: tuple[Sample, ...] = ()


def page_of(groups: Sequence[Group], over_time: Mapping[tuple[str, str], int]) -> str:
    """The page. ``over_time``: how many died of a failure in each bucket of time."""
    totals: dict[str, int] = {}
    for group in groups:
        totals[group.failure] = totals.get(group.failure, 0) + group.letters
    top = dict(sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_MAX])
    total = sum(totals.values())
    times = sorted({time for time, _ in over_time})
    series = _series(times, list(top), over_time)
    legend = "".join(
        f'<i class="color" style="background:{COLORS[at]}"></i>{escape(name)}' for at, name in enumerate(series)
    )
    body = (
        f"<h1>Dead letters</h1><p>{total:,} messages in {len(groups):,} groups.</p>"
        f"<h2>Over time</h2>{bars_over_time(times, series)}<p>{legend}</p>"
        f"<h2>Top reasons</h2>{bars_by_name(top)}"
        f"<h2>Groups</h2><table><tr><th>topic</th><th>group</th><th>failure</th><th>letters</th><th>first</th>"
        f"<th>last</th></tr>{''.join(_row(group) for group in groups)}</table>"
    )
    if not total:
        body = "<h1>Dead letters</h1><p>There are none.</p>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Dead letters</title><style>{_STYLE}</style>'
        f"<body>{body}</body></html>\n"
    )


def _series(times: Sequence[str], top: Sequence[str], over_time: Mapping[tuple[str, str], int]) -> dict[str, list[int]]:
    place = {time: at for at, time in enumerate(times)}
    series = {name: [0] * len(times) for name in (*top, _OTHERS)}
    for (time, failure), count in over_time.items():
        series[failure if failure in top else _OTHERS][place[time]] += count
    if not any(series[_OTHERS]):
        del series[_OTHERS]
    return series


def _row(group: Group) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in (group.topic, group.group))
    samples = "".join(_sample(sample) for sample in group.samples)
    shown = f"<details><summary>{escape(group.failure)}</summary>{samples}</details>"
    return (
        f'<tr>{cells}<td>{shown}</td><td class="number">{group.letters:,}</td><td>{escape(group.first_at)}</td>'
        f"<td>{escape(group.last_at)}</td></tr>"
    )


def _sample(sample: Sample) -> str:
    tries = "" if sample.tries is None else f", {sample.tries} tries"
    return (
        f"<p>{escape(sample.place)}, {escape(sample.at)}{tries}, key {escape(sample.key or 'none')}: "
        f"{escape(sample.reason)}</p><pre>{escape(sample.value)}</pre>"
    )
