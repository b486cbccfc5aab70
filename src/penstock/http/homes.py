"""Which node answers a request: whoever coordinates the group or the transaction that it is about.

Every node takes every request, and hands on those that another node has to answer. A request that was handed on already
is answered where it is, or refused: so nothing goes round in circles while nodes disagree.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Scope

from penstock.broker.coordination.coordinator import shard_of
from penstock.cluster.records import NO_LEADER
from penstock.errors import NotCoordinator
from penstock.http.door import Door
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

FORWARDED: Final = b"penstock-forwarded"  # by which node
CLIENT: Final = b"penstock-client"  # and for whom

_PATIENCE_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.05


def is_forwarded(scope: Scope) -> bool:
    """Whether another node has handed the request on."""
    return any(name == FORWARDED for name, _ in scope["headers"])


async def home_of_group(door: Door, scope: Scope) -> int:
    """The coordinator of the group in the path."""
    return await _home(door, OFFSETS_TOPIC, scope["path_params"]["group"])


async def home_of_new_group(door: Door, scope: Scope) -> int:
    """The same for a group that may be the first one."""
    await door.broker.ensure_offsets_topic()
    return await home_of_group(door, scope)


async def home_of_transaction(door: Door, scope: Scope) -> int:
    """The coordinator of the transaction in the path."""
    return await _home(door, TRANSACTIONS_TOPIC, scope["path_params"]["transaction"])


async def home_of_ticket(door: Door, scope: Scope) -> int:
    """The coordinator of the transaction that a request publishes into; this node if it publishes for itself."""
    for name, value in scope["headers"]:
        if name == b"penstock-transaction" and value:
            return await _home(door, TRANSACTIONS_TOPIC, value.decode("latin-1"))
    return door.broker.config.node_id


async def home_of_new_transaction(door: Door, _scope: Scope) -> int:
    """This node, if it coordinates any transactions, else one that does: a new one can be anybody's."""
    topic = await door.broker.ensure_transactions_topic()
    leaders = [at.leader for at in topic.partitions if at.leader != NO_LEADER]
    node_id = door.broker.config.node_id
    return node_id if node_id in leaders or not leaders else leaders[0]


async def _home(door: Door, topic_name: str, name: str) -> int:
    """Who leads the partition that keeps ``name``. A partition between two leaders is waited for, for a while."""
    broker = door.broker
    deadline = broker.clock.monotonic() + _PATIENCE_SECONDS
    while True:
        topic = broker.metadata.topics.get(topic_name)
        if topic is None:
            return broker.config.node_id  # nobody has any, and this node can say so
        at = topic.partitions[shard_of(name, len(topic.partitions))]
        if at.leader != NO_LEADER:
            return at.leader
        if broker.clock.monotonic() >= deadline:
            raise NotCoordinator(f"No node coordinates {name!r} now: {topic_name}-{at.partition} has no leader.")
        await asyncio.sleep(_PAUSE_SECONDS)


def coordinators(door: Door, topic_name: str) -> list[int]:
    """Every other node that coordinates something of a topic; `NotCoordinator` while some partition has no leader."""
    topic = door.broker.metadata.topics.get(topic_name)
    leaders = [] if topic is None else [at.leader for at in topic.partitions]
    if NO_LEADER in leaders:
        raise NotCoordinator(f"Some of what {topic_name} keeps is coordinated by nobody now. Try again in a moment.")
    return sorted(set(leaders) - {door.broker.config.node_id})
