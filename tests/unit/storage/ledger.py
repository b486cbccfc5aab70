"""A partition with transactions, and a dumb twin: the list of all batches, worked through from the start each time.

Whatever compaction removes stays in the twin, so what is compared is what matters: what readers of committed data see,
where they stop, and what is known of each producer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.unit.storage.samples import COMPACTED, DIRECTORY, open_log, read_all

from penstock.consensus.topic_config import TopicSettings
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats
from penstock.records import BatchHeader, Record, decode_records, encode_batch, iter_batches, parse_header, read_marker
from penstock.storage.aborted import ABORTED_FILE
from penstock.storage.compaction import plan_compaction
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

PRODUCERS = (1, 2, 3)
KEYS = 6
NOW_MS = 1_000


class ManualSyncer:
    def request(self, log: Log) -> None:
        """Syncs come when the story says so."""


@dataclass
class TwinProducer:
    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    first_offset: int = -1
    coordinator_epoch: int = -1
    marker_offset: int = -1


@dataclass
class Twin:
    """What a list of batches amounts to."""

    producers: dict[int, TwinProducer] = field(default_factory=dict)
    ended: list[tuple[int, int, int, bool]] = field(default_factory=list)  # producer, first, marker, is commit
    voided: set[int] = field(default_factory=set)  # base offsets of aborted batches
    undecided: dict[int, list[int]] = field(default_factory=dict)  # base offsets by producer

    def take(self, batch: bytes) -> None:
        header = parse_header(batch)
        if header.producer_id < 0:
            return
        producer = self.producers.setdefault(header.producer_id, TwinProducer(header.producer_epoch))
        if header.producer_epoch > producer.epoch:
            producer.epoch, producer.batches = header.producer_epoch, []
        open_batches = self.undecided.setdefault(header.producer_id, [])
        if header.is_control:
            marker = read_marker(batch)
            producer.coordinator_epoch, producer.marker_offset = marker.coordinator_epoch, header.base_offset
            if open_batches:
                self.ended.append((header.producer_id, open_batches[0], header.base_offset, marker.is_commit))
            if not marker.is_commit:
                self.voided |= set(open_batches)
            open_batches.clear()
            producer.first_offset = -1
            return
        if header.base_sequence >= 0:
            row = (header.base_sequence, header.last_sequence, header.base_offset)
            producer.batches = [*producer.batches, row][-5:]
        if header.is_transactional:
            open_batches.append(header.base_offset)
            producer.first_offset = open_batches[0]

    def last_stable_offset(self, high_watermark: int) -> int:
        firsts = [batches[0] for batches in self.undecided.values() if batches]
        firsts += [first for _, first, marker, _ in self.ended if marker >= high_watermark]
        return min([high_watermark, *firsts])


def work_through(batches: list[bytes]) -> Twin:
    twin = Twin()
    for batch in batches:
        twin.take(batch)
    return twin


class Ledger:
    """Does things to a partition and remembers every batch."""

    def __init__(self, files: MemoryFiles, seed: int) -> None:
        self.files = files
        self.rng = random.Random(seed)
        self.history: list[bytes] = []  # all that is in the log, or was before compaction or retention came
        self.durable = 0
        self.is_trimmed = False
        self.is_compacted = False
        self.coordinator_epoch = 0
        self.open()

    def open(self) -> None:
        self.log = open_log(self.files, COMPACTED)
        self._attach()

    def _attach(self) -> None:
        self.partition = Partition(
            TopicPartition("orders", 0), self.log, TopicSettings(log=COMPACTED), TopicStats(), ManualSyncer()
        )
        self.partition.lead(self.log.epochs.latest + 1)
        self.durable = self.log.durable_offset

    @property
    def twin(self) -> Twin:
        return work_through(self.history)

    # -- writing ------------------------------------------------------------------------------------------------------

    def next_batch(self, producer_id: int, count: int, *, is_internal: bool = False) -> bytearray:
        known = self.twin.producers.get(producer_id)
        sequence = known.batches[-1][1] + 1 if known is not None and known.batches else 0
        records = [
            Record(
                number, NOW_MS, b"key %d" % self.rng.randrange(KEYS), self.rng.randbytes(self.rng.choice((3, 40, 300)))
            )
            for number in range(count)
        ]
        if producer_id < 0:
            return encode_batch(records)
        return encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=0 if known is None else known.epoch,
            base_sequence=-1 if is_internal else sequence,
            is_transactional=True,
        )

    def append(self, producer_id: int, count: int, *, is_durable: bool = True, is_internal: bool = False) -> None:
        batch = memoryview(self.next_batch(producer_id, count, is_internal=is_internal))
        placed = bytearray(batch)
        _place(placed, self.log.end_offset, self.partition.leader_epoch)
        self.history.append(bytes(placed))  # before the call, which may be cut short
        done = self.partition.append(batch, NOW_MS, is_durable=is_durable, is_internal=is_internal)
        assert bytes(batch) == bytes(placed)
        assert done.next_offset == self.log.end_offset

    def end(self, producer_id: int, *, is_commit: bool, raises_epoch: bool = False, is_durable: bool = True) -> None:
        known = self.twin.producers.get(producer_id)
        epoch = (0 if known is None else known.epoch) + raises_epoch
        self.coordinator_epoch += self.rng.random() < 0.1
        expected = encode_batch(
            [
                Record(
                    0,
                    NOW_MS,
                    bytes((0, 0, 0, is_commit)),
                    bytes((0, 0)) + self.coordinator_epoch.to_bytes(4, "big"),
                )
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            is_transactional=True,
            is_control=True,
        )
        _place(expected, self.log.end_offset, self.partition.leader_epoch)
        self.history.append(bytes(expected))
        self.partition.end_transaction(
            producer_id,
            epoch,
            is_commit=is_commit,
            coordinator_epoch=self.coordinator_epoch,
            now_ms=NOW_MS,
            is_durable=is_durable,
        )

    def sync(self) -> None:
        self.durable = self.log.sync()
        self.partition.on_synced()

    def roll(self) -> None:
        self.log.roll()

    def trim(self, offset: int) -> None:
        self.is_trimmed = self.is_trimmed or offset > self.log.start_offset
        self.log.delete_files(self.log.trim(offset))

    def truncate(self, offset: int) -> None:
        if offset >= self.log.end_offset:
            return
        self.durable = min(self.durable, offset)
        self.log.truncate(offset)
        self.history = [batch for batch in self.history if parse_header(batch).next_offset <= self.log.end_offset]
        self._attach()

    def compact(self) -> None:
        compaction = plan_compaction(self.log, 10_000, limit_offset=self.partition.last_stable_offset)
        if compaction is None:
            return
        self.is_compacted = True
        compaction.run()
        compaction.apply()
        compaction.finish()

    # -- stopping and starting ----------------------------------------------------------------------------------------

    def restart(self) -> None:
        self.log.close()
        self.open()

    def lose_files(self, *, aborted: bool, producers: bool) -> None:
        for entry in self.files.entries(DIRECTORY):
            if (aborted and entry.name == ABORTED_FILE) or (producers and entry.name.endswith(".producers")):
                self.files.flip_bit(DIRECTORY / entry.name, self.rng.randrange(entry.size))

    def recover(self, *, keeps_unsynced: bool) -> None:
        """Open again after a crash, and let the twin lose what the log lost: nothing that was durable."""
        durable = self.durable
        self.files.crash(keeps_unsynced=keeps_unsynced)
        self.open()
        there = {parse_header(batch).base_offset for batch in read_all(self.log)}
        self.history = [
            batch
            for batch in self.history
            if parse_header(batch).next_offset <= durable or parse_header(batch).base_offset in there
        ]

    # -- comparing ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that the partition says must follow from the list of batches."""
        self._check_stable()
        self._check_producers()
        self._check_index()
        self._check_readers()

    def _check_stable(self) -> None:
        high_watermark, start = self.partition.high_watermark, self.log.start_offset
        stable = self.partition.last_stable_offset
        expected = max(self.twin.last_stable_offset(high_watermark), min(start, high_watermark))
        if not self.is_trimmed:
            assert stable == expected
        else:  # the beginning of a transaction may be gone, and after a scan be unknown
            left = [batch for batch in self.history if parse_header(batch).next_offset > start]
            assert expected <= stable <= max(work_through(left).last_stable_offset(high_watermark), start)

    def _check_producers(self) -> None:
        table = self.log.producers
        if self.is_trimmed:
            return
        twin = self.twin.producers
        known = dict(table.items())
        assert known.keys() == twin.keys()
        for producer_id, expected in twin.items():
            producer = known[producer_id]
            assert (producer.epoch, producer.first_offset) == (expected.epoch, expected.first_offset)
            assert [tuple(batch) for batch in producer.batches] == expected.batches
            assert producer.coordinator_epoch == expected.coordinator_epoch
            assert producer.marker_offset == expected.marker_offset
        firsts = [(producer.first_offset, number) for number, producer in twin.items() if producer.first_offset >= 0]
        assert [(each.first_offset, each.producer_id) for each in self.partition.transactions()] == sorted(firsts)

    def _check_index(self) -> None:
        entries = self.log.aborted.items()
        assert [entry.last_offset for entry in entries] == sorted({entry.last_offset for entry in entries})
        aborted = {(producer, marker): first for producer, first, marker, is_commit in self.twin.ended if not is_commit}
        for entry in entries:
            assert entry.last_offset >= self.log.start_offset
            first = aborted.pop((entry.producer_id, entry.last_offset))
            assert entry.first_offset == first or (self.is_trimmed or self.is_compacted)
        if not self.is_compacted and not self.is_trimmed:
            assert not aborted
        first, end = sorted(self.rng.choices(range(self.log.end_offset + 2), k=2))
        expected = [entry for entry in entries if entry.last_offset >= first and entry.first_offset < end]
        if not self.is_trimmed:
            assert self.log.aborted.between(first, end) == expected

    def _check_readers(self) -> None:
        stable, start = self.partition.last_stable_offset, self.log.start_offset
        voided = self.twin.voided
        committed: dict[int, Record] = {}
        for batch in self.history:
            header = parse_header(batch)
            if not header.is_control and header.base_offset not in voided and header.next_offset <= stable:
                committed |= {record.offset: record for record in decode_records(batch) if record.offset >= start}
        seen = read_committed(self.partition, self.rng.choice((1, 200, 1 << 20)))
        assert all(committed.get(record.offset) == record for record in seen), "only what was committed is seen"
        if not self.is_compacted:
            assert len(seen) == len(committed)
        last = {record.key: record.offset for _, record in sorted(committed.items())}
        assert set(last.values()) <= {record.offset for record in seen}


