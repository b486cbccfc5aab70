"""Produce: batches go from the request's buffer to the log as they came.

Versions: 0 to 2 carry record formats before batch v2 and are refused partition by partition; 3 to 11 differ only in
the response; from 12 on a produce adds its partitions to the producer's transaction (KIP-890). acks=0 gets no response
at all, acks=1 is answered once written, acks=all once committed.

Most requests are appended at once. Three kinds wait first: delayed records are scheduled once the rest of their batch
is committed; batches that are slow to check, to search for delays or to recompress are prepared in a thread (both in
`penstock.features.messages.delayed_batches`); the first batch of a transaction in a partition needs its coordinator's
confirmation. Where later batches could overtake, the requests behind on the connection wait too.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.access.acls import AclAction, AclResource
from penstock.broker.broker import Broker
from penstock.doors.kafka.caller import REFUSED
from penstock.doors.kafka.connection import Connection
from penstock.doors.kafka.errors import FIRST_ADDING_PRODUCE_VERSION, error_code, produce_error_code
from penstock.doors.kafka.leaders import addresses_of, leader_hint
from penstock.doors.kafka.protocol.apis import PRODUCE
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import RequestHeader
from penstock.doors.kafka.protocol.produce import (
    FIRST_BATCH_V2_VERSION,
    PartitionRecords,
    Produce,
    ProducedPartition,
    ProducedTopic,
    RecordError,
    TopicRecords,
    decode_produce_request,
    encode_produce_response,
)
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
from penstock.features.messages.delayed_batches import DelayedBatch, DelayedBatches, find_slow, is_slow, prepare
from penstock.features.transactions.claims import Claim, claim_of, unconfirmed_error
from penstock.features.transactions.messages import Where
from penstock.machines.messages import Rejected
from penstock.partitions.partition import Appended, Partition
from penstock.records import TRANSACTIONAL_BIT

log = logging.getLogger(__name__)

_PRODUCE_KEY: Final = PRODUCE.key
_HEAD: Final = struct.Struct(">hhi")
_ATTRIBUTES_AT: Final = 22  # the lower byte of a batch's attributes
_FIRST_HINT_VERSION: Final = 10

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1

# Refusals that may be over when the producer sends the batch again.
_TEMPORARY: Final = (NotLeader, NotEnoughReplicas, ConcurrentTransactions, NotCoordinator, CoordinatorLoading)


class AdmittedProduce(NamedTuple):
    """A produce request, less the topics that the client may not write to: those are refused."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: tuple[TopicRecords, ...]
    refused: tuple[TopicRecords, ...] = ()


