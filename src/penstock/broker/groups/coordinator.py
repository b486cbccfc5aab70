"""The shell around groups: it persists what they decide, then answers, and lets time pass for them.

A group belongs to the partition of ``__consumer_offsets`` that its name hashes to, and whoever leads that partition
coordinates it. On taking up leadership the log is read and applied; until then requests are told to wait. Changes are
applied as they are written and replies held until they are committed, so nobody hears of what could still be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.groups.group import Group, GroupConfig
from penstock.broker.groups.messages import (
    Commit,
    Join,
    JoinReply,
    MemberIdentity,
    Outcome,
    Rejected,
    Sync,
    SyncReply,
)
from penstock.broker.groups.records import OFFSETS_TOPIC, Change, StoredGroup, from_record, to_record
from penstock.broker.partition import Partition
from penstock.clock import Clock
from penstock.errors import (
    CoordinatorLoading,
    GroupError,
    GroupNotFound,
    InvalidGroupId,
    NotCoordinator,
    PenstockError,
)
from penstock.records import decode_records, encode_batch, parse_header

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.05
_EXPIRY_EVERY_TICKS: Final = 1_200


def shard_of(group_id: str, shards: int) -> int:
    """The partition a group belongs to, by Java's hash of its name, as in Kafka."""
    value = 0
    for char in group_id:
        value = (31 * value + ord(char)) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % shards


