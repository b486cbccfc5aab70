"""Sessions end when they are due, not when the clock is looked at next."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.virtual_time import run, surroundings
from tests.unit.groups.test_coordinator import JOIN

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.features.groups.group import Group
from penstock.features.groups.messages import MemberIdentity, SyncGroup
from penstock.testing.files import MemoryFiles


@pytest.mark.parametrize("timeout_ms", [6_001, 6_013, 6_037, 6_049])
def test_a_silent_member_is_gone_within_twenty_milliseconds_of_its_time(timeout_ms: int) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        broker = Broker(BrokerConfig(node_id=1, data_dir=Path("/data")), surroundings(MemoryFiles()))
        await broker.start()
        await broker.ensure_offsets_topic()
        await broker.groups.await_shard("g")
        joined = await broker.groups.ask("g", replace(JOIN, session_timeout_ms=timeout_ms))
        identity = MemberIdentity(member_id=joined.member_id, generation=joined.generation)
        sync = SyncGroup(identity=identity, protocol_type=None, protocol=None, assignments=((joined.member_id, b""),))
        began = loop.time()
        await broker.groups.ask("g", sync)
        while True:
            group = broker.groups.find("g")
            assert isinstance(group, Group)
            if not list(group.members):
                break
            await asyncio.sleep(0.001)
        late_ms = (loop.time() - began) * 1000 - timeout_ms
        assert -1 <= late_ms <= 20
        await broker.close()

    run(story)
