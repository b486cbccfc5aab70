"""What operators do to a cluster while it works, together with the faults that just happen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.broker import Broker
from penstock.consensus.commands import (
    Command,
    CreateTopic,
    DrainNode,
    ElectLeaders,
    Move,
    Reassign,
    Rebalance,
    TransferControl,
)
from penstock.errors import PenstockError
from sim.cluster.faults import KINDS, Act, Faults, Node
from sim.cluster.history import Place
from sim.cluster.world import Unreachable

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation

_NODES_MAX: Final = 5


class ClusterFaults(Faults):
    """Faults of a cluster of brokers."""

    def __init__(self, simulation: Simulation, places: Sequence[Place]) -> None:
        super().__init__(simulation, {**KINDS, **OPERATIONS})
        self._simulation = simulation
        self._places = places

    def _submit(self, node: Node, command: Command) -> None:
        async def submit(broker: Broker) -> None:
            await broker.controller.submit(command)

        async def ask() -> None:
            try:
                await node.ask(submit)
            except (PenstockError, Unreachable) as error:
                self._history.note(f"operator: {type(command).__name__}: {type(error).__name__}")

        self._under_way.append(asyncio.ensure_future(ask()))

    def reassign(self, node: Node) -> str:
        topic, partition = self.random.choice(self._places)
        ids = list(self._world.nodes)
        replicas = tuple(self.random.sample(ids, min(len(ids), self.random.choice((2, 3, 3)))))
        self._submit(node, Reassign(moves=(Move(topic=topic, partition=partition, replicas=replicas),)))
        return f"{topic}-{partition} to {replicas}"

    def elect(self, node: Node) -> str:
        self._submit(node, ElectLeaders(partitions=None))
        return "preferred leaders"

    def transfer(self, node: Node) -> str:
        self._submit(node, TransferControl(node_id=self.random.choice([None, *self._world.nodes])))
        return "control"

    def drain(self, node: Node) -> str:
        """Empty a node, or use it again."""
        is_draining = self.random.random() < 0.5
        asked = self.random.choice(list(self._world.nodes.values()))
        self._submit(asked, DrainNode(node_id=node.id, is_draining=is_draining, with_replicas=is_draining))
        return f"node {node.id}" if is_draining else f"node {node.id} no more"

    def rebalance(self, node: Node) -> str:
        self._submit(node, Rebalance())
        return "everything"

    def join(self, _: Node) -> str:
        if len(self._world.nodes) >= _NODES_MAX:
            return ""
        return f"node {self._simulation.add_node().id}"

    def flip(self, node: Node) -> str:
        """Damage one replica. The others have everything, so nothing may be lost."""
        if not node.is_up or not self._simulation.can_lose(node):
            return ""
        hit = self._simulation.nodes[node.id].damage()
        self._start_later(node)
        return hit

    def create(self, node: Node) -> str:
        name = f"extra-{self.random.randrange(4)}"
        self._submit(node, CreateTopic(name=name, topic_id=UUID(int=self.random.getrandbits(128)), partitions=1))
        return name


OPERATIONS: Final[dict[str, Act]] = {
    "reassign": ClusterFaults.reassign,
    "elect": ClusterFaults.elect,
    "transfer": ClusterFaults.transfer,
    "create": ClusterFaults.create,
    "drain": ClusterFaults.drain,
    "rebalance": ClusterFaults.rebalance,
    "join": ClusterFaults.join,
    "bit flip": ClusterFaults.flip,
}
