"""Which node answers for a name: the leader of the partition of the internal topic that keeps it.

Doors take every call on every node, and hand on those that another node has to answer. Leaders change and need a moment
to read their logs, so both ends wait for that a little before they refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.consensus.records import NO_LEADER
from penstock.errors import CoordinatorLoading, NotCoordinator
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.leaders import shard_of
from penstock.machines.ports import Ports
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

# The coordinators that keep names in each internal topic.
Coordinators = Mapping[str, Iterable[NamedCoordinator[Any]]]

_PATIENCE_SECONDS: Final = 3.0
_PATIENCE_ELSEWHERE_SECONDS: Final = 1.5  # of a node that was handed a call, and does not know itself that it leads
_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """A name kept in the partitions of an internal topic: the node that leads its partition answers.

    ``makes``: the topic is made for the first one; without a name any node that leads one of its partitions will do.
    """

    topic: str
    name: str | None
    makes: bool = False

    async def find(self, ports: Ports) -> int:
        """The node that has to answer. A partition between two leaders is waited for, for a while."""
        if self.makes:
            await ports.topics.ensure_internal(self.topic)
        deadline = ports.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            leader = self._leader(ports)
            if leader != NO_LEADER:
                return leader
            if ports.clock.monotonic() >= deadline:
                raise NotCoordinator(f"No node coordinates {self.name!r} now: its partition has no leader.")
            await asyncio.sleep(_PAUSE_SECONDS)

    def _leader(self, ports: Ports) -> int:
        node_id = ports.node_id
        topic = ports.metadata.topics.get(self.topic)
        if topic is None:
            return node_id  # nothing is kept yet, and any node can say so
        if self.name is None:
            leaders = [at.leader for at in topic.partitions if at.leader != NO_LEADER]
            return node_id if node_id in leaders else next(iter(leaders), NO_LEADER)
        return topic.partitions[shard_of(self.name, len(topic.partitions))].leader

    async def settle(self, ports: Ports, coordinators: Coordinators, *, is_forwarded: bool) -> None:
        """Wait until this node can answer, if it is about to; if not, the answer will say so."""
        is_possible = self.topic in ports.metadata.topics or is_forwarded  # the node that hands it on knows more
        if self.name is None or not is_possible:
            return
        began = ports.clock.monotonic()
        while not all(_is_ready(coordinator, self.name) for coordinator in coordinators[self.topic]):
            is_here = self.topic in ports.metadata.topics and self._leader(ports) == ports.node_id
            patience = _PATIENCE_SECONDS if is_here else _PATIENCE_ELSEWHERE_SECONDS
            if ports.clock.monotonic() - began >= patience:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


def group_address(name: str, *, makes: bool = False) -> CoordinatorAddress:
    return CoordinatorAddress(OFFSETS_TOPIC, name, makes)


def transaction_address(name: str) -> CoordinatorAddress:
    return CoordinatorAddress(TRANSACTIONS_TOPIC, name)


NEW_TRANSACTION: Final = CoordinatorAddress(TRANSACTIONS_TOPIC, None, makes=True)


def _is_ready(coordinator: NamedCoordinator[Any], name: str) -> bool:
    try:
        coordinator.shard(name)
    except (NotCoordinator, CoordinatorLoading):
        return False
    return True
