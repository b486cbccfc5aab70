"""Which node answers a request: whoever coordinates the group or the transaction that it is about.

Every node takes every request, and hands on those that another node has to answer. A request that was handed on already
is answered where it is, or refused: so nothing goes round in circles while nodes disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from penstock.broker import homes
from penstock.broker.pipelines.board import BOARD as BOARD_NAME
from penstock.cluster.records import NO_LEADER
from penstock.errors import NotCoordinator
from penstock.http.door import Door
from penstock.model import OFFSETS_TOPIC, PIPELINES_TOPIC, TRANSACTIONS_TOPIC

FORWARDED: Final = b"penstock-forwarded"  # by which node
CLIENT: Final = b"penstock-client"  # and for whom


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

    def _named(self, scope: Scope) -> homes.Home | None:
        name = self.name_of(scope)
        return None if name is None and not self.is_any else homes.Home(self.topic, name, self.makes)

    def is_anywhere(self, scope: Scope) -> bool:
        """Whether any node can answer, because the request is about nothing that one of them keeps."""
        return self._named(scope) is None

    async def find(self, door: Door, scope: Scope) -> int:
        """The node that has to answer. A partition between two leaders is waited for, for a while."""
        named = self._named(scope)
        return door.broker.config.node_id if named is None else await named.find(door.broker)

    async def settle(self, door: Door, scope: Scope) -> None:
        """Wait until this node can answer, if it is about to; if not, the answer will say so."""
        named = self._named(scope)
        if named is not None:
            await named.settle(door.broker, is_forwarded=is_forwarded(scope))


def _group(scope: Scope) -> str:
    name: str = scope["path_params"]["group"]
    return name


def _transaction(scope: Scope) -> str:
    name: str = scope["path_params"]["transaction"]
    return name


def _series(scope: Scope) -> str:
    name: str = scope["path_params"]["series"]
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
SERIES: Final = Home(TRANSACTIONS_TOPIC, _series)
NEW_SERIES: Final = Home(TRANSACTIONS_TOPIC, _series, makes=True)
BOARD: Final = Home(PIPELINES_TOPIC, lambda _: BOARD_NAME)
NEW_BOARD: Final = Home(PIPELINES_TOPIC, lambda _: BOARD_NAME, makes=True)
TICKET: Final = Home(TRANSACTIONS_TOPIC, _ticket)


def coordinators(door: Door, topic_name: str) -> list[int]:
    """Every other node that coordinates something of a topic; `NotCoordinator` while some partition has no leader."""
    topic = door.broker.metadata.topics.get(topic_name)
    leaders = [] if topic is None else [at.leader for at in topic.partitions]
    if NO_LEADER in leaders:
        raise NotCoordinator(f"Some of what {topic_name} keeps is coordinated by nobody now. Try again in a moment.")
    return sorted(set(leaders) - {door.broker.config.node_id})
