"""Every operation of the table means the same at every door: the same answers, the same errors, the same limits.

Each operation is asked for with good requests (the stories), with values that are missing or just outside their
limits (made from the declarations), and about things that are not there. Answers and errors of REST, the Python client
and gRPC are compared, and those of the WebSocket where it has the operation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import UNSET
from msgspec import inspect as types
from tests.integration.http.conftest import DoorInThread, http_config
from tests.integration.http.websocket.conftest import Talk
from tests.support.grpc_calls import GrpcCalls, GrpcRefusal
from tests.support.operation_stories import REFUSED, STORIES, Told, text

from penstock import AsyncClient, errors
from penstock.api import (
    access,
    audit,
    cluster,
    dead_letters,
    groups,
    health,
    messages,
    pipelines,
    queues,
    quotas,
    schedules,
    series,
    settings,
    topics,
    transactions,
)
from penstock.api.operation import TABLE, Operation, Repeat, Request
from penstock.api.problems import status_of_kind
from penstock.api.table import OPERATIONS
from penstock.client.calls import call_of
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.server import GrpcServer
from penstock.doors.grpc.statuses import CODES, code_of
from penstock.errors import PenstockError
from penstock.grpc.legacy import NOT_IN_GRPC
from penstock.grpc.shapes import Kind, Leaf, leaves_of

IN_GRPC = [row for row in OPERATIONS if row.request not in NOT_IN_GRPC]
EVERY = pytest.mark.parametrize("operation", IN_GRPC, ids=lambda operation: operation.name)
# What REST tells apart, because a body, a query and a path are different things to HTTP.
SAME_CODE = {"invalid_body": "invalid_argument", "invalid_parameter": "invalid_argument", "": "invalid_argument"}
KINDS = {kind.code: kind for kind in reversed(errors.ALL)}


class Site:
    """One node with an HTTP and a gRPC door, and a client of each kind."""

    def __init__(self, door: DoorInThread) -> None:
        self.door = door
        self.rest = door.client
        self._server = door.run(self._open())
        self.grpc = GrpcCalls(self._server.port)

    async def _open(self) -> GrpcServer:
        server = GrpcServer(self.door.server._door.services, GrpcConfig(port=0, stop_timeout_ms=1_000))
        await server.start()
        return server

    def close(self) -> None:
        self.grpc.close()
        self.door.run(self._server.stop())

    def by_client(self, request: Request[Any]) -> Any:
        async def ask() -> Any:
            async with AsyncClient(f"http://127.0.0.1:{self.door.server.port}") as client:
                return await client.call(request)

        return asyncio.run(ask())

    def by_rest(self, request: Request[Any]) -> httpx.Response:
        call = call_of(request)
        body = call.body if isinstance(call.body, (bytes, bytearray)) else b"".join(call.body)
        headers = {name.decode(): value.decode() for name, value in call.headers}
        if call.content_type is not None:
            headers["content-type"] = call.content_type.decode()
        return self.rest.request(call.method, call.target, content=bytes(body), headers=headers)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    door = DoorInThread(tmp_path_factory.mktemp("doors"), http_config())
    made = Site(door)
    yield made
    made.close()
    door.close()


_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


# -- good requests -----------------------------------------------------------------------------------------------------

# What differs from call to call.
VOLATILE = {
    *("timestamp", "lease_until", "receipt", "member_id", "transaction", "topic_id", "producer_id", "producer_ids"),
    *(
        "opened",
        "ended",
        "created",
        "created_at",
        "key",
        "key_id",
        "next",
        "due",
        "died",
        "oldest_age_ms",
        "age_ms",
        "started_at",
        "expires_at",
        "ended_at",
    ),
    *("reported_at", "times", "uptime_ms", "time_ms", "size_bytes", "last_served", "first", "last", "client_host"),
    *("disk_free_bytes", "disk_total_bytes", "by", "served_per_second", "metadata_index", "log_append_latency"),
    *("log_sync_latency", "produce_latency", "checked_bytes", "checked_segments", "completed_round", "asked_round"),
    *(
        "completed_at_ms",
        "round",
        "is_running",
        "scrubbed_at_ms",
        "id",
        "detail",
        "instance",
        "generation",
        "fired_total",
    ),
    *("next", "runs"),
    *("dying", "acked_ahead", "waiting", "dead_letters"),  # a rejected message is on its way
    *("type", "title", "status_code", "moves", "lateness", "firing", "pending", "near", "far", "client_id", "poll"),
}


def comparable(value: Any, topic: str) -> Any:
    """What two doors have to agree on. Protobuf cannot tell null from nothing, so neither is compared."""
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
        if "headers" in value:  # a message: bytes and text are forms of the same
            for name in ("key", "value"):
                data = value.pop(f"{name}_base64", UNSET)
                if isinstance(data, bytes):
                    value[name] = data.decode("latin-1")
            value.pop("headers_in_order", None)
    if isinstance(value, dict):
        found = {
            str(name).replace(topic, "T"): comparable(each, topic)
            for name, each in value.items()
            if name not in VOLATILE and each is not UNSET and each not in (None, "", [], {}, 0, False)
        }
        return {name: each for name, each in found.items() if each not in ({}, [], "normal")}
    if isinstance(value, (list, tuple)):
        return [comparable(each, topic) for each in value]
    if isinstance(value, str):
        return value.replace(topic, "T").replace(topic.replace("topic-", "pipeline_"), "P")
    return value


# Of the whole node: what one story leaves behind, the other finds.
OF_ALL = {
    *(topics.ListTopics, queues.ListQueues, groups.ListGroups, transactions.ListTransactions, pipelines.ListPipelines),
    *(cluster.Rebalance, cluster.ElectLeaders, cluster.DescribeCluster, cluster.DescribeMembers, cluster.ListNodes),
    *(health.DescribeFigures, health.DescribeHealth, schedules.CountSchedules, health.ScrubNow, health.DescribeScrub),
    access.ListUsers,
    queues.PeekQueueGroup,  # a rejected message is on its way
    groups.PollGroup,  # how many messages come at once is not said
}


def test_every_operation_is_answered_alike(site: Site, topic: str) -> None:
    asked: set[type[Request[Any]]] = set()
    other = f"{topic}-by-grpc"
    for story in STORIES:
        told, again = Told(), Told()
        by_client, by_grpc = story(told, topic), story(again, other)
        told_all: list[list[tuple[type, Any]]] = [[], []]
        for request in by_client:
            told.answer = site.by_client(request)
            told_all[0].append((type(request), comparable(told.answer, topic)))
            row = TABLE[type(request)]
            if row.repeat is Repeat.SAFE and type(request) not in NOT_IN_GRPC:
                mine, theirs = comparable(site.grpc.call(request), topic), comparable(told.answer, topic)
                if type(request) not in OF_ALL or type(request) in (topics.ListTopics, groups.ListGroups):
                    assert mine == theirs, f"{row.name} is answered in two ways"
        for request in by_grpc:
            if type(request) in NOT_IN_GRPC:
                again.answer = site.by_client(request)
            else:
                again.answer = site.grpc.call(request)
                asked.add(type(request))
            told_all[1].append((type(request), comparable(again.answer, other)))
        first, second = ([each for each, _ in itertools.groupby(told)] for told in told_all)
        for (kind, mine), (same, theirs) in zip(first, second, strict=False):
            assert kind is same
            if kind not in OF_ALL and kind not in NOT_IN_GRPC:
                assert mine == theirs, f"{kind.__name__} is answered in two ways"
    for request, error in REFUSED.items():
        with pytest.raises(GrpcRefusal) as refused:
            site.grpc.call(request)
        with pytest.raises(error) as raised:
            site.by_client(request)
        assert refused.value.code == raised.value.code
        asked.add(type(request))
    assert {row.request.__name__ for row in IN_GRPC} - {kind.__name__ for kind in asked} == set()


# -- what is missing or out of range -----------------------------------------------------------------------------------


def sample(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The least that a request takes, in plain values."""
    return {info.name: _sample(info.type) for info in types.type_info(kind).fields if info.required}  # type: ignore[attr-defined]


