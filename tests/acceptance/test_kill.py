"""``kill -9`` at random moments, with real producers and a real process."""

from __future__ import annotations

import os
import random
import time

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.ledger import Books, entries_by_producer, read_partition
from tests.support.node import Node

PARTITIONS = 3
EVERYDAY_KILLS = 5
SOAK_KILLS = 50


def seeded() -> random.Random:
    """PENSTOCK_TEST_SEED replays the moments of a run as well as wall-clock time allows; a failure shows the seed."""
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    return random.Random(seed)


def kill_at_random_moments(node: Node, kills: int, rng: random.Random, books: list[Books]) -> None:
    """Kill and restart the node, each time at some moment after producers were heard again."""
    for _ in range(kills):
        wait_for_progress(books)
        time.sleep(rng.uniform(0.0, 0.8))
        node.kill()
        if rng.random() < 0.3:  # not even the start is safe
            node.launch()
            time.sleep(rng.uniform(0.0, 0.6))
            node.kill()
        node.restart()


def wait_for_progress(books: list[Books], limit_s: float = 30.0) -> None:
    """Return once something more is acknowledged. On a busy machine clients take seconds to come back."""
    before = sum(each.acked_count for each in books)
    deadline = time.monotonic() + limit_s
    while sum(each.acked_count for each in books) == before:
        assert time.monotonic() < deadline, "no producer got through to the node"
        time.sleep(0.01)


def check_exactly_once(node: Node, topic: str, books: list[Books]) -> int:
    """Every message sent is in the log once and in order; how many there are."""
    for each in books:
        assert not each.fatal, f"{each.name} gave up: {each.fatal}"
        assert not each.failed, f"{each.name} was refused: {each.failed[:3]}"
    total = 0
    for partition in range(PARTITIONS):
        records = read_partition(node.bootstrap, topic, partition)
        assert [offset for offset, _ in records] == list(range(len(records)))
        found = entries_by_producer(records)
        for each in books:
            assert each.acked[partition] == list(range(each.sent[partition]))
            assert found[each.name] == each.acked[partition], f"{each.name} in partition {partition}"
        total += len(records)
    return total


def storm(node: Node, topic: str, kills: int) -> int:
    rng = seeded()
    node.start()
    # Small segments, so that nodes die while they seal one as well.
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS, segment_bytes="262144")
    books = [
        Books(f"p{n}", node.bootstrap, topic, PARTITIONS, **{"enable.idempotence": True, "acks": "all"}).start()
        for n in range(3)
    ]
    kill_at_random_moments(node, kills, rng, books)
    assert [each.finish() for each in books] == [0, 0, 0], "some messages were never answered"
    return check_exactly_once(node, topic, books)


@pytest.mark.slow
def test_idempotent_producers_lose_and_double_nothing_when_the_node_is_killed(make_node: NodeMaker, topic: str) -> None:
    count = storm(make_node(), topic, EVERYDAY_KILLS)
    assert count > 100


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_fifty_kills_lose_and_double_nothing(make_node: NodeMaker, topic: str) -> None:
    count = storm(make_node(), topic, SOAK_KILLS)
    print(f"{count} records survived {SOAK_KILLS} kills")
    assert count > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["every", "none"])
def test_what_the_leader_acknowledged_survives_a_kill(make_node: NodeMaker, topic: str, fsync: str) -> None:
    """acks=1 without idempotence: the page cache outlives the process, so what is acked stays; retries may double."""
    rng = seeded()
    node = make_node(storage__fsync=fsync).start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS, segment_bytes="262144")
    config = {"acks": "1", "enable.idempotence": False, "max.in.flight.requests.per.connection": 1}
    books = Books("p", node.bootstrap, topic, PARTITIONS, **config).start()
    kill_at_random_moments(node, 2, rng, [books])
    assert books.finish() == 0
    assert books.acked_count > 100
    for partition in range(PARTITIONS):
        found = entries_by_producer(read_partition(node.bootstrap, topic, partition))["p"]
        assert set(books.acked[partition]) <= set(found)
        assert list(dict.fromkeys(found)) == sorted(set(found)), "first copies are in the order they were sent"


@pytest.mark.slow
def test_a_stopped_node_comes_back_with_everything_and_without_a_scan(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic, partitions=PARTITIONS)
    books = Books("p", node.bootstrap, topic, PARTITIONS, **{"enable.idempotence": True, "acks": "all"}).start()
    wait_for_progress([books])
    assert node.stop() == 0
    node.restart()
    assert books.finish() == 0
    assert check_exactly_once(node, topic, [books]) > 0
    assert "torn" not in node.log_text
