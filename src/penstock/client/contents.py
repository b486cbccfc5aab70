"""What a batch holds: messages one by one, or, where all of it is values that one call handed over, just these.

Many values at once are by far the quickest way to publish, so nothing is made for each of them: not on the way out,
and on the way back only what somebody looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, Protocol, overload

import msgspec

from penstock.client.messages import Published
from penstock.client.parcels import SingleParcel, Span, ValuesParcel, records_of
from penstock.records import Codec, encode_batch, encode_values
from penstock.records.batch import Headers

_ARRAY: Final = Struct(">BI")
_BYTES: Final = Struct(">BI")


class Contents(Protocol):
    """The messages of one batch."""

    def __len__(self) -> int: ...

    def encode(self, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray: ...

    def published(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> Sequence[Published]:
        """Where they are, now that they are safe; ``append_time_ms`` is below 0 where they keep their own time."""


class _Messages:
    """Any messages."""

    def __init__(self, spans: Sequence[Span], now_ms: int) -> None:
        self._records = records_of(spans, now_ms)

    def __len__(self) -> int:
        return len(self._records)

    def encode(self, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        return encode_batch(
            self._records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )

    def published(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> Sequence[Published]:
        if append_time_ms < 0:
            return [Published(topic, partition, base_offset + each.offset, each.timestamp) for each in self._records]
        return [Published(topic, partition, base_offset + each.offset, append_time_ms) for each in self._records]


class _Values:
    """Values of one call, with the same headers."""

    def __init__(self, values: Sequence[bytes], headers: Headers, now_ms: int) -> None:
        self._values = values
        self._headers = headers
        self._now_ms = now_ms

    def __len__(self) -> int:
        return len(self._values)

    def encode(self, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        return encode_values(
            self._values,
            self._now_ms,
            headers=self._headers,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )

    def published(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> Sequence[Published]:
        timestamp_ms = self._now_ms if append_time_ms < 0 else append_time_ms
        offsets = range(base_offset, base_offset + len(self._values))
        return PublishedRange(topic, partition, offsets, timestamp_ms)


def contents_of(spans: Sequence[Span], now_ms: int) -> Contents:
    if len(spans) == 1:
        parcel, begin, end, _ = spans[0]
        if isinstance(parcel, ValuesParcel):
            values = parcel.values
            return _Values(values if end - begin == len(values) else values[begin:end], parcel.headers, now_ms)
        if isinstance(parcel, SingleParcel):
            key, value, headers, timestamp_ms = parcel.messages[0]
            if key is None and value is not None and timestamp_ms is None:
                return _Values((value,), headers, now_ms)
    return _Messages(spans, now_ms)


def batches_body(batches: Sequence[tuple[int, bytearray]]) -> list[bytes | bytearray]:
    """MessagePack of ``[[partition, batch], ...]`` in pieces; the batches, which are large, stay where they are."""
    parts: list[bytes | bytearray] = [_ARRAY.pack(0xDD, len(batches))]
    for partition, batch in batches:
        parts += (b"\x92" + msgspec.msgpack.encode(partition) + _BYTES.pack(0xC6, len(batch)), batch)
    return parts


class PublishedRange(Sequence[Published]):
    """Messages that lie one behind the other, told of one by one to whoever asks."""

    __slots__ = ("_offsets", "_partition", "_timestamp_ms", "_topic")

    def __init__(self, topic: str, partition: int, offsets: range, timestamp_ms: int) -> None:
        self._topic = topic
        self._partition = partition
        self._offsets = offsets
        self._timestamp_ms = timestamp_ms

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, at: int) -> Published: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Published]: ...
    def __getitem__(self, at: Any) -> Any:
        found = self._offsets[at]
        if isinstance(found, range):
            return PublishedRange(self._topic, self._partition, found, self._timestamp_ms)
        return Published(self._topic, self._partition, found, self._timestamp_ms)

    def __iter__(self) -> Iterator[Published]:
        for offset in self._offsets:
            yield Published(self._topic, self._partition, offset, self._timestamp_ms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))
