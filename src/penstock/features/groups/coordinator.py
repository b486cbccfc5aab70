"""Groups as a whole: whoever leads a partition of ``__consumer_offsets`` coordinates the groups kept there."""

from __future__ import annotations

import asyncio

from penstock.config.settings import GroupSettings
from penstock.errors import InvalidGroupId
from penstock.features.groups import records
from penstock.features.groups.config import MemberTimesOf
from penstock.features.groups.consumer.messages import ConsumerHeartbeat
from penstock.features.groups.consumer.topics import Topics
from penstock.features.groups.messages import Join, Leave, MemberIdentity, Sync
from penstock.features.groups.records import OFFSETS_TOPIC
from penstock.features.groups.shard import GroupShard
from penstock.features.groups.slot import AnyGroup
from penstock.machines.clocks import PatientClock
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.journal import PartitionJournal
from penstock.machines.leaders import Leaders
from penstock.machines.messages import AnswerT, Request
from penstock.partitions.partition import Partition
from penstock.partitions.stats import ROUND_BOUNDS_SECONDS, Histogram
from penstock.supervision import Supervision


class GroupCoordinator(NamedCoordinator[GroupShard]):
    """All groups whose partitions this node leads."""

    topic = OFFSETS_TOPIC
    what = "groups"

    def __init__(
        self,
        config: GroupSettings,
        leaders: Leaders,
        time: PatientClock,
        topics: Topics,
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
        if isinstance(request, (Join, Sync, Leave, ConsumerHeartbeat)):
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
