"""Batches of bare values: the same bytes and the same values as by the long way, or none at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRecord, PenstockError
from penstock.records import Codec, Record, decode_records, decode_values, encode_batch, encode_values
from penstock.records.header import seal

NOW = 1_700_000_000_000
VALUES = st.lists(st.binary(max_size=300) | st.binary(min_size=64, max_size=64), min_size=1, max_size=200)


def records_of(values: list[bytes], now: int = NOW) -> list[Record]:
    return [Record(number, now, None, value) for number, value in enumerate(values)]


@given(VALUES, st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD]))
def test_the_bytes_are_those_of_encode_batch(values: list[bytes], codec: Codec) -> None:
    made = encode_values(values, NOW, codec=codec, producer_id=7, producer_epoch=2, base_sequence=90)
    assert made == encode_batch(records_of(values), codec=codec, producer_id=7, producer_epoch=2, base_sequence=90)
    assert decode_values(made) == values


@pytest.mark.parametrize("count", [1, 63, 64, 65, 2047, 2048, 2049, 8191, 8192, 8193, 20_000])
def test_numbers_of_every_width(count: int) -> None:
    values = [b"%d" % number for number in range(count)]
    made = encode_values(values, NOW)
    assert made == encode_batch(records_of(values))
    assert decode_values(made) == values


@pytest.mark.parametrize("length", [0, 1, 54, 55, 56, 57, 63, 64, 8180, 8190, 8192, 1_048_570, 1_048_576])
def test_values_of_every_width(length: int) -> None:
    values = [b"x" * length] * 3
    made = encode_values(values, NOW)
    assert made == encode_batch(records_of(values))
    assert decode_values(made) == values


def test_no_values_make_no_batch() -> None:
    with pytest.raises(InvalidRecord):
        encode_values([], NOW)


@pytest.mark.parametrize(
    "odd",
    [
        Record(1, NOW, b"key", b"value"),
        Record(1, NOW, b"", b"value"),
        Record(1, NOW, None, None),
        Record(1, NOW, None, b"value", (("name", b"1"),)),
    ],
)
def test_what_is_not_bare_is_left_to_others(odd: Record) -> None:
    plain = records_of([b"value"] * 3)
    assert decode_values(encode_batch([plain[0], odd, plain[2]])) is None


def test_gaps_are_left_to_others() -> None:
    first, second, third = records_of([b"value"] * 3)
    assert decode_values(encode_batch([first, third])) is None
    assert decode_values(encode_batch([second._replace(offset=5), third._replace(offset=6)])) == [b"value"] * 2


def test_timestamps_may_differ() -> None:
    records = [Record(number, NOW + number * 1000 % 7, None, b"value %d" % number) for number in range(100)]
    assert decode_values(encode_batch(records)) == [record.value for record in records]


@given(VALUES, st.data())
def test_broken_batches_never_say_more_than_the_long_way(values: list[bytes], data: st.DataObject) -> None:
    batch = encode_values(values, NOW)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal(batch)
    try:
        found = decode_values(batch)
    except PenstockError:
        return
    if found is not None:
        assert found == [record.value for record in decode_records(batch)]
