"""What operators do to a cluster while it works, together with the faults that just happen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.broker import Broker
from penstock.cluster.commands import Command, CreateTopic, ElectLeaders, Move, Reassign, TransferControl
from penstock.errors import PenstockError
from penstock.testing.simulation.cluster.faults import KINDS, Act, Faults, Node
from penstock.testing.simulation.cluster.history import Place
from penstock.testing.simulation.cluster.node import Unreachable

if TYPE_CHECKING:
    from penstock.testing.simulation.cluster.world import World


class ClusterFaults(Faults):
    """Faults of a cluster of brokers."""

    def __init__(self, world: World, places: Sequence[Place]) -> None:
        super().__init__(world, {**KINDS, **_OPERATIONS})
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

    def create(self, node: Node) -> str:
        name = f"extra-{self.random.randrange(4)}"
        self._submit(node, CreateTopic(name=name, topic_id=UUID(int=self.random.getrandbits(128)), partitions=1))
        return name


_OPERATIONS: Final[dict[str, Act]] = {
    "reassign": ClusterFaults.reassign,
    "elect": ClusterFaults.elect,
    "transfer": ClusterFaults.transfer,
    "create": ClusterFaults.create,
}
