"""Which node answers for a name: whoever leads the partition of the internal topic that keeps it.

Doors take every call on every node, and hand on those that another node has to answer. Leaders change and need a moment
to read their logs, so both ends wait for that a little before they refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.coordination.coordinator import Coordinator, shard_of
from penstock.cluster.records import NO_LEADER
from penstock.errors import CoordinatorLoading, NotCoordinator
from penstock.model import OFFSETS_TOPIC, PIPELINES_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_PATIENCE_SECONDS: Final = 3.0
_PATIENCE_ELSEWHERE_SECONDS: Final = 1.5  # of a node that hears it has to answer, and does not know so itself
_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Home:
    """A name kept in the partitions of an internal topic: the node that leads its partition answers.

    ``makes``: the topic is made for the first one; without a name any node that leads one of its partitions will do.
    """

    topic: str
    name: str | None
    makes: bool = False

    async def find(self, broker: Broker) -> int:
        """The node that has to answer. A partition between two leaders is waited for, for a while."""
        if self.makes:
            await _MAKERS[self.topic](broker)
        deadline = broker.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            leader = self._leader(broker)
            if leader != NO_LEADER:
                return leader
            if broker.clock.monotonic() >= deadline:
                raise NotCoordinator(f"No node coordinates {self.name!r} now: its partition has no leader.")
            await asyncio.sleep(_PAUSE_SECONDS)

    def _leader(self, broker: Broker) -> int:
        node_id = broker.config.node_id
        topic = broker.metadata.topics.get(self.topic)
        if topic is None:
            return node_id  # nobody has any, and this node can say so
        if self.name is None:
            leaders = [at.leader for at in topic.partitions if at.leader != NO_LEADER]
            return node_id if node_id in leaders else next(iter(leaders), NO_LEADER)
        return topic.partitions[shard_of(self.name, len(topic.partitions))].leader

    async def settle(self, broker: Broker, *, is_forwarded: bool) -> None:
        """Wait until this node can answer, if it is about to; if not, the answer will say so."""
        is_possible = self.topic in broker.metadata.topics or is_forwarded  # whoever hands it on knows more
        if self.name is None or not is_possible:
            return
        began = broker.clock.monotonic()
        while not all(_is_ready(coordinator, self.name) for coordinator in _coordinators(broker, self.topic)):
            is_here = self.topic in broker.metadata.topics and self._leader(broker) == broker.config.node_id
            patience = _PATIENCE_SECONDS if is_here else _PATIENCE_ELSEWHERE_SECONDS
            if broker.clock.monotonic() - began >= patience:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


def group_home(name: str, *, makes: bool = False) -> Home:
    return Home(OFFSETS_TOPIC, name, makes)


def transaction_home(name: str) -> Home:
    return Home(TRANSACTIONS_TOPIC, name)


NEW_TRANSACTION: Final = Home(TRANSACTIONS_TOPIC, None, makes=True)


_MAKERS: Final[dict[str, Callable[[Broker], Awaitable[object]]]] = {
    OFFSETS_TOPIC: lambda broker: broker.ensure_offsets_topic(),
    TRANSACTIONS_TOPIC: lambda broker: broker.ensure_transactions_topic(),
    PIPELINES_TOPIC: lambda broker: broker.ensure_pipelines_topic(),
}


def _coordinators(broker: Broker, topic: str) -> tuple[Coordinator[Any], ...]:
    if topic == TRANSACTIONS_TOPIC:
        return broker.transactions, broker.joint
    return (broker.groups if topic == OFFSETS_TOPIC else broker.pipelines,)


def _is_ready(coordinator: Coordinator[Any], name: str) -> bool:
    try:
        coordinator.shard(name)
    except (NotCoordinator, CoordinatorLoading):
        return False
    return True
