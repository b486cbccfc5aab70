"""A group as its shard keeps it: of the classic protocol or of the new one, and able to move between them.

The offsets belong to the group whichever kind it is. Which kind it is follows from the log: the last record of a kind
decides, and a move ends the old kind's records in the batch that begins the new one's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.config.settings import GroupSettings
from penstock.errors import PenstockError, RebalanceInProgress, UnknownMember
from penstock.features.groups.config import MemberTimesOf
from penstock.features.groups.consumer.conversion import upgrade
from penstock.features.groups.consumer.group import ConsumerGroup
from penstock.features.groups.consumer.messages import JOINING, ConsumerHeartbeat, check_heartbeat
from penstock.features.groups.consumer.topics import ReadableTopics
from penstock.features.groups.group import Group
from penstock.features.groups.messages import JoinRequest, MemberIdentity
from penstock.features.groups.offsets import CommittedOffsets
from penstock.features.groups.records import GroupChange, GroupKey, OffsetKey, StoredOffset
from penstock.features.groups.states import GroupState
from penstock.machines.messages import Outcome, Reply, Request

AnyGroup = Group | ConsumerGroup


class GroupSlot:
    """One group of either kind."""

    def __init__(self, group_id: str, config: GroupSettings, topics: ReadableTopics, times_of: MemberTimesOf) -> None:
        self.id = group_id
        self._config = config
        self._topics = topics
        self._times_of = times_of
        self.offsets = CommittedOffsets(group_id, config)
        self.group: AnyGroup = self._classic()
        # Records of the kind it was; they are ended together with the first record of the kind it is.
        self._leftover: list[GroupChange] = []

    def __repr__(self) -> str:
        return repr(self.group)

    def _classic(self) -> Group:
        return Group(self.id, self._config, self.offsets)

    def _consumer(self) -> ConsumerGroup:
        return ConsumerGroup(self.id, self._config, self._topics, self.offsets, self._times_of)

    @property
    def wake_ms(self) -> float:
        return 0 if self._is_leaderless else self.group.wake_ms

    @property
    def is_forgettable(self) -> bool:
        return self.group.is_forgettable and not self._leftover

    # -- deciding -----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[GroupChange]:
        """Decide on a request; one of the other protocol may move the group there."""
        self._begin_if_leaderless(now_ms)
        if isinstance(request, ConsumerHeartbeat) and isinstance(self.group, Group):
            return self._upgrade(self.group, request, now_ms, reply)
        if isinstance(request, JoinRequest) and isinstance(self.group, ConsumerGroup) and self.group.is_empty:
            return self._restart_as_classic(self.group, request, now_ms, reply)
        return self._with_leftover(self.group.handle(request, now_ms, reply))

    def _upgrade(self, group: Group, request: ConsumerHeartbeat, now_ms: int, reply: Reply) -> Outcome[GroupChange]:
        check_heartbeat(request)
        if request.epoch != JOINING:
            raise UnknownMember(f"Group {self.id!r} does not know member {request.member_id!r}; join again.")
        moved = self._consumer()
        changes = upgrade(group, self._topics)
        for change in changes:
            if not isinstance(change.key, GroupKey):
                moved.apply(change, 0, now_ms)
        outcome = moved.handle(request, now_ms, reply)
        outcome.changes[:0] = changes
        outcome.replies[:0] = group.dismiss_all(RebalanceInProgress("The group moves to the new protocol.")).replies
        return outcome

    def _restart_as_classic(
        self, group: ConsumerGroup, request: JoinRequest, now_ms: int, reply: Reply
    ) -> Outcome[GroupChange]:
        """It has no members. A round lives in memory, so nothing needs to be written before the first is through."""
        fresh = self._classic()
        outcome = fresh.handle(request, now_ms, reply)
        self._leftover = list(group.tombstones())
        self.group = fresh
        return self._with_leftover(outcome)

    def _with_leftover(self, outcome: Outcome[GroupChange]) -> Outcome[GroupChange]:
        if self._leftover and any(isinstance(change.key, GroupKey) for change in outcome.changes):
            outcome.changes[:0] = self._leftover
        return outcome

    def heartbeat(self, identity: MemberIdentity, now_ms: int) -> None:
        self._begin_if_leaderless(now_ms)
        self.group.heartbeat(identity, now_ms)

    def tick(self, now_ms: int) -> Outcome[GroupChange]:
        self._begin_if_leaderless(now_ms)
        return self._with_leftover(self.group.tick(now_ms))

    def _begin_if_leaderless(self, now_ms: int) -> None:
        """A group that came back from the new protocol has to share out its partitions by itself again."""
        if self._is_leaderless:
            assert isinstance(self.group, Group)
            self.group.begin_round(now_ms)

    @property
    def _is_leaderless(self) -> bool:
        group = self.group
        return isinstance(group, Group) and group.state is GroupState.STABLE and group.leader_id is None

    def expire_offsets(self, wall_ms: int) -> Outcome[GroupChange]:
        return self._with_leftover(self.group.expire_offsets(wall_ms))

    def dismiss_all(self, error: PenstockError) -> Outcome[GroupChange]:
        return self.group.dismiss_all(error)

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: GroupChange, at_ms: int, now_ms: int = 0) -> None:
        """Take over what was written to the log; a value of the other kind makes the group one of that kind."""
        key, value = change.key, change.value
        if isinstance(key, OffsetKey):
            assert value is None or isinstance(value, StoredOffset)
            self.offsets.apply(key, value, at_ms)
            return
        is_classic = isinstance(self.group, Group)
        if isinstance(key, GroupKey) == is_classic:
            self.group.apply(change, at_ms, now_ms)
        elif value is not None:
            self.group = self._consumer() if is_classic else self._classic()
            self._leftover = []
            self.group.apply(change, at_ms, now_ms)
        elif self._leftover:
            self._leftover = [left for left in self._leftover if left.key != key]

    def hold(self, change: GroupChange, at_ms: int, producer_id: int) -> None:
        """Take over what was written to the log as part of a transaction: offsets."""
        key, value = change.key, change.value
        assert isinstance(key, OffsetKey)
        assert isinstance(value, StoredOffset)
        self.offsets.hold(key, value, at_ms, producer_id)

    def producers_held(self) -> Collection[int]:
        """The producers for whose open transactions offsets are held."""
        return self.offsets.producers_undecided()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Take over the end of a transaction that offsets were held for."""
        self.offsets.end_transaction(producer_id, is_commit=is_commit)

    def resume(self, now_ms: int) -> None:
        self.group.resume(now_ms)
