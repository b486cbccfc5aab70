"""Restore and replay: messages of a lake back into topics, in their order, and checked when all are there.

They go in portions, each one transaction under a number, so that a run which was killed goes on where it was and writes
nothing twice. Which offsets go where, in which portions, is decided once and kept with the checkpoint.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penstock.api.topics import CreateTopic
from penstock.errors import InvalidLake, InvalidPipeline, UnknownTopic
from penstock.pipelines.lake.catalog import CHECKSUM, Catalog, LakePartition
from penstock.pipelines.lake.reading import ArchivedSpan, check_files, files_between, rows_between, rows_of
from penstock.pipelines.lake.settings import change_settings, restored, settings_of
from penstock.pipelines.places import PLAN, Checkpoint, beside, on_this_machine, within
from penstock.pipelines.ready.kind import Option, ReadyPipeline, RunContext
from penstock.pipelines.text import did_you_mean
from penstock.spark.connection import servers_in, transport_to
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class RestoreTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a topic of the lake goes. ``begins``: where each partition ended before the first portion."""

    topic: str
    name: str
    partitions: int
    begins: dict[int, int] = {}
    settings: dict[str, str] = {}  # that the topic had, as the lake kept them
    last: dict[str, str] = {}  # to be set when all messages are there, for a topic that was made


class Piece(msgspec.Struct, frozen=True):
    topic: str
    generation: int
    partition: int
    begin: int
    end: int


class Portion(msgspec.Struct, frozen=True):
    """What goes in one transaction."""

    pieces: list[Piece]

    def spans(self) -> dict[LakePartition, ArchivedSpan]:
        return {
            (each.topic, each.generation, each.partition): ArchivedSpan(each.begin, each.end) for each in self.pieces
        }


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    options: dict[str, Any]
    targets: list[RestoreTarget]
    portions: list[Portion]

    def spans(self) -> dict[LakePartition, ArchivedSpan]:
        """Everything at once."""
        found: dict[LakePartition, ArchivedSpan] = {}
        for portion in self.portions:
            for where, span in portion.spans().items():
                known = found.get(where, span)
                found[where] = ArchivedSpan(min(known.begin, span.begin), max(known.end, span.end))
        return found


def plan_of(
    spark: SparkSession, catalog: Catalog, options: Mapping[str, Any], target_of: Callable[[str], str]
) -> RestorePlan:
    """Decide what to do with a lake as it is now."""
    topics = options["topics"] or catalog.names()
    for topic in topics:
        if topic not in catalog.names():
            hint = did_you_mean(topic, catalog.names())
            raise InvalidPipeline(f"The lake {catalog.lake} has no topic {topic!r}.{hint}")
    spans, counts = _everything(catalog, topics)
    for name, cuts_end in (("from", False), ("until", True)):
        if options[name]:
            _cut(spark, catalog, spans, _instant_ms(options[name], name), cuts_end=cuts_end)
    for (topic, partition), end in _offsets(options["untilOffsets"]).items():
        for where, span in spans.items():
            if where[0] == topic and where[2] == partition:
                spans[where] = ArchivedSpan(span.begin, min(span.end, end))
    facts = [fact for fact in catalog.topics.values() if fact.name in topics]
    targets = [
        RestoreTarget(
            topic=topic,
            name=target_of(topic),
            partitions=max(fact.partitions for fact in facts if fact.name == topic),
            settings=max((fact for fact in facts if fact.name == topic), key=lambda fact: fact.generation).settings,
        )
        for topic in topics
    ]
    return RestorePlan(
        id=uuid.uuid4().hex,
        options=msgspec.to_builtins(dict(options)),
        targets=targets,
        portions=list(portions_of(spans, counts, int(options["portionRows"]))),
    )


def _everything(
    catalog: Catalog, topics: Iterable[str]
) -> tuple[dict[LakePartition, ArchivedSpan], dict[LakePartition, int]]:
    spans: dict[LakePartition, ArchivedSpan] = {}
    counts: dict[LakePartition, int] = {}
    for file in catalog.files_of(topics):
        for each in file.ranges:
            where = (file.topic, file.generation, each.partition)
            known = spans.get(where, ArchivedSpan(each.first, each.last + 1))
            spans[where] = ArchivedSpan(min(known.begin, each.first), max(known.end, each.last + 1))
            counts[where] = counts.get(where, 0) + each.rows
    return spans, counts


