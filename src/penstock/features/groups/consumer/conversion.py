"""A group moves from one protocol to the other with its members, and back: what has to be written for that.

Each function gives the changes that end the group as it was and begin it as it is to be; written together, they happen
together. Offsets are the same for both kinds and stay as they are.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import GroupNotFound
from penstock.features.groups.client_metadata import (
    CONSUMER_PROTOCOL,
    read_assignment,
    read_subscription,
    write_assignment,
)
from penstock.features.groups.consumer.assignors import DEFAULT_ASSIGNOR, Place
from penstock.features.groups.consumer.ledger import Ledger, LedgerDraft, store_current, to_partitions
from penstock.features.groups.consumer.reconciliation import Current
from penstock.features.groups.consumer.records import (
    ConsumerGroupKey,
    ConsumerMemberKey,
    CurrentKey,
    StoredClassicSide,
    StoredConsumer,
    StoredConsumerGroup,
    StoredTarget,
    TargetKey,
    common_protocols,
)
from penstock.features.groups.consumer.topics import ReadableTopics, to_ids, to_names
from penstock.features.groups.group import Group
from penstock.features.groups.members import ClassicMember
from penstock.features.groups.records import GroupChange, GroupKey, StoredGroup, StoredMember

_FIRST_EPOCH: Final = 1


def upgrade(group: Group, topics: ReadableTopics) -> list[GroupChange]:
    """A classic group becomes one of the new protocol; its members stay, each with what it has."""
    changes = [GroupChange(GroupKey(group.id), None)] if group.stored.generation else []
    members = [member for member in group.members if not member.is_newcomer]  # these come again by themselves
    if not members:
        return changes
    if group.protocol_type != CONSUMER_PROTOCOL:
        raise GroupNotFound(f"Group {group.id!r} is of type {group.protocol_type!r}; consumers cannot join it.")
    epoch = max(group.generation, _FIRST_EPOCH)
    taken: set[Place] = set()
    for member in members:
        mine = [place for place in to_ids(read_assignment(member.facts.assignment), topics) if place not in taken]
        taken.update(mine)
        current = Current(epoch=epoch, previous_epoch=epoch, assigned=dict.fromkeys(mine, epoch))
        changes += [
            GroupChange(ConsumerMemberKey(group.id, member.id), _as_consumer(group, member)),
            GroupChange(TargetKey(group.id, member.id), StoredTarget(to_partitions(mine))),
            GroupChange(CurrentKey(group.id, member.id), store_current(current)),
        ]
    stored = StoredConsumerGroup(epoch=epoch, assignment_epoch=epoch, assignor=DEFAULT_ASSIGNOR, fingerprint="")
    return [*changes, GroupChange(ConsumerGroupKey(group.id), stored)]


def _as_consumer(group: Group, member: ClassicMember) -> StoredConsumer:
    facts = member.facts
    subscription = read_subscription(facts.protocols[0][1])
    if subscription is None:
        raise GroupNotFound(f"What member {member.id!r} of classic group {group.id!r} wants cannot be read.")
    return StoredConsumer(
        client_id=facts.client_id,
        client_host=facts.client_host,
        rebalance_timeout_ms=facts.rebalance_timeout_ms,
        topics=tuple(sorted(set(subscription.topics))),
        instance_id=facts.instance_id,
        classic=StoredClassicSide(session_timeout_ms=facts.session_timeout_ms, protocols=facts.protocols),
    )


def downgrade(ledger: Ledger, draft: LedgerDraft, topics: ReadableTopics) -> list[GroupChange]:
    """A group of the new protocol becomes a classic one with the members of a draft, all of which are classic.

    It has no leader yet, which makes it begin a round as soon as it is there. It goes on in the last epoch that members
    know, so that they are told of the round instead of being fenced, and lose nothing before it.
    """
    members = draft.members()
    common = common_protocols(members.values())
    assert common, "classic members without a common protocol are not let in"
    first = next(iter(members.values())).classic
    assert first is not None
    protocol = next(name for name, _ in first.protocols if name in common)
    stored = StoredGroup(
        generation=max(_FIRST_EPOCH, *(draft.current_of(member_id).epoch for member_id in members)),
        protocol_type=CONSUMER_PROTOCOL,
        protocol=protocol,
        leader_id=None,
        members=tuple(
            _as_classic(member_id, facts, write_assignment(to_names(draft.current_of(member_id).assigned, topics)))
            for member_id, facts in members.items()
        ),
    )
    return [*ledger.tombstones(), GroupChange(GroupKey(ledger.group_id), stored)]


def _as_classic(member_id: str, facts: StoredConsumer, assignment: bytes) -> StoredMember:
    assert facts.classic is not None
    return StoredMember(
        member_id=member_id,
        instance_id=facts.instance_id,
        client_id=facts.client_id,
        client_host=facts.client_host,
        session_timeout_ms=facts.classic.session_timeout_ms,
        rebalance_timeout_ms=facts.rebalance_timeout_ms,
        protocols=facts.classic.protocols,
        assignment=assignment,
    )
