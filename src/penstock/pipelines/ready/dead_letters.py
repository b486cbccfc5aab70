"""Dead letters: what messages died of, since when and how often, as Parquet and as a page to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.pipelines.places import beside, on_this_machine
from penstock.pipelines.ready.dead_letter_page import Group, Sample, page_of
from penstock.pipelines.ready.kind import Option, ReadyPipeline, Surroundings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_GROUPS_MAX: Final = 200
_VALUE_CHARS: Final = 500


class DeadLetters(ReadyPipeline):
    name = "dead-letters"
    help = "A report on dead letters: failure groups over time, top reasons, samples."
    options: ClassVar[Mapping[str, Option]] = {
        "path": Option("the directory of the report; what is there of an earlier one is replaced", is_local=True),
        "topics": Option("dead-letter topics", list, default=["*.dlq"]),
        "since": Option("leave out what came before this instant, such as 2026-01-31T12:00:00Z", default=""),
        "bucket": Option("how fine time is", default="hour", choices=("minute", "hour", "day")),
        "samples": Option("how many messages are shown of each group", int, default=3),
    }

    def start(self, options: Mapping[str, Any], surroundings: Surroundings) -> list[StreamingQuery]:
        """Write the report."""
        source = {"servers": surroundings.definition.servers, "topics": ",".join(options["topics"])}
        source |= {"startingTimestamp": options["since"]} if options["since"] else {}
        read = surroundings.spark.read.format("penstock").options(includeHeaders="true", **source)
        letters = _letters(read.load(), options["bucket"]).cache()
        path = on_this_machine(beside(surroundings.definition, options["path"]), "A report")
        try:
            tables = _tables(letters, options["samples"])
            for name, rows in tables.items():
                rows.write.mode("overwrite").parquet(str(path / name))
            page = _page(tables)
        finally:
            letters.unpersist()
        path.mkdir(parents=True, exist_ok=True)
        (path / "report.html").write_text(page)
        surroundings.tell(f"The report is {path / 'report.html'}.")
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
            Group(
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
