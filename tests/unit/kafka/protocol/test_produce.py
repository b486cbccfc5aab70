"""The hand-written Produce against the generated one."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.doors.kafka.protocol.apis import PRODUCE
from penstock.doors.kafka.protocol.codec import decode, encode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.headers import decode_response, encode_response
from penstock.doors.kafka.protocol.messages.records import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.doors.kafka.protocol.produce import (
    Produce,
    ProducedPartition,
    ProducedTopic,
    RecordError,
    decode_produce_request,
    encode_produce_response,
)
from penstock.doors.kafka.protocol.wire import LeaderHint, NodeAddress

some = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def request_with(records: bytes | None) -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=records)
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name="orders", partition_data=(partition,)),)
    )


def plain(request: ProduceRequest) -> tuple[object, ...]:
    topics = tuple(
        (topic.name, tuple((each.index, each.records) for each in topic.partition_data)) for topic in request.topic_data
    )
    return request.transactional_id, request.acks, request.timeout_ms, topics


@some
@given(data=st.data())
def test_request_is_decoded_as_the_generated_codec_does(messages_of, in_version, data) -> None:
    message = data.draw(messages_of(ProduceRequest))
    for version in PRODUCE.versions:
        expected = in_version(message, version)
        raw = b"header" + encode(expected, version)
        assert decode_produce_request(version, memoryview(raw), 6) == plain(expected)


@pytest.mark.parametrize("version", PRODUCE.versions)
def test_records_are_a_view_of_the_request(version: int) -> None:
    raw = bytearray(encode(request_with(b"old"), version))
    (partition,) = decode_produce_request(version, memoryview(raw)).topics[0].partitions
    raw[raw.index(b"old") : raw.index(b"old") + 3] = b"new"
    assert partition.records == b"new"


@some
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_request_is_refused_where_the_generated_codec_refuses(
    messages_of, in_version, hostile_counts, data, chance
) -> None:
    message = data.draw(messages_of(ProduceRequest))
    for version in PRODUCE.versions:
        raw = encode(in_version(message, version), version)
        for _ in range(5):
            position = chance.randrange(len(raw) + 1)
            count = chance.choice([b"", chance.randbytes(1), *hostile_counts])
            assert_same_verdict(version, raw[:position] + count + raw[position + len(count) :])
            assert_same_verdict(version, raw[:position] + count)


def assert_same_verdict(version: int, raw: bytes) -> None:
    try:
        expected = plain(decode(ProduceRequest, version, raw)[0])
    except ProtocolError:
        with pytest.raises(ProtocolError):
            decode_produce_request(version, memoryview(raw))
    else:
        assert decode_produce_request(version, memoryview(raw)) == expected


def test_random_bytes_are_read_or_refused() -> None:
    chance = random.Random(7)
    for version in PRODUCE.versions:
        for _ in range(200):
            assert_same_verdict(version, bytes(chance.choices(range(4), k=chance.randrange(60))))


def test_unknown_version_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_produce_request(13, memoryview(b""))


def test_null_transactional_id_and_records_are_none() -> None:
    decoded = decode_produce_request(9, memoryview(encode(request_with(None), 9)))
    assert isinstance(decoded, Produce)
    assert decoded.transactional_id is None
    assert decoded.topics[0].partitions[0].records is None


@some
@given(data=st.data())
def test_response_is_encoded_as_the_generated_codec_does(messages_of, in_version, data) -> None:
    message = data.draw(messages_of(ProduceResponse))
    for version in PRODUCE.versions:
        expected = in_version(message, version)
        topics = [
            ProducedTopic(
                topic.name,
                [
                    ProducedPartition(
                        each.index,
                        each.error_code,
                        each.base_offset,
                        each.log_append_time_ms,
                        each.log_start_offset,
                        [RecordError(e.batch_index, e.batch_index_error_message) for e in each.record_errors],
                        each.error_message,
                        leader_hint(each.current_leader),
                    )
                    for each in topic.partition_responses
                ],
            )
            for topic in expected.responses
        ]
        nodes = [NodeAddress(node.node_id, node.host, node.port, node.rack) for node in expected.node_endpoints]
        frame = encode_produce_response(
            version, 5, topics, throttle_time_ms=expected.throttle_time_ms, node_endpoints=nodes
        )
        assert frame == encode_response(expected, version, 5)


def leader_hint(leader: LeaderIdAndEpoch) -> LeaderHint | None:
    return None if leader == LeaderIdAndEpoch() else LeaderHint(leader.leader_id, leader.leader_epoch)


@pytest.mark.parametrize("version", PRODUCE.versions)
def test_fields_a_version_lacks_are_left_out(version: int) -> None:
    full = ProducedPartition(0, 6, 9, 10, 11, [RecordError(1, "bad")], "worse", LeaderHint(1, 2))
    frame = encode_produce_response(version, 5, [ProducedTopic("t", [full])], node_endpoints=[NodeAddress(1, "h", 2)])
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    correlation_id, response = decode_response(ProduceResponse, version, memoryview(frame)[4:])
    (partition,) = response.responses[0].partition_responses
    assert correlation_id == 5
    assert partition.base_offset == 9
    assert partition.log_append_time_ms == (10 if version >= 2 else -1)
    assert partition.log_start_offset == (11 if version >= 5 else -1)
    assert partition.error_message == ("worse" if version >= 8 else None)
    assert partition.current_leader.leader_id == (1 if version >= 10 else -1)
