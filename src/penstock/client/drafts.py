"""Messages to be published, as users write them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from penstock.client.parcels import Outgoing
from penstock.client.values import GivenHeaders, Key, Moment, Value, header_pairs, key_bytes, moment_ms, value_bytes


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to publish with more than a value, for `publish_many`."""

    value: Value
    key: Key = None
    headers: GivenHeaders = None
    timestamp: Moment = None
    priority: str | None = None  # critical, high, normal, low or background, where a queue has lanes


def outgoing_of(values: Iterable[Value | Draft], priority: str | None = None) -> Sequence[Outgoing]:
    """Values and drafts as bytes; ``priority`` is that of those which have none of their own."""
    headers = header_pairs(None, priority)
    return [
        Outgoing(
            key_bytes(value.key),
            value_bytes(value.value),
            header_pairs(value.headers, value.priority or priority),
            moment_ms(value.timestamp),
        )
        if isinstance(value, Draft)
        else Outgoing(None, value_bytes(value), headers)
        for value in values
    ]


def values_of(values: Sequence[Value | Draft]) -> Sequence[bytes] | None:
    """The values as bytes, where all are values and none is missing; None where there is more to some of them."""
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return cast("Sequence[bytes]", values)
    if type(None) in kinds or any(issubclass(kind, Draft) for kind in kinds):
        return None
    return [value for value in map(value_bytes, values) if value is not None]
