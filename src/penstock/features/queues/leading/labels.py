"""Labels: what a queue has to know of messages before it can choose among them, taken from their batches.

Keys for key order, lanes for priorities, tenants for fairness. Where only lanes are wanted, a batch that has one
priority is recognised by its bytes: either no message of it names any, or all of them end with the same header, as our
doors and the client write it. Others are taken apart, once.

The lookout: tells queues the labels that they have to know before they choose, and looks ahead where lanes are.

Key order needs to know only as much as is handed out. Lanes need to know of everything, because an urgent message may
be the last of a million: a receive looks at the next few ten thousand messages first, and what is behind them is
looked at in the background, a piece at a time, while others have their turn. So a receive never waits for a long log to
be read, and the index is whole soon after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

from penstock.consensus.queue_config import Lanes, Order, QueueSettings
from penstock.errors import PenstockError
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.shares import LabelRun
from penstock.features.queues.leading.sources import BatchWalk, MessageSource, is_dense
from penstock.priorities import NORMAL, PRIORITIES, PRIORITY_HEADER, lane_of_headers
from penstock.records import HEADER_BYTES, Codec, Record
from penstock.records.varint import read_varint, varlong_bytes
from penstock.supervision import Supervision

_LOOK_BYTES_MAX: Final = 4 * 1024 * 1024
_NAME: Final = PRIORITY_HEADER.encode()
_HEADER: Final = varlong_bytes(len(_NAME)) + _NAME
_TAILS: Final = tuple(_HEADER + varlong_bytes(len(name)) + name.encode() for name in PRIORITIES)


class Labels(NamedTuple):
    """What was found of ``size`` neighbours; keys and runs only where they are wanted."""

    size: int
    keys: Sequence[int | None]
    runs: Sequence[LabelRun]


async def read_labels(source: MessageSource, wanted: Interval, settings: QueueSettings) -> Labels:
    """The labels of messages from the first one wanted on, as far as one look reaches.

    What holds no message, or cannot be unpacked, is normal and has no key: it goes out as a gap or to the dead letters,
    and holds up no other.
    """
    pages = BatchWalk(source)
    keys: list[int | None] = []
    runs: list[LabelRun] = []
    at, size = wanted.first, 0
    while at <= wanted.last and size < _LOOK_BYTES_MAX:
        header = await pages.batch_at(at, wanted.last - at + 1, _LOOK_BYTES_MAX)
        if header is None:
            break
        upto = min(header.last_offset, wanted.last)
        is_void = pages.is_void or header.base_offset > upto
        if is_void:
            lane: int | None = NORMAL
        elif settings.order is Order.NONE and not settings.fair_by:
            lane = await _lane_of_page(source, pages, max(at, header.base_offset), upto)
        else:
            lane = None
        records: Sequence[Record] = ()
        if lane is None:
            records = await source.decoded.records(source.where, header, pages.batch, at, upto) or ()
        if settings.order is Order.NONE and not settings.fair_by:
            _add_lanes(runs, at, upto, lane, records)
        else:
            _add_records(keys, runs, at, upto, records, settings)
        size += header.size
        at = upto + 1
    return Labels(at - wanted.first, keys, runs)


def _add_lanes(runs: list[LabelRun], first: int, last: int, lane: int | None, records: Sequence[Record]) -> None:
    if lane is not None:
        _extend(runs, last - first + 1, lane, None)
        return
    at = first
    for record in records:
        if record.offset > at:
            _extend(runs, record.offset - at, NORMAL, None)
        _extend(runs, 1, lane_of_headers(record.headers), None)
        at = record.offset + 1
    if at <= last:
        _extend(runs, last - at + 1, NORMAL, None)


def _add_records(
    keys: list[int | None],
    runs: list[LabelRun],
    first: int,
    last: int,
    records: Sequence[Record],
    settings: QueueSettings,
) -> None:
    has_lanes, is_keyed = settings.lanes is Lanes.ON, settings.order is Order.KEY
    found: list[Record | None] = [None] * (last - first + 1)
    for record in records:
        found[record.offset - first] = record
    if is_keyed:
        keys += [None if each is None or each.key is None else label_of(each.key) for each in found]
    if settings.has_shares:
        for each in found:
            lane = lane_of_headers(each.headers) if has_lanes and each is not None else NORMAL
            _extend(runs, 1, lane, None if each is None else _tenant_of(each, settings))


def _tenant_of(record: Record, settings: QueueSettings) -> int | None:
    name = settings.fair_header
    if name is None:
        return label_of(record.key) if settings.fair_by and record.key is not None else None
    value = dict(record.headers).get(name) if record.headers else None
    return None if value is None else label_of(value)


def _extend(runs: list[LabelRun], size: int, lane: int, tenant: int | None) -> None:
    if runs and runs[-1].lane == lane and runs[-1].tenant == tenant:
        runs[-1] = LabelRun(runs[-1].size + size, lane, tenant)
    else:
        runs.append(LabelRun(size, lane, tenant))


async def _lane_of_page(source: MessageSource, pages: BatchWalk, first: int, last: int) -> int | None:
    """The lane of all messages of the present batch between two offsets; None if they have to be asked one by one.

    What cannot be unpacked is normal.
    """
    header = pages.header
    assert header is not None
    whole = pages.data.obj
    if header.codec is Codec.NONE and isinstance(whole, bytes) and len(whole) == len(pages.data):
        return lane_of_records(header.count, whole, pages.position + HEADER_BYTES, pages.position + header.size)
    if not is_dense(header):
        return None
    opened = await source.decoded.open(source.where, header, pages.batch)
    if opened is None:
        return NORMAL
    begin, end = opened.positions[first - header.base_offset], opened.positions[last - header.base_offset + 1]
    return lane_of_records(last - first + 1, opened.data, begin, end)


def lane_of_records(count: int, data: bytes, begin: int, end: int) -> int | None:
    """The lane that all of so many records have; None if that cannot be told without decoding them."""
    named = data.count(_NAME, begin, end)
    if not named:
        return NORMAL
    if named != count:
        return None
    lane = next((lane for lane, tail in enumerate(_TAILS) if data.endswith(tail, begin, end)), None)
    return lane if lane is not None and _is_each(data, _TAILS[lane], begin, end) else None


def _is_each(data: bytes, tail: bytes, position: int, total: int) -> bool:
    """Whether every record ends with these bytes. They end with a letter, and no record without headers does."""
    length = len(tail)
    startswith = data.startswith
    try:
        while position < total:
            if (low := data[position]) < 0x80:
                position += 1 + (low >> 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2 + ((low & 0x7F) >> 1 | high << 6)
            else:
                size, position = read_varint(data, position)
                position += size
            if not startswith(tail, position - length):
                return False
    except IndexError:
        return False
    return position == total


def label_of(key: bytes) -> int:
    """A key as a number; two keys with the same one are only kept in order among each other.

    It has 60 bits, for which Python needs 32 bytes; 64 would take 48, and a million of these may be in flight.
    """
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 4


log = logging.getLogger(__name__)

_PIECES_AT_ONCE: Final = 4  # that a receive looks at itself, of up to 10,000 messages or 4 MiB each
_PAUSE_SECONDS: Final = 0.001  # between pieces in the background


class IndexedShard(Protocol):
    """The shard whose queues look ahead."""

    machines: dict[str, Queue]

    @property
    def is_ready(self) -> bool: ...
    def source(self) -> MessageSource: ...
    def pass_on(self, group: str) -> None: ...


class LabelIndexer:
    """What looks ahead for the groups of one partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop, supervision: Supervision) -> None:
        self._supervision = supervision
        self._loop = loop
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def look(self, shard: IndexedShard, queue: Queue, source: MessageSource, limit: int, end: int) -> None:
        """Tell a queue what it needs to know to hand out ``limit`` messages; the rest goes on in the background."""
        if queue.settings.order is Order.NONE and not queue.settings.has_shares:
            return
        pieces = 0
        while await _look_once(queue, source, limit, end):
            pieces += 1
            if pieces >= _PIECES_AT_ONCE and queue.supply.pool is not None and queue.supply.pool.shares.total:
                self._begin(queue.id, self._look_ahead(shard, queue))
                return

    def _begin(self, group: str, looking: Coroutine[Any, Any, None]) -> None:
        if group in self._tasks:
            looking.close()
            return
        task = self._tasks[group] = self._loop.create_task(looking)
        self._supervision.watch("looking ahead in queues", task)
        task.add_done_callback(lambda done: self._tasks.pop(group) if self._tasks.get(group) is done else None)

    async def _look_ahead(self, shard: IndexedShard, queue: Queue) -> None:
        try:
            while shard.is_ready and shard.machines.get(queue.id) is queue:
                source = shard.source()
                if not await _look_once(queue, source, 1, source.known_end):
                    break
                shard.pass_on(queue.id)
                await asyncio.sleep(_PAUSE_SECONDS)
        except PenstockError as error:  # led elsewhere for a moment; the next receive begins again
            log.debug("Group %s looks no further for now: %s", queue.id, error.message)


async def _look_once(queue: Queue, source: MessageSource, limit: int, end: int) -> bool:
    """Look at one piece; False if there is nothing to look at."""
    wanted = queue.unseen(limit, end)
    if wanted is None:
        return False
    settings = queue.settings
    labels = await read_labels(source, wanted, settings)
    if not labels.size:
        return False
    still = queue.unseen(limit, end)
    # It was not told otherwise meanwhile, and it still wants to know the same.
    if still is not None and still.first == wanted.first and queue.settings is settings:
        queue.see(wanted.first, labels.keys, labels.runs)
    return True
