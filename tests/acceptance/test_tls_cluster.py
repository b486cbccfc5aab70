"""Nodes that speak TLS to each other: a cluster as any other, and no way in for a certificate that is not a node's."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.certificates import Authority, Pair
from tests.support.cluster import Cluster, ClusterNode, eventually
from tests.support.node import NodeError
from tests.support.tls_node import TlsNode, tls_settings


class SecureNode(ClusterNode, TlsNode):
    """A node of the cluster, with TLS at every door and between nodes."""

    def __init__(self, directory: Path, node_id: int, authority: Authority) -> None:
        super().__init__(directory, node_id, authority=authority)


class SecureCluster(Cluster):
    """Three nodes, each with a certificate of its own."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.authority = authority
        super().__init__(directory, 3, cluster__token="shared")
        for node in self.nodes.values():
            assert isinstance(node, SecureNode)
            node.settings = {**node.settings, **tls_settings(node.pair, internal=True)}

    def _make(self, number: int) -> ClusterNode:
        return SecureNode(self._directory / f"node-{number}", number, self.authority)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecureCluster]:
    with SecureCluster(tmp_path_factory.mktemp("cluster"), authority) as made:
        assert isinstance(made, SecureCluster)
        yield made


def rdkafka(cluster: SecureCluster, **more: object) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(cluster.authority.ca)}
    return {"bootstrap.servers": cluster.bootstrap, **trust, **named}


def create(cluster: SecureCluster, topic: str) -> None:
    admin = AdminClient(rdkafka(cluster))
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)


def newcomer(cluster: SecureCluster, directory: Path, node_id: int, pair: Pair) -> SecureNode:
    """A node that is about to join, with the certificate given."""
    node = SecureNode(directory, node_id, cluster.authority)
    node.settings = {
        "broker__internal": node.internal,
        "cluster__join": cluster.nodes[1].internal,
        "cluster__token": "shared",
        **tls_settings(pair, internal=True),
        "security__tls__ca": cluster.authority.ca,
    }
    return node


def test_messages_are_replicated_and_survive_the_loss_of_a_leader(cluster: SecureCluster) -> None:
    create(cluster, "large")
    values = [os.urandom(700_000) for _ in range(40)]
    producer = Producer(rdkafka(cluster, acks="all", queue_buffering_max_kbytes=100_000))
    for value in values:
        producer.produce("large", value, partition=0)
    assert producer.flush(120) == 0
    leader = told(cluster, "/v1/topics/large")["partition_details"][0]["leader"]
    cluster.nodes[leader].kill()
    consumer = Consumer(rdkafka(cluster, group_id="g"))
    consumer.assign([TopicPartition("large", 0, 0)])
    for value in values:
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == value
    consumer.close()
    cluster.nodes[leader].restart()
    eventually(
        lambda: len(told(cluster, "/v1/topics/large")["partition_details"][0]["in_sync"]) == 3,
        what="three replicas in sync",
    )


def told(cluster: SecureCluster, path: str) -> dict[str, list[dict[str, object]]]:
    node = cluster.running[0]
    assert isinstance(node, SecureNode)
    found: dict[str, list[dict[str, object]]] = node.ask(path)
    return found


def test_every_node_answers_for_the_others(cluster: SecureCluster) -> None:
    for node in cluster.nodes.values():
        assert isinstance(node, SecureNode)
        body = json.dumps({"value": f"from {node.node_id}", "key": "one key"}).encode()
        request = urllib.request.Request(
            f"{node.http_url}/v1/topics/shared/publish", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60, context=node.context()) as answer:
            assert answer.status in {200, 201}


