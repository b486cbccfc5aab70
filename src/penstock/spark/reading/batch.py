"""Batch reads: a part of the log that is fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import DataLost, InvalidConfig
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.frame import Frame
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import Reaches, Span, bound_offsets, follow, losses, spans
from penstock.spark.reading.positions import Position
from penstock.spark.reading.span_reader import HOW_TO_GO_ON, SpanReader


class SpanPartition(InputPartition):
    """One task's work."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def read_spans(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task gives to Spark; runs in a worker."""
    if not isinstance(partition, SpanPartition):
        return  # Spark makes one of its own where there is nothing to read
    values = None
    if options.schema is not None:
        from penstock.spark.values.value_reader import (
            ValueReader,  # brings the client along, which most tasks do not need
        )

        values = ValueReader(options)
    yield from SpanReader(options, Frame(options, values)).read(partition.span)


class BatchReader(DataSourceReader):
    """Reads once, from where the options say to where they say."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        reaches = Cluster(options).reaches(instants=options.starting.instants | options.ending.instants)
        start = Position("", bound_offsets(options.starting, reaches))
        end = Position("", bound_offsets(options.ending, reaches))
        start = _checked(start, reaches, options)
        _check_end(end, reaches)
        return [SpanPartition(span) for span in spans(start, end, reaches, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_spans(self._options, partition)


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