class _Wait(NamedTuple):
    """A batch that is written but not committed yet, and the place of its result in the response."""

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
        self._rules = broker.metadata.access
        self._delayed_batches = DelayedBatches(broker.partition, broker.schedules)
        self._tasks: set[asyncio.Task[None]] = set()

    def handle_repeated(self, connection: Connection, frame: memoryview) -> bool:
        """Handle a request that repeats an earlier one of the connection but for its records; False if it is none."""
        if len(frame) < _HEAD.size:
            return False
        began = self._clock.monotonic()
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        if connection.templates.rules_version != self._rules.version:
            connection.templates.forget(self._rules.version)  # the caller may have lost a right since
        repeated = connection.templates.find(version, frame) if api_key == _PRODUCE_KEY else None
        if repeated is None:
            return False
        template, records = repeated
        is_all = template.acks == ACKS_ALL
        try:
            partition = self._broker.partition(template.topic, template.partition)
            now_ms = self._clock.now_ms()
            if partition.settings.has_delay_headers or is_slow(partition, records, now_ms):
                return False
            is_transactional = len(records) > _ATTRIBUTES_AT and records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT
            if is_transactional and (not template.is_transactional or partition.lacks_transaction(records)):
                return False
            if is_all:
                partition.check_in_sync()
            base_offset, next_offset, append_time_ms = partition.append_from_client(
                records, now_ms, is_durable=is_all and self._broker.syncs_before_ack
            )
        except PenstockError as error:
            result = self._failed(template.topic, template.partition, error, version, records)
            topics = [ProducedTopic(template.topic, [result])]
            connection.answer_now(_frame(self._broker, connection, version, correlation_id, topics))
            return True
        start_offset = partition.log.start_offset
        took = self._clock.monotonic() - began
        self._stats.append_latency.observe(took)
        if is_all and next_offset > partition.high_watermark:
            results = [ProducedPartition(template.partition, 0, base_offset, append_time_ms, start_offset)]
            response = _Response(self._broker, connection, version, correlation_id, began)
            topics = [ProducedTopic(template.topic, results)]
            response.send(ACKS_ALL, topics, [_Wait(partition, next_offset, results, 0)], template.timeout_ms)
        else:
            self._stats.produce_latency.observe(took)
            connection.answer_now(template.response(correlation_id, base_offset, append_time_ms, start_offset))
        return True

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        began = self._clock.monotonic()
        version, correlation_id = header.api_version, header.correlation_id
        decoded = decode_produce_request(version, frame, header.body_position)
        request = _admitted(connection, decoded)
        acks = request.acks
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            connection.answer_now(_refusal(header, request, ErrorCode.INVALID_REQUIRED_ACKS))
            return
        if not _may_be_transactional(connection, request):
            if acks == ACKS_NONE:
                connection.close("a produce with acks=0 may not use its transactional id")
            else:
                connection.answer_now(_refusal(header, request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            return
        try:
            claim = claim_of(self._broker.partition, request.topics, request.transactional_id)
        except PenstockError as error:
            if acks == ACKS_NONE:
                connection.close(error.message)
            else:
                connection.answer_now(_refusal(header, request, error_code(error)))
            return
        if acks != ACKS_NONE and not request.refused:
            connection.templates.learn(header, decoded, frame)
        now_ms = self._clock.now_ms()
        response = partial(_Response, self._broker, connection, version, correlation_id, began)
        slow = find_slow(self._broker.partition, request.topics, now_ms)
        if slow:
            kept = _kept(request, header, frame)
            self._spawn(connection, self._prepare_first(response(is_barrier=True), version, kept, slow))
            return
        delayed, errors = self._delayed_batches.find(request.topics, now_ms, is_acks_all=acks == ACKS_ALL)
        if claim is not None and claim.unconfirmed:
            kept = _kept(request, header, frame)
            append = partial(self._append_and_answer, response(is_barrier=True), version, kept)
            self._confirm(version, kept, claim, lambda unconfirmed: append({**unconfirmed, **errors}))
        elif delayed:
            self._append_and_answer(response(), version, request, errors, delayed)
        else:
            topics, waits = self._append_all(version, request, errors)
            self._stats.append_latency.observe(self._clock.monotonic() - began)
            if acks == ACKS_NONE:
                _close_if_failed(connection, topics)
            elif waits:
                response().send(acks, topics, waits, request.timeout_ms)
            else:
                connection.answer_now(_frame(self._broker, connection, version, correlation_id, topics))
                self._stats.produce_latency.observe(self._clock.monotonic() - began)

    def _append_and_answer(
        self,
        response: _Response,
        version: int,
        request: AdmittedProduce,
        errors: Mapping[Where, PenstockError],
        delayed: Mapping[Where, DelayedBatch] = MappingProxyType({}),
        checked: Container[Where] = (),
    ) -> None:
        """Append, let the requests behind go on, and answer once the delayed records are in the schedule log too."""
        topics, waits = self._append_all(version, request, errors, delayed, checked)
        response.observe_append()
        response.answer.let_pass()
        if not delayed:
            response.send(request.acks, topics, waits, request.timeout_ms)
            return

        async def schedule(wait: _Wait) -> PenstockError | None:
            batch = delayed[wait.partition.id]
            try:
                return await self._delayed_batches.schedule(batch, wait.next_offset, request.timeout_ms)
            except Exception:
                log.exception("Scheduling records of %s met a bug.", wait.partition.id)
                return PenstockError("Something went wrong inside the node; its log says more.")

        async def schedule_all() -> None:
            scheduled = [wait for wait in waits if wait.partition.id in delayed]
            for wait, error in zip(scheduled, await asyncio.gather(*map(schedule, scheduled)), strict=True):
                if error is not None:
                    wait.results[wait.at] = self._failed(*wait.partition.id, error, version, None)
                    waits.remove(wait)
            response.send(request.acks, topics, waits, request.timeout_ms)

        self._spawn(response.connection, schedule_all())

    async def _prepare_first(
        self, response: _Response, version: int, request: AdmittedProduce, slow: Mapping[Where, Partition]
    ) -> None:
        """Append once the slow batches are prepared, and the coordinator has confirmed their transaction."""
        now_ms = self._clock.now_ms()
        batches, findings = await prepare(request.topics, slow, now_ms)
        topics = tuple(
            TopicRecords(name, tuple(PartitionRecords(*each) for each in partitions)) for name, partitions in batches
        )
        request = request._replace(topics=topics)
        try:
            # Again: the transaction may have ended meanwhile.
            claim = claim_of(self._broker.partition, topics, request.transactional_id)
        except PenstockError as error:
            refused = {(topic.name, index): error for topic in topics for index, _ in topic.partitions}
            self._append_and_answer(response, version, request, refused)
            return

        def append(unconfirmed: Mapping[Where, PenstockError]) -> None:
            is_all = request.acks == ACKS_ALL
            delayed, errors = self._delayed_batches.find(topics, now_ms, is_acks_all=is_all, findings=findings)
            self._append_and_answer(response, version, request, {**unconfirmed, **errors}, delayed, findings)

        if claim is not None and claim.unconfirmed:
            self._confirm(version, request, claim, append)
        else:
            append({})

    def _confirm(
        self,
        version: int,
        request: AdmittedProduce,
        claim: Claim,
        append: Callable[[Mapping[Where, PenstockError]], None],
    ) -> None:
        """Append once the coordinator has answered which partitions, new to the transaction, it does not confirm."""

        def on_answer(missing: frozenset[Where] | Rejected) -> None:
            if isinstance(missing, Rejected):
                append(dict.fromkeys(claim.unconfirmed, missing.error))
            else:
                append({where: unconfirmed_error(where) for where in missing})

        self._broker.transactions.admit(
            request.transactional_id or "",
            claim.producer,
            claim.unconfirmed,
            on_answer,
            adds=version >= FIRST_ADDING_PRODUCE_VERSION,
        )

    def _spawn(self, connection: Connection, work: Coroutine[Any, Any, None]) -> None:
        """Work on a request in the background. A bug closes the connection: its client gets no answer to wait for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_ended, connection))

    def _on_ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A produce request failed; closing the connection of %s.", connection.peer, exc_info=error)
            connection.close()

    def _append_all(
        self,
        version: int,
        request: AdmittedProduce,
        errors: Mapping[Where, PenstockError],
        delayed: Mapping[Where, DelayedBatch] = MappingProxyType({}),
        checked: Container[Where] = (),
    ) -> tuple[list[ProducedTopic], list[_Wait]]:
        """Write every batch but those with an error; of a delayed batch only what is left without delayed records.

        The records of ``checked`` ones have been checked in a thread.
        """
        broker = self._broker
        is_all = request.acks == ACKS_ALL
        is_durable = is_all and broker.syncs_before_ack
        now_ms = self._clock.now_ms()
        topics = [_refused(topic) for topic in request.refused]
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
                    batch = delayed.get((name, index))
                    is_checked = (name, index) in checked
                    if batch is not None and batch.stored_at is None:
                        appended = _append_rest(
                            partition, batch.rest, now_ms, is_durable=is_durable, is_checked=is_checked
                        )
                    else:
                        appended = partition.append_from_client(
                            records, now_ms, is_durable=is_durable, is_checked=is_checked
                        )
                    base_offset, next_offset, append_time_ms = appended
                except PenstockError as error:
                    results.append(self._failed(name, index, error, version, records))
                    continue
                if batch is not None or (is_all and next_offset > partition.high_watermark):
                    waits.append(_Wait(partition, next_offset, results, len(results)))
                results.append(ProducedPartition(index, 0, base_offset, append_time_ms, partition.log.start_offset))
        return topics, waits

    def _failed(
        self, topic: str, index: int, error: PenstockError, version: int, records: memoryview | None
    ) -> ProducedPartition:
        if isinstance(error, _TEMPORARY) and records is not None:
            with suppress(PenstockError):
                self._broker.partition(topic, index).refused.note(records, error)
        if topic in self._broker.metadata.topics:  # names made up by clients must not become metrics
            self._stats.topic(topic).count_error(error.code)
        code = produce_error_code(error, version)
        hint = leader_hint(self._broker, topic, index, code) if version >= _FIRST_HINT_VERSION else None
        bad = [RecordError(*each) for each in error.records] if isinstance(error, InvalidRecord) else []
        return ProducedPartition(index, code, record_errors=bad, error_message=error.message, current_leader=hint)


def _append_rest(
    partition: Partition, rest: bytearray | None, now_ms: int, *, is_durable: bool, is_checked: bool
) -> Appended:
    """Append what is left of a batch once some of its records are scheduled; None if nothing has to be."""
    if rest is None:
        partition.check_leader()
        return Appended(partition.log.end_offset, 0, -1)
    return partition.append(memoryview(rest), now_ms, is_durable=is_durable, is_thinned=True, is_checked=is_checked)


class _Response:
    """The response to a produce request, sent when all its batches are committed or have failed."""

    __slots__ = (
        "_began",
        "_broker",
        "_correlation_id",
        "_open",
        "_timer",
        "_topics",
        "_version",
        "answer",
        "connection",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        version: int,
        correlation_id: int,
        began: float,
        *,
        is_barrier: bool = False,
    ) -> None:
        self._broker = broker
        self.connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._began = began
        self._topics: list[ProducedTopic] = []
        self._open: dict[int, _Wait] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.answer = connection.expect_answer(is_barrier=is_barrier)

    def observe_append(self) -> None:
        self._broker.stats.append_latency.observe(self._broker.clock.monotonic() - self._began)

    def send(self, acks: int, topics: list[ProducedTopic], waits: list[_Wait], timeout_ms: int) -> None:
        """Answer when everything is committed or has failed, or at the timeout; with acks=0 only a failure shows."""
        self._topics = topics
        if acks == ACKS_NONE:
            _close_if_failed(self.connection, topics)
            self.answer.complete(())
        elif not waits:
            self._finish()
        else:
            self._timer = asyncio.get_running_loop().call_later(max(timeout_ms, 1) / 1000, self._time_out)
            self._open = dict(enumerate(waits))
            for key, wait in enumerate(waits):
                wait.partition.when_committed(wait.next_offset, partial(self._done, key))

    def _done(self, key: int, error: PenstockError | None) -> None:
        wait = self._open.pop(key, None)
        if wait is None:
            return  # answered at the timeout
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
        hint = leader_hint(self._broker, topic, index, code) if self._version >= _FIRST_HINT_VERSION else None
        wait.results[wait.at] = ProducedPartition(index, code, error_message=message, current_leader=hint)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        frame = _frame(self._broker, self.connection, self._version, self._correlation_id, self._topics)
        self.answer.complete([frame])
        self._broker.stats.produce_latency.observe(self._broker.clock.monotonic() - self._began)


def _frame(
    broker: Broker, connection: Connection, version: int, correlation_id: int, topics: list[ProducedTopic]
) -> bytearray:
    """The response, with the addresses of the leaders that it hints at."""
    hints = [result.current_leader for topic in topics for result in topic.partitions if result.current_leader]
    if not hints:
        return encode_produce_response(version, correlation_id, topics, throttle_time_ms=connection.throttle_ms)
    endpoints = addresses_of(broker, hints, connection.local_host)
    return encode_produce_response(
        version, correlation_id, topics, throttle_time_ms=connection.throttle_ms, node_endpoints=endpoints
    )


def _close_if_failed(connection: Connection, topics: list[ProducedTopic]) -> None:
    if any(result.error_code for topic in topics for result in topic.partitions):
        connection.close("a produce with acks=0 failed, and closing is the only way to say so")


def _admitted(connection: Connection, request: Produce) -> AdmittedProduce:
    caller = connection.caller
    if not caller.is_limited:
        return AdmittedProduce(*request)
    names = [topic.name for topic in request.topics if not caller.may_write(topic.name)]
    if not names:
        return AdmittedProduce(*request)
    caller.refuse(PRODUCE, AclResource.TOPIC, ", ".join(names))
    return _set_aside(request, names)


def _set_aside(request: Produce, names: Container[str]) -> AdmittedProduce:
    return AdmittedProduce(
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        tuple(topic for topic in request.topics if topic.name not in names),
        tuple(topic for topic in request.topics if topic.name in names),
    )


def _may_be_transactional(connection: Connection, request: AdmittedProduce) -> bool:
    named, caller = request.transactional_id, connection.caller
    if named is None or caller.may(AclAction.WRITE, AclResource.TRANSACTIONAL_ID, named):
        return True
    caller.refuse(PRODUCE, AclResource.TRANSACTIONAL_ID, named)
    return False


def _kept(request: AdmittedProduce, header: RequestHeader, frame: memoryview) -> AdmittedProduce:
    """The same request over a copy of its frame, which is overwritten when its handler returns."""
    copy = decode_produce_request(header.api_version, memoryview(bytearray(frame)), header.body_position)
    return _set_aside(copy, {topic.name for topic in request.refused})


def _refused(topic: TopicRecords) -> ProducedTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ProducedTopic(
        topic.name, [ProducedPartition(index, code, error_message=REFUSED) for index, _ in topic.partitions]
    )


def _refusal(header: RequestHeader, request: AdmittedProduce, code: ErrorCode) -> bytearray:
    topics = [
        ProducedTopic(topic.name, [ProducedPartition(index, code) for index, _ in topic.partitions])
        for topic in (*request.topics, *request.refused)
    ]
    return encode_produce_response(header.api_version, header.correlation_id, topics)
