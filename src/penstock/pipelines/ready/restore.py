"""Restore and replay: messages of a lake back into topics, in their order, and checked when all are there.

They go in portions, each one transaction under a number, so that a run which was killed goes on where it was and writes
nothing twice. What is to be done is decided once and kept with the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penstock.errors import InvalidLake, InvalidPipeline, UnknownTopic
from penstock.pipelines.lake.catalog import CHECKSUM, Catalog
from penstock.pipelines.lake.reading import check_files, files_between, rows_between
from penstock.pipelines.lake.settings import change_settings, restored, settings_of
from penstock.pipelines.places import PLAN, Checkpoint, beside, on_this_machine, within
from penstock.pipelines.ready.kind import Option, ReadyPipeline, Surroundings
from penstock.pipelines.ready.restore_plan import Plan, Portion, Target, plan_of
from penstock.spark.connection import servers_in, transport_to
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


_SIZE: Final = "max.message.bytes"

_COMMON: Final = {
    "lake": Option("the directory of the lake", is_local=True),
    "topics": Option("which topics of the lake, with commas between; all, if not given", list, default=[]),
    "from": Option("begin at the first message at or after this instant, such as 2026-01-31T12:00:00Z", default=""),
    "until": Option("end before the first message at or after this instant", default=""),
    "untilOffsets": Option('end before these offsets, as JSON: {"orders": {"0": 1000}}', default=""),
    "portionRows": Option("about how many messages go in one transaction", int, default=500_000),
    "check": Option("compare counts and checksums, of the lake before and of the topics after", bool, default=True),
}


class Restore(ReadyPipeline):
    name: ClassVar[str] = "restore"
    help = "A lake back into topics, up to an offset or a point in time."
    options: ClassVar[Mapping[str, Option]] = {
        **_COMMON,
        "suffix": Option("what is put behind the names of topics, as in orders-restored", default=""),
        "append": Option("whether topics may have messages already", bool, default=False),
    }

    def start(self, options: Mapping[str, Any], surroundings: Surroundings) -> list[StreamingQuery]:
        """Do all of it."""
        _Job(self, options, surroundings).run()
        return []

    def target_of(self, topic: str, options: Mapping[str, Any]) -> str:
        return f"{topic}{options['suffix']}"

    def timestamps(self, options: Mapping[str, Any]) -> str:  # noqa: ARG002
        return "keep"


class Replay(Restore):
    name = "replay"
    help = "Messages of a lake once more, into a topic that may have others."
    options: ClassVar[Mapping[str, Option]] = {
        **_COMMON,
        "topic": Option("where they go"),
        "timestamps": Option("keep, or now", default="keep", choices=("keep", "now")),
        "append": Option("whether the topic may have messages already", bool, default=True),
    }

    def target_of(self, topic: str, options: Mapping[str, Any]) -> str:  # noqa: ARG002
        return str(options["topic"])

    def timestamps(self, options: Mapping[str, Any]) -> str:
        return str(options["timestamps"])


class _Job:
    def __init__(self, kind: Restore, options: Mapping[str, Any], surroundings: Surroundings) -> None:
        self._kind = kind
        self._options = options
        self._around = surroundings
        self._spark = surroundings.spark
        self._servers = surroundings.definition.servers
        self._servers_list = servers_in(self._servers)
        self._catalog = Catalog.load(on_this_machine(beside(surroundings.definition, options["lake"]), "A lake"))
        self._keeps_timestamps = kind.timestamps(options) == "keep"

    def run(self) -> None:
        plan = self._plan()
        tell = self._around.tell
        for number, portion in enumerate(plan.portions):
            self._write(plan, number, portion)
            tell(f"{number + 1} of {len(plan.portions)} portions are there.")
        if self._options["check"]:
            rows = self._check(plan)
            tell(f"{rows:,} messages are there, with the counts and checksums of the lake.")
        for target in plan.targets:
            if target.last:
                change_settings(self._servers_list, target.name, target.last)

    # -- what to do ---------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        checkpoint = Checkpoint(self._around.checkpoint, self._spark)
        wanted = {name: value for name, value in self._options.items() if name != "check"}
        known = checkpoint.read(PLAN)
        if known is not None:
            plan = msgspec.json.decode(known, type=Plan)
            if plan.options != msgspec.to_builtins(wanted):
                raise InvalidPipeline(
                    f"{within(checkpoint.place, PLAN)} is of a {self._kind.name} with other options. Give this one "
                    "another name or checkpoint, or run it with --restart."
                )
            return plan
        if self._catalog.is_empty:
            raise InvalidLake(f"{self._catalog.lake} is no lake: it has no catalog.")
        plan = plan_of(self._spark, self._catalog, wanted, lambda topic: self._kind.target_of(topic, self._options))
        if self._options["check"]:
            check_files(self._spark, self._catalog.lake, files_between(self._catalog, plan.spans()))
        plan = msgspec.structs.replace(plan, targets=[self._prepared(target) for target in plan.targets])
        checkpoint.write(PLAN, msgspec.json.encode(plan))
        return plan

    def _prepared(self, target: Target) -> Target:
        """The topic to write to, made if it is not there, with where it ends now."""
        try:
            ends = self._ends(target.name)
        except UnknownTopic:
            target = self._created(target)
            ends = self._ends(target.name)
        if len(ends) < target.partitions:
            raise InvalidPipeline(
                f"Topic {target.name} has {len(ends)} partitions, and the lake's has {target.partitions}: give it "
                "more, or choose another topic."
            )
        if any(ends.values()) and not self._options["append"]:
            raise InvalidPipeline(
                f"Topic {target.name} has messages already. Delete it, choose another one, or say `append: true`."
            )
        self._check_settings(target)
        return msgspec.structs.replace(target, begins=ends)

    def _created(self, target: Target) -> Target:
        settings = restored(target.settings, keeps_timestamps=self._keeps_timestamps)
        portal, transport = transport_to(self._servers_list)
        body = {"name": target.name, "partitions": target.partitions, "configs": settings.first}
        portal.call(transport.post(Any, "v1", "topics", body=body))
        if self._keeps_timestamps:
            # Messages come with the timestamps that they had: retention would remove old ones at once.
            withheld = ", ".join(f"{name}={value}" for name, value in settings.withheld.items())
            had = f" It had {withheld}." if withheld else ""
            self._around.tell(f"Made topic {target.name}, which keeps messages for ever: set its retention.ms.{had}")
        return msgspec.structs.replace(target, last=settings.last)

    def _check_settings(self, target: Target) -> None:
        """Refuse a topic that would not take what is restored, or not keep it."""
        settings = settings_of(self._servers_list, target.name)
        kept, takes = int(target.settings.get(_SIZE, "0")), int(settings.get(_SIZE, "0"))
        if takes < kept:
            raise InvalidPipeline(
                f"Topic {target.name} takes messages of {takes} bytes, and {target.topic} in the lake took {kept}. Set "
                f"its max.message.bytes to {kept} first (`penstock topic alter`)."
            )
        retention_ms = int(settings.get("retention.ms", "-1"))
        ranges = [each for file in self._catalog.files_of([target.topic]) for each in file.ranges]
        oldest_ms = min((each.first_ms for each in ranges), default=0)
        is_short = "delete" in settings.get("cleanup.policy", "") and 0 <= retention_ms < _now_ms() - oldest_ms
        if self._keeps_timestamps and is_short:
            raise InvalidPipeline(
                f"Topic {target.name} would remove what is restored, since messages keep their timestamps and "
                f"its retention.ms is {retention_ms}. Set that to -1 first (`penstock topic alter`)."
            )

    def _ends(self, topic: str) -> dict[int, int]:
        options = SourceOptions.of({"servers": self._servers, "topics": topic}, is_streaming=False)
        return {index: reach.log_end for index, reach in Cluster(options).reaches()[topic].partitions.items()}

    # -- doing it -----------------------------------------------------------------------------------------------------

    def _write(self, plan: Plan, number: int, portion: Portion) -> None:
        from pyspark.sql import functions as sql

        spans = portion.spans()
        targets = {target.topic: target.name for target in plan.targets}
        names = sql.create_map(*[sql.lit(word) for pair in targets.items() for word in pair])
        rows = rows_between(self._spark, self._catalog, spans)
        rows = rows.repartition(max(len(spans), 1), "topic", "partition")
        rows = rows.sortWithinPartitions("topic", "partition", "generation", "offset")
        kept = ("partition", "key", "value", "headers", *(["timestamp"] if self._keeps_timestamps else []))
        written = rows.select(names[sql.col("topic")].alias("topic"), *kept)
        transaction = {"txnId": f"{self._kind.name}:{plan.id}", "txnVersion": str(number)}
        written.write.format("penstock").options(servers=self._servers, **transaction).mode("append").save()

    # -- checking it --------------------------------------------------------------------------------------------------

    def _check(self, plan: Plan) -> int:
        """Compare what is in the topics now with the lake, in order; how many messages."""
        total = 0
        for name in sorted({target.name for target in plan.targets}):
            topics = [target.topic for target in plan.targets if target.name == name]
            begins = next(target.begins for target in plan.targets if target.name == name)
            spans = {where: span for where, span in plan.spans().items() if where[0] in topics}
            expected = self._summed(rows_between(self._spark, self._catalog, spans), "topic", "generation", "offset")
            found = self._summed(self._written(name, begins), "offset")
            for partition in sorted(expected.keys() | found.keys()):
                if expected.get(partition) != found.get(partition):
                    raise InvalidLake(
                        f"{name}-{partition} is not what the lake has: {found.get(partition, (0,))[0]:,} messages "
                        f"where {expected.get(partition, (0,))[0]:,} are expected, or others. Did somebody else write?"
                    )
            total += sum(count for count, _ in expected.values())
        return total

    def _written(self, name: str, begins: Mapping[int, int]) -> DataFrame:
        offsets = msgspec.json.encode({name: {str(index): offset for index, offset in begins.items()}}).decode()
        read = self._spark.read.format("penstock").options(servers=self._servers, topics=name)
        return read.options(startingOffsets=offsets, includeHeaders="true").load()

    def _summed(self, rows: DataFrame, *order: str) -> dict[int, tuple[int, int]]:
        """Count and checksum of each partition; the order of messages changes the checksum."""
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        checksum = CHECKSUM if self._keeps_timestamps else CHECKSUM.replace("timestamp, ", "")
        each = rows.select("partition", *order, sql.expr(checksum).alias("checksum"))
        at = sql.row_number().over(Window.partitionBy("partition").orderBy(*order))
        placed = each.select("partition", sql.xxhash64("checksum", at).alias("placed"))
        summed = placed.groupBy("partition").agg(sql.count("*").alias("rows"), sql.bit_xor("placed").alias("sum"))
        return {row.partition: (row.rows, row.sum) for row in summed.collect()}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
