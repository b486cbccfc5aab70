"""Every described message, in every version: round trips, two independent codecs as oracles, and hostile bytes."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import struct
import time
import tracemalloc
from typing import Any

import kio.index
import kio.serial
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kio.serial.errors import OutOfBoundValue
from kio.static.constants import EntityType

from penstock.doors.kafka.protocol.apis import APIS, CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT
from penstock.doors.kafka.protocol.codec import decode, encode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.messages import MESSAGES
from penstock.doors.kafka.protocol.messages.cluster import ApiVersionsResponse
from penstock.doors.kafka.protocol.schema import NO_UUID, fields_of

CLASSES = [cls for pair in MESSAGES.values() for cls in pair]
UNSET = -(2**31)  # operations that nobody asked for

every_message = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
few = settings(
    max_examples=4,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_catalogue_holds_every_api() -> None:
    assert set(MESSAGES) == set(APIS)
    for key, (request, response) in MESSAGES.items():
        assert request.api is response.api is APIS[key]
        assert request.__name__ == APIS[key].name + "Request"
        assert response.__name__ == APIS[key].name + "Response"


@every_message
@few
@given(data=st.data())
def test_what_is_encoded_is_decoded(cls, messages_of, in_version, data) -> None:
    message = data.draw(messages_of(cls))
    for version in cls.api.versions:
        expected = in_version(message, version)
        raw = encode(expected, version)
        assert decode(cls, version, memoryview(raw)) == (expected, len(raw))
        assert decode(cls, version, b"head" + raw + b"tail", 4) == (expected, len(raw) + 4)


# -- kio, as an oracle: it aborts the process on hostile bytes, so it is given valid ones only -------------------------


def kio_class(cls: type[Any], version: int) -> Any | None:
    kind = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    try:
        return kio.index.load_payload_module(cls.api.key, version, kind).__dict__[cls.__name__]
    except kio.index.KioIndexError:
        return None


def spellings(name: str) -> list[str]:
    """How the oracles may call a field of ours: without its unit, its owner, or with the versions it is kept for."""
    return [
        name,
        name.removesuffix("_ms"),
        f"v3_and_below_{name}",
        f"{name}_by_topic_v3_and_below",
        "authorized_operations",
    ]


def plain(value: Any) -> Any:
    """A value of kio's as one of ours."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value


def assert_same_as_kio(ours: Any, theirs: Any, version: int) -> None:
    names = {field.name for field in dataclasses.fields(theirs)}
    present = [field for field in fields_of(type(ours)) if field.is_in(version)]
    assert len(names) == len(present)
    for field in present:
        value = getattr(ours, field.name)
        name = next(name for name in spellings(field.name) if name in names)
        other = plain(getattr(theirs, name))
        if isinstance(value, msgspec.Struct):
            assert_same_as_kio(value, other, version)
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            for mine, its in zip(value, other, strict=True):
                assert_same_as_kio(mine, its, version)
        elif other is None and value is not None:
            assert value in (NO_UUID, -1), field.name
        else:
            assert other == value, field.name


@every_message
@few
@given(data=st.data())
def test_kio_reads_what_we_write_and_writes_what_we_read(cls, messages_of, in_version, data) -> None:
    message = data.draw(messages_of(cls))
    known = [version for version in cls.api.versions if kio_class(cls, version) is not None]
    assert known
    for version in known:
        ours = in_version(message, version)
        raw = encode(ours, version)
        try:
            theirs, size = kio.serial.entity_reader(kio_class(cls, version))(raw, 0)
        except OutOfBoundValue:
            reject()  # an instant before 1970, which kio has no value for and the protocol does
        assert size == len(raw)
        assert_same_as_kio(ours, theirs, version)
        out = io.BytesIO()
        kio.serial.entity_writer(kio_class(cls, version))(out, theirs)
        assert decode(cls, version, out.getvalue()) == (ours, len(out.getvalue()))


# -- kafka-python, as another ------------------------------------------------------------------------------------------


def kafka_python_class(cls: type[Any]) -> Any | None:
    modules = (admin, consumer, metadata, producer, sasl)
    return next((found for module in modules if (found := getattr(module, cls.__name__, None))), None)


