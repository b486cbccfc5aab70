"""A log that is told what to do while a list remembers what must then be true of it, whatever crash comes."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.unit.storage.samples import DIRECTORY, SMALL, append, make_batch, open_log, read_all

from penstock.records import Codec, parse_header
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.producers import ProducedBatch
from penstock.testing.files import MemoryFiles

RETAINING = replace(SMALL, retention_bytes=3_000)
EXPIRING = replace(SMALL, retention_ms=400)


class Story:
    """Does things to a log and keeps account of what it promised."""

    def __init__(self, files: MemoryFiles, seed: int, config: LogConfig = SMALL) -> None:
        self.files = files
        self.config = config
        self.rng = random.Random(seed)
        self.ever_written: set[bytes] = set()
        self.current: list[bytes] = []  # what the log should hold if no crash comes
        self.acked_end = 0  # everything below was promised
        self.start = 0  # everything below was given up
        self.epoch = 0
        self.sequences = [0, 0, 0]
        self.log: Log | None = None

    @property
    def live(self) -> Log:
        assert self.log is not None
        return self.log

    def open(self) -> None:
        self.log = open_log(self.files, self.config)

    def close(self) -> None:
        self.live.close()
        self.acked_end = self.live.durable_offset

    def append(self, batches: int = 1) -> None:
        for _ in range(batches):
            batch = self._next_batch()
            header = parse_header(batch)
            copy = memoryview(bytearray(batch))
            _assign(copy, self.live.end_offset, self.epoch)
            self.ever_written.add(bytes(copy))  # before the call, which may be cut short
            self.current.append(bytes(copy))
            base = append(self.live, batch, self.epoch)
            assert bytes(batch) == bytes(copy)
            assert base + header.count == self.live.end_offset

    def _next_batch(self) -> memoryview:
        rng = self.rng
        count = rng.randint(1, 4)
        options = {
            "value": rng.randbytes(rng.choice((1, 30, 90, 400))),
            "timestamp": 1_000 + rng.randint(0, 500),
            "codec": rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
        }
        producer = rng.randint(0, 3)
        if producer == 3:
            return make_batch(count, **options)  # type: ignore[arg-type]
        sequence = self.sequences[producer]
        self.sequences[producer] += count
        return make_batch(count, producer_id=producer, sequence=sequence, **options)  # type: ignore[arg-type]

    def sync(self) -> None:
        self.acked_end = self.live.sync()

    def trim(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.live.delete_files(self.live.trim(offset))

    def expire(self) -> None:
        dropped = self.live.expire(now_ms=2_000)
        self.start = max(self.start, self.live.start_offset)
        self.live.delete_files(dropped)

    def truncate(self, offset: int) -> None:
        self.acked_end = min(self.acked_end, offset)
        kept = [batch for batch in self.current if parse_header(batch).next_offset <= offset]
        if kept:
            self.acked_end = min(self.acked_end, parse_header(kept[-1]).next_offset)
        else:
            self.acked_end = 0
        self.current = kept
        self.epoch += 1
        self.live.truncate(offset)
        self.acked_end = self.live.end_offset

    # -- after a crash ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that must hold once the log is open again."""
        log = self.live
        served = read_all(log, self.rng.choice((1, 500, 1 << 20)))
        written = self.ever_written
        assert all(batch in written for batch in served), "nothing appears that was never written"
        have = set(served)
        for batch in self.current:
            header = parse_header(batch)
            if self.start < header.next_offset <= self.acked_end:
                assert batch in have, f"an acked batch at {header.base_offset} is gone"
        assert log.end_offset >= self.acked_end, "offsets of acked records are never given out again"
        assert log.durable_offset == log.end_offset
        self.check_producers(served)

    def check_producers(self, served: list[bytes]) -> None:
        """The table has what the batches on disk call for, and beyond that only what retention removed."""
        table = dict(self.live.producers.items())
        replayed: dict[int, list[ProducedBatch]] = {}
        for batch in served:
            header = parse_header(batch)
            if header.is_idempotent:
                replayed.setdefault(header.producer_id, []).append(
                    ProducedBatch(header.base_sequence, header.last_sequence, header.base_offset)
                )
        for producer_id, batches in replayed.items():
            expected = batches[-5:]
            remembered = list(table[producer_id].batches)
            assert remembered[-len(expected) :] == expected
        served_offsets = {batch.base_offset for batches in replayed.values() for batch in batches}
        for producer in table.values():
            for batch in producer.batches:
                assert batch.base_offset in served_offsets or batch.base_offset < self.live.start_offset

    def go_on(self) -> None:
        """Write, restart and read back: a recovered log is as good as any."""
        log = self.live
        before = read_all(log)
        self.current = [batch for batch in self.current if batch in set(before)]
        first = log.end_offset
        self.append(5)
        self.sync()
        added = self.current[-5:]
        assert read_all(log) == before + added
        assert parse_header(added[0]).base_offset == first
        self.close()
        self.open()
        assert read_all(self.live) == before + added
        assert self.live.bytes_cut == 0
        self.check_producers(before + added)

    def surviving(self) -> list[bytes]:
        """The current batches whose bytes are whole in the files, found without any of the code under test."""
        contents = [
            self.files.open(DIRECTORY / entry.name).read(0, entry.size)
            for entry in self.files.entries(DIRECTORY)
            if entry.name.endswith(".log")
        ]
        return [batch for batch in self.current if any(batch in content for content in contents)]


def _assign(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    batch[:8] = base_offset.to_bytes(8, "big")
    batch[12:16] = leader_epoch.to_bytes(4, "big")
