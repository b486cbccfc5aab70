"""On a secured node: an administrator sets quotas and reads the audit log from the command line; others do not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.secured_node import SecuredNode, eventually

PASSWORD = "password-of-greta"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with SecuredNode(tmp_path_factory.mktemp("secured")) as running:
        assert isinstance(running, SecuredNode)
        token = running.secure / "admin.token"
        login = running.cli("login", running.http_url, "--ca", running.ca, "--token-file", token)
        assert login.returncode == 0, login.stderr
        assert running.call("PUT", "/v1/users/greta", {"password": PASSWORD})[0] in (200, 201)
        yield running
        assert running.is_running, running.log_tail()


def issue(node: SecuredNode, user: str) -> str:
    status, issued = node.call("POST", "/v1/keys", {"principal": f"User:{user}"})
    assert status == 201
    return str(issued["key"])


def test_quotas_are_set_listed_and_removed_and_hold_their_user(node: SecuredNode) -> None:
    key = issue(node, "greta")
    made = node.cli("quota", "set", "request_rate=0.1", "producer_byte_rate=1000", "--user", "greta", "-o", "json")
    assert json.loads(made.stdout)["quotas"] == {"producer_byte_rate": "1000", "request_rate": "0.1"}
    assert node.call("GET", "/v1/whoami", token=key)[0] == 200
    status, problem = node.call("GET", "/v1/whoami", token=key)
    assert (status, problem["code"]) == (429, "quota_exceeded")
    assert node.call("GET", "/v1/whoami")[0] == 200, "of another user"
    assert node.call("GET", "/v1/quotas", token=issue(node, "stranger"))[0] == 403
    removed = node.cli("quota", "set", "request_rate=", "--user", "greta", "-o", "json")
    assert json.loads(removed.stdout)["quotas"] == {"producer_byte_rate": "1000"}
    listed = [json.loads(line) for line in node.cli("quota", "list", "-o", "json").stdout.splitlines()]
    assert [(each["user"], each["quotas"]) for each in listed] == [("greta", {"producer_byte_rate": "1000"})]
    assert node.cli("quota", "remove", "--user", "greta", "--yes").returncode == 0
    assert node.cli("quota", "remove", "--user", "greta", "--yes").returncode == 3
    assert node.cli("quota", "set", "no_such_rate=1", "--user", "greta").returncode == 2


def test_the_audit_log_has_changes_of_every_door_and_no_credentials(node: SecuredNode) -> None:
    admin = AdminClient(node.sasl("SCRAM-SHA-512", "admin", node.password))
    admin.create_topics([NewTopic("by-kafka", 1, 1)])["by-kafka"].result(30)
    assert node.call("POST", "/v1/topics", {"name": "by-rest", "partitions": 1})[0] == 201
    assert node.call("DELETE", "/v1/topics/by-rest", token=issue(node, "stranger"))[0] == 403

    def has_all() -> None:
        told = node.cli("audit", "--principal", "User:admin", "--since", "1h", "--limit", "1000", "-o", "json")
        assert told.returncode == 0, told.stderr
        page = json.loads(told.stdout)
        done = {(event["operation"], event["decision"]) for event in page["events"]}
        assert {("kafka.CreateTopics", "allowed"), ("create_topic", "allowed"), ("set_user", "allowed")} <= done
        assert 0 < page["scanned"] <= page["total"]
        for secret in (node.password, node.token, PASSWORD):
            assert secret not in told.stdout

    eventually(has_all)
    shown = node.cli("audit", "--decision", "denied")
    assert "User:stranger" in shown.stdout
    assert "delete_topic" in shown.stdout


def test_what_was_noted_is_there_after_a_restart(node: SecuredNode) -> None:
    assert node.call("POST", "/v1/topics", {"name": "just-before", "partitions": 1})[0] == 201
    node.stop()
    node.restart()
    status, page = node.call("GET", "/v1/audit?limit=1000")
    assert status == 200
    assert any("'just-before'" in event["resource"] for event in page["events"])
