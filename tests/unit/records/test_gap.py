"""Gaps stand for a producer's batch: its offsets and numbers, and one control record at its last offset."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptRecords
from penstock.records import (
    Codec,
    Record,
    check_batch,
    decode_records,
    encode_batch,
    encode_gap,
    encode_marker,
    parse_header,
    read_marker,
)


@pytest.mark.parametrize("count", [1, 2, 500])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_gap_has_the_place_and_the_numbers_of_its_batch(count: int, codec: Codec) -> None:
    records = [Record(at, 1_000 + at, b"k", b"v") for at in range(count)]
    batch = encode_batch(records, producer_id=7, producer_epoch=2, base_sequence=40, codec=codec)
    gap = encode_gap(parse_header(batch))
    whole, header = parse_header(batch), check_batch(memoryview(gap))
    kept = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "max_timestamp")
    assert [getattr(header, name) for name in kept] == [getattr(whole, name) for name in kept]
    assert header.is_control
    assert header.is_gap
    assert not header.is_transactional
    assert [record.offset for record in decode_records(gap)] == [count - 1]


def test_a_gap_ends_no_transaction_and_a_marker_is_no_gap() -> None:
    gap = encode_gap(parse_header(encode_batch([Record(0, 1, None, b"v")], producer_id=7, base_sequence=0)))
    with pytest.raises(CorruptRecords, match="ends no transaction"):
        read_marker(gap)
    marker = encode_marker(7, 0, is_commit=True, coordinator_epoch=0, timestamp_ms=1)
    assert not parse_header(marker).is_gap
