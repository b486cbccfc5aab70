"""Batches that are slow to append as they came are prepared in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.consensus.topic_config import TopicSettings, resolve
from penstock.errors import CorruptRecords, InvalidRecord, InvalidRequest, RequestTimedOut, UnknownPartition
from penstock.features.messages import delayed_batches as preparation
from penstock.features.messages.delayed_batches import DelayedBatch, DelayedBatches, find_slow, prepare
from penstock.features.schedules.messages import PlacedSchedule, ScheduleRequest
from penstock.features.schedules.records import StoredSchedule
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats
from penstock.records import Codec, Record, decode_records, encode_batch, parse_header
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles


class Idle:
    def request(self, log: Log) -> None: ...


class NoSchedules:
    def check(self, schedules: Sequence[ScheduleRequest]) -> None: ...

    async def add(self, schedules: Sequence[ScheduleRequest]) -> list[PlacedSchedule]:
        raise AssertionError(schedules)

    async def show(self, schedule_id: str) -> StoredSchedule:
        raise AssertionError(schedule_id)


def leader(**configs: str) -> Partition:
    settings = resolve(TopicSettings(), {name.replace("_", "."): value for name, value in configs.items()}, 1)
    log = Log.open(MemoryFiles(seed=1), Path("/logs/t/0"), LogConfig())
    partition = Partition(TopicPartition("t", 0), log, settings, TopicStats(), Idle())
    partition.lead(0)
    return partition


def batch(size: int, codec: Codec = Codec.NONE) -> memoryview:
    return memoryview(encode_batch([Record(0, 1, b"k", os.urandom(size))], codec=codec))


def find_in(partition: Partition, *batches: memoryview | None) -> list[bool]:
    def find(topic: str, index: int) -> Partition:
        if topic != "t":
            raise UnknownPartition("There is none.")
        return partition

    found = find_slow(find, [("t", list(enumerate(batches))), ("gone", [(0, batch(9_000))])], now_ms=1)
    return [("t", index) in found for index in range(len(batches))]


def test_only_large_batches_with_another_codec_take_a_thread() -> None:
    partition = leader(compression_type="zstd")
    assert find_in(partition, batch(9_000), batch(100), batch(9_000, Codec.ZSTD), None) == [True, False, False, False]
    partition.resign()
    assert find_in(partition, batch(9_000)) == [False], "its append is refused anyway"


@pytest.mark.parametrize("configs", [{"cleanup_policy": "compact"}, {"delay_headers_enable": "true"}])
def test_batches_that_have_to_be_decoded_take_a_thread_if_they_are_large_or_compressed(configs: dict[str, str]) -> None:
    partition, nonsense = leader(**configs), memoryview(bytearray(os.urandom(9_000)))
    nonsense[16] = 0  # no version of batches
    found = find_in(partition, batch(100), batch(9_000), batch(100, Codec.ZSTD), batch(90_000), nonsense, nonsense[:20])
    assert found == [False, False, True, True, False, False]
    assert find_in(partition, batch(2_000_000, Codec.ZSTD)) == [False], "larger than the topic takes"


def test_batches_come_out_with_the_topics_codec_and_a_damaged_one_with_its_error() -> None:
    partition, sound, damaged = leader(compression_type="zstd"), batch(9_000), batch(9_000)
    damaged[-1] ^= 1
    slow = {("t", 0): partition, ("t", 1): partition}
    small = batch(10)
    batches, findings = asyncio.run(prepare([("t", [(0, sound), (1, damaged), (2, small)])], slow, 1))
    ((name, stored),) = [(name, dict(partitions)) for name, partitions in batches]
    recompressed = stored[0]
    assert recompressed is not None
    assert parse_header(recompressed).codec is Codec.ZSTD
    assert [each.value for each in decode_records(recompressed)] == [each.value for each in decode_records(sound)]
    assert (name, stored[1], stored[2]) == ("t", damaged, small)
    assert findings["t", 0] is None
    assert isinstance(findings["t", 1], CorruptRecords)
    assert ("t", 2) not in findings


def test_of_a_partition_that_is_named_twice_no_batch_is_let_through_unchecked() -> None:
    partition = leader(cleanup_policy="compact")
    keyless = memoryview(encode_batch([Record(0, 1, None, b"v")], codec=Codec.ZSTD))
    for named in ([keyless, batch(10)], [batch(10), keyless]):
        _, findings = asyncio.run(prepare([("t", [(0, each) for each in named])], {("t", 0): partition}, 1))
        assert isinstance(findings["t", 0], InvalidRecord)


def delayed(sequence: int) -> memoryview:
    headers = (("penstock-delay-ms", b"3600000"),)
    records = [Record(0, 1, b"k", b"now"), Record(1, 1, b"k", b"later", headers)]
    return memoryview(encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence))


def test_a_batch_that_is_appended_meanwhile_is_looked_into_again(monkeypatch: pytest.MonkeyPatch) -> None:
    partition, prepare_now, seen = leader(delay_headers_enable="true"), preparation._prepare_now, []

    def overtaken(*arguments: object) -> object:
        found = prepare_now(*arguments)  # type: ignore[arg-type]
        if not seen:
            partition.append(memoryview(bytearray(delayed(0))), 1, is_durable=False)
        seen.append(found)
        return found

    monkeypatch.setattr(preparation, "_prepare_now", overtaken)
    _, findings = asyncio.run(prepare([("t", [(0, delayed(0))])], {("t", 0): partition}, 1))
    assert len(seen) == 2
    assert findings["t", 0] is None, "it was appended whole, so nothing of it is left to schedule"


def test_a_batch_that_is_appended_after_it_was_prepared_is_refused_for_now() -> None:
    partition = leader(delay_headers_enable="true")
    batches = [("t", [(0, delayed(0))])]
    _, findings = asyncio.run(prepare(batches, {("t", 0): partition}, 1))
    assert isinstance(findings["t", 0], DelayedBatch)
    delayed_batches = DelayedBatches(lambda *_: partition, NoSchedules())
    found, refused = delayed_batches.find(batches, 1, is_acks_all=False, findings=findings)
    assert (list(found), refused) == ([("t", 0)], {})
    partition.append(memoryview(bytearray(delayed(0))), 1, is_durable=False)
    found, refused = delayed_batches.find(batches, 1, is_acks_all=False, findings=findings)
    assert (found, type(refused["t", 0])) == ({}, RequestTimedOut)


@pytest.mark.parametrize("named", [[delayed(0), delayed(2)], [delayed(0), batch(10)], [batch(10), delayed(0)]])
def test_delayed_records_are_refused_in_a_request_that_names_their_partition_twice(named: list[memoryview]) -> None:
    partition = leader(delay_headers_enable="true")
    batches = [("t", [(0, each) for each in named])]
    delayed_batches = DelayedBatches(lambda *_: partition, NoSchedules())
    _, prepared = asyncio.run(prepare(batches, {("t", 0): partition}, 1))
    for findings in ({}, prepared):
        found, refused = delayed_batches.find(batches, 1, is_acks_all=False, findings=findings)
        assert found == {}, "what is found of one batch would be taken for the other"
        assert isinstance(refused["t", 0], InvalidRequest), "it would be the same again, so no client should retry it"
