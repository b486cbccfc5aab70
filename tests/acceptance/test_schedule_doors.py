"""Delays and schedules through every door of a real node: added, listed, moved, run, cancelled, and in time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from tests.support.grpc_client import T_S, GrpcClient
from tests.support.node import Node
from websockets.sync.client import connect

from penstock import AsyncClient, Client, Schedule, Scheduled
from penstock.cli.main import run
from penstock.errors import InvalidRequest, ScheduleNotFound, UnknownPartition
from penstock.grpc.generated import message_pb2, messages_pb2
from penstock.grpc.generated import schedules_pb2 as pb
from penstock.grpc.generated.schedules_pb2_grpc import SchedulesStub

FAR = "2099-12-31T23:59:59Z"
FAR_MS = 4_102_444_799_000


@pytest.fixture(scope="module")
def rest(node: Node) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.http_url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def stub(node: Node) -> Iterator[GrpcClient]:
    client = GrpcClient(f"127.0.0.1:{node.grpc_port}")
    yield client
    client.channel.close()


def values_in(rest: httpx.Client, topic: str) -> list[str]:
    return [
        message["value"]
        for message in rest.get(f"/v1/topics/{topic}/messages", params={"limit": 1000}).json()["messages"]
    ]


def await_values(rest: httpx.Client, topic: str, count: int, patience_s: float = 20.0) -> list[str]:
    deadline = time.monotonic() + patience_s
    while len(found := values_in(rest, topic)) < count:
        assert time.monotonic() < deadline, f"only {found} of {count} came"
        time.sleep(0.02)
    return found


def listed(rest: httpx.Client, topic: str, **query: Any) -> list[dict[str, Any]]:
    """All schedules of a topic, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = rest.get(
            "/v1/schedules", params={"topic": topic, "limit": 3, **query, **({"after": after} if after else {})}
        )
        assert page.status_code == 200, page.text
        found += page.json()["schedules"]
        after = page.json()["next"]
        if not after:
            return found


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def create(rest: httpx.Client, topic: str, **configs: str) -> None:
    assert rest.post("/v1/topics", json={"name": topic, "partitions": 1, "configs": configs}).status_code == 201


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
    assert rest.get(f"/v1/schedules/{receipt['schedule_id']}").status_code == 404


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
    again = rest.post("/v1/schedules", json={**body, "at": "2098-01-01T00:00:00Z"})
    assert (again.status_code, again.json()["due"]) == (200, FAR), "what is known is not added again"

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
    deadline = time.monotonic() + 10
    while (status := rest.delete(f"/v1/schedules/{made['id']}").status_code) == 409:
        assert time.monotonic() < deadline
    assert status in {204, 404}, "one that was being fired at that moment comes, but not again"
    time.sleep(0.3)
    count = len(values_in(rest, topic))
    time.sleep(0.5)
    assert len(values_in(rest, topic)) == count


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
    for delay_ms in (0, 0, 3_600_000):
        body = {"topic": topic, "value": "v", "delay_ms": delay_ms, "id": f"{topic}-{delay_ms}"}
        rest.post("/v1/schedules", json=body)
        if not delay_ms:
            await_values(rest, topic, 1)
    rest.delete(f"/v1/schedules/{topic}-3600000")
    await_values(rest, topic, 2)
    deadline = time.monotonic() + 10
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
            answer: dict[str, Any] = json.loads(socket.recv(timeout=20))
            return answer

        json.loads(socket.recv(timeout=20))  # hello
        messages = [{"value": "now"}, {"value": "later", "delay_ms": 600}, {"value": "never", "deliver_at": FAR}]
        results = ask(op="publish", topic=topic, messages=messages)["results"]
        assert results[0]["offset"] == 0
        scheduled = ask(op="schedule", schedule={"topic": topic, "value": "s", "cron": "@daily", "id": f"{topic}-ws"})
        assert scheduled["schedule"]["cron"] == "@daily"
        names = [results[2]["schedule_id"], f"{topic}-ws", "nobody"]
        answer = ask(op="cancel", schedules=names)
        statuses = ["done", "done", "not_found"]
        assert answer["results"] == [{"id": name, "status": each} for name, each in zip(names, statuses, strict=True)]
        assert ask(op="schedule", schedule={"topic": topic, "value": "s"})["error"]["status"] == 422
        assert ask(op="publish", topic=topic, messages=[{"value": "v", "delay_ms": -1}])["error"]["status"] == 422
    assert await_values(rest, topic, 2) == ["now", "later"]
    assert listed(rest, topic) == []


