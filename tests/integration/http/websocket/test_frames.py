"""Frames of the WebSocket: what is published, subscribed to, settled and refused, and who may connect."""

from __future__ import annotations

import json

import pytest
from tests.integration.http.conftest import DoorInThread, OpenDoor, http_config
from tests.integration.http.websocket.conftest import (
    RESUME_MS,
    Connect,
    Talk,
    receipts,
    values,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect


def test_every_socket_is_a_consumer_of_its_own(talk: Connect) -> None:
    first, second = talk().hello, talk().hello
    assert first["consumer"] != second["consumer"]
    assert first["token"] != second["token"]
    assert (first["resumed"], first["resume_ms"], first["subscriptions"]) == (False, RESUME_MS, [])


def test_messages_are_published_and_each_is_told_where_it_is(talk: Connect, topic: str) -> None:
    answer = talk().ask(
        "publish", topic=topic, messages=[{"value": "a", "partition": 0}, {"value": "b", "partition": 99}]
    )
    good, bad = answer["results"]
    assert (good["topic"], good["partition"], good["offset"]) == (topic, 0, 0)
    assert bad["error"]["code"] == "unknown_partition"


def test_a_subscription_sends_as_many_messages_as_it_has_credits_for(talk: Connect, ten: str) -> None:
    client = talk()
    answer = client.ask("subscribe", topic=ten, credits=4)
    assert (answer["subscription"], answer["credits"]) == ("1", 4)
    first = client.next("messages")
    assert (values(first), first["credits"], first["number"]) == (["0", "1", "2", "3"], 0, 1)
    assert client.has_nothing()
    assert client.ask("next", subscription="1", credits=3)["credits"] == 3
    assert values(client.next("messages")) == ["4", "5", "6"]
    assert client.has_nothing()
    results = client.ask("ack", subscription="1", receipts=receipts(first))["results"]
    assert [result["status"] for result in results] == ["done"] * 4
    client.ask("unsubscribe", subscription="1")
    assert client.ask("next", "error", subscription="1", credits=1)["error"]["code"] == "invalid_request"


def test_messages_come_as_soon_as_they_are_published(talk: Connect, topic: str) -> None:
    client, other = talk(), talk()
    other.ask("publish", topic=topic, messages=[{"value": "first"}])
    client.ask("subscribe", topic=topic, group="g", credits=10, subscription="mine")
    assert values(client.next("messages")) == ["first"]
    other.ask("publish", topic=topic, messages=[{"value": "second"}])
    delivery = client.next("messages")
    assert (values(delivery), delivery["subscription"]) == (["second"], "mine")


def test_receipts_are_settled_in_every_way(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=5)
    one, two, three, four, five = receipts(client.next("messages"))
    settled = {
        verb: client.ask(verb, receipts=[receipt], **details)["results"][0]["status"]
        for verb, receipt, details in (
            ("ack", one, {}),
            ("nack", two, {"delay_ms": 0, "reason": "r"}),
            ("reject", three, {"reason": "r"}),
            ("extend", four, {"visibility_timeout_ms": 60_000}),
            ("release", five, {}),
        )
    }
    assert set(settled.values()) == {"done"}
    client.ask("next", subscription="1", credits=2)
    again = []
    while len(again) < 2:
        again += client.next("messages")["messages"]
    assert sorted((message["value"], message["delivery_count"]) for message in again) == [("1", 2), ("4", 1)]
    results = client.ask("ack", receipts=[one, "nonsense"])["results"]
    assert [result["status"] for result in results] == ["already_acked", "malformed"]


def test_two_consumers_share_the_work_and_none_gets_what_the_other_has(talk: Connect, ten: str) -> None:
    first, second = talk(), talk()
    first.ask("subscribe", topic=ten, credits=5)
    mine = values(first.next("messages"))
    second.ask("subscribe", topic=ten, credits=10)
    theirs = values(second.next("messages"))
    assert sorted(mine + theirs, key=int) == [str(at) for at in range(10)]


def test_a_session_has_a_limited_number_of_subscriptions_however_fast_they_are_asked_for(
    talk: Connect, topic: str, door: DoorInThread
) -> None:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 10}).status_code == 201
    socket = talk()
    for at in range(150):
        socket.say("subscribe", topic=topic, group=f"g{at}", credits=0)
    answers = [json.loads(socket.socket.recv(60))["type"] for _ in range(150)]
    assert (answers.count("result"), answers.count("error")) == (100, 50)
    assert len(door.client.get(f"/v1/queues/{topic}").json()["groups"]) == 100


def test_new_groups_begin_at_a_bounded_pace_while_the_socket_is_open(
    talk: Connect, topic: str, door: DoorInThread
) -> None:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 100}).status_code == 201
    socket = talk()
    socket.ask("subscribe", topic=topic, group="g0")
    for at in range(1, 60):
        socket.say("subscribe", topic=topic, group=f"g{at}", credits=0)
    socket.close()
    assert len(door.client.get(f"/v1/queues/{topic}").json()["groups"]) <= 20


def test_a_stream_reads_from_a_place_on_without_leases(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, **{"from": 7}, partition=0, credits=100)
    first = client.next("messages")
    assert [(message["offset"], message["value"]) for message in first["messages"]] == [(7, "7"), (8, "8"), (9, "9")]
    assert "receipt" not in first["messages"][0]
    client.ask("subscribe", topic=ten, **{"from": "latest"}, credits=1, subscription="tail")
    assert door.client.post(f"/v1/topics/{ten}/publish", json={"value": "new"}).status_code == 200
    deliveries = [client.next("messages"), client.next("messages")]
    assert {(delivery["subscription"], *values(delivery)) for delivery in deliveries} == {("1", "new"), ("tail", "new")}
    assert door.client.get(f"/v1/queues/{ten}").json()["groups"] == []


