"""Joint transactions over real HTTP: what is seen, what is refused, and what a repeated call comes to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.integration.http.conftest import DoorInThread, OpenDoor

from penstock.broker.broker import Broker
from penstock.config.settings import TransactionSettings
from penstock.doors.rest import HttpConfig
from penstock.errors import DiskFull
from penstock.partitions.partition import Partition

PARTITIONS = 3


def opened(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/v1/transactions", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/transactions/{answer.json()['transaction']}"
    name: str = answer.json()["transaction"]
    return name


def headers(name: str, writer: str | None = None, sequence: int | None = None) -> dict[str, str]:
    found = {"Penstock-Transaction": name}
    if writer is not None:
        found["Penstock-Writer"] = writer
    if sequence is not None:
        found["Penstock-Sequence"] = str(sequence)
    return found


def batch(*values: str) -> dict[str, Any]:
    """One message for each value, to the partitions in turn."""
    return {"messages": [{"value": value, "partition": at % PARTITIONS} for at, value in enumerate(values)]}


def seen(client: httpx.Client, topic: str) -> list[str]:
    """Every message that a reader of committed messages gets, as values."""
    found = []
    for index in range(PARTITIONS):
        answer = client.get(f"/v1/topics/{topic}/messages", params={"partition": index, "limit": 1000})
        assert answer.status_code == 200, answer.text
        found += [message["value"] for message in answer.json()["messages"]]
    return sorted(found)


def commit(client: httpx.Client, name: str, key: str | None = None, **body: Any) -> httpx.Response:
    extra = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/v1/transactions/{name}/commit", json=body, headers=extra)


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.fixture
def made(client: httpx.Client, topic: str) -> str:
    assert client.post("/v1/topics", json={"name": topic, "partitions": PARTITIONS}).status_code == 201
    return topic


# -- what is seen ------------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_the_commit_and_everything_after(client: httpx.Client, made: str) -> None:
    name = opened(client)
    for writer in ("a", "b"):
        answer = client.post(f"/v1/topics/{made}/batch", json=batch(*(f"{writer}{at}" for at in range(6))),
                             headers=headers(name, writer))  # fmt: skip
        assert answer.status_code == 200
    client.post(f"/v1/topics/{made}/publish", json={"value": "alone"}, headers=headers(name))
    assert seen(client, made) == []
    answer = commit(client, name, "k")
    assert (answer.status_code, answer.json()["committed_writers"]) == (200, ["a", "b", "main"])
    assert seen(client, made) == sorted([f"{writer}{at}" for writer in "ab" for at in range(6)] + ["alone"])


def test_writers_that_are_left_out_are_never_seen(client: httpx.Client, made: str) -> None:
    name = opened(client)
    for writer in ("task-1-attempt-0", "task-1-attempt-1"):
        client.post(f"/v1/topics/{made}/batch", json=batch(writer, writer, writer), headers=headers(name, writer))
    answer = commit(client, name, "k", writers=["task-1-attempt-1"])
    assert answer.json()["aborted_writers"] == ["task-1-attempt-0"]
    assert seen(client, made) == ["task-1-attempt-1"] * 3


def test_an_aborted_transaction_is_never_seen_and_readers_go_on(client: httpx.Client, made: str) -> None:
    name = opened(client)
    client.post(f"/v1/topics/{made}/batch", json=batch("no", "no", "no"), headers=headers(name))
    assert client.post(f"/v1/transactions/{name}/abort").json()["state"] == "aborted"
    assert client.post(f"/v1/transactions/{name}/abort").json()["state"] == "aborted"
    client.post(f"/v1/topics/{made}/batch", json=batch("yes", "yes", "yes"))
    assert seen(client, made) == ["yes"] * 3


def test_a_transaction_spans_topics(client: httpx.Client, topic: str) -> None:
    name = opened(client)
    for each in (f"{topic}-1", f"{topic}-2"):
        client.post(f"/v1/topics/{each}/batch", json=batch("x", "y"), headers=headers(name))
        assert seen(client, each) == []
    commit(client, name)
    assert seen(client, f"{topic}-1") == seen(client, f"{topic}-2") == ["x", "y"]


def test_many_writers_end_together(client: httpx.Client, made: str) -> None:
    name = opened(client)
    writers = [f"w{number:02}" for number in range(50)]

    def send(writer: str) -> int:
        sent = headers(name, writer, 0)
        return client.post(f"/v1/topics/{made}/batch", json=batch(writer, writer), headers=sent).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, writers)) == {200}
    ended = commit(client, name, "k", writers=writers[:25]).json()
    assert (ended["committed_writers"], ended["aborted_writers"]) == (writers[:25], writers[25:])
    assert seen(client, made) == sorted(writers[:25] * 2)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_commit_with_its_key_is_answered_as_the_first_time(client: httpx.Client, made: str) -> None:
    name = opened(client)
    client.post(f"/v1/topics/{made}/publish", json={"value": "x"}, headers=headers(name))
    first = commit(client, name, "k", writers=["main"])
    again = commit(client, name, "k", writers=["main"])
    assert (first.status_code, first.content) == (again.status_code, again.content) == (200, first.content)
    assert problem(commit(client, name, "other")) == (409, "transaction_ended")
    assert problem(commit(client, name)) == (409, "transaction_ended")
    assert problem(commit(client, name, "k", writers=[])) == (422, "idempotency_key_reused")
    assert problem(client.post(f"/v1/transactions/{name}/abort")) == (409, "transaction_ended")
    assert seen(client, made) == ["x"]


def test_two_commits_at_once_agree(door: DoorInThread, client: httpx.Client, made: str) -> None:
    name = opened(client)
    client.post(f"/v1/topics/{made}/batch", json=batch("x", "y", "z"), headers=headers(name))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: commit(client, name, "k"), range(8)))
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, answers[0].content)}
    assert seen(client, made) == ["x", "y", "z"]


def test_an_unknown_writer_is_named_and_nothing_changes(client: httpx.Client, made: str) -> None:
    name = opened(client)
    client.post(f"/v1/topics/{made}/publish", json={"value": "x"}, headers=headers(name))
    answer = commit(client, name, "k", writers=["main", "nobody"])
    assert problem(answer) == (422, "unknown_writer")
    assert "'nobody'" in answer.json()["detail"]
    assert client.get(f"/v1/transactions/{name}").json()["state"] == "open"


def test_time_runs_out(client: httpx.Client, made: str) -> None:
    name = opened(client, timeout_ms=200)
    client.post(f"/v1/topics/{made}/batch", json=batch("x", "y", "z"), headers=headers(name))
    deadline = time.monotonic() + 60
    while client.get(f"/v1/transactions/{name}").json()["state"] != "aborted":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert problem(commit(client, name, "k")) == (409, "transaction_timed_out")
    late = client.post(f"/v1/topics/{made}/publish", json={"value": "late"}, headers=headers(name))
    assert problem(late) == (409, "transaction_timed_out")
    assert client.get(f"/v1/transactions/{name}").json()["reason"] == "timeout"
    assert seen(client, made) == []


def test_more_time_can_be_had(client: httpx.Client) -> None:
    name = opened(client, timeout_ms=1_500)
    answer = client.post(f"/v1/transactions/{name}/extend", json={"timeout_ms": 60_000})
    assert (answer.status_code, answer.json()["timeout_ms"]) == (200, 60_000)
    time.sleep(1.7)
    assert client.post(f"/v1/transactions/{name}/extend").json()["timeout_ms"] == 60_000
    assert commit(client, name).status_code == 200


# -- numbered calls ----------------------------------------------------------------------------------------------------


def test_a_repeated_call_is_not_written_twice(client: httpx.Client, made: str) -> None:
    name = opened(client)
    url = f"/v1/topics/{made}/batch"
    first = client.post(url, json=batch("a", "b", "c", "d"), headers=headers(name, "w", 0))
    again = client.post(url, json=batch("a", "b", "c", "d"), headers=headers(name, "w", 0))
    assert (first.status_code, first.content) == (again.status_code, again.content) == (200, first.content)
    assert client.post(url, json=batch("e"), headers=headers(name, "w", 4)).status_code == 200
    commit(client, name)
    assert seen(client, made) == ["a", "b", "c", "d", "e"]


def test_a_call_without_keys_goes_where_it_went_first(client: httpx.Client, made: str) -> None:
    """The partitioner would take the next partitions for messages without a key; a repeated call must not."""
    name = opened(client)
    url, body = f"/v1/topics/{made}/batch", {"messages": [{"value": str(at)} for at in range(5)]}
    first = client.post(url, json=body, headers=headers(name, "w", 0))
    client.post(f"/v1/topics/{made}/publish", json={"value": "other"})
    assert client.post(url, json=body, headers=headers(name, "w", 0)).content == first.content


def test_gaps_and_contradictions_are_refused(client: httpx.Client, made: str) -> None:
    name = opened(client)
    url = f"/v1/topics/{made}/batch"

    def send(sequence: int, *values: str) -> httpx.Response:
        return client.post(url, json=batch(*values), headers=headers(name, "w", sequence))

    assert problem(send(1, "b")) == (409, "out_of_order_sequence")
    assert send(0, "a", "b").status_code == 200
    assert problem(send(3, "d")) == (409, "out_of_order_sequence")
    assert problem(send(0, "other", "b")) == (409, "duplicate_sequence")
    assert send(2, "c").status_code == 200
    assert problem(send(0, "a", "b")) == (409, "duplicate_sequence")
    unnumbered = client.post(url, json=batch("x"), headers=headers(name, "w"))
    assert problem(unnumbered) == (409, "out_of_order_sequence")
    commit(client, name)
    assert seen(client, made) == ["a", "b", "c"]


def test_a_bad_message_spoils_a_numbered_call_as_a_whole(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic, "partitions": 3, "configs": {"max.message.bytes": "1000"}})
    name = opened(client)
    url = f"/v1/topics/{topic}/batch"
    answer = client.post(url, json=batch("fine", "x" * 2000, "fine"), headers=headers(name, "w", 0))
    assert problem(answer) == (413, "message_too_large")
    assert client.post(url, json=batch("a", "b", "c"), headers=headers(name, "w", 0)).status_code == 200
    commit(client, name)
    assert seen(client, topic) == ["a", "b", "c"]


class FailingAppends:
    """Makes the disk refuse the batches of a topic after so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.left = 1_000_000
        append = Partition.append

        def failing(partition: Partition, *args: Any, **kwargs: Any) -> Any:
            if partition.id.topic == topic:
                if self.left == 0:
                    raise DiskFull("The disk is full.")
                self.left -= 1
            return append(partition, *args, **kwargs)

        monkeypatch.setattr(Partition, "append", failing)


