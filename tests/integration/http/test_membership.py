"""Members of groups over REST, on a real socket: what they are told, and what they are refused."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.support.cluster import eventually

from penstock.config.settings import GroupSettings
from penstock.doors.rest import HttpConfig

from .conftest import DoorInThread

SESSION_MS = 600


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorInThread]:
    """A door whose groups waste no time."""
    running = quick_door(tmp_path_factory.mktemp("node"))
    yield running
    running.close()


def quick_door(directory: Path) -> DoorInThread:
    return DoorInThread(
        directory, HttpConfig(port=0), groups=GroupSettings(initial_delay_ms=0, session_timeout_min_ms=100)
    )


class Consumer:
    """A member, as a client sees it."""

    def __init__(self, client: httpx.Client, group: str, **wish: Any) -> None:
        self.client = client
        self.group = group
        self.joined = self.call("join", **wish).json()
        self.id: str = self.joined["member_id"]

    def call(self, verb: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/groups/{self.group}/{verb}", json=body)

    def ask(self, verb: str, **body: Any) -> Any:
        answer = self.call(verb, member_id=self.id, **body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def refused(self, verb: str, **body: Any) -> tuple[int, str]:
        answer = self.call(verb, **{"member_id": self.id, **body})
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        return answer.status_code, answer.json()["code"]

    def values(self, **body: Any) -> list[str]:
        return [message["value"] for message in self.ask("poll", **{"wait_ms": 0, **body})["messages"]]


@pytest.fixture
def orders(client: httpx.Client, topic: str) -> str:
    """A topic of three partitions with four messages in each: 0-0, 0-1 …"""
    client.post("/v1/topics", json={"name": topic, "partitions": 3})
    messages = [{"value": f"{at}-{number}", "partition": at} for at in range(3) for number in range(4)]
    assert client.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).status_code == 200
    return topic


def join(client: httpx.Client, topic: str, **wish: Any) -> Consumer:
    return Consumer(client, f"group-of-{topic}", **{"topics": [topic], **wish})


def await_poll(door: DoorInThread, member_id: str, is_polling: bool = True) -> None:
    """Return once the node knows that a member polls, or that it does not any more."""
    members = door.server._door.services.hosted._members
    eventually(
        lambda: door.look(
            lambda _: any(each.is_polling == is_polling for (_, name), each in members.items() if name == member_id)
        )
    )


def await_members(client: httpx.Client, group: str, count: int) -> None:
    eventually(lambda: client.get(f"/v1/groups/{group}").json()["members"] == count)


def places(answer: Any) -> list[int]:
    return [place["partition"] for place in answer["partitions"]]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_member_alone_reads_everything_and_commits_it(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    assert (consumer.joined["state"], consumer.joined["generation"], places(consumer.joined)) == (
        "stable",
        1,
        [0, 1, 2],
    )
    page = consumer.ask("poll")
    assert sorted(message["value"] for message in page["messages"]) == [
        f"{at}-{n}" for at in range(3) for n in range(4)
    ]
    first = next(message for message in page["messages"] if message["value"] == "1-0")
    assert first == first | {"topic": orders, "partition": 1, "offset": 0, "key": None, "headers": {}}
    assert (page["poll"], page["rebalanced"], page["generation"]) == (1, False, 1)
    assert consumer.values() == []
    committed = consumer.ask("commit")["offsets"]
    assert [(row["partition"], row["offset"]) for row in committed] == [(0, 4), (1, 4), (2, 4)]
    assert consumer.ask("commit")["offsets"] == [], "nothing is left to commit"
    assert client.get(f"/v1/groups/{consumer.group}").json()["lag"] == 0
    consumer.ask("leave")
    assert join(client, orders).values() == [], "the next one begins where this one ended"


def test_a_small_page_has_something_of_every_partition(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    for _ in range(2):
        values = consumer.values(max_messages=6)
        assert sorted(value[0] for value in values) == list("001122")
    assert consumer.values(max_messages=6) == []


def test_a_busy_partition_does_not_starve_the_others(client: httpx.Client, orders: str) -> None:
    messages = [{"value": f"0-{number}", "partition": 0} for number in range(4, 200)]
    client.post(f"/v1/topics/{orders}/batch", json={"messages": messages})
    consumer = join(client, orders)
    got = consumer.values(max_messages=30)
    assert len(got) == 30, "what the others leave over is used"
    assert {"1-3", "2-3"} <= set(got)
    assert len(consumer.values(max_messages=2, max_bytes=1)) == 1, "bytes bound an answer, too"


def test_what_was_not_committed_comes_again_to_the_next_member(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    assert len(consumer.values()) == 12
    consumer.ask("commit", offsets=[{"topic": orders, "partition": 1, "offset": 3, "metadata": "half"}])
    consumer.ask("leave")
    assert sorted(join(client, orders).values()) == ["0-0", "0-1", "0-2", "0-3", "1-3", "2-0", "2-1", "2-2", "2-3"]
    rows = client.get(f"/v1/groups/{consumer.group}").json()["offsets"]
    assert [row["metadata"] for row in rows if row["partition"] == 1] == ["half"]


def test_auto_commit_commits_what_the_poll_before_returned(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders, auto_commit=True)
    seen = consumer.values(max_messages=6)
    consumer.values(max_messages=3)
    rows = client.get(f"/v1/groups/{consumer.group}").json()["offsets"]
    assert sum(row["committed_offset"] for row in rows) == len(seen) == 6


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 13), ("latest", 1)])
def test_a_new_group_begins_where_it_wishes(client: httpx.Client, orders: str, reset: str, expected: int) -> None:
    consumer = join(client, orders, auto_offset_reset=reset)
    client.post(f"/v1/topics/{orders}/publish", json={"value": "new", "partition": 0})
    assert len(consumer.values()) == expected, "latest means from the join on, not from the first poll on"


def test_offsets_that_retention_has_passed_begin_at_the_start(
    door: DoorInThread, client: httpx.Client, orders: str
) -> None:
    consumer = join(client, orders)
    door.run(door.broker.trim(orders, 0, 3))
    got = consumer.values() + consumer.values()
    assert [value for value in got if value[0] == "0"] == ["0-3"]


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_long_poll_wakes_with_the_message(door: DoorInThread, client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders, auto_offset_reset="latest")
    with ThreadPoolExecutor(1) as pool:
        for at in range(5):
            polling = pool.submit(consumer.values, wait_ms=20_000)
            await_poll(door, consumer.id)
            published = time.perf_counter()
            client.post(f"/v1/topics/{orders}/publish", json={"value": f"now {at}", "partition": at % 3})
            assert polling.result(60) == [f"now {at}"]
            assert time.perf_counter() - published < 10, "it waits for the message, not for a clock"


def test_a_poll_without_messages_ends_in_time(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders, auto_offset_reset="latest")
    started = time.perf_counter()
    assert consumer.values(wait_ms=300) == []
    assert 0.29 <= time.perf_counter() - started < 20


def test_a_poll_keeps_the_session_alive_for_longer_than_it_lasts(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders, auto_offset_reset="latest", session_timeout_ms=SESSION_MS)
    assert consumer.values(wait_ms=3 * SESSION_MS) == []
    assert consumer.ask("heartbeat")["state"] == "stable"


def test_two_polls_of_one_member_at_once_are_one_too_many(
    door: DoorInThread, client: httpx.Client, orders: str
) -> None:
    consumer = join(client, orders, auto_offset_reset="latest")
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(consumer.values, wait_ms=20_000)
        await_poll(door, consumer.id)
        assert consumer.refused("poll") == (409, "member_busy")
        assert consumer.ask("heartbeat")["state"] == "stable", "other calls may come meanwhile"
        client.post(f"/v1/topics/{orders}/publish", json={"value": "at last", "partition": 0})
        assert polling.result(60) == ["at last"]
    assert consumer.values() == []


def test_a_client_that_goes_away_while_it_polls_loses_nothing(
    door: DoorInThread, client: httpx.Client, orders: str
) -> None:
    consumer = join(client, orders, auto_offset_reset="latest")
    connection = http.client.HTTPConnection("127.0.0.1", door.server.port)
    body = json.dumps({"member_id": consumer.id, "wait_ms": 20_000})
    connection.request("POST", f"/v1/groups/{consumer.group}/poll", body)
    await_poll(door, consumer.id)
    assert connection.sock is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    await_poll(door, consumer.id, is_polling=False)
    client.post(f"/v1/topics/{orders}/publish", json={"value": "kept", "partition": 0})
    assert consumer.values() == ["kept"], "the poll that was given up neither blocks nor takes"


def test_an_answer_that_was_lost_is_told_again(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    first = consumer.ask("poll", max_messages=6)
    lost = consumer.ask("poll", max_messages=6, last_poll=first["poll"])
    assert len(lost["messages"]) == 6
    assert sum(row["offset"] for row in consumer.ask("commit", last_poll=first["poll"])["offsets"]) == 6
    again = consumer.ask("poll", max_messages=6, last_poll=first["poll"], wait_ms=0)
    assert again["poll"] == lost["poll"]
    assert sorted(each["value"] for each in again["messages"]) == sorted(each["value"] for each in lost["messages"])
    assert consumer.refused("poll", last_poll=99) == (422, "invalid_request")


# -- sharing -----------------------------------------------------------------------------------------------------------


def settle(*consumers: Consumer) -> list[list[int]]:
    """Have all poll until each is settled in the same generation; what each reads."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with ThreadPoolExecutor(len(consumers)) as pool:
            answers = list(pool.map(lambda each: each.ask("heartbeat"), consumers))
            if {answer["state"] for answer in answers} == {"stable"} and len({a["generation"] for a in answers}) == 1:
                return [places(answer) for answer in answers]
            list(pool.map(lambda each: each.ask("poll", wait_ms=300, max_messages=1), consumers))
    raise AssertionError("not settled in time")


