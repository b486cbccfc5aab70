"""Partitioning: Kafka's hash bit for bit, and even turns for records without a key."""

from __future__ import annotations

import pytest
from aiokafka import partitioner as aiokafka_partitioner
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import default as kafka_python_partitioner

from penstock.errors import InvalidPartitions
from penstock.records import KeyHash, Partitioner, RoundRobin, key_hash, murmur2


# The vectors of Kafka's own UtilsTest, which shows the hash as a signed number.
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_of_the_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@given(st.binary(max_size=70))
def test_murmur2_agrees_with_kafka_python_and_aiokafka(key: bytes) -> None:
    assert murmur2(key) == kafka_python_partitioner.murmur2(key) == aiokafka_partitioner.murmur2(key)


def test_a_hash_with_the_sign_bit_loses_only_that_bit() -> None:
    assert murmur2(b"21") >= 2**31
    assert key_hash(b"21") == murmur2(b"21") - 2**31


def test_a_key_goes_where_kafka_sends_it() -> None:
    assert KeyHash().partition(b"foobar", 12) == (-790332482 & 0x7FFFFFFF) % 12


def test_an_empty_key_is_a_key() -> None:
    chosen = {KeyHash(RoundRobin(start)).partition(b"", 1000) for start in range(5)}
    assert chosen == {key_hash(b"") % 1000}


def test_records_without_a_key_take_turns() -> None:
    partitioner = KeyHash()
    assert [partitioner.partition(None, 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_starts_where_it_is_told_and_ignores_keys() -> None:
    partitioner = RoundRobin(start=2)
    assert [partitioner.partition(key, 3) for key in (b"a", b"a", None)] == [2, 0, 1]


def test_another_partitioner_can_take_the_records_without_a_key() -> None:
    class Last:
        def partition(self, key: bytes | None, partition_count: int) -> int:
            return partition_count - 1

    assert KeyHash(without_key=Last()).partition(None, 8) == 7


@pytest.mark.parametrize("partitioner", [KeyHash(), RoundRobin()])
@pytest.mark.parametrize("key", [None, b"k"])
def test_no_partition_to_choose_from_is_an_error(partitioner: Partitioner, key: bytes | None) -> None:
    with pytest.raises(InvalidPartitions):
        partitioner.partition(key, 0)
