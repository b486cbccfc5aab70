"""A retried batch is recognised; one that does not follow on is refused."""

from __future__ import annotations

import pytest
from tests.unit.storage.samples import make_batch, table_facts

from penstock.errors import DuplicateSequence, OutOfOrderSequence, ProducerFenced
from penstock.records import BatchHeader, parse_header
from penstock.storage.producers import ProducerTable


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return parse_header(make_batch(count, producer_id=producer_id, producer_epoch=epoch, sequence=sequence))


def table_with(*sequences: int) -> ProducerTable:
    table = ProducerTable()
    for at, sequence in enumerate(sequences):
        table.note(header(sequence), 100 + at)
    return table


def test_a_repeated_batch_is_answered_with_its_first_offset() -> None:
    table = table_with(*range(8))
    assert [table.check(header(sequence)) for sequence in range(3, 8)] == [103, 104, 105, 106, 107]
    assert table.check(header(8)) is None


def test_a_batch_older_than_those_remembered_is_a_duplicate_without_an_offset() -> None:
    with pytest.raises(DuplicateSequence):
        table_with(*range(8)).check(header(1))


def test_a_gap_is_out_of_order() -> None:
    for wrong in (9, 20):
        with pytest.raises(OutOfOrderSequence, match="where 8 comes next"):
            table_with(*range(8)).check(header(wrong))
    with pytest.raises(OutOfOrderSequence):
        table_with(*range(8)).check(header(7, count=2))


def test_a_producer_nobody_knows_may_start_anywhere() -> None:
    assert ProducerTable().check(header(1_234)) is None


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    table = table_with(0, 1)
    with pytest.raises(OutOfOrderSequence, match="a new epoch starts at 0"):
        table.check(header(2, epoch=1))
    assert table.check(header(0, epoch=1)) is None
    table.note(header(0, epoch=1), 200)
    with pytest.raises(ProducerFenced):
        table.check(header(2, epoch=0))


def test_sequences_go_on_at_zero_after_the_largest() -> None:
    largest = (1 << 31) - 1
    table = ProducerTable()
    table.note(header(largest - 1, count=2), 0)
    assert table.check(header(0)) is None
    table.note(header(0), 2)
    assert table.check(header(largest - 1, count=2)) == 0
    table = ProducerTable()
    table.note(header(largest, count=3), 0)
    assert table.check(header(2)) is None


def test_silent_producers_are_forgotten_by_our_clock_not_by_their_timestamps() -> None:
    table = table_with(0)
    table.expire(now_ms=1_000_000, silence_ms=100)
    table.expire(now_ms=1_000_100, silence_ms=100)
    assert len(table) == 1
    table.note(header(1), 101)
    table.expire(now_ms=1_000_200, silence_ms=100)
    assert len(table) == 1
    again = ProducerTable.decode(table.encode(5), 5)
    assert again is not None
    again.expire(now_ms=1_000_301, silence_ms=100)
    assert len(again) == 0


def test_a_snapshot_is_taken_whole_or_not_at_all() -> None:
    table = table_with(*range(8))
    table.note(header(3, producer_id=9, epoch=2), 300)
    data = table.encode(301)
    again = ProducerTable.decode(data, 301)
    assert again is not None
    assert table_facts(again) == table_facts(table)
    assert ProducerTable.decode(data, 302) is None
    for at in range(len(data)):
        assert ProducerTable.decode(data[:at], 301) is None
        assert ProducerTable.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 301) is None