def _sample(info: types.Type) -> Any:
    match info:
        case types.Metadata(type=inner):
            return _sample(inner)
        case types.StructType(cls=cls):
            return cls(**{**sample(cls), **({"value_base64": b"x"} if "value_base64" in cls.__struct_fields__ else {})})
        case types.ListType(item_type=item, min_length=least):
            return [_sample(item) for _ in range(least or 0)]
        case types.LiteralType(values=values):
            return values[0]
        case types.DictType():
            return {}
        case types.DateTimeType():
            return datetime(2026, 1, 31, tzinfo=UTC)
        case types.IntType(ge=low):
            return max(low or 0, 1)
        case types.StrType():
            return "x"
    raise AssertionError(f"what is a sample of {info}?")


def outside(leaf: Leaf) -> list[Any]:
    """Values just outside the limits of a field that protobuf can say."""
    if leaf.kind is not Kind.INT or leaf.is_list:
        return []
    found: list[Any] = []
    if leaf.low is not None and leaf.low - 1 != 0:  # zero is "not given"
        found.append(leaf.low - 1)
    if leaf.high is not None and leaf.high < (1 << 31) - 1:
        found.append(leaf.high + 1)
    return found


def refusals(site: Site, request: Request[Any]) -> tuple[str, str, httpx.Response, GrpcRefusal]:
    """How a request is refused at both doors: the codes, as one says them, and the whole."""
    rpc = site.grpc.rpcs[type(request)]
    with pytest.raises(GrpcRefusal) as refused:
        site.grpc.send(rpc, site.grpc.unchecked(request, rpc.request_message))
    answer = site.by_rest(request)
    assert answer.status_code >= 400, f"REST takes {request}"
    code = answer.json()["code"]
    return SAME_CODE.get(code, code), refused.value.code, answer, refused.value


