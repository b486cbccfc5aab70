"""Batches that are small and become large: refused before they cost much."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRecord, MessageTooLarge
from penstock.records import Codec, Record, accept_batch, decode_records, encode_batch
from penstock.records.batch import assemble_batch, is_quick_to_decode
from penstock.records.header import BatchHeader, parse_header
from penstock.records.varint import varlong_bytes

MIB = 1024 * 1024


def with_headers(count: int, codec: Codec = Codec.ZSTD) -> bytes:
    """One record with that many headers, each without a name or a value: two bytes, as in the smallest."""
    body = b"\0\0\0\1\1" + varlong_bytes(count) + b"\0\1" * count
    record = varlong_bytes(len(body)) + body
    plain = parse_header(encode_batch([Record(0, 1_000, None, None)]))
    return bytes(assemble_batch(plain._replace(attributes=int(codec)), (record,)))


def of_zeros(size: int, codec: Codec = Codec.ZSTD) -> bytes:
    return bytes(encode_batch([Record(0, 1_000, b"k", bytes(size))], codec=codec))


def test_three_million_headers_in_a_few_hundred_bytes_are_refused() -> None:
    bomb = with_headers(3_000_000)
    assert len(bomb) < 1_000
    with pytest.raises(MessageTooLarge, match="more headers than its size allows"):
        decode_records(bomb)


def test_many_headers_spread_over_records_are_refused_too() -> None:
    headers = (("", None),) * 10_000
    records = [Record(at, 1_000, None, None, headers) for at in range(100)]
    with pytest.raises(MessageTooLarge, match="more headers"):
        decode_records(encode_batch(records, codec=Codec.ZSTD))


def test_what_real_producers_send_is_read() -> None:
    headers = tuple((f"header-{number}", b"value") for number in range(50))
    records = [Record(at, 1_000, b"k", b"v" * 100, headers) for at in range(2_000)]
    assert decode_records(encode_batch(records, codec=Codec.ZSTD)) == records
    assert len(decode_records(with_headers(50_000))[0].headers) == 50_000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_ratio_beyond_belief_is_refused_where_it_makes_something_large(codec: Codec) -> None:
    assert decode_records(of_zeros(10 * MIB, codec))[0].value == bytes(10 * MIB)
    with pytest.raises(MessageTooLarge):
        decode_records(of_zeros(30 * MIB, codec))


def test_a_limit_of_the_caller_counts_as_well() -> None:
    with pytest.raises(MessageTooLarge):
        decode_records(of_zeros(3 * MIB), 2 * MIB)


def test_more_records_than_a_batch_can_become_are_not_accepted() -> None:
    batch = bytearray(of_zeros(10))
    header: BatchHeader = parse_header(batch)
    count = 3_000_000
    lying = assemble_batch(header._replace(count=count, last_offset_delta=count - 1), (bytes(100),))
    with pytest.raises(InvalidRecord, match="has no room"):
        accept_batch(memoryview(lying))


def test_what_is_compressed_or_large_is_not_quick() -> None:
    assert is_quick_to_decode(encode_batch([Record(0, 1, None, b"x")]))
    assert not is_quick_to_decode(of_zeros(10))
    assert not is_quick_to_decode(of_zeros(MIB, Codec.NONE))
