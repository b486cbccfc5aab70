"""The shell around groups: shards follow the leadership of their partitions, time passes, requests find their shard.

A group belongs to the partition of ``__consumer_offsets`` that its name hashes to, and whoever leads that partition
coordinates it. On taking up leadership the log is read and applied; until then requests are told to wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import Any, Final

from penstock.broker.groups.config import GroupConfig
from penstock.broker.groups.group import Group
from penstock.broker.groups.journal import PartitionJournal
from penstock.broker.groups.messages import AnswerT, Join, Leave, MemberIdentity, Rejected, Request, Sync
from penstock.broker.groups.records import OFFSETS_TOPIC
from penstock.broker.groups.shard import GroupShard
from penstock.broker.partition import Partition
from penstock.clock import Clock
from penstock.errors import CoordinatorLoading, InvalidGroupId, NotCoordinator, PenstockError

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.05
_EXPIRY_EVERY_TICKS: Final = 12_000  # ten minutes, as in Kafka
_EXPIRY_APART_TICKS: Final = 20  # shards take turns, so that none of them is felt
_GAP_MAX_MS: Final = 1_000


@lru_cache(maxsize=10_000)
def shard_of(group_id: str, shards: int) -> int:
    """The partition a group belongs to, by Java's hash of its name, as in Kafka."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % shards


class PatientClock:
    """Time for sessions and rounds. It never jumps, and stands still while this node does: if we were away for a
    minute, nobody's heartbeat is a minute late.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticked_at = clock.monotonic()
        self._ticked_ms = 0.0

    def now_ms(self) -> int:
        return int(self._reach(self._clock.monotonic()))

    def tick(self) -> None:
        """To be called several times a second; a longer gap counts as a second."""
        now = self._clock.monotonic()
        self._ticked_ms = self._reach(now)
        self._ticked_at = now

    def _reach(self, now: float) -> float:
        return self._ticked_ms + min((now - self._ticked_at) * 1000, _GAP_MAX_MS)


class GroupCoordinator:
    """All groups whose partitions this node leads."""

    def __init__(self, config: GroupConfig, clock: Clock, *, syncs: bool) -> None:
        self._config = config
        self._clock = clock
        self._time = PatientClock(clock)
        self._syncs = syncs
        self._shards: dict[int, GroupShard] = {}
        self._shard_count: Callable[[], int] = lambda: 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, shard_count: Callable[[], int]) -> None:
        """Begin to tick; ``shard_count`` tells how many partitions the offsets topic has, 0 while there is none."""
        self._shard_count = shard_count
        self._spawn(self._tick_forever())

    async def stop(self) -> None:
        """Coordinate nothing any more; whoever waits is told so."""
        for index in tuple(self._shards):
            self._shards.pop(index).close(NotCoordinator("This node is stopping."))
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick_forever(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            ticks += 1
            self._time.tick()
            for index, shard in tuple(self._shards.items()):
                if not shard.is_ready:
                    continue
                try:
                    shard.tick()
                    if ticks % _EXPIRY_EVERY_TICKS == index * _EXPIRY_APART_TICKS % _EXPIRY_EVERY_TICKS:
                        shard.expire()
                except Exception:  # a bug in one group must not stop time for all others
                    log.exception("Time did not pass for the groups of shard %d.", index)

    # -- leadership ---------------------------------------------------------------------------------------------------

    def on_leadership_gained(self, partition: Partition) -> None:
        if partition.id.topic == OFFSETS_TOPIC:
            journal = PartitionJournal(partition, syncs=self._syncs)
            soon = asyncio.get_running_loop().call_soon
            shard = GroupShard(journal, self._config, self._time.now_ms, self._clock.now_ms, soon)
            self._shards[partition.id.partition] = shard
            self._spawn(self._load(shard, partition))

    def on_leadership_lost(self, partition: Partition) -> None:
        if partition.id.topic == OFFSETS_TOPIC and partition.id.partition in self._shards:
            lost = NotCoordinator(f"This node no longer leads {partition.id}.")
            self._shards.pop(partition.id.partition).close(lost)

    async def _load(self, shard: GroupShard, partition: Partition) -> None:
        try:
            shard.open(await asyncio.to_thread(shard.read_log))
        except PenstockError as error:
            log.error("The groups of %s cannot be read: %s", partition.id, error.message)
            shard.close(error)
        except Exception:
            log.exception("The groups of %s cannot be read.", partition.id)
            shard.close(NotCoordinator(f"The groups of {partition.id} cannot be read."))

    def _shard(self, group_id: str) -> GroupShard:
        count = self._shard_count()
        shard = self._shards.get(shard_of(group_id, count)) if count else None
        if shard is None:
            raise NotCoordinator(f"This node does not coordinate group {group_id!r}.")
        shard.check()
        return shard

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, group_id: str, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, as soon as it holds; a `GroupError` if it is refused."""
        if isinstance(request, (Join, Sync, Leave)):
            _check_group_id(group_id)
        future: asyncio.Future[AnswerT | Rejected] = asyncio.get_running_loop().create_future()
        self._shard(group_id).ask(group_id, request, partial(_resolve, future))
        answer = await future
        if isinstance(answer, Rejected):
            raise answer.error
        return answer

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> None:
        """Note that a member is alive; it hears by an error if it has to join again."""
        _check_group_id(group_id)
        self._shard(group_id).heartbeat(group_id, identity)

    def find(self, group_id: str) -> Group | None:
        """The group as it is at this moment, or None where there is none."""
        return self._shard(group_id).groups.get(group_id)

    async def settled(self, group_id: str) -> None:
        """Return once all that could be seen of the group at the time of this call is committed."""
        future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        self._shard(group_id).when_settled(partial(_resolve, future))
        error = await future
        if error is not None:
            raise NotCoordinator(error.message)

    def all_groups(self) -> list[Group]:
        """Every group coordinated here; `CoordinatorLoading` while some are not known yet."""
        if any(shard.is_loading for shard in self._shards.values()):
            raise CoordinatorLoading
        return [group for shard in self._shards.values() for group in shard.groups.values()]


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("A group id must not be empty.")


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    """Answer once; who asked may be gone by then."""
    if not future.done():
        future.set_result(value)
