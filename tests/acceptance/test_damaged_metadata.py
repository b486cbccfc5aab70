"""A bit flips in a node's Raft log: in a cluster it heals by itself, alone it refuses to start and says what to do."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.conftest import NodeMaker
from tests.acceptance.test_damage import flip_bit
from tests.acceptance.test_startup_faults import refusal_of
from tests.support.clients.confluent import ConfluentClient
from tests.support.cluster import Cluster, command, eventually, known, rest
from tests.support.node import Node

NODES = (1, 2, 3)


def damage_metadata(node: Node) -> dict[str, bytes]:
    """Flip a bit in the middle of the Raft log; the directory's content after that."""
    directory = node.data_dir / "metadata"
    [*_, path] = sorted(directory.glob("*.log"))
    flip_bit(path, path.stat().st_size // 2)
    return content(directory)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def voters(cluster: Cluster) -> set[int]:
    quorum = rest(cluster, 1).get("/v1/cluster").json()["quorum"]
    return {member["node_id"] for member in quorum if member["role"] != "learner"}


def test_a_node_with_a_damaged_raft_log_heals_from_the_others(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        rest(cluster, 1).post("/v1/topics", json={"name": "t", "partitions": 3}).raise_for_status()
        eventually(lambda: cluster.replicas_in_sync("t") == [list(NODES)] * 3, what="in sync")
        for number in range(30):
            rest(cluster, 1).post("/v1/topics/t/publish", json={"value": f"{number}"}).raise_for_status()
        healed = cluster.nodes[2]
        healed.stop()
        damaged = damage_metadata(healed)
        logs = {path: path.read_bytes() for path in (healed.data_dir / "logs" / "t").rglob("*.log")}
        healed.restart()
        eventually(lambda: command(cluster, "cluster", "status", "--check").returncode == 0, what="a whole cluster")
        eventually(lambda: "t" in known(cluster, 2), what="its metadata")
        assert cluster.replicas_in_sync("t") == [list(NODES)] * 3
        eventually(lambda: voters(cluster) == set(NODES), what="a voter again")
        aside = content(healed.data_dir / "metadata-damaged-1")
        assert {name: aside[name] for name in damaged} == damaged, "kept as it was"
        assert all(path.read_bytes().startswith(data) for path, data in logs.items()), "replicas stay in place"
        assert "metadata-damaged-1" in healed.log_text
        cluster.nodes[3].kill()  # a majority needs the healed one now
        told = rest(cluster, 1)
        eventually(lambda: told.post("/v1/topics", json={"name": "next"}).status_code in {201, 409}, what="a decision")
        healed.stop()
        healed.restart()  # and is that member from now on
        assert not (healed.data_dir / "metadata-damaged-2").exists()


def test_a_single_node_refuses_damaged_metadata_and_says_what_to_do(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic)
    node.stop()
    damaged = damage_metadata(node)
    for _ in range(2):
        said = refusal_of(node)
        assert "cannot be trusted" in said
        assert f"restore {node.data_dir} from a backup" in said
    assert content(node.data_dir / "metadata").items() >= damaged.items(), "nothing is changed"
