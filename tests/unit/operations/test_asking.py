"""Whichever node serves an operation, the door that was asked hears the same; nothing is done twice by accident."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.queue_nodes import NODES, QueueNodes, until
from tests.support.samples_of_types import values_of
from tests.support.virtual_time import run

from penstock import errors
from penstock.api.groups import (
    CommitGroup,
    DeleteGroup,
    DescribeGroup,
    GroupDetail,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    PollGroup,
)
from penstock.api.messages import NewMessage, Publish, PublishBatches, ReadBatches
from penstock.api.operation import TABLE, Keeper, Operation, Packed, Request
from penstock.api.pipelines import ListPipelines, ReportPipeline
from penstock.api.table import OPERATIONS
from penstock.api.transactions import CommitTransaction, DescribeTransaction, OpenTransaction
from penstock.errors import ClientGone, NotCoordinator, PeerNotReached, PeerUnavailable, PenstockError, RequestTimedOut
from penstock.machines.leaders import PATIENCE_SECONDS, shard_of
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.network.frames import joined
from penstock.operations.asking import (
    ASK,
    Ask,
    OperationService,
    RemoteCaller,
    can_repeat,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import SERVED
from penstock.operations.table import server_of
from penstock.records import encode_values

ELSEWHERE = [row for row in OPERATIONS if row.where.keeper is not Keeper.ANYONE or "list_" in row.name]
EACH = pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row.name)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


# -- requests and answers on their way ---------------------------------------------------------------------------------


@EACH
@FEW
@given(data=st.data())
def test_a_request_arrives_as_it_was_asked(row: Operation, data: st.DataObject) -> None:
    request = data.draw(values_of(row.request))
    text, packed = pack_request(row, request)
    assert unpack_request(row, memoryview(text), memoryview(packed)) == request


@EACH
@FEW
@given(data=st.data())
def test_an_answer_arrives_as_it_was_given(row: Operation, data: st.DataObject) -> None:
    answer = None if row.answer is None else data.draw(values_of(row.answer))
    reply, body = pack_answer(answer)
    assert unpack_answer(row, reply, joined(body)) == answer  # type: ignore[arg-type]


def test_a_packed_answer_arrives_as_its_bytes() -> None:
    reply, body = pack_answer(Packed((b"ab", b"c")))
    assert unpack_answer(TABLE[ReadBatches], reply, joined(body)) == Packed((b"abc",))  # type: ignore[arg-type]


def test_a_request_that_this_node_does_not_take_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"describe_group.*unknown field `colour`"):
        unpack_request(TABLE[DescribeGroup], memoryview(b'{"group": "g", "colour": 1}'), memoryview(b""))
    with pytest.raises(errors.InvalidRequest, match="publish_batches"):
        unpack_request(TABLE[PublishBatches], memoryview(b'{"topic": "t", "batches": []}'), memoryview(b"\xc1"))


def test_what_can_be_repeated_is_what_does_no_harm_or_carries_a_key() -> None:
    value = NewMessage(value_base64=b"x")
    cases: list[tuple[Request[Any], bool]] = [
        (DescribeGroup(group="g"), True),
        (DeleteGroup(group="g"), True),
        (JoinGroup(group="g", topics=["t"]), False),
        (OpenTransaction(), False),
        (Publish(topic="t", message=value, transaction="x"), False),
        (Publish(topic="t", message=value, transaction="x", sequence=0), True),
        (PublishBatches(topic="t", batches=[], transaction="x"), True),
        (PollGroup(group="g", member_id="m"), False),
        (PollGroup(group="g", member_id="m", last_poll=0), True),
        (CommitTransaction(transaction="x"), False),
        (CommitTransaction(transaction="x", key="k"), True),
    ]
    for request, expected in cases:
        assert can_repeat(TABLE[type(request)], request) == expected, request


# -- a cluster ---------------------------------------------------------------------------------------------------------


class Client(Caller):
    """The client of a test, which can go away."""

    __slots__ = ("gone", "is_packed", "wait_ms")

    def __init__(self) -> None:
        super().__init__(asyncio.Event())
        self.gone = asyncio.Event()
        self.wait_ms: int | None = None
        self.is_packed = False

    @property
    def instance(self) -> str:
        return "/v1/where/it/came/in"

    @property
    def host(self) -> str:
        return "10.1.2.3"

    @property
    def trace(self) -> str:
        return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @property
    def wants_packed(self) -> bool:
        return self.is_packed

    def milliseconds_left(self, at_most: int) -> int:
        return at_most if self.wait_ms is None else min(at_most, self.wait_ms)

    async def wait_gone(self) -> None:
        await self.gone.wait()


class Cluster:
    """Three nodes that serve operations for each other."""

    def __init__(self, nodes: QueueNodes) -> None:
        self.nodes = nodes
        self.services = {node_id: Services.of(broker) for node_id, broker in nodes.brokers.items()}
        self.operations = {node_id: OperationService(each) for node_id, each in self.services.items()}

    async def ask(self, node_id: int, request: Request[Any], caller: Caller | None = None) -> Any:
        """What a door on a node hears."""
        return await server_of(type(request))(self.services[node_id], request, caller or Client())

    def home(self, name: str, topic: str = OFFSETS_TOPIC) -> int:
        """The node that coordinates what has a name."""
        found = self.services[1].metadata.topics[topic]
        return found.partitions[shard_of(name, len(found.partitions))].leader

    def group_at(self, node_id: int) -> str:
        """A group that a node coordinates."""
        return next(name for name in (f"group-{at}" for at in range(200)) if self.home(name) == node_id)


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    async with QueueNodes() as nodes:
        await nodes.topic("orders", partitions=3)
        await asyncio.gather(
            *(nodes.brokers[1].topics.ensure_internal(topic) for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        )
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            await until(lambda topic=topic: all(topic in each.metadata.topics for each in nodes.brokers.values()))  # type: ignore[misc]
        yield Cluster(nodes)


def play(story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with running() as cluster:
            await story(cluster)

    run(whole)


Serving = Callable[[Services, Any, Caller], Awaitable[Any]]


@pytest.fixture
def serve_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Request[Any]], Serving], None]:
    """Have a function of the test serve an operation, on every node."""

    def serve(kind: type[Request[Any]], function: Serving) -> None:
        monkeypatch.setitem(SERVED, kind, function)

    return serve


ServeBy = Callable[[type[Request[Any]], Serving], None]


def detail_of(group: str) -> GroupDetail:
    return GroupDetail(
        group=group,
        type="classic",
        kind="rest",
        state="stable",
        protocol_type="",
        protocol=None,
        generation=1,
        members=0,
        lag=0,
        member_details=[],
        offsets=[],
    )


def test_every_node_answers_every_request_alike() -> None:
    async def story(cluster: Cluster) -> None:
        batch = encode_values([b"v"], 1_000, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        for number, node_id in enumerate(NODES):
            for name in (cluster.group_at(each) for each in NODES):
                member = await cluster.ask(node_id, JoinGroup(group=name, topics=["orders"], wait_ms=20_000))
                hosts = [each.client_host for each in (await cluster.ask(1, DescribeGroup(group=name))).member_details]
                assert hosts == ["/10.1.2.3"]
                await cluster.ask(1, CommitGroup(group=name, member_id=member.member_id))
                await cluster.ask(3, LeaveGroup(group=name, member_id=member.member_id))
                assert (await cluster.ask(2, DescribeGroup(group=name))).members == 0
            opened = await cluster.ask(node_id, OpenTransaction())
            into = PublishBatches(topic="orders", batches=[(0, bytearray(batch))], transaction=opened.transaction)
            outcomes = {type(await cluster.ask(each, into)) for each in NODES}
            assert outcomes == {Packed}
            detail = [await cluster.ask(each, DescribeTransaction(transaction=opened.transaction)) for each in NODES]
            assert {each.state for each in detail} == {"open"}
            report = ReportPipeline(
                pipeline="p", run=str(number), state="starting", started_at=datetime(2026, 1, 1, tzinfo=UTC)
            )
            await cluster.ask(node_id, report)
            assert [(await cluster.ask(each, ListPipelines())).pipelines[0].run for each in NODES] == [str(number)] * 3
        listed = [[group.group for group in (await cluster.ask(each, ListGroups())).groups] for each in NODES]
        assert listed == [sorted(cluster.group_at(each) for each in NODES)] * 3

    play(story)


def test_the_node_that_serves_knows_the_client_as_its_own_door_would(serve_by: ServeBy) -> None:
    callers: list[Caller] = []

    async def serving(_services: Services, request: DescribeGroup, caller: Caller) -> GroupDetail:
        callers.append(caller)
        return detail_of(request.group)

    serve_by(DescribeGroup, serving)

    async def story(cluster: Cluster) -> None:
        client = Client()
        client.wait_ms, client.is_packed = 3_000, True
        await cluster.ask(1, DescribeGroup(group=cluster.group_at(2)), client)
        (caller,) = callers
        assert isinstance(caller, RemoteCaller)
        assert caller.origin == client.origin
        assert caller.is_forwarded
        assert 2_000 < caller.milliseconds_left(60_000) <= 3_000
        assert caller.milliseconds_left(10) == 10

    play(story)


def sample(kind: type[PenstockError]) -> PenstockError:
    fields = {errors.InvalidRecord: {"records": [(3, "no key")]}, errors.InvalidField: {"is_parameter": True}}
    given: dict[str, Any] = next((fields[each] for each in kind.__mro__ if each in fields), {})
    if issubclass(kind, errors.DamagedRecords):
        given = {"first_offset": 5, "next_offset": 9}
    return kind("why", **given)


def test_every_error_comes_back_as_it_was_raised(serve_by: ServeBy) -> None:
    raised: list[PenstockError] = []

    async def serving(_services: Services, _request: JoinGroup, _caller: Caller) -> None:
        raise raised[-1]

    serve_by(JoinGroup, serving)

    async def story(cluster: Cluster) -> None:
        for kind in errors.ALL:
            raised.append(sample(kind))
            with pytest.raises(PenstockError) as caught:
                await cluster.ask(1, JoinGroup(group=cluster.group_at(2), topics=["orders"]))
            told = caught.value
            assert type(told) is kind
            assert (told.message, told.code, told.retriable) == ("why", kind.code, kind.retriable)
            assert vars(told) == vars(raised[-1])

    play(story)


def test_a_bug_of_the_other_node_is_told_without_its_inside(
    serve_by: ServeBy, caplog: pytest.LogCaptureFixture
) -> None:
    async def serving(_services: Services, _request: JoinGroup, _caller: Caller) -> None:
        raise ZeroDivisionError("secret")

    serve_by(JoinGroup, serving)

    async def story(cluster: Cluster) -> None:
        with pytest.raises(PenstockError, match="Node 2 met a bug") as caught:
            await cluster.ask(1, JoinGroup(group=cluster.group_at(2), topics=["orders"]))
        assert "secret" not in caught.value.message
        assert "operation.ask" in caplog.text

    play(story)


# -- leaders that change -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DescribeGroup, DeleteGroup])
def test_a_request_whose_leader_goes_away_is_answered_by_the_next_one(
    serve_by: ServeBy, kind: type[DescribeGroup | DeleteGroup]
) -> None:
    served: list[int] = []

    async def story(cluster: Cluster) -> None:
        group = cluster.group_at(2)

        async def serving(services: Services, request: Any, _caller: Caller) -> Any:
            served.append(services.node_id)
            if services.node_id == 2:
                cluster.nodes.cut_off(2)
                await asyncio.Event().wait()
            return detail_of(request.group)

        serve_by(kind, serving)
        await cluster.ask(1, kind(group=group))
        assert served[0] == 2
        assert served[1:] == [cluster.home(group)]
        cluster.nodes.exchange.heal()

    play(story)


def test_what_does_harm_if_repeated_is_not_sent_again_once_it_may_have_arrived(serve_by: ServeBy) -> None:
    served: list[int] = []

    async def story(cluster: Cluster) -> None:
        async def serving(services: Services, _request: Any, _caller: Caller) -> Any:
            served.append(services.node_id)
            cluster.nodes.cut_off(2)
            await asyncio.Event().wait()

        serve_by(JoinGroup, serving)
        with pytest.raises(PeerUnavailable) as caught:
            await cluster.ask(1, JoinGroup(group=cluster.group_at(2), topics=["orders"]))
        assert not isinstance(caught.value, PeerNotReached)
        assert served == [2]
        cluster.nodes.exchange.heal()

    play(story)


def test_an_error_of_such_an_operation_is_the_client_s_even_if_it_is_about_leaders(serve_by: ServeBy) -> None:
    served: list[int] = []

    async def serving(services: Services, _request: Any, _caller: Caller) -> Any:
        served.append(services.node_id)
        raise errors.NotLeader("Half of it is done.")

    serve_by(JoinGroup, serving)

    async def story(cluster: Cluster) -> None:
        for asked in NODES:
            with pytest.raises(errors.NotLeader, match="Half of it"):
                await cluster.ask(asked, JoinGroup(group=cluster.group_at(2), topics=["orders"]))
        assert served == [2, 2, 2]

    play(story)


def test_a_node_that_cannot_be_reached_is_waited_for_and_then_its_successor_asked() -> None:
    async def story(cluster: Cluster) -> None:
        group = cluster.group_at(2)
        cluster.nodes.cut_off(2)
        joined = await cluster.ask(1, JoinGroup(group=group, topics=["orders"], wait_ms=20_000))
        assert joined.group == group
        assert cluster.home(group) != 2
        cluster.nodes.exchange.heal()

    play(story)


def test_without_a_leader_a_request_waits_for_a_while_and_then_says_so() -> None:
    async def story(cluster: Cluster) -> None:
        group = cluster.group_at(2)
        for node_id in (2, 3):
            cluster.nodes.cut_off(node_id)
        clock = cluster.services[1].clock
        began = clock.monotonic()
        with pytest.raises((NotCoordinator, PeerNotReached)) as caught:
            await cluster.ask(1, DescribeGroup(group=group))
        assert caught.value.retriable
        assert PATIENCE_SECONDS - 1 < clock.monotonic() - began < PATIENCE_SECONDS + 1
        client = Client()
        client.wait_ms = 500
        began = clock.monotonic()
        with pytest.raises(PenstockError):
            await cluster.ask(1, DescribeGroup(group=group), client)
        assert clock.monotonic() - began <= 1
        cluster.nodes.exchange.heal()

    play(story)


def test_a_node_that_is_asked_by_another_never_asks_a_third_one() -> None:
    async def story(cluster: Cluster) -> None:
        group = cluster.group_at(2)
        delivered = cluster.nodes.exchange.delivered
        text, _ = pack_request(TABLE[DescribeGroup], DescribeGroup(group=group))
        asked = Ask("describe_group", len(text), 5_000, Client().origin)
        with pytest.raises(NotCoordinator, match="does not coordinate"):
            await cluster.services[1].ports.peers.call(3, ASK, asked, (text,))
        assert cluster.nodes.exchange.delivered > delivered
        unknown = Ask("describe_moon", len(text), 5_000, Client().origin)
        with pytest.raises(errors.InvalidRequest, match="does not know the operation describe_moon"):
            await cluster.services[1].ports.peers.call(3, ASK, unknown, (text,))

    play(story)


def test_a_node_of_an_older_release_is_named_as_such() -> None:
    async def whole() -> None:
        async with QueueNodes() as nodes:
            await nodes.brokers[1].topics.ensure_internal(OFFSETS_TOPIC)
            services = Services.of(nodes.brokers[1])
            topic = nodes.brokers[1].metadata.topics[OFFSETS_TOPIC]
            count = len(topic.partitions)
            name = next(f"g{at}" for at in range(200) if topic.partitions[shard_of(f"g{at}", count)].leader == 2)
            with pytest.raises(PeerNotReached, match=r"Node 2 does not answer operation\.ask: .* an older release"):
                await server_of(DescribeGroup)(services, DescribeGroup(group=name), Client())

    run(whole)


# -- clients that wait no longer ---------------------------------------------------------------------------------------


def test_a_client_that_goes_away_ends_what_is_done_for_it_elsewhere(serve_by: ServeBy) -> None:
    seen: list[str] = []

    async def serving(_services: Services, _request: Any, caller: Caller) -> Any:
        seen.append("begun")
        await caller.wait_gone()
        seen.append("gone")
        await asyncio.sleep(0.1)
        seen.append("given back")

    serve_by(DescribeGroup, serving)

    async def story(cluster: Cluster) -> None:
        client = Client()
        asking = asyncio.ensure_future(cluster.ask(1, DescribeGroup(group=cluster.group_at(2)), client))
        await until(lambda: seen == ["begun"])
        client.gone.set()
        with pytest.raises(ClientGone):
            await asking
        await until(lambda: len(seen) == 3, 1)
        assert seen == ["begun", "gone", "given back"]

    play(story)


def test_work_that_does_not_notice_that_its_client_is_gone_is_cancelled(serve_by: ServeBy) -> None:
    seen: list[str] = []

    async def serving(_services: Services, _request: Any, _caller: Caller) -> Any:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    serve_by(DescribeGroup, serving)

    async def story(cluster: Cluster) -> None:
        asking = asyncio.ensure_future(cluster.ask(1, DescribeGroup(group=cluster.group_at(2))))
        await until(lambda: seen == ["begun"])
        asking.cancel()  # as the gRPC door does to calls of clients that are gone
        await until(lambda: seen == ["begun", "cancelled"], 5)

    play(story)


def test_a_request_ends_with_the_node_that_asked(serve_by: ServeBy) -> None:
    seen: list[str] = []

    async def serving(_services: Services, _request: Any, caller: Caller) -> Any:
        seen.append("begun")
        await caller.wait_gone()
        seen.append("gone")

    serve_by(DescribeGroup, serving)

    async def story(cluster: Cluster) -> None:
        asking = asyncio.ensure_future(cluster.ask(1, DescribeGroup(group=cluster.group_at(2))))
        await until(lambda: seen == ["begun"])
        cluster.nodes.exchange.cut(1, 2)
        await until(lambda: seen[:2] == ["begun", "gone"], 5)
        asking.cancel()
        cluster.nodes.exchange.heal()

    play(story)


def test_a_deadline_goes_along_and_is_kept(serve_by: ServeBy) -> None:
    left: list[int] = []

    async def serving(_services: Services, _request: Any, caller: Caller) -> Any:
        left.append(caller.milliseconds_left(60_000))
        await caller.wait_gone()

    serve_by(JoinGroup, serving)

    async def story(cluster: Cluster) -> None:
        client = Client()
        client.wait_ms = 700
        clock = cluster.services[1].clock
        began = clock.monotonic()
        with pytest.raises(RequestTimedOut, match="within 700 ms"):
            await cluster.ask(1, JoinGroup(group=cluster.group_at(2), topics=["orders"]), client)
        assert 0.6 < clock.monotonic() - began < 1.5
        assert left
        assert left[0] <= 700

    play(story)


def test_a_node_that_stops_ends_what_waits_there_for_others() -> None:
    async def story(cluster: Cluster) -> None:
        group = cluster.group_at(2)
        joined = await cluster.ask(1, JoinGroup(group=group, topics=["orders"], wait_ms=20_000))
        poll = PollGroup(group=group, member_id=joined.member_id, wait_ms=20_000)
        polling = asyncio.ensure_future(cluster.ask(1, poll))
        await asyncio.sleep(1)
        cluster.operations[2].stop()
        with pytest.raises(NotCoordinator, match="stopping"):
            await polling

    play(story)


def test_a_poll_whose_client_goes_away_leaves_the_member_free_and_its_messages_to_the_next_poll() -> None:
    async def story(cluster: Cluster) -> None:
        group = cluster.group_at(2)
        joined = await cluster.ask(1, JoinGroup(group=group, topics=["orders"], wait_ms=20_000))
        poll = PollGroup(group=group, member_id=joined.member_id, wait_ms=20_000)
        client = Client()
        polling = asyncio.ensure_future(cluster.ask(1, poll, client))
        await asyncio.sleep(1)
        client.gone.set()
        with pytest.raises(ClientGone):
            await polling
        await asyncio.sleep(0.1)
        await cluster.nodes.put("late", partition=1)
        polled = await cluster.ask(3, poll)
        assert [each.value for each in polled.messages] == ["late"]

    play(story)
