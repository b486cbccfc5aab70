"""How many offset commits a node takes in a second, each durable before it is answered.

Run with ``-s`` to see the figures. The bar in the assertion is far below what an idle machine reaches, so that a busy
one passes too; a regression by an order of magnitude does not.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.clients.confluent import ConfluentClient
from tests.support.group import wait_until
from tests.support.node import Node
from tests.support.wire import ask

from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages.groups import FindCoordinatorRequest
from penstock.doors.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

VERSION = 8
SECONDS = 2.0
FIND = bytes(encode_request(FindCoordinatorRequest(coordinator_keys=("speed-0",)), 4, 1, "speed"))
IN_FLIGHT = 8  # of each connection; the node answers them in order


def commit_request(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topics = (OffsetCommitRequestTopic(name=topic, partitions=(row,)),)
    return OffsetCommitRequest(group_id=group, member_id="", topics=topics)


async def commit_for_a_while(port: int, group: str, topic: str) -> int:
    """Commit through one connection until the time is up; how many were answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frame = bytes(encode_request(commit_request(group, topic, 1), VERSION, 1, "speed"))
    writer.write(frame * IN_FLIGHT)
    count = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        if count == 0:
            _, response = decode_response(OffsetCommitResponse, VERSION, answer)
            assert response.topics[0].partitions[0].error_code == 0
        count += 1
        writer.write(frame)
    writer.close()
    return count


async def commit_from_many(port: int, topic: str, connections: int) -> float:
    counts = await asyncio.gather(*(commit_for_a_while(port, f"speed-{at}", topic) for at in range(connections)))
    return sum(counts) / SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 20, 100])
def test_commits_a_second(node: Node, topic: str, connections: int) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic)
    wait_until("a coordinator is there", lambda: ask(node.kafka_port, FIND) is not None)
    rate = asyncio.run(commit_from_many(node.kafka_port, topic, connections))
    print(f"{connections} connections: {rate:,.0f} commits a second")
    assert rate > 200
