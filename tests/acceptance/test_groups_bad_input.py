"""What a node answers to group requests that are wrong, late or about things that are gone; each as Kafka would."""

from __future__ import annotations

import struct
import threading
from typing import TypeVar
from uuid import uuid4

import pytest
from tests.support.clients.confluent import ConfluentClient
from tests.support.node import Node
from tests.support.wire import ask

from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages import groups as groups
from penstock.doors.kafka.protocol.messages import offsets as offsets
from penstock.doors.kafka.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.doors.kafka.protocol.messages.shared import TopicPartitionIndexes
from penstock.doors.kafka.protocol.schema import ApiMessage

M = TypeVar("M", bound=ApiMessage)

SUBSCRIPTION = struct.pack(">hih", 1, 1, 6) + b"orders" + struct.pack(">i", -1)


class Caller:
    """Speaks the protocol to one node, request by request."""

    def __init__(self, node: Node) -> None:
        self._port = node.kafka_port
        self.node = node

    def call(self, request: ApiMessage, response: type[M], version: int | None = None) -> M:
        version = request.api.last if version is None else version
        data = ask(self._port, bytes(encode_request(request, version, 1, "tester")))
        assert data is not None, "the node closed the connection"
        return decode_response(response, version, data)[1]

    def join(self, group: str, member_id: str = "", *, version: int = 3, **changes: object) -> groups.JoinGroupResponse:
        fields: dict[str, object] = {
            "group_id": group,
            "session_timeout_ms": 45_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": (groups.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION),),
        }
        return self.call(groups.JoinGroupRequest(**(fields | changes)), groups.JoinGroupResponse, version)  # type: ignore[arg-type]

    def sync(self, group: str, member_id: str, generation: int) -> groups.SyncGroupResponse:
        given = groups.SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")
        request = groups.SyncGroupRequest(
            group_id=group, generation_id=generation, member_id=member_id, assignments=(given,)
        )
        return self.call(request, groups.SyncGroupResponse, 3)

    def beat(self, group: str, member_id: str, generation: int) -> int:
        request = groups.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        return self.call(request, groups.HeartbeatResponse).error_code

    def leave(self, group: str, *member_ids: str) -> groups.LeaveGroupResponse:
        members = tuple(groups.MemberIdentity(member_id=member_id) for member_id in member_ids)
        return self.call(groups.LeaveGroupRequest(group_id=group, members=members), groups.LeaveGroupResponse)

    def commit(
        self,
        group: str,
        places: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        metadata: str = "",
    ) -> dict[tuple[str, int], int]:
        topics = tuple(
            offsets.OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    offsets.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=metadata
                    ),
                ),
            )
            for (topic, index), offset in places.items()
        )
        request = offsets.OffsetCommitRequest(
            group_id=group, member_id=member_id, generation_id_or_member_epoch=generation, topics=topics
        )
        response = self.call(request, offsets.OffsetCommitResponse)
        return {
            (topic.name, row.partition_index): row.error_code for topic in response.topics for row in topic.partitions
        }

    def committed(self, group: str, topic: str, *indexes: int) -> list[int]:
        wanted = (TopicPartitionIndexes(name=topic, partition_indexes=indexes),)
        request = offsets.OffsetFetchRequest(groups=(offsets.OffsetFetchRequestGroup(group_id=group, topics=wanted),))
        (found,) = self.call(request, offsets.OffsetFetchResponse).groups
        assert found.error_code == ErrorCode.NONE
        return [row.committed_offset for of_topic in found.topics for row in of_topic.partitions]

    def all_committed(self, group: str) -> list[str]:
        request = offsets.OffsetFetchRequest(groups=(offsets.OffsetFetchRequestGroup(group_id=group, topics=None),))
        return [topic.name for topic in self.call(request, offsets.OffsetFetchResponse).groups[0].topics]

    def state(self, group: str) -> str:
        (found,) = self.call(groups.DescribeGroupsRequest(groups=(group,)), groups.DescribeGroupsResponse).groups
        return found.group_state

    def delete(self, group: str) -> int:
        (found,) = self.call(groups.DeleteGroupsRequest(groups_names=(group,)), groups.DeleteGroupsResponse).results
        return found.error_code

    def listed(self, **filters: tuple[str, ...]) -> set[str]:
        found = self.call(groups.ListGroupsRequest(**filters), groups.ListGroupsResponse)
        assert found.error_code == ErrorCode.NONE
        return {group.group_id for group in found.groups}


