"""What a restore is going to do: which offsets go where, in which portions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidPipeline
from penstock.pipelines.lake.catalog import Catalog, Where
from penstock.pipelines.lake.reading import Span, rows_of
from penstock.pipelines.text import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Target(msgspec.Struct, frozen=True, kw_only=True):
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

    def spans(self) -> dict[Where, Span]:
        return {(each.topic, each.generation, each.partition): Span(each.begin, each.end) for each in self.pieces}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    options: dict[str, Any]
    targets: list[Target]
    portions: list[Portion]

    def spans(self) -> dict[Where, Span]:
        """Everything at once."""
        found: dict[Where, Span] = {}
        for portion in self.portions:
            for where, span in portion.spans().items():
                known = found.get(where, span)
                found[where] = Span(min(known.begin, span.begin), max(known.end, span.end))
        return found


def plan_of(spark: SparkSession, catalog: Catalog, options: Mapping[str, Any], target_of: Callable[[str], str]) -> Plan:
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
                spans[where] = Span(span.begin, min(span.end, end))
    facts = [fact for fact in catalog.topics.values() if fact.name in topics]
    targets = [
        Target(
            topic=topic,
            name=target_of(topic),
            partitions=max(fact.partitions for fact in facts if fact.name == topic),
            settings=max((fact for fact in facts if fact.name == topic), key=lambda fact: fact.generation).settings,
        )
        for topic in topics
    ]
    return Plan(
        id=uuid.uuid4().hex,
        options=msgspec.to_builtins(dict(options)),
        targets=targets,
        portions=list(portions_of(spans, counts, int(options["portionRows"]))),
    )


def _everything(catalog: Catalog, topics: Iterable[str]) -> tuple[dict[Where, Span], dict[Where, int]]:
    spans: dict[Where, Span] = {}
    counts: dict[Where, int] = {}
    for file in catalog.files_of(topics):
        for each in file.ranges:
            where = (file.topic, file.generation, each.partition)
            known = spans.get(where, Span(each.first, each.last + 1))
            spans[where] = Span(min(known.begin, each.first), max(known.end, each.last + 1))
            counts[where] = counts.get(where, 0) + each.rows
    return spans, counts


def _cut(spark: SparkSession, catalog: Catalog, spans: dict[Where, Span], at_ms: int, *, cuts_end: bool) -> None:
    """Have spans end, or begin, at the first message at or after an instant."""
    from pyspark.sql import functions as sql

    topics = {where[0] for where in spans}
    later = [file for file in catalog.files_of(topics) if any(each.last_ms >= at_ms for each in file.ranges)]
    rows = rows_of(spark, catalog.lake, later).where(sql.col("timestamp") >= sql.timestamp_millis(sql.lit(at_ms)))
    first = rows.groupBy("topic", "generation", "partition").agg(sql.min("offset").alias("offset")).collect()
    found = {(row.topic, row.generation, row.partition): row.offset for row in first}
    for where, span in spans.items():
        cut = found.get(where, span.end)
        spans[where] = Span(span.begin, min(span.end, cut)) if cuts_end else Span(max(span.begin, cut), span.end)


def portions_of(spans: Mapping[Where, Span], counts: Mapping[Where, int], rows_max: int) -> Iterable[Portion]:
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
