"""Templates answer exactly as the general codec does, and let everything else pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.kafka.protocol.headers import encode_request, read_request_header
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.doors.kafka.protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProduceTemplates,
    decode_produce_request,
    encode_produce_response,
)

VERSIONS = range(5, 13)


def frame_of(
    version: int, *, topic: str = "orders", partition: int = 3, records: bytes = b"r" * 200, correlation_id: int = 7
) -> memoryview:
    request = plain.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1500,
        topic_data=(
            plain.TopicProduceData(
                name=topic, partition_data=(plain.PartitionProduceData(index=partition, records=records),)
            ),
        ),
    )
    return memoryview(bytes(encode_request(request, version, correlation_id, "client"))[4:])


def learned(version: int, **options: object) -> ProduceTemplates:
    templates = ProduceTemplates()
    frame = frame_of(version, **options)  # type: ignore[arg-type]
    header = read_request_header(frame)
    templates.learn(header, decode_produce_request(version, frame, header.body_position), frame)
    return templates


@pytest.mark.parametrize("version", VERSIONS)
@given(records=st.binary(max_size=400), correlation_id=st.integers(0, 2**31 - 1))
def test_a_repeated_request_yields_its_records(version: int, records: bytes, correlation_id: int) -> None:
    frame = frame_of(version, records=records, correlation_id=correlation_id)
    found = learned(version).find(version, frame)
    assert found is not None
    template, view = found
    assert bytes(view) == records
    assert (template.topic, template.partition, template.acks, template.timeout_ms) == ("orders", 3, -1, 1500)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_response_is_that_of_the_general_codec(version: int) -> None:
    found = learned(version).find(version, frame_of(version))
    assert found is not None
    expected = encode_produce_response(
        version, 99, [ProducedTopic("orders", [ProducedPartition(3, 0, 12345, 1_700_000_000_000, 17)])]
    )
    assert found[0].response(99, 12345, 1_700_000_000_000, 17) == bytes(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_partition_topic_or_version_does_not_match(version: int) -> None:
    templates = learned(version)
    assert templates.find(version, frame_of(version, partition=4)) is None
    assert templates.find(version, frame_of(version, topic="others")) is None
    other = version - 1 if version > VERSIONS[0] else version + 1
    assert templates.find(other, frame_of(other)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_of_one_topic_are_remembered_together(version: int) -> None:
    templates = learned(version, partition=0)
    for partition in (1, 2):
        frame = frame_of(version, partition=partition)
        header = read_request_header(frame)
        templates.learn(header, decode_produce_request(version, frame, header.body_position), frame)
    for partition in (0, 1, 2):
        found = templates.find(version, frame_of(version, partition=partition))
        assert found is not None
        assert found[0].partition == partition


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_damaged_frame_matches_only_if_the_general_codec_reads_the_same(version: int, data: st.DataObject) -> None:
    frame = bytearray(frame_of(version, records=b"abc"))
    at = data.draw(st.integers(8, len(frame) - 1))  # the version is looked at before a template is
    frame[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(frame)))
    damaged = memoryview(bytes(frame[:cut] if data.draw(st.booleans()) else frame))
    found = learned(version).find(version, damaged)
    if found is not None:
        request = decode_produce_request(version, damaged, read_request_header(damaged).body_position)
        ((topic, ((partition, records),)),) = request.topics
        assert records is not None
        assert (topic, partition, bytes(records)) == (found[0].topic, found[0].partition, bytes(found[1]))


def test_requests_with_several_partitions_are_not_learned() -> None:
    request = plain.ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1,
        topic_data=(
            plain.TopicProduceData(
                name="t",
                partition_data=tuple(plain.PartitionProduceData(index=index, records=b"x") for index in range(2)),
            ),
        ),
    )
    frame = memoryview(bytes(encode_request(request, 9, 1, "client"))[4:])
    header = read_request_header(frame)
    templates = ProduceTemplates()
    templates.learn(header, decode_produce_request(9, frame, header.body_position), frame)
    assert templates.find(9, frame) is None