@pytest.mark.parametrize("written", range(4))
def test_a_call_that_was_cut_short_is_finished_when_it_comes_again(
    client: httpx.Client, made: str, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    disk = FailingAppends(monkeypatch, made)
    name = opened(client)
    url, body = f"/v1/topics/{made}/batch", batch(*"abcdefg")
    assert client.post(url, json=batch("-"), headers=headers(name, "w", 0)).status_code == 200
    disk.left = written
    failed = client.post(url, json=body, headers=headers(name, "w", 1))
    assert failed.status_code == (507 if written < PARTITIONS else 200)
    if written < PARTITIONS:
        skipped = client.post(url, json=batch("z"), headers=headers(name, "w", 8))
        assert problem(skipped) == (409, "out_of_order_sequence")
        assert "Repeat it first" in skipped.json()["detail"]
    disk.left = 1_000_000
    answer = client.post(url, json=body, headers=headers(name, "w", 1))
    assert answer.status_code == 200
    places = [(item["partition"], item["offset"]) for item in answer.json()["results"]]
    assert len(set(places)) == 7
    assert client.post(url, json=body, headers=headers(name, "w", 1)).content == answer.content
    assert client.post(url, json=batch("z"), headers=headers(name, "w", 8)).status_code == 200
    commit(client, name)
    assert seen(client, made) == sorted("-abcdefgz")


def test_a_call_cut_short_between_two_batches_of_one_partition_is_finished(
    client: httpx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/topics", json={"name": topic, "partitions": 3, "configs": {"max.message.bytes": "1000"}})
    values = [f"{at:02}" + "x" * 300 for at in range(30)]
    body = {"messages": [{"value": value, "partition": 0} for value in values]}
    disk = FailingAppends(monkeypatch, topic)
    name = opened(client)
    disk.left = 7
    assert client.post(f"/v1/topics/{topic}/batch", json=body, headers=headers(name, "w", 0)).status_code == 507
    disk.left = 1_000_000
    answer = client.post(f"/v1/topics/{topic}/batch", json=body, headers=headers(name, "w", 0))
    assert [item["offset"] for item in answer.json()["results"]] == list(range(30))
    commit(client, name)
    assert seen(client, topic) == values


def test_the_same_call_twice_at_once_is_written_once(client: httpx.Client, made: str) -> None:
    name = opened(client)

    def send(_: int) -> httpx.Response:
        return client.post(f"/v1/topics/{made}/batch", json=batch(*"abcdef"), headers=headers(name, "w", 0))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, answers[0].content)}
    commit(client, name)
    assert seen(client, made) == list("abcdef")


