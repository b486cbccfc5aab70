"""Which batches a reader of committed messages may have."""

from __future__ import annotations

from penstock.features.messages.reading import select
from penstock.records import Record, assign, decode_records, encode_batch, encode_marker, iter_batches, parse_header
from penstock.storage.aborted import AbortedTransaction


def batch(base: int, count: int, producer_id: int = -1) -> bytes:
    records = [Record(at, 1, None, str(base + at).encode(), ()) for at in range(count)]
    if producer_id < 0:
        data = encode_batch(records)
    else:
        data = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    assign(memoryview(data), base, 0)
    return bytes(data)


def marker(base: int, producer_id: int, *, is_commit: bool) -> bytes:
    data = encode_marker(producer_id, 0, is_commit=is_commit, coordinator_epoch=0, timestamp_ms=1)
    assign(memoryview(data), base, 0)
    return bytes(data)


def values(data: bytes) -> list[bytes | None]:
    view = memoryview(data)
    return [
        record.value
        for position, header in iter_batches(view)
        for record in decode_records(view[position : position + header.size])
    ]


def test_batches_are_taken_as_they_are_from_the_one_that_holds_the_offset_on() -> None:
    stored = batch(0, 3) + batch(3, 2) + batch(5, 1)
    run = select(memoryview(stored), 4, [], 100)
    assert (run.first, run.end) == (4, 6)
    assert run.data == batch(3, 2) + batch(5, 1)
    assert run.messages == 2


def test_markers_and_aborted_batches_are_left_out_and_passed_over() -> None:
    stored = (
        batch(0, 1, 7) + batch(1, 1, 8) + batch(2, 1) + marker(3, 7, is_commit=False) + marker(4, 8, is_commit=True)
    )
    run = select(memoryview(stored), 0, [AbortedTransaction(7, 0, 3, 0)], 100)
    assert values(run.data) == [b"1", b"2"]
    assert (run.end, run.messages) == (5, 2)


def test_it_stops_with_the_batch_that_reaches_the_limit() -> None:
    stored = batch(0, 3) + batch(3, 3) + batch(6, 3)
    run = select(memoryview(stored), 0, [], 4)
    assert (run.end, run.messages) == (6, 6)
    assert parse_header(memoryview(run.data)).base_offset == 0


def test_nothing_is_nothing() -> None:
    assert select(memoryview(b""), 9, [], 10) == (9, 9, 0, b"")
