"""Valid requests of every API, from the descriptions of their messages, to be sent as they are or damaged."""

from __future__ import annotations

import functools
import random
from typing import Any
from uuid import UUID

from penstock.doors.kafka.protocol.headers import encode_request
from penstock.doors.kafka.protocol.messages import MESSAGES
from penstock.doors.kafka.protocol.messages.records import ProduceRequest
from penstock.doors.kafka.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from penstock.doors.kafka.protocol.schema import (
    NO_UUID,
    ApiMessage,
    Array,
    Blob,
    Field,
    Fixed,
    Kind,
    Struct,
    Text,
    UuidBytes,
    fields_of,
)
from penstock.records import Codec, Record, encode_batch

TOPICS = ("fuzz-a", "fuzz-b", "fuzz-c")
PARTITIONS = 3
_TEXTS = (
    *TOPICS,
    *TOPICS,
    "",
    "no-such-topic",
    "é漢字",
    "x" * 300,
    "..",
    "retention.ms",
    "cleanup.policy",
    "range",
    "1",
)
_NUMBERS = (0, 0, 0, 1, 1, 2, 3, 5, 100, 1000, -1, -2, 127, 1 << 14)
_COSTLY_PARTITIONS = 20


def make_request(rng: random.Random) -> tuple[ApiMessage, int]:
    """A request that its own API would take, and the version to send it in."""
    request_class, _ = rng.choice(list(MESSAGES.values()))
    api = request_class.api
    return make_message(rng, request_class), rng.randint(api.first, api.last)


def make_frame(rng: random.Random) -> bytes:
    """A whole frame with such a request; rarely one that a version cannot express, then another is tried."""
    while True:
        message, version = make_request(rng)
        if is_costly(message):
            continue
        try:
            return bytes(encode_request(message, version, rng.getrandbits(31), rng.choice((None, "", "fuzz"))))
        except (AssertionError, TypeError, AttributeError):
            continue  # a null that this version has no place for


_fields = functools.cache(fields_of)


def make_message(rng: random.Random, cls: type[Any]) -> Any:
    return cls(**{field.name: _value(rng, field, cls) for field in _fields(cls)})


def _value(rng: random.Random, field: Field, cls: type[Any]) -> Any:
    if field.optional and rng.random() < 0.1:
        return None
    if field.name == "records" and rng.random() < 0.9:
        return make_batch(rng)
    if field.name.endswith("timeout_ms") or field.name == "max_wait_ms":
        return rng.choice((0, 1, 5, 20))
    if cls is ProduceRequest and field.name == "acks":
        return rng.choice((-1, 0, 1, 1, 7))
    return _of_kind(rng, field.kind)


def _of_kind(rng: random.Random, kind: Kind) -> Any:
    match kind:
        case Fixed(code="?"):
            return rng.random() < 0.5
        case Fixed(code="d"):
            return rng.random()
        case Fixed(code=code, width=width):
            low = 0 if code.isupper() else -(1 << (8 * width - 1))
            high = low + (1 << (8 * width)) - 1
            return rng.randint(low, high) if rng.random() < 0.1 else max(low, min(high, rng.choice(_NUMBERS)))
        case Text():
            return rng.choice(_TEXTS)
        case Blob():
            return rng.randbytes(rng.choice((0, 1, 20, 200)))
        case UuidBytes():
            return NO_UUID if rng.random() < 0.5 else UUID(int=rng.getrandbits(128))
        case Array(element=element):
            return tuple(_of_kind(rng, element) for _ in range(rng.choice((0, 1, 1, 2, 3))))
        case Struct(cls=cls):
            return make_message(rng, cls)


def make_batch(rng: random.Random) -> bytes:
    """A record batch that a node would take."""
    records = [
        Record(
            offset,
            1_700_000_000_000 + rng.randrange(1000),
            rng.choice((None, b"key")),
            rng.choice((None, b"v" * rng.randrange(200))),
            rng.choice(((), (("h", b"x"),))),
        )
        for offset in range(rng.randint(1, 5))
    ]
    has_producer = rng.random() < 0.3
    return bytes(
        encode_batch(
            records,
            codec=rng.choice(list(Codec)),
            producer_id=rng.randrange(3) if has_producer else -1,
            producer_epoch=0 if has_producer else -1,
            base_sequence=rng.randrange(4) if has_producer else -1,
        )
    )


def is_costly(message: ApiMessage) -> bool:
    """Whether a node would rightly do as it is told, and spend all its time on it."""
    match message:
        case CreateTopicsRequest():
            asked = sum(max(topic.num_partitions, len(topic.assignments or ())) for topic in message.topics)
        case CreatePartitionsRequest():
            asked = sum(topic.count for topic in message.topics)
        case _:
            return False
    return not message.validate_only and asked > _COSTLY_PARTITIONS
