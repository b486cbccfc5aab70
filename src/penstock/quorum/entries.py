"""An entry of the Raft log as a record batch, so that ``penstock log inspect`` shows it to a person.

One batch an entry, at offset index - 1, with the term as its leader epoch. A batch's checksum does not cover its leader
epoch, so the term stands in a header of the record as well and both must agree. The key tells what kind of entry it is:
none for a command, whose value is a list of metadata records. Batches from before there was a quorum have no header and
one metadata record in each value; they are commands of term 0. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.raft.messages import Entry, Kind, Members
from penstock.errors import CorruptRecords
from penstock.records import Record, decode_records, encode_batch, parse_header

_TERM: Final = "term"
_KEYS: Final = {Kind.COMMAND: None, Kind.NOTHING: b"nothing", Kind.MEMBERS: b"members"}
_KINDS: Final = {key: kind for kind, key in _KEYS.items()}


def encode_members(members: Members) -> bytes:
    return msgspec.json.encode(members)


def decode_members(data: bytes) -> Members:
    return msgspec.json.decode(data, type=Members)


def encode_entry(entry: Entry, now_ms: int) -> bytearray:
    """The batch of an entry."""
    value = entry.data if entry.members is None else encode_members(entry.members)
    header = (_TERM, b"%d" % entry.term)
    record = Record(entry.index - 1, now_ms, _KEYS[entry.kind], value, (header,))
    return encode_batch([record], leader_epoch=entry.term)


def decode_entries(batch: bytes) -> list[Entry]:
    """The entries of a batch whose checksum is right; `CorruptRecords` if it holds none all the same."""
    epoch = parse_header(batch).leader_epoch
    return [_decode_entry(record, epoch) for record in decode_records(memoryview(batch))]


def _decode_entry(record: Record, epoch: int) -> Entry:
    kind = _KINDS.get(record.key)
    value = record.value
    if kind is None or value is None:
        raise CorruptRecords(f"The record at offset {record.offset} is no entry of a metadata log.")
    index = record.offset + 1
    if not record.headers:
        if epoch != 0:
            raise CorruptRecords(f"Entry {index} has lost its term.")
        return Entry(index, 0, Kind.COMMAND, b"[" + value + b"]")
    term = dict(record.headers).get(_TERM)
    if term != b"%d" % epoch:
        raise CorruptRecords(f"Entry {index} is of term {epoch} by its batch, but by itself it is not.")
    if kind is Kind.MEMBERS:
        try:
            return Entry(index, epoch, kind, b"", decode_members(value))
        except msgspec.MsgspecError as error:
            raise CorruptRecords(f"Entry {index} does not name members: {error}.") from error
    return Entry(index, epoch, kind, value)