@pytest.fixture(scope="module")
def caller(node: Node) -> Caller:
    speaks = Caller(node)
    ConfluentClient(node.bootstrap).create_topic("orders", partitions=3)
    found = speaks.call(FindCoordinatorRequest(coordinator_keys=("any",)), FindCoordinatorResponse)
    assert found.coordinators[0].error_code == ErrorCode.NONE
    return speaks


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


class Settled:
    """A group with one member in its first generation."""

    def __init__(self, caller: Caller, group: str) -> None:
        self.group = group
        joined = caller.join(group)
        assert joined.error_code == ErrorCode.NONE
        self.id, self.generation = joined.member_id, joined.generation_id
        assert caller.sync(group, self.id, self.generation).assignment == b"all"


@pytest.fixture(scope="module")
def settled(caller: Caller) -> Settled:
    """Forming a group takes the initial delay, so most tests share this one."""
    return Settled(caller, "settled")


def test_an_unknown_group_has_no_offsets_and_that_is_no_error(caller: Caller, group: str) -> None:
    assert caller.committed(group, "orders", 0, 1) == [-1, -1]
    assert caller.committed(group, "no-such-topic", 0) == [-1]
    assert caller.all_committed(group) == []
    assert caller.state(group) == "Dead"
    assert caller.delete(group) == ErrorCode.GROUP_ID_NOT_FOUND


