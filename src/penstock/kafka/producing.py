"""Produce: batches go from the request's buffer to the log as they came.

Versions: 0 to 2 carry record formats before batch v2 and are refused partition by partition; 3 to 12 differ only in
what the response tells. acks=0 gets no response at all, acks=1 is answered once written, acks=all once committed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.errors import PenstockError, UnsupportedFormat
from penstock.kafka.connection import Answer, Connection
from penstock.kafka.errors import error_code
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.headers import RequestHeader
from penstock.kafka.protocol.produce import (
    FIRST_BATCH_V2_VERSION,
    Produce,
    ProducedPartition,
    ProducedTopic,
    decode_produce_request,
    encode_produce_response,
)

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1


class ProduceHandler:
    """Answers produce requests, pipelined: the next one is taken while the last waits for its commit."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._stats = broker.stats

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        began = self._clock.monotonic()
        version = header.api_version
        request = decode_produce_request(version, frame, header.body_position)
        if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            refused = connection.expect_answer(is_barrier=False)
            refused.complete([_refusal(header, request, ErrorCode.INVALID_REQUIRED_ACKS)])
            return
        answer = None if request.acks == ACKS_NONE else connection.expect_answer(is_barrier=False)
        pending = _Pending(self._broker, header, answer, began)
        now_ms = self._clock.now_ms()
        for name, partitions in request.topics:
            results: list[ProducedPartition] = []
            pending.topics.append(ProducedTopic(name, results))
            for index, records in partitions:
                try:
                    if version < FIRST_BATCH_V2_VERSION or records is None:
                        raise UnsupportedFormat("Records must come as batches of version 2, from Produce version 3 on.")
                    partition = self._broker.partition(name, index)
                    if request.acks == ACKS_ALL:
                        partition.check_in_sync()
                    placed = partition.append(
                        records, now_ms, is_durable=request.acks == ACKS_ALL and self._broker.syncs_before_ack
                    )
                except PenstockError as error:
                    results.append(self._failed(name, index, error))
                    continue
                results.append(
                    ProducedPartition(index, 0, placed.base_offset, placed.append_time_ms, partition.log.start_offset)
                )
                if request.acks == ACKS_ALL and placed.next_offset > partition.high_watermark:
                    pending.wait_for(partition, placed.next_offset, results, len(results) - 1)
        self._stats.append_latency.observe(self._clock.monotonic() - began)
        if answer is None:
            if any(result.error_code for topic in pending.topics for result in topic.partitions):
                connection.close("a produce with acks=0 failed, and closing is the only way to say so")
            return
        pending.start(request.timeout_ms)

    def _failed(self, topic: str, index: int, error: PenstockError) -> ProducedPartition:
        if topic in self._broker.metadata.topics:  # names made up by clients must not become metrics
            self._stats.topic(topic).count_error(error.code)
        return ProducedPartition(index, error_code(error), error_message=error.message)


class _Pending:
    """A produce request whose batches are written, waiting for the last of them to be committed."""

    __slots__ = ("_answer", "_began", "_broker", "_header", "_timer", "_waiting", "topics")

    def __init__(self, broker: Broker, header: RequestHeader, answer: Answer | None, began: float) -> None:
        self._broker = broker
        self._header = header
        self._answer = answer
        self._began = began
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[int, tuple[list[ProducedPartition], int]] = {}
        self.topics: list[ProducedTopic] = []

    def wait_for(self, partition: Partition, offset: int, results: list[ProducedPartition], at: int) -> None:
        key = len(self._waiting)
        self._waiting[key] = (results, at)

        def done(error: PenstockError | None) -> None:
            if self._waiting.pop(key, None) is None:
                return  # timed out before
            if error is not None:
                results[at] = ProducedPartition(results[at].partition, error_code(error), error_message=error.message)
            if not self._waiting:
                self._finish()

        partition.when_committed(offset, done)

    def start(self, timeout_ms: int) -> None:
        """Answer now if nothing is waited for, else when that is done or the time is up."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(timeout_ms, 1) / 1000, self._time_out)
        else:
            self._finish()

    def _time_out(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for results, at in waiting.values():
            results[at] = ProducedPartition(
                results[at].partition,
                ErrorCode.REQUEST_TIMED_OUT,
                error_message="The records are written but were not committed in time.",
            )
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._broker.stats.produce_latency.observe(self._broker.clock.monotonic() - self._began)
        assert self._answer is not None
        header = self._header
        self._answer.complete([encode_produce_response(header.api_version, header.correlation_id, self.topics)])


def _refusal(header: RequestHeader, request: Produce, code: ErrorCode) -> bytearray:
    topics = [
        ProducedTopic(topic.name, [ProducedPartition(index, code) for index, _ in topic.partitions])
        for topic in request.topics
    ]
    return encode_produce_response(header.api_version, header.correlation_id, topics)
