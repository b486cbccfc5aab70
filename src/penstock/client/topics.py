"""How many partitions topics have, remembered for a while; a topic that is not there is made if the cluster does so."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from penstock.client.transport import MSGPACK, Transport
from penstock.errors import UnknownTopic
from penstock.model import check_topic_name

_FRESH_SECONDS: Final = 60.0
_NO_BATCHES: Final = msgspec.msgpack.encode([])


class _Topic(msgspec.Struct, frozen=True):
    partitions: int


class PartitionCounts:
    """What the client knows of topics."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._counts: dict[str, tuple[int, float]] = {}

    def known(self, topic: str) -> int | None:
        """The number of partitions, if it was asked for lately."""
        found = self._counts.get(topic)
        if found is None or asyncio.get_running_loop().time() - found[1] > _FRESH_SECONDS:
            return None
        return found[0]

    def forget(self, topic: str) -> None:
        self._counts.pop(topic, None)

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic that there is; `UnknownTopic` if there is none."""
        found = await self._transport.get(_Topic, "v1", "topics", check_topic_name(topic))
        self._counts[topic] = found.partitions, asyncio.get_running_loop().time()
        return found.partitions

    async def ensure(self, topic: str) -> int:
        """The number of partitions, where something is about to be published."""
        try:
            return await self.partitions(topic)
        except UnknownTopic:
            # Publishing nothing makes the topic as publishing something would.
            path = ("v1", "topics", topic, "batches")
            await self._transport.call("POST", path, body=_NO_BATCHES, content_type=MSGPACK, accept=MSGPACK)
            return await self.partitions(topic)
