"""Produce: batches go from the request's buffer to the log as they came.

Versions: 0 to 2 carry record formats before batch v2 and are refused partition by partition; 3 to 11 differ only in
what the response tells; from 12 on a producer's transaction takes in the partitions that it writes to (KIP-890). acks=0
gets no response at all, acks=1 is answered once written, acks=all once committed.

Records that are for later (`penstock.kafka.delaying`) are put into the schedule log once what is left of their batch is
committed, and then the producer is answered. The first records of a transaction in a partition wait for the word of its
coordinator, and everything that came behind them on their connection waits with them: no later batch may overtake an
earlier one.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.coordination.messages import Rejected
from penstock.broker.partition import Appended, Partition
from penstock.broker.transactions.messages import Where
from penstock.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidRecord,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    PenstockError,
    UnsupportedFormat,
)
from penstock.kafka.admission import FIRST_ADDING_VERSION, Claim, claim_of, produce_code, unconfirmed_error
from penstock.kafka.connection import Answer, Connection
from penstock.kafka.delaying import Delayed, Placing, delayed_in
from penstock.kafka.errors import error_code
from penstock.kafka.nearest import addresses_of, hint_of
from penstock.kafka.protocol.apis import PRODUCE
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.headers import RequestHeader
from penstock.kafka.protocol.produce import (
    FIRST_BATCH_V2_VERSION,
    Produce,
    ProducedPartition,
    ProducedTopic,
    RecordError,
    decode_produce_request,
    encode_produce_response,
)
from penstock.kafka.recompressing import large_in, needs_thread, recompress
from penstock.records import TRANSACTIONAL_BIT

log = logging.getLogger(__name__)

_PRODUCE_KEY: Final = PRODUCE.key
_HEAD: Final = struct.Struct(">hhi")
_ATTRIBUTES_AT: Final = 22  # the lower byte of a batch's attributes

_FIRST_HINT_VERSION: Final = 10

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1

# What may be over before the producer's next batch is looked at.
_PASSING: Final = (NotLeader, NotEnoughReplicas, ConcurrentTransactions, NotCoordinator, CoordinatorLoading)


class _Wait(NamedTuple):
    """A batch that is written but not committed yet, and where its result stands."""

    partition: Partition
    next_offset: int
    results: list[ProducedPartition]
    at: int


class ProduceHandler:
    """Answers produce requests, pipelined: the next one is taken while the last waits for its commit."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._stats = broker.stats
        self._placing = Placing(broker)
        self._under_way: set[asyncio.Task[None]] = set()  # requests whose records are being scheduled

    def handle_repeated(self, connection: Connection, frame: memoryview) -> bool:
        """Take a request that repeats an earlier one of this connection but for its records; False if it does not."""
        if len(frame) < _HEAD.size:
            return False
        began = self._clock.monotonic()
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        repeated = connection.shapes.find(version, frame) if api_key == _PRODUCE_KEY else None
        if repeated is None:
            return False
        shape, records = repeated
        is_all = shape.acks == ACKS_ALL
        try:
            partition = self._broker.partition(shape.topic, shape.partition)
            if partition.settings.has_delay_headers or needs_thread(partition, records):
                return False
            is_transactional = len(records) > _ATTRIBUTES_AT and records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT
            if is_transactional and (not shape.is_transactional or partition.lacks_transaction(records)):
                return False
            if is_all:
                partition.check_in_sync()
            base_offset, next_offset, append_time_ms = partition.append_from_client(
                records, self._clock.now_ms(), is_durable=is_all and self._broker.syncs_before_ack
            )
        except PenstockError as error:
            failed = ProducedTopic(shape.topic, [self._failed(shape.topic, shape.partition, error, version, records)])
            connection.answer_now(_frame(self._broker, connection, version, correlation_id, [failed]))
            return True
        start_offset = partition.log.start_offset
        took = self._clock.monotonic() - began
        self._stats.append_latency.observe(took)
        if is_all and next_offset > partition.high_watermark:
            answer = connection.expect_answer(is_barrier=False)
            results = [ProducedPartition(shape.partition, 0, base_offset, append_time_ms, start_offset)]
            pending = _Pending(self._broker, connection, version, correlation_id, answer, began)
            pending.topics.append(ProducedTopic(shape.topic, results))
            pending.wait([_Wait(partition, next_offset, results, 0)], shape.timeout_ms)
        else:
            self._stats.produce_latency.observe(took)
            connection.answer_now(shape.response(correlation_id, base_offset, append_time_ms, start_offset))
        return True

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        began = self._clock.monotonic()
        request = decode_produce_request(header.api_version, frame, header.body_position)
        acks = request.acks
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            refused = connection.expect_answer(is_barrier=False)
            refused.complete([_refusal(header, request, ErrorCode.INVALID_REQUIRED_ACKS)])
            return
        try:
            claim = claim_of(self._broker, request)
        except PenstockError as error:
            if acks == ACKS_NONE:
                connection.close(error.message)
                return
            refused = connection.expect_answer(is_barrier=False)
            refused.complete([_refusal(header, request, error_code(error))])
            return
        if acks != ACKS_NONE:
            connection.shapes.learn(header, request, frame)
        delayed = delayed_in(self._broker, request, self._clock.now_ms())
        errors = {where: found for where, found in delayed.items() if isinstance(found, PenstockError)}
        if claim is not None and claim.unconfirmed:
            self._ask_first(connection, header, frame, claim, errors, began)
            return
        if len(delayed) > len(errors):
            later = {where: found for where, found in delayed.items() if isinstance(found, Delayed)}
            self._append_and_place(connection, header, request, later, errors, began)
            return
        large = large_in(self._broker, request)
        if large:
            self._recompress_first(connection, header, frame, large, errors, began)
            return
        topics, waits = self._append_all(header.api_version, request, errors)
        self._stats.append_latency.observe(self._clock.monotonic() - began)
        if acks == ACKS_NONE:
            _close_if_failed(connection, topics)
            return
        self._finish(connection, header, request, topics, waits, connection.expect_answer(is_barrier=False), began)

    def _append_and_place(
        self,
        connection: Connection,
        header: RequestHeader,
        request: Produce,
        later: dict[Where, Delayed],
        errors: dict[Where, PenstockError],
        began: float,
    ) -> None:
        """Append, and answer once the records that are for later are in the schedule log, too."""
        version = header.api_version
        answer = connection.expect_answer(is_barrier=False)
        topics, waits = self._append_all(version, request, errors, later)
        self._stats.append_latency.observe(self._clock.monotonic() - began)

        async def place(wait: _Wait) -> None:
            topic, index = wait.partition.id
            error = await self._placing.place(later[topic, index], wait.next_offset, request.timeout_ms)
            if error is not None:
                wait.results[wait.at] = self._failed(topic, index, error, version, None)
                waits.remove(wait)

        async def place_all() -> None:
            placed = [wait for wait in waits if wait.partition.id in later]
            outcomes = await asyncio.gather(*map(place, placed), return_exceptions=True)
            for wait, outcome in zip(placed, outcomes, strict=True):
                if outcome is not None:
                    log.error("Records for %s met a bug while scheduled.", wait.partition.id, exc_info=outcome)
                    error = PenstockError("Something went wrong inside the node; its log says more.")
                    wait.results[wait.at] = self._failed(*wait.partition.id, error, version, None)
                    waits.remove(wait)
            if request.acks == ACKS_NONE:
                _close_if_failed(connection, topics)
                answer.complete(())
            else:
                self._finish(connection, header, request, topics, waits, answer, began)

        task = asyncio.ensure_future(place_all())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _recompress_first(
        self,
        connection: Connection,
        header: RequestHeader,
        frame: memoryview,
        large: Mapping[Where, Partition],
        refused: Mapping[Where, PenstockError],
        began: float,
    ) -> None:
        """Append once the batches that their topics store with another codec are compressed anew."""
        version = header.api_version
        answer = connection.expect_answer(is_barrier=True)
        request = decode_produce_request(version, memoryview(bytearray(frame)), header.body_position)

        async def append() -> None:
            request_anew, errors = await recompress(request, large)
            topics, waits = self._append_all(version, request_anew, {**errors, **refused})
            self._stats.append_latency.observe(self._clock.monotonic() - began)
            answer.let_pass()
            if request.acks == ACKS_NONE:
                _close_if_failed(connection, topics)
                answer.complete(())
            else:
                self._finish(connection, header, request, topics, waits, answer, began)

        task = asyncio.ensure_future(append())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _ask_first(
        self,
        connection: Connection,
        header: RequestHeader,
        frame: memoryview,
        claim: Claim,
        refused: Mapping[Where, PenstockError],
        began: float,
    ) -> None:
        """Append once the coordinator has admitted the partitions that the request has not written to yet."""
        version = header.api_version
        answer = connection.expect_answer(is_barrier=True)
        # The frame is gone when we return, and the coordinator may answer later.
        request = decode_produce_request(version, memoryview(bytearray(frame)), header.body_position)

        def on_answer(missing: frozenset[Where] | Rejected) -> None:
            if isinstance(missing, Rejected):
                errors = dict.fromkeys(claim.unconfirmed, missing.error)
            else:
                errors = {where: unconfirmed_error(where) for where in missing}
            topics, waits = self._append_all(version, request, {**errors, **refused})
            answer.let_pass()  # what came behind may be appended behind it from now on
            if request.acks == ACKS_NONE:
                _close_if_failed(connection, topics)
                answer.complete(())
            else:
                self._finish(connection, header, request, topics, waits, answer, began)

        self._broker.transactions.admit(
            request.transactional_id or "",
            claim.producer,
            claim.unconfirmed,
            on_answer,
            adds=version >= FIRST_ADDING_VERSION,
        )

    def _finish(
        self,
        connection: Connection,
        header: RequestHeader,
        request: Produce,
        topics: list[ProducedTopic],
        waits: list[_Wait],
        answer: Answer,
        began: float,
    ) -> None:
        """Answer as soon as everything that was written is committed."""
        if waits:
            pending = _Pending(self._broker, connection, header.api_version, header.correlation_id, answer, began)
            pending.topics += topics
            pending.wait(waits, request.timeout_ms)
        else:
            answer.complete([_frame(self._broker, connection, header.api_version, header.correlation_id, topics)])
            self._stats.produce_latency.observe(self._clock.monotonic() - began)

    def _append_all(
        self,
        version: int,
        request: Produce,
        errors: Mapping[Where, PenstockError],
        later: Mapping[Where, Delayed] = MappingProxyType({}),
    ) -> tuple[list[ProducedTopic], list[_Wait]]:
        """Write what may be written; ``errors`` says what may not, ``later`` which batches have records for later."""
        broker = self._broker
        is_all = request.acks == ACKS_ALL
        is_durable = is_all and broker.syncs_before_ack
        now_ms = self._clock.now_ms()
        topics: list[ProducedTopic] = []
        waits: list[_Wait] = []
        for name, partitions in request.topics:
            results: list[ProducedPartition] = []
            topics.append(ProducedTopic(name, results))
            for index, records in partitions:
                try:
                    if version < FIRST_BATCH_V2_VERSION or records is None:
                        raise UnsupportedFormat("Records must come as batches of version 2, from Produce version 3 on.")
                    if (name, index) in errors:
                        raise errors[name, index]
                    partition = broker.partition(name, index)
                    if is_all:
                        partition.check_in_sync()
                    delayed = later.get((name, index))
                    if delayed is not None and delayed.stored_at is None:
                        appended = _append_rest(partition, delayed.rest, now_ms, is_durable=is_durable)
                    else:
                        appended = partition.append_from_client(records, now_ms, is_durable=is_durable)
                    base_offset, next_offset, append_time_ms = appended
                except PenstockError as error:
                    results.append(self._failed(name, index, error, version, records))
                    continue
                if delayed is not None or (is_all and next_offset > partition.high_watermark):
                    waits.append(_Wait(partition, next_offset, results, len(results)))
                results.append(ProducedPartition(index, 0, base_offset, append_time_ms, partition.log.start_offset))
        return topics, waits

    def _failed(
        self, topic: str, index: int, error: PenstockError, version: int, records: memoryview | None
    ) -> ProducedPartition:
        if isinstance(error, _PASSING) and records is not None:
            with suppress(PenstockError):
                self._broker.partition(topic, index).refusals.note(records, error)
        if topic in self._broker.metadata.topics:  # names made up by clients must not become metrics
            self._stats.topic(topic).count_error(error.code)
        code = produce_code(error, version)
        hint = hint_of(self._broker, topic, index, code) if version >= _FIRST_HINT_VERSION else None
        bad = [RecordError(*each) for each in error.records] if isinstance(error, InvalidRecord) else []
        return ProducedPartition(index, code, record_errors=bad, error_message=error.message, current_leader=hint)


