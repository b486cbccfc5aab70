"""Dead letters: why messages failed, since when and how often, as Parquet and as an HTML page with charts in SVG.

The page is one file that needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.pipelines.places import beside, on_this_machine
from penstock.pipelines.ready.kind import Option, ReadyPipeline, RunContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_GROUPS_MAX: Final = 200
_VALUE_CHARS: Final = 500


class DeadLetterReport(ReadyPipeline):
    name = "dead-letters"
    help = "A report on dead letters: failure groups over time, top reasons, samples."
    options: ClassVar[Mapping[str, Option]] = {
        "path": Option("the directory of the report; what is there of an earlier one is replaced", is_local=True),
        "topics": Option("dead-letter topics", list, default=["*.dlq"]),
        "since": Option("leave out what came before this instant, such as 2026-01-31T12:00:00Z", default=""),
        "bucket": Option("how fine time is", default="hour", choices=("minute", "hour", "day")),
        "samples": Option("how many messages are shown of each group", int, default=3),
    }

    def start(self, options: Mapping[str, Any], context: RunContext) -> list[StreamingQuery]:
        """Write the report."""
        source = {"servers": context.definition.servers, "topics": ",".join(options["topics"])}
        source |= {"startingTimestamp": options["since"]} if options["since"] else {}
        read = context.spark.read.format("penstock").options(includeHeaders="true", **source)
        letters = _letters(read.load(), options["bucket"]).cache()
        path = on_this_machine(beside(context.definition, options["path"]), "A report")
        try:
            tables = _tables(letters, options["samples"])
            for name, rows in tables.items():
                rows.write.mode("overwrite").parquet(str(path / name))
            page = _page(tables)
        finally:
            letters.unpersist()
        path.mkdir(parents=True, exist_ok=True)
        (path / "report.html").write_text(page)
        context.tell(f"The report is {path / 'report.html'}.")
        return []


def _letters(rows: DataFrame, bucket: str) -> DataFrame:
    from pyspark.sql import functions as sql

    def header(name: str) -> Column:
        found = sql.filter("headers", lambda each: each["key"] == f"penstock-dlq-{name}")
        return sql.try_element_at(found, sql.lit(-1))["value"].cast("string")

    at = sql.coalesce(sql.timestamp_millis(header("time").try_cast("bigint")), "timestamp")
    reason = sql.coalesce(header("reason"), header("error"), sql.lit("no reason given"))
    return rows.select(
        sql.coalesce(header("topic"), sql.regexp_replace("topic", r"\.dlq$", "")).alias("topic"),
        sql.coalesce(header("group"), sql.lit("")).alias("group"),
        reason.alias("reason"),
        # What differs only in numbers, such as ids and times, is one failure.
        sql.substring(sql.regexp_replace(reason, r"\d+", "#"), 1, 200).alias("failure"),
        at.alias("at"),
        sql.date_trunc(bucket, at).alias("bucket"),
        header("tries").try_cast("int").alias("tries"),
        sql.concat_ws(":", "partition", "offset").alias("place"),
        sql.col("key").cast("string").alias("key"),
        sql.substring(sql.col("value").cast("string"), 1, _VALUE_CHARS).alias("value"),
    )


def _tables(letters: DataFrame, samples: int) -> dict[str, DataFrame]:
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    of_group = ("topic", "group", "failure")
    groups = letters.groupBy(*of_group).agg(
        sql.count("*").alias("letters"), sql.min("at").alias("first_at"), sql.max("at").alias("last_at")
    )
    over_time = letters.groupBy("bucket", *of_group).agg(sql.count("*").alias("letters"))
    number = sql.row_number().over(Window.partitionBy(*of_group).orderBy(sql.desc("at"), "place"))
    shown = letters.withColumn("number", number).where(sql.col("number") <= samples).drop("bucket", "number")
    return {"groups": groups, "over_time": over_time, "samples": shown}


def _page(tables: Mapping[str, DataFrame]) -> str:
    from pyspark.sql import functions as sql

    groups = tables["groups"].orderBy(sql.desc("letters"), "failure").limit(_GROUPS_MAX).collect()
    times = tables["over_time"].groupBy("bucket", "failure").agg(sql.sum("letters").alias("letters")).collect()
    samples: dict[tuple[str, str, str], list[Sample]] = {}
    for row in tables["samples"].orderBy(sql.desc("at"), "place").collect():
        at = (row.topic, row.group, row.failure)
        samples.setdefault(at, []).append(
            Sample(row.place, str(row.at), row.key or "", row.value or "", row.reason, row.tries)
        )
    return page_of(
        [
            FailureGroup(
                row.topic,
                row.group,
                row.failure,
                row.letters,
                str(row.first_at),
                str(row.last_at),
                tuple(samples.get((row.topic, row.group, row.failure), ())),
            )
            for row in groups
        ],
        {(str(row.bucket), row.failure): int(row.letters) for row in times},
    )


# -- charts ------------------------------------------------------------------------------------------------------------

COLORS: Final = ("#3b6fb6", "#d9822b", "#4b9b5b", "#b8433f", "#7c5ba6", "#8a6b52", "#9aa1a9")
_WIDTH: Final = 900
_MARGIN: Final = 56


def bars_over_time(times: Sequence[str], series: Mapping[str, Sequence[int]], height: int = 240) -> str:
    """A bar for each time, with a part for each series, one upon the other."""
    sums = [sum(counts[at] for counts in series.values()) for at in range(len(times))]
    most = max(sums, default=0) or 1
    step = (_WIDTH - 2 * _MARGIN) / max(len(times), 1)
    room = height - _MARGIN
    parts = [_text(_MARGIN - 6, 18, f"{most:,}", "end"), _text(_MARGIN - 6, room + 4, "0", "end")]
    parts.append(f'<line x1="{_MARGIN}" y1="{room}" x2="{_WIDTH - _MARGIN}" y2="{room}" stroke="#888"/>')
    for at, time in enumerate(times):
        top = float(room)
        for number, (name, counts) in enumerate(series.items()):
            size = counts[at] / most * (room - 14)
            if not size:
                continue
            top -= size
            x, color = _MARGIN + at * step + 1, COLORS[number % len(COLORS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{max(step - 2, 1):.1f}" height="{size:.1f}" fill="{color}">'
                f"<title>{escape(time)}: {escape(name)}, {counts[at]:,}</title></rect>"
            )
    named = sorted({0, len(times) // 2, len(times) - 1}) if times else []
    parts += [_text(_MARGIN + (at + 0.5) * step, room + 18, times[at], "middle") for at in named]
    return _svg(height, parts)


def bars_by_name(counts: Mapping[str, int]) -> str:
    """A bar for each name, in their order."""
    most = max(counts.values(), default=0) or 1
    parts = []
    for at, (name, count) in enumerate(counts.items()):
        y, width = at * 26, count / most * (_WIDTH * 0.45)
        parts.append(_text(_WIDTH * 0.45, y + 16, name if len(name) <= 60 else name[:59] + "…", "end"))
        parts.append(
            f'<rect x="{_WIDTH * 0.46:.1f}" y="{y + 3}" width="{width:.1f}" height="18" '
            f'fill="{COLORS[at % len(COLORS)]}"/>'
        )
        parts.append(_text(_WIDTH * 0.46 + width + 6, y + 16, f"{count:,}", "start"))
    return _svg(max(len(counts) * 26, 26), parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(height: int, parts: Sequence[str]) -> str:
    style = "font: 12px system-ui, sans-serif"
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" style="{style}">{"".join(parts)}</svg>'


# -- the page ----------------------------------------------------------------------------------------------------------

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
class FailureGroup:
    """Messages of a topic and group that died of the same."""

    topic: str
    group: str
    failure: str
    letters: int
    first_at: str
    last_at: str
    samples: tuple[Sample, ...] = ()


def page_of(groups: Sequence[FailureGroup], over_time: Mapping[tuple[str, str], int]) -> str:
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


def _row(group: FailureGroup) -> str:
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
