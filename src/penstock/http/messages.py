"""Publishing and reading messages over REST."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.broker.delays import LaterOutcome, publish_now_or_later, refuse_delays
from penstock.broker.publishing import Message
from penstock.broker.reading import ReadResult, read_messages
from penstock.broker.starts import Since, Start
from penstock.broker.transactions.joint.publishing import publish_into
from penstock.errors import PenstockError
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, reply
from penstock.http.joint import ticket_of
from penstock.http.message_types import (
    BatchReceipt,
    BatchRequest,
    MessagesPage,
    PartitionIndex,
    PublishReceipt,
    PublishRequest,
    item_of,
    message_of,
    page_of,
    receipt_of,
)

_PARTLY = 207


class PublishQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partitioner: Annotated[
        str | None, Meta(description="key_hash, as Kafka's Java client does it, or round_robin; default: key_hash.")
    ] = None


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: Annotated[PartitionIndex, Meta(description="Which partition to read.")] = 0
    offset: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | Literal["earliest", "latest"],
        Meta(description="Where to begin: an offset, earliest, or latest, which is after the last message."),
    ] = "earliest"
    since: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Begin at the first message at or after this instant instead of at an offset (RFC 3339)."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="How many messages at most.")] = 100
    timeout_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="How long to wait for a message if there is none yet.")
    ] = 0


async def publish_message(door: Door, call: Call[PublishRequest, PublishQuery]) -> PublishReceipt:
    """Publish one message and answer when it is safe."""
    (outcome,) = await _publish(door, call, (message_of(call.body, door.broker.clock.now_ms()),))
    if isinstance(outcome, PenstockError):
        raise outcome
    return receipt_of(outcome)


async def publish_batch(door: Door, call: Call[BatchRequest, PublishQuery]) -> BatchReceipt | Reply:
    """Publish messages together: 200 when all are safe, 207 when some are, else the first one's problem."""
    now_ms = door.broker.clock.now_ms()
    messages = [message_of(request, now_ms, f"$.messages[{at}]") for at, request in enumerate(call.body.messages)]
    outcomes = await _publish(door, call, messages)
    failures = [outcome for outcome in outcomes if isinstance(outcome, PenstockError)]
    if len(failures) == len(outcomes):
        raise failures[0]
    receipt = BatchReceipt(
        results=[item_of(outcome, call.path) for outcome in outcomes],
        published=len(outcomes) - len(failures),
        failed=len(failures),
    )
    return reply(receipt, _PARTLY) if failures else receipt


async def _publish(door: Door, call: Call[Any, PublishQuery], messages: Sequence[Message]) -> Sequence[LaterOutcome]:
    partitioner = door.partitioners.get(call.topic, call.query.partitioner)
    timeout_ms = door.config.publish_timeout_ms
    ticket = ticket_of(call)
    broker, topic = door.broker, call.topic
    if ticket is None:
        return await publish_now_or_later(broker, topic, messages, partitioner=partitioner, timeout_ms=timeout_ms)
    refuse_delays(messages)
    return await publish_into(broker, ticket, topic, messages, partitioner=partitioner, timeout_ms=timeout_ms)


async def read(door: Door, call: Call[None, ReadQuery]) -> MessagesPage:
    """Read committed messages of one partition; nothing is consumed by it."""
    query = call.query
    result = await _read(door, call, wait_ms=0)
    if not result.messages and query.timeout_ms:
        result = await _wait(door, call, result)
    return page_of(call.topic, query.partition, result)


async def _read(door: Door, call: Call[None, ReadQuery], wait_ms: int, offset: int | None = None) -> ReadResult:
    query = call.query
    start: Start = query.offset if query.since is None else Since(int(query.since.timestamp() * 1000))
    return await read_messages(
        door.broker,
        call.topic,
        query.partition,
        start if offset is None else offset,
        limit=query.limit,
        wait_ms=wait_ms,
        max_bytes=door.config.read_bytes_max,
    )


async def _wait(door: Door, call: Call[None, ReadQuery], empty: ReadResult) -> ReadResult:
    """Wait for messages, but not for a client that has gone nor when the node is to stop."""
    reading = asyncio.create_task(_read(door, call, call.query.timeout_ms, empty.next_offset))
    others = [asyncio.create_task(call.wait_disconnected()), asyncio.create_task(door.stopping.wait())]
    try:
        await asyncio.wait([reading, *others], return_when=asyncio.FIRST_COMPLETED)
        return await reading if reading.done() else empty
    finally:
        for task in (reading, *others):
            task.cancel()
        await asyncio.gather(reading, *others, return_exceptions=True)
