"""Groups: the leader of a partition of ``__consumer_offsets`` coordinates the groups kept there.

Offset commits come in crowds, so those of one turn of the event loop are written as one batch. Nothing else is decided
before they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.config.settings import GroupSettings
from penstock.errors import GroupNotFound, InvalidGroupId
from penstock.features.groups import records
from penstock.features.groups.config import MemberTimes, MemberTimesOf
from penstock.features.groups.consumer.messages import ConsumerHeartbeat
from penstock.features.groups.consumer.records import StoredConsumerGroup
from penstock.features.groups.consumer.topics import NoTopics, ReadableTopics
from penstock.features.groups.group import Group
from penstock.features.groups.messages import (
    CommitOffsets,
    Delete,
    DeleteOffsets,
    JoinRequest,
    Leave,
    MemberIdentity,
    SyncGroup,
)
from penstock.features.groups.records import OFFSETS_TOPIC, GroupChange, StoredGroup
from penstock.features.groups.slot import AnyGroup, GroupSlot
from penstock.machines.clocks import PatientClock
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.journal import Journal, PartitionJournal
from penstock.machines.leaders import Leaders
from penstock.machines.messages import AnswerT, Outcome, Reply, Request
from penstock.machines.shard import Defer, TransactionalShard
from penstock.partitions.partition import Partition
from penstock.partitions.stats import ROUND_BOUNDS_SECONDS, Histogram
from penstock.supervision import Supervision

log = logging.getLogger(__name__)


_PENDING_MAX: Final = 500


class GroupShard(TransactionalShard[GroupSlot, GroupChange]):
    """Groups by id."""

    def __init__(
        self,
        journal: Journal[GroupChange],
        config: GroupSettings,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        defer: Defer,
        topics: ReadableTopics | None = None,
        on_round: Callable[[int], None] | None = None,
        times_of: MemberTimesOf | None = None,
    ) -> None:
        """``on_round`` hears how many milliseconds each round of a classic group took.

        ``times_of`` tells what members of a group are held to; without it, all groups have what ``config`` says.
        """
        super().__init__(journal, now_ms, wall_ms, defer)
        self._config = config
        self._topics: ReadableTopics = topics or NoTopics()
        self._on_round = on_round
        self._times_of: MemberTimesOf = times_of or (lambda _: MemberTimes.of(config))
        self._pending: list[tuple[GroupSlot, Outcome[GroupChange]]] = []  # commits to be written together

    def make(self, name: str) -> GroupSlot:
        return GroupSlot(name, self._config, self._topics, self._times_of)

    def name_of(self, change: GroupChange) -> str:
        return change.key.group

    def on_applied(self, group: GroupSlot, change: GroupChange) -> None:
        if isinstance(change.value, (StoredGroup, StoredConsumerGroup)):
            found = group.group
            log.info(
                "Group %s: %s, generation %d, %d members.",
                group.id,
                found.state.value,
                found.generation,
                found.member_count,
            )

    def perform(self, decisions: Sequence[tuple[GroupSlot, Outcome[GroupChange]]]) -> None:
        super().perform(decisions)
        if self._on_round is not None:
            for group, _ in decisions:
                if isinstance(group.group, Group):
                    took_ms = group.group.take_round_duration(self._now_ms())
                    if took_ms is not None:
                        self._on_round(took_ms)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, request: Request[Any], reply: Reply) -> None:
        """Have a group decide on a request; it is replied to unless this raises a `GroupError`."""
        if isinstance(request, CommitOffsets):
            self.check()
            self._collect(*self.decide(name, request, reply))
        elif isinstance(request, (Delete, DeleteOffsets)) and self.is_ready and name not in self.machines:
            raise GroupNotFound(f"There is no group {name!r}.")
        else:
            super().ask(name, request, reply)

    def _collect(self, group: GroupSlot, outcome: Outcome[GroupChange]) -> None:
        self._pending.append((group, outcome))
        if len(self._pending) == 1:
            self._defer(self.flush)
        elif len(self._pending) >= _PENDING_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the commits that were put off."""
        if self._pending:
            pending, self._pending = self._pending, []
            self.perform(pending)

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> None:
        self.check()
        group = self.machines.get(group_id) or self.make(group_id)  # an empty one knows no member
        try:
            group.heartbeat(identity, self._now_ms())
        finally:
            if group_id in self.machines:
                self.note_deadline(group)

    def expire(self) -> None:
        """Forget offsets that are not needed any more, and groups that never came to anything."""
        self.flush()
        wall_ms = self._wall_ms()
        for group in tuple(self.machines.values()):
            if group.id in self.machines:
                self.perform([(group, group.expire_offsets(wall_ms))])


class GroupCoordinator(NamedCoordinator[GroupShard]):
    """All groups whose partitions this node leads."""

    topic = OFFSETS_TOPIC
    what = "groups"

    def __init__(
        self,
        config: GroupSettings,
        leaders: Leaders,
        time: PatientClock,
        topics: ReadableTopics,
        times_of: MemberTimesOf | None = None,
        *,
        syncs: bool,
        supervision: Supervision,
    ) -> None:
        super().__init__(leaders, time, supervision)
        self._config = config
        self._topics = topics
        self._times_of = times_of
        self._syncs = syncs
        self.round_duration = Histogram(ROUND_BOUNDS_SECONDS)

    def make_shard(self, partition: Partition) -> GroupShard:
        journal = PartitionJournal(partition, records, syncs=self._syncs)
        soon = asyncio.get_running_loop().call_soon
        return GroupShard(
            journal,
            self._config,
            self._time.now_ms,
            self._clock.now_ms,
            soon,
            self._topics,
            self._on_round,
            self._times_of,
        )

    def _on_round(self, took_ms: int) -> None:
        self.round_duration.observe(took_ms / 1000)

    async def ask(self, group_id: str, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, as soon as it holds; a `CoordinationError` if it is refused."""
        if isinstance(request, (JoinRequest, SyncGroup, Leave, ConsumerHeartbeat)):
            _check_group_id(group_id)
        return await super().ask(group_id, request)

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> None:
        """Note that a member is alive; it hears by an error if it has to join again."""
        _check_group_id(group_id)
        self.shard(group_id).heartbeat(group_id, identity)

    def find(self, group_id: str) -> AnyGroup | None:
        """The group as it is at this moment, or None where there is none."""
        found = self.shard(group_id).machines.get(group_id)
        return None if found is None else found.group

    def all_groups(self) -> list[AnyGroup]:
        """Every group coordinated here; `CoordinatorLoading` while some are not known yet."""
        return [either.group for shard in self.loaded_shards() for either in shard.machines.values()]

    def end_transaction(self, shard_index: int, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction was written to the log of a shard: its offsets count now, or never will."""
        shard = self._shards.get(shard_index)
        if shard is not None:
            shard.end_transaction(producer_id, is_commit=is_commit)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("A group id must not be empty.")
