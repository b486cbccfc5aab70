"""Three real nodes with damage on a disk that nobody reads: it is found and healed within seconds, while all run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cluster import Cluster, eventually
from tests.support.node import penstock_command

from penstock.storage.files import DiskFiles
from penstock.storage.inspect import dump_records, inspect_log

TOPIC = "old-orders"
COUNT = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"storage__scrub__interval_ms": 500, "storage__segment_bytes": 16_384}
    with Cluster(tmp_path_factory.mktemp("scrub"), **settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "batch.num.messages": 10})
        for number in range(COUNT):
            producer.produce(TOPIC, value=b"order %d " % number + b"." * 200, partition=0)
            producer.poll(0)
        assert producer.flush(60) == 0
        eventually(lambda: all(len(sealed(cluster, number)) > 3 for number in cluster.nodes), what="sealing")
        eventually(lambda: all(is_whole(cluster, number) for number in cluster.nodes), what="copying")
        yield cluster


def sealed(cluster: Cluster, number: int) -> list[Path]:
    """Segments that have an index: nobody writes them any more."""
    directory = cluster.nodes[number].partition_dir(TOPIC)
    return sorted(path for path in directory.glob("*.log") if path.with_suffix(".index").exists())


def is_whole(cluster: Cluster, number: int) -> bool:
    """Whether a node has every record on its disk, and nothing else."""
    directory = cluster.nodes[number].partition_dir(TOPIC)
    offsets = [found.record.offset for found in dump_records(DiskFiles(), directory)]
    return offsets == list(range(COUNT)) and not inspect_log(DiskFiles(), directory).problems


def scrub_of(cluster: Cluster, number: int) -> dict[str, Any]:
    found: dict[str, Any] = cluster.ask("/v1/storage/scrub", number)
    return found


def flip(path: Path) -> None:
    """As a disk does it: without a new date."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)


@pytest.mark.parametrize("role", ["follower", "leader"])
@pytest.mark.parametrize("harm", [flip, cut])
def test_damage_that_nobody_reads_is_healed_while_all_nodes_run(cluster: Cluster, harm: Any, role: str) -> None:
    [leader] = cluster.leaders(TOPIC)
    number = leader if role == "leader" else next(each for each in cluster.nodes if each != leader)
    before = scrub_of(cluster, number)["damaged_segments"]
    harm(sealed(cluster, number)[1])
    assert not is_whole(cluster, number)
    eventually(lambda: scrub_of(cluster, number)["damaged_segments"] > before, 60, "finding it")
    eventually(lambda: is_whole(cluster, number), 60, "copying it anew")
    eventually(lambda: cluster.replicas_in_sync(TOPIC) == [[1, 2, 3]], 60, "being in sync again")
    assert scrub_of(cluster, number)["damaged_partitions"] == 0
    assert all(is_whole(cluster, each) for each in cluster.nodes)


def test_an_operator_has_everything_checked_and_sees_what_came_of_it(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    command = [penstock_command(), "cluster", "scrub", "--url", node.http_url]
    done = subprocess.run([*command, "--now", "--timeout", "60", "-o", "json"], capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["node_id"] for each in found] == [1, 2, 3]
    assert all(each["completed_round"] > 0 and each["checked_bytes"] > 0 for each in found)
    table = subprocess.run([*command, "-o", "table"], capture_output=True, timeout=60).stdout.decode()
    assert "DAMAGED NOW" in table
    assert all(each["scrubbed_at_ms"] for each in cluster.ask("/v1/nodes")["nodes"])
