"""Join: rows of two topics that belong together and came within some time of one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.pipelines.ready.flows import BEGIN, WHERE, FlowPipeline
from penstock.pipelines.ready.kind import Option


class Join(FlowPipeline):
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
