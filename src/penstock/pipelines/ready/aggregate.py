"""Aggregate: counts, sums, percentiles and other measures by windows of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.errors import InvalidPipeline
from penstock.pipelines.ready.flows import BEGIN, WHERE, FlowPipeline
from penstock.pipelines.ready.kind import Option


class Aggregate(FlowPipeline):
    name = "aggregate"
    help = "Measures of a topic by windows of time, to a topic or to Parquet."
    options: ClassVar[Mapping[str, Option]] = {
        "topic": Option("what is read"),
        "schema": Option('what values are, such as "city STRING, amount DOUBLE"'),
        "measures": Option("SQL, such as count(*) AS orders or percentile_approx(amount, 0.99) AS p99", list),
        "window": Option("how long a window is, such as 1 minute"),
        "slide": Option("how often a window begins; if not given, windows follow one another", default=""),
        "by": Option("columns to group by", list, default=[]),
        "time": Option("the column that says when; a message's timestamp, if not given", default="_timestamp"),
        "watermark": Option("how late rows may come", default="1 minute"),
        "mode": Option("append: a window when it is over; update: whenever it changes", default="append",
                       choices=("append", "update")),
        **BEGIN,
        **WHERE,
    }  # fmt: skip

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """One window, one row for each group."""
        if options["path"] and options["mode"] == "update":
            raise InvalidPipeline(
                "aggregate to Parquet takes `mode: append`: files are not changed once they are there."
            )
        slide = f", '{options['slide']}'" if options["slide"] else ""
        window = f"window({options['time']}, '{options['window']}'{slide})"
        groups = "".join(f", {column}" for column in options["by"])
        measures = ", ".join(options["measures"])
        return {
            "sources": {
                "events": {
                    "topics": options["topic"],
                    "schema": options["schema"],
                    "startingOffsets": options["startingOffsets"],
                    "watermark": {"column": options["time"], "delay": options["watermark"]},
                }
            },
            "steps": {
                "measured": f"SELECT {window} AS window{groups}, {measures} FROM events GROUP BY {window}{groups}",
                "rows": "SELECT window.start AS window_start, window.end AS window_end, * EXCEPT (window) "
                "FROM measured",
            },
            "sinks": self.sink("rows", options, mode=options["mode"], key=self._key(options["by"])),
        }

    def _key(self, by: list[str]) -> str:
        """Rows of one group stay in order: they go to one partition."""
        return f"concat_ws('|', {', '.join(by)})" if by else ""
