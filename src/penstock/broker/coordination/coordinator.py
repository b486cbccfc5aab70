"""The shell around shards: they follow the leadership of their partitions, time passes, requests find their shard.

What is coordinated belongs to the partition of an internal topic that its name hashes to, and whoever leads that
partition coordinates it. On taking up leadership the log is read and applied; until then requests are told to wait.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache, partial
from math import inf
from typing import Any, Final, Generic, TypeVar

from penstock.broker.coordination.errands import Errands
from penstock.broker.coordination.loading import read_when_sound
from penstock.broker.coordination.messages import AnswerT, Rejected, Request
from penstock.broker.coordination.shard import Shard
from penstock.broker.partition import Partition
from penstock.clock import Clock
from penstock.errors import CoordinatorLoading, NotCoordinator, PenstockError

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.05
_TICK_SECONDS_MIN: Final = 0.005
_EXPIRY_EVERY_SECONDS: Final = 600.0  # as in Kafka
_EXPIRY_APART_SECONDS: Final = 1.0  # shards take turns, so that none of them is felt
_GAP_MAX_MS: Final = 1_000
# Most logs are read in a few milliseconds, and a client that is sent away stays away for a tenth of a second or more.
_LOADING_LOOKS: Final = 200
_LOADING_PAUSE_SECONDS: Final = 0.01


@lru_cache(maxsize=10_000)
def shard_of(name: str, shards: int) -> int:
    """The partition a name belongs to, by Java's hash of it, as in Kafka."""
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % shards


class PatientClock:
    """Time for sessions, rounds and transactions. It never jumps, and stands still while this node does: if we were
    away for a minute, nobody's heartbeat is a minute late.
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


ShardT = TypeVar("ShardT", bound=Shard[Any, Any])


class Coordinator(ABC, Generic[ShardT]):
    """All that is coordinated on this node of one kind: the shards whose partitions it leads."""

    topic: str  # whose partitions they are
    what: str  # the kind, for messages

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time = PatientClock(clock)
        self._shards: dict[int, ShardT] = {}
        self._shard_count: Callable[[], int] = lambda: 0
        self._errands = Errands()

    @abstractmethod
    def make_shard(self, partition: Partition) -> ShardT:
        """A shard that has yet to read the log of its partition."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, shard_count: Callable[[], int]) -> None:
        """Begin to tick; ``shard_count`` tells how many partitions the topic has, 0 while there is none."""
        self._shard_count = shard_count
        self._errands.spawn(self._tick_forever())

    async def stop(self) -> None:
        """Coordinate nothing any more; whoever waits is told so."""
        for index in tuple(self._shards):
            self._shards.pop(index).close(NotCoordinator("This node is stopping."))
        await self._errands.stop()

    async def _tick_forever(self) -> None:
        """Look at the clock several times a second, and at the very moment for which the next thing is due."""
        expiries: dict[int, float] = {}
        while True:
            await asyncio.sleep(self._until_next_s())
            self._time.tick()
            now_s = self._time.now_ms() / 1000
            for index, shard in tuple(self._shards.items()):
                if not shard.is_ready:
                    continue
                try:
                    shard.tick()
                    first_s = now_s + _EXPIRY_EVERY_SECONDS + index * _EXPIRY_APART_SECONDS
                    if now_s >= expiries.setdefault(index, first_s):
                        expiries[index] = now_s + _EXPIRY_EVERY_SECONDS
                        shard.expire()
                except Exception:  # a bug in one machine must not stop time for all others
                    log.exception("Time did not pass for the %ss of shard %d.", self.what, index)

    def _until_next_s(self) -> float:
        """How long to sleep: a tick, or less if a session or a round ends before."""
        due_ms = min((shard.wake_ms for shard in self._shards.values() if shard.is_ready), default=inf)
        return min(_TICK_SECONDS, max(_TICK_SECONDS_MIN, (due_ms - self._time.now_ms()) / 1000))

    # -- leadership ---------------------------------------------------------------------------------------------------

    def on_leadership_gained(self, partition: Partition) -> None:
        if partition.id.topic == self.topic:
            self.on_leadership_lost(partition)  # of an earlier epoch: its memory is not this one's
            shard = self._shards[partition.id.partition] = self.make_shard(partition)
            self._errands.spawn(self._load(shard, partition))

    def on_leadership_lost(self, partition: Partition) -> None:
        if partition.id.topic == self.topic and partition.id.partition in self._shards:
            lost = NotCoordinator(f"This node no longer leads {partition.id}.")
            self._shards.pop(partition.id.partition).close(lost)

    async def _load(self, shard: ShardT, partition: Partition) -> None:
        def is_wanted() -> bool:
            return self._shards.get(partition.id.partition) is shard

        try:
            machines = await read_when_sound(shard.read_log, is_wanted, f"{self.what}s of {partition.id}")
            if machines is not None:
                shard.open(machines)
        except PenstockError as error:
            log.error("The %ss of %s cannot be read: %s", self.what, partition.id, error.message)
            shard.close(error)
        except Exception:
            log.exception("The %ss of %s cannot be read.", self.what, partition.id)
            shard.close(NotCoordinator(f"The {self.what}s of {partition.id} cannot be read."))

    # -- requests -----------------------------------------------------------------------------------------------------

    def shard(self, name: str) -> ShardT:
        """The shard that a name belongs to, ready to be asked."""
        count = self._shard_count()
        shard = self._shards.get(shard_of(name, count)) if count else None
        if shard is None:
            raise NotCoordinator(f"This node does not coordinate {self.what} {name!r}.")
        shard.check()
        return shard

    async def await_shard(self, name: str) -> None:
        """Give the shard that a name belongs to a moment to read its log, if it is at it."""
        for _ in range(_LOADING_LOOKS):
            try:
                self.shard(name)
            except CoordinatorLoading:
                await asyncio.sleep(_LOADING_PAUSE_SECONDS)
            except NotCoordinator:
                return  # whoever asks will hear so
            else:
                return

    def loaded_shards(self) -> list[ShardT]:
        """Every shard; `CoordinatorLoading` while one of them does not know everything yet."""
        if any(shard.is_loading for shard in self._shards.values()):
            raise CoordinatorLoading
        return list(self._shards.values())

    async def ask(self, name: str, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, as soon as it holds; an error if it is refused."""
        future: asyncio.Future[AnswerT | Rejected] = asyncio.get_running_loop().create_future()
        self.shard(name).ask(name, request, partial(resolve, future))
        answer = await future
        if isinstance(answer, Rejected):
            raise answer.error
        return answer

    async def settled(self, name: str) -> None:
        """Return once all that could be seen under that name at the time of this call is committed."""
        future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        self.shard(name).when_settled(partial(resolve, future))
        error = await future
        if error is not None:
            raise NotCoordinator(error.message)


def resolve(future: asyncio.Future[Any], value: object) -> None:
    """Answer once; who asked may be gone by then."""
    if not future.done():
        future.set_result(value)
