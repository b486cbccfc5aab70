"""Enrich: rows of a topic with what a table knows about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.pipelines.ready.flows import BEGIN, WHERE, FlowPipeline
from penstock.pipelines.ready.kind import Option


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
