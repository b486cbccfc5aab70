"""Three nodes with everything on: kills and rotations under load cost nothing, and strangers among them get nothing."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer
from tests.support.certificates import Authority
from tests.support.cluster import eventually
from tests.support.ledger import Books, entries_by_producer, read_partition
from tests.support.secured_cluster import SecuredCluster
from tests.support.secured_node import penstock
from tests.support.stranger import Stranger

from penstock.access.principal import Principal
from penstock.features.access.forwarding import Identity, Voucher
from penstock.network.frames import Failure, FrameKind, decode_structure
from penstock.operations.asking import ASK, Ask, Outcome
from penstock.operations.caller import Origin

PARTITIONS = 2
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured-cluster")) as made:
        yield made


class Reading:
    """A member of a group that reads all the time, and notes what it gets."""

    def __init__(self, cluster: SecuredCluster, topic: str) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.failures: list[str] = []
        self._consumer = Consumer(
            {**cluster.sasl("SCRAM-SHA-256"), "group.id": "readers", "auto.offset.reset": "earliest", "log_level": 0}
        )
        self._consumer.subscribe([topic])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is None:
                    self.seen.add((message.partition() or 0, message.offset() or 0))
                elif not error.retriable():
                    self.failures.append(str(error))

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()


def make_topic(cluster: SecuredCluster, name: str) -> None:
    status, answer = cluster.first.call(
        "POST",
        "/v1/topics",
        {"name": name, "partitions": PARTITIONS, "replication_factor": 3, "configs": {"min.insync.replicas": "2"}},
    )
    assert status == 201, answer
    eventually(lambda: cluster.is_in_sync(name), what="three replicas in sync")


def test_kills_and_rotations_under_load_cost_nothing(cluster: SecuredCluster) -> None:
    make_topic(cluster, "steady")
    settings = cluster.sasl()
    bootstrap = str(settings.pop("bootstrap.servers"))
    idempotent = {"acks": "all", "enable.idempotence": True}
    books = Books("books", bootstrap, "steady", PARTITIONS, **{**settings, **idempotent}).start()
    reading = Reading(cluster, "steady")

    def goes_on() -> None:
        known = books.acked_count
        eventually(lambda: books.acked_count > known + 200, what="more messages acknowledged")

    goes_on()
    for node in cluster.nodes.values():
        node.rotate_certificates()
        goes_on()
    for node in cluster.nodes.values():
        node.rotate_master_key()
        goes_on()
    victim = cluster.nodes[cluster.leader("steady")]
    victim.kill()
    goes_on()
    victim.restart()  # with the new certificate and two master keys
    goes_on()
    eventually(lambda: cluster.is_in_sync("steady"), what="three replicas in sync again")
    assert books.finish() == 0
    assert not books.failed
    assert not books.fatal
    written = {at: read_partition(bootstrap, "steady", at, **settings) for at in range(PARTITIONS)}
    for at, records in written.items():
        # Idempotent and in order: exactly what was sent, each once.
        assert entries_by_producer(records)["books"] == list(range(books.sent[at]))
        assert sorted(books.acked[at]) == list(range(books.sent[at]))
    wanted = {(at, offset) for at, records in written.items() for offset, _ in records}
    eventually(lambda: wanted <= reading.seen, what="everything read by the group")
    reading.finish()
    assert not reading.failures
    for node in cluster.nodes.values():
        assert node.call("GET", "/v1/topics/steady")[0] == 200


def test_every_node_serves_the_admin_for_the_others(cluster: SecuredCluster) -> None:
    make_topic(cluster, "forwarded")
    for node in cluster.nodes.values():
        for partition in range(PARTITIONS):
            message = {"messages": [{"value": f"by node {node.node_id}", "partition": partition}]}
            status, answer = node.call("POST", "/v1/topics/forwarded/batch", message)
            assert status in (200, 201), answer
        assert node.call("GET", "/v1/topics", token="")[0] == 401


# -- strangers ---------------------------------------------------------------------------------------------------------


def token_of(cluster: SecuredCluster) -> str:
    return (cluster.first.secure / "cluster.token").read_text().strip()


def pair_of(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


@pytest.fixture(scope="module")
def outsider(cluster: SecuredCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A good certificate for node 9, which never joined."""
    home = tmp_path_factory.mktemp("outsider")
    named = ("--node-id", "9", "--internal", "127.0.0.1:1", "--join", cluster.first.internal)
    made = penstock("secure", "add-node", cluster.first.secure, home / "node", *named, home=home)
    assert made.returncode == 0, made.stderr
    return pair_of(home / "node", "node")