def test_a_repeated_call_whose_messages_were_deleted_is_refused_and_not_written_again(
    door: DoorInThread, client: httpx.Client, made: str
) -> None:
    name = opened(client)
    body = {"messages": [{"value": "x", "partition": 0}]}
    client.post(f"/v1/topics/{made}/batch", json=body, headers=headers(name, "w", 0))
    door.run(door.broker.trim(made, 0, -1))
    answer = client.post(f"/v1/topics/{made}/batch", json=body, headers=headers(name, "w", 0))
    assert problem(answer) == (409, "duplicate_sequence")
    assert door.look(lambda broker: broker.partition(made, 0).log.end_offset) == 1
    assert commit(client, name, "k").status_code == 200


def test_a_call_that_is_not_committed_in_time_can_be_sent_again(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0, publish_timeout_ms=0))
    name = opened(door.client)
    sent = headers(name, "w", 0)
    door.client.post("/v1/topics", json={"name": "t", "partitions": PARTITIONS})
    partitions = [door.broker.partition("t", index) for index in range(PARTITIONS)]
    syncers = [partition._syncer for partition in partitions]

    def stall(_: object) -> None:
        for partition in partitions:
            partition._syncer = SimpleNamespace(request=lambda _: None)

    def go_on(_: object) -> None:
        for partition, syncer in zip(partitions, syncers, strict=True):
            partition._syncer = syncer
            syncer.request(partition.log)

    door.look(stall)
    answers = [door.client.post("/v1/topics/t/batch", json=batch(*"abc"), headers=sent) for _ in range(3)]
    assert problem(answers[0]) == (504, "request_timed_out")
    assert "is safe" in answers[0].json()["detail"]
    door.look(go_on)
    while answers[-1].status_code != 200:
        answers.append(door.client.post("/v1/topics/t/batch", json=batch(*"abc"), headers=sent))
    assert commit(door.client, name).status_code == 200
    assert seen(door.client, "t") == ["a", "b", "c"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_there_is_no_such_transaction(client: httpx.Client, made: str) -> None:
    answer = client.post(f"/v1/topics/{made}/publish", json={"value": "x"}, headers=headers("nope"))
    assert problem(answer) == (404, "transaction_not_found")
    for what in ("commit", "abort", "extend"):
        assert problem(client.post(f"/v1/transactions/nope/{what}")) == (404, "transaction_not_found")
    assert problem(client.get("/v1/transactions/nope")) == (404, "transaction_not_found")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"Penstock-Writer": "w"}, (400, "invalid_parameter")),
        ({"Penstock-Sequence": "0"}, (400, "invalid_parameter")),
        ({"Penstock-Transaction": "T", "Penstock-Writer": "no spaces"}, (422, "invalid_request")),
        ({"Penstock-Transaction": "T", "Penstock-Writer": "x" * 201}, (422, "invalid_request")),
        ({"Penstock-Transaction": "T", "Penstock-Sequence": "-1"}, (400, "invalid_parameter")),
        ({"Penstock-Transaction": "T", "Penstock-Sequence": "0x1"}, (400, "invalid_parameter")),
        ({"Penstock-Transaction": "T", "Penstock-Sequence": "9999999999"}, (409, "out_of_order_sequence")),
    ],
)
def test_bad_headers_are_refused(
    client: httpx.Client, made: str, sent: dict[str, str], expected: tuple[int, str]
) -> None:
    name = opened(client)
    sent = {header: value.replace("T", name) if header.endswith("tion") else value for header, value in sent.items()}
    answer = client.post(f"/v1/topics/{made}/publish", json={"value": "x"}, headers=sent)
    assert problem(answer) == expected
    client.post(f"/v1/transactions/{name}/abort")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"timeout_ms": 900_001}, (422, "invalid_transaction_timeout")),
        ({"timeout_ms": 0}, (422, "invalid_body")),
        ({"timeout_ms": "soon"}, (422, "invalid_body")),
        ({"colour": "red"}, (422, "invalid_body")),
    ],
)
def test_bad_wishes_are_refused(client: httpx.Client, body: dict[str, Any], expected: tuple[int, str]) -> None:
    assert problem(client.post("/v1/transactions", json=body)) == expected


