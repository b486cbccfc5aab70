"""A retried batch is recognised; one that does not follow on is refused."""

from __future__ import annotations

import struct

import crc32c
import pytest
from tests.unit.storage.samples import COMPACTED, append, make_batch, open_log, read_all, table_facts

from penstock.errors import CoordinatorFenced, DuplicateSequence, InvalidTxnState, OutOfOrderSequence, ProducerFenced
from penstock.records import BatchHeader, Marker, Record, encode_batch, encode_gap, encode_marker, parse_header
from penstock.storage.compaction import compact
from penstock.storage.producers import EndedTransaction, ProducerTable
from penstock.testing.files import MemoryFiles


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return parse_header(make_batch(count, producer_id=producer_id, producer_epoch=epoch, sequence=sequence))


def table_with(*sequences: int) -> ProducerTable:
    table = ProducerTable()
    for at, sequence in enumerate(sequences):
        table.note(header(sequence), 100 + at)
    return table


def transactional(sequence: int, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return parse_header(
        encode_batch(
            [Record(0, 1_000, b"k", b"v")],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
    )


def end(table: ProducerTable, offset: int, *, epoch: int = 0, producer_id: int = 7, is_commit: bool = True) -> object:
    marker = encode_marker(producer_id, epoch, is_commit=is_commit, coordinator_epoch=3, timestamp_ms=1_000)
    return table.end(parse_header(marker), offset, Marker(is_commit, 3))


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
    table.note(transactional(0, producer_id=12), 298)
    table.note(transactional(0, producer_id=11), 299)
    end(table, 300, producer_id=10)
    data = table.encode(301)
    again = ProducerTable.decode(data, 301)
    assert again is not None
    assert table_facts(again) == table_facts(table)
    assert again.transactions() == table.transactions()
    assert again.first_open == 298
    known = dict(again.items())[10]
    assert (known.coordinator_epoch, known.marker_offset, known.first_offset) == (3, 300, -1)
    assert ProducerTable.decode(data, 302) is None
    for at in range(len(data)):
        assert ProducerTable.decode(data[:at], 301) is None
        assert ProducerTable.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 301) is None


def test_snapshots_from_before_there_were_transactions_are_not_taken() -> None:
    body = struct.pack("<4sIqI", b"PSPR", 1, 5, 0)
    assert ProducerTable.decode(body + struct.pack("<I", crc32c.crc32c(body)), 5) is None


def test_a_transactional_batch_opens_a_transaction_and_a_marker_ends_it() -> None:
    table = ProducerTable()
    table.note(transactional(0), 10)
    table.note(transactional(0, producer_id=8), 11)
    table.note(transactional(1), 12)
    assert [tuple(each[:3]) for each in table.transactions()] == [(7, 0, 10), (8, 0, 11)]
    assert end(table, 13, is_commit=False) == EndedTransaction(7, 10, 13, 11, False)
    assert table.first_open == 11
    assert end(table, 14, producer_id=8) == EndedTransaction(8, 11, 14, 15, True)
    assert table.first_open is None
    assert end(table, 15) is None
    assert table.check(transactional(2)) is None, "a new transaction goes on with the sequence"


def test_a_marker_of_a_higher_epoch_forgets_batches_so_that_the_next_one_is_0() -> None:
    table = table_with(0, 1)
    end(table, 200, epoch=4)
    with pytest.raises(ProducerFenced):
        table.check(transactional(2, epoch=3))
    with pytest.raises(OutOfOrderSequence, match="where 0 comes next"):
        table.check(transactional(2, epoch=4))
    assert table.check(transactional(0, epoch=4)) is None


def test_a_batch_repeats_nothing_of_a_transaction_that_has_ended() -> None:
    """A client may give up on a batch that is stored, abort, and number the next transaction's first one like it."""
    table = ProducerTable()
    for sequence in range(7):
        table.note(transactional(sequence), 100 + sequence)
    assert table.check(transactional(6)) == 106
    end(table, 107, is_commit=False)
    for repeated in (0, 6):
        with pytest.raises(OutOfOrderSequence):
            table.check(transactional(repeated))
    assert table.check(transactional(7)) is None
    table.note(transactional(7), 108)
    assert table.check(transactional(7)) == 108


def test_markers_of_those_who_were_replaced_are_refused() -> None:
    table = ProducerTable()
    table.check_marker(7, 0, 0)
    end(table, 200, epoch=4)
    table.check_marker(7, 4, 3)
    with pytest.raises(ProducerFenced):
        table.check_marker(7, 3, 3)
    with pytest.raises(CoordinatorFenced):
        table.check_marker(7, 5, 2)


def test_nothing_outside_a_transaction_is_taken_while_it_is_open() -> None:
    table = ProducerTable()
    table.note(transactional(0), 10)
    with pytest.raises(InvalidTxnState, match="open since offset 10"):
        table.check(header(1))


def test_a_new_epoch_goes_on_with_the_transaction_of_the_old_one() -> None:
    table = ProducerTable()
    table.note(transactional(5), 10)
    table.note(transactional(0, epoch=1), 11)
    assert [tuple(each[:3]) for each in table.transactions()] == [(7, 1, 10)]
    assert table.has_open(7, 1)
    assert not table.has_open(7, 0)


def test_batches_without_a_sequence_are_never_duplicates() -> None:
    table = ProducerTable()
    own = transactional(-1)
    table.note(own, 10)
    assert table.check(own) is None
    assert table.remembered() == {-1}
    table.note(transactional(-1, epoch=2), 11)
    with pytest.raises(ProducerFenced):
        table.check(own)


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    table = ProducerTable()
    table.note(transactional(0), 10)
    for now_ms in (1_000, 2_000, 3_000):
        table.expire(now_ms, silence_ms=100)
    assert table.first_open == 10
    end(table, 11)
    for now_ms in (4_000, 5_000):
        table.expire(now_ms, silence_ms=100)
    assert len(table) == 0


def test_gaps_are_numbered_batches_after_recovery_and_compaction() -> None:
    """A gap counts as its producer's batch, stays while a retry may ask for it, and is no marker of a transaction."""
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for sequence in range(0, 20, 2):
        batch = make_batch(2, producer_id=7, sequence=sequence)
        append(log, memoryview(encode_gap(parse_header(batch))))
    assert (log.end_offset, log.producers.last_sequence_of(7, 0)) == (20, 19)
    repeated = parse_header(make_batch(2, producer_id=7, sequence=16))
    assert log.producers.check(repeated) == 16
    log.roll()
    log.sync()
    compact(log, now_ms=0)
    assert [parse_header(batch).base_offset for batch in read_all(log)] == [10, 12, 14, 16, 18]
    log.close()
    again = open_log(files, COMPACTED)
    assert (again.end_offset, again.producers.last_sequence_of(7, 0)) == (20, 19)
    assert again.producers.check(repeated) == 16