def ask(operation: str, request: bytes, identity: Identity | None) -> Ask:
    origin = Origin(
        instance="x", host=HOST, trace="", wants_packed=False, answer_bytes_max=1 << 20, publish_timeout_ms=10_000
    )
    return Ask(operation, len(request), 10_000, origin, identity)


def delete_topic(stranger: Stranger, identity: Identity | None) -> None:
    request = msgspec.json.encode({"topic": "precious"})
    stranger.send(FrameKind.CALL, ASK.name, ask("delete_topic", request, identity), request)


@pytest.fixture(scope="module")
def precious(cluster: SecuredCluster) -> Iterator[None]:
    """A topic that strangers try to delete, and nodes that they would like to be among."""
    make_topic(cluster, "precious")
    nodes = node_ids(cluster)
    yield
    assert cluster.first.call("GET", "/v1/topics/precious")[0] == 200
    assert node_ids(cluster) == nodes


def node_ids(cluster: SecuredCluster) -> list[int]:
    status, answer = cluster.first.call("GET", "/v1/cluster")
    assert status == 200, answer
    return sorted(node["node_id"] for node in answer["nodes"])


@pytest.mark.usefixtures("precious")
def test_without_tls_there_is_only_a_word_of_why_not(cluster: SecuredCluster) -> None:
    for node in cluster.nodes.values():
        with Stranger(node.internal, has_tls=False) as stranger:
            delete_topic(stranger, None)
            frame = stranger.hear()
            assert frame is None or frame.method == "refusal"
            assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
def test_without_a_certificate_not_even_a_challenge_is_told(cluster: SecuredCluster) -> None:
    for node in cluster.nodes.values():
        with Stranger(node.internal) as stranger:
            delete_topic(stranger, None)
            assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
def test_a_certificate_of_another_authority_is_none(cluster: SecuredCluster, tmp_path: Path) -> None:
    foreign = Authority(tmp_path, "Penstock cluster authority").issue("node-2.penstock", node_id=2)
    for node in cluster.nodes.values():
        with Stranger(node.internal, (foreign.certificate, foreign.key)) as stranger:
            delete_topic(stranger, None)
            assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
@pytest.mark.parametrize("claimed", [-1, 2, 9])
def test_a_client_certificate_is_no_nodes_even_with_the_token(cluster: SecuredCluster, claimed: int) -> None:
    with Stranger(cluster.first.internal, pair_of(cluster.first.secure, "admin")) as stranger:
        challenge = stranger.challenge()
        assert challenge is not None
        assert "names no node" in stranger.introduce(challenge, claimed, token_of(cluster))
        delete_topic(stranger, None)
        assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
@pytest.mark.parametrize("guess", ["", "guessed"])
def test_a_node_certificate_without_the_token_is_refused(
    cluster: SecuredCluster, outsider: tuple[Path, Path], guess: str
) -> None:
    with Stranger(cluster.first.internal, outsider) as stranger:
        challenge = stranger.challenge()
        assert challenge is not None
        assert "token is not the same" in stranger.introduce(challenge, 9, guess)
        delete_topic(stranger, None)
        assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
@pytest.mark.parametrize("claimed", [1, 2, 3])
def test_no_node_speaks_for_another(cluster: SecuredCluster, outsider: tuple[Path, Path], claimed: int) -> None:
    with Stranger(cluster.first.internal, outsider) as stranger:
        challenge = stranger.challenge()
        assert challenge is not None
        assert "names node 9" in stranger.introduce(challenge, claimed, token_of(cluster))
        delete_topic(stranger, None)
        assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
