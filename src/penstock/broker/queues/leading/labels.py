"""Labels: what a queue has to know of messages before it can choose among them, taken from their batches.

Keys for key order, lanes for priorities, tenants for fairness. Where only lanes are wanted, a batch that has one
priority is recognised by its bytes: either no message of it names any, or all of them end with the same header, as our
doors and the client write it. Others are taken apart, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.broker.queues.core.config import Lanes, Order, QueueSettings
from penstock.broker.queues.core.intervals import Interval
from penstock.broker.queues.core.pool import Run
from penstock.broker.queues.leading.pages import Pages
from penstock.broker.queues.leading.sources import Source
from penstock.errors import PenstockError
from penstock.priorities import NORMAL, PRIORITIES, PRIORITY_HEADER, lane_of_headers
from penstock.records import HEADER_BYTES, BatchHeader, Codec, Record, decode_records
from penstock.records.batch import open_batch
from penstock.records.varint import read_varint, varlong_bytes

_LOOK_BYTES_MAX: Final = 4 * 1024 * 1024
_NAME: Final = PRIORITY_HEADER.encode()
_HEADER: Final = varlong_bytes(len(_NAME)) + _NAME
_TAILS: Final = tuple(_HEADER + varlong_bytes(len(name)) + name.encode() for name in PRIORITIES)


class Labels(NamedTuple):
    """What was found of ``size`` neighbours; keys and runs only where they are wanted."""

    size: int
    keys: Sequence[int | None]
    runs: Sequence[Run]


async def read_labels(source: Source, wanted: Interval, settings: QueueSettings) -> Labels:
    """The labels of messages from the first one wanted on, as far as one look reaches.

    What holds no message, or cannot be unpacked, is normal and has no key: it goes out as a gap or to the dead letters,
    and holds up nobody.
    """
    pages = Pages(source)
    keys: list[int | None] = []
    runs: list[Run] = []
    at, size = wanted.first, 0
    while at <= wanted.last and size < _LOOK_BYTES_MAX:
        header = await pages.batch_at(at, wanted.last - at + 1, _LOOK_BYTES_MAX)
        if header is None:
            break
        upto = min(header.last_offset, wanted.last)
        is_void = pages.is_void or header.base_offset > upto
        if settings.order is Order.NONE and not settings.fair_by:
            _add_lanes(runs, at, upto, NORMAL if is_void else _lane_of_page(pages, header), pages)
        else:
            records = () if is_void else source.decoded.records(source.where, header, pages.batch) or ()
            _add_records(keys, runs, at, upto, records, settings)
        size += header.size
        at = upto + 1
    return Labels(at - wanted.first, keys, runs)


def _add_lanes(runs: list[Run], first: int, last: int, lane: int | None, pages: Pages) -> None:
    if lane is not None:
        _extend(runs, last - first + 1, lane, None)
        return
    at = first
    for record in decode_records(pages.batch):
        if first <= record.offset <= last:
            if record.offset > at:
                _extend(runs, record.offset - at, NORMAL, None)
            _extend(runs, 1, lane_of_headers(record.headers), None)
            at = record.offset + 1
    if at <= last:
        _extend(runs, last - at + 1, NORMAL, None)


def _add_records(
    keys: list[int | None], runs: list[Run], first: int, last: int, records: Sequence[Record], settings: QueueSettings
) -> None:
    has_lanes, is_keyed = settings.lanes is Lanes.ON, settings.order is Order.KEY
    found: list[Record | None] = [None] * (last - first + 1)
    for record in records:
        if first <= record.offset <= last:
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


def _extend(runs: list[Run], size: int, lane: int, tenant: int | None) -> None:
    if runs and runs[-1].lane == lane and runs[-1].tenant == tenant:
        runs[-1] = Run(runs[-1].size + size, lane, tenant)
    else:
        runs.append(Run(size, lane, tenant))


def _lane_of_page(pages: Pages, header: BatchHeader) -> int | None:
    """The lane of all messages of the present batch; None if they have to be asked one by one."""
    try:
        whole = pages.data.obj
        if header.codec is Codec.NONE and isinstance(whole, bytes) and len(whole) == len(pages.data):
            lane = lane_of_records(header.count, whole, pages.position + HEADER_BYTES, pages.position + header.size)
        else:
            _, data = open_batch(pages.batch)
            lane = lane_of_records(header.count, data, 0, len(data))
        if lane is None:
            decode_records(pages.batch)  # whoever cannot be unpacked is normal
    except PenstockError:
        return NORMAL
    return lane


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
