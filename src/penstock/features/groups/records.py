"""What a coordinator writes to its partition of ``__consumer_offsets``.

The key names what a record is about, so that compaction keeps the last word on each; no value means gone. When it
happened is the record's timestamp. Keys and values are JSON, member metadata and assignments inside them base64.
Format: docs/formats/groups.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.errors import CorruptRecords
from penstock.features.groups.consumer.records import VALUES as CONSUMER_VALUES
from penstock.features.groups.consumer.records import ConsumerKey, ConsumerValue
from penstock.records import Record

OFFSETS_TOPIC: Final = "__consumer_offsets"


class GroupKey(msgspec.Struct, frozen=True, tag="group"):
    group: str


class OffsetKey(msgspec.Struct, frozen=True, tag="offset"):
    group: str
    topic: str
    partition: int


class StoredMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as of its group's last stored generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's last generation that was shared out; no members means that it is empty."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader_id: str | None
    members: tuple[StoredMember, ...]


class StoredOffset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a group got in a partition of the topic that had this id."""

    offset: int
    topic_id: str
    leader_epoch: int = -1
    metadata: str = ""


Key = GroupKey | OffsetKey | ConsumerKey
Value = StoredGroup | StoredOffset | ConsumerValue


class Change(msgspec.Struct, frozen=True):
    """One record to persist and apply: a key and its new value, or None where it is gone."""

    key: Key
    value: Value | None


_encode = msgspec.json.Encoder().encode
_keys: msgspec.json.Decoder[Key] = msgspec.json.Decoder(Key)
_VALUES: Final[dict[type[msgspec.Struct], type[Value]]] = {
    GroupKey: StoredGroup,
    OffsetKey: StoredOffset,
    **CONSUMER_VALUES,
}
_values: Final = {key: msgspec.json.Decoder(value) for key, value in _VALUES.items()}


def to_record(change: Change, offset: int, at_ms: int) -> Record:
    value = None if change.value is None else _encode(change.value)
    return Record(offset, at_ms, _encode(change.key), value, ())


def from_record(record: Record) -> Change:
    """Read a record back; `CorruptRecords` if no coordinator wrote it."""
    try:
        key = _keys.decode(record.key or b"")
        if record.value is None:
            return Change(key, None)
        return Change(key, _values[type(key)].decode(record.value))
    except msgspec.MsgspecError as error:
        raise CorruptRecords(f"Record {record.offset} is not about a group: {error}") from error
