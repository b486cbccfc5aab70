"""A quorum of real members in simulation: driver, store and formation, without the brokers above.

It is cheap, so many more seeds of it can be run than of whole clusters. What is proposed is a number; it has to be
applied on every node at the index that was told to who proposed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.cluster.raft.messages import Member
from penstock.cluster.records import MetadataRecord, ProducerIdsReserved
from penstock.errors import PenstockError
from penstock.quorum.driver import Quorum
from penstock.quorum.formation import Formation, Plan
from penstock.quorum.store import QuorumStore
from penstock.storage.data_directory import DataDirectory
from penstock.testing.simulation.cluster.faults import Faults
from penstock.testing.simulation.cluster.loop import SimulatedLoop
from penstock.testing.simulation.cluster.node import PORT, SimulatedNode, Unreachable, host_of
from penstock.testing.simulation.cluster.peers import SimulatedPeers
from penstock.testing.simulation.cluster.world import World

_FORMATION_MAX_S: Final = 15.0
_HEALING_MAX_S: Final = 20.0
_PATIENCE_S: Final = 2.0


class MemberNode(SimulatedNode[Quorum]):
    """A node whose process is a member of the quorum and nothing else."""

    def __init__(self, world: QuorumWorld, node_id: int, plan: Plan) -> None:
        super().__init__(world, node_id)
        self._quorum_world = world
        self._plan = plan
        self._formation: Formation | None = None

    async def begin(self, peers: SimulatedPeers) -> None:
        files = self.disk.files
        data = DataDirectory(files, Path(f"/{host_of(self.id)}"), self.id)
        store = QuorumStore.open(files, data.metadata, Member(self.id, data.identity.directory_id), self.clock)
        quorum = Quorum(
            store,
            peers,
            self.clock,
            Random(self.random.getrandbits(64)),
            snapshot_every=self._quorum_world.snapshot_every,
        )
        formation = Formation(quorum, peers, self._plan, Random(self.random.getrandbits(64)))
        quorum.listen(self._quorum_world.on_applied, _nothing, lambda leads: self._on_leading(quorum, leads))
        await formation.begin()
        self._formation = formation
        self.process = quorum

    def _on_leading(self, quorum: Quorum, leads: bool) -> None:
        if leads:
            self._quorum_world.on_leader(self.id, quorum.term)

    async def end(self, process: Quorum) -> None:
        if self._formation is not None:
            await self._formation.stop()
        await process.stop()


class QuorumWorld(World):
    """One history of a quorum."""

    nodes: dict[int, MemberNode]

    def __init__(self, seed: int, loop: SimulatedLoop, *, is_told: bool = False) -> None:
        super().__init__(seed, loop, is_told=is_told)
        self.snapshot_every = self.random.choice((20, 10_000))
        count = self.random.choice((3, 3, 3, 5, 1))
        first = {node_id: (host_of(node_id), PORT) for node_id in range(1, count + 1)}
        self.nodes = {
            node_id: MemberNode(self, node_id, Plan(first=first, address=first[node_id])) for node_id in first
        }
        self.faults = Faults(self)
        self._duration_s = self.random.choice((6.0, 12.0))
        self._applied: dict[int, Sequence[MetadataRecord]] = {}
        self._leaders: dict[int, int] = {}
        self._acked: dict[int, MetadataRecord] = {}

    async def live(self) -> None:
        for node in self.nodes.values():
            node.start()
        await self.until(self.not_ready, _FORMATION_MAX_S, "the nodes form no quorum")
        clients = [asyncio.ensure_future(self._propose_on(number)) for number in range(2)]
        await self.bounded(self.faults.run(self.loop.time() + self._duration_s), 600, "faults do not end")
        await self.bounded(self.faults.calm(), _HEALING_MAX_S, "nodes do not stop")
        await self.until(self.not_ready, _HEALING_MAX_S, "nodes do not start")
        acked = len(self._acked)
        await self.until(
            lambda: "" if len(self._acked) > acked + 3 else "nothing is committed", _HEALING_MAX_S, "no progress"
        )
        self.is_over = True
        await self.bounded(_all(clients), _HEALING_MAX_S, "who proposed is not answered")
        await self.until(self._not_level, _HEALING_MAX_S, "members do not catch up")
        for index, record in self._acked.items():
            if tuple(self._applied.get(index, ())) != (record,):
                self.history.violate("no acked write is lost", f"{record} was acknowledged at {index}")

    def can_lose(self, node: SimulatedNode[Any]) -> bool:
        """All have everything, and all are voters: then one disk may go."""
        if len(self.nodes) < 3 or self.not_ready() or self._not_level():
            return False
        members = [other.process.members for other in self.nodes.values() if other.process is not None]
        return node.is_ready and all(set(known.voters) == set(self.nodes) for known in members)

    def _not_level(self) -> str:
        reached = {node.id: node.process.applied_index for node in self.nodes.values() if node.process is not None}
        return "" if len(set(reached.values())) == 1 else f"applied {reached}"

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _propose_on(self, client: int) -> None:
        random = Random(self.random.getrandbits(64))
        number = 0
        while not self.is_over:
            await asyncio.sleep(random.random() * 0.1)
            number += 1
            record = ProducerIdsReserved(node_id=client, first_producer_id=number, next_producer_id=number)
            await self._propose(random.choice(list(self.nodes.values())), record)

    async def _propose(self, node: MemberNode, record: MetadataRecord) -> None:
        self.history.operations += 1

        async def work(quorum: Quorum) -> int:
            index = await quorum.propose([record])
            if tuple(self._applied.get(index, ())) != (record,):
                self.history.violate("no acked write is lost", f"{record} is not what was applied at {index}")
            return index

        try:
            async with asyncio.timeout(_PATIENCE_S):
                index = await node.ask(work)
        except (PenstockError, Unreachable, TimeoutError):
            return
        self.history.acked += 1
        self._acked[index] = record

    # -- oracles ------------------------------------------------------------------------------------------------------

    def on_applied(self, index: int, records: Sequence[MetadataRecord]) -> None:
        known = self._applied.setdefault(index, tuple(records))
        if known != tuple(records):
            self.history.violate("same metadata at the same index", f"{index} is {known} and {records}")

    def on_leader(self, node_id: int, term: int) -> None:
        known = self._leaders.setdefault(term, node_id)
        if known != node_id:
            self.history.violate("one leader an epoch", f"{known} and {node_id} lead the quorum in term {term}")


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        await task


def _nothing() -> None:
    return