def test_a_bad_idempotency_key_is_refused(client: httpx.Client) -> None:
    name = opened(client)
    assert problem(commit(client, name, "k" * 256)) == (400, "invalid_parameter")
    assert client.get(f"/v1/transactions/{name}").json()["state"] == "open"


@pytest.mark.parametrize("internal", ["__transaction_state", "__consumer_offsets"])
def test_internal_topics_take_nothing(client: httpx.Client, internal: str) -> None:
    name = opened(client)
    answer = client.post(f"/v1/topics/{internal}/publish", json={"value": "x"}, headers=headers(name))
    assert problem(answer) == (403, "policy_violation")


def test_partitions_that_are_not_there_are_refused_and_leave_no_trace(client: httpx.Client, made: str) -> None:
    name = opened(client)
    body = {"value": "x", "partition": 99}
    for sequence in (None, 0):
        answer = client.post(f"/v1/topics/{made}/publish", json=body, headers=headers(name, "w", sequence))
        assert problem(answer) == (404, "unknown_partition")
    assert client.get(f"/v1/transactions/{name}").json()["writers"] == []


def test_a_topic_deleted_inside_a_transaction_does_not_hold_up_its_end(client: httpx.Client, topic: str) -> None:
    name = opened(client)
    for each in (f"{topic}-kept", f"{topic}-gone"):
        client.post(f"/v1/topics/{each}/publish", json={"value": "x"}, headers=headers(name, "w", None))
    assert client.delete(f"/v1/topics/{topic}-gone").status_code == 204
    assert commit(client, name, "k").status_code == 200
    assert seen(client, f"{topic}-kept") == ["x"]


