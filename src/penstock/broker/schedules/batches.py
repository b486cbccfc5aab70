"""Batches of the schedule log, looked into for their events alone: whole ones when the log is read, parts when due.

What a record holds beside its value is passed over, which is most of what reading costs. In our log every batch has all
its records, one offset after the other. Format: docs/formats/schedules.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.broker.schedules.records import Event
from penstock.errors import CorruptRecords
from penstock.records.batch import open_batch
from penstock.records.varint import read_varint, read_varlong

log = logging.getLogger(__name__)

_CONTINUES: Final = 0x80  # a byte of a number with this bit is not its last
_KEY_BYTE: Final = 16  # the length of our keys, 8
_HEAD_BYTES: Final = 4 + 8  # attributes, time, delta, and a key with its length

_decode = msgspec.msgpack.Decoder(Event).decode


def events_of(batch: memoryview) -> Iterator[tuple[int, int, Event]]:
    """Offset, time and event of every record; one that nobody here wrote is left out."""
    header, data = open_batch(batch)
    at_ms, position = header.base_timestamp, 0
    for offset in range(header.base_offset, header.base_offset + header.count):
        if (low := data[position]) >= _CONTINUES and (high := data[position + 1]) < _CONTINUES:
            length, at = (low & 0x7F) >> 1 | high << 6, position + 2
        else:
            length, at = read_varint(data, position)
        position = at + length
        later = 0
        if data[at + 1] == 0 and data[at + 2] < _CONTINUES and data[at + 3] == _KEY_BYTE:
            at += _HEAD_BYTES  # as nearly all are: written at once, and few enough for deltas of one byte
        else:
            later, at = read_varlong(data, at + 1)
            at = _value_at(data, at)
        if (low := data[at]) >= _CONTINUES and (high := data[at + 1]) < _CONTINUES:
            size, at = (low & 0x7F) >> 1 | high << 6, at + 2
        else:
            size, at = read_varint(data, at)
        try:
            yield offset, at_ms + later, _decode(data[at : at + size])
        except msgspec.MsgspecError as error:  # nobody should be held up by what somebody else wrote
            log.error("Record %d is not about schedules, and left out: %s", offset, error)


def pick(batch: memoryview, offsets: Sequence[int]) -> Iterator[tuple[int, Event]]:
    """The events at some offsets, in order; other records are stepped over. What cannot be read ends it."""
    try:
        header, data = open_batch(batch)
        position = passed = 0
        for offset in offsets:
            while passed < offset - header.base_offset:
                if (low := data[position]) >= _CONTINUES and (high := data[position + 1]) < _CONTINUES:
                    position += 2 + ((low & 0x7F) >> 1 | high << 6)
                else:
                    length, position = read_varint(data, position)
                    position += length
                passed += 1
            _, at = read_varint(data, position)
            _, at = read_varlong(data, at + 1)
            size, at = read_varint(data, _value_at(data, at))
            yield offset, _decode(data[at : at + size])
    except (CorruptRecords, IndexError, msgspec.MsgspecError):
        return


def _value_at(data: bytes, at: int) -> int:
    """Where the value's length is, of a record whose delta is at ``at``."""
    _, at = read_varint(data, at)
    size, at = read_varint(data, at)  # of the key
    return at + max(size, 0)
