"""What is known for sure of a consumer group: what its records in the log say; and a draft of what is to be written.

A `Ledger` changes in `apply` alone. The group decides on a `LedgerDraft`, which looks like the ledger with some changes
made and collects them; if they cannot be written, the draft is dropped and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.features.groups.consumer.assignors import DEFAULT_ASSIGNOR, Place
from penstock.features.groups.consumer.reconciliation import Current, MemberState
from penstock.features.groups.consumer.records import (
    ConsumerGroupKey,
    ConsumerKey,
    ConsumerMemberKey,
    ConsumerValue,
    CurrentKey,
    StoredConsumer,
    StoredConsumerGroup,
    StoredCurrent,
    StoredTarget,
    TargetKey,
)
from penstock.features.groups.records import GroupChange

_NEW_GROUP: Final = StoredConsumerGroup(epoch=0, assignment_epoch=0, assignor=DEFAULT_ASSIGNOR, fingerprint="")
NOTHING: Final[frozenset[Place]] = frozenset()
NEWCOMER: Final = Current()


# -- between memory and records ----------------------------------------------------------------------------------------


def to_partitions(places: Iterable[Place]) -> dict[str, tuple[int, ...]]:
    """Partitions by topic id, in order."""
    found: dict[str, list[int]] = {}
    for topic_id, index in sorted(places):
        found.setdefault(topic_id, []).append(index)
    return {topic_id: tuple(indexes) for topic_id, indexes in found.items()}


def to_places(partitions: Mapping[str, Iterable[int]]) -> frozenset[Place]:
    return frozenset((topic_id, index) for topic_id, indexes in partitions.items() for index in indexes)


def _with_epochs(places: Mapping[Place, int]) -> dict[str, tuple[tuple[int, int], ...]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for (topic_id, index), epoch in sorted(places.items()):
        found.setdefault(topic_id, []).append((index, epoch))
    return {topic_id: tuple(rows) for topic_id, rows in found.items()}


def _epochs(stored: Mapping[str, tuple[tuple[int, int], ...]]) -> dict[Place, int]:
    return {(topic_id, index): epoch for topic_id, rows in stored.items() for index, epoch in rows}


def store_current(current: Current) -> StoredCurrent:
    return StoredCurrent(
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=current.state.value,
        assigned=_with_epochs(current.assigned),
        revoking=_with_epochs(current.revoking),
    )


def load_current(stored: StoredCurrent) -> Current:
    return Current(
        epoch=stored.epoch,
        previous_epoch=stored.previous_epoch,
        state=MemberState(stored.state),
        assigned=_epochs(stored.assigned),
        revoking=_epochs(stored.revoking),
    )


# -- what is -----------------------------------------------------------------------------------------------------------


class Ledger:
    """The group's records by what they are about, and who owns what, which follows from them."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group = _NEW_GROUP
        self.group_ms = 0  # when it was last written
        self.members: dict[str, StoredConsumer] = {}
        self.targets: dict[str, frozenset[Place]] = {}
        self.currents: dict[str, Current] = {}
        self.owners: dict[Place, str] = {}
        self.instances: dict[str, str] = {}  # static instance → member

    def target_of(self, member_id: str) -> frozenset[Place]:
        return self.targets.get(member_id, NOTHING)

    def current_of(self, member_id: str) -> Current:
        return self.currents.get(member_id, NEWCOMER)

    def apply(self, key: ConsumerKey, value: ConsumerValue | None, at_ms: int) -> None:
        """Take over what is in the log now."""
        match key:
            case ConsumerGroupKey():
                assert value is None or isinstance(value, StoredConsumerGroup)
                self.group = value or _NEW_GROUP
                self.group_ms = at_ms
            case ConsumerMemberKey(member=member_id):
                assert value is None or isinstance(value, StoredConsumer)
                self._apply_member(member_id, value)
            case TargetKey(member=member_id):
                assert value is None or isinstance(value, StoredTarget)
                self.targets.pop(member_id, None)
                if value is not None:
                    self.targets[member_id] = to_places(value.partitions)
            case CurrentKey(member=member_id):
                assert value is None or isinstance(value, StoredCurrent)
                self._apply_current(member_id, None if value is None else load_current(value))

    def _apply_member(self, member_id: str, facts: StoredConsumer | None) -> None:
        before = self.members.pop(member_id, None) if facts is None else self.members.get(member_id)
        if (
            before is not None
            and before.instance_id is not None
            and self.instances.get(before.instance_id) == member_id
        ):
            del self.instances[before.instance_id]
        if facts is not None:
            self.members[member_id] = facts
            if facts.instance_id is not None:
                self.instances[facts.instance_id] = member_id

    def _apply_current(self, member_id: str, current: Current | None) -> None:
        before = self.currents.pop(member_id, NEWCOMER)
        for place in (*before.assigned, *before.revoking):
            if self.owners.get(place) == member_id:
                del self.owners[place]
        if current is not None:
            self.currents[member_id] = current
            for place in (*current.assigned, *current.revoking):
                self.owners[place] = member_id

    def tombstones(self) -> Iterator[GroupChange]:
        """What ends the group: nothing of it stays in the log."""
        for member_id in sorted(self.members.keys() | self.targets.keys() | self.currents.keys()):
            yield from self.tombstones_of(member_id)
        if self.group is not _NEW_GROUP:
            yield GroupChange(ConsumerGroupKey(self.group_id), None)

    def tombstones_of(self, member_id: str) -> Iterator[GroupChange]:
        if member_id in self.currents:
            yield GroupChange(CurrentKey(self.group_id, member_id), None)
        if member_id in self.targets:
            yield GroupChange(TargetKey(self.group_id, member_id), None)
        if member_id in self.members:
            yield GroupChange(ConsumerMemberKey(self.group_id, member_id), None)


