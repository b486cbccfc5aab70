"""Transactions on a partition: where readers of committed data stop, and what moves them on."""

from __future__ import annotations

import pytest
from tests.unit.broker.test_partition import NOW_MS, Stage

from penstock.errors import CoordinatorFenced, InvalidRecord, NotLeader, OutOfOrderSequence, ProducerFenced
from penstock.records import Record, decode_records, encode_batch, iter_batches, read_marker
from penstock.storage.producers import OpenTransaction


def transactional(
    *values: bytes, producer_id: int = 1, epoch: int = 0, sequence: int = 0, is_transactional: bool = True
) -> memoryview:
    return memoryview(
        encode_batch(
            [Record(at, NOW_MS, None, value) for at, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )


class TransactionStage(Stage):
    def write(self, *values: bytes, is_durable: bool = False, **options: int) -> int:
        batch = transactional(*values, **options)
        return self.partition.append(batch, NOW_MS, is_durable=is_durable).base_offset

    def end(
        self,
        producer_id: int = 1,
        *,
        epoch: int = 0,
        is_commit: bool = True,
        is_durable: bool = False,
        coordinator_epoch: int = 0,
    ) -> int:
        return self.partition.end_transaction(
            producer_id,
            epoch,
            is_commit=is_commit,
            coordinator_epoch=coordinator_epoch,
            now_ms=NOW_MS,
            is_durable=is_durable,
        ).base_offset

    @property
    def stable(self) -> int:
        return self.partition.last_stable_offset

    def committed(self, *, is_committed_only: bool = True) -> list[bytes | None]:
        found = self.partition.read(0, 1 << 20, is_committed_only=is_committed_only)
        if found is None:
            return []
        data = memoryview(found.read())
        return [
            record.value
            for position, header in iter_batches(data)
            if not header.is_control
            for record in decode_records(data[position : position + header.size])
        ]


def test_without_transactions_it_is_the_high_watermark() -> None:
    stage = TransactionStage()
    stage.append(b"a", is_durable=False)
    assert stage.stable == stage.partition.high_watermark == 1
    stage.append(b"b")
    assert stage.stable == 1
    stage.sync()
    assert stage.stable == 2


def test_an_open_transaction_holds_readers_of_committed_data_and_nobody_else() -> None:
    stage = TransactionStage()
    stage.append(b"a", is_durable=False)
    stage.write(b"b")
    stage.append(b"c", is_durable=False)
    assert (stage.stable, stage.partition.high_watermark) == (1, 3)
    assert stage.committed() == [b"a"]
    assert stage.committed(is_committed_only=False) == [b"a", b"b", b"c"]
    assert stage.partition.transactions() == [OpenTransaction(1, 0, 1, NOW_MS)]
    stage.end()
    assert stage.stable == 4
    assert stage.committed() == [b"a", b"b", b"c"]
    assert stage.partition.transactions() == []


def test_the_oldest_of_several_holds() -> None:
    stage = TransactionStage()
    stage.write(b"a", producer_id=1)
    stage.write(b"b", producer_id=2)
    stage.write(b"c", producer_id=3)
    stage.end(2)
    assert stage.stable == 0
    stage.end(1)
    assert stage.stable == 2
    stage.end(3)
    assert stage.stable == 6


def test_a_marker_counts_once_it_is_below_the_high_watermark() -> None:
    stage = TransactionStage()
    stage.write(b"a", is_durable=False)
    stage.append(b"b", is_durable=False)
    stage.end(is_durable=True)
    assert (stage.stable, stage.partition.high_watermark) == (0, 2)
    stage.sync()
    assert (stage.stable, stage.partition.high_watermark) == (3, 3)


def test_of_several_markers_not_yet_synced_the_oldest_transaction_holds() -> None:
    stage = TransactionStage()
    for producer_id in (1, 2, 3):
        stage.write(b"x", producer_id=producer_id)
    stage.end(3, is_durable=True)
    stage.end(1, is_durable=True)
    assert stage.stable == 0
    stage.partition.log.sync()
    stage.end(2, is_durable=True)
    stage.partition.on_synced()  # of the first two markers; the third came later
    assert (stage.stable, stage.partition.high_watermark) == (1, 5)
    stage.sync()
    assert stage.stable == 6


def test_aborted_transactions_are_named_to_whoever_may_meet_them() -> None:
    stage = TransactionStage()
    stage.write(b"a", producer_id=1)  # 0
    stage.write(b"b", producer_id=2)  # 1
    stage.end(2, is_commit=False)  # 2
    stage.end(1, is_commit=False)  # 3
    stage.append(b"c", is_durable=False)  # 4
    named = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in stage.partition.aborted_in(0, 5)]
    assert named == [(1, 0, 3), (2, 1, 2)]
    assert [entry.producer_id for entry in stage.partition.aborted_in(3, 4)] == [1]
    assert [entry.producer_id for entry in stage.partition.aborted_in(0, 1)] == [1]
    assert stage.partition.aborted_in(4, 5) == []
    assert len(stage.partition.aborted_in(0, -1)) == 2


def test_watchers_are_woken_when_a_marker_lets_readers_go_on() -> None:
    stage = TransactionStage()
    stage.write(b"a")
    seen: list[int] = []
    stage.partition.watch(lambda: seen.append(stage.stable))
    stage.append(b"b", is_durable=False)
    stage.end(is_durable=True)
    assert seen == [0]
    stage.sync()
    assert seen == [0, 3]


def test_a_marker_fences_epochs_below_its_own() -> None:
    stage = TransactionStage()
    stage.write(b"a", epoch=3)
    with pytest.raises(ProducerFenced):
        stage.end(epoch=2)
    stage.end(epoch=4, coordinator_epoch=7)
    with pytest.raises(ProducerFenced):
        stage.write(b"b", epoch=3, sequence=1)
    with pytest.raises(OutOfOrderSequence):
        stage.write(b"b", epoch=4, sequence=1)
    assert stage.write(b"b", epoch=4, sequence=0) == 2
    with pytest.raises(CoordinatorFenced):
        stage.end(epoch=4, coordinator_epoch=6)


def test_a_marker_is_written_also_for_a_producer_nobody_knows() -> None:
    stage = TransactionStage()
    assert stage.end(9, epoch=2, is_commit=False) == 0
    assert stage.stable == 1
    assert stage.partition.aborted_in(0, 1) == []
    found = stage.partition.read(0, 1 << 20)
    assert found is not None
    assert not read_marker(found.read()).is_commit
    with pytest.raises(ProducerFenced):
        stage.write(b"late", producer_id=9, epoch=1)


def test_only_a_leader_writes_markers() -> None:
    stage = TransactionStage()
    stage.partition.resign()
    with pytest.raises(NotLeader):
        stage.end()


def test_a_batch_whose_transaction_is_not_open_here_is_told_from_one_whose_is() -> None:
    stage = TransactionStage()
    first, second = transactional(b"a"), transactional(b"b", sequence=1)
    assert stage.partition.lacks_transaction(first)
    stage.write(b"a")
    assert not stage.partition.lacks_transaction(second)
    assert stage.partition.lacks_transaction(transactional(b"b", epoch=1))
    assert not stage.partition.lacks_transaction(transactional(b"b", producer_id=5, is_transactional=False))
    assert not stage.partition.lacks_transaction(memoryview(b"short"))
    stage.end()
    assert stage.partition.lacks_transaction(second)


def test_only_the_broker_may_write_into_a_transaction_without_a_sequence() -> None:
    stage = TransactionStage()
    batch = transactional(b"a", sequence=-1)
    with pytest.raises(InvalidRecord):
        stage.partition.append(batch, NOW_MS, is_durable=False)
    with pytest.raises(InvalidRecord):
        stage.partition.append_from_client(batch, NOW_MS, is_durable=False)
    for offset in range(2):
        placed = stage.partition.append(batch, NOW_MS, is_durable=False, is_internal=True)
        assert placed.base_offset == offset, "twice the same bytes are twice stored"
    assert stage.stable == 0
    stage.end()
    assert stage.stable == 3


def test_retention_past_the_beginning_of_a_transaction_leaves_it_open() -> None:
    stage = TransactionStage()
    stage.write(b"a", b"b")
    stage.append(b"c", is_durable=False)
    stage.partition.log.trim(1)
    assert stage.stable == 1
    assert stage.partition.read(1, 1 << 20, is_committed_only=True) is None
    stage.partition.log.trim(3)
    assert stage.stable == 3
    stage.append(b"d", is_durable=False)
    assert stage.stable == 3
    stage.end(is_commit=False)
    assert stage.stable == 5
    assert [entry.first_offset for entry in stage.partition.aborted_in(3, 5)] == [0]
