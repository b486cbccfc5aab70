"""Records in and out of batches: known bytes, filtering for compaction, search by time, and what is refused."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c

from penstock.errors import CorruptRecords, InvalidRecord, InvalidTimestamp
from penstock.records import (
    HEADER,
    HEADER_BYTES,
    Codec,
    Record,
    check_batch,
    decode_records,
    encode_batch,
    filter_batch,
    find_timestamp,
    parse_header,
    stamp_append_time,
)

T0 = 1_700_000_000_000

RECORDS = [
    Record(100, T0, b"a", b"first", (("trace", b"1"), ("empty", b""), ("null", None))),
    Record(101, T0 + 20, b"b", None),
    Record(104, T0 - 5, None, b""),
    Record(105, T0 + 10, b"", b"last", (("", None), ("", None))),
]

# Written by kafka-python 3.0, then read byte by byte against docs/formats/record-batch.md.
VECTOR = bytes.fromhex(
    "0000000000000000"  # base offset
    "0000004a"  # length
    "00000000"  # leader epoch
    "02"  # magic
    "753107f7"  # crc
    "0000"  # attributes
    "00000001"  # last offset delta
    "0000018bcfe56800"  # base timestamp
    "0000018bcfe5680a"  # max timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000002"  # count
    "1a0000000261027802"  # 13 bytes, no attributes, both deltas 0, key a, value x, one header:
    "0268043132"  # h = 12
    "1400140201087465737400"  # 10 bytes, no attributes, 10 ms later, offset 1, no key, value test, no header
)


def payload_batch(payload: bytes, **fields: int) -> bytes:
    """A batch of one record with the given bytes as its records, lengths and CRC in order."""
    header = parse_header(encode_batch([Record(0, T0, None, None)]))
    header = header._replace(length=49 + len(payload), **fields)
    batch = bytearray(HEADER.pack(*header) + payload)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


# -- round trips and known bytes ---------------------------------------------------------------------------------------


def test_a_batch_is_written_with_its_known_bytes() -> None:
    records = [Record(0, T0, b"a", b"x", (("h", b"12"),)), Record(1, T0 + 10, None, b"test")]
    assert encode_batch(records, leader_epoch=0) == VECTOR
    assert decode_records(VECTOR) == records
    assert check_batch(memoryview(VECTOR)).count == 2


@pytest.mark.parametrize("codec", Codec)
def test_records_come_back_with_offsets_gaps_nulls_and_headers(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    assert decode_records(batch) == RECORDS
    header = check_batch(memoryview(batch))
    assert (header.base_offset, header.last_offset, header.count) == (100, 105, 4)
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 20)
    assert header.codec is codec


def test_every_keyword_lands_in_its_header_field() -> None:
    header = parse_header(
        encode_batch(
            RECORDS,
            codec=Codec.ZSTD,
            leader_epoch=3,
            producer_id=9,
            producer_epoch=2,
            base_sequence=40,
            is_transactional=True,
            is_control=True,
            append_time_ms=T0 + 99,
        )
    )
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (3, 9, 2, 40)
    assert header.attributes == 0b111100
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 99)


def test_append_time_stands_for_every_timestamp() -> None:
    batch = encode_batch(RECORDS, append_time_ms=T0 + 99)
    assert decode_records(batch) == [record._replace(timestamp=T0 + 99) for record in RECORDS]


def test_a_value_of_many_megabytes_comes_back() -> None:
    record = Record(0, T0, None, bytes(range(256)) * 40_000)
    for codec in Codec:
        assert decode_records(encode_batch([record], codec=codec)) == [record]


def test_a_header_name_that_is_not_unicode_reads_as_in_java() -> None:
    record = bytes.fromhex("00000001010204fffe01")
    batch = payload_batch(bytes([len(record) * 2]) + record)
    assert decode_records(batch)[0].headers == (("\ufffd\ufffd", None),)


def test_a_batch_emptied_by_compaction_has_no_records() -> None:
    assert decode_records(payload_batch(b"", count=0)) == []


@pytest.mark.parametrize(
    "records",
    [
        [],
        [Record(1, T0, None, None), Record(1, T0, None, None)],
        [Record(2, T0, None, None), Record(1, T0, None, None)],
        [Record(0, T0, None, None), Record(2**31, T0, None, None)],
        [Record(0, T0, None, None, (("\ud800", None),))],
    ],
)
def test_records_that_make_no_batch_are_refused(records: list[Record]) -> None:
    with pytest.raises(InvalidRecord):
        encode_batch(records)


@pytest.mark.parametrize("timestamps", [(2**63,), (-(2**63) - 1,), (0, 2**63), (-(2**63), 2**63 - 1)])
def test_timestamps_that_do_not_fit_are_refused(timestamps: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTimestamp):
        encode_batch([Record(offset, timestamp, None, None) for offset, timestamp in enumerate(timestamps)])


# -- compaction --------------------------------------------------------------------------------------------------------


def test_keeping_everything_returns_nothing_new() -> None:
    assert filter_batch(encode_batch(RECORDS), lambda record: True) is None


@pytest.mark.parametrize("codec", Codec)
def test_filtering_keeps_the_batch_and_drops_the_records(codec: Codec) -> None:
    batch = encode_batch(
        RECORDS,
        codec=codec,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        is_transactional=True,
    )
    thinned = filter_batch(batch, lambda record: record.offset in (100, 104))
    assert thinned is not None
    assert decode_records(thinned) == [RECORDS[0], RECORDS[2]]
    before, after = parse_header(batch), check_batch(memoryview(thinned))
    assert after == before._replace(length=after.length, crc=after.crc, count=2, max_timestamp=T0)


def test_filtering_everything_leaves_a_bare_header_with_its_offsets_and_producer() -> None:
    batch = encode_batch(RECORDS, codec=Codec.LZ4, producer_id=9, producer_epoch=2, base_sequence=40, leader_epoch=1)
    empty = filter_batch(batch, lambda record: False)
    assert empty is not None
    assert len(empty) == HEADER_BYTES
    before, after = parse_header(batch), check_batch(memoryview(empty))
    assert after == before._replace(length=49, crc=after.crc, count=0, attributes=0)
    assert decode_records(empty) == []
    assert filter_batch(empty, lambda record: True) is None


def test_filtering_keeps_append_time() -> None:
    batch = encode_batch(RECORDS)
    stamp_append_time(batch, T0 + 99)
    thinned = filter_batch(batch, lambda record: record.key == b"b")
    assert thinned is not None
    assert decode_records(thinned) == [RECORDS[1]._replace(timestamp=T0 + 99)]


def test_filtering_copies_what_it_does_not_understand() -> None:
    odd = bytes.fromhex("7f000001010204fffe01")  # unknown attributes, a name that is not UTF-8
    plain = bytes.fromhex("000002010100")
    odd, plain = (bytes([len(record) * 2]) + record for record in (odd, plain))
    thinned = filter_batch(payload_batch(odd + plain, count=2, last_offset_delta=1), lambda record: record.offset == 0)
    assert thinned is not None
    assert thinned[HEADER_BYTES:] == odd


# -- search by time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (0, (100, T0)),
        (T0, (100, T0)),
        (T0 + 1, (101, T0 + 20)),
        (T0 + 20, (101, T0 + 20)),
        (T0 + 21, None),
    ],
)
def test_the_first_record_not_older_is_found(codec: Codec, wanted: int, found: tuple[int, int] | None) -> None:
    assert find_timestamp(encode_batch(RECORDS, codec=codec), wanted) == found


def test_with_append_time_the_first_record_left_stands_for_all() -> None:
    batch = encode_batch(RECORDS, append_time_ms=T0 + 99)
    thinned = filter_batch(batch, lambda record: record.offset > 101)
    assert thinned is not None
    assert find_timestamp(thinned, T0 + 99) == (104, T0 + 99)
    assert find_timestamp(thinned, T0 + 100) is None


def test_a_batch_that_is_too_old_is_not_even_decompressed() -> None:
    header = parse_header(encode_batch(RECORDS, codec=Codec.ZSTD))
    broken = HEADER.pack(*header) + b"not zstd"
    assert find_timestamp(broken, T0 + 21) is None
    with pytest.raises(CorruptRecords):
        find_timestamp(broken, T0)


def test_a_batch_without_a_max_timestamp_is_searched() -> None:
    batch = encode_batch(RECORDS)
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(max_timestamp=-1))
    assert find_timestamp(batch, T0 + 1) == (101, T0 + 20)


# -- records that lie --------------------------------------------------------------------------------------------------

PLAIN = "000000010100"


@pytest.mark.parametrize(
    ("why", "payload"),
    [
        ("nothing there", ""),
        ("a length past the end", "0e" + PLAIN),
        ("a length before the fields' end", "0a" + PLAIN),
        ("a negative length", "01" + PLAIN),
        ("bytes after the last record", "0c" + PLAIN + "00"),
        ("a key longer than the record", "0c" + "000000080100"),
        ("a key length below -1", "0c" + "000000030100"),
        ("a value longer than the record", "0c" + "000000017e00"),
        ("more headers than bytes", "0c" + "00000001017e"),
        ("a negative number of headers", "0c" + "000000010101"),
        ("a header without a name", "10" + "0000000101020101"),
        ("an offset past the batch's last", "0c" + "000002010100"),
        ("a negative offset", "0c" + "000001010100"),
        ("a key length of five bytes and a gigabyte", "14" + "000000feffffff070100"),
    ],
)
def test_a_record_that_contradicts_its_batch_is_corrupt(why: str, payload: str) -> None:
    assert decode_records(payload_batch(bytes.fromhex("0c" + PLAIN))) == [Record(0, T0, None, None)]
    with pytest.raises(CorruptRecords):
        decode_records(payload_batch(bytes.fromhex(payload)))


@pytest.mark.parametrize(
    ("why", "payload"),
    [
        ("no bytes in the last", "1c" + "0000000110" + "76" * 8 + "00" + "00"),
        ("one claims a byte of the next", "0e" + PLAIN + "0c" + "000002010100"),
    ],
)
def test_records_that_share_or_lack_bytes_are_corrupt(why: str, payload: str) -> None:
    with pytest.raises(CorruptRecords):
        decode_records(payload_batch(bytes.fromhex(payload), count=2, last_offset_delta=1))


def test_a_record_cut_short_is_corrupt_even_if_only_its_timestamp_is_wanted() -> None:
    cut = bytes.fromhex("20" + "0000000114" + "76" * 5)  # 16 bytes claimed, a value of 10, of which 5 are there
    with pytest.raises(CorruptRecords):
        find_timestamp(payload_batch(cut), T0)


def test_two_records_at_one_offset_are_corrupt() -> None:
    twice = bytes.fromhex(("0c" + PLAIN) * 2)
    with pytest.raises(CorruptRecords):
        decode_records(payload_batch(twice, count=2, last_offset_delta=1))


def test_a_timestamp_past_64_bits_is_corrupt() -> None:
    with pytest.raises(CorruptRecords):
        decode_records(payload_batch(bytes.fromhex("0c" + "000200010100"), base_timestamp=2**63 - 1))


@pytest.mark.parametrize("fields", [{"magic": 1}, {"length": 48}, {"length": 5000}])
def test_a_buffer_that_is_not_one_batch_is_corrupt(fields: dict[str, int]) -> None:
    batch = encode_batch(RECORDS)
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(**fields))
    with pytest.raises(CorruptRecords):
        decode_records(batch)


@pytest.mark.parametrize("count", [2**31 - 1, 5, -1, -(2**31)])
@pytest.mark.parametrize("codec", Codec)
def test_a_hostile_count_is_refused_before_anything_is_allocated_for_it(count: int, codec: Codec) -> None:
    batch = encode_batch(RECORDS[2:3], codec=codec)
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(count=count, last_offset_delta=2**31 - 1))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords, match=f"claims {count} records"):
            decode_records(batch)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
