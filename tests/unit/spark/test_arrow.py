"""Columns are what the ordinary decoder says, whatever the batches hold; and what that refuses is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptRecords
from penstock.records import Codec, Record, assign, decode_records, encode_batch, encode_marker, filter_batch
from penstock.records.header import HEADER_BYTES, seal
from penstock.spark.decoding import decode

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
ALL = ("offset", "timestamp", "key", "value", "headers")

maybe_bytes = st.none() | st.binary(max_size=40) | st.just(b"x" * 100) | st.just(b"y" * 9000)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
bodies = st.tuples(st.integers(0, 2**40), maybe_bytes, maybe_bytes, headers)
holes = st.integers(0, 3)


@st.composite
def logs(draw: st.DrawFn) -> list[bytearray]:
    """Batches one after the other, with gaps as compaction leaves them, in every codec, and markers between them."""
    offset = draw(st.integers(0, 2**40))
    batches: list[bytearray] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 4)) == 0:
            marker = encode_marker(5, 0, is_commit=True, coordinator_epoch=1, timestamp_ms=7)
            assign(marker, offset, 0)
            batches.append(marker)
            offset += 1
            continue
        records = []
        for timestamp, key, value, pairs in draw(st.lists(bodies, min_size=1, max_size=8)):
            offset += draw(holes)
            records.append(Record(offset, timestamp, key, value, pairs))
            offset += 1
        append_time = draw(st.none() | st.integers(0, 2**40))
        codec = draw(st.sampled_from(list(Codec)))
        batches.append(encode_batch(records, codec=codec, append_time_ms=append_time))
    return batches


def rows(data: bytes, first: int = 0, end: int = 1 << 62) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for part in decode(data, first, end, ALL, HEADERS):
        columns = [
            part.columns[name].to_pylist() if name != "timestamp" else millis(part.columns[name]) for name in ALL
        ]
        assert (part.rows, part.last_offset) == (len(columns[0]), columns[0][-1] if columns[0] else first - 1)
        found += zip(*columns, strict=True)
    return found


def millis(stamps: pa.Array) -> list[int]:
    return [-1 if micros is None else micros // 1000 for micros in stamps.cast(pa.int64()).to_pylist()]


def expected(batches: list[bytearray], first: int = 0, end: int = 1 << 62) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        if batch[22] & 0x20:  # control
            continue
        for offset, timestamp, key, value, pairs in decode_records(batch):
            if first <= offset < end:
                named = [{"key": name, "value": content} for name, content in pairs]
                found.append((offset, timestamp, key, value, named))
    return found


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_columns_are_what_the_ordinary_decoder_says(batches: list[bytearray], data: st.DataObject) -> None:
    whole = b"".join(batches)
    assert rows(whole) == expected(batches)
    offsets = [row[0] for row in expected(batches)] or [0]
    first = data.draw(st.sampled_from(offsets))
    end = data.draw(st.sampled_from(offsets)) + data.draw(st.integers(0, 2))
    assert rows(whole, first, end) == expected(batches, first, end)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 1000, 8190, 8200])
def test_many_records_of_one_size_are_found_at_once(size: int) -> None:
    records = [Record(at, 1000 + at // 7, None if at % 3 else b"k", b"v" * size) for at in range(3000)]
    batch = encode_batch(records)
    assert rows(batch) == expected([batch])


def test_sizes_that_change_now_and_then_are_followed() -> None:
    sizes = [10] * 50 + [200] * 3 + [10] * 500 + [11, 10] * 100 + [70000] * 5 + [10] * 20
    batch = encode_batch([Record(at, 5, b"", b"z" * size) for at, size in enumerate(sizes)])
    assert rows(batch) == expected([batch])


def test_a_batch_from_which_compaction_took_everything_has_no_rows() -> None:
    batch = encode_batch([Record(4, 5, b"a", b"b"), Record(5, 5, b"a", b"c")])
    empty = filter_batch(batch, lambda _: False)
    assert empty is not None
    assert rows(bytes(empty)) == []


def test_a_record_without_a_timestamp_has_none() -> None:
    (part,) = decode(bytes(encode_batch([Record(0, -1, None, b"v")])), 0, 1, ("timestamp",))
    assert part.columns["timestamp"].to_pylist() == [None]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_messages_are_counted_without_being_decoded(codec: Codec) -> None:
    batches = [encode_batch([Record(base + at, 0, None, b"a") for at in (0, 2, 5)], codec=codec) for base in (0, 10)]
    data = b"".join(batches)
    assert [(part.rows, part.last_offset) for part in decode(data, 0, 99, ())] == [(3, 5), (3, 15)]
    assert [(part.rows, part.last_offset) for part in decode(data, 2, 12, ())] == [(3, 10)], "ends are looked into"
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecords):
        list(decode(damaged, 0, 99, ()))


def test_large_answers_come_in_parts() -> None:
    batches = [
        encode_batch([Record(base + at, 0, None, b"a" * 1000) for at in range(1000)], codec=Codec.ZSTD)
        for base in range(0, 20_000, 1000)
    ]
    parts = list(decode(b"".join(batches), 0, 1 << 62, ("value",)))
    assert len(parts) == 3
    assert all(part.columns["value"].nbytes < 9_000_000 for part in parts)
    assert sum(part.rows for part in parts) == 20_000


@settings(max_examples=300, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=4), st.data())
def test_what_the_ordinary_decoder_refuses_is_refused(contents: list[Any], data: st.DataObject) -> None:
    """Bytes of the records are changed and the checksum is made right again: nothing but a clean error may come."""
    batch = encode_batch([Record(at, *content) for at, content in enumerate(contents)])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal(batch)
    try:
        wanted = expected([batch])
    except CorruptRecords:
        with pytest.raises(CorruptRecords):
            rows(batch)
    else:
        stamps_fit = all(abs(row[1]) < 2**52 for row in wanted)
        assert not stamps_fit or rows(batch) == wanted


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_half_a_batch_is_refused(cut: int) -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v" * 20)])
    with pytest.raises(CorruptRecords):
        rows(batch[:-cut])


def test_a_batch_with_a_wrong_checksum_is_refused() -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v")])
    batch[-2] ^= 1
    with pytest.raises(CorruptRecords, match="checksum"):
        rows(batch)
