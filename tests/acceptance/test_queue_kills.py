"""``kill -9`` of nodes under a queue at work.

Consumers are SDK workers of every kind, a REST and a WebSocket one, each a process of its own, and some of them vanish
too. Everything that was confirmed is processed, nothing acked returns, and no message has two leases at a time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.cluster import Cluster, eventually
from tests.support.node import Node
from tests.support.queue_storm import KINDS, Storm, Verdict

LEASE_S = 5.0
PATIENCE_S = 120.0
EVERYDAY_KILLS = 4
SOAK_KILLS = 50
SOAK_KILLS_OF_LEADERS = 9


def seeded() -> random.Random:
    """PENSTOCK_TEST_SEED replays the moments of a run as well as wall-clock time allows; a failure shows the seed."""
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    return random.Random(seed)


def kill_one_node(
    make_node: NodeMaker, directory: Path, topic: str, kills: int, kinds: Sequence[str] = KINDS
) -> Verdict:
    dice = seeded()
    node = make_node().start()
    storm = Storm(directory, [node.http_url], topic, lease_s=LEASE_S, kinds=kinds)
    for number in range(kills):
        storm.await_progress()
        time.sleep(dice.uniform(0.0, 1.0))
        node.kill()
        if number % 5 == 2:
            storm.kill_a_hand(dice)
        bring_back(node)
    storm.await_progress()
    return judged(storm, kills)


def bring_back(node: Node) -> None:
    """Start a node again; beside all those who knock at its door this may take its time."""
    node.launch()
    eventually(node.is_ready, PATIENCE_S, "the node is ready")


def judged(storm: Storm, kills: int) -> Verdict:
    verdict = storm.finish(limit_s=120)
    print(
        f"{kills} kills: {verdict.messages} messages, {verdict.deliveries} deliveries, {verdict.redelivered} repeated, "
        f"{verdict.acks} acks told to consumers, {verdict.dead} dead letters, {len(verdict.faults)} faults"
    )
    assert verdict.faults == [], "\n".join(verdict.faults[:20])
    return verdict


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes its time to start processes
def test_a_killed_node_loses_nothing_and_brings_nothing_back(make_node: NodeMaker, tmp_path: Path, topic: str) -> None:
    verdict = kill_one_node(make_node, tmp_path, topic, EVERYDAY_KILLS, ("sync", "batch", "rest", "websocket"))
    assert verdict.messages > 100
    assert verdict.acks > 20


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_fifty_kills_lose_nothing_and_bring_nothing_back(make_node: NodeMaker, tmp_path: Path, topic: str) -> None:
    verdict = kill_one_node(make_node, tmp_path, topic, SOAK_KILLS)
    assert verdict.messages > 2_000
    assert verdict.redelivered > 0
    assert verdict.dead > 0


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_leaders_killed_one_after_another_lose_nothing_and_bring_nothing_back(tmp_path: Path, topic: str) -> None:
    dice = seeded()
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, 3)
        stack.push(cluster)  # to be killed at the end
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            eventually(node.is_ready, PATIENCE_S, "the node is ready")
        urls = [node.http_url for node in cluster.nodes.values()]
        storm = Storm(tmp_path, urls, topic, lease_s=LEASE_S)
        for number in range(SOAK_KILLS_OF_LEADERS):
            storm.await_progress()
            time.sleep(dice.uniform(0.0, 1.0))
            leader = cluster.nodes[cluster.leaders(topic)[number % 3]]
            leader.kill()
            if number % 3 == 0:
                storm.await_progress()  # without it
            bring_back(leader)
            eventually(lambda: cluster.replicas_in_sync(topic) == [[1, 2, 3]] * 3, PATIENCE_S, "all replicas in sync")
        storm.await_progress()
        verdict = judged(storm, SOAK_KILLS_OF_LEADERS)
    assert verdict.messages > 500
    assert verdict.redelivered > 0
