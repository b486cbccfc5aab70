"""Shards where they are led: they follow the leadership of their partitions, are woken in time, and are found by key.

A feature keeps its state in the partitions of an internal topic. On taking up leadership of one, this node reads its
log and applies it; until then requests are told to wait. Each open shard has one alarm, set for its next deadline, and
gets a turn of upkeep every second.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock.clock import Clock
from penstock.errors import CoordinatorLoading, DamagedRecords, NotCoordinator, PenstockError
from penstock.machines.background_tasks import BackgroundTasks
from penstock.machines.clocks import Alarm, PatientClock
from penstock.machines.leaders import Leaders, shard_of
from penstock.machines.messages import AnswerT, Request
from penstock.machines.shard import Shard
from penstock.partitions.partition import Partition
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_EXPIRY_EVERY_SECONDS: Final = 600.0  # as in Kafka
_EXPIRY_APART_SECONDS: Final = 1.0  # shards take turns, so that none of them is felt
# Most logs are read in a few milliseconds, and a client that is sent away stays away for a tenth of a second or more.
_LOADING_CHECKS: Final = 200
_LOADING_PAUSE_SECONDS: Final = 0.01
_DAMAGED_PAUSE_SECONDS: Final = 0.25

KeyT = TypeVar("KeyT", bound=Hashable)
ShardT = TypeVar("ShardT", bound=Shard[Any, Any])
StateT = TypeVar("StateT")


class Coordinator(ABC, Generic[KeyT, ShardT]):
    """The shards of one feature whose partitions this node leads."""

    what: str  # the kind of state, in the plural, for messages
    alarm_soon_ms: int = 0
    alarm_far_ms: int = 3_600_000
    reads_at_once: int | None = None  # logs; None for as many as there are

    def __init__(self, clock: Clock, supervision: Supervision) -> None:
        self._clock = clock
        self._shards: dict[KeyT, ShardT] = {}
        self.background = BackgroundTasks(self.what, supervision)
        self._reading = None if self.reads_at_once is None else asyncio.Semaphore(self.reads_at_once)

    @property
    def supervision(self) -> Supervision:
        return self.background.supervision

    def __iter__(self) -> Iterator[ShardT]:
        """Every shard that can be asked."""
        return iter([shard for shard in self._shards.values() if shard.is_ready])

    # -- what they are ------------------------------------------------------------------------------------------------

    @abstractmethod
    def key_of(self, partition: Partition) -> KeyT | None:
        """The key of the shard that a partition keeps; None if it keeps none of this feature."""

    @abstractmethod
    def make_shard(self, partition: Partition) -> ShardT:
        """A shard that has yet to read the log of its partition."""

    def on_opened(self, shard: ShardT) -> None:
        """A shard has read its log and can be asked now."""

    def on_lost(self, key: KeyT, shard: ShardT | None) -> None:
        """A partition is no longer led here; ``shard`` is what there was of it, about to be closed."""

    async def upkeep(self, shard: ShardT) -> None:
        """What a shard needs about once a second and no caller waits for."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.background.keep_up(self, self.upkeep)

    async def stop(self) -> None:
        """Coordinate nothing any more; callers that wait are told so."""
        for key in tuple(self._shards):
            self._shards.pop(key).close(NotCoordinator("This node is stopping."))
        await self.background.stop()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def on_leadership_gained(self, partition: Partition) -> None:
        key = self.key_of(partition)
        if key is None or self.background.has_stopped:
            return
        self.on_leadership_lost(partition)  # of an earlier epoch: its memory is not this one's
        shard = self._shards[key] = self.make_shard(partition)
        self.background.spawn(self._load(key, shard, str(partition.id)))

    def on_leadership_lost(self, partition: Partition) -> None:
        key = self.key_of(partition)
        if key is None:
            return
        shard = self._shards.pop(key, None)
        self.on_lost(key, shard)
        if shard is not None:
            shard.close(NotCoordinator(f"This node no longer leads {partition.id}."))

    async def _load(self, key: KeyT, shard: ShardT, name: str) -> None:
        try:
            machines = await self._read(shard, lambda: self._shards.get(key) is shard, name)
            if machines is not None:
                shard.on_bug = partial(self.supervision.note, f"time of {self.what}")
                shard.alarm = Alarm(shard.now_ms, shard.tick, soon_ms=self.alarm_soon_ms, far_ms=self.alarm_far_ms)
                shard.open(machines)
                if shard.is_ready:
                    self.on_opened(shard)
        except PenstockError as error:
            log.error("The %s of %s cannot be read: %s", self.what, name, error.message)
            shard.close(error)
        except Exception:
            log.exception("The %s of %s cannot be read.", self.what, name)
            shard.close(NotCoordinator(f"The {self.what} of {name} cannot be read."))

    async def _read(self, shard: ShardT, is_wanted: Callable[[], bool], name: str) -> dict[str, Any] | None:
        if self._reading is None:
            return await read_when_sound(shard.read_log, is_wanted, f"{self.what} of {name}")
        async with self._reading:
            return await read_when_sound(shard.read_log, is_wanted, f"{self.what} of {name}")

    # -- finding ------------------------------------------------------------------------------------------------------

    def shard_at(self, key: KeyT) -> ShardT:
        """The shard, ready to be asked; `NotCoordinator` or `CoordinatorLoading` otherwise."""
        shard = self._shards.get(key)
        if shard is None:
            raise NotCoordinator(f"This node does not lead the {self.what} of {_shown(key)}.")
        shard.check()
        return shard

    async def await_shard_at(self, key: KeyT) -> ShardT:
        """The same, giving it a moment to read its log if it is at it."""
        for _ in range(_LOADING_CHECKS):
            try:
                return self.shard_at(key)
            except CoordinatorLoading:
                await asyncio.sleep(_LOADING_PAUSE_SECONDS)
        return self.shard_at(key)

    def is_loading(self, key: KeyT) -> bool:
        """Whether the log of a shard is being read here just now."""
        shard = self._shards.get(key)
        return shard is not None and shard.is_loading

    def loaded_shards(self) -> list[ShardT]:
        """Every shard; `CoordinatorLoading` while one of them does not know everything yet."""
        if any(shard.is_loading for shard in self._shards.values()):
            raise CoordinatorLoading
        return list(self._shards.values())