def assert_same_as_dict(ours: Any, theirs: dict[str, Any], version: int) -> None:
    for field in fields_of(type(ours)):
        if not field.is_in(version):
            continue
        value = getattr(ours, field.name)
        other = theirs[next(name for name in spellings(field.name) if name in theirs)]
        if isinstance(other, set):
            assert sum(1 << bit for bit in other) == value & 0xFFFFFFFF, field.name
        elif isinstance(value, msgspec.Struct):
            assert_same_as_dict(value, other, version)
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            for mine, its in zip(value, other, strict=True):
                assert_same_as_dict(mine, its, version)
        elif isinstance(value, tuple):
            assert tuple(other) == value, field.name
        else:
            assert other == value or (other is None and value in (NO_UUID, UNSET)), field.name


@every_message
@few
@given(data=st.data())
def test_kafka_python_reads_what_we_write_and_writes_what_we_read(cls, messages_of, in_version, data) -> None:
    theirs_class = kafka_python_class(cls)
    if cls.api in (CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE):
        pytest.skip("kafka-python does not have it")
    assert theirs_class is not None
    message = data.draw(messages_of(cls))
    if isinstance(message, ApiVersionsResponse):
        # With an error in it kafka-python takes it for version 0, whatever it is.
        message = msgspec.structs.replace(message, error_code=0)
    for version in cls.api.versions:
        ours = in_version(message, version)
        raw = encode(ours, version)
        theirs = theirs_class.decode(raw, version=version)
        assert_same_as_dict(ours, theirs.to_dict(json=False), version)
        theirs._header = None
        assert decode(cls, version, bytes(theirs.encode()))[0] == ours


# -- bytes that are no message -----------------------------------------------------------------------------------------


def decode_or_refuse(cls: type[Any], version: int, raw: bytes) -> None:
    try:
        decode(cls, version, memoryview(raw))
    except ProtocolError:
        pass


@every_message
@few
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_a_message_cut_short_is_refused(cls, messages_of, in_version, data, chance) -> None:
    message = data.draw(messages_of(cls))
    for version in cls.api.versions:
        raw = encode(in_version(message, version), version)
        for end in range(len(raw)) if len(raw) < 100 else sorted(chance.sample(range(len(raw)), 40)):
            with pytest.raises(ProtocolError):
                decode(cls, version, memoryview(raw)[:end])


@every_message
def test_random_bytes_are_read_or_refused(cls) -> None:
    chance = random.Random(cls.__name__)
    for version in cls.api.versions:
        for _ in range(30):
            decode_or_refuse(cls, version, chance.randbytes(chance.randrange(60)))
            decode_or_refuse(cls, version, bytes(chance.choices(range(4), k=chance.randrange(60))))


@every_message
@few
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_mutated_bytes_are_read_or_refused(cls, messages_of, in_version, hostile_counts, data, chance) -> None:
    message = data.draw(messages_of(cls))
    for version in cls.api.versions:
        raw = encode(in_version(message, version), version)
        for _ in range(4):
            position = chance.randrange(len(raw) + 1)
            count = chance.choice(hostile_counts)
            decode_or_refuse(cls, version, raw[:position] + count + raw[position:])
            decode_or_refuse(cls, version, raw[:position] + count + raw[position + len(count) :])
            decode_or_refuse(cls, version, raw[:position] + chance.randbytes(1) + raw[position + 1 :])


@every_message
def test_a_hostile_count_costs_nothing(cls, hostile_counts) -> None:
    """A count is refused before anything is allocated for it, wherever it stands."""
    tracemalloc.start()
    started = time.process_time()
    for version in cls.api.versions:
        for zeros in range(16):
            for count in hostile_counts:
                decode_or_refuse(cls, version, bytes(zeros) + count + bytes(64))
    elapsed = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert elapsed < 10
    assert peak < 4_000_000


@every_message
@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_an_unknown_version_is_refused(cls, messages_of, data) -> None:
    message = data.draw(messages_of(cls))
    for version in (-1, cls.api.last + 1, struct.unpack(">h", b"\x7f\xff")[0]):
        with pytest.raises(ProtocolError):
            decode(cls, version, b"")
        with pytest.raises(AssertionError):
            encode(message, version)
