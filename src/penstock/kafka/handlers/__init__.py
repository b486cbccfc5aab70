"""One handler for each API that is not on the hot path: a function from a request to its response.

A handler opens by saying which versions it answers and what changed between them, where that matters to it. It may be
a coroutine function if it has to wait, or return the one `Question` that a coordinator has to answer first.
"""

from __future__ import annotations

from penstock.kafka.handlers import (
    access,
    cluster,
    configs,
    consumer_groups,
    group_offsets,
    groups,
    offsets,
    placement,
    producers,
    topics,
    transaction_reports,
    transactions,
)
from penstock.kafka.handlers.table import Handler

ALL: dict[int, Handler] = {
    handler.request.api.key: handler
    for module in (
        access,
        cluster,
        configs,
        consumer_groups,
        group_offsets,
        groups,
        offsets,
        placement,
        producers,
        topics,
        transaction_reports,
        transactions,
    )
    for handler in module.HANDLERS
}