def test_members_share_and_take_over(client: httpx.Client, orders: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        one = join(client, orders, auto_offset_reset="latest")
        polling = pool.submit(one.ask, "poll", wait_ms=20_000)
        two = join(client, orders, auto_offset_reset="latest")
        answer = polling.result(60)
        assert (answer["rebalanced"], answer["generation"], answer["messages"]) == (True, 2, [])
        assert places(answer) == places(one.ask("heartbeat"))
        assert sorted(map(len, settle(one, two))) == [1, 2]
        two.ask("leave")
        answer = one.ask("poll", wait_ms=20_000, max_messages=1)
        assert places(answer) == [0, 1, 2]


def test_positions_stay_where_partitions_stay(client: httpx.Client, orders: str) -> None:
    one = join(client, orders)
    got = one.values(max_messages=3)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join, client, orders)
        await_members(client, one.group, 2)
        got += one.values(wait_ms=20_000, max_messages=3)
        two = joining.result(60)
    mine, theirs = settle(one, two)
    for _ in range(4):
        got += one.values()
    own = [value for value in got if int(value[0]) in mine]
    assert len(own) == len(set(own)) == 4 * len(mine), "nothing comes again where nothing moved"
    assert {int(value[0]) for value in two.values()} == set(theirs), "what was not committed is the other's now"


