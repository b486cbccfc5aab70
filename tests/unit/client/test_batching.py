"""Messages cut into slices, slices packed into batches, and results in the order of the call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.batching import (
    PartitionQueue,
    PendingCall,
    PendingShare,
    PendingSlice,
    PendingValues,
    contents_of,
    slices_of,
)
from penstock.client.calls import packed_batches
from penstock.client.messages import Published, PublishedRange
from penstock.client.values import Draft, Outgoing, values_of
from penstock.errors import PenstockError
from penstock.records import Codec, decode_records


class Pending:
    def __init__(self, sizes: Sequence[int]) -> None:
        self.messages = [Outgoing(None, bytes(size)) for size in sizes]

    def succeed(self, begin: int, published: Sequence[Published]) -> None: ...

    def fail(self, error: PenstockError) -> None: ...


@given(st.lists(st.integers(0, 300), min_size=1, max_size=50), st.integers(1, 1000))
def test_slices_hold_every_message_once_and_in_order(sizes: list[int], size_max: int) -> None:
    pending = Pending(sizes)
    slices = slices_of(pending, size_max)
    assert [at for piece in slices for at in range(piece.begin, piece.end)] == list(range(len(sizes)))
    for piece in slices:
        assert piece.size == sum(message.size for message in pending.messages[piece.begin : piece.end])
        assert piece.size <= size_max or piece.end - piece.begin == 1


def test_a_batch_is_packed_up_to_the_limit_with_at_least_one_slice() -> None:
    queue = PartitionQueue(0, bytes_max=300)
    for size in (100, 100, 500, 10):
        pending = Pending([size])
        queue.add(PendingSlice(pending, 0, 1, pending.messages[0].size))
    assert [len(queue.take()) for _ in range(3)] == [2, 1, 1]
    assert queue.take() == []
    assert queue.bytes_waiting == 0


def test_what_was_too_large_comes_back_in_smaller_batches() -> None:
    queue = PartitionQueue(0, bytes_max=10_000)
    pending = Pending([100] * 8)
    queue.add(slices_of(pending, 10_000)[0])
    queue.put_back_smaller(queue.take())
    taken = []
    while slices := queue.take():
        taken.append([(piece.begin, piece.end) for piece in slices])
    assert taken == [[(0, 4)], [(4, 8)]]


def test_suspects_are_sent_alone_and_the_rest_together() -> None:
    queue = PartitionQueue(0, bytes_max=10_000)
    pendings = [Pending([10]) for _ in range(5)]
    for pending in pendings[:3]:
        queue.add(slices_of(pending, 10_000)[0])
    queue.put_back_apart(queue.take())
    for pending in pendings[3:]:
        queue.add(slices_of(pending, 10_000)[0])
    assert [[pendings.index(piece.pending) for piece in queue.take()] for _ in range(4)] == [[0], [1], [2], [3, 4]]


def test_records_of_several_pendings_are_numbered_through() -> None:
    first, second = Pending([1, 2]), Pending([3])
    contents = contents_of([PendingSlice(first, 0, 2, 0), PendingSlice(second, 0, 1, 0)], 7)
    records = decode_records(contents.encode(Codec.NONE, 1, 0, 0))
    assert [(record.offset, len(record.value or b""), record.timestamp) for record in records] == [
        (0, 1, 7),
        (1, 2, 7),
        (2, 3, 7),
    ]


def test_a_call_gets_its_results_in_its_own_order_whichever_partition_answers_first() -> None:
    async def run() -> None:
        call = PendingCall(3)
        message = Outgoing(None, b"")
        even, odd = PendingShare(call, [message, message], [0, 2]), PendingShare(call, [message], [1])
        odd.succeed(0, [Published("t", 1, 70, 0)])
        even.succeed(1, [Published("t", 0, 11, 0)])
        assert not call.future.done()
        even.succeed(0, [Published("t", 0, 10, 0)])
        assert [(each.partition, each.offset) for each in await call.future] == [(0, 10), (1, 70), (0, 11)]

    asyncio.run(run())


def test_a_range_of_places_behaves_like_a_list() -> None:
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
    body = b"".join(packed_batches([(partition, bytearray(batch)) for partition, batch in batches]))
    assert msgspec.msgpack.decode(body, type=list[tuple[int, bytes]]) == batches


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"a", b"b"], [b"a", b"b"]),
        (["a", b"b", {"c": 1}, bytearray(b"d")], [b"a", b"b", b'{"c":1}', b"d"]),
        ([b"a", None], None),
        ([b"a", Draft(b"b")], None),
        ([], []),
    ],
)
def test_calls_with_nothing_but_values_are_recognised(values: list[Any], expected: list[bytes] | None) -> None:
    assert values_of(values) == expected


def test_parts_of_a_call_are_settled_one_by_one_and_reported_in_order() -> None:
    async def run() -> None:
        call = PendingCall(5)
        pending = PendingValues(call, [b"x" * 100] * 5)
        slices = slices_of(pending, 300)
        assert [(piece.begin, piece.end) for piece in slices] == [(0, 2), (2, 4), (4, 5)]
        for number, piece in reversed(list(enumerate(slices))):
            contents = contents_of([piece], 7)
            batch = contents.encode(Codec.NONE, 1, 0, 0)
            assert [record.value for record in decode_records(batch)] == pending.values[piece.begin : piece.end]
            assert not call.future.done()
            pending.succeed(piece.begin, contents.published("orders", 0, number * 100, -1))
        places = await call.future
        assert [place.offset for place in places] == [0, 1, 100, 101, 200]
        assert {place.timestamp_ms for place in places} == {7}

    asyncio.run(run())


def test_values_of_several_calls_share_a_batch() -> None:
    async def run() -> None:
        first, second = PendingValues(PendingCall(1), [b"a"]), PendingValues(PendingCall(2), [b"b", b"c"])
        contents = contents_of([PendingSlice(first, 0, 1, 25), PendingSlice(second, 0, 2, 50)], 7)
        assert [record.value for record in decode_records(contents.encode(Codec.LZ4, 1, 0, 0))] == [b"a", b"b", b"c"]
        assert contents.published("t", 0, 5, 11) == [Published("t", 0, offset, 11) for offset in (5, 6, 7)]

    asyncio.run(run())
