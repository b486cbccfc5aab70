"""A disk that cannot read a page any more: the node lives, serves everything else, and says what is lost."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from tests.acceptance.conftest import NodeMaker
from tests.acceptance.test_damage import COUNT, batch_positions, fill, segments, values
from tests.support.bad_sector import BadSector, is_possible
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.ledger import read_partition
from tests.support.node import Node

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs root and /dev/fuse")


def lost_values(path: Path, sector: BadSector) -> int:
    """How many records lie in batches that the sector touches."""
    touched = [
        position
        for position, size in batch_positions(path)
        if position < sector.start + 4096 and sector.start < position + size
    ]
    return 20 * len(touched)


def read_over_rest(node: Node, topic: str, offset: int) -> httpx.Response:
    url = f"{node.http_url}/v1/topics/{topic}/messages"
    return httpx.get(url, params={"partition": 0, "offset": offset, "limit": 1000}, timeout=30)


def test_a_bad_sector_does_not_end_the_node(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    node.stop()
    damaged = segments(node, topic)[1]
    sector = BadSector(damaged, 5_000)
    lost = lost_values(damaged, sector)
    with sector:
        node.restart()
        for _ in range(2):
            found = read_partition(node.bootstrap, topic, 0)
            assert len(found) == COUNT - lost
            assert {value for _, value in found} < set(values())
        assert sector.refused, "the test has to reach the bad sector"
        assert read_over_rest(node, topic, 0).status_code == 200
        assert ConfluentClient(node.bootstrap).produce(topic, [Message(b"next")]) == [COUNT]
        assert "corrupt" in node.log_text
        node.kill()  # its files keep the mount alive


def test_rot_behind_an_unchanged_time_is_not_served(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    assert len(read_partition(node.bootstrap, topic, 0)) == COUNT
    rotten = segments(node, topic)[1]
    position, size = batch_positions(rotten)[0]
    before = rotten.stat()
    with rotten.open("r+b") as file:
        file.seek(position + size // 2)
        byte = file.read(1)[0]
        file.seek(position + size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(rotten, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert rotten.stat().st_mtime_ns == before.st_mtime_ns
    answers = [read_over_rest(node, topic, offset) for offset in range(0, COUNT, 10)]
    served = {
        message["value"].encode()
        for answer in answers
        if answer.status_code == 200
        for message in answer.json()["messages"]
    }
    assert len(served) == COUNT - 20
    assert served < set(values())
    assert {value for _, value in read_partition(node.bootstrap, topic, 0)} == served
    assert "corrupt" in node.log_text
