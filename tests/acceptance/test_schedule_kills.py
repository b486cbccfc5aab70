"""``kill -9`` of nodes that fire thousands of schedules: each message comes exactly once, and none early."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.cluster import Cluster, eventually
from tests.support.node import Node
from tests.support.schedule_diary import Diary, ask, await_arrivals, judge

PARTITIONS = 3
PATIENCE_S = 120.0
EVERYDAY_KILLS = 2
SOAK_KILLS = 40
SOAK_KILLS_OF_LEADERS = 10


def seeded() -> int:
    """PENSTOCK_TEST_SEED replays the moments of a run as well as wall-clock time allows; a failure shows the seed."""
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    return seed


def await_progress(diary: Diary) -> None:
    before = len(diary.confirmed)
    eventually(lambda: len(diary.confirmed) >= before + 200, PATIENCE_S, "schedules are confirmed")


def kill_one_node(node: Node, topic: str, kills: int) -> Diary:
    seed = seeded()
    dice = random.Random(seed)
    node.start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    diary = Diary([node.http_url], topic, seed)
    diary.start()
    for _ in range(kills):
        await_progress(diary)
        time.sleep(dice.uniform(0.0, 1.0))
        node.kill()
        node.launch()
        if dice.random() < 0.2:  # not even the start is safe
            time.sleep(dice.uniform(0.0, 1.0))
            node.kill()
            node.launch()
        eventually(node.is_ready, PATIENCE_S, "the node is ready")
    await_progress(diary)
    diary.end()
    came = await_arrivals(node.http_url, topic, PARTITIONS, diary)
    print(f"{kills} kills: {diary.asked} asked for, {len(diary.confirmed)} confirmed, {len(came)} came")
    judge(diary, came)
    return diary


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes its time to start processes
def test_a_killed_node_fires_each_schedule_once_and_none_early(make_node: NodeMaker, topic: str) -> None:
    assert len(kill_one_node(make_node(), topic, EVERYDAY_KILLS).confirmed) > 500


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_many_kills_fire_each_schedule_once_and_none_early(make_node: NodeMaker, topic: str) -> None:
    assert len(kill_one_node(make_node(), topic, SOAK_KILLS).confirmed) > 8_000


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_leaders_killed_one_after_another_fire_each_schedule_once_and_none_early(tmp_path: Path, topic: str) -> None:
    seed = seeded()
    dice = random.Random(seed)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, 3)
        stack.push(cluster)  # to be killed at the end
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            eventually(node.is_ready, PATIENCE_S, "the node is ready")
        url = cluster.nodes[1].http_url
        ask(f"{url}/v1/topics", {"name": topic, "partitions": PARTITIONS, "replication_factor": 3})
        diary = Diary([node.http_url for node in cluster.nodes.values()], topic, seed)
        diary.start()
        for number in range(SOAK_KILLS_OF_LEADERS):
            await_progress(diary)
            time.sleep(dice.uniform(0.0, 1.0))
            name = "__schedules" if number % 2 else topic
            leader = cluster.nodes[cluster.leaders(name)[number % PARTITIONS]]
            leader.kill()
            await_progress(diary)  # without it
            leader.launch()
            eventually(leader.is_ready, PATIENCE_S, "the node is ready")
            eventually(
                lambda: cluster.replicas_in_sync("__schedules") == [[1, 2, 3]] * 8, PATIENCE_S, "all replicas in sync"
            )
        await_progress(diary)
        diary.end()
        came = await_arrivals(url, topic, PARTITIONS, diary)
        print(f"{diary.asked} asked for, {len(diary.confirmed)} confirmed, {len(came)} came")
        judge(diary, came)