class GroupShard:
    """The groups of one partition of the offsets topic."""

    def __init__(self, partition: Partition, config: GroupConfig, clock: Clock, *, syncs: bool) -> None:
        self.partition = partition
        self._config = config
        self._clock = clock
        self._syncs = syncs
        self.groups: dict[str, Group] = {}
        self.is_loaded = False

    def read_log(self) -> dict[str, Group]:
        """Rebuild every group from the log. Runs in a thread; it changes nothing here."""
        groups: dict[str, Group] = {}
        stored: dict[str, StoredGroup | None] = {}
        for batch in self.partition.log.batches(self.partition.log.start_offset):
            data = memoryview(batch.read())
            if parse_header(data).is_control:
                continue
            for record in decode_records(data):
                change = from_record(record)
                group_id = change.key.group
                if isinstance(change.value, StoredGroup):
                    stored[group_id] = change.value
                elif change.value is None and group_id in stored and not hasattr(change.key, "topic"):
                    stored[group_id] = None
                groups.setdefault(group_id, Group(group_id, self._config)).apply(change)
        now_ms = self._clock.now_ms()
        for group_id, last in stored.items():
            if last is not None:
                groups[group_id].restore(last, now_ms)
            elif not groups[group_id].offsets:
                del groups[group_id]
        return groups

    def get(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise GroupNotFound(f"There is no group {group_id!r}.")
        return group

    def get_or_create(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._config)
        return group

    def perform(self, outcome: Outcome, done: Callable[[PenstockError | None], None] | None = None) -> None:
        """Persist and apply an outcome's changes, then send its replies and tell ``done``."""
        if not outcome.changes:
            _send(outcome, None)
            if done is not None:
                done(None)
            return

        def committed(error: PenstockError | None) -> None:
            _send(outcome, error)
            if done is not None:
                done(error)

        try:
            next_offset = self._append(outcome.changes)
        except PenstockError as error:
            committed(error)
            return
        for change in outcome.changes:
            self._apply(change)
        self.partition.when_committed(next_offset, committed)

    def _append(self, changes: list[Change]) -> int:
        now_ms = self._clock.now_ms()
        batch = encode_batch([to_record(change, at, now_ms) for at, change in enumerate(changes)])
        return self.partition.append(memoryview(batch), now_ms, is_durable=self._syncs).next_offset

    def _apply(self, change: Change) -> None:
        group = self.groups.get(change.key.group)
        if group is None:
            return
        group.apply(change)
        if change.value is None and not group.offsets and not group.members:
            self.groups.pop(group.id, None)

    def tick(self) -> None:
        now_ms = self._clock.now_ms()
        for group in tuple(self.groups.values()):
            outcome = group.tick(now_ms)
            if outcome.changes or outcome.replies:
                self.perform(outcome)

    def expire(self) -> None:
        """Forget offsets that nobody needs any more, and groups that never came to anything."""
        now_ms = self._clock.now_ms()
        for group in tuple(self.groups.values()):
            outcome = group.expire_offsets(now_ms)
            if outcome.changes:
                self.perform(outcome)
            elif group.is_forgettable:
                del self.groups[group.id]


def _send(outcome: Outcome, error: PenstockError | None) -> None:
    for reply, what in outcome.replies:
        if error is None:
            reply(what)
        else:
            reply(Rejected(error if isinstance(error, GroupError) else NotCoordinator(error.message)))


class GroupCoordinator:
    """All groups whose partitions this node leads."""

    def __init__(self, config: GroupConfig, clock: Clock, *, syncs: bool) -> None:
        self._config = config
        self._clock = clock
        self._syncs = syncs
        self._shards: dict[int, GroupShard] = {}
        self._shard_count: Callable[[], int] = lambda: 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, shard_count: Callable[[], int]) -> None:
        """Begin to tick; ``shard_count`` tells how many partitions the offsets topic has, 0 while there is none."""
        self._shard_count = shard_count
        self._spawn(self._tick_forever())

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick_forever(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            ticks += 1
            for shard in tuple(self._shards.values()):
                if not shard.is_loaded:
                    continue
                shard.tick()
                if ticks % _EXPIRY_EVERY_TICKS == 0:
                    shard.expire()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def on_leadership_gained(self, partition: Partition) -> None:
        if partition.id.topic == OFFSETS_TOPIC:
            shard = GroupShard(partition, self._config, self._clock, syncs=self._syncs)
            self._shards[partition.id.partition] = shard
            self._spawn(self._load(shard))

    def on_leadership_lost(self, partition: Partition) -> None:
        if partition.id.topic == OFFSETS_TOPIC:
            self._shards.pop(partition.id.partition, None)

    async def _load(self, shard: GroupShard) -> None:
        try:
            shard.groups = await asyncio.to_thread(shard.read_log)
        except PenstockError as error:
            log.error("The groups of %s cannot be read: %s", shard.partition.id, error.message)
            return
        shard.is_loaded = True

    def shard(self, group_id: str) -> GroupShard:
        """Where a group lives, if that is here and ready."""
        if not group_id:
            raise InvalidGroupId("A group id must not be empty.")
        count = self._shard_count()
        shard = self._shards.get(shard_of(group_id, count)) if count else None
        if shard is None:
            raise NotCoordinator(f"This node does not coordinate group {group_id!r}.")
        if not shard.is_loaded:
            raise CoordinatorLoading
        return shard

    @property
    def groups(self) -> list[Group]:
        """Every group coordinated here."""
        return [group for shard in self._shards.values() for group in shard.groups.values()]

    # -- requests -----------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: Join, reply: JoinReply) -> None:
        shard = self.shard(group_id)
        shard.perform(shard.get_or_create(group_id).join(request, self._clock.now_ms(), reply))

    def sync(self, group_id: str, request: Sync, reply: SyncReply) -> None:
        shard = self.shard(group_id)
        shard.perform(self._member_group(shard, group_id).sync(request, self._clock.now_ms(), reply))

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> None:
        shard = self.shard(group_id)
        self._member_group(shard, group_id).heartbeat(identity, self._clock.now_ms())

    async def leave(self, group_id: str, identity: MemberIdentity) -> None:
        shard = self.shard(group_id)
        await self._persisted(shard, self._member_group(shard, group_id).leave(identity, self._clock.now_ms()))

    async def commit(self, group_id: str, identity: MemberIdentity, commits: list[Commit]) -> None:
        """Remember offsets; returns once that is committed."""
        shard = self.shard(group_id)
        is_member = bool(identity.member_id) or identity.generation >= 0
        group = self._member_group(shard, group_id) if is_member else shard.get_or_create(group_id)
        await self._persisted(shard, group.commit(identity, commits, self._clock.now_ms()))

    async def delete(self, group_id: str) -> None:
        shard = self.shard(group_id)
        await self._persisted(shard, shard.get(group_id).delete())

    async def delete_offsets(self, group_id: str, partitions: list[tuple[str, int]]) -> None:
        shard = self.shard(group_id)
        await self._persisted(shard, shard.get(group_id).delete_offsets(partitions))

    def find(self, group_id: str) -> Group | None:
        """The group, or None where there is none."""
        return self.shard(group_id).groups.get(group_id)

    def _member_group(self, shard: GroupShard, group_id: str) -> Group:
        return shard.groups.get(group_id) or Group(group_id, self._config)  # an empty one knows no member

    async def _persisted(self, shard: GroupShard, outcome: Outcome) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        shard.perform(outcome, done)
        await future
