"""Which node answers a request: whoever coordinates the group or the transaction that it is about.

Every node takes every request, and hands on those that another node has to answer. A request that was handed on already
is answered where it is, or refused: so nothing goes round in circles while nodes disagree. Leaders change and need a
moment to read their logs, so both ends wait for that a little before they refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Scope

from penstock.broker.broker import Broker
from penstock.broker.coordination.coordinator import Coordinator, shard_of
from penstock.cluster.records import NO_LEADER
from penstock.errors import CoordinatorLoading, NotCoordinator
from penstock.http.door import Door
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

FORWARDED: Final = b"penstock-forwarded"  # by which node
CLIENT: Final = b"penstock-client"  # and for whom

_PATIENCE_SECONDS: Final = 3.0
_PATIENCE_ELSEWHERE_SECONDS: Final = 1.5  # of a node that hears it has to answer, and does not know so itself
_PAUSE_SECONDS: Final = 0.02


def is_forwarded(scope: Scope) -> bool:
    """Whether another node has handed the request on."""
    return any(name == FORWARDED for name, _ in scope["headers"])


@dataclass(frozen=True)
class Home:
    """How to find the node that answers: by a name in the request, kept in the partitions of an internal topic.

    Without a name this node answers. ``makes``: the topic is made for the first one; ``is_any``: any node that leads
    one of its partitions will do, because the name is yet to be given.
    """

    topic: str
    name_of: Callable[[Scope], str | None]
    makes: bool = False
    is_any: bool = False

    async def find(self, door: Door, scope: Scope) -> int:
        """The node that has to answer. A partition between two leaders is waited for, for a while."""
        broker = door.broker
        name = self.name_of(scope)
        if self.makes:
            await _make(broker, self.topic)
        deadline = broker.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            leader = self._leader(broker, name)
            if leader != NO_LEADER:
                return leader
            if broker.clock.monotonic() >= deadline:
                raise NotCoordinator(f"No node coordinates {name!r} now: its partition has no leader.")
            await asyncio.sleep(_PAUSE_SECONDS)

    def _leader(self, broker: Broker, name: str | None) -> int:
        node_id = broker.config.node_id
        topic = broker.metadata.topics.get(self.topic)
        if topic is None:
            return node_id  # nobody has any, and this node can say so
        if self.is_any:
            leaders = [at.leader for at in topic.partitions if at.leader != NO_LEADER]
            return node_id if node_id in leaders else next(iter(leaders), NO_LEADER)
        if name is None:
            return node_id
        return topic.partitions[shard_of(name, len(topic.partitions))].leader

    async def settle(self, door: Door, scope: Scope) -> None:
        """Wait until this node can answer, if it is about to; if not, the answer will say so."""
        broker = door.broker
        name = self.name_of(scope)
        is_possible = self.topic in broker.metadata.topics or is_forwarded(scope)  # whoever hands it on knows more
        if name is None or not is_possible:
            return
        began = broker.clock.monotonic()
        while not all(_is_ready(coordinator, name) for coordinator in _coordinators(broker, self.topic)):
            is_here = self.topic in broker.metadata.topics and self._leader(broker, name) == broker.config.node_id
            patience = _PATIENCE_SECONDS if is_here else _PATIENCE_ELSEWHERE_SECONDS
            if broker.clock.monotonic() - began >= patience:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


async def _make(broker: Broker, topic: str) -> None:
    await (broker.ensure_offsets_topic() if topic == OFFSETS_TOPIC else broker.ensure_transactions_topic())


def _coordinators(broker: Broker, topic: str) -> tuple[Coordinator[Any], ...]:
    return (broker.groups,) if topic == OFFSETS_TOPIC else (broker.transactions, broker.joint)


def _is_ready(coordinator: Coordinator[Any], name: str) -> bool:
    try:
        coordinator.shard(name)
    except (NotCoordinator, CoordinatorLoading):
        return False
    return True


def _group(scope: Scope) -> str:
    name: str = scope["path_params"]["group"]
    return name


def _transaction(scope: Scope) -> str:
    name: str = scope["path_params"]["transaction"]
    return name


def _ticket(scope: Scope) -> str | None:
    """The transaction that a request publishes into."""
    for name, value in scope["headers"]:
        if name == b"penstock-transaction" and value:
            text: str = value.decode("latin-1")
            return text
    return None


GROUP: Final = Home(OFFSETS_TOPIC, _group)
NEW_GROUP: Final = Home(OFFSETS_TOPIC, _group, makes=True)
TRANSACTION: Final = Home(TRANSACTIONS_TOPIC, _transaction)
NEW_TRANSACTION: Final = Home(TRANSACTIONS_TOPIC, lambda _: None, makes=True, is_any=True)
TICKET: Final = Home(TRANSACTIONS_TOPIC, _ticket)


def coordinators(door: Door, topic_name: str) -> list[int]:
    """Every other node that coordinates something of a topic; `NotCoordinator` while some partition has no leader."""
    topic = door.broker.metadata.topics.get(topic_name)
    leaders = [] if topic is None else [at.leader for at in topic.partitions]
    if NO_LEADER in leaders:
        raise NotCoordinator(f"Some of what {topic_name} keeps is coordinated by nobody now. Try again in a moment.")
    return sorted(set(leaders) - {door.broker.config.node_id})
