"""What users give to the client (values, keys, headers, times, durations), checked and as bytes.

`Outgoing` is a message on its way to a node; `Draft` is how users write one down for `publish_many`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from penstock.api.messages import NewMessage, instant
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
DeliverAt: TypeAlias = datetime | int | None  # milliseconds since 1970, or a datetime with a time zone

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_encoder = msgspec.json.Encoder()


def seconds_of(duration: Duration, name: str) -> float:
    """A duration in seconds; ``name`` is the argument that an error mentions."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 <= duration < inf:
        raise InvalidRequest(f"{name} must be a number of seconds or a timedelta, 0 or more; got {duration!r}.")
    return duration


def milliseconds_of(duration: Duration, name: str) -> int:
    """The same in whole milliseconds."""
    return round(seconds_of(duration, name) * 1000)


def optional_ms(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else milliseconds_of(duration, name)


def delivery_ms(moment: DeliverAt, name: str) -> int | None:
    """Milliseconds since 1970; ``name`` is the argument that an error mentions."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest(f"{name} needs a time zone: datetime.now(UTC), for example.")
        return max((moment - _EPOCH) // _MILLISECOND, 0)
    if type(moment) is not int or moment < 0:
        raise InvalidRequest(f"{name} must be a datetime or whole milliseconds since 1970; got {moment!r}.")
    return moment


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
            f"A value of type {type(value).__name__} cannot be published: {error}. "
            "Give bytes, text, or a value that JSON can represent."
        ) from None


def key_bytes(key: Key) -> bytes | None:
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        return _text(key)
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidRecord(f"A key must be text or bytes; got {type(key).__name__}.")


def header_pairs(headers: GivenHeaders, priority: str | None = None) -> Headers:
    """Headers in order, with the priority as one of them. In an iterable of pairs, names may repeat."""
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
            raise InvalidRecord("A timestamp needs a time zone: datetime.now(UTC), for example.")
        return (moment - _EPOCH) // _MILLISECOND
    since_epoch_ms = int(moment * 1000)
    if not 0 <= since_epoch_ms <= INT64_MAX:
        raise InvalidRecord(f"{moment!r} is not a timestamp; give a datetime or seconds since the epoch.")
    return since_epoch_ms


def _header_name(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidRecord(f"A header's name must be text; got {type(name).__name__}.")
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


_NOTHING: Final = msgspec.Raw(b"null")
_MESSAGE_OVERHEAD_BYTES: Final = 24  # lengths and deltas of a record, about


class Outgoing(NamedTuple):
    """A message to publish, as bytes. Without a timestamp it gets the time at which its batch is made."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def size(self) -> int:
        size = _MESSAGE_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += len(name) + len(value or b"") + 4
        return size

    def content(self) -> dict[str, Any]:
        """Key, value and headers as requests in JSON have them."""
        content: dict[str, Any] = {"value": _NOTHING} if self.value is None else {"value_base64": self.value}
        if self.key is not None:
            content["key_base64"] = self.key
        if self.headers:
            headers: dict[str, list[bytes | None]] = {}
            for name, value in self.headers:
                headers.setdefault(name, []).append(value)
            content["headers_base64"] = headers
        return content

    def request(self, partition: int | None = None, **when: Any) -> NewMessage:
        """The message as operations take it."""
        timestamp = None if self.timestamp_ms is None else instant(self.timestamp_ms)
        return NewMessage(partition=partition, timestamp=timestamp, **self.content(), **when)


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to publish with more than a value, for `publish_many`."""

    value: Value
    key: Key = None
    headers: GivenHeaders = None
    timestamp: Moment = None
    priority: str | None = None  # critical, high, normal, low or background, where a queue has lanes


def outgoing(
    value: Value,
    key: Key = None,
    headers: GivenHeaders = None,
    timestamp: Moment = None,
    priority: str | None = None,
) -> Outgoing:
    """A message to publish, checked and as bytes."""
    return Outgoing(key_bytes(key), value_bytes(value), header_pairs(headers, priority), moment_ms(timestamp))


def outgoing_of(values: Iterable[Value | Draft], priority: str | None = None) -> Sequence[Outgoing]:
    """Values and drafts as bytes; ``priority`` is for those without one of their own."""
    headers = header_pairs(None, priority)
    return [
        outgoing(value.value, value.key, value.headers, value.timestamp, value.priority or priority)
        if isinstance(value, Draft)
        else Outgoing(None, value_bytes(value), headers)
        for value in values
    ]


def values_of(values: Sequence[Value | Draft]) -> Sequence[bytes] | None:
    """The values as bytes; None if one of them is a `Draft` or a tombstone."""
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return cast("Sequence[bytes]", values)
    if type(None) in kinds or any(issubclass(kind, Draft) for kind in kinds):
        return None
    return [value for value in map(value_bytes, values) if value is not None]
