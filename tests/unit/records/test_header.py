"""The batch header: what is read from it, which batches are let in, and what may be patched in place."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    CorruptRecords,
    InvalidRecord,
    InvalidTimestamp,
    PenstockError,
    UnsupportedCompression,
    UnsupportedFormat,
)
from penstock.records import (
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Record,
    accept_batch,
    assign,
    check_batch,
    decode_records,
    encode_batch,
    iter_batches,
    parse_header,
    stamp_append_time,
)

RECORDS = [Record(0, 1_700_000_000_000, b"k", b"v"), Record(1, 1_700_000_000_005, None, b"w" * 40)]


def produced(**fields: int) -> memoryview:
    """A batch as a producer sends it, with header fields overwritten and, unless it is one of them, a fitting CRC."""
    return altered(encode_batch(RECORDS), **fields)


def altered(batch: bytearray, **fields: int) -> memoryview:
    header = parse_header(batch)._replace(**fields)
    HEADER.pack_into(batch, 0, *header)
    if "crc" not in fields:
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return memoryview(batch)


def header_with(**fields: int) -> BatchHeader:
    return parse_header(encode_batch(RECORDS))._replace(**fields)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_the_header_is_61_bytes_with_each_field_in_its_place() -> None:
    raw = bytes.fromhex(
        "0000000000000007"  # base offset
        "00000031"  # length
        "00000005"  # leader epoch
        "02"  # magic
        "deadbeef"  # crc
        "0011"  # attributes: gzip, transactional
        "00000003"  # last offset delta
        "0000018bcfe56800"  # base timestamp
        "0000018bcfe56805"  # max timestamp
        "0000000000000009"  # producer id
        "0002"  # producer epoch
        "0000000b"  # base sequence
        "00000004"  # count
    )
    assert len(raw) == HEADER_BYTES == 61
    header = parse_header(b"xx" + raw, 2)
    assert header == (7, 49, 5, 2, 0xDEADBEEF, 0x11, 3, 1_700_000_000_000, 1_700_000_000_005, 9, 2, 11, 4)
    assert (header.size, header.last_offset, header.next_offset, header.last_sequence) == (61, 10, 11, 14)
    assert header.codec is Codec.GZIP
    assert header.is_transactional
    assert header.is_idempotent
    assert not header.is_control
    assert not header.uses_append_time
    assert not header.has_delete_horizon


@pytest.mark.parametrize("size", [0, 1, 60])
def test_fewer_bytes_than_a_header_are_corrupt(size: int) -> None:
    with pytest.raises(CorruptRecords):
        parse_header(bytes(size))
    with pytest.raises(CorruptRecords):
        parse_header(bytes(size + 5), 5)


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (5, 3, 8), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 2, 4, 2), (-1, 4, -1)],
)
def test_sequences_go_on_at_zero_after_the_largest(base: int, delta: int, last: int) -> None:
    assert header_with(base_sequence=base, last_offset_delta=delta).last_sequence == last


@pytest.mark.parametrize(
    ("bit", "name"),
    [(3, "uses_append_time"), (4, "is_transactional"), (5, "is_control"), (6, "has_delete_horizon")],
)
def test_each_attribute_bit_answers_one_question(bit: int, name: str) -> None:
    flags = ["uses_append_time", "is_transactional", "is_control", "has_delete_horizon"]
    header = header_with(attributes=1 << bit)
    assert [flag for flag in flags if getattr(header, flag)] == [name]


def test_an_unknown_codec_shows_when_it_is_asked_for() -> None:
    with pytest.raises(UnsupportedCompression):
        _ = header_with(attributes=5).codec


# -- what a producer may send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_a_well_formed_batch_is_accepted_with_every_codec(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec, producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert accept_batch(memoryview(batch)) == parse_header(batch)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"magic": 0}, UnsupportedFormat),
        ({"magic": 1}, UnsupportedFormat),
        ({"magic": 3}, CorruptRecords),
        ({"magic": -1}, CorruptRecords),
        ({"crc": 0}, CorruptRecords),
        ({"length": 10_000}, CorruptRecords),
        ({"length": 48}, CorruptRecords),
        ({"length": -1}, CorruptRecords),
        ({"length": 49}, InvalidRecord),
        ({"attributes": 1 << 5}, InvalidRecord),
        ({"attributes": 1 << 6}, InvalidRecord),
        ({"attributes": 1 << 3}, InvalidTimestamp),
        ({"attributes": 5}, UnsupportedCompression),
        ({"attributes": 6}, UnsupportedCompression),
        ({"attributes": 7}, UnsupportedCompression),
        ({"attributes": 1 << 4}, InvalidRecord),
        ({"count": 0, "last_offset_delta": -1}, InvalidRecord),
        ({"count": 0}, InvalidRecord),
        ({"count": 1}, InvalidRecord),
        ({"count": 3}, InvalidRecord),
        ({"count": -(2**31)}, InvalidRecord),
        ({"count": 1_000, "last_offset_delta": 999}, InvalidRecord),
        ({"producer_id": 1, "producer_epoch": 0}, InvalidRecord),
        ({"producer_id": 1, "base_sequence": 0}, InvalidRecord),
        ({"base_timestamp": -2, "max_timestamp": -1}, InvalidTimestamp),
        ({"base_timestamp": 10, "max_timestamp": 9}, InvalidTimestamp),
        ({"base_timestamp": 10, "max_timestamp": -2}, InvalidTimestamp),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused(fields: dict[str, int], error: type[PenstockError]) -> None:
    assert accept_batch(produced()).count == len(RECORDS)
    with pytest.raises(error) as caught:
        accept_batch(produced(**fields))
    assert type(caught.value) is error


@pytest.mark.parametrize("fields", [{"base_timestamp": -1, "max_timestamp": -1}, {"max_timestamp": -1}])
def test_batches_without_timestamps_are_accepted(fields: dict[str, int]) -> None:
    assert accept_batch(produced(**fields)).max_timestamp == -1


def test_a_compressed_batch_without_a_payload_is_refused() -> None:
    batch = encode_batch(RECORDS)[:HEADER_BYTES]
    with pytest.raises(InvalidRecord):
        accept_batch(altered(batch, length=49, attributes=Codec.ZSTD))


def test_two_batches_at_once_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="exactly one batch"):
        accept_batch(memoryview(encode_batch(RECORDS) * 2))


@pytest.mark.parametrize("size", [0, 16, 17, 60])
def test_a_cut_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptRecords):
        accept_batch(produced()[:size])


def test_an_old_message_shorter_than_our_header_is_named_as_old() -> None:
    # Offset, size, CRC, magic 1, attributes, timestamp, null key, null value.
    old = struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, 0, -1, -1)
    assert len(old) < HEADER_BYTES
    with pytest.raises(UnsupportedFormat):
        accept_batch(memoryview(old))


@given(st.integers(0, 2**31 - 1), st.integers(0, 7))
def test_any_flipped_bit_past_the_crc_is_noticed(place: int, bit: int) -> None:
    batch = encode_batch(RECORDS)
    batch[21 + place % (len(batch) - 21)] ^= 1 << bit
    for judge in (accept_batch, check_batch):
        with pytest.raises(CorruptRecords, match="checksum"):
            judge(memoryview(batch))


# -- what a log may hold -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"count": 0},
        {"last_offset_delta": 10},
        {"attributes": 1 << 5},
        {"attributes": 1 << 3},
        {"attributes": 1 << 6},
    ],
)
def test_stored_batches_may_be_thinned_stamped_or_control(fields: dict[str, int]) -> None:
    batch = produced(**fields)
    assert check_batch(batch) == parse_header(batch)


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": 1},
        {"crc": 1},
        {"length": 49},
        {"length": 10_000},
        {"count": -1},
        {"count": 3},
        {"count": 0, "last_offset_delta": -1},
        {"base_offset": -1},
    ],
)
def test_a_stored_batch_that_contradicts_itself_is_corrupt(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptRecords):
        check_batch(produced(**fields))


# -- patching ----------------------------------------------------------------------------------------------------------


def test_assigning_changes_offset_and_epoch_only_and_keeps_the_crc_valid() -> None:
    batch = encode_batch(RECORDS)
    before = parse_header(batch)
    assign(memoryview(batch), 2**40, 77)
    assert check_batch(memoryview(batch)) == before._replace(base_offset=2**40, leader_epoch=77)
    assert [record.offset for record in decode_records(batch)] == [2**40, 2**40 + 1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_append_time_becomes_the_timestamp_of_every_record(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    before = parse_header(batch)
    stamp_append_time(memoryview(batch), 1_800_000_000_000)
    after = check_batch(memoryview(batch))
    assert after.uses_append_time
    assert after.codec is codec
    assert after.max_timestamp == 1_800_000_000_000
    assert after.base_timestamp == before.base_timestamp
    assert after.crc != before.crc
    assert [record.timestamp for record in decode_records(batch)] == [1_800_000_000_000] * 2


# -- walking -----------------------------------------------------------------------------------------------------------


def test_walking_yields_every_complete_batch_and_stops_at_a_partial_one() -> None:
    first, second = encode_batch(RECORDS), encode_batch([Record(2, 5, None, b"x" * 300)], codec=Codec.SNAPPY)
    whole = bytes(first + second)
    places = [(3, 0), (3 + len(first), 2)]
    for end in range(len(whole) + 1):
        found = [(position, header.base_offset) for position, header in iter_batches(b"..." + whole[:end], 3)]
        assert found == places[: (end >= len(first)) + (end >= len(whole))]


@pytest.mark.parametrize("fields", [{"length": 48}, {"length": 0}, {"length": -100}, {"magic": 1}])
def test_walking_into_something_else_is_corrupt_not_endless(fields: dict[str, int]) -> None:
    good = encode_batch(RECORDS)
    walk = iter_batches(bytes(good) + bytes(produced(**fields)))
    assert next(walk)[0] == 0
    with pytest.raises(CorruptRecords, match=str(len(good))):
        next(walk)


def test_walking_over_zeros_is_corrupt() -> None:
    with pytest.raises(CorruptRecords):
        list(iter_batches(bytes(100)))
