"""What is written of a consumer group of the new protocol: the group, and of each member three things.

What a member wants, what it is meant to have and what it has are different records, because they change at different
times: a heartbeat writes only what it changed. Partitions are kept by topic id. Format: docs/formats/groups.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class ConsumerGroupKey(msgspec.Struct, frozen=True, tag="consumer_group"):
    group: str


class ConsumerMemberKey(msgspec.Struct, frozen=True, tag="consumer_member"):
    group: str
    member: str


class TargetKey(msgspec.Struct, frozen=True, tag="target"):
    group: str
    member: str


class CurrentKey(msgspec.Struct, frozen=True, tag="current"):
    group: str
    member: str


class StoredConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """How often the group changed, and up to which change its targets are worked out."""

    epoch: int
    assignment_epoch: int
    assignor: str
    # Names the topics that members want and their partition counts, so that a change is seen after a restart, too.
    fingerprint: str


class StoredClassicSide(msgspec.Struct, frozen=True, kw_only=True):
    """What a member said that joined by the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class StoredConsumer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member and what it wants."""

    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...] = ()
    regex: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    assignor: str | None = None
    classic: StoredClassicSide | None = None


class StoredTarget(msgspec.Struct, frozen=True):
    """The partitions a member is meant to have, by topic id."""

    partitions: dict[str, tuple[int, ...]]


class StoredCurrent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a member has: partitions with the epoch in which it got each, by topic id."""

    epoch: int
    previous_epoch: int
    state: str
    assigned: dict[str, tuple[tuple[int, int], ...]] = {}
    revoking: dict[str, tuple[tuple[int, int], ...]] = {}


ConsumerKey = ConsumerGroupKey | ConsumerMemberKey | TargetKey | CurrentKey
ConsumerValue = StoredConsumerGroup | StoredConsumer | StoredTarget | StoredCurrent

VALUES: Mapping[type[msgspec.Struct], type[ConsumerValue]] = {
    ConsumerGroupKey: StoredConsumerGroup,
    ConsumerMemberKey: StoredConsumer,
    TargetKey: StoredTarget,
    CurrentKey: StoredCurrent,
}


def common_protocols(members: Iterable[StoredConsumer]) -> set[str] | None:
    """The protocols that all classic members speak; None if there is none of these."""
    spoken = [{name for name, _ in facts.classic.protocols} for facts in members if facts.classic is not None]
    return set.intersection(*spoken) if spoken else None
