"""Three brokers in one process, with a network in memory between them, for tests of queues across nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.support.peers import PeerExchange
from tests.support.virtual_time import surroundings

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.config.kinds import Address, PeerAddress
from penstock.config.settings import ClusterSettings, TopicDefaults
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import Endpoint
from penstock.model import queue_state_topic
from penstock.records import Record, encode_batch
from penstock.testing.files import MemoryFiles

NODES = (1, 2, 3)


class QueueNodes:
    """A cluster. A node that is killed keeps its disk and can be started again."""

    def __init__(self) -> None:
        self.exchange = PeerExchange()
        self.files = {node_id: MemoryFiles() for node_id in NODES}
        self.brokers: dict[int, Broker] = {}

    async def __aenter__(self) -> QueueNodes:
        await asyncio.gather(*(self.start(node_id) for node_id in NODES))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.stop(node_id) for node_id in tuple(self.brokers)))

    async def start(self, node_id: int) -> Broker:
        cluster = ClusterSettings(
            peers=tuple(PeerAddress(each, Address("memory", each)) for each in NODES),
            election_timeout_ms=300,
            heartbeat_interval_ms=100,
            session_timeout_ms=1_000,
        )
        config = BrokerConfig(
            node_id=node_id,
            data_dir=Path(f"/node-{node_id}"),
            endpoints=(Endpoint(door="internal", host="memory", port=node_id),),
            topics=TopicDefaults(replication_factor=3),
            cluster=cluster,
        )
        peers = self.exchange.join(node_id)
        stands_on = surroundings(self.files[node_id], node_id=node_id, peers=peers)
        broker = self.brokers[node_id] = Broker(config, stands_on)
        await broker.start()
        return broker

    async def stop(self, node_id: int) -> None:
        """Stop a node in good order."""
        broker = self.brokers.pop(node_id)
        await broker.leave()
        await broker.close()
        await self.exchange.nodes[node_id].stop()

    def cut_off(self, node_id: int) -> None:
        """Nobody reaches the node any more, nor does it reach anybody."""
        for other in NODES:
            if other != node_id:
                self.exchange.cut(node_id, other)

    async def topic(self, name: str = "orders", partitions: int = 3, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        any_node = next(iter(self.brokers.values()))
        await any_node.create_topic(TopicSpec(name=name, partitions=partitions, replication_factor=3, configs=named))
        await until(lambda: all(name in broker.metadata.topics for broker in self.brokers.values()))

    def leader(self, topic: str, partition: int) -> Broker:
        """Whoever leads a partition, as the others see it."""
        seen = [broker.leader_of(topic, partition) for broker in self.brokers.values()]
        return self.brokers[max(seen, key=seen.count)]

    def queue_leader(self, topic: str, partition: int) -> Broker:
        return self.leader(queue_state_topic(topic), partition)

    async def put(self, *values: str, partition: int = 0, topic: str = "orders") -> None:
        """Publish messages as one batch, wherever the partition is led."""
        broker = next(iter(self.brokers.values()))
        now_ms = broker.clock.now_ms()
        records = [Record(at, now_ms, None, value.encode(), ()) for at, value in enumerate(values)]
        await broker.partitions.append(topic, partition, encode_batch(records), timeout_ms=10_000)


async def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return as soon as something is so."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