def test_a_stream_of_several_partitions_keeps_to_its_credits_and_misses_nothing(
    door: DoorInThread, talk: Connect, topic: str
) -> None:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 4}).status_code == 201
    body = {"messages": [{"value": str(at), "partition": at % 4} for at in range(100)]}
    assert door.client.post(f"/v1/topics/{topic}/batch", json=body).status_code == 200
    client = talk()
    client.ask("subscribe", topic=topic, since="2020-01-01T00:00:00Z", credits=0)
    found: list[str] = []
    for _ in range(20):
        client.ask("next", subscription="1", credits=5)
        before = len(found)
        while len(found) < before + 5:
            found += values(client.next("messages"))
        assert len(found) == before + 5
    assert sorted(found, key=int) == [str(at) for at in range(100)]
    # Partitions take turns, though each could use up the credits alone.
    assert {int(value) % 4 for value in found[:20]} == {0, 1, 2, 3}


def test_answers_have_the_ids_of_their_frames_however_many_are_under_way(talk: Connect, topic: str) -> None:
    client = talk()
    for at in range(300):
        client.say("publish", id=at, topic=topic, messages=[{"value": str(at)}])
    answers = [client.next("result") for _ in range(300)]
    assert sorted(answer["id"] for answer in answers) == list(range(300))


@pytest.mark.parametrize(
    ("frame", "code", "frame_id"),
    [
        ("{", "malformed_body", None),
        ("", "malformed_body", None),
        ("[" * 100_000, "invalid_body", None),
        ("[]", "invalid_body", None),
        ('{"id": 5}', "invalid_body", 5),
        ('{"op": "dance", "id": "x"}', "invalid_body", "x"),
        ('{"op": "subscribe", "id": 1, "topic": "no-such-topic"}', "unknown_topic", 1),
        ('{"op": "subscribe", "id": 1, "topic": "no-such-topic", "from": "latest"}', "unknown_topic", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "credits": -1}', "invalid_body", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "credits": 1e30}', "invalid_body", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "visibility_timeout_ms": 0}', "invalid_body", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "group": "g", "from": "latest"}', "invalid_request", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "partition": 0}', "invalid_request", 1),
        ('{"op": "subscribe", "id": 1, "topic": "__consumer_offsets"}', None, 1),
        ('{"op": "next", "id": 1, "subscription": "none", "credits": 1}', "invalid_request", 1),
        ('{"op": "unsubscribe", "id": 1, "subscription": "none"}', "invalid_request", 1),
        ('{"op": "ack", "id": 1, "receipts": []}', "invalid_body", 1),
        ('{"op": "ack", "id": 1, "receipts": ["x"], "subscription": "none"}', "invalid_request", 1),
        ('{"op": "nack", "id": 1, "receipts": ["x"], "delay_ms": -1}', "invalid_body", 1),
        ('{"op": "publish", "id": 1, "topic": "t", "messages": []}', "invalid_body", 1),
        ('{"op": "publish", "id": 1, "topic": "t", "messages": [{}]}', "invalid_body", 1),
        ('{"op": "publish", "id": 1, "topic": "a b", "messages": [{"value": 1}]}', "invalid_topic_name", 1),
    ],
)
def test_a_bad_frame_is_answered_and_the_socket_goes_on(
    talk: Connect, frame: str, code: str | None, frame_id: object
) -> None:
    client = talk()
    client.socket.send(frame)
    answer = client.next("error")
    assert answer["id"] == frame_id
    assert code is None or answer["error"]["code"] == code
    assert 400 <= answer["error"]["status"] < 500
    assert client.ask("ping")["time"]


def test_a_frame_that_is_too_large_closes_the_socket(open_door: OpenDoor) -> None:
    small = open_door(http_config(max_body_bytes=10_000))
    client = Talk(small.server.port)
    client.socket.send(json.dumps({"op": "ping", "id": "x" * 20_000}))
    with pytest.raises(ConnectionClosed) as closed:
        client.next("result")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_subscription_tells_when_its_topic_is_gone(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=20)
    client.next("messages")
    assert door.client.delete(f"/v1/topics/{ten}").status_code == 204
    ended = client.next("ended", timeout=30)
    assert (ended["subscription"], ended["error"]["code"]) == ("1", "unknown_topic")
    assert client.ask("ping")


# -- who may connect ---------------------------------------------------------------------------------------------------


def test_pages_of_other_sites_and_other_paths_are_refused(door: DoorInThread, talk: Connect) -> None:
    for refused, options, status in (
        ("/v1/ws", {"origin": "http://elsewhere.example"}, 403),
        ("/v1/ws?no=such", {}, 400),
        ("/v1/elsewhere", {}, 404),
    ):
        with pytest.raises(InvalidStatus) as error:
            connect(f"ws://127.0.0.1:{door.server.port}{refused}", legacy=True, **options)  # type: ignore[arg-type]
        assert error.value.response.status_code == status
        assert json.loads(error.value.response.body or b"")["status"] == status
    assert talk(origin=f"http://127.0.0.1:{door.server.port}").hello
    plain = door.client.get("/v1/ws")
    assert (plain.status_code, plain.json()["code"]) == (426, "upgrade_required")
