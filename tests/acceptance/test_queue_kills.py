"""``kill -9`` of nodes under a queue at work: SDK workers of every kind, REST and WebSocket consumers in processes of
their own, of which some vanish too. Everything confirmed is processed, nothing acked returns, no two leases at a time."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.cluster import Cluster, eventually
from tests.support.queue_storm import Storm, Verdict

LEASE_S = 5.0
EVERYDAY_KILLS = 4
SOAK_KILLS = 50
SOAK_KILLS_OF_LEADERS = 12


def seeded() -> random.Random:
    """PENSTOCK_TEST_SEED replays the moments of a run as well as wall-clock time allows; a failure shows the seed."""
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    return random.Random(seed)


def kill_one_node(make_node: NodeMaker, directory: Path, topic: str, kills: int) -> Verdict:
    dice = seeded()
    node = make_node().start()
    storm = Storm(directory, [node.http_url], topic, lease_s=LEASE_S)
    for number in range(kills):
        storm.await_progress()
        time.sleep(dice.uniform(0.0, 1.0))
        node.kill()
        if number % 5 == 2:
            storm.kill_a_hand(dice)
        node.restart()
    storm.await_progress()
    return judged(storm, kills)


def judged(storm: Storm, kills: int) -> Verdict:
    verdict = storm.finish(limit_s=120)
    print(
        f"{kills} kills: {verdict.messages} messages, {verdict.deliveries} deliveries, {verdict.redelivered} of them again, "
        f"{verdict.acks} acks answered to their consumers, {verdict.dead} dead letters, {len(verdict.faults)} faults"
    )
    assert verdict.faults == [], "\n".join(verdict.faults[:20])
    return verdict


@pytest.mark.slow
def test_a_killed_node_loses_nothing_and_brings_nothing_back(make_node: NodeMaker, tmp_path: Path, topic: str) -> None:
    verdict = kill_one_node(make_node, tmp_path, topic, EVERYDAY_KILLS)
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
    with Cluster(tmp_path, 3, broker__default_replication_factor=3) as cluster:
        urls = [node.http_url for node in cluster.nodes.values()]
        storm = Storm(tmp_path, urls, topic, lease_s=LEASE_S)
        for number in range(SOAK_KILLS_OF_LEADERS):
            storm.await_progress()
            time.sleep(dice.uniform(0.0, 1.0))
            leader = cluster.nodes[cluster.leaders(topic)[number % 3]]
            leader.kill()
            if number % 3 == 0:
                storm.await_progress()  # without it
            leader.restart()
            everybody = [[1, 2, 3]] * 3
            eventually(lambda: cluster.replicas_in_sync(topic) == everybody, 60, "all replicas in sync")
        storm.await_progress()
        verdict = judged(storm, SOAK_KILLS_OF_LEADERS)
    assert verdict.messages > 500
    assert verdict.redelivered > 0