class NamedCoordinator(Coordinator[int, ShardT]):
    """A feature whose machines have names: each belongs to the partition that its name hashes to."""

    topic: str  # whose partitions they are
    alarm_soon_ms = 5  # a machine may want to be woken after each request

    def __init__(self, leaders: Leaders, time: PatientClock, supervision: Supervision) -> None:
        super().__init__(leaders.clock, supervision)
        self._leaders = leaders
        self._time = time
        self._expiries: dict[int, float] = {}

    @property
    def shard_count(self) -> int:
        """How many partitions the topic has, 0 while there is none."""
        return self._leaders.shards_of(self.topic)

    def key_of(self, partition: Partition) -> int | None:
        return partition.id.partition if partition.id.topic == self.topic else None

    async def upkeep(self, shard: ShardT) -> None:
        """Have machines that are of no use any more forgotten, every ten minutes."""
        now_s = self._time.now_ms() / 1000
        for index, found in tuple(self._shards.items()):
            if found is shard:
                first_s = now_s + _EXPIRY_EVERY_SECONDS + index * _EXPIRY_APART_SECONDS
                if now_s >= self._expiries.setdefault(index, first_s):
                    self._expiries[index] = now_s + _EXPIRY_EVERY_SECONDS
                    shard.expire()

    def shard(self, name: str) -> ShardT:
        """The shard that a name belongs to, ready to be asked."""
        count = self.shard_count
        shard = self._shards.get(shard_of(name, count)) if count else None
        if shard is None:
            raise NotCoordinator(f"This node does not coordinate the {self.what} of {name!r}.")
        shard.check()
        return shard

    async def await_shard(self, name: str) -> None:
        """Give the shard that a name belongs to a moment to read its log, if it is at it."""
        for _ in range(_LOADING_CHECKS):
            try:
                self.shard(name)
            except CoordinatorLoading:
                await asyncio.sleep(_LOADING_PAUSE_SECONDS)
            except NotCoordinator:
                return  # the caller will hear so
            else:
                return

    async def ask(self, name: str, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, as soon as it holds; an error if it is refused."""
        return await self.shard(name).request(name, request)

    async def settled(self, name: str) -> None:
        """Return once all that could be seen under that name at the time of this call is committed."""
        shard = self.shard(name)
        try:
            await shard.settled()
        except PenstockError as error:
            raise NotCoordinator(error.message) from error


# The coordinators that keep names in each internal topic.
Coordinators = Mapping[str, Iterable[NamedCoordinator[Any]]]


async def read_when_sound(read: Callable[[], StateT], is_wanted: Callable[[], bool], what: str) -> StateT | None:
    """What ``read`` finds, in a thread, once it meets no damage; None if it is not wanted any more.

    A state that was rebuilt without some of its changes is wrong in ways that no client can see. So a damaged log is
    not replayed: the node waits until a sound replica leads, which ends the wait here, or until the cluster has found
    that no replica has the records, which is logged and shown with the topic.
    """
    is_logged = False
    while True:
        try:
            return await asyncio.to_thread(read)
        except DamagedRecords as error:
            if not is_logged:
                is_logged = True
                log.error("The %s cannot be read yet: %s", what, error.message)
        await asyncio.sleep(_DAMAGED_PAUSE_SECONDS)
        if not is_wanted():
            return None


def _shown(key: object) -> str:
    return "-".join(map(str, key)) if isinstance(key, tuple) else f"shard {key}"
