"""Instances of any described message, derived from its description."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.schema import NO_UUID, Array, Blob, Field, Fixed, Kind, Struct, Text, UuidBytes
from penstock.doors.kafka.protocol.schema import fields_of as work_out_fields

fields_of = cache(work_out_fields)  # for every field of every example, where a node asks once

# The oracles turn milliseconds into dates and durations, so times must be such.
TIMES_MS = st.integers(-1, 4_000_000_000_000)
TEXTS = st.sampled_from(["", "a", "orders", "é", "naïve 漢字", "x" * 127, "é" * 100])
BLOBS = st.sampled_from([b"", b"\0", b"\xff\xfe", b"\xff" * 127, b"\x80" * 200])
UUIDS = st.one_of(st.just(NO_UUID), st.uuids())


@cache
def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Messages with a value for every field, whichever versions it is in."""
    return st.builds(cls, **{field.name: _values(field) for field in fields_of(cls)})


def _values(field: Field) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return st.sampled_from([int(code) for code in ErrorCode])
    if field.kind == Fixed("q", 8) and (field.name.endswith("_ms") or "timestamp" in field.name):
        return TIMES_MS
    values = _of_kind(field.kind)
    return st.one_of(st.none(), values) if field.optional else values


def _of_kind(kind: Kind) -> st.SearchStrategy[Any]:
    match kind:
        case Fixed(code="?"):
            return st.booleans()
        case Fixed(code="d"):
            return st.floats(allow_nan=False, allow_infinity=False)
        case Fixed(code=code, width=width):
            low = 0 if code.isupper() else -(1 << (8 * width - 1))
            return st.integers(low, low + (1 << (8 * width)) - 1)
        case Text():
            return TEXTS
        case Blob():
            return BLOBS
        case UuidBytes():
            return UUIDS
        case Array(element=element):
            return st.lists(_of_kind(element), max_size=2).map(tuple)
        case Struct(cls=cls):
            return instances(cls)


def project(message: Any, version: int) -> Any:
    """What is left of a message in a version: absent fields have their defaults, and nulls are where they may be."""
    changes = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if not field.is_in(version):
            value = field.default
        elif value is None and not field.is_nullable_in(version):
            value = "" if isinstance(field.kind, Text) else b"" if isinstance(field.kind, Blob) else ()
        elif isinstance(field.kind, Struct) and value is not None:
            value = project(value, version)
        elif isinstance(field.kind, Array) and isinstance(field.kind.element, Struct) and value:
            value = tuple(project(item, version) for item in value)
        changes[field.name] = value
    return msgspec.structs.replace(message, **changes)


@pytest.fixture(scope="session")
def messages_of() -> Callable[[type[Any]], st.SearchStrategy[Any]]:
    return instances


@pytest.fixture(scope="session")
def in_version() -> Callable[[Any, int], Any]:
    return project


@pytest.fixture(scope="session")
def hostile_counts() -> list[bytes]:
    """Lengths and counts that no message could hold, in either encoding."""
    return [
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80\x80\x80\x80\x08",
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -2),
        struct.pack(">h", -2),
        struct.pack(">h", 32767),
    ]
