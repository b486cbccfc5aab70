"""Streams: where they begin, how far they go in each micro-batch, and how far they have got.

All of it but reading runs in one planner process a query. Spark asks for the latest offset all the time, also when
nothing comes; the answer waits for news a moment, in a single call for all partitions.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import DataLost, InvalidConfig
from penstock.spark.reading.batch import HOW_TO_GO_ON, TaskSpans, read_spans
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import (
    Reaches,
    StreamPosition,
    TopicReach,
    advance,
    bound_offsets,
    losses,
    position_of,
    spans,
    split,
    tasks,
)

log = logging.getLogger(__name__)

_WAIT_MS: Final = 200
BEGINS_AT_EARLIEST: Final = (
    "The stream begins at the earliest messages of %s, since startingOffsets is not given. For new messages only, as "
    "Spark's Kafka connector does, give startingOffsets=latest before the first run."
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, or up to what there is at the start with the trigger ``availableNow``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        # Of the planner only: a reader also travels to workers.
        self._cluster: Cluster | None = None
        self._reaches: Reaches = {}
        self._target: Reaches | None = None
        self._reported: StreamPosition | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]  # as if made anew where it arrives

    # -- where it stands ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options = self._options
        reaches = self._ask().reaches(instants=options.starting.instants)
        group = options.group or f"spark-{uuid.uuid4().hex[:12]}"
        start = StreamPosition(group, bound_offsets(options.starting, reaches))
        if options.starting.offsets is not None:
            self._judge(start, reaches)
        if not options.starting.is_given:
            log.warning(BEGINS_AT_EARLIEST, ", ".join(sorted(reaches)))
        return start.form()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        options = self._options
        begin = position_of(start)
        self._check_topics(begin)
        self._report(begin)
        reaches = self._look(begin)
        self._judge(begin, reaches)
        self._reaches = reaches
        if isinstance(limit, ReadAllAvailable) and self._target is None:
            return advance(begin, reaches).form()
        return advance(begin, reaches, max_records=options.max_records, max_bytes=options.max_bytes).form()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        return ReadMaxBytes(options.max_bytes) if options.max_bytes is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ask().reaches()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For Spark's own figures of how far a query is behind: as seen last."""
        if not self._reaches or self._reported is None:
            return None
        return advance(self._reported, self._reaches).form()

    # -- work ---------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        count = self._options.min_partitions
        found = split(spans(position_of(start), position_of(end), self._reaches), count)
        return [TaskSpans(some) for some in tasks(found, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_spans(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._report(position_of(end))

    # -- asking and judging -------------------------------------------------------------------------------------------

    def _ask(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster

    def _look(self, begin: StreamPosition) -> Reaches:
        """How far topics reach; with ``availableNow``, no further than they did at the start."""
        if self._target is None:
            return self._ask().reaches(known=begin, wait_ms=_WAIT_MS)
        now = self._ask().reaches(known=begin)
        return {name: _capped(now[name], topic) for name, topic in self._target.items() if name in now}

    def _judge(self, begin: StreamPosition, reaches: Reaches) -> None:
        lost = list(losses(begin, reaches))
        if not lost:
            return
        if self._options.fails_on_data_loss:
            raise DataLost(f"{' '.join(lost)} {HOW_TO_GO_ON}")
        log.warning("%s Going on with what there is, because failOnDataLoss is false.", " ".join(lost))

    def _check_topics(self, begin: StreamPosition) -> None:
        """A checkpoint of quite other topics is a mistake, whatever may be lost."""
        wanted = self._options.topics
        if wanted and begin.topics and not set(wanted) & begin.topics.keys():
            raise InvalidConfig(
                f"The checkpoint is of a query over {', '.join(sorted(begin.topics))}, and this one is over "
                f"{', '.join(sorted(wanted))}. Use another checkpointLocation."
            )

    def _report(self, position: StreamPosition) -> None:
        """Show the query as a group with a lag. Everything before ``position`` was processed."""
        if self._reported is None or dict(position.items()) != dict(self._reported.items()):
            self._ask().report(self._options.group or position.group, position)
            self._reported = position


def _capped(now: TopicReach, target: TopicReach) -> TopicReach:
    if now.topic_id != target.topic_id:
        return now  # `_judge` reports that it is another one
    return TopicReach(
        now.topic_id,
        {
            index: reach._replace(end=min(reach.end, target.partitions[index].end))
            for index, reach in now.partitions.items()
            if index in target.partitions
        },
    )
