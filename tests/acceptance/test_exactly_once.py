"""Consume, transform, produce: every result once, whatever is killed, and whenever."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.application import Application, read_results
from tests.support.clients.confluent import ConfluentClient
from tests.support.group import Feed
from tests.support.node import Node
from tests.support.transformer import transform

PARTITIONS = 3


def storm(node: Node, topic: str, directory: Path, rounds: int) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    source, sink = f"{topic}-source", f"{topic}-sink"
    node.start()
    client = ConfluentClient(node.bootstrap)
    client.create_topic(source, partitions=PARTITIONS)
    client.create_topic(sink, partitions=PARTITIONS, segment_bytes="262144")
    feed = Feed(node.bootstrap, source, PARTITIONS, pause_s=0.03)
    app = Application(directory, node, source, sink)
    kills = {"node": 0, "app": 0}
    try:
        for _ in range(rounds):
            app.keep_running()
            if rng.random() < 0.7:
                app.wait_for_commit()
            time.sleep(rng.uniform(0.0, 0.3))
            kind = rng.choice(["node", "app", "both"])
            if kind != "node":
                app.kill()
                kills["app"] += 1
            if kind != "app":
                node.kill()
                kills["node"] += 1
                node.restart()
        app.wait_for_commit()
        sent = feed.stop()
        found = read_results(node, sink, PARTITIONS, len(sent), app)
    finally:
        app.kill()
    expected = sorted(transform(value.encode()) for value in sent)
    assert sorted(found) == expected, "not exactly once"
    committed, aborted = app.count("committed"), app.count("aborted")
    print(f"{len(sent)} results, {committed} commits and {aborted} aborts known, {kills} kills, {app.starts} starts")


@pytest.mark.slow
def test_every_result_is_there_once_after_some_kills(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    storm(make_node(groups__initial_delay_ms="0s"), topic, tmp_path, rounds=6)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_every_result_is_there_once_after_200_kills(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    rounds = int(os.environ.get("PENSTOCK_TEST_KILLS", "200"))
    storm(make_node(groups__initial_delay_ms="0s"), topic, tmp_path, rounds=rounds)
