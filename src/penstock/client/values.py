"""What users give to be published, as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from penstock.errors import InvalidRecord, InvalidRequest
from penstock.priorities import with_priority
from penstock.records.batch import Headers
from penstock.records.varint import INT64_MAX

Value: TypeAlias = Any
Key: TypeAlias = bytes | str | None
HeaderValue: TypeAlias = bytes | str | None
GivenHeaders: TypeAlias = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] | None
Moment: TypeAlias = datetime | int | float | None
Duration: TypeAlias = float | timedelta  # seconds, or a timedelta

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_encoder = msgspec.json.Encoder()


def seconds_of(duration: Duration, name: str) -> float:
    """A duration that was given under a name, in seconds."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 <= duration < inf:
        raise InvalidRequest(f"{name} is a number of seconds or a timedelta, 0 or more, not {duration!r}.")
    return duration


def milliseconds_of(duration: Duration, name: str) -> int:
    """The same in whole milliseconds."""
    return round(seconds_of(duration, name) * 1000)


def value_bytes(value: Value) -> bytes | None:
    """Bytes as they are, text as UTF-8, None as no value, and anything else as JSON."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(
            f"A value of type {type(value).__name__} cannot be published: {error}. Give bytes, text or what JSON has."
        ) from None


def key_bytes(key: Key) -> bytes | None:
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        return _text(key)
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidRecord(f"A key is text or bytes, not {type(key).__name__}.")


def header_pairs(headers: GivenHeaders, priority: str | None = None) -> Headers:
    """Headers in their order; a name may come more than once in an iterable of pairs. A priority is one of them."""
    given: Headers = ()
    if headers:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        given = tuple((_header_name(name), _header_value(name, value)) for name, value in pairs)
    return given if priority is None else with_priority(given, priority)


def moment_ms(moment: Moment) -> int | None:
    """Milliseconds since the epoch of a datetime with a time zone, or of seconds since the epoch."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRecord("A timestamp needs a time zone, such as datetime.now(UTC) has.")
        return (moment - _EPOCH) // _MILLISECOND
    since_epoch_ms = int(moment * 1000)
    if not 0 <= since_epoch_ms <= INT64_MAX:
        raise InvalidRecord(f"{moment!r} is no timestamp; give a datetime or seconds since the epoch.")
    return since_epoch_ms


def _header_name(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidRecord(f"A header's name is text, not {type(name).__name__}.")
    _text(name)
    return name


def _header_value(name: str, value: HeaderValue) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _text(value)
    raise InvalidRecord(f"Header {name!r} has a value of type {type(value).__name__}; give text or bytes.")


def _text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("Text with lone surrogates has no UTF-8 form; give bytes.") from None
