"""One command makes a node safe: logins at every door, rights, revocation, rotation, and nothing readable on disk."""

from __future__ import annotations

import contextlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from tests.support.secured_node import SecuredNode, Settings

import penstock
from penstock.errors import PenstockError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CANARY = "canary-7f3a91c2"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with SecuredNode(tmp_path_factory.mktemp("secured")) as running:
        assert isinstance(running, SecuredNode)
        status, _ = running.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        assert status == 201
        yield running
        assert running.is_running, running.log_tail()


def publish(settings: Settings, topic: str, value: bytes = b"x") -> KafkaError | None:
    """The error that a message met, or None if it was delivered."""
    met: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": 10_000, "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: met.append(error))
    producer.flush(15)
    return met[0] if met else KafkaError(KafkaError._MSG_TIMED_OUT)


def set_user(node: SecuredNode, name: str, password: str) -> None:
    status, _ = node.call("PUT", f"/v1/users/{name}", {"password": password})
    assert status in (200, 201)


def grant(node: SecuredNode, role: str, user: str, resource: str, name: str) -> None:
    body = {"role": role, "principal": f"User:{user}", "resource": resource, "name": name}
    status, answer = node.call("POST", "/v1/roles/grant", body)
    assert status == 200, answer


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_admin_logs_in_with_a_password(node: SecuredNode, mechanism: str) -> None:
    assert publish(node.sasl(mechanism, "admin", node.password), "orders") is None


def test_the_admin_logs_in_with_a_certificate(node: SecuredNode) -> None:
    assert publish(node.certificate("admin"), "orders") is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(node: SecuredNode, mechanism: str) -> None:
    problems: list[KafkaError] = []
    settings = {**node.sasl(mechanism, "admin", "wrong"), "error_cb": problems.append, "log_level": 0}
    client = AdminClient(settings)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=5)
    deadline = time.monotonic() + 10
    while not problems and time.monotonic() < deadline:
        client.poll(0.1)
    assert KafkaError._AUTHENTICATION in {problem.code() for problem in problems}


def test_without_a_login_there_is_nothing_to_be_had(node: SecuredNode) -> None:
    plain = {"bootstrap.servers": node.bootstrap, "log_level": 0}
    with pytest.raises(KafkaException):
        AdminClient(plain).list_topics(timeout=3)
    with pytest.raises(KafkaException):
        AdminClient({**plain, "security.protocol": "SSL", "ssl.ca.location": node.ca}).list_topics(timeout=3)
    status, problem = node.call("GET", "/v1/topics", token="")
    assert (status, problem["code"]) == (401, "authentication_failed")
    status, _ = node.call("GET", "/v1/topics", token="psk_0123456789abcdef_" + "A" * 43)
    assert status == 401


def test_rights_are_those_of_the_rules_at_every_door(node: SecuredNode) -> None:
    set_user(node, "alice", "wonderland")
    settings = node.sasl("SCRAM-SHA-256", "alice", "wonderland")
    error = publish(settings, "orders")
    assert error is not None
    assert error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)
    grant(node, "writer", "alice", "topic", "orders")
    assert publish(settings, "orders") is None
    status, issued = node.call("POST", "/v1/keys", {"principal": "User:alice"})
    assert status == 201
    key = issued["key"]
    message = {"messages": [{"value": "by REST"}]}
    assert node.call("POST", "/v1/topics/orders/batch", message, token=key)[0] in (200, 201)
    assert node.call("DELETE", "/v1/topics/orders", token=key)[0] == 403
    assert node.call("GET", "/v1/users", token=key)[0] == 403
    with penstock.Client(node.http_url, ca=node.ca, token=key) as client:
        client.publish("orders", "by the client")
        with pytest.raises(PenstockError):
            client.topics.delete("orders")
    assert node.call("DELETE", f"/v1/keys/{issued['key_id']}")[0] == 204
    assert node.call("GET", "/v1/whoami", token=key)[0] == 401


def test_what_is_taken_away_is_gone_on_open_connections_too(node: SecuredNode) -> None:
    set_user(node, "carol", "secret-of-carol")
    grant(node, "writer", "carol", "topic", "orders")
    met: list[KafkaError | None] = []
    producer = Producer({**node.sasl("PLAIN", "carol", "secret-of-carol"), "message.timeout.ms": 5_000, "log_level": 0})

    def publish_again() -> KafkaError | None:
        producer.produce("orders", b"x", on_delivery=lambda error, _: met.append(error))
        producer.flush(15)
        return met.pop()

    assert publish_again() is None
    body = {"role": "writer", "principal": "User:carol", "resource": "topic", "name": "orders"}
    assert node.call("POST", "/v1/roles/revoke", body)[0] == 200
    refused = publish_again()
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_client_certificate_names_its_user(node: SecuredNode) -> None:
    assert node.cli("secure", "add-client", node.secure, "dave").returncode == 0
    assert publish(node.certificate("dave"), "orders") is not None
    grant(node, "writer", "dave", "topic", "orders")
    assert publish(node.certificate("dave"), "orders") is None


def test_certificates_are_rotated_without_a_restart(node: SecuredNode) -> None:
    import socket

    def serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", node.kafka_port), timeout=5) as plain,
            node.context().wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            certificate = secured.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    before = serial()
    assert node.cli("secure", "rotate", node.secure).returncode == 0
    deadline = time.monotonic() + 20
    while serial() == before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert serial() != before
    assert publish(node.certificate("admin"), "orders") is None


