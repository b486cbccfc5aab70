"""Leased messages, unpacked for those who want them one by one; what nobody can unpack is rejected.

A producer may send a batch whose checksum is right and whose inside is broken. It would fail at every consumer in the
same way, so it goes to the dead letters at once, with the reason, and whatever came with it is delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.leases import Lease, LeasedMessage, Verdict
from penstock.errors import PenstockError
from penstock.records import is_quick_to_decode

log = logging.getLogger(__name__)


class Unreadable(NamedTuple):
    """Neighbours in a lease that cannot be unpacked."""

    receipt: str
    size: int
    reason: str


class Rejects(Protocol):
    """Who sends messages to the dead letters."""

    async def reject(
        self, group: str, receipts: Sequence[str], *, topic: str | None = None, reason: str = ""
    ) -> list[Verdict]: ...


def unpack(leases: Sequence[Lease]) -> tuple[list[LeasedMessage], list[Unreadable]]:
    """Each leased message that can be unpacked, and what cannot."""
    messages: list[LeasedMessage] = []
    unreadable: list[Unreadable] = []
    for lease in leases:
        try:
            messages += lease.messages()
        except PenstockError:
            for piece in lease.pieces():
                try:
                    messages += piece.messages()
                except PenstockError as error:
                    unreadable += _unreadable(piece, f"It cannot be unpacked: {error.message}")
    return messages, unreadable


async def unpack_beside(leases: Sequence[Lease]) -> tuple[list[LeasedMessage], list[Unreadable]]:
    """The same, in a thread where it may take long."""
    if all(is_quick_to_decode(memoryview(lease.batches)) for lease in leases):
        return unpack(leases)
    return await asyncio.to_thread(unpack, leases)


def _unreadable(lease: Lease, reason: str) -> Iterator[Unreadable]:
    for first, last, count in lease.deliveries:
        receipt = Receipt(lease.topic, lease.partition, first, last, count, lease.nonce)
        yield Unreadable(str(receipt), last - first + 1, reason)


async def reject_unreadable(queues: Rejects, group: str, unreadable: Sequence[Unreadable]) -> None:
    """Send what cannot be unpacked to the dead letters. Where that fails now, it comes again after its lease."""
    by_reason: dict[str, list[str]] = {}
    for each in unreadable:
        by_reason.setdefault(each.reason, []).append(each.receipt)
    for reason, receipts in by_reason.items():
        log.warning("Group %s cannot get %s: %s", group, ", ".join(receipts[:3]), reason)
        try:
            await queues.reject(group, receipts, reason=reason)
        except PenstockError as error:
            log.warning("Nor can it go to the dead letters now: %s", error.message)
