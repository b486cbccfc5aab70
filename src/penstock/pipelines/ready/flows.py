"""Ready pipelines that are pipelines like any other: options fill in sources, steps and sinks.

Aggregate: counts, sums, percentiles and other measures by windows of time. Dedupe: the first message of each key, or of
another expression, within a horizon. Enrich: rows of a topic with columns of a table. Join: rows of two topics that
belong together and came within some time of one another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import Definition, PipelineSource, PythonStep, definition_of
from penstock.pipelines.flow import Flow
from penstock.pipelines.ready.kind import Option, ReadyPipeline, RunContext
from penstock.pipelines.text import FilePlace, FileValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_PLACE: Final = FilePlace(1, 1)

WHERE: Final = {
    "to": Option("the topic that results go to, or", default=""),
    "path": Option("the directory that they go to, as Parquet", default=""),
}
BEGIN: Final = {"startingOffsets": Option("where to begin without a checkpoint", default="earliest")}


class FlowPipeline(ReadyPipeline):
    """Says in `document` what the file of a pipeline would say."""

    def start(self, options: Mapping[str, Any], context: RunContext) -> list[StreamingQuery]:
        made = self._definition(options, context.definition)
        return Flow(made, context.spark).start(context.checkpoint, context.trigger)

    def sources(self, options: Mapping[str, Any], definition: Definition) -> list[PipelineSource]:
        return list(self._definition(options, definition).sources.values())

    def _definition(self, options: Mapping[str, Any], definition: Definition) -> Definition:
        head = {"pipeline": definition.name, "servers": definition.servers}
        document = FileValue.of(head | self.document(options), _PLACE)
        return definition_of(document, definition.file or definition.name, self.steps(options))

    @abstractmethod
    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Sources, steps and sinks, as a file has them."""

    def steps(self, options: Mapping[str, Any]) -> dict[str, PythonStep]:  # noqa: ARG002
        """Steps in Python, which come before those of the document."""
        return {}

    def sink(self, rows: str, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The one sink: a topic or a directory. ``more`` is for the topic only."""
        if bool(options["to"]) == bool(options["path"]):
            raise InvalidPipeline(f"{self.name} needs `to: TOPIC` or `path: DIRECTORY` under `with`, one of them.")
        if options["path"]:
            return {self.name: {"from": rows, "format": "parquet", "path": options["path"]}}
        return {self.name: {"from": rows, "topic": options["to"]} | {key: text for key, text in more.items() if text}}


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


class Dedupe(FlowPipeline):
    name = "dedupe"
    help = "A topic without what came before, to another topic."
    options: ClassVar[Mapping[str, Option]] = {
        "topic": Option("what is read"),
        "to": Option("where it goes"),
        "by": Option("what tells messages apart: key, value, or paths into JSON values such as $.id", list,
                     default=["key"]),
        "horizon": Option("for how long a message is remembered, such as 1 hour"),
        **BEGIN,
    }  # fmt: skip

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Messages go on as they are, bytes for bytes."""
        if options["to"] == options["topic"]:
            raise InvalidPipeline("dedupe would read what it writes: give it another topic under `to`.")
        return {
            "sources": {
                "messages": {
                    "topics": options["topic"],
                    "includeHeaders": True,
                    "startingOffsets": options["startingOffsets"],
                    "watermark": {"column": "timestamp", "delay": options["horizon"]},
                }
            },
            "sinks": {
                self.name: {
                    "from": "fresh",
                    "topic": options["to"],
                    "key": "key",
                    "value": "value",
                    "headers": "headers",
                    "timestamp": "timestamp",
                }
            },
        }

    def steps(self, options: Mapping[str, Any]) -> dict[str, PythonStep]:
        """The one thing that SQL has no words for."""
        parts = [_part(each) for each in options["by"]]

        def fresh(messages: DataFrame) -> DataFrame:
            from pyspark.sql import functions as sql

            named = {f"_by{at}": sql.expr(part) for at, part in enumerate(parts)}
            return messages.withColumns(named).dropDuplicatesWithinWatermark(list(named))

        return {"fresh": PythonStep(name="fresh", function=fresh)}


def _part(text: str) -> str:
    if text in ("key", "value"):
        return text
    if text.startswith("$"):
        return f"get_json_object(cast(value AS string), '{text}')"
    raise InvalidPipeline(f"dedupe goes by key, value or a path into JSON such as $.id, not by {text!r}.")


class Enrich(FlowPipeline):
    name = "enrich"
    help = "A topic with columns of a table beside."
    options: ClassVar[Mapping[str, Option]] = {
        "topic": Option("what is read"),
        "schema": Option('what values are, such as "id STRING, city STRING"'),
        "table": Option("the path of the table"),
        "format": Option("what the table is", default="parquet", choices=("parquet", "csv", "json", "orc")),
        "tableSchema": Option("what the table has, where its files do not say", default=""),
        "on": Option("columns that both have", list),
        "columns": Option("columns of the table to add", list),
        "kind": Option("left: rows that find nothing as well; inner: without", default="left",
                       choices=("left", "inner")),
        "key": Option("the key of what is written, in SQL; the message's own, if not given", default="_key"),
        **BEGIN,
        **WHERE,
    }  # fmt: skip

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The table is read as it is when the pipeline starts."""
        table = {"format": options["format"], "path": options["table"], "stream": False}
        table |= {"schema": options["tableSchema"]} if options["tableSchema"] else {}
        table |= {"header": True} if options["format"] == "csv" else {}
        on = " AND ".join(f"e.{column} = t.{column}" for column in options["on"])
        added = ", ".join(f"t.{column}" for column in options["columns"])
        return {
            "sources": {
                "events": {
                    "topics": options["topic"],
                    "schema": options["schema"],
                    "startingOffsets": options["startingOffsets"],
                },
                "known": table,
            },
            "steps": {"enriched": f"SELECT e.*, {added} FROM events e {options['kind'].upper()} JOIN known t ON {on}"},
            "sinks": self.sink("enriched", options, key=options["key"]),
        }


class JoinPipeline(FlowPipeline):
    name = "join"
    help = "Two topics, row by row, within a window of time."
    options: ClassVar[Mapping[str, Option]] = {
        "left": Option("a topic; its rows are called l in SQL"),
        "leftSchema": Option('what its values are, such as "id STRING, amount DOUBLE"'),
        "right": Option("the other topic; its rows are called r"),
        "rightSchema": Option("what its values are"),
        "on": Option("the condition in SQL, such as l.id = r.order_id"),
        "select": Option("what to write, in SQL: l.id, l.amount, r.paid_at", list),
        "within": Option("how far apart rows may be, such as 10 minutes"),
        "leftTime": Option("the column that says when; a message's timestamp, if not given", default="_timestamp"),
        "rightTime": Option("the same of the other topic", default="_timestamp"),
        "watermark": Option("how late rows may come", default="1 minute"),
        "kind": Option("inner, or left: rows that find none as well", default="inner", choices=("inner", "left")),
        "key": Option("the key of what is written, in SQL", default=""),
        **BEGIN,
        **WHERE,
    }

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A join that can forget: rows are kept for as long as others may still find them."""
        left, right, within = f"l.{options['leftTime']}", f"r.{options['rightTime']}", f"INTERVAL {options['within']}"
        columns = ", ".join(options["select"])
        return {
            "sources": {
                side: {
                    "topics": options[side],
                    "schema": options[f"{side}Schema"],
                    "startingOffsets": options["startingOffsets"],
                    "watermark": {"column": options[f"{side}Time"], "delay": options["watermark"]},
                }
                for side in ("left", "right")
            },
            "steps": {
                "joined": f"SELECT {columns} FROM `left` l {options['kind'].upper()} JOIN `right` r "
                f"ON ({options['on']}) AND {right} BETWEEN {left} - {within} AND {left} + {within}"
            },
            "sinks": self.sink("joined", options, key=options["key"]),
        }
