"""Three encrypted nodes: a flipped bit of one replica heals from the others, and kill -9 of all loses nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from tests.acceptance.test_damaged_leader import COUNT, consume, fill, flip
from tests.support.cluster import Cluster, eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("encrypted-cluster")
    keys = directory / "keys"
    keys.write_text(f"1:{base64.b64encode(bytes(32)).decode()}\n")
    settings = {
        "storage__scrub__interval_ms": 0,
        "storage__segment_bytes": 65_536,
        "security__encryption__master_key_file": keys,
    }
    with Cluster(directory, **settings) as cluster:
        yield cluster


@pytest.mark.parametrize("keeps_date", [False, True])
def test_a_flipped_bit_of_one_encrypted_replica_is_healed_from_the_others(cluster: Cluster, keeps_date: bool) -> None:
    topic = f"orders-{int(keeps_date)}"
    fill(cluster, topic)
    damaged = flip(cluster, topic, keeps_date=keeps_date)
    if keeps_date:  # damaged while it was down
        cluster.nodes[damaged].kill()
        cluster.nodes[damaged].start()
    assert consume(cluster, topic) == list(range(COUNT))
    eventually(lambda: len(cluster.replicas_in_sync(topic)[0]) == 3, what="healed")


def test_encrypted_logs_and_metadata_survive_kill_9_of_all_nodes(cluster: Cluster) -> None:
    fill(cluster, "kept")
    for node in cluster.nodes.values():
        plain = [path for path in (node.data_dir / "metadata").rglob("*") if path.is_file() and path.stat().st_size]
        assert plain
        assert all(path.read_bytes().startswith(b"\x8ePSTKAES") for path in plain), "Raft's log and promise are sealed"
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.launch()
    for node in cluster.nodes.values():
        node.await_ready()
    assert consume(cluster, "kept") == list(range(COUNT))