def test_a_topic_made_anew_inside_a_transaction_is_another_topic(client: httpx.Client, topic: str) -> None:
    name = opened(client)
    client.post("/v1/topics", json={"name": topic, "partitions": 3})
    url = f"/v1/topics/{topic}/batch"
    client.post(url, json=batch("old", "old"), headers=headers(name, "w", 0))
    client.delete(f"/v1/topics/{topic}")
    client.post("/v1/topics", json={"name": topic, "partitions": 3})
    assert problem(client.post(url, json=batch("old", "old"), headers=headers(name, "w", 0))) == (
        409,
        "duplicate_sequence",
    )
    assert client.post(url, json=batch("new", "new"), headers=headers(name, "w", 2)).status_code == 200
    commit(client, name, "k")
    assert seen(client, topic) == ["new", "new"]


def test_limits_hold(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0), transactions=TransactionSettings(joint_writers_max=2, joint_open_max=2))
    first, _ = opened(door.client), opened(door.client)
    assert problem(door.client.post("/v1/transactions")) == (429, "transaction_limit_reached")
    for writer, status in (("a", 200), ("b", 200), ("c", 429), ("a", 200)):
        answer = door.client.post("/v1/topics/t/publish", json={"value": "x"}, headers=headers(first, writer))
        assert answer.status_code == status
    commit(door.client, first)
    opened(door.client)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_a_transaction_is_shown_with_its_writers(client: httpx.Client, made: str) -> None:
    name = opened(client)
    client.post(f"/v1/topics/{made}/batch", json=batch("x", "y"), headers=headers(name, "a", 0))
    client.post(f"/v1/topics/{made}/publish", json={"value": "x", "partition": 2}, headers=headers(name, "b"))
    detail = client.get(f"/v1/transactions/{name}").json()
    assert (detail["kind"], detail["state"], detail["partitions"]) == ("joint", "open", 3)
    assert detail["expires_at"] > detail["started_at"]
    assert [(row["writer"], row["next_sequence"]) for row in detail["writers"]] == [("a", 2), ("b", None)]
    assert [row["producer_id"] for row in detail["writers"]] == detail["producer_ids"]
    listed = client.get("/v1/transactions", params={"state": "open", "kind": "joint"}).json()["transactions"]
    assert name in [row["transaction"] for row in listed]
    commit(client, name)
    listed = client.get("/v1/transactions", params={"state": "committed"}).json()["transactions"]
    assert name in [row["transaction"] for row in listed]
    assert client.get("/v1/transactions", params={"limit": 1}).json()["transactions"][0]["transaction"] == name
    assert problem(client.get("/v1/transactions", params={"state": "odd"})) == (400, "invalid_parameter")


