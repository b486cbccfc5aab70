"""The hand-written Fetch against the generated one."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.doors.kafka.protocol.apis import FETCH
from penstock.doors.kafka.protocol.codec import decode, encode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.fetch import (
    AbortedRange,
    DivergingEpoch,
    FetchedPartition,
    FetchedTopic,
    decode_fetch_request,
    encode_fetch_response,
)
from penstock.doors.kafka.protocol.headers import decode_response, encode_response
from penstock.doors.kafka.protocol.messages.records import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from penstock.doors.kafka.protocol.wire import LeaderHint, NodeAddress

some = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


class FileRange:
    """A payload that has a length and nothing else, as what sendfile sends."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def plain(request: FetchRequest) -> tuple[object, ...]:
    topics = tuple(
        (
            topic.topic,
            topic.topic_id,
            tuple(
                (
                    each.partition,
                    each.current_leader_epoch,
                    each.fetch_offset,
                    each.last_fetched_epoch,
                    each.log_start_offset,
                    each.partition_max_bytes,
                )
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    forgotten = tuple((topic.topic, topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data)
    head = (request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    return (*head, request.session_id, request.session_epoch, topics, forgotten, request.rack_id)


@some
@given(data=st.data())
def test_request_is_decoded_as_the_generated_codec_does(messages_of, in_version, data) -> None:
    message = data.draw(messages_of(FetchRequest))
    for version in FETCH.versions:
        expected = in_version(message, version)
        raw = b"header" + encode(expected, version)
        assert decode_fetch_request(version, memoryview(raw), 6) == plain(expected)


@some
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_request_is_refused_where_the_generated_codec_refuses(
    messages_of, in_version, hostile_counts, data, chance
) -> None:
    message = data.draw(messages_of(FetchRequest))
    for version in FETCH.versions:
        raw = encode(in_version(message, version), version)
        for _ in range(5):
            position = chance.randrange(len(raw) + 1)
            count = chance.choice([b"", chance.randbytes(1), *hostile_counts])
            assert_same_verdict(version, raw[:position] + count + raw[position + len(count) :])
            assert_same_verdict(version, raw[:position] + count)


def assert_same_verdict(version: int, raw: bytes) -> None:
    try:
        expected = plain(decode(FetchRequest, version, raw)[0])
    except ProtocolError:
        # The tagged fields of a request are skipped here, so that what is wrong inside them goes unseen.
        try:
            decode_fetch_request(version, memoryview(raw))
        except ProtocolError:
            pass
        else:
            assert FETCH.is_flexible(version)
    else:
        assert decode_fetch_request(version, memoryview(raw)) == expected


def test_partitions_with_unknown_tags_are_read() -> None:
    partition = FetchPartition(partition=1, fetch_offset=2, partition_max_bytes=3)
    message = FetchRequest(max_wait_ms=1, min_bytes=1, topics=(FetchTopic(topic="t", partitions=(partition,) * 2),))
    raw = encode(message, 12)
    end_of_first = raw.index(struct.pack(">i", 3)) + 4
    tagged = raw[:end_of_first] + b"\x01\x63\x02ab" + raw[end_of_first + 1 :]
    assert decode_fetch_request(12, memoryview(tagged)) == decode_fetch_request(12, memoryview(raw))


def test_unknown_version_is_refused() -> None:
    for version in (3, 18):
        with pytest.raises(ProtocolError):
            decode_fetch_request(version, memoryview(b""))


def fetched(each: PartitionData) -> FetchedPartition[bytes]:
    diverging, leader = each.diverging_epoch, each.current_leader
    return FetchedPartition(
        each.partition_index,
        each.error_code,
        each.high_watermark,
        each.last_stable_offset,
        each.log_start_offset,
        None
        if each.aborted_transactions is None
        else [AbortedRange(a.producer_id, a.first_offset) for a in each.aborted_transactions],
        each.preferred_read_replica,
        each.records,
        None if diverging == EpochEndOffset() else DivergingEpoch(diverging.epoch, diverging.end_offset),
        None if leader == LeaderIdAndEpoch() else LeaderHint(leader.leader_id, leader.leader_epoch),
    )


def without_what_we_never_send(message: FetchResponse, version: int) -> FetchResponse:
    """No snapshots, which are Raft's, and empty records in place of null ones."""
    raw = encode(message, version)
    message, _ = decode(FetchResponse, version, raw)
    replace = msgspec.structs.replace
    responses = tuple(
        replace(
            topic,
            partitions=tuple(
                replace(partition, snapshot_id=SnapshotId(), records=partition.records or b"")
                for partition in topic.partitions
            ),
        )
        for topic in message.responses
    )
    return replace(message, responses=responses)


@some
@given(data=st.data())
def test_response_is_encoded_as_the_generated_codec_does(messages_of, in_version, data) -> None:
    message = data.draw(messages_of(FetchResponse))
    for version in FETCH.versions:
        expected = without_what_we_never_send(in_version(message, version), version)
        frame = encode_fetch_response(
            version,
            5,
            [
                FetchedTopic(topic.topic, list(map(fetched, topic.partitions)), topic.topic_id)
                for topic in expected.responses
            ],
            throttle_time_ms=expected.throttle_time_ms,
            error_code=expected.error_code,
            session_id=expected.session_id,
            node_endpoints=[NodeAddress(n.node_id, n.host, n.port, n.rack) for n in expected.node_endpoints],
        )
        raw = b"".join(frame.pieces)
        assert raw == encode_response(expected, version, 5)
        assert frame.size == len(raw)


@pytest.mark.parametrize("version", FETCH.versions)
def test_payloads_pass_through_untouched(version: int) -> None:
    payloads = [FileRange(1_000_000), FileRange(0), FileRange(7)]
    partitions = [FetchedPartition(i, records=payload) for i, payload in enumerate(payloads)]
    frame = encode_fetch_response(version, 5, [FetchedTopic("orders", partitions)])
    assert [piece for piece in frame.pieces if isinstance(piece, FileRange)] == [payloads[0], payloads[2]]
    assert all(map(len, frame.pieces))
    assert frame.size == sum(map(len, frame.pieces))
    first = frame.pieces[0]
    assert isinstance(first, bytearray)
    assert struct.unpack_from(">i", first)[0] == frame.size - 4
    raw = b"".join(bytes(len(piece)) if isinstance(piece, FileRange) else piece for piece in frame.pieces)
    _, response = decode_response(FetchResponse, version, memoryview(raw)[4:])
    assert [len(each.records or b"") for each in response.responses[0].partitions] == [1_000_000, 0, 7]


@pytest.mark.parametrize("version", FETCH.versions)
def test_no_records_are_empty_records_and_never_null(version: int) -> None:
    frame = encode_fetch_response(version, 5, [FetchedTopic[bytes]("orders", [FetchedPartition(0)])])
    _, response = decode_response(FetchResponse, version, memoryview(b"".join(frame.pieces))[4:])
    assert response.responses[0].partitions[0].records == b""
