"""What a coordinator writes to its partition of ``__consumer_offsets``.

The key names what a record is about, so that compaction keeps the last word on each; no value means gone. Keys and
values are JSON, member metadata and assignments inside them base64. Format: docs/formats/groups.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.records import Record

OFFSETS_TOPIC: Final = "__consumer_offsets"


class GroupKey(msgspec.Struct, frozen=True, tag="group"):
    group: str


class OffsetKey(msgspec.Struct, frozen=True, tag="offset"):
    group: str
    topic: str
    partition: int


class StoredMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as of its group's last stable generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's last stable generation; no members means that it is empty."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader_id: str | None
    members: tuple[StoredMember, ...]
    stored_ms: int


class StoredOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group got in a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


Key = GroupKey | OffsetKey
Value = StoredGroup | StoredOffset


class Change(msgspec.Struct, frozen=True):
    """One record to persist and apply: a key and its new value, or None where it is gone."""

    key: Key
    value: Value | None


_encoder = msgspec.json.Encoder()
_keys: msgspec.json.Decoder[Key] = msgspec.json.Decoder(Key)
_groups = msgspec.json.Decoder(StoredGroup)
_offsets = msgspec.json.Decoder(StoredOffset)


def to_record(change: Change, offset: int, now_ms: int) -> Record:
    value = None if change.value is None else _encoder.encode(change.value)
    return Record(offset, now_ms, _encoder.encode(change.key), value, ())


def from_record(record: Record) -> Change:
    assert record.key is not None
    key = _keys.decode(record.key)
    if record.value is None:
        return Change(key, None)
    return Change(key, _groups.decode(record.value) if isinstance(key, GroupKey) else _offsets.decode(record.value))
