"""Leases whose messages never reached their consumer: given back, so that nobody has to wait for their end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.leases import Lease
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.queues.queues import Queues

log = logging.getLogger(__name__)


def receipts_of(lease: Lease) -> list[str]:
    """A receipt for each run of neighbours in a lease."""
    return [
        str(Receipt(lease.topic, lease.partition, first, last, count, lease.nonce))
        for first, last, count in lease.deliveries
    ]


async def give_back(queues: Queues, group: str, leases: Sequence[Lease]) -> None:
    """Have the messages delivered to somebody else, as if they never had been. What fails waits for its lease's end."""
    receipts = [receipt for lease in leases for receipt in receipts_of(lease)]
    if not receipts:
        return
    try:
        await queues.release(group, receipts)
    except PenstockError as error:
        log.debug("Messages for a client that went away come again only after their lease: %s", error.message)