def test_the_command_line_logs_in_and_stays_logged_in(node: SecuredNode) -> None:
    refused = node.cli("topic", "list", "--url", node.http_url, "--ca", node.ca)
    assert refused.returncode == 1
    assert "penstock login" in refused.stderr
    wrong = node.cli("login", node.http_url, "--ca", node.ca, "--token-file", "-", stdin="psk_wrong\n")
    assert wrong.returncode == 1
    assert not (node.home / "penstock").exists()
    done = node.cli("login", node.http_url, "--ca", node.ca, "--token-file", node.secure / "admin.token")
    assert done.returncode == 0, done.stderr
    assert "User:admin" in done.stdout
    listed = node.cli("topic", "list", "-o", "json")
    assert '"orders"' in listed.stdout
    assert node.cli("logout").returncode == 0
    assert node.cli("topic", "list", "--url", node.http_url, "--ca", node.ca).returncode == 1


def test_users_keys_and_rules_outlive_kill_9_and_what_was_removed_does_not_come_back(tmp_path: Path) -> None:
    with SecuredNode(tmp_path) as node:
        assert isinstance(node, SecuredNode)
        set_user(node, "erin", "password-of-erin")
        key_id = node.token.split("_")[1]
        status, issued = node.call("POST", "/v1/keys", {"principal": "User:admin"})
        assert status == 201
        assert node.call("DELETE", f"/v1/keys/{key_id}", token=issued["key"])[0] == 204
        node.kill()
        node.restart()
        assert node.call("GET", "/v1/whoami")[0] == 401
        status, users = node.call("GET", "/v1/users", token=issued["key"])
        assert status == 200
        assert [user["user"] for user in users["users"]] == ["admin", "erin"]


def test_nothing_that_was_written_can_be_read_on_the_disk(tmp_path: Path) -> None:
    with SecuredNode(tmp_path) as node:
        assert isinstance(node, SecuredNode)
        assert node.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})[0] == 201
        assert publish(node.sasl("SCRAM-SHA-512", "admin", node.password), "orders", CANARY.encode() * 3) is None
        later = {"topic": "orders", "key": CANARY, "value": CANARY, "delay_ms": 3_600_000}
        assert node.call("POST", "/v1/schedules", later)[0] in (200, 201)
        leased = node.call("POST", "/v1/queues/orders/receive", {"max": 1})
        assert leased[0] == 200
        assert CANARY in str(leased[1])
        node.stop()
        found = [
            path
            for path in node.data_dir.rglob("*")
            if path.is_file()
            and any(secret in path.read_bytes() for secret in (CANARY.encode(), node.password.encode()))
        ]
        assert not found
        modes = {path.stat().st_mode & 0o077 for path in node.data_dir.rglob("*")}
        assert modes == {0}
        node.restart()
        consumer = Consumer(
            {**node.sasl("SCRAM-SHA-512", "admin", node.password), "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == CANARY.encode() * 3
        consumer.close()


def test_credentials_do_not_help_a_foreign_page(node: SecuredNode) -> None:
    """A page of another site may change nothing, nor use its own name for the node, even with the admin's token."""
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
    ):
        connection = http.client.HTTPSConnection("127.0.0.1", node.http_port, timeout=30, context=node.context())
        with contextlib.closing(connection):
            login = {"Authorization": f"Bearer {node.token}", "Content-Type": "application/json"}
            connection.request("POST", "/v1/topics", b'{"name": "evil"}', {**login, **headers})
            answer = connection.getresponse()
            assert answer.status == status, (headers, answer.read())
    assert node.call("GET", "/v1/topics/evil")[0] == 404


def test_headers_of_forwarding_name_no_one(node: SecuredNode) -> None:
    for name in ("X-Forwarded-User", "X-Penstock-Principal", "Penstock-Identity", "X-Forwarded-For", "Forwarded"):
        request = urllib.request.Request(f"{node.http_url}/v1/topics", headers={name: "User:admin"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30, context=node.context())
        assert refused.value.code == 401
        refused.value.close()


def test_no_secret_is_shown_anywhere(node: SecuredNode) -> None:
    """Not in the log, in metrics, in the settings as they are shown, nor in the text of an error."""
    secrets = {
        line.split(":", 1)[-1]
        for name in ("admin.credentials", "admin.token", "cluster.token", "master.key", "admin.key", "node.key")
        for line in (node.secure / name).read_text().splitlines()
        if len(line) > 12 and not line.startswith("-----")
    }
    secrets.add(node.token.rsplit("_", 1)[-1])
    assert len(secrets) > 8
    for mechanism in MECHANISMS:
        publish(node.sasl(mechanism, "admin", node.password), "orders")
    shown = [str(node.call("GET", "/v1/topics", token=node.token[:-1])), str(node.call("POST", "/v1/keys", {"a": 1}))]
    request = urllib.request.Request(f"{node.http_url}/metrics", headers={"Authorization": f"Bearer {node.token}"})
    with urllib.request.urlopen(request, timeout=30, context=node.context()) as answer:
        shown.append(answer.read().decode())
    settings = node.cli("config", "show", "--config", node.secure / "penstock.yaml")
    assert settings.returncode == 0, settings.stderr
    shown += [settings.stdout, settings.stderr, node.log_text]
    assert "penstock_" in shown[2]
    assert "master_key_file" in settings.stdout
    for text in shown:
        assert not [secret for secret in secrets if secret in text]
