"""Many values in one call: one batch, and a place for each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.client.contents import PublishedRange, batches_body, contents_of
from penstock.client.drafts import Draft, values_of
from penstock.client.messages import Published
from penstock.client.parcels import Order, Span, ValuesParcel, spans_of
from penstock.records import Codec, decode_records


def test_places_are_told_as_a_list_would() -> None:
    places = PublishedRange("orders", 3, range(10, 14), 99)
    listed = [Published("orders", 3, offset, 99) for offset in (10, 11, 12, 13)]
    assert places == listed
    assert list(places) == listed
    assert (places[0], places[-1], len(places)) == (listed[0], listed[-1], 4)
    assert places[1:3] == listed[1:3]
    assert places != listed[:3]
    assert repr(places) == repr(listed)
    with pytest.raises(IndexError):
        places[4]


@pytest.mark.parametrize("batches", [[], [(0, b"abc")], [(127, b""), (128, b"x" * 70_000)], [(1, b"y")] * 40])
def test_batches_are_sent_as_messagepack(batches: list[tuple[int, bytes]]) -> None:
    body = b"".join(batches_body([(partition, bytearray(batch)) for partition, batch in batches]))
    assert msgspec.msgpack.decode(body, type=list[tuple[int, bytes]]) == batches


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([b"a", b"b"], [b"a", b"b"]),
        (["a", b"b", {"c": 1}, bytearray(b"d")], [b"a", b"b", b'{"c":1}', b"d"]),
        ([b"a", None], None),
        ([b"a", Draft(b"b")], None),
        ([], []),
    ],
)
def test_which_calls_are_nothing_but_values(given: list[Any], expected: list[bytes] | None) -> None:
    assert values_of(given) == expected


def test_parts_of_a_call_are_settled_each_and_told_in_order() -> None:
    async def run() -> None:
        order = Order(5)
        parcel = ValuesParcel(order, [b"x" * 100] * 5)
        spans = spans_of(parcel, 300)
        assert [(span.begin, span.end) for span in spans] == [(0, 2), (2, 4), (4, 5)]
        for number, span in reversed(list(enumerate(spans))):
            contents = contents_of([span], 7)
            batch = contents.encode(Codec.NONE, 1, 0, 0)
            assert [record.value for record in decode_records(batch)] == parcel.values[span.begin : span.end]
            assert not order.future.done()
            parcel.succeed(span.begin, contents.published("orders", 0, number * 100, -1))
        places = await order.future
        assert [place.offset for place in places] == [0, 1, 100, 101, 200]
        assert {place.timestamp_ms for place in places} == {7}

    asyncio.run(run())


def test_values_and_other_parcels_share_a_batch() -> None:
    async def run() -> None:
        first, second = ValuesParcel(Order(1), [b"a"]), ValuesParcel(Order(2), [b"b", b"c"])
        contents = contents_of([Span(first, 0, 1, 25), Span(second, 0, 2, 50)], 7)
        assert [record.value for record in decode_records(contents.encode(Codec.LZ4, 1, 0, 0))] == [b"a", b"b", b"c"]
        assert contents.published("t", 0, 5, 11) == [Published("t", 0, offset, 11) for offset in (5, 6, 7)]

    asyncio.run(run())
