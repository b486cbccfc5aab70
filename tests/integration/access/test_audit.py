"""The audit log as a topic: what was done and refused is found again, bounded, and without credentials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.access.conftest import ALICE, NOBODY, ROOT, SecureDoor

from penstock.features.access import audit_topic as module
from penstock.features.access.audit import AuditEvent
from penstock.features.access.audit_topic import WAITING_MAX, AuditFilter
from penstock.model import AUDIT_TOPIC


def eventually(look: Callable[[], Any], patience_s: float = 60.0) -> Any:
    """What is found once there is something."""
    deadline = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


def read(secure: SecureDoor, **query: Any) -> list[dict[str, Any]]:
    answer = secure.root.get("/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    events: list[dict[str, Any]] = answer.json()["events"]
    return events


def about(secure: SecureDoor, text: str, **query: Any) -> list[dict[str, Any]]:
    return [event for event in read(secure, limit=1000, **query) if text in event["resource"]]


def test_a_change_is_found_with_who_where_what_and_the_id_of_its_request(secure: SecureDoor) -> None:
    made = secure.root.post("/v1/topics", json={"name": "noted", "partitions": 1}, headers={"x-request-id": "r-17"})
    assert made.status_code == 201
    (event,) = eventually(lambda: about(secure, "'noted'", decision="allowed"))
    assert abs(datetime.fromisoformat(event.pop("time")) - datetime.now(UTC)) < timedelta(minutes=2)
    assert event == {
        "principal": "User:root",
        "host": "127.0.0.1",
        "operation": "create_topic",
        "resource": "CREATE on topic 'noted'",
        "decision": "allowed",
        "request_id": "r-17",
        "node_id": 1,
        "left_out": 0,
    }
    assert secure.root.post("/v1/topics", json={"name": "noted", "partitions": 1}).status_code == 409
    eventually(lambda: about(secure, "'noted'", decision="failed"))


def test_refusals_are_found_by_principal_and_decision(secure: SecureDoor) -> None:
    assert secure.client_of(NOBODY).delete("/v1/topics/noted").status_code == 403
    events = eventually(lambda: read(secure, principal="User:nobody", decision="denied"))
    assert {event["operation"] for event in events} == {"delete_topic"}
    assert read(secure, principal="User:nobody", decision="allowed") == []
    assert secure.client_of((ALICE[0], "wrong")).get("/v1/topics").status_code == 401
    (failed, *_) = eventually(lambda: read(secure, decision="login_failed"))
    assert (failed["principal"], failed["operation"]) == ("", "http")


def test_newest_come_first_and_a_limit_and_a_time_bound_them(secure: SecureDoor) -> None:
    since = datetime.now(UTC).isoformat()
    for number in range(5):
        secure.root.post("/v1/topics", json={"name": f"in-order-{number}", "partitions": 1}).raise_for_status()
    events = eventually(lambda: len(found := about(secure, "'in-order-", since=since)) == 5 and found)
    assert [event["resource"][-2] for event in events] == ["4", "3", "2", "1", "0"]
    page = secure.root.get("/v1/audit", params={"limit": 2}).json()
    assert len(page["events"]) == page["scanned"] == 2
    assert page["total"] > 5
    assert read(secure, since="2100-01-01T00:00:00Z") == []


def test_reading_needs_a_right_and_the_topic_is_closed_even_to_administrators(secure: SecureDoor) -> None:
    eventually(lambda: secure.look(lambda broker: AUDIT_TOPIC in broker.metadata.topics))
    assert secure.client_of(NOBODY).get("/v1/audit").status_code == 403
    assert secure.client_of(None).get("/v1/audit").status_code == 401
    assert secure.root.get(f"/v1/topics/{AUDIT_TOPIC}/messages").status_code == 403
    assert secure.root.post(f"/v1/topics/{AUDIT_TOPIC}/publish", json={"value": "forged"}).status_code == 403
    assert secure.root.delete(f"/v1/topics/{AUDIT_TOPIC}").status_code == 403


def test_its_retention_is_a_setting(secure: SecureDoor) -> None:
    configs = secure.look(lambda broker: dict(broker.metadata.topic(AUDIT_TOPIC).configs))
    assert (configs["retention.ms"], configs["cleanup.policy"]) == (str(90 * 86_400_000), "delete")


def test_another_retention_holds_from_the_next_start_on(tmp_path: Path) -> None:
    door = SecureDoor(tmp_path)
    eventually(lambda: door.look(lambda broker: AUDIT_TOPIC in broker.metadata.topics))
    door.close()
    again = SecureDoor(tmp_path, audit_retention_ms=3_600_000)
    try:
        eventually(
            lambda: again.look(lambda broker: broker.metadata.topic(AUDIT_TOPIC).configs["retention.ms"] == "3600000")
        )
        eventually(lambda: read(again, decision="allowed"))
    finally:
        again.close()


def test_credentials_are_in_no_event(secure: SecureDoor) -> None:
    secret = "a-password-that-is-a-canary"
    secure.root.put("/v1/users/canary", json={"password": secret}).raise_for_status()
    key = secure.root.post("/v1/keys", json={"principal": "User:canary"}).json()["key"]
    eventually(lambda: {"set_user", "issue_api_key"} <= {event["operation"] for event in read(secure, limit=1000)})
    told = secure.root.get("/v1/audit", params={"limit": 1000}).text
    assert all(each not in told for each in (secret, key, ROOT[1], ALICE[1]))


def event(number: int, principal: str = "User:x") -> AuditEvent:
    return AuditEvent(time_ms=number, node_id=1, decision="allowed", principal=principal, resource=str(number))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[SecureDoor]:
    door = SecureDoor(tmp_path)
    yield door
    door.close()


def test_what_does_not_fit_into_the_queue_is_counted_and_holds_no_one_up(fresh: SecureDoor) -> None:
    def flood(broker: Any) -> int:
        before = broker.audit_topic.dropped
        for number in range(WAITING_MAX + 500):
            broker.audit_topic.add(event(number, "User:flood"))
        return int(broker.audit_topic.dropped - before)

    assert fresh.look(flood) >= 500
    eventually(lambda: len(read(fresh, principal="User:flood", limit=1000)) == 1000)
    assert f"penstock_audit_dropped_total {fresh.look(lambda broker: broker.audit_topic.dropped)}.0" in (
        fresh.root.get("/metrics").text
    )


def test_a_search_looks_at_a_bounded_number_and_says_so(fresh: SecureDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCANNED_MAX", 1_000)
    fresh.look(lambda broker: [broker.audit_topic.add(event(number, "User:many")) for number in range(3_000)])
    eventually(lambda: fresh.root.get("/v1/audit?limit=1").json()["total"] >= 3_000)
    found = fresh.run(fresh.broker.audit_topic.find(AuditFilter(principal="User:none"), 100))
    assert (found.events, found.scanned) == ([], 1_000)
    assert found.total >= 3_000


def test_what_waits_is_written_when_the_node_stops_and_is_there_after_it(tmp_path: Path) -> None:
    door = SecureDoor(tmp_path)
    door.look(lambda broker: broker.audit_topic.add(event(1, "User:last")))
    door.close()
    again = SecureDoor(tmp_path)
    try:
        assert [found["resource"] for found in read(again, principal="User:last")] == ["1"]
    finally:
        again.close()
