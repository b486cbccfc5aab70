"""The bytes that consumers exchange, against kafka-python's codec."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from penstock.features.groups.client_metadata import read_assignment, topics_of, write_assignment, write_subscription

topics = st.text("abcäöü.-_", min_size=1, max_size=20)
# A busy machine is no reason to fail.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
places = st.sets(st.tuples(topics, st.integers(0, 2**31 - 1)), max_size=30)


@patiently
@given(st.frozensets(topics, max_size=20))
def test_a_subscription_is_what_kafka_python_would_write(wanted: frozenset[str]) -> None:
    encoded = write_subscription(wanted)
    assert encoded == ConsumerProtocolSubscription(0, sorted(wanted), b"").encode(version=0, header=True)
    assert topics_of(encoded) == wanted


@patiently
@given(places)
def test_an_assignment_is_what_kafka_python_would_write(given_out: set[tuple[str, int]]) -> None:
    encoded = write_assignment(given_out)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(given_out):
        by_topic.setdefault(topic, []).append(index)
    theirs = ConsumerProtocolAssignment(
        0,
        [ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=at) for name, at in by_topic.items()],
        b"",
    )
    assert encoded == theirs.encode(version=0, header=True)
    assert list(read_assignment(encoded)) == sorted(given_out)


@patiently
@given(st.binary(max_size=80))
def test_bytes_of_anybody_are_read_or_count_as_nothing(data: bytes) -> None:
    assert isinstance(read_assignment(data), tuple)


@patiently
@given(places, st.data())
def test_a_cut_assignment_counts_as_nothing_or_less(given_out: set[tuple[str, int]], data: st.DataObject) -> None:
    encoded = write_assignment(given_out)
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    assert set(read_assignment(cut)) <= given_out


def test_a_count_that_promises_gigabytes_is_not_believed() -> None:
    assert read_assignment(b"\x00\x00\x00\x00\x00\x01\x00\x01a\x7f\xff\xff\xff") == ()
