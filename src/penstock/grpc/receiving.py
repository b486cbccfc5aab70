"""Messages on lease for a client that may be gone at any moment: what it cannot get any more is given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.leases import Lease, LeasedMessage
from penstock.broker.queues.unpacking import reject_unreadable, unpack
from penstock.errors import PenstockError
from penstock.grpc.call import Call
from penstock.grpc.door import Door

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a consumer asks for."""

    topic: str
    group: str
    consumer: str
    max_messages: int
    max_bytes: int
    visibility_timeout_ms: int | None


async def receive_for(door: Door, call: Call, wanted: Wanted, wait_ms: int) -> list[LeasedMessage]:
    """Messages for a client that waits for them; none if the node stops before there are any."""
    clock = door.broker.clock
    deadline = clock.monotonic() + wait_ms / 1000
    while True:
        left_ms = max(round(1000 * (deadline - clock.monotonic())), 0)
        leases = await _leases_for(door, call, wanted, left_ms)
        messages = messages_in(door, wanted, leases)
        if messages or not leases:
            return messages


async def _leases_for(door: Door, call: Call, wanted: Wanted, wait_ms: int) -> list[Lease]:
    asking = ask(door, wanted, wait_ms)
    stopping = asyncio.ensure_future(door.stopping.wait())
    try:
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        abandon(door, wanted, asking)
        raise
    finally:
        stopping.cancel()
    if not asking.done():
        abandon(door, wanted, asking)
        return []
    if call.is_gone:
        door.errand(release(door, wanted, _receipts_of(asking.result())))
        return []
    return asking.result()


def ask(door: Door, wanted: Wanted, wait_ms: int) -> asyncio.Future[list[Lease]]:
    """Begin to receive. Whoever does not want it any more has to `abandon` it."""
    return asyncio.ensure_future(
        door.broker.queues.receive(
            wanted.topic,
            wanted.group,
            consumer=wanted.consumer,
            max_messages=wanted.max_messages,
            max_bytes=wanted.max_bytes,
            wait_ms=wait_ms,
            visibility_timeout_ms=wanted.visibility_timeout_ms,
        )
    )


def messages_in(door: Door, wanted: Wanted, leases: Sequence[Lease]) -> list[LeasedMessage]:
    """The messages of leases, as many as fit into an answer: compressed batches can hold much more than they weigh.

    The first one is among them however large it is; what does not fit is given back, and what cannot be unpacked goes
    to the dead letters.
    """
    messages, unreadable = unpack(leases)
    if unreadable:
        door.errand(reject_unreadable(door.broker.queues, wanted.group, unreadable))
    size = 0
    for at, message in enumerate(messages):
        size += size_of(message)
        if at and size > wanted.max_bytes:
            give_back(door, wanted, messages[at:])
            return messages[:at]
    return messages


def size_of(message: LeasedMessage) -> int:
    """What a message weighs in an answer, about."""
    size = len(message.key or b"") + len(message.value or b"") + len(message.receipt) + len(message.topic)
    return size + sum(len(name) + len(value or b"") for name, value in message.headers)


def abandon(door: Door, wanted: Wanted, asking: asyncio.Future[list[Lease]]) -> None:
    """Want no more; what comes all the same is given back."""
    asking.cancel()
    door.errand(_abandoned(door, wanted, asking))


async def _abandoned(door: Door, wanted: Wanted, asking: asyncio.Future[list[Lease]]) -> None:
    await asyncio.wait((asking,))
    if not asking.cancelled() and asking.exception() is None:
        await release(door, wanted, _receipts_of(asking.result()))


def _receipts_of(leases: Sequence[Lease]) -> list[str]:
    return [
        str(Receipt(lease.topic, lease.partition, *delivery, lease.nonce))
        for lease in leases
        for delivery in lease.deliveries
    ]


def give_back(door: Door, wanted: Wanted, messages: Sequence[LeasedMessage]) -> None:
    """Have messages that nobody saw delivered to somebody else at once, as if they never had been."""
    if messages:
        door.errand(release(door, wanted, [message.receipt for message in messages]))


async def release(door: Door, wanted: Wanted, receipts: Sequence[str]) -> None:
    if not receipts:
        return
    try:
        await door.broker.queues.release(wanted.group, receipts, topic=wanted.topic)
    except PenstockError as error:
        log.warning("%d messages could not be given back; their leases end by themselves: %s", len(receipts), error)