def test_nothing_is_served_before_the_introduction(cluster: SecuredCluster, outsider: tuple[Path, Path]) -> None:
    with Stranger(cluster.first.internal, outsider) as stranger:
        assert stranger.challenge() is not None
        delete_topic(stranger, None)
        assert stranger.hear() is None


@pytest.mark.usefixtures("precious")
def test_a_proof_is_good_on_its_own_connection_only(cluster: SecuredCluster, outsider: tuple[Path, Path]) -> None:
    with Stranger(cluster.first.internal, outsider) as one, Stranger(cluster.first.internal, outsider) as other:
        challenge = one.challenge()
        assert challenge is not None
        assert other.challenge() is not None
        assert "token is not the same" in other.introduce(challenge, 9, token_of(cluster))


@pytest.mark.usefixtures("precious")
def test_a_visitor_may_not_ask_for_operations(cluster: SecuredCluster, outsider: tuple[Path, Path]) -> None:
    with Stranger(cluster.first.internal, outsider) as stranger:
        challenge = stranger.challenge()
        assert challenge is not None
        assert stranger.introduce(challenge, 9, token_of(cluster)) == ""
        delete_topic(stranger, None)
        assert "Only nodes of the cluster" in error_of(stranger).message


@pytest.mark.usefixtures("precious")
def test_an_identity_that_no_node_signed_is_refused(cluster: SecuredCluster, outsider: tuple[Path, Path]) -> None:
    """Even a node that is let in cannot make up who asks without the token that signs."""
    with Stranger(cluster.first.internal, outsider) as stranger:
        challenge = stranger.challenge()
        assert challenge is not None
        assert stranger.introduce(challenge, 9, token_of(cluster), expected_id=1) == ""
        admin, request = Principal("admin"), msgspec.json.encode({"topic": "precious"})
        now_ms = now()
        forged = Voucher("guessed").sign(admin, HOST, "delete_topic", request, now_ms)
        voucher = Voucher(token_of(cluster))
        another = voucher.sign(Principal("nobody"), HOST, "delete_topic", request, now_ms)
        good = voucher.sign(admin, HOST, "delete_topic", request, now_ms)
        for identity in (
            None,
            forged,
            msgspec.structs.replace(good, signature=b""),
            msgspec.structs.replace(good, signature=secrets.token_bytes(32)),
            voucher.sign(admin, HOST, "list_topics", request, now_ms),
            voucher.sign(admin, HOST, "delete_topic", b"{}", now_ms),
            voucher.sign(admin, HOST, "delete_topic", request, now_ms - 60_000),
            msgspec.structs.replace(another, name="admin"),
        ):
            delete_topic(stranger, identity)
            assert error_of(stranger).error in {"AuthenticationFailed", "NotAuthenticated"}


def error_of(stranger: Stranger) -> Failure:
    """The error of a call, whether of the call itself or of the operation that it asked for."""
    frame = stranger.hear()
    assert frame is not None
    if frame.kind == FrameKind.ERROR:
        failure: Failure = decode_structure(Failure, frame.structure)
        return failure
    outcome: Outcome = decode_structure(Outcome, frame.structure)
    assert outcome.error is not None, "it was served"
    return outcome.error


def now() -> int:
    return time.time_ns() // 1_000_000


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_no_secret_is_in_a_log(cluster: SecuredCluster) -> None:
    log = cluster.log_text
    names = ("admin.credentials", "admin.token", "cluster.token", "master.key", "admin.key", "node.key", "ca.key")
    for node in cluster.nodes.values():
        for name in names:
            path = node.secure / name
            if path.exists():
                for line in path.read_text().splitlines():
                    if len(line) > 12 and not line.startswith("-----"):
                        assert line.removeprefix("1:").removeprefix("2:") not in log, name
