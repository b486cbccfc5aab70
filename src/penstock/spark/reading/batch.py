"""Batch reads: a part of the log that is fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.errors import DataLost, InvalidConfig
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.filters import Narrowed, narrow
from penstock.spark.reading.frame import Frame
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import Reaches, Span, bound_offsets, follow, losses, spans, split, tasks
from penstock.spark.reading.positions import Position
from penstock.spark.reading.span_reader import HOW_TO_GO_ON, SpanReader


class TaskSpans(InputPartition):
    """One task's work."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


def read_spans(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task gives to Spark; runs in a worker."""
    if not isinstance(partition, TaskSpans):
        return  # Spark makes one of its own where there is nothing to read
    values = None
    if options.schema is not None:
        from penstock.spark.values.value_reader import (
            ValueReader,  # brings the client along, which most tasks do not need
        )

        values = ValueReader(options)
    yield from SpanReader(options, Frame(options, values)).read_all(partition.spans)


class BatchReader(DataSourceReader):
    """Reads once, from where the options say to where they say."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        options, narrowed = self._options, self._narrowed
        bounds = options.starting.instants | options.ending.instants | narrowed.instants
        reaches = Cluster(options).reaches(instants=bounds)
        start = Position("", bound_offsets(options.starting, reaches))
        end = Position("", bound_offsets(options.ending, reaches))
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


def _checked(start: Position, reaches: Reaches, options: SourceOptions) -> Position:
    if options.starting.offsets is None:
        return start
    lost = list(losses(start, reaches))
    if lost and options.fails_on_data_loss:
        raise DataLost(f"{' '.join(lost)} {HOW_TO_GO_ON}")
    return follow(start, reaches)


def _check_end(end: Position, reaches: Reaches) -> None:
    for (topic, index), offset in end.items():
        reach = reaches[topic].partitions[index]
        if offset > reach.end:
            raise InvalidConfig(
                f"endingOffsets says {offset} for {topic}-{index}, which can be read up to {reach.end} at the moment."
            )
