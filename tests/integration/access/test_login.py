"""Who calls, over HTTP and WebSocket: credentials of every kind, and what holds while connections last."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time
from typing import Any

import pytest
from tests.integration.access.conftest import ALICE, NOBODY, ROOT, SecureDoor
from tests.integration.http.websocket.conftest import Talk
from websockets.exceptions import InvalidStatus

from penstock.access.acls import CLUSTER_NAME, Acl, AclAction, AclPattern, AclResource

TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER


def may(action: AclAction, resource: AclResource, name: str, who: str = "User:alice", **more: Any) -> Acl:
    return Acl(principal=who, action=action, resource=resource, name=name, **more)


def basic(login: tuple[str, str]) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"}


def who_am_i(secure: SecureDoor, headers: dict[str, str]) -> tuple[int, str]:
    answer = secure.client_of(None).get("/v1/whoami", headers=headers)
    return answer.status_code, answer.json().get("principal", answer.json().get("code"))


def issue(secure: SecureDoor, **more: Any) -> dict[str, Any]:
    answer = secure.root.post("/v1/keys", json={"principal": "User:alice", **more})
    assert answer.status_code == 201
    issued: dict[str, Any] = answer.json()
    return issued


# -- credentials -------------------------------------------------------------------------------------------------------


def test_a_password_and_a_key_name_their_principal(secure: SecureDoor) -> None:
    assert who_am_i(secure, basic(ALICE)) == (200, "User:alice")
    assert who_am_i(secure, {"Authorization": f"bearer {issue(secure)['key']}"}) == (200, "User:alice")


@pytest.mark.parametrize(
    "headers",
    [
        basic(("alice", "wrong")),
        basic(("no such user", "x")),
        basic(("", "")),
        {"Authorization": "Basic !!"},
        {"Authorization": "Basic"},
        {"Authorization": "Digest abc"},
        {"Authorization": "Bearer psk_0000000000000000_" + "a" * 43},
        {"Authorization": "Bearer a.b.c"},
        {"Authorization": "Bearer " + "x" * 20_000},
    ],
    ids=str,
)
def test_wrong_credentials_are_refused_alike_whatever_is_asked_for(secure: SecureDoor, headers: dict[str, str]) -> None:
    for path in ("/v1/whoami", "/livez", "/nowhere"):
        answer = secure.client_of(None).get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["code"] == "authentication_failed"
        assert answer.json()["detail"] == "The credentials are wrong or no longer valid."
        assert "Bearer" in answer.headers["www-authenticate"]
        assert "Basic" in answer.headers["www-authenticate"]
    secure.look(lambda broker: broker.authenticator._by_address._counts.clear())  # later tests need not wait


def test_a_node_that_does_not_know_its_users_yet_judges_no_credentials(secure: SecureDoor) -> None:
    key = {"Authorization": f"Bearer psk_0000000000000000_{'a' * 43}"}  # it may be good once the metadata is read
    secure.look(lambda broker: setattr(broker, "is_started", False))
    try:
        client = secure.client_of(None)
        assert client.get("/livez", headers=key).status_code == 200
        for path in ("/v1/whoami", "/v1/cluster", "/v1/topics"):
            answer = client.get(path, headers=key)
            assert (answer.status_code, answer.json()["code"]) == (503, "node_starting")
    finally:
        secure.look(lambda broker: setattr(broker, "is_started", True))
    assert secure.client_of(None).get("/v1/whoami", headers=key).status_code == 401
    secure.look(lambda broker: broker.authenticator._by_address._counts.clear())


def test_headers_that_claim_an_identity_do_nothing(secure: SecureDoor) -> None:
    names = ("X-Forwarded-User", "Penstock-Principal", "X-Penstock-Identity", "Penstock-Forwarded", "Remote-User")
    claimed = dict.fromkeys(names, "User:root")
    assert who_am_i(secure, claimed) == (401, "authentication_failed")
    assert who_am_i(secure, {**claimed, **basic(NOBODY)}) == (200, "User:nobody")


def test_tries_that_follow_failures_wait(secure: SecureDoor) -> None:
    for _ in range(7):
        assert who_am_i(secure, basic(("alice", "wrong")))[0] == 401
    began = time.monotonic()
    assert who_am_i(secure, basic(("nobody", "wrong")))[0] == 401
    assert time.monotonic() - began > 0.15
    secure.look(lambda broker: broker.authenticator._by_address._counts.clear())
    assert who_am_i(secure, basic(ALICE))[0] == 200


def test_the_password_of_the_file_ends_with_one_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    door = SecureDoor(tmp_path_factory.mktemp("bootstrap"))
    try:
        assert who_am_i(door, basic(ROOT)) == (200, "User:root")
        door.root.put("/v1/users/root", json={"password": "another"}).raise_for_status()
        assert who_am_i(door, basic(ROOT))[0] == 401
        assert who_am_i(door, basic(("root", "another"))) == (200, "User:root")
    finally:
        door.close()


def test_a_key_is_no_wider_than_its_scopes_and_its_principal(secure: SecureDoor) -> None:
    secure.ensure_topic("one")
    secure.ensure_topic("two")
    secure.set_rules([may(AclAction.READ, TOPIC, "one"), may(AclAction.READ, TOPIC, "two")])
    scope = {"role": "writer", "resource": "topic", "name": "one"}
    narrow = secure.client_of(issue(secure, scopes=[{**scope, "role": "reader"}])["key"])
    assert [narrow.get(f"/v1/topics/{name}").status_code for name in ("one", "two")] == [200, 403]
    wide = secure.client_of(issue(secure, scopes=[scope])["key"])
    assert wide.post("/v1/topics/one/publish", json={"value": 1}).status_code == 403


def test_a_key_ends_when_it_expires_and_when_it_is_revoked(secure: SecureDoor) -> None:
    short, long = issue(secure, expires_in_ms=1_000), issue(secure)
    client = secure.client_of(long["key"])
    assert client.get("/v1/whoami").json()["key_id"] == long["key_id"]
    time.sleep(1.1)
    assert secure.client_of(short["key"]).get("/v1/whoami").status_code == 401
    assert secure.root.delete(f"/v1/keys/{long['key_id']}").status_code == 204
    assert client.get("/v1/whoami").status_code == 401
    listed = secure.root.get("/v1/keys").text
    assert short["key_id"] in listed
    assert short["key"] not in listed


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_refusal_does_not_tell_what_exists_and_names_the_right_to_those_who_may_know(secure: SecureDoor) -> None:
    secure.ensure_topic("hidden")
    secure.set_rules([])
    nobody = secure.client_of(NOBODY)
    there, not_there = (nobody.get(f"/v1/topics/{name}").json() for name in ("hidden", "never-made"))
    assert there.pop("instance") != not_there.pop("instance")
    assert there == not_there
    assert "DESCRIBE" not in there["detail"]
    secure.set_rules([may(AclAction.DESCRIBE, TOPIC, "hidden")])
    told = secure.client_of(ALICE).post("/v1/topics/hidden/publish", json={"value": 1})
    assert told.status_code == 403
    assert "WRITE on topic 'hidden'" in told.json()["detail"]


def test_lists_show_what_the_caller_may_describe(secure: SecureDoor) -> None:
    for name in ("mine.a", "mine.b", "theirs"):
        secure.ensure_topic(name)
    secure.set_rules([may(AclAction.READ, TOPIC, "mine.", pattern=AclPattern.PREFIXED)])
    alice = secure.client_of(ALICE)
    assert [each["name"] for each in alice.get("/v1/topics?include_internal=true").json()["topics"]] == [
        "mine.a",
        "mine.b",
    ]
    found = alice.post("/v1/offsets", json={"topics": ["mine.a", "theirs", "never-made"]}).json()
    assert [each["topic"] for each in found["topics"]] == ["mine.a"]
    assert sorted(found["missing"]) == ["never-made", "theirs"]
    assert [each["topic"] for each in alice.post("/v1/offsets", json={"pattern": ".*"}).json()["topics"]] == [
        "mine.a",
        "mine.b",
    ]


def test_the_brokers_own_topics_are_closed_to_super_users_too(secure: SecureDoor) -> None:
    secure.ensure_topic("queue")
    assert secure.root.post("/v1/queues/queue/receive", json={"wait_ms": 0}).status_code == 200
    names = secure.look(lambda broker: [name for name in broker.metadata.topics if name.startswith("__")])
    assert names
    for name in names:
        assert secure.root.get(f"/v1/topics/{name}").status_code == 403
        assert secure.root.get(f"/v1/topics/{name}/partitions/0/messages").status_code in {403, 404}


def test_publishing_creates_a_topic_only_with_the_right_to(secure: SecureDoor) -> None:
    secure.set_rules([may(AclAction.WRITE, TOPIC, "new")])
    alice = secure.client_of(ALICE)
    assert alice.post("/v1/topics/new/publish", json={"value": 1}).status_code == 403
    secure.set_rules([may(AclAction.WRITE, TOPIC, "new"), may(AclAction.CREATE, CLUSTER, CLUSTER_NAME)])
    assert alice.post("/v1/topics/new/publish", json={"value": 1}).status_code == 200


def test_health_is_open_and_details_are_not(secure: SecureDoor) -> None:
    anonymous = secure.client_of(None)
    assert anonymous.get("/livez").status_code == 200
    bare = anonymous.get("/readyz")
    assert (bare.status_code, bare.json()["status"], bare.json()["version"]) == (200, "ok", "")
    assert secure.client_of(NOBODY).get("/readyz").json()["version"] != ""
    assert anonymous.get("/metrics").status_code == 401
    secure.set_rules([])
    assert secure.client_of(NOBODY).get("/metrics").status_code == 403
    text = secure.root.get("/metrics").text
    assert 'penstock_authentication_failures_total{door="http"' in text
    assert "penstock_authorization_denied_total" in text


def test_a_member_of_a_group_reads_only_with_rights_to_its_topics(secure: SecureDoor) -> None:
    """The id of a member is shown where its group is described, so it must not be enough."""
    secure.ensure_topic("secret")
    joined = secure.root.post("/v1/groups/readers/join", json={"topics": ["secret"]}).json()
    secure.set_rules([may(AclAction.READ, GROUP, "readers")])
    poll = {"member_id": joined["member_id"], "wait_ms": 0}
    assert secure.client_of(ALICE).post("/v1/groups/readers/poll", json=poll).status_code == 403
    assert secure.root.post("/v1/groups/readers/poll", json=poll).status_code == 200


# -- connections that last ---------------------------------------------------------------------------------------------


def test_the_short_way_ends_with_the_right_and_with_the_credential(secure: SecureDoor) -> None:
    """Requests with the same head are known by their bytes; rules that change have them looked at again."""
    secure.ensure_topic("hot")
    rule = may(AclAction.WRITE, TOPIC, "hot")
    secure.set_rules([rule])
    key = issue(secure)
    connection = http.client.HTTPConnection("127.0.0.1", secure.server.port, timeout=60)

    def publish() -> int:
        body = json.dumps({"value": "x"})
        connection.putrequest("POST", "/v1/topics/hot/publish", skip_accept_encoding=True)
        connection.putheader("Authorization", f"Bearer {key['key']}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert [publish() for _ in range(4)] == [200] * 4
    secure.set_rules([])
    assert publish() == 403
    secure.set_rules([rule])
    assert publish() == 200
    assert secure.root.delete(f"/v1/keys/{key['key_id']}").status_code == 204
    assert publish() == 401
    connection.close()


def talk(secure: SecureDoor, login: tuple[str, str], query: str = "") -> Talk:
    return Talk(secure.server.port, query, additional_headers=basic(login))


def test_a_socket_needs_credentials_when_it_opens(secure: SecureDoor) -> None:
    with pytest.raises(InvalidStatus) as refused:
        Talk(secure.server.port)
    assert refused.value.response.status_code == 401


def test_frames_need_the_rights_of_their_operations(secure: SecureDoor) -> None:
    secure.ensure_topic("frames")
    later = {"topic": "frames", "value": "x", "delay_ms": 3_600_000}
    asked: list[tuple[str, dict[str, Any], list[Acl]]] = [
        ("publish", {"topic": "frames", "messages": [{"value": "x"}]}, [may(AclAction.WRITE, TOPIC, "frames")]),
        ("schedule", {"schedule": later}, [may(AclAction.WRITE, TOPIC, "frames")]),
        ("subscribe", {"topic": "frames", "from": "earliest"}, [may(AclAction.READ, TOPIC, "frames")]),
        (
            "subscribe",
            {"topic": "frames", "group": "g"},
            [may(AclAction.READ, TOPIC, "frames"), may(AclAction.READ, GROUP, "g")],
        ),
        *(
            (
                op,
                {"receipts": [f"frames:0:0:1:1{'0' * 16}"], "group": "g"},
                [may(AclAction.READ, TOPIC, "frames"), may(AclAction.READ, GROUP, "g")],
            )
            for op in ("ack", "nack", "reject", "extend", "release")
        ),
    ]
    secure.set_rules([])
    client = talk(secure, ALICE)
    for op, members, rules in asked:
        for missing in rules:
            secure.set_rules(rule for rule in rules if rule != missing)
            assert client.ask(op, "error", **members)["error"]["status"] == 403, (op, missing)
        secure.set_rules(rules)
        assert client.ask(op, **members)["type"] == "result"
    client.close()


def test_schedules_of_others_cannot_be_cancelled_over_a_socket(secure: SecureDoor) -> None:
    secure.ensure_topic("plans")
    later = {"id": "plan", "topic": "plans", "value": "x", "delay_ms": 3_600_000}
    assert secure.root.post("/v1/schedules", json=later).status_code == 201
    secure.set_rules([])
    client = talk(secure, ALICE)
    results = client.ask("cancel", schedules=["plan", "no such plan"])["results"]
    assert [each["status"] for each in results] == ["not_found", "not_found"]
    assert secure.root.get("/v1/schedules/plan").status_code == 200
    client.close()


@pytest.mark.parametrize("members", [{"from": "earliest"}, {"group": "watchers"}], ids=["stream", "queue"])
def test_a_subscription_ends_with_the_right_to_it(secure: SecureDoor, members: dict[str, str]) -> None:
    name = f"watched-{'stream' if 'from' in members else 'queue'}"
    secure.ensure_topic(name)
    secure.set_rules([may(AclAction.READ, TOPIC, name), may(AclAction.READ, GROUP, "watchers")])
    client = talk(secure, ALICE)
    client.ask("subscribe", topic=name, credits=100, **members)
    secure.root.post(f"/v1/topics/{name}/publish", json={"value": "before"}).raise_for_status()
    assert client.next("messages")["messages"][0]["value"] == "before"
    secure.set_rules([])
    secure.root.post(f"/v1/topics/{name}/publish", json={"value": "after"}).raise_for_status()
    assert client.next("ended")["error"]["code"] == "authorization_denied"
    assert not any(frame["type"] == "messages" for frame in client.early)
    client.close()


def test_a_session_is_resumed_by_its_own_principal_only(secure: SecureDoor) -> None:
    first = talk(secure, ALICE)
    token = first.hello["token"]
    first.cut()
    stranger = talk(secure, NOBODY, f"?resume={token}")
    assert stranger.hello["resumed"] is False
    stranger.close()
    again = talk(secure, ALICE, f"?resume={token}")
    assert again.hello["resumed"] is True
    again.close()


# -- the audit log -----------------------------------------------------------------------------------------------------


def test_changes_and_denials_are_written_down(secure: SecureDoor, caplog: pytest.LogCaptureFixture) -> None:
    secure.set_rules([])
    with caplog.at_level(logging.INFO, "penstock.audit"):
        secure.root.put("/v1/users/temp", json={"password": "hush hush"}, headers={"X-Request-Id": "r-1"})
        deadline = time.monotonic() + 30
        while "r-2" not in {getattr(record, "request_id", "") for record in caplog.records}:
            # Denials are sampled, and the tests before may have used up this second's share.
            assert time.monotonic() < deadline
            secure.client_of(NOBODY).delete("/v1/topics/any", headers={"X-Request-Id": "r-2"})
    lines = [record.__dict__ for record in caplog.records if record.name == "penstock.audit"]
    changed = next(line for line in lines if line["decision"] == "allowed")
    assert (changed["principal"], changed["operation"]) == ("User:root", "set_user")
    assert (changed["host"], changed["request_id"]) == ("127.0.0.1", "r-1")
    denied = next(line for line in lines if line["decision"] == "denied" and line["request_id"] == "r-2")
    assert (denied["principal"], denied["resource"]) == ("User:nobody", "DELETE on topic 'any'")
    assert "hush" not in str(lines)
