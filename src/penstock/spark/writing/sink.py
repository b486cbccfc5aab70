"""Rows of Spark into topics: ``df.write`` and ``df.writeStream`` with ``format("penstock")``.

Exactly once: every attempt of a task stages what it writes in a transaction of the batch, and the driver commits the
batch by naming the attempts that count. The broker commits each batch of a query once, however many drivers ask; it
refuses a driver that was replaced, and aborts what that left behind. So any process may be killed at any time.
With ``delivery=at-least-once`` rows are seen as they are written, and a batch that is run again is written again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.api.operation import Request
from penstock.api.series import AbortNumber, BeginNumber, CommitNumber
from penstock.errors import InvalidRecord, InvalidTxnState
from penstock.spark.writing.columns import Rows, check_schema, partitions_of, rows_of
from penstock.spark.writing.encoding import Columns, Integers, encode
from penstock.spark.writing.later import LaterRows, check_size, parted, schedule
from penstock.spark.writing.options import SinkOptions
from penstock.spark.writing.staging import Attempt, WriteClaim

# Not in Spark's documentation, but how its own Python runner tells tasks where they belong; a test holds them.
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"

_GATHER_BYTES: Final = 8 * 1024 * 1024
_PIECE_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass
class WrittenRows(WriterCommitMessage):
    """What an attempt of a task leaves for the driver to commit: where its rows are staged, and as whose."""

    rows: int
    claim: WriteClaim | None
    transaction: str | None = None
    writer: str | None = None
    later: Sequence[LaterRows] = ()


class _Sink:
    """What both writers have in common. It is pickled to every task, so it holds nothing but facts."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, has_topic=options.topic is not None)
        self._options = options

    def _write(self, batches: Iterator[pa.RecordBatch], claim: WriteClaim | None) -> WrittenRows:
        context = TaskContext.get()
        task = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        # No other sink may ever have this name: batches are told apart by writer and number.
        attempt = Attempt(self._options, claim, f"{task[0]}.{task[1]}.{uuid4().hex[:12]}")
        count = 0
        later: list[LaterRows] = []
        try:
            for batch in _gathered(batches):
                if attempt.begin() is None:
                    break  # this batch is committed, so its rows are not needed
                for rows in rows_of(batch, self._options.topic, time.time_ns() // 1_000_000):
                    now, some = parted(rows)
                    later += some
                    if now.count:
                        self._send(attempt, now, task[0])
                check_size(later)
                count += len(batch)
            attempt.finish()
        except BaseException:
            attempt.close()
            raise
        writer = None if attempt.transaction is None else attempt.writer
        return WrittenRows(count, claim, attempt.transaction, writer, later)

    def _send(self, attempt: Attempt, rows: Rows, start: int) -> None:
        numbering = attempt.numbering
        assert numbering is not None, "it has begun"
        partitions = _partitions(rows, attempt.partition_count(rows.topic), start)
        columns = Columns(partitions, rows.timestamps_ms, rows.key, rows.value, rows.header_counts, rows.headers)
        if rows.priorities is not None:  # one priority in a batch, so that lanes need not look into it
            columns = columns.take(np.lexsort((rows.priorities, partitions)))
        options = self._options
        attempt.send(
            rows.topic, encode(rows.topic, columns, numbering, batch_bytes=options.batch_bytes, codec=options.codec)
        )

    def _commit(self, messages: Sequence[WriterCommitMessage | None], number: int | None = None) -> None:
        written = [message for message in messages if isinstance(message, WrittenRows)]
        later = [each for message in written for each in message.later]
        claims = {message.claim for message in written if message.claim is not None}
        if not claims:  # nothing is staged
            self._schedule(uuid4().hex, later)
            return
        if len(claims) > 1 or (number is not None and number != next(iter(claims)).number):
            raise InvalidTxnState(f"Tasks of one batch wrote for {sorted(claims)}; nothing was committed.")
        transactions = {message.transaction for message in written if message.transaction is not None}
        if len(transactions) > 1:
            raise InvalidTxnState(
                "The batch took longer than its staged rows are kept (stagingTimeout), so some are gone. Nothing was "
                "committed; it is written again when the query goes on."
            )
        (claim,) = claims
        if later:
            # Refused if another driver has taken over: what that schedules is its own business.
            self._call(BeginNumber(**claim._asdict()))
            self._schedule(f"{claim.series}/{claim.number}", later)
        writers = sorted(message.writer for message in written if message.writer is not None)
        transaction = next(iter(transactions), None)
        self._call(CommitNumber(**claim._asdict(), transaction=transaction, writers=writers))

    def _abort(self, claims: Iterable[WriteClaim | None]) -> None:
        for claim in claims:
            if claim is not None:
                self._call(AbortNumber(**claim._asdict()))

    def _schedule(self, scope: str, messages: Sequence[LaterRows]) -> None:
        if messages:
            portal, transport = self._options.way()
            portal.call(schedule(transport, scope, messages))

    def _call(self, request: Request[Any]) -> None:
        portal, transport = self._options.way()
        portal.call(transport.call(request))


class BatchSink(_Sink, DataSourceArrowWriter):
    """``df.write``. With ``txnId`` it happens once; without, every call is a write of its own, seen whole or not."""

    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(SinkOptions.of(options, is_streaming=False), schema)
        self._run = uuid4().hex
        self._series = f"spark-write:{self._options.transaction or self._run}"

    @property
    def _claim(self) -> WriteClaim | None:
        return WriteClaim(self._series, self._options.version, self._run) if self._options.is_staged else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._write(iterator, self._claim)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        self._abort({self._claim})  # a task that failed left no message


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """``df.writeStream``: every batch of the query once."""

    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(SinkOptions.of(options, is_streaming=True), schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._write(iterator, _claim_of_task() if self._options.is_staged else None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        self._abort({message.claim for message in messages if isinstance(message, WrittenRows)})


def _claim_of_task() -> WriteClaim:
    context = TaskContext.get()
    found = [None if context is None else context.getLocalProperty(name) for name in _PROPERTIES]
    query, batch, run = found
    if not query or not batch or not run:
        raise InvalidTxnState(
            "This version of Spark does not tell tasks of which query and batch they are, so rows cannot be written "
            "exactly once. Use delivery=at-least-once, or foreachBatch with txnId and txnVersion."
        )
    return WriteClaim(f"spark-query:{query}", int(batch), run)


_PROPERTIES: Final = (QUERY_PROPERTY, BATCH_PROPERTY, RUN_PROPERTY)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a good size: small ones together, very large ones apart."""
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not len(batch):
            continue
        some.append(batch)
        size += batch.nbytes
        if size >= _GATHER_BYTES:
            yield from _whole(some, size)
            some, size = [], 0
    if some:
        yield from _whole(some, size)


def _whole(some: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    if len(some) > 1:
        some = pa.Table.from_batches(some).combine_chunks().to_batches()
    for batch in some:
        rows = max(1, len(batch) * _PIECE_BYTES_MAX // max(size, _PIECE_BYTES_MAX))
        for first in range(0, len(batch), rows):
            yield batch.slice(first, rows)


def _partitions(rows: Rows, count: int, start: int) -> Integers:
    """Where each row goes: as it says, or as its key has it."""
    chosen = rows.partitions
    if chosen is None:
        return partitions_of(rows.key, rows.count, count, start)
    if chosen.max(initial=-1) >= count:
        raise InvalidRecord(
            f"Column 'partition' has {int(chosen.max())}, but topic {rows.topic!r} has {count} partitions, from 0 on."
        )
    is_open = chosen < 0
    return np.where(is_open, partitions_of(rows.key, rows.count, count, start), chosen) if is_open.any() else chosen
