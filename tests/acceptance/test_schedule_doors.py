"""Delays and schedules through every door of a real node: added, listed, moved, run, cancelled, and in time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.support.cluster import eventually
from tests.support.node import Node
from tests.support.schedule_door import FAR, FAR_MS, await_listed, await_values, code_of, create, listed, values_in
from websockets.sync.client import connect


@pytest.fixture(scope="module")
def rest(node: Node) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.http_url, timeout=60) as client:
        yield client


# -- publish over REST -------------------------------------------------------------------------------------------------


def test_a_delayed_publish_is_safe_at_once_and_seen_when_it_is_due(rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    began = time.time()
    answer = rest.post(f"/v1/topics/{topic}/publish", json={"value": "later", "key": "k", "delay_ms": 1_500})
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    assert set(receipt) == {"topic", "schedule_id", "due"}
    due = datetime.fromisoformat(receipt["due"]).timestamp()
    assert began + 1.4 <= due <= time.time() + 1.6
    while time.time() < due - 0.05:
        early = values_in(rest, topic)
        assert early == [] or time.time() >= due, "it was seen before it was due"
        time.sleep(0.05)
    assert await_values(rest, topic, 1) == ["later"]
    (message,) = rest.get(f"/v1/topics/{topic}/messages").json()["messages"]
    assert datetime.fromisoformat(message["timestamp"]).timestamp() >= due
    assert message["key"] == "k"
    eventually(lambda: rest.get(f"/v1/schedules/{receipt['schedule_id']}").status_code == 404)


def test_zero_and_the_past_are_published_at_once_like_any_other(rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    for offset, when in enumerate(({"delay_ms": 0}, {"deliver_at": 5}, {"deliver_at": "1999-01-01T00:00:00Z"})):
        receipt = rest.post(f"/v1/topics/{topic}/publish", json={"value": "now", **when}).json()
        assert (receipt["offset"], "schedule_id" in receipt) == (offset, False)


def test_a_batch_may_be_partly_for_later_and_the_same_id_is_scheduled_once(rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    messages = [
        {"value": "a"},
        {"value": "b", "deliver_at": FAR, "schedule_id": f"{topic}-b"},
        {"value": "c", "partition": 7, "delay_ms": 60_000},
        {"value": "d", "deliver_at": FAR_MS},
    ]
    answer = rest.post(f"/v1/topics/{topic}/batch", json={"messages": messages})
    assert answer.status_code == 207, answer.text
    now, later, wrong, also = answer.json()["results"]
    assert now["offset"] == 0
    assert (later["schedule_id"], later["due"]) == (f"{topic}-b", FAR)
    assert wrong["error"]["code"] == "unknown_partition"
    assert also["due"] == FAR
    assert rest.post(f"/v1/topics/{topic}/publish", json=messages[1]).json()["schedule_id"] == f"{topic}-b"
    assert sorted(each["value"] for each in listed(rest, topic)) == ["b", "d"]
    batch = {"messages": [{"value": "e", "delay_ms": 3_600_000}, {**messages[1], "value": "other"}]}
    fine, taken = rest.post(f"/v1/topics/{topic}/batch", json=batch).json()["results"]
    assert fine["schedule_id"]
    assert taken["error"]["code"] == "schedule_exists"


@pytest.mark.parametrize(
    "body",
    [
        {"delay_ms": 1, "deliver_at": 1},
        {"delay_ms": -1},
        {"delay_ms": "soon"},
        {"delay_ms": 1 << 60},
        {"deliver_at": "tomorrow"},
        {"deliver_at": "2099-01-01T00:00:00"},
        {"schedule_id": "x"},
        {"delay_ms": 60_000, "schedule_id": "not an id"},
        {"delay_ms": 60_000, "schedule_id": "stats"},
        {"delay_ms": 60_000, "timestamp": "2026-01-01T00:00:00Z"},
    ],
)
def test_delays_that_make_no_sense_are_refused(rest: httpx.Client, body: dict[str, Any]) -> None:
    status, code = code_of(rest.post("/v1/topics/refusals/publish", json={"value": "v", **body}))
    assert (status, code) in {(422, "invalid_body"), (422, "invalid_request"), (422, "invalid_record")}
    assert listed(rest, "refusals") == []


def test_a_transaction_takes_nothing_for_later(rest: httpx.Client, topic: str) -> None:
    transaction = rest.post("/v1/transactions").json()["transaction"]
    headers = {"Penstock-Transaction": transaction}
    answer = rest.post(f"/v1/topics/{topic}/publish", json={"value": "v", "delay_ms": 5_000}, headers=headers)
    assert code_of(answer) == (422, "invalid_request")


# -- /v1/schedules -----------------------------------------------------------------------------------------------------


def test_schedules_are_added_listed_shown_moved_run_and_cancelled(rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    body = {"topic": topic, "key": "k", "value": {"n": 1}, "headers": {"h": "x"}, "id": f"{topic}-once", "at": FAR}
    answer = rest.post("/v1/schedules", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["id"], made["due"], made["state"], made["runs"]) == (f"{topic}-once", FAR, "pending", 0)
    assert (made["key"], made["value"], made["headers"]) == ("k", '{"n":1}', {"h": "x"})
    again = rest.post("/v1/schedules", json=body)
    assert (again.status_code, again.json()["due"]) == (200, FAR), "what is known is not added again"
    for other in ({"at": "2098-01-01T00:00:00Z"}, {"value": 2}, {"key": "l"}, {"every_ms": 5_000}):
        refused = rest.post("/v1/schedules", json={**body, **other})
        assert (refused.status_code, refused.json()["code"]) == (409, "schedule_exists"), other
    stays = {name: fact for name, fact in rest.get(f"/v1/schedules/{topic}-once").json().items() if name != "created"}
    assert stays == {name: fact for name, fact in made.items() if name != "created"}

    times = [
        {"delay_ms": 3_600_000},
        {"every_ms": 3_600_000, "missed": "skip"},
        {"cron": "0 7 * * *", "time_zone": "Asia/Tokyo"},
    ]
    for when in times:
        assert rest.post("/v1/schedules", json={"topic": topic, "value": "v", **when}).status_code == 201
    found = listed(rest, topic)
    assert len({each["id"] for each in found}) == len(found) == 4
    assert [each.get("missed") for each in found if "every_ms" in each] == ["skip"]
    assert [each["time_zone"] for each in found if "cron" in each] == ["Asia/Tokyo"]
    assert listed(rest, topic, state="failed") == []

    moved = rest.patch(f"/v1/schedules/{topic}-once", json={"at": "2098-01-01T00:00:00Z"})
    assert (moved.status_code, moved.json()["due"]) == (200, "2098-01-01T00:00:00Z")
    assert rest.get(f"/v1/schedules/{topic}-once").json()["due"] == "2098-01-01T00:00:00Z"
    assert rest.post(f"/v1/schedules/{topic}-once/run").status_code == 200
    assert await_values(rest, topic, 1) == ['{"n":1}']
    await_listed(rest, topic, 3)
    for each in listed(rest, topic):
        assert rest.delete(f"/v1/schedules/{each['id']}").status_code == 204
        assert code_of(rest.delete(f"/v1/schedules/{each['id']}")) == (404, "schedule_not_found")
    assert listed(rest, topic) == []
    assert values_in(rest, topic) == ['{"n":1}']


def test_what_comes_again_does_so_until_it_is_cancelled(rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    made = rest.post("/v1/schedules", json={"topic": topic, "value": "tick", "every_ms": 150, "delay_ms": 0}).json()
    await_values(rest, topic, 3)
    assert rest.get(f"/v1/schedules/{made['id']}").json()["runs"] >= 2
    deadline = time.monotonic() + 60
    while (status := rest.delete(f"/v1/schedules/{made['id']}").status_code) == 409:
        assert time.monotonic() < deadline
    assert status in {204, 404}, "one that was being fired at that moment comes, but not again"
    count = len(values_in(rest, topic))
    time.sleep(1)
    assert len(values_in(rest, topic)) <= count + 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"value": "v"}, 422),
        ({"delay_ms": 5}, 422),
        ({"value": "v", "every_ms": 5}, 422),
        ({"value": "v", "cron": "61 * * * *"}, 422),
        ({"value": "v", "cron": "* * * * *", "time_zone": "Mars/Olympus"}, 422),
        ({"value": "v", "delay_ms": 5, "missed": "never"}, 422),
        ({"value": "v", "delay_ms": 5, "id": "sched-1-2"}, 422),
        ({"value": "v", "delay_ms": 5, "priority": "urgent"}, 422),
        ({"value": "v", "delay_ms": 5, "partition": 99}, 404),
        ({"value": "v" * 2_000_000, "delay_ms": 5}, 413),
        ({"value": "v", "delay_ms": 5, "topic": "__consumer_offsets"}, 403),
    ],
)
def test_schedules_that_make_no_sense_are_refused(rest: httpx.Client, body: dict[str, Any], status: int) -> None:
    assert rest.post("/v1/schedules", json={"topic": "refusals", **body}).status_code == status
    assert listed(rest, "refusals") == []


def test_what_is_not_there_is_not_found_and_pages_end_somewhere(rest: httpx.Client) -> None:
    for call in (rest.get, rest.delete):
        assert code_of(call("/v1/schedules/nobody")) == (404, "schedule_not_found")
    assert code_of(rest.patch("/v1/schedules/sched-0-999999", json={"delay_ms": 5})) == (404, "schedule_not_found")
    assert code_of(rest.post("/v1/schedules/sched-999-1/run")) == (404, "schedule_not_found")
    assert rest.get("/v1/schedules", params={"limit": 0}).status_code == 400
    assert rest.get("/v1/schedules", params={"after": "nonsense"}).status_code == 422
    assert rest.get("/v1/schedules", params={"state": "done"}).status_code == 400


def test_figures_and_metrics_tell_what_was_done(rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    before = rest.get("/v1/schedules/stats").json()
    for number, delay_ms in enumerate((0, 0, 3_600_000)):
        body = {"topic": topic, "value": "v", "delay_ms": delay_ms, "id": f"{topic}-{number}"}
        rest.post("/v1/schedules", json=body)
    rest.delete(f"/v1/schedules/{topic}-2")
    await_values(rest, topic, 2)
    deadline = time.monotonic() + 60
    while (after := rest.get("/v1/schedules/stats").json())["fired_total"] < before["fired_total"] + 2:
        assert time.monotonic() < deadline, after
        time.sleep(0.05)
    assert after["cancelled_total"] == before["cancelled_total"] + 1
    assert after["lateness"][-1] == {"le_ms": None, "count": after["fired_total"]}
    metrics = dict(
        line.rsplit(" ", 1) for line in rest.get("/metrics").text.splitlines() if line.startswith("penstock_schedule")
    )
    assert float(metrics["penstock_schedules_fired_total"]) >= after["fired_total"]
    assert float(metrics["penstock_schedules_cancelled_total"]) >= after["cancelled_total"]
    assert float(metrics["penstock_schedule_lateness_seconds_count"]) >= after["fired_total"]
    assert {"penstock_schedules_pending", "penstock_schedules_failed"} <= set(metrics)


def test_the_next_times_of_a_cron_expression_can_be_asked_for(rest: httpx.Client) -> None:
    answer = rest.get("/v1/schedules/next", params={"cron": "0 7 * * mon", "time_zone": "UTC", "count": 3}).json()
    moments = [datetime.fromisoformat(each) for each in answer["times"]]
    assert [(each.hour, each.minute, each.weekday()) for each in moments] == [(7, 0, 0)] * 3
    assert moments[1] - moments[0] == timedelta(days=7)
    assert code_of(rest.get("/v1/schedules/next", params={"cron": "never"})) == (422, "invalid_request")


# -- WebSocket ---------------------------------------------------------------------------------------------------------


def test_a_websocket_publishes_for_later_schedules_and_cancels(node: Node, rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    with connect(node.http_url.replace("http", "ws") + "/v1/ws") as socket:

        def ask(**frame: Any) -> dict[str, Any]:
            socket.send(json.dumps({"id": 1, **frame}))
            answer: dict[str, Any] = json.loads(socket.recv(timeout=60))
            return answer

        json.loads(socket.recv(timeout=60))  # hello
        messages = [{"value": "now"}, {"value": "later", "delay_ms": 600}, {"value": "never", "deliver_at": FAR}]
        results = ask(op="publish", topic=topic, messages=messages)["results"]
        assert results[0]["offset"] == 0
        scheduled = ask(op="schedule", schedule={"topic": topic, "value": "s", "cron": "@daily", "id": f"{topic}-ws"})
        assert scheduled["schedule"]["cron"] == "@daily"
        other = {"topic": topic, "value": "other", "cron": "@daily", "id": f"{topic}-ws"}
        assert ask(op="schedule", schedule=other)["error"]["code"] == "schedule_exists"
        names = [results[2]["schedule_id"], f"{topic}-ws", "nobody"]
        answer = ask(op="cancel", schedules=names)
        statuses = ["done", "done", "not_found"]
        assert answer["results"] == [{"id": name, "status": each} for name, each in zip(names, statuses, strict=True)]
        assert ask(op="schedule", schedule={"topic": topic, "value": "s"})["error"]["status"] == 422
        assert ask(op="publish", topic=topic, messages=[{"value": "v", "delay_ms": -1}])["error"]["status"] == 422
    assert await_values(rest, topic, 2) == ["now", "later"]
    await_listed(rest, topic, 0)
