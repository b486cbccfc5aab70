"""Looking at the first messages that a group is not done with, without taking them."""

from __future__ import annotations

from typing import Final

from penstock.broker.queues.core.messages import Offered
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.rows import ACKED, Kind
from penstock.broker.queues.leading.gathering import Gathering
from penstock.broker.queues.leading.sources import Source
from penstock.broker.queues.wire import PeekedSpan

_STATES: Final = {Kind.LEASED: "in_flight", Kind.WAITING: "waiting", Kind.DYING: "dying"}
# Gaps are found out only by looking, so a little more is looked at than is wanted.
_SPARE: Final = 100


async def peek(queue: Queue, source: Source, limit: int, max_bytes: int) -> tuple[list[PeekedSpan], bytes]:
    """Up to ``limit`` messages as spans in one state each, and the batches that hold them."""
    start, end = await source.reach()
    spans = _spans(queue, max(queue.committed, start), end, limit + _SPARE)
    gathering = Gathering(source, max_bytes)
    await gathering.take([Offered(span.first, span.last, at) for at, span in enumerate(spans)])
    found: list[PeekedSpan] = []
    for first, last, at in gathering.deliveries:
        if limit <= 0:
            break
        last = min(last, first + limit - 1)
        found.append(PeekedSpan(first, last, spans[at].state, spans[at].delivery_count))
        limit -= last - first + 1
    return found, gathering.batches()


def _spans(queue: Queue, first: int, end: int, limit: int) -> list[PeekedSpan]:
    """What is not done from an offset on, in order."""
    spans: list[PeekedSpan] = []
    for row in queue.rows_from(first, end - 1):
        if row.first > first:
            spans.append(PeekedSpan(first, row.first - 1, "ready", 0))
        if row.kind != ACKED:
            spans.append(PeekedSpan(row.first, row.last, _STATES[Kind(row.kind)], row.deliveries))
        first = row.last + 1
        if sum(span.last - span.first + 1 for span in spans) >= limit:
            break
    if first < end:
        spans.append(PeekedSpan(first, end - 1, "ready", 0))
    return _cut(spans, limit)


def _cut(spans: list[PeekedSpan], limit: int) -> list[PeekedSpan]:
    kept: list[PeekedSpan] = []
    for span in spans:
        if limit <= 0:
            break
        last = min(span.last, span.first + limit - 1)
        kept.append(PeekedSpan(span.first, last, span.state, span.delivery_count))
        limit -= last - span.first + 1
    return kept
