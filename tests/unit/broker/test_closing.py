"""Closing a broker whose disk fails: what cannot be closed in good order keeps nothing else open."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import Surroundings
from penstock.clock import SystemClock
from penstock.consensus.controller import TopicSpec
from penstock.network.tcp import TcpPeers
from penstock.testing.files import MemoryFiles


def test_a_disk_that_fails_syncs_leaves_the_data_directory_to_the_next_process() -> None:
    files = MemoryFiles()

    def make() -> Broker:
        clock = SystemClock()
        peers = TcpPeers(1, host="", port=None, token=None, clock=clock)
        return Broker(BrokerConfig(node_id=1, data_dir=Path("/data")), Surroundings(peers=peers, files=files))

    async def story() -> None:
        broker = make()
        await broker.start()
        await broker.create_topic(TopicSpec(name="t", partitions=2))
        files.is_failing_syncs = True
        await broker.close()
        files.is_failing_syncs = False
        again = make()
        await again.start()
        assert again.partition("t", 1).is_leader
        await again.close()

    asyncio.run(story())
