"""Damaged files: a torn tail is cut, a damaged sealed segment is reported, and everything else is served."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.ledger import read_partition
from tests.support.node import Node

from penstock.records import HEADER_BYTES, parse_header

COUNT = 200


def values(count: int = COUNT, start: int = 0) -> list[bytes]:
    return [b"record %d " % number + b"." * 300 for number in range(start, start + count)]


def fill(node: Node, topic: str, **config: str) -> ConfluentClient:
    """A node with ten small batches in one partition of a topic."""
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic, **config)
    client.produce(topic, [Message(value) for value in values()], batch_messages=20)
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


def test_a_torn_tail_is_cut_and_nothing_else(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    topics = {tail: f"{topic}-{number}" for number, tail in enumerate(TAILS)}
    for name in topics.values():
        fill(node, name)
    node.kill()
    before: dict[str, bytes] = {}
    for tail, name in topics.items():
        active = segments(node, name)[-1]
        before[tail] = active.read_bytes()
        position, size = batch_positions(active)[0]
        with active.open("ab") as file:
            file.write(TAILS[tail](before[tail][position : position + size]))
    node.restart()
    assert node.log_text.count("Cut a torn write") == len(TAILS)
    for tail, name in topics.items():
        assert segments(node, name)[-1].read_bytes() == before[tail], tail
        assert [value for _, value in read_partition(node.bootstrap, name, 0)] == values(), tail
        assert ConfluentClient(node.bootstrap).produce(name, [Message(b"next")]) == [COUNT], tail


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


# Where in a batch a bit is flipped. The base offset is not under the checksum and is found out by its neighbours; the
# leader epoch is under none and has none, and a wrong one makes no record wrong.
PLACES = {"base offset": 6, "length": 10, "checksum": 18, "count": 58, "records": 2_000}


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_flipped_bit_in_a_sealed_segment_is_reported_and_never_served(
    make_node: NodeMaker, topic: str, ending: str
) -> None:
    node = make_node().start()
    topics = {place: f"{topic}-{number}" for number, place in enumerate(PLACES)}
    for name in topics.values():
        fill(node, name, segment_bytes="16384")
    node.stop() if ending == "stopped" else node.kill()
    before: dict[Path, bytes] = {}
    for place, name in topics.items():
        found = segments(node, name)
        assert len(found) >= 3, "the test needs sealed segments"
        position, _ = batch_positions(found[1])[0]
        flip_bit(found[1], position + PLACES[place])
        before |= {path: path.read_bytes() for path in found[:-1]}
    node.restart()
    for place, name in topics.items():
        check_only_one_batch_is_missing(node, name, place)
        assert f"{node.partition_dir(name)}" in "".join(
            line for line in node.log_text.splitlines() if "corrupt" in line
        )
        assert ConfluentClient(node.bootstrap).produce(name, [Message(b"next")]) == [COUNT], place
    assert {path: path.read_bytes() for path in before} == before, "damage is kept as it is"


def test_a_bit_flipped_while_the_node_runs_is_never_served(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    assert len(read_partition(node.bootstrap, topic, 0)) == COUNT
    damaged = segments(node, topic)[1]
    position, size = batch_positions(damaged)[0]
    flip_bit(damaged, position + size // 2)
    check_only_one_batch_is_missing(node, topic, "records")
    assert "corrupt" in node.log_text


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_segment_without_a_trace_is_reported_as_lost(make_node: NodeMaker, topic: str, ending: str) -> None:
    node = make_node().start()
    topics = [f"{topic}-{number}" for number in (0, 1)]
    for name in topics:
        fill(node, name, segment_bytes="16384")
    node.stop() if ending == "stopped" else node.kill()
    bounds = {}
    for which, name in enumerate(topics):
        found = segments(node, name)
        bounds[name] = range(int(found[which].stem), int(found[which + 1].stem))
        found[which].unlink()
        found[which].with_suffix(".index").unlink(missing_ok=True)
    node.restart()
    for name, lost in bounds.items():
        found = read_partition(node.bootstrap, name, 0)
        everything = values()
        assert found == [(offset, everything[offset]) for offset in range(COUNT) if offset not in lost]
        shown = httpx.get(f"{node.http_url}/v1/topics/{name}").json()["partition_details"][0]["lost"]
        assert [(each["first_offset"], each["next_offset"]) for each in shown] == [(lost.start, lost.stop)]
        assert ConfluentClient(node.bootstrap).produce(name, [Message(b"next")]) == [COUNT]


def test_missing_index_files_are_made_again(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    fill(node, topic, segment_bytes="16384")
    node.stop()
    for path in node.partition_dir(topic).glob("*.index"):
        path.unlink()
    node.restart()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == values()


def reports(node: Node) -> str:
    return "\n".join(line for line in node.log_text.splitlines() if "corrupt" in line)


def flip_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def check_only_one_batch_is_missing(node: Node, topic: str, place: str) -> None:
    found = read_partition(node.bootstrap, topic, 0)
    everything = values()
    assert all(value == everything[offset] for offset, value in found), place
    missing = sorted(set(range(COUNT)) - {offset for offset, _ in found})
    assert 0 < len(missing) <= 20, place
    assert missing == list(range(missing[0], missing[-1] + 1)), place
