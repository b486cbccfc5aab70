"""What a coordinator writes to its partition of ``__consumer_offsets``.

The key names what a record is about, so that compaction keeps the last word on each; no value means gone. When it
happened is the record's timestamp. Keys and values are JSON, member metadata and assignments inside them base64.
Format: docs/formats/groups.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.features.groups.consumer.records import VALUES as CONSUMER_VALUES
from penstock.features.groups.consumer.records import ConsumerKey, ConsumerValue
from penstock.machines.journal import KeyedFormat

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


class GroupChange(msgspec.Struct, frozen=True):
    """One record to persist and apply: a key and its new value, or None where it is gone."""

    key: Key
    value: Value | None


_format = KeyedFormat(GroupChange, {GroupKey: StoredGroup, OffsetKey: StoredOffset, **CONSUMER_VALUES}, "a group")
to_record, from_record = _format.to_record, _format.from_record
