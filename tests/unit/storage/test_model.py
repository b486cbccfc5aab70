"""A log against a list: any order of operations, restarts and crashes, and the two must agree."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.storage.samples import SMALL, append, make_batch, open_log, producers_of, read_all, table_facts
from tests.unit.storage.sealed import SealedMemoryFiles

from penstock.records import Codec, decode_records, iter_batches, parse_header
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles


class LogAgainstList(RuleBasedStateMachine):
    """The list holds whole batches; everything else is worked out from it each time."""

    log: Log
    make_files: Callable[..., MemoryFiles] = MemoryFiles

    @initialize(seed=st.integers(0, 1 << 30))
    def start(self, seed: int) -> None:
        logging.getLogger("penstock.storage").setLevel(logging.CRITICAL)
        self.files = self.make_files(seed=seed)
        self.log = open_log(self.files)
        self.batches: list[bytes] = []  # everything between the log's start and its end
        self.history: list[bytes] = []  # and what went away at the front: producers are remembered longer
        self.start_offset = 0
        self.end_offset = 0
        self.durable_offset = 0
        self.sequences = [0, 0]

    def teardown(self) -> None:
        logging.getLogger("penstock.storage").setLevel(logging.NOTSET)

    @rule(
        count=st.integers(1, 5),
        size=st.sampled_from([0, 10, 100, 600, 2000]),
        time=st.integers(1_000, 1_100),
        codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
        producer=st.sampled_from([-1, 0, 1]),
    )
    def append(self, count: int, size: int, time: int, codec: Codec, producer: int) -> None:
        sequence = -1
        if producer >= 0:
            sequence = self.sequences[producer]
            self.sequences[producer] += count
        batch = make_batch(
            count, value=bytes(size), timestamp=time, codec=codec, producer_id=producer, sequence=sequence
        )
        assert append(self.log, batch) == self.end_offset
        self.batches.append(bytes(batch))
        self.history.append(bytes(batch))
        self.end_offset += count

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.end_offset
        self.durable_offset = self.end_offset

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(where=st.floats(0, 1), max_bytes=st.sampled_from([0, 1, 150, 700, 5_000]), limit=st.floats(0, 1))
    def read(self, where: float, max_bytes: int, limit: float) -> None:
        offset = self._offset(where)
        boundaries = [self.start_offset, *(parse_header(batch).next_offset for batch in self.batches)]
        limit_offset = boundaries[int(limit * (len(boundaries) - 1))]
        expected = [
            batch
            for batch in self.batches
            if parse_header(batch).next_offset > offset and parse_header(batch).next_offset <= limit_offset
        ]
        found = self.log.read(offset, max_bytes, limit_offset)
        data = b"" if found is None else found.read()
        got = [data[position : position + header.size] for position, header in iter_batches(data)]
        assert got == expected[: len(got)]
        assert bool(got) == bool(expected)
        assert len(got) <= 1 or len(data) <= max_bytes

    @rule(time=st.integers(990, 1_110))
    def find_time(self, time: int) -> None:
        records = [record for batch in self.batches for record in decode_records(batch)]
        expected = next((r.offset for r in records if r.timestamp >= time and r.offset >= self.start_offset), None)
        found = self.log.find_time(time)
        assert (found and found.offset) == expected

    @rule(where=st.floats(0, 1))
    def trim(self, where: float) -> None:
        offset = self._offset(where)
        self.log.delete_files(self.log.trim(offset))
        self._forget_before(offset)

    @rule(now_ms=st.integers(1_000, 1_200), keep_bytes=st.sampled_from([-1, 0, 2_000]))
    def expire(self, now_ms: int, keep_bytes: int) -> None:
        self.log.config = replace(SMALL, retention_ms=100, retention_bytes=keep_bytes)
        self.log.delete_files(self.log.expire(now_ms))
        self.log.config = SMALL
        assert self.log.end_offset == self.end_offset
        self._forget_before(self.log.start_offset)

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        offset = self._offset(where)
        self.log.truncate(offset)
        if offset < self.end_offset:
            self._forget_from(self.log.end_offset)
            self.durable_offset = self.end_offset

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = open_log(self.files)
        self.durable_offset = self.end_offset

    @rule()
    def die(self) -> None:
        self.files.crash(keeps_unsynced=True)
        self.log = open_log(self.files)
        self.durable_offset = self.end_offset

    @precondition(lambda self: self.durable_offset > self.start_offset)
    @rule()
    def lose_power(self) -> None:
        self.files.crash()
        self.log = open_log(self.files)
        served = read_all(self.log)
        acked = [batch for batch in self.batches if parse_header(batch).next_offset <= self.durable_offset]
        assert served[: len(acked)] == acked
        assert all(batch in self.batches for batch in served)
        self.batches = served
        self.history = [batch for batch in self.history if batch in served or _is_before(batch, self.start_offset)]
        self.end_offset = self.durable_offset = self.log.end_offset

    @invariant()
    def agrees(self) -> None:
        log = self.log
        assert (log.start_offset, log.end_offset) == (self.start_offset, self.end_offset)
        assert log.durable_offset <= log.end_offset
        assert read_all(log) == self.batches
        remembered = {facts[0]: facts for facts in table_facts(log.producers)}
        for producer_id, epoch, batches in producers_of(self.batches):
            assert remembered[producer_id][1] == epoch
            assert remembered[producer_id][2][-len(batches) :] == batches

    def _offset(self, where: float) -> int:
        return self.start_offset + int(where * (self.end_offset - self.start_offset))

    def _forget_before(self, offset: int) -> None:
        self.start_offset = offset
        self.batches = [batch for batch in self.batches if not _is_before(batch, offset)]

    def _forget_from(self, offset: int) -> None:
        self.end_offset = offset
        self.batches = [batch for batch in self.batches if _is_before(batch, offset)]
        self.history = [batch for batch in self.history if _is_before(batch, offset)]


def _is_before(batch: bytes, offset: int) -> bool:
    return parse_header(batch).next_offset <= offset


class SealedLogAgainstList(LogAgainstList):
    """The same on an encrypted disk."""

    make_files = SealedMemoryFiles


TestLogAgainstList = LogAgainstList.TestCase
TestSealedLogAgainstList = SealedLogAgainstList.TestCase
TestSealedLogAgainstList.settings = TestLogAgainstList.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
