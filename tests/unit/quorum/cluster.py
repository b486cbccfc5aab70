"""Members of a quorum on one event loop, each with a disk of its own in memory.

The loop is one of virtual time for most tests, so that they do not hang on how fast the machine is. Those that are
about real threads and real time run on a real one, and take it as it comes who leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

from tests.support.peers import PeerExchange

from penstock.clock import Clock, SystemClock
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.formation import Formation, FormationPlan
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.raft.leading import RaftTiming
from penstock.consensus.raft.messages import Member, Members
from penstock.consensus.records import ClusterCreated, MetadataRecord, ProducerIdsReserved
from penstock.errors import ControllerUnavailable, NotController
from penstock.supervision import Supervision
from penstock.testing.clock import SimulatedClock
from penstock.testing.files import MemoryFiles
from penstock.testing.loop import SimulatedLoop, simulated_loop

QUICK = RaftTiming(election_ms=100, heartbeat_ms=20, piece_bytes=64)
PATIENT = RaftTiming(election_ms=60_000, heartbeat_ms=20)
DIRECTORY = Path("/data/metadata")


def run(story: Coroutine[Any, Any, None], *, is_real: bool = False, limit_s: float = 60.0) -> None:
    """Run on virtual time, however slow the machine is; or on a real loop, with real threads."""

    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await story

    if is_real:
        asyncio.run(limited())
        return
    with simulated_loop(Random(1)) as loop:
        loop.run_until_complete(limited())
        assert not loop.failures


async def until(is_so: Callable[[], object], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110  (anything may make it so)
            await asyncio.sleep(0.005)


class Node:
    """A node with its disk; `start` it, `kill` it, and start it again."""

    def __init__(
        self,
        exchange: PeerExchange,
        node_id: int,
        plan: FormationPlan,
        *,
        pace: RaftTiming = QUICK,
        snapshot_every: int = 10_000,
    ) -> None:
        self.exchange = exchange
        self.pace = pace
        self.id = node_id
        self.plan = plan
        self.snapshot_every = snapshot_every
        self.lives = 0
        self.disks = 1
        self.files = MemoryFiles(seed=node_id)
        self.heard: list[object] = []
        self.quorum: Quorum
        self.formation: Formation

    @property
    def member(self) -> Member:
        return Member(self.id, f"disk-{self.id}-{self.disks}")

    def build(self) -> None:
        self.lives += 1
        loop = asyncio.get_running_loop()
        clock: Clock = SimulatedClock(loop) if isinstance(loop, SimulatedLoop) else SystemClock()
        another = f"{self.member.directory_id}-again-{self.lives}"
        replace_id = (lambda: another) if self.plan.has_others(self.id) else None
        store = QuorumStore.open(self.files, DIRECTORY, self.member, clock, replace_id=replace_id)
        peers = self.exchange.join(self.id)
        random = Random(self.id * 1000 + self.lives)
        self.quorum = Quorum(store, peers, clock, random, self.pace, snapshot_every=self.snapshot_every)
        self.formation = Formation(self.quorum, peers, self.plan, random, clock, Supervision(clock))
        self.heard = []
        self.quorum.listen(
            lambda index, records: self.heard.append((index, list(records))),
            lambda: self.heard.append("reset"),
            lambda is_leading: self.heard.append(is_leading),
        )

    async def start(self) -> None:
        self.build()
        await self.formation.begin()

    async def stop(self) -> None:
        await self.formation.stop()
        await self.quorum.stop()

    async def kill(self) -> None:
        """The power goes: nothing more is written, said or done, and what was not synced is lost in part."""
        if not isinstance(asyncio.get_running_loop(), SimulatedLoop):
            self.files.crash_at = self.files.steps + 1  # also in the middle of a write
        self.exchange.leave(self.exchange.nodes[self.id])
        await self.formation.stop()
        quorum = self.quorum
        quorum._is_stopping = True
        if quorum._timer is not None:
            quorum._timer.cancel()
        quorum._has_work.set()
        if quorum._writer is not None:
            await asyncio.gather(quorum._writer, return_exceptions=True)
        self.files.crash()

    def wipe(self) -> None:
        self.disks += 1
        self.files = MemoryFiles(seed=self.id * 100 + self.disks)


class Cluster:
    """Nodes that were told of each other, and any that come later."""

    def __init__(self, size: int, *, pace: RaftTiming = QUICK, snapshot_every: int = 10_000) -> None:
        self.exchange = PeerExchange()
        self.pace = pace
        self.snapshot_every = snapshot_every
        self.first = {node_id: ("memory", node_id) for node_id in range(1, size + 1)}
        self.nodes: dict[int, Node] = {}
        self.proposed = 0
        for node_id in self.first:
            self.add(node_id, FormationPlan(first=self.first, address=("memory", node_id)))

    def add(self, node_id: int, plan: FormationPlan) -> Node:
        self.nodes[node_id] = Node(self.exchange, node_id, plan, pace=self.pace, snapshot_every=self.snapshot_every)
        return self.nodes[node_id]

    def add_joiner(self, node_id: int, by: int) -> Node:
        return self.add(node_id, FormationPlan(join=("memory", by), address=("memory", node_id)))

    async def start(self) -> Node:
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        return await self.leader()

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.exchange.nodes):
            await self.nodes[node_id].stop()
            self.exchange.leave(self.exchange.nodes[node_id])

    def here(self) -> list[Node]:
        return [self.nodes[node_id] for node_id in sorted(self.exchange.nodes)]

    async def leader(self, *, but: int | None = None) -> Node:
        """Who leads in the latest term, once somebody does."""
        found: list[Node] = []

        def look() -> bool:
            found[:] = [node for node in self.here() if node.quorum.is_leader and node.id != but]
            return bool(found)

        await until(look)
        return max(found, key=lambda node: node.quorum.term)

    async def propose(self) -> int:
        """Have something committed, whoever leads."""
        self.proposed += 1
        number = self.proposed
        return await self.decide(ProducerIdsReserved(node_id=1, first_producer_id=number, next_producer_id=number))

    async def decide(self, record: MetadataRecord) -> int:
        """Have a record committed, whoever leads."""
        while True:
            leader = await self.leader()
            try:
                return await leader.quorum.propose([record])
            except (NotController, ControllerUnavailable):
                await asyncio.sleep(0.01)

    async def agree(self) -> None:
        """Wait until everybody who is here has applied the same."""
        index = await self.propose()
        await until(lambda: all(node.quorum.applied_index >= index for node in self.here()))
        states = [node.quorum.metadata.to_records() for node in self.here()]
        assert all(state == states[0] for state in states)

    def isolate(self, node_id: int) -> None:
        for other in self.nodes:
            if other != node_id:
                self.exchange.cut(node_id, other, is_noticed=False)


def cluster_id(text: str) -> ClusterCreated:
    return ClusterCreated(cluster_id=text)


def voters(*node_ids: int) -> Members:
    return Members({node_id: f"disk-{node_id}-1" for node_id in node_ids})
