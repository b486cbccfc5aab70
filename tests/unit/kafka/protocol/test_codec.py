"""The codec's own rules, on small messages made up for the purpose."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import pytest

from penstock.doors.kafka.protocol.codec import decode, encode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.schema import (
    NO_UUID,
    Api,
    Array,
    Bool,
    Bytes,
    Fixed,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    Since,
    String,
    Struct,
    Tag,
    Text,
    UInt16,
    Until,
    Uuid,
    fields_of,
)
from penstock.doors.kafka.protocol.wire import read_varint, varint

API = Api(999, "Sample", 0, 2, flexible=2)


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    number: Int16
    word: Annotated[String, Since(1)] = "none"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = API

    flag: Bool = False
    tiny: Int8 = 0
    port: Annotated[UInt16, Until(1)] = 7
    numbers: tuple[Int32, ...] = ()
    inners: Annotated[tuple[Inner, ...] | None, Nullable(1)] = ()
    blob: Bytes | None = None
    ratio: Annotated[Float64, Since(1)] = 0.5
    identity: Annotated[Uuid, Since(2)] = NO_UUID
    note: Annotated[String | None, Since(2), Tag(4)] = None
    big: Annotated[Int64, Since(2), Tag(1)] = -1


def test_description_is_read_from_the_annotations() -> None:
    fields = {field.name: field for field in fields_of(Sample)}
    assert fields["port"].kind == Fixed("H", 2)
    assert fields["port"].is_in(1)
    assert not fields["port"].is_in(2)
    assert fields["numbers"].kind == Array(Fixed("i", 4))
    assert fields["inners"].kind == Array(Struct(Inner))
    assert not fields["inners"].is_nullable_in(0)
    assert fields["inners"].is_nullable_in(1)
    assert fields["note"].kind == Text()
    assert fields["note"].tag == 4


def test_classic_bytes_are_as_the_protocol_says() -> None:
    message = Sample(flag=True, tiny=-1, port=65535, numbers=(1, 2), inners=(Inner(number=3, word="é"),), blob=b"x")
    assert encode(message, 1).hex(" ") == (
        "01 ff ff ff 00 00 00 02 00 00 00 01 00 00 00 02 00 00 00 01 00 03 00 02 c3 a9 00 00 00 01 78 "
        "3f e0 00 00 00 00 00 00"
    )


def test_flexible_bytes_are_as_the_protocol_says() -> None:
    message = Sample(numbers=(1,), inners=None, note="n", big=1)
    assert encode(message, 2).hex(" ") == (
        "00 00 02 00 00 00 01 00 00 3f e0 00 00 00 00 00 00 "
        + "00 " * 16
        + "02 01 08 00 00 00 00 00 00 00 01 04 02 02 6e"
    )


def test_absent_fields_have_their_defaults() -> None:
    message = Sample(inners=(Inner(number=1, word="lost"),), ratio=9.0, note="lost")
    assert decode(Sample, 0, encode(message, 0))[0] == Sample(inners=(Inner(number=1),))


def test_unknown_tags_are_skipped_and_known_ones_taken_in_any_order() -> None:
    raw = encode(Sample(), 2)
    assert raw[-1] == 0
    tags = b"\x03\x63\x02zz\x04\x02\x02n\x01\x08" + bytes(7) + b"\x05"
    assert decode(Sample, 2, raw[:-1] + tags) == (Sample(note="n", big=5), len(raw) - 1 + len(tags))


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01\x01\x07" + bytes(8),
        b"\x01\x01\x09" + bytes(9),
        b"\x01\x01\x7f" + bytes(8),
        b"\x01\x63\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x0f",
        b"\x02\x63\x00",
    ],
    ids=["shorter than its value", "longer", "past the end", "hostile length", "hostile count", "one missing"],
)
def test_malformed_tags_are_refused(tags: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(Sample, 2, encode(Sample(), 2)[:-1] + tags)


def test_null_where_it_may_not_be_is_refused() -> None:
    raw = encode(Sample(inners=None), 1)
    assert decode(Sample, 1, raw)[0].inners is None
    with pytest.raises(ProtocolError):
        decode(Sample, 0, raw)
    with pytest.raises(AssertionError):
        encode(Sample(inners=None), 0)


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3\x28", b"\xed\xa0\x80"])
def test_text_that_is_not_utf_8_is_refused(bad: bytes) -> None:
    word = "w" * len(bad)
    raw = encode(Sample(inners=(Inner(number=1, word=word),)), 2)
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode(Sample, 2, raw.replace(word.encode(), bad))


def test_what_does_not_fit_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        encode(Sample(tiny=128), 0)
    with pytest.raises(AssertionError):
        encode(Sample(inners=(Inner(number=1, word="x" * 32768),)), 1)
    assert len(encode(Sample(inners=(Inner(number=1, word="x" * 32768),)), 2)) > 32768


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**28 - 1, 2**28, 2**32 - 1])
def test_varints_round_trip(value: int) -> None:
    raw = varint(value)
    assert read_varint(raw, 0) == (value, len(raw))
    assert read_varint(b"?" + raw + b"?", 1) == (value, len(raw) + 1)


@pytest.mark.parametrize("raw", ["ff ff ff ff 1f", "ff ff ff ff ff 01", "80 80 80 80 80 00"])
def test_overlong_varints_are_refused(raw: str) -> None:
    with pytest.raises(ProtocolError):
        read_varint(bytes.fromhex(raw), 0)


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 5000])
@pytest.mark.parametrize("version", API.versions)
def test_arrays_of_numbers_of_any_length_round_trip(count: int, version: int) -> None:
    message = Sample(tiny=3, numbers=tuple(range(count)))
    assert decode(Sample, version, encode(message, version))[0] == message
