"""Messages on lease for a client that may be gone at any moment: what it cannot get any more is given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.errors import PenstockError
from penstock.features.queues.leases import LeasedRecord, PartitionLease, reject_unreadable, unpack_beside

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


async def receive_for(door: Door, call: Call, wanted: Wanted, wait_ms: int) -> list[LeasedRecord]:
    """Messages for a client that waits for them; none if the node stops before there are any."""
    clock = door.broker.clock
    deadline = clock.monotonic() + wait_ms / 1000
    while True:
        left_ms = max(round(1000 * (deadline - clock.monotonic())), 0)
        leases = await _leases_for(door, call, wanted, left_ms)
        messages = await messages_in(door, wanted, leases)
        if messages or not leases:
            return messages


async def _leases_for(door: Door, call: Call, wanted: Wanted, wait_ms: int) -> list[PartitionLease]:
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


def ask(door: Door, wanted: Wanted, wait_ms: int) -> asyncio.Future[list[PartitionLease]]:
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


async def messages_in(door: Door, wanted: Wanted, leases: Sequence[PartitionLease]) -> list[LeasedRecord]:
    """The messages of leases, as many as fit into an answer.

    What does not fit is given back, and what cannot be unpacked goes to the dead letters.
    """
    try:
        messages, unreadable, left = await unpack_beside(leases, wanted.max_bytes)
    except asyncio.CancelledError:
        door.errand(release(door, wanted, _receipts_of(leases)))
        raise
    if unreadable:
        door.errand(reject_unreadable(door.broker.queues, wanted.group, unreadable))
    if left:
        door.errand(release(door, wanted, left))
    return messages


def abandon(door: Door, wanted: Wanted, asking: asyncio.Future[list[PartitionLease]]) -> None:
    """Want no more; what comes all the same is given back."""
    asking.cancel()
    door.errand(_abandoned(door, wanted, asking))


async def _abandoned(door: Door, wanted: Wanted, asking: asyncio.Future[list[PartitionLease]]) -> None:
    await asyncio.wait((asking,))
    if not asking.cancelled() and asking.exception() is None:
        await release(door, wanted, _receipts_of(asking.result()))


def _receipts_of(leases: Sequence[PartitionLease]) -> list[str]:
    return [receipt for lease in leases for receipt in lease.receipts()]


def give_back(door: Door, wanted: Wanted, messages: Sequence[LeasedRecord]) -> None:
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