def test_the_description_tells_of_the_headers(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    named = {row["name"] for row in paths["/v1/topics/{topic}/publish"]["post"]["parameters"] if row["in"] == "header"}
    assert named == {"Penstock-Transaction", "Penstock-Writer", "Penstock-Sequence"}
    assert paths["/v1/transactions"]["post"]["requestBody"]["required"] is False


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    door = DoorInThread(tmp_path, HttpConfig(port=0))
    client = door.client
    ended, name = opened(client), opened(client)
    client.post("/v1/topics/t/batch", json=batch("a", "b"), headers=headers(ended))
    first = commit(client, ended, "k")
    sent = client.post("/v1/topics/t/batch", json=batch("c", "d"), headers=headers(name, "w", 0))
    door.close()
    again = DoorInThread(tmp_path, HttpConfig(port=0))
    try:
        client = again.client
        assert commit(client, ended, "k").content == first.content
        repeated = client.post("/v1/topics/t/batch", json=batch("c", "d"), headers=headers(name, "w", 0))
        assert repeated.content == sent.content
        assert commit(client, name, "k2").status_code == 200
        assert seen(client, "t") == ["a", "b", "c", "d"]
        assert again.look(_open_transactions) == 0
    finally:
        again.close()


def _open_transactions(broker: Broker) -> int:
    return sum(len(partition.transactions()) for partition in broker.replicas)
