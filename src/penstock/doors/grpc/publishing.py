"""Publishing over gRPC: one message, many together, or a stream of both without waiting for each answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final

from penstock.api.limits import DEFAULT_WRITER
from penstock.doors.grpc.call import Call
from penstock.doors.grpc.decoding import parse
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import needed, whole
from penstock.doors.grpc.forwarding import hand_on
from penstock.doors.grpc.messages import message_of, messages_of, receipt_view, result_view, scheduled_view
from penstock.doors.grpc.method import Conversing, Method, Unary
from penstock.doors.grpc.statuses import InvalidArgument, NodeStopping, Refusal, error_of
from penstock.errors import PenstockError
from penstock.features.messages.delays import LaterOutcome, ScheduledAt, publish_now_or_later, refuse_delays
from penstock.features.messages.publishing import OutgoingMessage
from penstock.features.transactions.joint.publishing import Ticket, publish_into
from penstock.grpc.generated import message_pb2
from penstock.grpc.generated.messages_pb2 import (
    Partitioner,
    PublishBatchRequest,
    PublishBatchResponse,
    PublishRequest,
    PublishResponse,
    PublishStreamRequest,
    PublishStreamResponse,
)
from penstock.machines.addresses import CoordinatorAddress, transaction_address

_PARTITIONERS: Final[Mapping[int, str | None]] = {
    Partitioner.PARTITIONER_UNSPECIFIED: None,
    Partitioner.PARTITIONER_KEY_HASH: "key_hash",
    Partitioner.PARTITIONER_ROUND_ROBIN: "round_robin",
}
_BATCH_PATH: Final = "/penstock.v1.Messages/PublishBatch"
# Requests of one stream that are written and not answered yet; then no more are read.
_UNANSWERED_MAX: Final = 64


def ticket_home(request: PublishRequest | PublishBatchRequest) -> CoordinatorAddress | None:
    """Messages of a transaction are written by the node that coordinates it."""
    return transaction_address(request.ticket.transaction) if request.HasField("ticket") else None


async def publish(door: Door, call: Call, request: PublishRequest) -> PublishResponse:
    if not request.HasField("message"):
        raise InvalidArgument("message is missing.")
    message = message_of(request.message, "message", door.broker.clock.now_ms())
    (outcome,) = await _publish(
        door, call, request.topic, [message], request.partitioner, _ticket_of(request.ticket, request)
    )
    if isinstance(outcome, PenstockError):
        raise outcome
    if isinstance(outcome, ScheduledAt):
        return PublishResponse(scheduled=scheduled_view(outcome))
    return PublishResponse(receipt=receipt_view(outcome))


async def publish_batch(door: Door, call: Call, request: PublishBatchRequest) -> PublishBatchResponse:
    messages = messages_of(request.messages, door.broker.clock.now_ms())
    ticket = _ticket_of(request.ticket, request)
    outcomes = await _publish(door, call, request.topic, messages, request.partitioner, ticket)
    return PublishBatchResponse(results=[result_view(outcome) for outcome in outcomes])


def _ticket_of(ticket: message_pb2.Ticket, request: PublishRequest | PublishBatchRequest) -> Ticket | None:
    if not request.HasField("ticket"):
        return None
    sequence = None
    if ticket.HasField("sequence"):
        sequence = whole(ticket.sequence, "ticket.sequence", high=(1 << 31) - 1)
    return Ticket(needed(ticket.transaction, "ticket.transaction"), ticket.writer or DEFAULT_WRITER, sequence)


async def _publish(
    door: Door, call: Call, topic: str, messages: Sequence[OutgoingMessage], partitioner: int, ticket: Ticket | None
) -> Sequence[LaterOutcome]:
    needed(topic, "topic")
    if partitioner not in _PARTITIONERS:
        raise InvalidArgument(f"partitioner {partitioner} is none of those there are.")
    chosen = door.partitioners.get(topic, _PARTITIONERS[partitioner])
    timeout_ms = call.milliseconds_left(door.config.publish_timeout_ms)
    if ticket is None:
        return await publish_now_or_later(
            door.broker.ports, door.broker.schedules, topic, messages, partitioner=chosen, timeout_ms=timeout_ms
        )
    refuse_delays(messages)
    return await publish_into(
        door.broker.ports, door.broker.joint, ticket, topic, messages, partitioner=chosen, timeout_ms=timeout_ms
    )


# -- streams -----------------------------------------------------------------------------------------------------------

Answering = asyncio.Future[PublishStreamResponse]


async def publish_stream(
    door: Door, call: Call, requests: AsyncIterator[PublishStreamRequest]
) -> AsyncGenerator[PublishStreamResponse, None]:
    """Begin requests in the order they come, and answer them in that order as each is safe."""
    begun: asyncio.Queue[Answering | None] = asyncio.Queue(_UNANSWERED_MAX)
    reading = asyncio.ensure_future(_begin_each(door, call, requests, begun))
    stopping = asyncio.ensure_future(door.stopping.wait())
    try:
        while True:
            taking = asyncio.ensure_future(begun.get())
            await asyncio.wait((taking, reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done() and begun.empty() and (reading.done() or stopping.done()):
                taking.cancel()
                if reading.done():
                    reading.result()
                raise NodeStopping("This node is stopping. Publish what was not answered by another one.")
            answering = await taking
            if answering is None:
                break
            yield await answering
        reading.result()
    finally:
        for task in (reading, stopping):
            task.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)


async def _begin_each(
    door: Door, call: Call, requests: AsyncIterator[PublishStreamRequest], begun: asyncio.Queue[Answering | None]
) -> None:
    topic, ticket = "", None
    partitioner = Partitioner.PARTITIONER_UNSPECIFIED
    async for request in requests:
        topic = request.topic or topic
        partitioner = request.partitioner or partitioner
        ticket = request.ticket if request.HasField("ticket") else ticket
        batch = PublishBatchRequest(topic=topic, messages=request.messages, partitioner=partitioner, ticket=ticket)
        answering = asyncio.ensure_future(_answer(door, call, request.id, batch))
        await begun.put(answering)
        if ticket is not None or topic not in door.broker.metadata.topics:
            # What takes several steps before it is written has to be through with them, for the sake of the order.
            await asyncio.wait((answering,))
    await begun.put(None)


async def _answer(door: Door, call: Call, request_id: int, batch: PublishBatchRequest) -> PublishStreamResponse:
    try:
        home = ticket_home(batch)
        data = None
        if home is not None:
            data = await hand_on(door, home, call, _BATCH_PATH, batch.SerializeToString())
        answer = await publish_batch(door, call, batch) if data is None else parse(PublishBatchResponse, data)
    except Refusal as refusal:
        return PublishStreamResponse(id=request_id, error=refusal.view)
    except PenstockError as error:
        return PublishStreamResponse(id=request_id, error=error_of(error))
    return PublishStreamResponse(id=request_id, results=answer.results)


METHODS: Final[Mapping[str, Method]] = {
    "Publish": Unary(publish, ticket_home),
    "PublishBatch": Unary(publish_batch, ticket_home),
    "PublishStream": Conversing(publish_stream),
}
