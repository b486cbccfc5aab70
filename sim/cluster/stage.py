"""A cluster that does what a story says, step by step, with everything that simulation watches over.

There is one topic with replicas on nodes 1 to 3, or on 1 and 2, led by node 1; there are five nodes where the quorum
has to survive the loss of two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from penstock.broker.broker import Broker
from penstock.consensus.commands import Command, TransferControl
from penstock.consensus.records import PartitionAssigned
from penstock.errors import PenstockError
from penstock.testing.loop import SimulatedLoop
from sim.cluster.clients import Producer
from sim.cluster.history import Place
from sim.cluster.seeds import live_through
from sim.cluster.simulation import BrokerNode, Shape, Simulation
from sim.cluster.world import Unreachable

PLACE: Final[Place] = ("alpha", 0)
PATIENCE_S: Final = 15.0
_LAG_MS: Final = 600
OF_THREE: Final = Shape(
    nodes=3,
    places=(PLACE,),
    replication_factor=3,
    min_insync_replicas=2,
    duration_s=1.0,
    producers=1,
    transactors=0,
    committers=0,
    assignment=((1, 2, 3),),
    replica_lag_ms=_LAG_MS,
    session_ms=4_000,
)
PATIENT: Final = replace(OF_THREE, session_ms=40_000)
OF_FIVE: Final = replace(OF_THREE, nodes=5, session_ms=6_000)
OF_TWO: Final = replace(OF_FIVE, replication_factor=2, assignment=((1, 2),))  # with three others for the quorum


class BrokenPromise(AssertionError):
    """A story did not end as it has to."""


class Stage(Simulation):
    """A cluster that does what a story says."""

    def __init__(self, loop: SimulatedLoop, script: Callable[[Stage], Awaitable[None]], shape: Shape) -> None:
        super().__init__(1, loop, shape=shape, is_told=True)
        self._script = script
        self.faults.kinds = []
        self.producer = Producer(self, "producer", [PLACE])
        self.other_producer = Producer(self, "other", [PLACE])

    async def play(self) -> None:
        """The story itself, between a good beginning and a good end."""
        await self._script(self)

    # -- what stories do ----------------------------------------------------------------------------------------------

    def assigned(self) -> PartitionAssigned:
        """The partition as the latest metadata says."""
        return self.oracles.assigned(PLACE)

    async def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        await self.until(lambda: "" if condition() else "not yet", PATIENCE_S, what)

    async def in_sync(self, *node_ids: int) -> None:
        await self.wait_for(lambda: set(self.assigned().in_sync) == set(node_ids), f"{node_ids} are not in sync")

    async def led_by(self, node_id: int) -> None:
        await self.wait_for(lambda: self.assigned().leader == node_id, f"node {node_id} does not lead")
        await self.wait_for(
            lambda: self._leads_here(self.nodes[node_id]), f"node {node_id} does not know that it leads"
        )

    def _leads_here(self, node: BrokerNode) -> bool:
        broker = node.broker
        return broker is not None and broker.replicas.has(*PLACE) and broker.replicas.get(*PLACE).is_leader

    async def controlled_by(self, node_id: int) -> None:
        """Have a node lead the quorum."""

        def leads() -> bool:
            broker = self.nodes[node_id].broker
            return broker is not None and broker.quorum.is_leader

        while not leads():
            await self.order(TransferControl(node_id=node_id))

    async def order(self, command: Command) -> None:
        """Have the controller do something, as an operator does."""

        async def submit(broker: Broker) -> None:
            await broker.controller.submit(command)

        while True:
            for node in self.nodes.values():
                try:
                    await node.ask(submit)
                except (PenstockError, Unreachable):
                    await asyncio.sleep(0.1)
                else:
                    return

    def end_of(self, node_id: int) -> int:
        """Where a node's log ends."""
        broker = self.nodes[node_id].broker
        return -1 if broker is None else broker.replicas.get(*PLACE).log.end_offset

    def follows(self, node_id: int) -> int:
        """Whom a node copies from, as far as it knows itself."""
        broker = self.nodes[node_id].broker
        assigned = None if broker is None else broker.metadata.partition(*PLACE)
        return -1 if assigned is None else assigned.leader

    def maximal(self) -> tuple[int, ...]:
        """Who is in sync or may be soon, as far as node 1 knows, which leads."""
        broker = self.nodes[1].broker
        followers = None if broker is None else broker.replicas.get(*PLACE).followers
        return () if followers is None else followers.maximal

    def epoch_of(self, node_id: int) -> int | None:
        """The life in which the controller has let a node in; None while it is fenced."""
        broker = self.nodes[4].broker
        node = None if broker is None else broker.metadata.nodes.get(node_id)
        return None if node is None or node.is_fenced else node.epoch

    def is_let_in(self, node_id: int) -> bool:
        return self.epoch_of(node_id) is not None

    def cut_off(self, node_id: int, *others: int) -> None:
        self.network.split([node_id], others)

    async def write(self, count: int = 1) -> None:
        """Have messages acknowledged."""
        for _ in range(count):
            await self.bounded(self.producer.write_everywhere(), PATIENCE_S, "a write is not acknowledged")

    def try_to_write(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.producer.write_everywhere())

    async def look_for(self, seconds: float) -> None:
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            await self.look()


def tell(script: Callable[[Stage], Awaitable[None]], shape: Shape = OF_THREE) -> None:
    """Play a story; `BrokenPromise` if it goes wrong."""
    result = live_through(1, lambda loop: Stage(loop, script, shape))
    if result.violations:
        told = "\n".join(result.lines[-30:])
        raise BrokenPromise(f"{result.violation}\n{told}")
