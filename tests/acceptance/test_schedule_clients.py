"""Schedules as programs and people use them: over gRPC, with the Python client, on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from tests.support.cluster import eventually
from tests.support.grpc_client import T_S, GrpcClient
from tests.support.node import Node
from tests.support.schedule_door import FAR, FAR_MS, await_listed, await_values, create, listed

from penstock import AsyncClient, Client, Schedule, Scheduled
from penstock.cli.main import run
from penstock.errors import InvalidRequest, ScheduleExists, ScheduleNotFound, UnknownPartition
from penstock.grpc.generated import message_pb2, messages_pb2
from penstock.grpc.generated import schedules_pb2 as pb
from penstock.grpc.generated.schedules_pb2_grpc import SchedulesStub


@pytest.fixture(scope="module")
def rest(node: Node) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.http_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def stub(node: Node) -> Iterator[GrpcClient]:
    client = GrpcClient(f"127.0.0.1:{node.grpc_port}")
    yield client
    client.channel.close()


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
    await_listed(rest, topic, 1)
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
    assert not add(b"once", at, id=f"{topic}-1").is_new
    assert refusal(lambda: add(b"other", at, id=f"{topic}-1")) is grpc.StatusCode.ALREADY_EXISTS
    elsewhere = pb.When(at=Timestamp(seconds=FAR_MS // 1000 + 1))
    assert refusal(lambda: add(b"once", elsewhere, id=f"{topic}-1")) is grpc.StatusCode.ALREADY_EXISTS
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
    await_listed(rest, topic, 3)
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
        future = client.send(topic, "second", delay=0.8)
        many = client.publish_many(topic, [f"many {number}" for number in range(1_500)], delay=3_600)
        assert len({each.schedule_id for each in many}) == 1_500
        client.flush()
        assert future.done()
        assert future.result().schedule_id
        now = client.publish(topic, "now", delay=0)
        assert (now.offset >= 0, now.schedule_id) == (True, "")
        for wrong in (
            {"delay": -1},
            {"delay": 1, "deliver_at": 1},
            {"deliver_at": "2099"},
            {"delay": 1 << 60},
        ):
            with pytest.raises(InvalidRequest):
                client.publish(topic, "v", **wrong)  # type: ignore[arg-type]
        with pytest.raises(UnknownPartition):
            client.publish(topic, "v", partition=9, delay=60)
        places = (9, 0, 9, 8, 8)  # what is wrong keeps nobody else out, also where all of a call are wrong
        mixed = [client.send(topic, "mixed", partition=place, delay=60) for place in places]
        client.flush()
        assert [isinstance(each.exception(), UnknownPartition) for each in mixed] == [place != 0 for place in places]
        client.schedules.cancel(mixed[1].result().schedule_id)
        assert sorted(await_values(rest, topic, 3)) == ["first", "now", "second"]
        messages = rest.get(f"/v1/topics/{topic}/messages").json()["messages"]
        (first,) = [message for message in messages if message["value"] == "first"]
        assert first["headers"]["penstock-priority"] == "high", "once, and as it was given"
        assert first["headers_base64"] == {"a": "/w=="}
        eventually(lambda: sum(1 for _ in client.schedules.list(topic=topic, page_size=1_000)) == 1_500)
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
            once = await schedules.add(topic, b"\xff", delay=3_600, id=f"{topic}-x")
            assert (once.id, once.value) == (f"{topic}-x", b"\xff")
            again = await schedules.add(topic, b"\xff", delay=60, id=f"{topic}-x")
            assert (again.id, again.due) == (once.id, once.due), "a delay is no other time"
            with pytest.raises(ScheduleExists):
                await schedules.add(topic, b"other", delay=3_600, id=f"{topic}-x")
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
            while (await schedules.stats()).fired_total == 0:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.02)
            with pytest.raises(InvalidRequest, match="Give one of"):
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
    await_listed(rest, topic, 2)
    assert {row["id"] for row in penstock("schedule", "list", "--topic", topic)} == {made["id"], once["id"]}
    table = penstock("schedule", "list", "--topic", topic, "-o", "table").splitlines()
    assert table[0].split() == ["ID", "TOPIC", "DUE", "IN", "REPEATS", "STATE", "MESSAGE"]
    assert "0 7 * * * Asia/Tokyo" in table[1]
    (moved,) = penstock("schedule", "reschedule", once["id"], "--delay", "3d")
    assert moved["due"] < FAR
    assert penstock("schedule", "show", once["id"])[0]["due"] == moved["due"]
    penstock("schedule", "run", once["id"])
    assert await_values(rest, topic, 3)[-1] == "once"
    await_listed(rest, topic, 1)
    assert penstock("schedule", "stats")[0]["fired_total"] >= 3
    penstock("schedule", "cancel", made["id"])
    penstock("schedule", "cancel", made["id"], code=3)
    penstock("schedule", "show", made["id"], code=3)