def read_committed(partition: Partition, max_bytes: int) -> list[Record]:
    """What a consumer makes of fetches: it leaves a producer out from the first offset it is told until its marker."""
    records: list[Record] = []
    offset = partition.log.start_offset
    while (found := partition.read(offset, max_bytes, is_committed_only=True)) is not None:
        told = partition.aborted_in(offset, found.next_offset)
        assert told == sorted(told, key=lambda entry: entry.first_offset)
        waiting = [(entry.first_offset, entry.producer_id) for entry in told]
        left_out: set[int] = set()
        data = memoryview(found.read())
        for position, header in iter_batches(data):
            while waiting and waiting[0][0] <= header.last_offset:
                left_out.add(waiting.pop(0)[1])
            batch = data[position : position + header.size]
            if header.is_control:
                _meet_marker(batch, header, left_out)
            elif not (header.is_transactional and header.producer_id in left_out):
                records += [record for record in decode_records(batch) if record.offset >= offset]
        offset = header.next_offset
    return records


def _meet_marker(batch: memoryview, header: BatchHeader, left_out: set[int]) -> None:
    if not read_marker(batch).is_commit:
        left_out.discard(header.producer_id)


def _place(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    batch[:8] = base_offset.to_bytes(8, "big")
    batch[12:16] = leader_epoch.to_bytes(4, "big")
