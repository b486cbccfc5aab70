"""Batch reads, whose part of the log is fixed when the query is planned; and what a task does, of a stream as well.

A task reads spans of partitions: fetched ahead, decoded, and given to Spark in Arrow record batches.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.errors import (
    CorruptRecords,
    DataLost,
    InvalidConfig,
    OffsetOutOfRange,
    PenstockError,
    RequestTimedOut,
    UnknownPartition,
    UnknownTopic,
)
from penstock.records import iter_batches
from penstock.spark.decoding import Data, DecodedRows, decode
from penstock.spark.reading.cluster import Cluster, FetchedBatches
from penstock.spark.reading.filters import Narrowed, narrow
from penstock.spark.reading.frame import RowFrame
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import (
    Reaches,
    ReadSpan,
    StreamPosition,
    bound_offsets,
    follow,
    losses,
    spans,
    split,
    tasks,
)


class TaskSpans(InputPartition):
    """One task's work."""

    def __init__(self, spans: tuple[ReadSpan, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


def read_spans(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task gives to Spark; runs in a worker."""
    if not isinstance(partition, TaskSpans):
        return  # Spark makes one of its own where there is nothing to read
    values = None
    if options.schema is not None:
        from penstock.spark.value_reader import ValueReader

        values = ValueReader(options)
    yield from SpanReader(options, RowFrame(options, values)).read_all(partition.spans)


class BatchReader(DataSourceReader):
    """Reads once, from where the options say to where they say."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        options, narrowed = self._options, self._narrowed
        bounds = options.starting.instants | options.ending.instants | narrowed.instants
        reaches = Cluster(options).reaches(instants=bounds)
        start = StreamPosition("", bound_offsets(options.starting, reaches))
        end = StreamPosition("", bound_offsets(options.ending, reaches))
        start = _checked(start, reaches, options)
        _check_end(end, reaches)
        found = spans(start, end, reaches)
        wanted = [part for span in found if (part := narrowed.part_of(span, reaches)) is not None]
        return [TaskSpans(some) for some in tasks(split(wanted, options.min_partitions), options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_spans(self._options, partition)


class FilteredReader(BatchReader):
    """Reads only where filters of the query may hold.

    Spark gives it filters where they may be pushed down, and refuses a reader that takes any where they may not.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what tells which offsets to read; what is returned, Spark looks at once more in every row."""
        self._narrowed, left = narrow(filters)
        return left


def _checked(start: StreamPosition, reaches: Reaches, options: SourceOptions) -> StreamPosition:
    if options.starting.offsets is None:
        return start
    lost = list(losses(start, reaches))
    if lost and options.fails_on_data_loss:
        raise DataLost(f"{' '.join(lost)} {HOW_TO_GO_ON}")
    return follow(start, reaches)


def _check_end(end: StreamPosition, reaches: Reaches) -> None:
    for (topic, index), offset in end.items():
        reach = reaches[topic].partitions[index]
        if offset > reach.end:
            raise InvalidConfig(
                f"endingOffsets says {offset} for {topic}-{index}, which can be read up to {reach.end} at the moment."
            )


log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.05
_AHEAD: Final = 8  # spans of a task whose first messages are asked for at once; a task has several if they are small
_LOST: Final = (OffsetOutOfRange, UnknownTopic, UnknownPartition, CorruptRecords)
HOW_TO_GO_ON: Final = (
    "Nothing was skipped. If you can do without what is lost, set failOnDataLoss=false; to begin anew, use another "
    "checkpointLocation."
)


class SpanReader:
    """Reads spans with one set of options."""

    def __init__(self, options: SourceOptions, frame: RowFrame) -> None:
        self._options = options
        self._frame = frame
        self._cluster = Cluster(options)

    def read_all(self, spans: Sequence[ReadSpan]) -> Iterator[pa.RecordBatch]:
        """The messages of some spans, one after the other; those of several are fetched at once."""
        begun: deque[Future[FetchedBatches]] = deque()
        try:
            for at, span in enumerate(spans):
                begun.extend(self._cluster.fetch(each, each.begin) for each in spans[at + len(begun) : at + _AHEAD])
                yield from self._read(span, begun.popleft())
        finally:
            for coming in begun:
                coming.cancel()

    def _read(self, span: ReadSpan, coming: Future[FetchedBatches]) -> Iterator[pa.RecordBatch]:
        """The messages of a span. While some are decoded, the next are on their way."""
        offset = span.begin
        try:
            while offset < span.end:
                try:
                    fetched = coming.result()
                except _LOST as error:
                    fetched = self._after_loss(span, offset, error)
                if fetched.next_offset <= offset:
                    fetched = self._wait(span, offset)
                reached = fetched.next_offset
                if reached < span.end:
                    coming = self._cluster.fetch(span, reached)
                for decoded in self._decode(fetched.data, offset, span):
                    batch = self._frame.batch(span, decoded)
                    if batch.num_rows:
                        yield batch
                offset = reached
        finally:
            coming.cancel()

    def _wait(self, span: ReadSpan, offset: int) -> FetchedBatches:
        """A node that leads since a moment ago may not know yet how much is committed."""
        deadline = time.monotonic() + self._options.timeout_s
        while time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            try:
                fetched = self._cluster.fetch(span, offset).result()
            except _LOST as error:
                return self._after_loss(span, offset, error)
            if fetched.next_offset > offset:
                return fetched
        raise RequestTimedOut(
            f"Offset {offset} of {span.topic}-{span.partition} could not be read within {self._options.timeout_s:g} s, "
            f"though the partition reached to {span.end} before."
        )

    def _after_loss(self, span: ReadSpan, offset: int, error: PenstockError) -> FetchedBatches:
        """What comes after messages that are gone, if that is how it should be."""
        told = f"Of {span}, those from {offset} on cannot be read: {error.message}"
        if self._options.fails_on_data_loss:
            raise DataLost(f"{told} {HOW_TO_GO_ON}") from error
        log.warning("%s Going on without them, because failOnDataLoss is false.", told)
        if isinstance(error, CorruptRecords):
            return self._cluster.fetch(span, offset, skips_damage=True).result()
        begin = self._cluster.begin_of(span)
        if begin is None or not offset < begin < span.end:
            return FetchedBatches(span.end, memoryview(b""))
        return FetchedBatches(begin, memoryview(b""))

    def _decode(self, data: Data, first: int, span: ReadSpan) -> Iterator[DecodedRows]:
        frame = self._frame
        parts = decode(data, first, span.end, frame.wanted, frame.headers_type)
        reached = first
        try:
            for decoded in parts:
                yield decoded
                reached = max(reached, decoded.last_offset + 1)
        except CorruptRecords as error:
            told = f"Of {span}, a batch cannot be decoded: {error.message}"
            if self._options.fails_on_data_loss:
                raise DataLost(f"{told} {HOW_TO_GO_ON}") from error
            log.warning("%s Going on without it, because failOnDataLoss is false.", told)
            yield from self._decode_each(data, reached, span)

    def _decode_each(self, data: Data, first: int, span: ReadSpan) -> Iterator[DecodedRows]:
        """Batch by batch, without those that make no sense."""
        view = memoryview(data)
        for position, header in iter_batches(view):
            try:
                batch = view[position : position + header.size]
                yield from decode(batch, first, span.end, self._frame.wanted, self._frame.headers_type)
            except CorruptRecords:
                log.warning("Offsets %d to %d of %s are skipped.", header.base_offset, header.last_offset, span.topic)
