"""Replication on one node: what is led here is served to followers, what is led elsewhere is copied.

`Replicas` says which leader to follow; nothing here reads the metadata for that. Besides, there are background tasks:
one looks for followers that have fallen behind, one saves the watermarks for after a restart, and one handles damage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.network.port import Peers
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.damaged import DamagedReplicas
from penstock.partitions.replication.fetcher import Copying, Fetcher
from penstock.partitions.replication.messages import DURABLE, FETCH, NUDGE
from penstock.partitions.replication.proposals import Controller, InSyncProposals
from penstock.partitions.replication.serving import Serving
from penstock.partitions.stats import ReplicationStats
from penstock.partitions.throttle import Throttle
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_SAVE_EVERY_S: Final = 5.0
_CHECKS_IN_LAG: Final = 4  # how often it is looked for laggards in the time that they have


class Replication:
    """Both sides of it. Construct it before `Replicas.follow` is first called."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        peers: Peers,
        controller: Controller,
        clock: Clock,
        config: PartitionsConfig,
        stats: ReplicationStats,
        supervision: Supervision,
    ) -> None:
        self._supervision = supervision
        self._replicas = replicas
        self._peers = peers
        self._clock = clock
        self._lag_s = config.cluster.replica_lag_ms / 1000
        self._following_rate = config.cluster.replication_throttle_bytes
        throttle = Throttle(config.cluster.replication_throttle_bytes, clock.monotonic())
        self._copying = Copying(node_id, replicas, peers, clock, stats, throttle, supervision)
        self._fetchers: dict[int, Fetcher] = {}
        self._leaders: dict[Partition, int] = {}
        self.proposals = InSyncProposals(node_id, replicas, controller, clock, stats, supervision)
        self._damaged = DamagedReplicas(node_id, replicas, controller)
        self._serving = Serving(node_id, replicas, clock, stats, self.proposals.request)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_started = False
        replicas.fetcher = self

    def start(self) -> None:
        """Begin to serve and to copy, on the running loop."""
        self._is_started = True
        self._peers.serve(FETCH, self._serving.fetch)
        self._peers.serve(DURABLE, self._serving.kept)
        self._peers.serve(NUDGE, self._serving.nudge)
        for fetcher in self._fetchers.values():
            fetcher.start()
        start = self._supervision.start
        self._tasks = [
            start("watching followers", self._check_lag_forever),
            start("saving watermarks", self._save_watermarks_forever),
            start("handling damaged replicas", self._damaged.run),
        ]

    async def stop(self) -> None:
        """Copy and answer nothing more, and return once nothing of it is under way."""
        self._is_started = False
        self._replicas.fetcher = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))
        await self.proposals.stop()
        self._serving.close()
        await asyncio.gather(*self._copying.tasks, return_exceptions=True)  # threads work on files that are closed next

    # -- rates --------------------------------------------------------------------------------------------------------

    @property
    def rates(self) -> tuple[int, int]:
        """Bytes a second that replicas not in sync are copied at, as a follower and as a leader; 0 for any number."""
        return self._copying.throttle.rate, self._serving.throttle.rate

    def limit_following(self, bytes_per_second: int | None) -> None:
        """Copy no faster from now on; None goes back to what the settings say."""
        rate = self._following_rate if bytes_per_second is None else bytes_per_second
        self._copying.throttle.set_rate(rate, self._clock.monotonic())

    def limit_leading(self, bytes_per_second: int | None) -> None:
        """Send no faster from now on to replicas that are not in sync; None is as fast as can be."""
        self._serving.throttle.set_rate(bytes_per_second or 0, self._clock.monotonic())

    # -- as `Replicas` says -------------------------------------------------------------------------------------------

    def follow(self, partition: Partition, leader_id: int) -> None:
        if self._leaders.get(partition, leader_id) != leader_id:
            self.leave(partition)
        self._leaders[partition] = leader_id
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = Fetcher(leader_id, self._copying)
            if self._is_started:
                fetcher.start()
        fetcher.follow(partition)

    def leave(self, partition: Partition) -> None:
        leader_id = self._leaders.pop(partition, None)
        if leader_id is not None:
            self._fetchers[leader_id].leave(partition)

    def lag(self, partition: Partition) -> int | None:
        """How many offsets a copy is behind its leader; None where this node copies nothing."""
        leader_id = self._leaders.get(partition)
        return None if leader_id is None else self._fetchers[leader_id].lag(partition)

    # -- clocks -------------------------------------------------------------------------------------------------------

    async def _check_lag_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lag_s / _CHECKS_IN_LAG)
            now = self._clock.monotonic()
            for partition in self._replicas:
                followers = partition.followers
                if followers is not None and followers.check_lag(
                    partition.log.end_offset, partition.high_watermark, now
                ):
                    self.proposals.request(partition)

    async def _save_watermarks_forever(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            try:
                await self._replicas.save_watermarks()
            except PenstockError as error:
                log.warning("What is committed could not be noted: %s", error.message)