@EVERY
def test_a_value_just_outside_its_limit_is_refused_by_both_and_named(site: Site, operation: Operation) -> None:
    for leaf in leaves_of(operation.request):
        if leaf.within:
            continue
        for value in outside(leaf):
            more = {"transaction": "x"} if leaf.places[0].path.startswith("ticket.") else {}
            request = operation.request(**{**sample(operation.request), **more, leaf.name: value})
            rest, grpc, answer, refusal = refusals(site, request)
            if operation.misnamed is not None and leaf.name in operation.routes[0].names:
                assert grpc == "invalid_argument"  # in a path, REST tells of it as of something that is not there
            else:
                assert (rest, grpc) == ("invalid_argument", "invalid_argument"), (leaf.name, value, answer.text)
            assert leaf.places[0].path in refusal.details


@EVERY
def test_what_is_missing_is_named(site: Site, operation: Operation) -> None:
    """In REST a path cannot lack its names; there is nothing to compare for those."""
    rpc = site.grpc.rpcs[operation.request]
    whole = sample(operation.request)
    for leaf in leaves_of(operation.request):
        if not leaf.is_required or leaf.within or leaf.kind is Kind.CHANGES:
            continue
        if leaf.kind is Kind.INT:
            continue  # protobuf cannot tell a number that is missing from zero, which is one
        data = site.grpc.unchecked(operation.request(**{**whole, leaf.name: None}), rpc.request_message)
        with pytest.raises(GrpcRefusal) as refused:
            site.grpc.send(rpc, data)
        assert refused.value.code == "invalid_argument"
        assert refused.value.details == f"{leaf.places[0].path} is missing."
        if leaf.name in operation.routes[0].names:
            continue
        call = call_of(operation.request(**whole))
        body = {
            name: value for name, value in whole.items() if name != leaf.name and name not in operation.routes[0].names
        }
        content = b"" if operation.body == leaf.name else msgspec.json.encode(body)
        target = call.target.partition("?")[0]
        answer = site.rest.request(call.method, target, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["code"] in {"invalid_body", "invalid_parameter", "malformed_body"}


# -- what is not there -------------------------------------------------------------------------------------------------

NOTHING_TO_LACK = "It is about no single thing."
MADE = "It makes what is not there."
UNKNOWN: dict[type[Request[Any]], Request[Any] | str] = {
    quotas.ListQuotas: NOTHING_TO_LACK,
    quotas.SetQuota: MADE,
    quotas.RemoveQuota: quotas.RemoveQuota(user="no-such-user"),
    audit.ReadAudit: NOTHING_TO_LACK,
    access.WhoAmI: NOTHING_TO_LACK,
    access.ListUsers: NOTHING_TO_LACK,
    access.SetUser: MADE,
    access.DeleteUser: access.DeleteUser(user="no-such-user"),
    access.ListAcls: NOTHING_TO_LACK,
    access.CreateAcls: MADE,
    access.DeleteAcls: NOTHING_TO_LACK,
    access.GrantRole: MADE,
    access.RevokeRole: NOTHING_TO_LACK,
    access.IssueApiKey: MADE,
    access.ListApiKeys: NOTHING_TO_LACK,
    access.RevokeApiKey: access.RevokeApiKey(key_id="0123456789abcdef"),
    access.DescribeMasterKeys: NOTHING_TO_LACK,
    access.RotateMasterKeys: access.RotateMasterKeys(),
    settings.DescribeGroupConfigs: MADE,
    settings.AlterGroupConfigs: MADE,
    settings.DescribeClusterConfigs: NOTHING_TO_LACK,
    settings.AlterClusterConfigs: NOTHING_TO_LACK,
    settings.DescribeNodeConfigs: settings.DescribeNodeConfigs(node=99),
    settings.AlterNodeConfigs: settings.AlterNodeConfigs(node=99, configs={"leader.replication.throttled.rate": 5}),
    messages.Publish: messages.Publish(topic="here", message=text("x", partition=9)),
    messages.PublishBatch: messages.PublishBatch(topic="here", messages=[text("x", partition=9)]),
    messages.Read: messages.Read(topic="nowhere"),
    messages.CreateProducer: NOTHING_TO_LACK,
    queues.Receive: queues.Receive(topic="nowhere"),
    queues.Ack: queues.Ack(topic="here", group="none", receipts=["here:0:0:1:10000000000000000"]),
    queues.Nack: queues.Nack(topic="here", group="none", receipts=["here:0:0:1:10000000000000000"]),
    queues.Reject: queues.Reject(topic="here", group="none", receipts=["here:0:0:1:10000000000000000"]),
    queues.Extend: queues.Extend(topic="here", group="none", receipts=["here:0:0:1:10000000000000000"]),
    queues.Release: queues.Release(topic="here", group="none", receipts=["here:0:0:1:10000000000000000"]),
    queues.ListQueues: NOTHING_TO_LACK,
    queues.DescribeQueue: queues.DescribeQueue(topic="nowhere"),
    queues.PurgeQueue: queues.PurgeQueue(topic="nowhere"),
    queues.DescribeQueueGroup: queues.DescribeQueueGroup(topic="here", group="none"),
    queues.DeclareQueueGroup: queues.DeclareQueueGroup(topic="nowhere", group="none"),
    queues.ForgetQueueGroup: queues.ForgetQueueGroup(topic="nowhere", group="none"),
    queues.PauseQueueGroup: queues.PauseQueueGroup(topic="nowhere", group="none"),
    queues.ResumeQueueGroup: queues.ResumeQueueGroup(topic="nowhere", group="none"),
    queues.SeekQueueGroup: queues.SeekQueueGroup(topic="nowhere", group="none", to="earliest"),
    queues.PeekQueueGroup: queues.PeekQueueGroup(topic="nowhere", group="none"),
    queues.DescribeLanes: queues.DescribeLanes(topic="nowhere"),
    groups.PollGroup: groups.PollGroup(group="g", member_id="none"),
    groups.JoinGroup: groups.JoinGroup(group="g", topics=["here"], member_id="none", wait_ms=0),
    groups.CommitGroup: groups.CommitGroup(group="g", member_id="none"),
    groups.HeartbeatGroup: groups.HeartbeatGroup(group="g", member_id="none"),
    groups.LeaveGroup: groups.LeaveGroup(group="g", member_id="none"),
    groups.ListGroups: NOTHING_TO_LACK,
    groups.DescribeGroup: groups.DescribeGroup(group="none"),
    groups.DeleteGroup: groups.DeleteGroup(group="none"),
    groups.ResetGroup: groups.ResetGroup(group="none", topic="nowhere", to="earliest"),
    groups.DeleteGroupOffsets: groups.DeleteGroupOffsets(group="none", topic="here"),
    groups.FindOffsets: "It tells what is missing.",
    groups.ReportOffsets: groups.ReportOffsets(
        group="g", offsets=[groups.ReportedOffset(topic="nowhere", partition=0, offset=0)]
    ),
    topics.ListTopics: NOTHING_TO_LACK,
    topics.CreateTopic: topics.CreateTopic(name="here"),
    topics.DescribeTopic: topics.DescribeTopic(topic="nowhere"),
    topics.AlterTopic: topics.AlterTopic(topic="nowhere", configs={"retention.ms": None}),
    topics.DeleteTopic: topics.DeleteTopic(topic="nowhere"),
    topics.AddPartitions: topics.AddPartitions(topic="nowhere", partitions=9),
    transactions.OpenTransaction: MADE,
    transactions.ExtendTransaction: transactions.ExtendTransaction(transaction="none"),
    transactions.AckInTransaction: transactions.AckInTransaction(transaction="none", receipts=["here:0:0:1:1"]),
    transactions.CommitTransaction: transactions.CommitTransaction(transaction="none"),
    transactions.AbortTransaction: transactions.AbortTransaction(transaction="none"),
    transactions.ListTransactions: NOTHING_TO_LACK,
    transactions.DescribeTransaction: transactions.DescribeTransaction(transaction="none"),
    series.DescribeSeries: series.DescribeSeries(series="none"),
    series.BeginNumber: series.BeginNumber(series="no spaces here", number=0, run="r"),
    series.CommitNumber: series.CommitNumber(series="no spaces here", number=0, run="r"),
    series.AbortNumber: series.AbortNumber(series="no spaces here", number=0, run="r"),
    schedules.AddSchedule: schedules.AddSchedule(
        schedule=schedules.NewSchedule(topic="__consumer_offsets", value_base64=b"x", delay_ms=1)
    ),
    schedules.ListSchedules: schedules.ListSchedules(after="nonsense"),
    schedules.CountSchedules: NOTHING_TO_LACK,
    schedules.TellTimes: schedules.TellTimes(cron="nonsense"),
    schedules.CancelSchedules: "It tells of each.",
    schedules.GetSchedule: schedules.GetSchedule(schedule="none"),
    schedules.Reschedule: schedules.Reschedule(schedule="none", time=schedules.ScheduleTime(delay_ms=1)),
    schedules.CancelSchedule: schedules.CancelSchedule(schedule="none"),
    schedules.RunSchedule: schedules.RunSchedule(schedule="none"),
    pipelines.ListPipelines: NOTHING_TO_LACK,
    pipelines.GetPipeline: pipelines.GetPipeline(pipeline="none"),
    pipelines.ReportPipeline: pipelines.ReportPipeline(
        pipeline="no spaces here", run="r", state="running", started_at=datetime(2026, 1, 31, tzinfo=UTC)
    ),
    pipelines.StopPipeline: pipelines.StopPipeline(pipeline="none"),
    pipelines.ForgetPipeline: pipelines.ForgetPipeline(pipeline="none"),
    dead_letters.ListDeadLetters: dead_letters.ListDeadLetters(topic="nowhere"),
    dead_letters.ListDeadLetterReasons: dead_letters.ListDeadLetterReasons(topic="nowhere"),
    dead_letters.GetDeadLetter: dead_letters.GetDeadLetter(topic="here", partition=0, offset=9),
    dead_letters.Redrive: dead_letters.Redrive(topic="nowhere"),
    dead_letters.ListRedrives: dead_letters.ListRedrives(topic="nowhere"),
    dead_letters.GetRedrive: dead_letters.GetRedrive(topic="here", redrive="none"),
    dead_letters.CancelRedrive: dead_letters.CancelRedrive(topic="here", redrive="none"),
    cluster.DescribeCluster: NOTHING_TO_LACK,
    cluster.DescribeMembers: NOTHING_TO_LACK,
    cluster.ListNodes: NOTHING_TO_LACK,
    cluster.ListReassignments: NOTHING_TO_LACK,
    cluster.Rebalance: NOTHING_TO_LACK,
    cluster.TransferControl: cluster.TransferControl(node_id=99),
    cluster.ElectLeaders: "It tells of each.",
    cluster.DrainNode: cluster.DrainNode(node=99),
    cluster.ResumeNode: cluster.ResumeNode(node=99),
    cluster.RemoveNode: cluster.RemoveNode(node=99),
    cluster.ReassignTopic: cluster.ReassignTopic(topic="nowhere", nodes=[1]),
    health.DescribeHealth: NOTHING_TO_LACK,
    health.DescribeFigures: NOTHING_TO_LACK,
    health.DescribeScrub: NOTHING_TO_LACK,
    health.ScrubNow: NOTHING_TO_LACK,
}


def test_every_operation_has_a_case() -> None:
    assert {row.request for row in IN_GRPC} == set(UNKNOWN)


@pytest.fixture(scope="module")
def here(site: Site) -> None:
    site.by_client(topics.CreateTopic(name="here", partitions=1))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "request_", [each for each in UNKNOWN.values() if not isinstance(each, str)], ids=lambda each: type(each).__name__
)
def test_what_is_not_there_is_told_alike(site: Site, request_: Request[Any]) -> None:
    if site.by_rest(request_).status_code < 400:  # some of these are answered, with nothing in it
        assert comparable(site.grpc.call(request_), "\0") == comparable(site.by_client(request_), "\0")
        return
    rest, grpc, answer, refusal = refusals(site, request_)
    with pytest.raises(PenstockError) as raised:
        site.by_client(request_)
    code = raised.value.code
    assert SAME_CODE.get(code, code) == rest == grpc
    assert refusal.details == answer.json()["detail"]
    kind = KINDS.get(grpc)
    if kind is not None:
        assert answer.status_code in {status_of_kind(kind), 400, 422}
        assert refusal.status is code_of(kind("told"))