def _append_rest(partition: Partition, rest: bytearray | None, now_ms: int, *, is_durable: bool) -> Appended:
    """Append what is left of a batch once some of its records are scheduled; None if nothing has to be."""
    if rest is None:
        partition.check_leader()
        return Appended(partition.log.end_offset, 0, -1)
    return partition.append(memoryview(rest), now_ms, is_durable=is_durable, is_thinned=True)


class _Pending:
    """A produce request whose batches are written, waiting for the last of them to be committed."""

    __slots__ = (
        "_answer",
        "_began",
        "_broker",
        "_connection",
        "_correlation_id",
        "_open",
        "_timer",
        "_version",
        "topics",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        version: int,
        correlation_id: int,
        answer: Answer,
        began: float,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._answer = answer
        self._began = began
        self.topics: list[ProducedTopic] = []
        self._open: dict[int, _Wait] = {}
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, waits: list[_Wait], timeout_ms: int) -> None:
        """Answer when everything is committed or has failed, or when the time is up."""
        self._timer = asyncio.get_running_loop().call_later(max(timeout_ms, 1) / 1000, self._time_out)
        self._open = dict(enumerate(waits))
        for key, wait in enumerate(waits):
            wait.partition.when_committed(wait.next_offset, partial(self._done, key))

    def _done(self, key: int, error: PenstockError | None) -> None:
        wait = self._open.pop(key, None)
        if wait is None:
            return  # the time was up before
        if error is not None:
            self._fail(wait, error_code(error), error.message)
        if not self._open:
            self._finish()

    def _time_out(self) -> None:
        for wait in self._open.values():
            self._fail(wait, ErrorCode.REQUEST_TIMED_OUT, "The records are written but were not committed in time.")
        self._open.clear()
        self._finish()

    def _fail(self, wait: _Wait, code: ErrorCode, message: str) -> None:
        self._broker.stats.topic(wait.partition.id.topic).count_error(code.name.lower())
        topic, index = wait.partition.id
        hint = hint_of(self._broker, topic, index, code) if self._version >= _FIRST_HINT_VERSION else None
        wait.results[wait.at] = ProducedPartition(index, code, error_message=message, current_leader=hint)

    def _finish(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        frame = _frame(self._broker, self._connection, self._version, self._correlation_id, self.topics)
        self._answer.complete([frame])
        self._broker.stats.produce_latency.observe(self._broker.clock.monotonic() - self._began)


def _frame(
    broker: Broker, connection: Connection, version: int, correlation_id: int, topics: list[ProducedTopic]
) -> bytearray:
    """The response, with the addresses of the leaders that it hints at."""
    hints = [result.current_leader for topic in topics for result in topic.partitions if result.current_leader]
    if not hints:
        return encode_produce_response(version, correlation_id, topics)
    endpoints = addresses_of(broker, hints, connection.local_host)
    return encode_produce_response(version, correlation_id, topics, node_endpoints=endpoints)


def _close_if_failed(connection: Connection, topics: list[ProducedTopic]) -> None:
    if any(result.error_code for topic in topics for result in topic.partitions):
        connection.close("a produce with acks=0 failed, and closing is the only way to say so")


def _refusal(header: RequestHeader, request: Produce, code: ErrorCode) -> bytearray:
    topics = [
        ProducedTopic(topic.name, [ProducedPartition(index, code) for index, _ in topic.partitions])
        for topic in request.topics
    ]
    return encode_produce_response(header.api_version, header.correlation_id, topics)
