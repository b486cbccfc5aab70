"""Variable-length integers: known bytes, round trips, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import decode_varint

from penstock.errors import CorruptRecords
from penstock.records import varint

Reader = Callable[[bytes, int], tuple[int, int]]

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
READERS = [varint.read_varint, varint.read_varlong]


def written(write: Callable[[bytearray, int], None], value: int) -> bytes:
    out = bytearray()
    write(out, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_zigzag_values_have_their_known_bytes(value: int, encoded: str) -> None:
    assert written(varint.write_varlong, value).hex() == encoded
    assert varint.read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(INT32, st.binary(max_size=3))
def test_a_varint_reads_back_in_the_middle_of_a_buffer(value: int, around: bytes) -> None:
    encoded = written(varint.write_varlong, value)
    buffer = memoryview(around + encoded + around)
    assert varint.read_varint(buffer, len(around)) == (value, len(around) + len(encoded))


@given(INT64)
def test_a_varlong_reads_back_and_kafka_python_reads_the_same(value: int) -> None:
    encoded = written(varint.write_varlong, value)
    assert varint.read_varlong(encoded, 0) == (value, len(encoded))
    assert decode_varint(encoded) == (value, len(encoded))


@given(INT64, st.data())
def test_a_truncated_value_is_refused(value: int, data: st.DataObject) -> None:
    encoded = written(varint.write_varlong, value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for read in READERS:
        with pytest.raises(CorruptRecords):
            read(encoded[:cut], 0)


@pytest.mark.parametrize(
    ("read", "overlong"),
    [
        (varint.read_varint, "ffffffff1f"),
        (varint.read_varint, "8080808080" + "00"),
        (varint.read_varlong, "ffffffffffffffffff02"),
        (varint.read_varlong, "80808080808080808080" + "00"),
    ],
)
def test_a_value_wider_than_its_type_is_refused(read: Reader, overlong: str) -> None:
    with pytest.raises(CorruptRecords):
        read(bytes.fromhex(overlong), 0)


def test_padding_within_the_width_is_read_as_kafka_does() -> None:
    assert varint.read_varint(bytes.fromhex("8280808000"), 0) == (1, 5)
    assert varint.read_varlong(bytes.fromhex("8280808000"), 0) == (1, 5)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_writing_a_value_out_of_range_is_our_bug(value: int) -> None:
    with pytest.raises(AssertionError):
        varint.write_varlong(bytearray(), value)
