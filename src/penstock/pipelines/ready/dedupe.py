"""Dedupe: the first message of each key, or of whatever tells messages apart, within a horizon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import PythonStep
from penstock.pipelines.ready.flows import BEGIN, FlowPipeline
from penstock.pipelines.ready.kind import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