# -- what is to be -----------------------------------------------------------------------------------------------------


class LedgerDraft:
    """The ledger as it will be once ``changes()`` are written."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changes: list[GroupChange] = []
        self._members: dict[str, StoredConsumer | None] = {}
        self._targets: dict[str, frozenset[Place]] = {}
        self._currents: dict[str, Current] = {}
        self.epoch = ledger.group.epoch
        self.assignment_epoch = ledger.group.assignment_epoch
        self.assignor = ledger.group.assignor
        self.fingerprint = ledger.group.fingerprint

    def changes(self) -> list[GroupChange]:
        group = StoredConsumerGroup(
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self.assignor,
            fingerprint=self.fingerprint,
        )
        found = {change.key: change for change in self._changes}  # the last word on each
        if group != self._ledger.group:
            key = ConsumerGroupKey(self._ledger.group_id)
            found[key] = GroupChange(key, group)
        return list(found.values())

    # -- reading ------------------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> StoredConsumer | None:
        return self._members[member_id] if member_id in self._members else self._ledger.members.get(member_id)

    def members(self) -> dict[str, StoredConsumer]:
        merged = {**self._ledger.members, **self._members}
        return {member_id: facts for member_id, facts in merged.items() if facts is not None}

    def target_of(self, member_id: str) -> frozenset[Place]:
        return self._targets[member_id] if member_id in self._targets else self._ledger.target_of(member_id)

    def current_of(self, member_id: str) -> Current:
        return self._currents[member_id] if member_id in self._currents else self._ledger.current_of(member_id)

    def is_free_for(self, member_id: str, place: Place) -> bool:
        """Whether no other member has a partition; who is to go in this draft has nothing any more."""
        owner = self._ledger.owners.get(place)
        return owner is None or owner == member_id or self.member(owner) is None

    # -- writing ------------------------------------------------------------------------------------------------------

    def bump(self) -> None:
        """Something changed that the target depends on. However much does, one new epoch is enough for one draft."""
        self.epoch = self._ledger.group.epoch + 1

    def put_member(self, member_id: str, facts: StoredConsumer) -> None:
        if self.member(member_id) != facts:
            self._members[member_id] = facts
            self._changes.append(GroupChange(ConsumerMemberKey(self._ledger.group_id, member_id), facts))

    def put_target(self, member_id: str, places: frozenset[Place]) -> None:
        if self.target_of(member_id) != places:
            self._targets[member_id] = places
            stored = StoredTarget(to_partitions(places))
            self._changes.append(GroupChange(TargetKey(self._ledger.group_id, member_id), stored))

    def put_current(self, member_id: str, current: Current) -> None:
        if self.current_of(member_id) != current:
            self._currents[member_id] = current
            self._changes.append(GroupChange(CurrentKey(self._ledger.group_id, member_id), store_current(current)))

    def drop(self, member_id: str) -> None:
        """The member is gone, and what it had is free."""
        self._members[member_id] = None
        self._targets[member_id] = NOTHING
        self._currents[member_id] = NEWCOMER
        self._changes += self._ledger.tombstones_of(member_id)

    def move(self, old_id: str, new_id: str, facts: StoredConsumer, current: Current) -> None:
        """A static member was started again under another id: it takes over what its predecessor was meant to have."""
        target = self.target_of(old_id)
        self.drop(old_id)
        self.put_member(new_id, facts)
        self.put_target(new_id, target)
        self.put_current(new_id, current)
