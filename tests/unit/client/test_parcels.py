"""Parcels cut into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.messages import Published
from penstock.client.parcels import Lane, Order, OrderParcel, Outgoing, Span, records_of, spans_of
from penstock.errors import PenstockError


class Parcel:
    def __init__(self, sizes: Sequence[int]) -> None:
        self.messages = [Outgoing(None, bytes(size)) for size in sizes]

    def succeed(self, begin: int, published: Sequence[Published]) -> None: ...

    def fail(self, error: PenstockError) -> None: ...


@given(st.lists(st.integers(0, 300), min_size=1, max_size=50), st.integers(1, 1000))
def test_spans_hold_every_message_once_and_in_order(sizes: list[int], size_max: int) -> None:
    parcel = Parcel(sizes)
    spans = spans_of(parcel, size_max)
    assert [at for span in spans for at in range(span.begin, span.end)] == list(range(len(sizes)))
    for span in spans:
        assert span.size == sum(message.size for message in parcel.messages[span.begin : span.end])
        assert span.size <= size_max or span.end - span.begin == 1


def test_a_lane_packs_up_to_its_limit_and_at_least_one() -> None:
    lane = Lane(0, bytes_max=300)
    for size in (100, 100, 500, 10):
        parcel = Parcel([size])
        lane.add(Span(parcel, 0, 1, parcel.messages[0].size))
    assert [len(lane.take()) for _ in range(3)] == [2, 1, 1]
    assert lane.take() == []
    assert lane.bytes_waiting == 0


def test_what_was_too_large_comes_back_in_smaller_batches() -> None:
    lane = Lane(0, bytes_max=10_000)
    parcel = Parcel([100] * 8)
    lane.add(spans_of(parcel, 10_000)[0])
    lane.put_back_smaller(lane.take())
    taken = []
    while spans := lane.take():
        taken.append([(span.begin, span.end) for span in spans])
    assert taken == [[(0, 4)], [(4, 8)]]


def test_suspects_travel_alone_and_the_rest_together() -> None:
    lane = Lane(0, bytes_max=10_000)
    parcels = [Parcel([10]) for _ in range(5)]
    for parcel in parcels[:3]:
        lane.add(spans_of(parcel, 10_000)[0])
    lane.put_back_apart(lane.take())
    for parcel in parcels[3:]:
        lane.add(spans_of(parcel, 10_000)[0])
    assert [[parcels.index(span.parcel) for span in lane.take()] for _ in range(4)] == [[0], [1], [2], [3, 4]]


def test_records_of_several_parcels_are_numbered_through() -> None:
    first, second = Parcel([1, 2]), Parcel([3])
    records = records_of([Span(first, 0, 2, 0), Span(second, 0, 1, 0)], now_ms=7)
    assert [(record.offset, len(record.value or b""), record.timestamp) for record in records] == [
        (0, 1, 7),
        (1, 2, 7),
        (2, 3, 7),
    ]


def test_an_order_is_told_in_its_own_order_whatever_partition_is_first() -> None:
    async def run() -> None:
        order = Order(3)
        message = Outgoing(None, b"")
        even, odd = OrderParcel(order, [message, message], [0, 2]), OrderParcel(order, [message], [1])
        odd.succeed(0, [Published("t", 1, 70, 0)])
        even.succeed(1, [Published("t", 0, 11, 0)])
        assert not order.future.done()
        even.succeed(0, [Published("t", 0, 10, 0)])
        assert [(each.partition, each.offset) for each in await order.future] == [(0, 10), (1, 70), (0, 11)]

    asyncio.run(run())