def test_one_table_has_a_status_for_every_error_at_each_door() -> None:
    for kind in errors.ALL:
        if issubclass(kind, (errors.StartupError, errors.ClientError)):
            continue
        is_callers = status_of_kind(kind) < 500
        grpc = code_of(kind("told"))
        if kind in CODES and not kind.retriable:
            assert is_callers == (grpc.name not in {"INTERNAL", "UNAVAILABLE", "DATA_LOSS"}) or kind.retriable, kind


# -- the WebSocket -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_the_websocket_tells_the_same_of_what_it_has(site: Site, topic: str) -> None:
    talk = Talk(site.door.server.port)
    try:
        published = talk.ask("publish", topic=topic, messages=[{"value": "a", "partition": 0}])["results"][0]
        assert set(published) == {"topic", "partition", "offset", "timestamp"}
        by_grpc = site.grpc.call(messages.Publish(topic=topic, message=text("a", partition=0)))
        assert (by_grpc.topic, by_grpc.offset) == (topic, published["offset"] + 1)
        receipt = "here:0:0:1:10000000000000000"
        for op, kind in (
            ("ack", queues.Ack),
            ("nack", queues.Nack),
            ("reject", queues.Reject),
            ("extend", queues.Extend),
            ("release", queues.Release),
        ):
            with pytest.raises(GrpcRefusal) as refused:
                site.grpc.call(kind(group="none", receipts=[receipt]))
            told = talk.ask(op, "error", group="none", receipts=[receipt])
            assert told["error"]["code"] == refused.value.code
            wrong = talk.ask(op, "error", group="none", receipts=[])
            assert SAME_CODE.get(wrong["error"]["code"], "invalid_argument") == "invalid_argument"
        fates = site.grpc.call(schedules.CancelSchedules(ids=["none"])).fates
        assert talk.ask("cancel", schedules=["none"])["results"][0]["status"] == fates[0]
    finally:
        talk.close()