def test_a_member_that_waits_too_long_for_others_is_told_so(client: httpx.Client, orders: str) -> None:
    one = join(client, orders)
    two = join(client, orders, wait_ms=200)
    assert (two.joined["state"], two.joined["partitions"]) == ("rebalancing", [])
    assert two.ask("heartbeat")["state"] == "rebalancing"
    assert one.ask("heartbeat")["state"] == "rebalancing"
    assert two.refused("commit", offsets=[{"topic": orders, "partition": 0, "offset": 1}])[0] == 409
    one.values()
    assert len(two.values(wait_ms=20_000)) > 0


def test_new_partitions_are_read(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    consumer.values()
    client.post(f"/v1/topics/{orders}/partitions", json={"partitions": 4})
    client.post(f"/v1/topics/{orders}/publish", json={"value": "3-0", "partition": 3})
    assert consumer.values(wait_ms=20_000) == ["3-0"]


def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    assert len(consumer.values()) == 12
    consumer.ask("commit")
    client.delete(f"/v1/topics/{orders}")
    assert consumer.values(wait_ms=500) == []
    client.post("/v1/topics", json={"name": orders, "partitions": 3})
    client.post(f"/v1/topics/{orders}/publish", json={"value": "afresh", "partition": 1})
    assert consumer.values(wait_ms=20_000) == ["afresh"]


def test_a_member_can_change_its_wish(client: httpx.Client, orders: str) -> None:
    client.post("/v1/topics", json={"name": f"more-{orders}", "partitions": 1})
    consumer = join(client, orders)
    answer = consumer.ask("join", topics=[orders, f"more-{orders}"])
    assert len(answer["partitions"]) == 4
    assert (answer["member_id"], answer["generation"]) == (consumer.id, 2)


def test_a_static_member_is_succeeded_without_a_round(client: httpx.Client, orders: str) -> None:
    old = join(client, orders, instance_id="shelf-1")
    other = join(client, orders, wait_ms=0)
    mine, _ = settle(old, other)
    generation = old.ask("heartbeat")["generation"]
    new = join(client, orders, instance_id="shelf-1")
    assert (new.joined["generation"], places(new.joined)) == (generation, mine)
    assert new.id != old.id
    assert old.refused("poll") == (409, "fenced_instance")
    assert old.refused("poll") == (404, "unknown_member")


# -- the end of a member -----------------------------------------------------------------------------------------------


def test_a_silent_member_is_out_and_told_to_join_again(door: DoorInThread, client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders, session_timeout_ms=SESSION_MS)
    consumer.values()
    await_members(client, consumer.group, 0)
    answer = consumer.call("poll", member_id=consumer.id)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_member")
    assert "Join again" in answer.json()["detail"]
    assert len(join(client, orders).values()) == 12


def test_nothing_is_kept_of_a_member_that_is_gone(tmp_path: Path) -> None:
    door = quick_door(tmp_path)
    try:
        door.client.post("/v1/topics", json={"name": "t"})
        for _ in range(3):
            Consumer(door.client, "g", topics=["t"], session_timeout_ms=SESSION_MS, wait_ms=0)
        hosted = door.server._door.services.hosted
        assert len(hosted) == 3
        eventually(lambda: len(hosted) == 0)
        await_members(door.client, "g", 0)
    finally:
        door.close()


def test_a_client_that_gives_up_joining_leaves_no_member_behind(
    door: DoorInThread, client: httpx.Client, orders: str
) -> None:
    one = join(client, orders)
    connection = http.client.HTTPConnection("127.0.0.1", door.server.port)
    connection.request("POST", f"/v1/groups/{one.group}/join", json.dumps({"topics": [orders]}))
    await_members(client, one.group, 2)
    assert connection.sock is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    await_members(client, one.group, 1)


def test_a_node_that_was_started_again_knows_the_group_but_not_the_member(tmp_path: Path) -> None:
    door = quick_door(tmp_path)
    door.client.post("/v1/topics", json={"name": "t", "partitions": 2})
    door.client.post("/v1/topics/t/batch", json={"messages": [{"value": str(n), "partition": n % 2} for n in range(4)]})
    before = Consumer(door.client, "g", topics=["t"])
    assert len(before.values(max_messages=2)) == 2
    before.ask("commit")
    door.close()
    door = quick_door(tmp_path)
    try:
        before.client = door.client
        assert before.refused("poll") == (404, "unknown_member")
        after = before.ask("join", topics=["t"])
        assert (after["member_id"], after["state"]) == (before.id, "stable"), "it takes its own place, at once"
        assert len(before.values()) == 2
        assert door.client.get("/v1/groups/g").json()["members"] == 1
    finally:
        door.close()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (422, "invalid_body")),
        ({"topics": []}, (422, "invalid_body")),
        ({"topics": [""]}, (422, "invalid_body")),
        ({"topics": "orders"}, (422, "invalid_body")),
        ({"topics": ["no-such-topic"]}, (404, "unknown_topic")),
        ({"topics": ["ORDERS"], "auto_offset_reset": "middle"}, (422, "invalid_body")),
        ({"topics": ["ORDERS"], "session_timeout_ms": 1}, (422, "invalid_session_timeout")),
        ({"topics": ["ORDERS"], "wait_ms": 30_001}, (422, "invalid_body")),
        ({"topics": ["ORDERS"], "member_id": ""}, (422, "invalid_body")),
        ({"topics": ["ORDERS"], "member_id": "nobody"}, (404, "unknown_member")),
        ({"topics": ["ORDERS"], "session_timout_ms": 1}, (422, "invalid_body")),
    ],
)
def test_a_bad_join_is_refused_and_leaves_no_group(
    client: httpx.Client, orders: str, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    if body.get("topics") == ["ORDERS"]:
        body = {**body, "topics": [orders]}
    answer = client.post(f"/v1/groups/bad-{orders}/join", json=body)
    assert (answer.status_code, answer.json()["code"]) == refusal
    assert client.get(f"/v1/groups/bad-{orders}").status_code == 404


@pytest.mark.parametrize(
    ("verb", "body", "refusal"),
    [
        ("poll", {"member_id": "nobody"}, (404, "unknown_member")),
        ("commit", {"member_id": "nobody"}, (404, "unknown_member")),
        ("heartbeat", {"member_id": "nobody"}, (404, "unknown_member")),
        ("leave", {"member_id": "nobody"}, (404, "unknown_member")),
        ("poll", {"max_messages": 0}, (422, "invalid_body")),
        ("poll", {"max_messages": 10_001}, (422, "invalid_body")),
        ("poll", {"max_bytes": 0}, (422, "invalid_body")),
        ("poll", {"wait_ms": -1}, (422, "invalid_body")),
        ("poll", {"wait_ms": 60_000}, (422, "invalid_body")),
        ("heartbeat", {"generation": 0}, (409, "illegal_generation")),
        ("commit", {"generation": 7}, (409, "illegal_generation")),
        ("commit", {"offsets": []}, (422, "invalid_body")),
        ("commit", {"offsets": [("TOPIC", 0, -1)]}, (422, "invalid_body")),
        ("commit", {"offsets": [("TOPIC", 0, 5)]}, (416, "offset_out_of_range")),
        ("commit", {"offsets": [("TOPIC", 3, 0)]}, (404, "unknown_partition")),
        ("commit", {"offsets": [("missing", 0, 0)]}, (404, "unknown_topic")),
        ("commit", {"offsets": [("TOPIC", 0, 1), ("TOPIC", 0, 2)]}, (422, "invalid_request")),
        ("commit", {"offsets": [("TOPIC", 0, 1)], "last_poll": 0}, (422, "invalid_request")),
        ("join", {"topics": ["TOPIC"], "instance_id": "another"}, (422, "invalid_request")),
    ],
)
def test_a_bad_call_is_refused_and_changes_nothing(
    client: httpx.Client, orders: str, verb: str, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    consumer = join(client, orders)
    for name, items in list(body.items()):
        if name == "offsets":
            rows = [
                {"topic": orders if topic == "TOPIC" else topic, "partition": at, "offset": to}
                for topic, at, to in items
            ]
            body = {**body, name: rows}
        elif name == "topics":
            body = {**body, name: [orders]}
    assert consumer.refused(verb, **body) == refusal
    assert len(consumer.values()) == 12
    assert client.get(f"/v1/groups/{consumer.group}").json()["members"] == 1


def test_a_partition_of_somebody_else_cannot_be_committed(client: httpx.Client, orders: str) -> None:
    one = join(client, orders)
    two = join(client, orders, wait_ms=0)
    _, theirs = settle(one, two)
    wanted = [{"topic": orders, "partition": theirs[0], "offset": 1}]
    assert one.refused("commit", offsets=wanted) == (409, "partition_not_assigned")
    assert two.ask("commit", offsets=wanted)["offsets"][0]["offset"] == 1


def test_metadata_that_is_too_long_is_refused(client: httpx.Client, orders: str) -> None:
    consumer = join(client, orders)
    rows = [{"topic": orders, "partition": 0, "offset": 1, "metadata": "x" * 5_000}]
    assert consumer.refused("commit", offsets=rows) == (413, "offset_metadata_too_large")


@pytest.mark.parametrize("group", ["a/b", "a%2Fb", "//", "ä/ö", "a b/c?d#e", "%"])
def test_any_name_of_a_group_can_be_written_in_a_path(client: httpx.Client, orders: str, group: str) -> None:
    name = f"{group}{orders}"
    consumer = Consumer(client, quote(name, safe=""), topics=[orders])
    assert consumer.joined["group"] == name
    assert len(consumer.values()) == 12
    consumer.ask("commit")
    assert client.get(f"/v1/groups/{consumer.group}").json()["group"] == name
    assert name in [row["group"] for row in client.get("/v1/groups").json()["groups"]]
    consumer.ask("heartbeat")
    consumer.ask("leave")
    moved = client.post(f"/v1/groups/{consumer.group}/reset", json={"topic": orders, "shift": -1})
    assert [row["to_offset"] for row in moved.json()["moves"]] == [3, 3, 3]
    deleted = client.delete(f"/v1/groups/{consumer.group}/offsets", params={"topic": orders, "partitions": "0"})
    assert deleted.json()["deleted"] == [{"topic": orders, "partition": 0}]
    assert client.delete(f"/v1/groups/{consumer.group}").status_code == 204
    assert client.get(f"/v1/groups/{consumer.group}").status_code == 404


def test_the_time_that_rounds_take_is_measured(tmp_path: Path) -> None:
    door = quick_door(tmp_path)
    try:
        door.client.post("/v1/topics", json={"name": "t"})

        def rounds() -> float:
            text = door.client.get("/metrics").text
            (line,) = [
                line for line in text.splitlines() if line.startswith("penstock_rebalance_duration_seconds_count")
            ]
            return float(line.split()[1])

        assert rounds() == 0
        consumer = Consumer(door.client, "g", topics=["t"])
        assert rounds() == 1
        consumer.ask("poll", wait_ms=0)
        consumer.ask("commit")
        assert rounds() == 1
    finally:
        door.close()


def test_a_node_that_stops_lets_nobody_wait(tmp_path: Path) -> None:
    door = quick_door(tmp_path)
    door.client.post("/v1/topics", json={"name": "t"})
    consumer = Consumer(door.client, "g", topics=["t"])
    Consumer(door.client, "h", topics=["t"])  # and does not take part in the round that the next one waits for
    with ThreadPoolExecutor(2) as pool, httpx.Client(base_url=door.client.base_url, timeout=30) as other:
        polling = pool.submit(consumer.refused, "poll", wait_ms=30_000)
        joining = pool.submit(other.post, "/v1/groups/h/join", json={"topics": ["t"]})
        await_poll(door, consumer.id)
        await_members(door.client, "h", 2)
        door.run(door.server.stop())
        assert polling.result(60) == (503, "not_coordinator")
        assert joining.result(60).status_code == 503
    door.close()
