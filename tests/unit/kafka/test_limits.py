"""What one request may name, and how often."""

from __future__ import annotations

import pytest

from penstock.doors.kafka.limits import ELEMENTS_MAX, FETCH_WAIT_MS_MAX, bounded_fetch, check_size, without_repeats
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.codec import decode, encode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.fetch import Fetch, PartitionFetch, TopicFetch
from penstock.doors.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from penstock.doors.kafka.protocol.messages.groups import DescribeGroupsRequest
from penstock.doors.kafka.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.doors.kafka.protocol.schema import NO_UUID

MIB = 1024 * 1024


def test_a_topic_named_many_times_is_looked_at_once() -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name="a"), MetadataRequestTopic(name="b")) * 2_000)
    assert [topic.name for topic in without_repeats(apis.METADATA, request).topics or ()] == ["a", "b"]


def test_repeats_within_what_is_repeated_are_found() -> None:
    partitions = (ListOffsetsPartition(partition_index=1, timestamp=5),) * 10
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="a", partitions=partitions),) * 10)
    (topic,) = without_repeats(apis.LIST_OFFSETS, request).topics
    assert len(topic.partitions) == 1


def test_a_request_that_changes_something_is_left_as_it_is() -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name="a"),) * 2)
    assert without_repeats(apis.CREATE_TOPICS, request) is request


def test_a_request_without_repeats_is_left_as_it_is() -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name="a"), MetadataRequestTopic(name="b")))
    assert without_repeats(apis.METADATA, request) is request


def test_a_request_names_only_so_much() -> None:
    names = tuple(f"g{number}" for number in range(ELEMENTS_MAX + 1))
    data = encode(DescribeGroupsRequest(groups=names), 5)
    assert decode(DescribeGroupsRequest, 5, data)[0].groups == names
    with pytest.raises(ProtocolError, match="more than one may name"):
        decode(DescribeGroupsRequest, 5, data, elements_max=ELEMENTS_MAX)


def test_only_requests_that_carry_messages_may_be_large() -> None:
    check_size(apis.PRODUCE.key, 90 * MIB)
    check_size(apis.SYNC_GROUP.key, 10 * MIB)
    check_size(apis.METADATA.key, MIB)
    for api, size in ((apis.METADATA, 3 * MIB), (apis.FETCH, 3 * MIB), (apis.JOIN_GROUP, 17 * MIB)):
        with pytest.raises(ProtocolError, match=api.name):
            check_size(api.key, size)
    with pytest.raises(ProtocolError, match="API 999"):
        check_size(999, 3 * MIB)


def fetch(*topics: TopicFetch, max_wait_ms: int = 5) -> Fetch:
    return Fetch(-1, max_wait_ms, 1, 1, 0, 0, 0, topics, (), "")


def partition(index: int, offset: int = 0) -> PartitionFetch:
    return PartitionFetch(index, -1, offset, -1, -1, 1)


def test_a_partition_fetched_many_times_is_fetched_once() -> None:
    wanted = fetch(
        TopicFetch("a", NO_UUID, (partition(0), partition(1), partition(0, 7))),
        TopicFetch("a", NO_UUID, (partition(1),)),
    )
    (topic,) = bounded_fetch(wanted).topics
    assert [(at.partition, at.offset) for at in topic.partitions] == [(0, 7), (1, 0)]
    plain = fetch(TopicFetch("a", NO_UUID, (partition(0),)), TopicFetch("b", NO_UUID, (partition(0),)))
    assert bounded_fetch(plain) is plain


def test_a_fetch_waits_only_so_long_and_names_only_so_much() -> None:
    assert bounded_fetch(fetch(max_wait_ms=2**31 - 1)).max_wait_ms == FETCH_WAIT_MS_MAX
    with pytest.raises(ProtocolError, match="one request may name"):
        bounded_fetch(fetch(TopicFetch("a", NO_UUID, tuple(map(partition, range(ELEMENTS_MAX))))))