def _cut(
    spark: SparkSession, catalog: Catalog, spans: dict[LakePartition, ArchivedSpan], at_ms: int, *, cuts_end: bool
) -> None:
    """Have spans end, or begin, at the first message at or after an instant."""
    from pyspark.sql import functions as sql

    topics = {where[0] for where in spans}
    later = [file for file in catalog.files_of(topics) if any(each.last_ms >= at_ms for each in file.ranges)]
    rows = rows_of(spark, catalog.lake, later).where(sql.col("timestamp") >= sql.timestamp_millis(sql.lit(at_ms)))
    first = rows.groupBy("topic", "generation", "partition").agg(sql.min("offset").alias("offset")).collect()
    found = {(row.topic, row.generation, row.partition): row.offset for row in first}
    for where, span in spans.items():
        cut = found.get(where, span.end)
        spans[where] = (
            ArchivedSpan(span.begin, min(span.end, cut)) if cuts_end else ArchivedSpan(max(span.begin, cut), span.end)
        )


def portions_of(
    spans: Mapping[LakePartition, ArchivedSpan], counts: Mapping[LakePartition, int], rows_max: int
) -> Iterable[Portion]:
    """Generation after generation, each topic in as many parts of about the same size as it takes."""
    for topic, generation in sorted({where[:2] for where in spans}):
        some = {where: span for where, span in spans.items() if where[:2] == (topic, generation)}
        rows = sum(counts[where] for where in some)
        parts = max(1, -(-rows // rows_max))
        for at in range(parts):
            pieces = []
            for where, span in sorted(some.items()):
                size = max(span.end - span.begin, 0)
                begin, end = span.begin + size * at // parts, span.begin + size * (at + 1) // parts
                if end > begin:
                    pieces.append(Piece(*where, begin, end))
            if pieces:
                yield Portion(pieces)


def _offsets(text: str) -> dict[tuple[str, int], int]:
    if not text:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.MsgspecError:
        raise InvalidPipeline(f'untilOffsets is JSON such as {{"orders": {{"0": 1000}}}}, not {text!r}.') from None
    return {(topic, index): offset for topic, offsets in found.items() for index, offset in offsets.items()}


def _instant_ms(text: str, option: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidPipeline(f"{option} is an instant with a time zone, such as 2026-01-31T12:00:00Z, not {text!r}.")
    return int(moment.timestamp() * 1000)


# -- carrying it out ---------------------------------------------------------------------------------------------------

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

    def start(self, options: Mapping[str, Any], context: RunContext) -> list[StreamingQuery]:
        """Do all of it."""
        _Job(self, options, context).run()
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
    def __init__(self, kind: Restore, options: Mapping[str, Any], context: RunContext) -> None:
        self._kind = kind
        self._options = options
        self._around = context
        self._spark = context.spark
        self._servers = context.definition.servers
        self._servers_list = servers_in(self._servers)
        self._catalog = Catalog.load(on_this_machine(beside(context.definition, options["lake"]), "A lake"))
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

    def _plan(self) -> RestorePlan:
        checkpoint = Checkpoint(self._around.checkpoint, self._spark)
        wanted = {name: value for name, value in self._options.items() if name != "check"}
        known = checkpoint.read(PLAN)
        if known is not None:
            plan = msgspec.json.decode(known, type=RestorePlan)
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

    def _prepared(self, target: RestoreTarget) -> RestoreTarget:
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

    def _created(self, target: RestoreTarget) -> RestoreTarget:
        settings = restored(target.settings, keeps_timestamps=self._keeps_timestamps)
        portal, transport = transport_to(self._servers_list)
        request = CreateTopic(name=target.name, partitions=target.partitions, configs={**settings.first})
        portal.call(transport.call(request))
        if self._keeps_timestamps:
            # Messages come with the timestamps that they had: retention would remove old ones at once.
            withheld = ", ".join(f"{name}={value}" for name, value in settings.withheld.items())
            had = f" It had {withheld}." if withheld else ""
            self._around.tell(f"Made topic {target.name}, which keeps messages for ever: set its retention.ms.{had}")
        return msgspec.structs.replace(target, last=settings.last)

    def _check_settings(self, target: RestoreTarget) -> None:
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

    def _write(self, plan: RestorePlan, number: int, portion: Portion) -> None:
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

    def _check(self, plan: RestorePlan) -> int:
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
                        f"where {expected.get(partition, (0,))[0]:,} are expected. Did another producer write to it?"
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
