"""Serves publishing and reading: messages one by one, together, or as record batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET

from penstock.api.limits import DEFAULT_WRITER
from penstock.api.messages import (
    BatchItem,
    BatchReceipt,
    CreateProducer,
    MessagesPage,
    NewMessage,
    ProducerView,
    Publish,
    PublishBatch,
    PublishBatches,
    PublishReceipt,
    Read,
    ReadBatches,
    instant,
    to_ms,
    view_of,
)
from penstock.api.operation import Packed
from penstock.api.problems import problem_of
from penstock.errors import CorruptRecords, InvalidField, InvalidRequest, NotLeader, PenstockError, UnknownTopic
from penstock.features.messages.batches import append_batches, append_staged
from penstock.features.messages.delays import LaterOutcome, ScheduledAt, due_of, publish_now_or_later, refuse_delays
from penstock.features.messages.publishing import OutgoingMessage, PublishedAt
from penstock.features.messages.reading import ReadResult, read_messages, select
from penstock.features.transactions.joint.publishing import Ticket, publish_into
from penstock.operations.caller import Caller, Waiting
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.access import SinceTime, Start
from penstock.partitions.beside import show_beside
from penstock.partitions.partition import Partition
from penstock.priorities import with_priority
from penstock.records.batch import Headers
from penstock.storage.aborted import AbortedTransaction

_JSON_NULL: Final = b"null"
_QUOTE: Final = ord('"')
_ANY_NUMBER: Final = 1 << 62
_ARRAY_OF_SIX: Final = b"\x96"
_BYTES: Final = b"\xc6"

_encoder: Final = msgspec.msgpack.Encoder()

# -- publishing --------------------------------------------------------------------------------------------------------


@serves(Publish)
async def publish(services: Services, request: Publish, caller: Caller) -> PublishReceipt:
    message = message_of(request.message, services.clock.now_ms())
    (outcome,) = await publish_all(services, request, (message,), caller)
    if isinstance(outcome, PenstockError):
        raise outcome
    return receipt_of(outcome)


@serves(PublishBatch)
async def publish_batch(services: Services, request: PublishBatch, caller: Caller) -> BatchReceipt:
    now_ms = services.clock.now_ms()
    messages = [message_of(each, now_ms, f"$.messages[{at}]") for at, each in enumerate(request.messages)]
    outcomes = await publish_all(services, request, messages, caller)
    failures = [outcome for outcome in outcomes if isinstance(outcome, PenstockError)]
    if len(failures) == len(outcomes):
        raise failures[0]
    return BatchReceipt(
        results=[item_of(outcome, caller.instance) for outcome in outcomes],
        published=len(outcomes) - len(failures),
        failed=len(failures),
    )


async def publish_all(
    services: Services, request: Publish | PublishBatch, messages: Sequence[OutgoingMessage], caller: Caller
) -> Sequence[LaterOutcome]:
    """What became of each message, now, later or in a transaction."""
    topic = request.topic
    partitioner = services.partitioners.get(topic, request.partitioner)
    timeout_ms = caller.milliseconds_left(caller.publish_timeout_ms)
    ticket = ticket_of(request)
    if ticket is None:
        return await publish_now_or_later(
            services.ports, services.schedules, topic, messages, partitioner=partitioner, timeout_ms=timeout_ms
        )
    refuse_delays(messages)
    return await publish_into(
        services.ports, services.joint, ticket, topic, messages, partitioner=partitioner, timeout_ms=timeout_ms
    )


def ticket_of(request: Publish | PublishBatch | PublishBatches) -> Ticket | None:
    """The transaction that a call publishes into, None if it does so for itself."""
    if request.transaction is not None:
        return Ticket(request.transaction, request.writer or DEFAULT_WRITER, request.sequence)
    if request.writer is not None or request.sequence is not None:
        raise InvalidField(
            "Penstock-Writer and Penstock-Sequence mean nothing without Penstock-Transaction.", is_parameter=True
        )
    return None


@serves(PublishBatches)
async def publish_batches(services: Services, request: PublishBatches, caller: Caller) -> Packed:
    timeout_ms = caller.milliseconds_left(caller.publish_timeout_ms)
    ticket = ticket_of(request)
    if ticket is None:
        outcomes = await append_batches(services.ports, request.topic, request.batches, timeout_ms=timeout_ms)
    elif ticket.sequence is not None:
        raise InvalidField(
            "Batches have sequence numbers of their own; leave out Penstock-Sequence.", is_parameter=True
        )
    else:
        await services.joint.loaded()
        outcomes = await append_staged(
            services.ports,
            services.joint,
            ticket.transaction,
            ticket.writer,
            request.topic,
            request.batches,
            timeout_ms=timeout_ms,
        )
    results = [
        (-1, outcome.code, outcome.message)
        if isinstance(outcome, PenstockError)
        else (outcome.base_offset, outcome.append_time_ms)
        for outcome in outcomes
    ]
    return Packed((_encoder.encode(results),))


@serves(CreateProducer)
async def create_producer(services: Services, _request: CreateProducer, _caller: Caller) -> ProducerView:
    return ProducerView(producer_id=await services.topics.allocate_producer_id(), producer_epoch=0)


def message_of(request: NewMessage, now_ms: int, where: str = "$") -> OutgoingMessage:
    """The broker's message; ``where`` names the request's place in the body, for errors."""
    headers: Headers = tuple(request.headers_in_order or ())
    if not headers and (request.headers or request.headers_base64):
        headers = _headers_of(request)
    if request.priority is not None:
        headers = prioritized(headers, request.priority, where)
    due_ms = None
    if request.delay_ms is not None or request.deliver_at is not None or request.schedule_id:
        due_ms = _due_of(request, now_ms, where)
    return OutgoingMessage(
        key=_key_of(request, where),
        value=_value_of(request, where),
        headers=headers,
        partition=request.partition,
        timestamp_ms=None if request.timestamp is None else to_ms(request.timestamp),
        due_ms=due_ms,
        schedule_id=request.schedule_id,
    )


def prioritized(headers: Headers, priority: str, where: str) -> Headers:
    """Headers with a priority among them."""
    try:
        return with_priority(headers, priority)
    except InvalidRequest as error:
        raise InvalidField(f"{error.message.rstrip('.')} - at `{where}.priority`.") from None


def _due_of(request: NewMessage, now_ms: int, where: str) -> int | None:
    if request.delay_ms is None and request.deliver_at is None:
        raise InvalidField(f"schedule_id goes with delay_ms or deliver_at - at `{where}`.")
    try:
        return due_of(request.delay_ms, moment_ms(request.deliver_at), now_ms)
    except InvalidRequest as error:
        raise InvalidField(f"{error.message.rstrip('.')} - at `{where}`.") from None


def moment_ms(moment: int | datetime | None) -> int | None:
    """A moment as JSON tells it, in milliseconds since 1970."""
    return to_ms(moment) if isinstance(moment, datetime) else moment


def _key_of(request: NewMessage, where: str) -> bytes | None:
    if request.key is None:
        return request.key_base64
    if request.key_base64 is not None:
        raise InvalidField(f"Give key or key_base64, not both - at `{where}`.")
    return request.key.encode()


def _value_of(request: NewMessage, where: str) -> bytes | None:
    raw = b"" if request.value is UNSET else bytes(request.value)
    if request.value_base64 is not None:
        if raw:
            raise InvalidField(f"Give value or value_base64, not both - at `{where}`.")
        return request.value_base64
    if not raw:
        raise InvalidField(
            f'A message needs value or value_base64; to publish a message without a value, say "value": null - at '
            f"`{where}`."
        )
    if raw == _JSON_NULL:
        return None
    try:
        if raw[0] == _QUOTE:
            return msgspec.json.decode(raw, type=str).encode()
        raw.decode()
        return msgspec.json.format(raw, indent=-1)
    except (ValueError, RecursionError):
        raise InvalidField(f"The value is not valid JSON in UTF-8 - at `{where}.value`.") from None


def _headers_of(request: NewMessage) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    for name, text in request.headers.items():
        texts = text if isinstance(text, list) else [text]
        headers += [(name, None if item is None else item.encode()) for item in texts]
    for name, data in request.headers_base64.items():
        binaries = data if isinstance(data, list) else [data]
        headers += [(name, item) for item in binaries]
    return tuple(headers)


def receipt_of(outcome: PublishedAt | ScheduledAt) -> PublishReceipt:
    if isinstance(outcome, ScheduledAt):
        return PublishReceipt(topic=outcome.topic, schedule_id=outcome.schedule_id, due=instant(outcome.due_ms))
    topic, partition, offset, timestamp_ms = outcome
    return PublishReceipt(topic=topic, partition=partition, offset=offset, timestamp=instant(timestamp_ms))


def item_of(outcome: LaterOutcome, path: str) -> BatchItem:
    if isinstance(outcome, PenstockError):
        return BatchItem(error=problem_of(outcome, path))
    if isinstance(outcome, ScheduledAt):
        return BatchItem(topic=outcome.topic, schedule_id=outcome.schedule_id, due=instant(outcome.due_ms))
    topic, partition, offset, timestamp_ms = outcome
    return BatchItem(topic=topic, partition=partition, offset=offset, timestamp=instant(timestamp_ms))


def _page_of(topic: str, partition: int, result: ReadResult) -> MessagesPage:
    return MessagesPage(
        topic=topic,
        partition=partition,
        messages=[view_of(record) for record in result.messages],
        next_offset=result.next_offset,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start_offset,
    )


# -- reading -----------------------------------------------------------------------------------------------------------


@serves(Read)
async def read(services: Services, request: Read, caller: Caller) -> MessagesPage:
    start: Start = request.offset if request.since is None else SinceTime(to_ms(request.since))
    result = await _read(services, request, caller, start, wait_ms=0)
    wait_ms = caller.milliseconds_left(request.timeout_ms)
    if not result.messages and wait_ms:
        waited = _read(services, request, caller, result.next_offset, wait_ms)
        async with Waiting(caller, waited) as waiting:
            result = await waiting.result_or(result)
    return await show_beside(result.messages, partial(_page_of, request.topic, request.partition, result))


async def _read(services: Services, request: Read, caller: Caller, start: Start, wait_ms: int) -> ReadResult:
    return await read_messages(
        services.ports,
        request.topic,
        request.partition,
        start,
        limit=request.limit,
        wait_ms=wait_ms,
        max_bytes=caller.answer_bytes_max,
    )


@serves(ReadBatches)
async def read_batches(services: Services, request: ReadBatches, _caller: Caller) -> Packed:
    """Batches as they are stored. What nobody is to see is left out, and damage is never stepped over unless the reader
    says so: an answer without an error has every message there is. Form: docs/reference/rest-binary.md.
    """
    name, index = request.topic, request.partition
    topic = services.metadata.topic(name)
    if request.topic_id is not None and request.topic_id != str(topic.topic_id):
        raise UnknownTopic(f"Topic {name!r} is another one than {request.topic_id}, which is gone.")
    services.metadata.partition(name, index)
    partition = services.partitions.local(name, index)
    if partition is None:
        raise NotLeader(f"This node does not lead {name}-{index}. Try again in a moment.")
    end, data = _batches_of(partition, request)
    stats = services.stats.topic(name)
    stats.bytes_consumed += len(data)
    stats.messages_consumed += max(end - request.offset, 0)
    head = (str(partition.topic_id), end, partition.log.start_offset, partition.high_watermark)
    told = _ARRAY_OF_SIX + b"".join(map(_encoder.encode, (*head, partition.last_stable_offset)))
    return Packed((told + _BYTES + len(data).to_bytes(4, "big"), data))


def _batches_of(partition: Partition, query: ReadBatches) -> tuple[int, bytes]:
    """Where to read on, and the batches before that which a reader may have."""
    is_committed_only = query.isolation == "read_committed"
    lost = None if query.skip_damage else partition.log.lost_at(query.offset)
    if lost is not None:
        raise CorruptRecords(
            f"Offsets {lost.first} to {lost.next - 1} of {partition.id} are lost: no replica has them any more. "
            f"Read on from offset {lost.next}, or with skip_damage."
        )
    found = partition.read(query.offset, query.max_bytes, is_committed_only=is_committed_only)
    if found is None:
        return query.offset, b""
    data = found.read()
    aborted: list[AbortedTransaction] = []
    if is_committed_only:
        aborted = partition.aborted_in(query.offset, found.next_offset)
    if not aborted and found.next_offset > query.offset:
        return found.next_offset, data
    run = select(memoryview(data), query.offset, aborted, _ANY_NUMBER)
    return run.end, run.data