def test_strangers_are_told_to_join_first(caller: Caller, group: str) -> None:
    assert caller.join(group, "stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.sync(group, "stranger", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.beat(group, "stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    left = caller.leave(group, "stranger", "another")
    assert left.error_code == ErrorCode.NONE
    assert [member.error_code for member in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert caller.commit(group, {("orders", 0): 1}, "stranger", 1) == {("orders", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert caller.state(group) == "Dead", "nothing of it is kept"


def test_a_group_has_to_have_a_name(caller: Caller) -> None:
    assert caller.join("").error_code == ErrorCode.INVALID_GROUP_ID
    assert caller.beat("", "m", 1) == ErrorCode.INVALID_GROUP_ID
    assert caller.sync("", "m", 1).error_code == ErrorCode.INVALID_GROUP_ID
    assert caller.leave("", "m").error_code == ErrorCode.INVALID_GROUP_ID
    assert caller.committed("", "orders", 0) == [-1], "old clients without groups keep offsets there"


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001, 2**31 - 1])
def test_session_timeouts_have_bounds(caller: Caller, group: str, session_ms: int) -> None:
    answer = caller.join(group, session_timeout_ms=session_ms)
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert caller.state(group) == "Dead"


def test_a_member_has_to_speak_some_protocol(caller: Caller, group: str, settled: Settled) -> None:
    assert caller.join(group, protocols=()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert caller.join(group, protocol_type="").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = (groups.JoinGroupRequestProtocol(name="other", metadata=b""),)
    assert caller.join(settled.group, protocols=other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert caller.join(settled.group, protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert caller.beat(settled.group, settled.id, settled.generation) == ErrorCode.NONE


def test_newer_members_get_an_id_first(caller: Caller, group: str) -> None:
    for version in range(4, 10):
        answer = caller.join(group, version=version)
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.member_id.startswith("tester-")


def test_stale_generations_are_refused(caller: Caller, settled: Settled) -> None:
    for generation in (-1, settled.generation - 1, settled.generation + 1):
        assert caller.beat(settled.group, settled.id, generation) == ErrorCode.ILLEGAL_GENERATION
        assert caller.sync(settled.group, settled.id, generation).error_code == ErrorCode.ILLEGAL_GENERATION
        commit = caller.commit(settled.group, {("orders", 2): 1}, settled.id, generation)
        assert commit == {("orders", 2): ErrorCode.ILLEGAL_GENERATION}
    assert caller.committed(settled.group, "orders", 2) == [-1]


def test_only_members_commit_to_a_group_that_has_some(caller: Caller, settled: Settled) -> None:
    assert caller.commit(settled.group, {("orders", 2): 1}) == {("orders", 2): ErrorCode.UNKNOWN_MEMBER_ID}
    assert caller.delete(settled.group) == ErrorCode.NON_EMPTY_GROUP


def test_each_partition_of_a_commit_has_its_own_outcome(caller: Caller, group: str) -> None:
    wanted = {("orders", 0): 5, ("orders", 7): 5, ("no-such-topic", 0): 5, ("orders", 1): -5}
    assert caller.commit(group, wanted) == {
        ("orders", 0): ErrorCode.NONE,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", 1): ErrorCode.NONE,  # as Kafka takes it: some clients reset positions so
    }
    assert caller.committed(group, "orders", 0, 1) == [5, -5]


def test_metadata_that_is_too_long_is_refused(caller: Caller, group: str) -> None:
    assert caller.commit(group, {("orders", 0): 5}, metadata="m" * 4_096) == {("orders", 0): ErrorCode.NONE}
    too_long = caller.commit(group, {("orders", 0): 6}, metadata="é" * 2_049)
    assert too_long == {("orders", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert caller.committed(group, "orders", 0) == [5]


def test_offsets_go_with_their_topic(caller: Caller, group: str, topic: str) -> None:
    client = ConfluentClient(caller.node.bootstrap)
    client.create_topic(topic)
    assert caller.commit(group, {(topic, 0): 5, ("orders", 0): 1})[topic, 0] == ErrorCode.NONE
    client.delete_topic(topic)
    assert caller.committed(group, topic, 0) == [-1]
    assert caller.commit(group, {(topic, 0): 6}) == {(topic, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    client.create_topic(topic)
    assert caller.committed(group, topic, 0) == [-1], "the new topic's messages would be skipped"
    assert caller.all_committed(group) == ["orders"]


def test_groups_are_listed_by_state_and_type(caller: Caller, group: str, settled: Settled) -> None:
    caller.commit(group, {("orders", 0): 1})
    assert {group, settled.group} <= caller.listed()
    assert group in caller.listed(states_filter=("empty",))
    assert settled.group in caller.listed(states_filter=("STABLE",))
    assert group not in caller.listed(states_filter=("Stable",))
    assert group in caller.listed(types_filter=("Classic",))
    assert caller.listed(types_filter=("consumer",)) == set()
    assert caller.listed(states_filter=("NoSuchState",)) == set()


def test_offsets_of_topics_in_use_cannot_be_deleted(caller: Caller, settled: Settled) -> None:
    ConfluentClient(caller.node.bootstrap).create_topic("idle")
    places = {("orders", 0): 3, ("idle", 0): 4}
    caller.commit(settled.group, places, settled.id, settled.generation)
    request = offsets.OffsetDeleteRequest(
        group_id=settled.group,
        topics=tuple(
            offsets.OffsetDeleteRequestTopic(
                name=name, partitions=(offsets.OffsetDeleteRequestPartition(partition_index=0),)
            )
            for name in ("orders", "idle")
        ),
    )
    answer = caller.call(request, offsets.OffsetDeleteResponse)
    assert answer.error_code == ErrorCode.NONE
    codes = [row.error_code for topic in answer.topics for row in topic.partitions]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert caller.committed(settled.group, "orders", 0) == [3]
    assert caller.committed(settled.group, "idle", 0) == [-1]


def test_hostile_metadata_harms_nobody(caller: Caller, group: str) -> None:
    """Members' metadata is theirs; the node looks for topics in it and must not stumble."""
    hostile = (b"\x00\x01\x7f\xff\xff\xff", b"\x00\x01\xff\xff\xff\xff", b"\x00\x01\x00\x00\x00\x01\x7f\xff", b"")
    protocols = tuple(groups.JoinGroupRequestProtocol(name=f"p{at}", metadata=data) for at, data in enumerate(hostile))
    joined = caller.join(group, protocols=protocols)
    assert joined.error_code == ErrorCode.NONE
    caller.sync(group, joined.member_id, joined.generation_id)
    request = offsets.OffsetDeleteRequest(group_id=group, topics=())
    assert caller.call(request, offsets.OffsetDeleteResponse).error_code == ErrorCode.NONE
    assert caller.leave(group, joined.member_id).members[0].error_code == ErrorCode.NONE


def test_a_node_stops_while_members_wait(caller: Caller, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A member in the middle of a round must not hold up a node that is asked to stop."""
    with Node(tmp_path_factory.mktemp("stopping")) as node:
        waiting = Caller(node)
        waiting.call(FindCoordinatorRequest(coordinator_keys=("any",)), FindCoordinatorResponse)
        thread = threading.Thread(target=lambda: ask(node.kafka_port, _a_join()), daemon=True)
        thread.start()
        assert node.stop() == 0
        thread.join(60)


def _a_join() -> bytes:
    request = groups.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=(groups.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION),),
    )
    return bytes(encode_request(request, 3, 1, "tester"))