# -- gRPC --------------------------------------------------------------------------------------------------------------


def refusal(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


def test_grpc_publishes_for_later(stub: GrpcClient, rest: httpx.Client, topic: str) -> None:
    stub.create(topic)
    message = message_pb2.Message(value=b"later", delay=Duration(nanos=600_000_000))
    answer = stub.messages.Publish(messages_pb2.PublishRequest(topic=topic, message=message), timeout=T_S)
    assert answer.scheduled.schedule_id
    assert not answer.HasField("receipt")
    batch = [
        message_pb2.Message(value=b"now", delay=Duration()),
        message_pb2.Message(value=b"never", deliver_at=Timestamp(seconds=FAR_MS // 1000), schedule_id=f"{topic}-g"),
    ]
    results = stub.messages.PublishBatch(
        messages_pb2.PublishBatchRequest(topic=topic, messages=batch), timeout=T_S
    ).results
    assert [result.WhichOneof("result") for result in results] == ["receipt", "scheduled"]
    requests = iter([messages_pb2.PublishStreamRequest(id=4, topic=topic, messages=batch[1:])])
    (streamed,) = stub.messages.PublishStream(requests, timeout=T_S)
    assert streamed.results[0].scheduled.schedule_id == f"{topic}-g", "the same id is scheduled once"
    assert sorted(await_values(rest, topic, 2)) == ["later", "now"]
    assert [each["id"] for each in listed(rest, topic)] == [f"{topic}-g"]
    for wrong in (
        {"delay": Duration(seconds=1), "deliver_at": Timestamp(seconds=1)},
        {"delay": Duration(seconds=-1)},
        {"deliver_at": Timestamp(seconds=-1)},
        {"delay": Duration(seconds=300_000_000_000)},
        {"schedule_id": "x"},
    ):
        request = messages_pb2.PublishRequest(topic=topic, message=message_pb2.Message(value=b"v", **wrong))
        assert (
            refusal(lambda request=request: stub.messages.Publish(request, timeout=T_S))
            is grpc.StatusCode.INVALID_ARGUMENT
        )


def test_grpc_schedules_lists_moves_runs_and_cancels(stub: GrpcClient, rest: httpx.Client, topic: str) -> None:
    stub.create(topic)
    schedules = SchedulesStub(stub.channel)

    def add(value: bytes, when: pb.When, **fields: Any) -> Any:
        request = pb.AddScheduleRequest(topic=topic, message=message_pb2.Message(value=value), when=when, **fields)
        return schedules.AddSchedule(request, timeout=T_S)

    at = pb.When(at=Timestamp(seconds=FAR_MS // 1000))
    first = add(b"once", at, id=f"{topic}-1")
    assert (first.is_new, first.schedule.id, first.schedule.due.seconds) == (True, f"{topic}-1", FAR_MS // 1000)
    assert not add(b"other", at, id=f"{topic}-1").is_new
    every = add(b"every", pb.When(every=pb.Every(period=Duration(seconds=3600))), missed=pb.MISSED_ALL).schedule
    assert (every.every.period.seconds, every.missed) == (3600, pb.MISSED_ALL)
    cron = add(b"cron", pb.When(cron=pb.Cron(expression="0 7 * * *", time_zone="Europe/Berlin"))).schedule
    assert cron.cron.time_zone == "Europe/Berlin"
    add(b"delayed", pb.When(delay=Duration(seconds=3600)))
    found, token = list[Any](), ""
    while True:
        page = schedules.ListSchedules(pb.ListSchedulesRequest(topic=topic, page_size=2, page_token=token), timeout=T_S)
        found += page.schedules
        token = page.next_page_token
        if not token:
            break
    assert sorted(each.message.value for each in found) == [b"cron", b"delayed", b"every", b"once"]
    when = pb.When(at=Timestamp(seconds=FAR_MS // 1000 - 60))
    moved = schedules.Reschedule(pb.RescheduleRequest(id=f"{topic}-1", when=when), timeout=T_S)
    assert moved.due.seconds == FAR_MS // 1000 - 60
    assert schedules.GetSchedule(pb.GetScheduleRequest(id=f"{topic}-1"), timeout=T_S).due == moved.due
    schedules.RunSchedule(pb.RunScheduleRequest(id=f"{topic}-1"), timeout=T_S)
    assert await_values(rest, topic, 1) == ["once"]
    ids = [each.id for each in found if each.id != f"{topic}-1"]
    fates = schedules.CancelSchedules(pb.CancelSchedulesRequest(ids=[*ids, "nobody"]), timeout=T_S).fates
    cancelled, missing = pb.CancelSchedulesResponse.FATE_CANCELLED, pb.CancelSchedulesResponse.FATE_NOT_FOUND
    assert list(fates) == [cancelled] * 3 + [missing]
    assert schedules.GetScheduleStats(pb.GetScheduleStatsRequest(), timeout=T_S).fired_total >= 1
    get = pb.GetScheduleRequest(id=f"{topic}-1")
    assert refusal(lambda: schedules.GetSchedule(get, timeout=T_S)) is grpc.StatusCode.NOT_FOUND
    for wrong in (pb.When(), pb.When(cron=pb.Cron(expression="x")), pb.When(every=pb.Every(period=Duration(nanos=1)))):
        assert refusal(lambda wrong=wrong: add(b"v", wrong)) is grpc.StatusCode.INVALID_ARGUMENT
    assert listed(rest, topic) == []


# -- Python ------------------------------------------------------------------------------------------------------------


def test_the_client_publishes_for_later(node: Node, rest: httpx.Client, topic: str) -> None:
    create(rest, topic)
    with Client(node.http_url) as client:
        due = datetime.now(UTC) + timedelta(seconds=0.8)
        scheduled = client.publish(topic, "first", key="k", headers={"a": b"\xff"}, deliver_at=due, priority="high")
        assert isinstance(scheduled, Scheduled)
        assert abs(scheduled.due_ms - due.timestamp() * 1000) <= 1
        future = client.send(topic, "second", delay_ms=800)
        many = client.publish_many(topic, [f"many {number}" for number in range(1_500)], delay_ms=3_600_000)
        assert len({each.schedule_id for each in many}) == 1_500
        client.flush()
        assert future.done()
        assert future.result().schedule_id
        now = client.publish(topic, "now", delay_ms=0)
        assert (now.offset >= 0, now.schedule_id) == (True, "")
        for wrong in (
            {"delay_ms": -1},
            {"delay_ms": 1, "deliver_at": 1},
            {"deliver_at": "2099"},
            {"delay_ms": 1 << 60},
        ):
            with pytest.raises(InvalidRequest):
                client.publish(topic, "v", **wrong)  # type: ignore[arg-type]
        with pytest.raises(UnknownPartition):
            client.publish(topic, "v", partition=9, delay_ms=60_000)
        places = (9, 0, 9, 8, 8)  # what is wrong keeps nobody else out, also where all of a call are wrong
        mixed = [client.send(topic, "mixed", partition=place, delay_ms=60_000) for place in places]
        client.flush()
        assert [isinstance(each.exception(), UnknownPartition) for each in mixed] == [place != 0 for place in places]
        client.schedules.cancel(mixed[1].result().schedule_id)
        assert sorted(await_values(rest, topic, 3)) == ["first", "now", "second"]
        messages = rest.get(f"/v1/topics/{topic}/messages").json()["messages"]
        (first,) = [message for message in messages if message["value"] == "first"]
        assert first["headers"]["penstock-priority"] == "high", "once, and as it was given"
        assert first["headers_base64"] == {"a": "/w=="}
        assert sum(1 for _ in client.schedules.list(topic=topic, page_size=1_000)) == 1_500
        assert client.schedules.show(many[0].schedule_id).value == b"many 0"
        client.schedules.cancel(many[0].schedule_id)
        assert sum(1 for _ in client.schedules.list(topic=topic, page_size=400)) == 1_499


def test_the_client_schedules_lists_moves_runs_and_cancels(node: Node, rest: httpx.Client, topic: str) -> None:
    create(rest, topic)

    async def work() -> None:
        async with AsyncClient(node.http_url) as client:
            schedules = client.schedules
            made = await schedules.add(
                topic, {"n": 1}, cron="0 7 * * *", time_zone="Europe/Berlin", key="k", missed="all"
            )
            assert isinstance(made, Schedule)
            assert (made.value, made.key, made.cron, made.time_zone, made.missed) == (
                b'{"n":1}', b"k", "0 7 * * *", "Europe/Berlin", "all",
            )  # fmt: skip
            once = await schedules.add(topic, b"\xff", delay_ms=3_600_000, id=f"{topic}-x")
            assert (once.id, once.value) == (f"{topic}-x", b"\xff")
            assert (await schedules.add(topic, b"other", delay_ms=1, id=f"{topic}-x")).value == b"\xff"
            assert {each.id async for each in schedules.list(topic=topic, page_size=1)} == {made.id, once.id}
            moment = datetime(2099, 1, 1, tzinfo=UTC)
            assert (await schedules.reschedule(once.id, at=moment)).due == moment
            assert (await schedules.show(once.id)).due == moment
            await schedules.run(made.id)
            assert await asyncio.to_thread(await_values, rest, topic, 1) == ['{"n":1}']
            assert (await schedules.show(made.id)).cron == "0 7 * * *", "it goes on as planned"
            for each in (made, once):
                await schedules.cancel(each.id)
                with pytest.raises(ScheduleNotFound):
                    await schedules.show(each.id)
            assert (await schedules.stats()).fired_total >= 1
            with pytest.raises(InvalidRequest, match="Say when"):
                await schedules.add(topic, "v")

    asyncio.run(asyncio.wait_for(work(), 60))


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_command_line_walks_through_schedules(
    node: Node, rest: httpx.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(rest, topic)

    def penstock(*words: str, code: int = 0) -> Any:
        assert run([*words, "--url", node.http_url]) == code, capsys.readouterr()
        output = capsys.readouterr().out
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")] or output

    (sent,) = penstock("queue", "send", topic, "soon", "too", "--delay", "500ms", "-o", "json")
    assert (sent["messages"], len(sent["schedules"])) == (2, 2)
    (made,) = penstock("schedule", "add", topic, "daily", "--cron", "0 7 * * *", "--time-zone", "Asia/Tokyo", "-k", "k")
    assert (made["cron"], made["key"]) == ("0 7 * * *", "k")
    (once,) = penstock("schedule", "add", topic, "once", "--at", FAR, "--id", f"{topic}-cli")
    assert sorted(await_values(rest, topic, 2)) == ["soon", "too"]
    assert {row["id"] for row in penstock("schedule", "list", "--topic", topic)} == {made["id"], once["id"]}
    table = penstock("schedule", "list", "--topic", topic, "-o", "table").splitlines()
    assert table[0].split() == ["ID", "TOPIC", "DUE", "IN", "AGAIN", "STATE", "MESSAGE"]
    assert "0 7 * * * Asia/Tokyo" in table[1]
    (moved,) = penstock("schedule", "reschedule", once["id"], "--delay", "3d")
    assert moved["due"] < FAR
    assert penstock("schedule", "show", once["id"])[0]["due"] == moved["due"]
    penstock("schedule", "run", once["id"])
    assert await_values(rest, topic, 3)[-1] == "once"
    assert penstock("schedule", "stats")[0]["fired_total"] >= 3
    penstock("schedule", "cancel", made["id"])
    penstock("schedule", "cancel", made["id"], code=3)
    penstock("schedule", "show", made["id"], code=3)
