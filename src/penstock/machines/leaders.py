"""One way to ask: a request goes to the leader of a partition, on this node or another.

`ask` looks the leader up in the metadata and calls it; a call to this node itself is served directly. Leaders change,
and metadata reaches nodes one after the other, so a request that was refused before anything was done goes out again,
to the node that leads by then, until the deadline. A request whose answer was lost may have been done: it is sent again
only where that does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    CoordinatorLoading,
    FencedLeaderEpoch,
    LeaderNotAvailable,
    NodeStarting,
    NotCoordinator,
    NotLeader,
    OffsetNotAvailable,
    PeerNotReached,
    PeerUnavailable,
    RequestTimedOut,
    UnknownLeaderEpoch,
)
from penstock.network.port import CALL_TIMEOUT_S, Method, Peers, Received

PATIENCE_SECONDS: Final = 5.0  # a failover takes two to four
PAUSE_SECONDS: Final = 0.05

# Refused before anything was done.
REFUSED: Final = (
    NotCoordinator,
    CoordinatorLoading,
    NotLeader,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    LeaderNotAvailable,
    OffsetNotAvailable,
    NodeStarting,
    PeerNotReached,
)
# The request may have been done, or not.
UNSURE: Final = (*REFUSED, PeerUnavailable, RequestTimedOut)

T = TypeVar("T")
Where = tuple[str, int]


@lru_cache(maxsize=10_000)
def shard_of(name: str, shards: int) -> int:
    """The partition a name belongs to, by Java's hash of it, as in Kafka."""
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % shards


@dataclass(frozen=True, slots=True)
class Leaders:
    """This node among the others. The metadata here may be a moment old."""

    node_id: int
    metadata: ClusterMetadata
    peers: Peers
    clock: Clock

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition, -1 for none; `UnknownTopic` or `UnknownPartition` if it is gone."""
        return self.metadata.partition(topic, partition).leader

    def find_leader(self, topic: str, partition: int) -> int:
        """The same; `LeaderNotAvailable` if there is none now."""
        leader = self.leader_of(topic, partition)
        if leader == NO_LEADER:
            raise LeaderNotAvailable(f"{topic}-{partition} has no leader now. Try again in a moment.")
        return leader

    def shards_of(self, topic: str) -> int:
        """How many partitions a topic has, 0 if there is no such topic."""
        found = self.metadata.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def where(self, topic: str, name: str) -> Where | None:
        """The partition of a topic that keeps what has this name; None if there is no such topic."""
        shards = self.shards_of(topic)
        return (topic, shard_of(name, shards)) if shards else None

    def by_leader(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """Partitions by the node that leads each, in the order given; `NO_LEADER` also for those not known here."""
        known = self.metadata.topics.get(topic)
        count = 0 if known is None else len(known.partitions)
        found: dict[int, list[int]] = {}
        for partition in partitions:
            leader = known.partitions[partition].leader if known is not None and partition < count else NO_LEADER
            found.setdefault(leader, []).append(partition)
        return found

    @property
    def is_alone(self) -> bool:
        """Whether no other node can know what this one does not."""
        return len(self.metadata.nodes) <= 1

    async def ask(
        self,
        where: Where,
        method: Method[Any, Any],
        request: Any,
        *,
        repeats: bool = True,
        timeout_s: float = CALL_TIMEOUT_S,
        patience_s: float = PATIENCE_SECONDS,
    ) -> Received:
        """The answer of the partition's leader.

        ``repeats`` tells whether doing it twice does no harm. ``timeout_s`` is for one answer, ``patience_s`` for
        finding a leader that gives one. `UnknownTopic` or `UnknownPartition` if the partition is gone.
        """

        async def attempt(leader: int) -> Received:
            return await self.peers.call(leader, method, request, timeout_s=timeout_s)

        return await self.at_leader(partial(self.find_leader, *where), attempt, repeats=repeats, patience_s=patience_s)

    async def at_leader(
        self,
        find: Callable[[], int],
        attempt: Callable[[int], Awaitable[T]],
        *,
        repeats: bool,
        patience_s: float = PATIENCE_SECONDS,
    ) -> T:
        """What an attempt at the node that ``find`` names comes to.

        It is made again after each refusal and, if it ``repeats``, where it is not known whether it was done.
        """
        again = UNSURE if repeats else REFUSED
        deadline = self.clock.monotonic() + patience_s
        while True:
            try:
                return await attempt(find())
            except again:
                if self.clock.monotonic() + PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)
