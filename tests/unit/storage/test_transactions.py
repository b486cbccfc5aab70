"""Transactions in a log against a list of batches: any order of operations, restarts, losses, a crash at any step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.storage.ledger import PRODUCERS, Ledger
from tests.unit.storage.sealed import SealedMemoryFiles

from penstock.errors import OutOfOrderSequence, ProducerFenced
from penstock.records import encode_batch, parse_header
from penstock.records.batch import Record
from penstock.testing.files import Crash, MemoryFiles

STEPS_TRIED = 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("penstock.storage")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


class TransactionsAgainstList(RuleBasedStateMachine):
    ledger: Ledger
    make_files: Callable[..., MemoryFiles] = MemoryFiles

    @initialize(seed=st.integers(0, 1 << 30))
    def start(self, seed: int) -> None:
        self.ledger = Ledger(self.make_files(seed=seed), seed)

    @rule(
        producer=st.sampled_from((-1, *PRODUCERS)),
        count=st.integers(1, 3),
        is_durable=st.booleans(),
        is_internal=st.booleans(),
    )
    def append(self, producer: int, count: int, is_durable: bool, is_internal: bool) -> None:
        self.ledger.append(producer, count, is_durable=is_durable, is_internal=is_internal)

    @rule(
        producer=st.sampled_from(PRODUCERS),
        is_commit=st.booleans(),
        raises_epoch=st.booleans(),
        is_durable=st.booleans(),
    )
    def end(self, producer: int, is_commit: bool, raises_epoch: bool, is_durable: bool) -> None:
        self.ledger.end(producer, is_commit=is_commit, raises_epoch=raises_epoch, is_durable=is_durable)

    @rule(producer=st.sampled_from(PRODUCERS))
    def retry(self, producer: int) -> None:
        """A batch that is stored already is answered with its offset, unless its transaction has ended."""
        known = self.ledger.twin.producers.get(producer)
        if known is None or not known.batches or self.ledger.is_trimmed:
            return
        first, last, base_offset = known.batches[0]
        end = self.ledger.log.end_offset
        records = [Record(number, 1_000, b"key", b"value") for number in range(last - first + 1)]
        again = encode_batch(
            records, producer_id=producer, producer_epoch=known.epoch, base_sequence=first, is_transactional=True
        )
        if base_offset < known.marker_offset:
            with pytest.raises(OutOfOrderSequence):
                self.ledger.partition.append(memoryview(again), 1_000, is_durable=False)
        else:
            done = self.ledger.partition.append(memoryview(again), 1_000, is_durable=False)
            assert done.base_offset == base_offset
        assert self.ledger.log.end_offset == end

    @rule(producer=st.sampled_from(PRODUCERS))
    def come_late(self, producer: int) -> None:
        """What an older epoch sends is refused, and so is a gap."""
        known = self.ledger.twin.producers.get(producer)
        if known is None or self.ledger.is_trimmed:
            return
        partition = self.ledger.partition
        if known.epoch:
            with pytest.raises(ProducerFenced):
                partition.end_transaction(
                    producer, known.epoch - 1, is_commit=True, coordinator_epoch=99, now_ms=1, is_durable=False
                )
        batch = memoryview(self.ledger.next_batch(producer, 1))
        ahead = encode_batch(
            [Record(0, 1, b"k", b"v")],
            producer_id=producer,
            producer_epoch=known.epoch,
            base_sequence=parse_header(batch).base_sequence + 1,
            is_transactional=True,
        )
        with pytest.raises(OutOfOrderSequence):
            partition.append(memoryview(ahead), 1, is_durable=False)
        assert partition.lacks_transaction(batch) == (known.first_offset < 0)

    @rule()
    def sync(self) -> None:
        self.ledger.sync()

    @rule()
    def roll(self) -> None:
        self.ledger.roll()

    @rule()
    def compact(self) -> None:
        self.ledger.compact()

    @rule(where=st.floats(0, 1))
    def trim(self, where: float) -> None:
        start, end = self.ledger.log.start_offset, self.ledger.partition.high_watermark
        self.ledger.trim(start + int(where * max(end - start, 0) * 0.5))

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        """A follower never cuts below the high watermark."""
        first, end = self.ledger.partition.high_watermark, self.ledger.log.end_offset
        self.ledger.truncate(max(self.ledger.log.start_offset, first + int(where * (end - first))))

    @rule()
    def restart(self) -> None:
        self.ledger.restart()

    @rule(aborted=st.booleans(), producers=st.booleans(), is_clean=st.booleans())
    def restart_after_damage(self, aborted: bool, producers: bool, is_clean: bool) -> None:
        if is_clean:
            self.ledger.log.close()
        self.ledger.lose_files(aborted=aborted, producers=producers)
        self.ledger.recover(keeps_unsynced=True)

    @rule(keeps_unsynced=st.booleans())
    def crash(self, keeps_unsynced: bool) -> None:
        self.ledger.recover(keeps_unsynced=keeps_unsynced)

    @invariant()
    def agrees(self) -> None:
        self.ledger.check()


class SealedTransactionsAgainstList(TransactionsAgainstList):
    """The same on an encrypted disk."""

    make_files = SealedMemoryFiles


TestTransactionsAgainstList = TransactionsAgainstList.TestCase
TestSealedTransactionsAgainstList = SealedTransactionsAgainstList.TestCase
TestSealedTransactionsAgainstList.settings = TestTransactionsAgainstList.settings = settings(
    max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def tell(ledger: Ledger) -> None:
    """Transactions that overlap, across segments, syncs, compaction, a restart and a truncation."""
    for turn in range(3):
        ledger.append(1, 2)
        ledger.append(-1, 1)
        ledger.append(2, 1, is_durable=False)
        ledger.end(1, is_commit=turn % 2 == 0, raises_epoch=turn == 1)
        ledger.append(3, 3, is_internal=True)
        ledger.sync()
        ledger.append(1, 1)
        ledger.end(2, is_commit=turn % 2 == 1)
        ledger.roll()
        ledger.end(1, is_commit=False, is_durable=False)
        ledger.append(1, 2)
        ledger.sync()
        ledger.end(3, is_commit=turn != 1)
        ledger.end(1, is_commit=True)
        ledger.roll()
        ledger.sync()
        ledger.compact()
    ledger.append(1, 1)
    ledger.append(2, 2)
    ledger.restart()
    ledger.end(1, is_commit=False)
    ledger.roll()
    ledger.append(3, 1)
    ledger.truncate(ledger.log.end_offset - 1)
    ledger.append(1, 1)
    ledger.end(2, is_commit=True)
    ledger.sync()


def steps_of_story() -> int:
    files = MemoryFiles()
    ledger = Ledger(files, seed=1)
    tell(ledger)
    ledger.check()
    return files.steps


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_crash_at_any_step_keeps_transactions_whole(stride: int) -> None:
    steps = steps_of_story()
    assert steps > 150
    for step in range(1, steps + 1, stride):
        for seed in range(1 + STEPS_TRIED // steps):
            crash_at(step, seed)


def crash_at(step: int, seed: int) -> None:
    files = MemoryFiles(seed=1_000 * step + seed)
    files.crash_at = step
    try:
        ledger = Ledger(files, seed=1)
    except Crash:
        return  # before there was anything to lose
    try:
        tell(ledger)
    except Crash as crash:
        happened = f"step {step} ({crash}), seed {seed}"
    else:
        return
    try:
        ledger.recover(keeps_unsynced=seed % 3 == 2)
        ledger.check()
        ledger.append(1, 1)
        ledger.end(1, is_commit=seed % 2 == 0)
        ledger.sync()
        ledger.check()
        ledger.restart()
        ledger.check()
    except AssertionError as error:
        raise AssertionError(f"{error} after {happened}") from error
