"""What classic consumers say is read as they wrote it, in every version, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from penstock.features.groups.client_metadata import (
    ClientSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
)

names = st.text(alphabet="abcé", min_size=1, max_size=5)
shares = st.dictionaries(names, st.lists(st.integers(0, 2**31 - 1), max_size=4, unique=True), max_size=3)


def wheres(share: dict[str, list[int]]) -> list[tuple[str, int]]:
    return [(topic, index) for topic, indexes in share.items() for index in indexes]


@pytest.mark.parametrize("version", range(4))
@given(topics=st.lists(names, max_size=3), owned=shares, user_data=st.none() | st.binary(max_size=5))
def test_a_subscription_is_read_as_kafka_python_writes_it(version, topics, owned, user_data) -> None:
    rows = [ConsumerProtocolSubscription.TopicPartition(topic=name, partitions=at) for name, at in owned.items()]
    written = ConsumerProtocolSubscription(
        topics=topics, user_data=user_data, owned_partitions=rows, generation_id=7, rack_id="r"
    )
    expected = ClientSubscription(tuple(topics), tuple(wheres(owned)) if version else ())
    assert read_subscription(bytes(written.encode(version=version))) == expected


@given(shares)
def test_an_assignment_is_read_by_kafka_python_and_by_ourselves(share) -> None:
    written = write_assignment(wheres(share))
    assert sorted(read_assignment(written)) == sorted(wheres(share))
    theirs = ConsumerProtocolAssignment.decode(written)
    assert {row.topic: sorted(row.partitions) for row in theirs.assigned_partitions} == {
        topic: sorted(indexes) for topic, indexes in share.items() if indexes
    }


@given(st.binary(max_size=40), shares, st.integers(0, 60))
def test_other_bytes_are_nothing(noise: bytes, share: dict[str, list[int]], end: int) -> None:
    for data in (noise, write_assignment(wheres(share))[:end], write_assignment(wheres(share))[: end // 2] + noise):
        read_subscription(data)
        read_assignment(data)
    assert read_subscription(b"") is None
    assert read_subscription(b"\0\1\x7f\xff\xff\xff") is None
    assert read_assignment(b"\0\0\x7f\xff\xff\xff") == ()
