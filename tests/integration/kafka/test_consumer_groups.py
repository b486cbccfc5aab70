"""Groups of the new protocol over the wire: what heartbeats, tools and offset requests are answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from tests.integration.kafka.test_door import TOPIC, Client, tell

from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response
from penstock.doors.kafka.protocol.messages import groups as classic
from penstock.doors.kafka.protocol.messages import groups as consumers
from penstock.doors.kafka.protocol.messages import offsets as offsets
from penstock.doors.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.doors.kafka.protocol.messages.shared import TopicPartitionIndexes
from penstock.doors.kafka.protocol.schema import ApiMessage

GROUP = "g"
M = TypeVar("M", bound=ApiMessage)


async def ask(client: Client, request: ApiMessage, response: type[M], version: int) -> M:
    client.send(request, version)
    _, answer = decode_response(response, version, await client.receive())
    return answer


def heartbeat(epoch: int, **more: Any) -> consumers.ConsumerGroupHeartbeatRequest:
    if epoch == 0:
        more = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": (TOPIC,),
            "topic_partitions": (),
            **more,
        }
    return consumers.ConsumerGroupHeartbeatRequest(
        **{"group_id": GROUP, "member_id": "a", "member_epoch": epoch, **more}
    )


async def pulse(client: Client, epoch: int, version: int = 1, **more: Any) -> consumers.ConsumerGroupHeartbeatResponse:
    await client.broker.ensure_offsets_topic()
    while True:
        answer = await ask(client, heartbeat(epoch, **more), consumers.ConsumerGroupHeartbeatResponse, version)
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer


def test_a_member_joins_by_either_version_and_is_told_what_it_has_once(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        topic_id = client.broker.metadata.topic(TOPIC).topic_id
        joined = await pulse(client, 0)
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "a", 1)
        assert joined.heartbeat_interval_ms == 3_000
        assert joined.assignment is not None
        (row,) = joined.assignment.topic_partitions
        assert (row.topic_id, row.partitions) == (topic_id, (0, 1))
        assert (await pulse(client, 1)).assignment is None
        second = await pulse(client, 0, version=0, member_id="")
        assert second.member_id
        assert second.member_epoch == 2
        assert second.assignment == consumers.Assignment(topic_partitions=())

    tell(tmp_path, story)


def test_refusals_have_their_codes_and_a_message(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        async def refused(epoch: int, **more: Any) -> int:
            answer = await pulse(client, epoch, **more)
            assert answer.error_message
            return answer.error_code

        assert await refused(0, group_id="") == ErrorCode.INVALID_GROUP_ID
        assert await refused(0, member_id="") == ErrorCode.INVALID_REQUEST
        assert await refused(0, topic_partitions=None) == ErrorCode.INVALID_REQUEST
        assert await refused(0, server_assignor="best") == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert await refused(0, subscribed_topic_regex="(") == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert await refused(5) == ErrorCode.UNKNOWN_MEMBER_ID
        await pulse(client, 0, instance_id="i")
        assert await refused(7) == ErrorCode.FENCED_MEMBER_EPOCH
        assert await refused(0, member_id="b", instance_id="i") == ErrorCode.UNRELEASED_INSTANCE_ID
        assert await refused(1, member_id="b", instance_id="i") == ErrorCode.FENCED_INSTANCE_ID

    tell(tmp_path, story)


def test_tools_are_told_of_both_kinds_of_group(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await pulse(client, 0, subscribed_topic_regex="t+")
        await commit(client, "old", "", -1, 5)

        async def listed(**filters: Any) -> dict[str, str]:
            answer = await ask(client, classic.ListGroupsRequest(**filters), classic.ListGroupsResponse, 5)
            return {group.group_id: group.group_type for group in answer.groups}

        assert await listed() == {GROUP: "consumer", "old": "classic"}
        assert await listed(types_filter=("Consumer",)) == {GROUP: "consumer"}
        assert await listed(types_filter=("classic",)) == {"old": "classic"}
        assert await listed(states_filter=("stable",)) == {GROUP: "consumer"}
        for version, code in ((5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
            request = classic.DescribeGroupsRequest(groups=(GROUP, "nobody"))
            answer = await ask(client, request, classic.DescribeGroupsResponse, version)
            assert [(each.group_state, each.error_code) for each in answer.groups] == [("Dead", code)] * 2
        described = await ask(
            client,
            consumers.ConsumerGroupDescribeRequest(group_ids=(GROUP, "old", "nobody")),
            consumers.ConsumerGroupDescribeResponse,
            1,
        )
        mine, old, nobody = described.groups
        assert old.error_code == nobody.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (mine.group_state, mine.group_epoch, mine.assignment_epoch) == ("Stable", 1, 1)
        assert mine.assignor_name == "uniform"
        (member,) = mine.members
        assert (member.member_id, member.member_epoch, member.member_type) == ("a", 1, 1)
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((TOPIC,), "t+")
        assert member.assignment == member.target_assignment
        assert member.assignment.topic_partitions[0].topic_name == TOPIC

    tell(tmp_path, story)


async def commit(client: Client, group: str, member_id: str, epoch: int, offset: int, partition: int = 0) -> int:
    row = offsets.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=None
    )
    request = offsets.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=(offsets.OffsetCommitRequestTopic(name=TOPIC, partitions=(row,)),),
    )
    answer = await ask(client, request, offsets.OffsetCommitResponse, 9)
    return answer.topics[0].partitions[0].error_code


async def read(client: Client, member_id: str | None, epoch: int) -> tuple[int, int | None]:
    wanted = TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,))
    group = offsets.OffsetFetchRequestGroup(group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=(wanted,))
    answer = await ask(client, offsets.OffsetFetchRequest(groups=(group,)), offsets.OffsetFetchResponse, 9)
    found = answer.groups[0]
    return found.error_code, found.topics[0].partitions[0].committed_offset if found.topics else None


def test_offsets_are_for_members_in_their_epoch(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await pulse(client, 0)
        assert await commit(client, GROUP, "a", 1, 5) == ErrorCode.NONE
        assert await commit(client, GROUP, "a", 2, 6) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit(client, GROUP, "b", 1, 6) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(client, GROUP, "", -1, 6) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await read(client, "a", 1) == (ErrorCode.NONE, 5)
        assert await read(client, None, -1) == (ErrorCode.NONE, 5)
        assert await read(client, "a", 0) == (ErrorCode.STALE_MEMBER_EPOCH, None)
        assert await read(client, "b", 1) == (ErrorCode.UNKNOWN_MEMBER_ID, None)
        deletion = offsets.OffsetDeleteRequest(
            group_id=GROUP,
            topics=(
                offsets.OffsetDeleteRequestTopic(
                    name=TOPIC, partitions=(offsets.OffsetDeleteRequestPartition(partition_index=0),)
                ),
            ),
        )
        answer = await ask(client, deletion, offsets.OffsetDeleteResponse, 0)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        deleted = await ask(client, classic.DeleteGroupsRequest(groups_names=(GROUP,)), classic.DeleteGroupsResponse, 2)
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP

    tell(tmp_path, story)


def test_metadata_goes_by_the_id_whatever_name_comes_with_it(tmp_path: Path) -> None:
    """Java's consumer asks by id, with an empty name, for topics that it was assigned by a pattern."""

    async def story(client: Client) -> None:
        topic_id = client.broker.metadata.topic(TOPIC).topic_id
        request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=""),))
        answer = await ask(client, request, MetadataResponse, 12)
        assert [(topic.error_code, topic.name, len(topic.partitions)) for topic in answer.topics] == [(0, TOPIC, 2)]

    tell(tmp_path, story)