def test_a_node_with_a_strangers_certificate_is_refused(cluster: SecureCluster, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other", "another authority").issue("node-4", node_id=4)
    node = newcomer(cluster, tmp_path / "node", 4, stranger)
    node.launch()
    eventually(lambda: "No TLS with 127.0.0.1" in log_of(cluster), what="the refusal in the log")
    eventually(lambda: "tlsv1 alert unknown ca" in node.log_text.lower().replace("_", " "), what="the reason here")
    assert not node.is_ready()
    node.kill()


@pytest.mark.parametrize(("claimed", "named"), [(5, 3), (6, None)], ids=["another's", "a client's"])
def test_a_node_that_claims_an_id_not_in_its_certificate_is_refused(
    cluster: SecureCluster, tmp_path: Path, claimed: int, named: int | None
) -> None:
    pair = cluster.authority.issue(f"claimed-{claimed}", node_id=named)
    node = newcomer(cluster, tmp_path / "node", claimed, pair)
    node.launch()
    shown = f"names node {named}" if named is not None else "names no node"
    eventually(lambda: f"It claims to be node {claimed}, and its certificate" in log_of(cluster), what="a refusal")
    assert shown in log_of(cluster)
    eventually(lambda: f"DNS name node-{claimed}.penstock" in node.log_text, what="the reason at the other end")
    assert not node.is_ready()
    node.kill()


def test_a_node_with_its_own_certificate_and_another_token_is_refused(cluster: SecureCluster, tmp_path: Path) -> None:
    node = newcomer(cluster, tmp_path / "node", 7, cluster.authority.issue("node-7", node_id=7))
    node.settings = {**node.settings, "cluster__token": "guessed"}
    node.launch()
    eventually(lambda: "The shared token is not the same" in node.log_text, what="the refusal")
    node.kill()


def test_a_node_joins_with_its_own_certificate(cluster: SecureCluster, tmp_path: Path) -> None:
    node = newcomer(cluster, tmp_path / "node", 8, cluster.authority.issue("node-8", node_id=8))
    with node:
        assert node.ask("/readyz")["node_id"] == 8


def test_a_node_without_internal_tls_cannot_join(cluster: SecureCluster, tmp_path: Path) -> None:
    node = newcomer(cluster, tmp_path / "node", 9, cluster.authority.issue("node-9", node_id=9))
    node.settings = {**node.settings, "security__tls__internal": False}
    node.launch()
    eventually(lambda: "set security.tls.internal on this node as well" in node.log_text, what="the reason")
    assert not node.is_ready()
    node.kill()


def test_without_a_client_certificate_the_internal_port_says_nothing(cluster: SecureCluster) -> None:
    host, _, port = cluster.nodes[1].internal.rpartition(":")
    context = ssl.create_default_context(cafile=cluster.authority.ca)
    context.check_hostname = False
    heard = b""
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        contextlib.suppress(ssl.SSLError, ConnectionResetError),
        context.wrap_socket(plain) as secured,
    ):
        heard = secured.recv(1)
    assert heard == b"", "no challenge"


def test_an_open_internal_address_needs_a_token_or_certificates(tmp_path: Path, authority: Authority) -> None:
    node = SecureNode(tmp_path / "node", 1, authority)
    node.settings = {"broker__internal": node.internal.replace("127.0.0.1", "0.0.0.0")}
    with pytest.raises(NodeError):
        node.start()
    assert "certificates (security.tls.internal)" in node.log_text
    node.settings = {**node.settings, **tls_settings(node.pair, internal=True)}
    with node:
        assert node.ask("/readyz")["status"] == "ok"


def test_certificates_of_nodes_are_changed_one_by_one(cluster: SecureCluster) -> None:
    create(cluster, "kept")
    producer = Producer(rdkafka(cluster, acks="all"))
    failed: list[object] = []
    for node in cluster.nodes.values():
        if isinstance(node, SecureNode) and node.is_running:
            cluster.authority.issue(f"node-{node.node_id}", node_id=node.node_id, file=node.pair.certificate.stem)
            known = node.log_text.count("new handshakes use the changed certificate")
            eventually(
                lambda node=node, known=known: node.log_text.count("new handshakes use the changed") > known,  # type: ignore[misc]
                what="the new certificate",
            )
        for _ in range(200):
            producer.produce("kept", b"x", on_delivery=lambda error, _: error and failed.append(error))
            producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def log_of(cluster: SecureCluster) -> str:
    return "".join(node.log_text for node in cluster.nodes.values())
