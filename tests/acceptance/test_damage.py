"""Damaged files: a torn tail is cut, a damaged sealed segment is reported, and everything else is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.records import HEADER_BYTES, parse_header
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.ledger import read_partition
from tests.support.node import Node

COUNT = 200


def values(count: int = COUNT, start: int = 0) -> list[bytes]:
    return [b"record %d " % number + b"." * 300 for number in range(start, start + count)]


def fill(node: Node, topic: str, **config: str) -> ConfluentClient:
    """A node with ten small batches in one partition of a topic."""
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic, **config)
    for start in range(0, COUNT, 20):
        client.produce(topic, [Message(value) for value in values(20, start)])
    return client


def segments(node: Node, topic: str) -> list[Path]:
    found = sorted(node.partition_dir(topic).glob("*.log"))
    assert found, f"no segment in {node.partition_dir(topic)}"
    return found


def batch_positions(path: Path) -> list[tuple[int, int]]:
    """(position, size) of every batch of a segment."""
    data = path.read_bytes()
    found: list[tuple[int, int]] = []
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = parse_header(memoryview(data), position).size
        found.append((position, size))
        position += size
    return found


TAILS = {
    "garbage": lambda batch: bytes(range(256)) * 40,
    "zeros": lambda batch: bytes(70_000),
    "half a batch": lambda batch: batch[: len(batch) // 2],
    "a header": lambda batch: batch[:HEADER_BYTES],
    "a batch with a wrong checksum": lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]),
}


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_tail_is_cut_and_nothing_else(make_node: NodeMaker, topic: str, tail: str) -> None:
    node = make_node().start()
    fill(node, topic)
    node.kill()
    active = segments(node, topic)[-1]
    whole = active.read_bytes()
    position, size = batch_positions(active)[0]
    with active.open("ab") as file:
        file.write(TAILS[tail](whole[position : position + size]))
    node.restart()
    assert active.read_bytes() == whole
    assert "torn" in node.log_text
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == values()
    assert ConfluentClient(node.bootstrap).produce(topic, [Message(b"next")]) == [COUNT]


def test_a_batch_cut_in_half_goes_and_those_before_it_stay(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic)
    node.kill()
    active = segments(node, topic)[-1]
    position, size = batch_positions(active)[-1]
    with active.open("r+b") as file:
        file.truncate(position + size // 2)
    node.restart()
    found = read_partition(node.bootstrap, topic, 0)
    kept = len(found)
    assert 0 < COUNT - kept <= 20
    assert [value for _, value in found] == values(kept)
    assert ConfluentClient(node.bootstrap).produce(topic, [Message(b"next")]) == [kept]


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_flipped_bit_in_a_sealed_segment_is_reported_and_never_served(
    make_node: NodeMaker, topic: str, ending: str
) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    node.stop() if ending == "stopped" else node.kill()
    found = segments(node, topic)
    assert len(found) >= 3, "the test needs sealed segments"
    damaged = found[1]
    position, size = batch_positions(damaged)[0]
    flip_bit(damaged, position + size // 2)
    bytes_before = {path: path.read_bytes() for path in found[:-1]}
    node.restart()
    check_only_one_batch_is_missing(node, topic)
    assert "corrupt" in node.log_text
    assert {path: path.read_bytes() for path in found[:-1]} == bytes_before, "damage is kept as it is"
    assert ConfluentClient(node.bootstrap).produce(topic, [Message(b"next")]) == [COUNT]


def test_a_bit_flipped_while_the_node_runs_is_never_served(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    assert len(read_partition(node.bootstrap, topic, 0)) == COUNT
    damaged = segments(node, topic)[1]
    position, size = batch_positions(damaged)[0]
    flip_bit(damaged, position + size // 2)
    check_only_one_batch_is_missing(node, topic)
    assert "corrupt" in node.log_text


def test_missing_index_files_are_made_again(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    node.stop()
    for path in node.partition_dir(topic).glob("*.index"):
        path.unlink()
    node.restart()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == values()


def flip_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def check_only_one_batch_is_missing(node: Node, topic: str) -> None:
    found = read_partition(node.bootstrap, topic, 0)
    everything = values()
    assert all(value == everything[offset] for offset, value in found)
    missing = sorted(set(range(COUNT)) - {offset for offset, _ in found})
    assert 0 < len(missing) <= 20
    assert missing == list(range(missing[0], missing[-1] + 1))
