"""Housekeeping on a real broker: retention, compaction and background syncs take effect while the node runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import Fsync, StorageSettings
from penstock.consensus.controller import TopicSpec
from penstock.errors import StorageError
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.partition import Partition
from penstock.records import Record, decode_records, encode_batch

Story = Callable[[Broker], Coroutine[None, None, None]]


def tell(directory: Path, story: Story, **options: object) -> None:
    async def run() -> None:
        partitions = PartitionsConfig(storage=StorageSettings(**options))  # type: ignore[arg-type]
        config = BrokerConfig(node_id=1, data_dir=directory / "data", partitions=partitions)
        broker = Broker(config, alone(1))
        await broker.start()
        try:
            async with asyncio.timeout(90):
                await story(broker)
        finally:
            await broker.close()

    asyncio.run(run())


async def topic(broker: Broker, **configs: str) -> Partition:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    await broker.create_topic(TopicSpec(name="t", partitions=1, configs=settings))
    return broker.partition("t", 0)


def write(partition: Partition, clock_ms: int, key: bytes, value: bytes | None) -> None:
    batch = encode_batch([Record(0, clock_ms, key, value)])
    partition.append(memoryview(batch), clock_ms, is_durable=False)


def values(partition: Partition) -> dict[bytes | None, bytes | None]:
    return {
        record.key: record.value
        for batch in partition.log.batches(partition.log.start_offset)
        for record in decode_records(batch.read())
    }


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def test_old_segments_go_while_the_node_runs(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        partition = await topic(broker, retention_ms="1", segment_bytes="2048")
        for _ in range(50):
            write(partition, broker.clock.now_ms() - 60_000, b"k", b"x" * 200)
        await until(lambda: partition.log.start_offset == 50)
        assert partition.log.size_bytes == 0

    tell(tmp_path, story, retention_check_interval_ms=30)


def test_retention_waits_for_its_own_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(broker: Broker) -> None:
        partition = await topic(broker, retention_ms="1", segment_bytes="2048", cleanup_policy="compact,delete")
        for _ in range(50):
            write(partition, broker.clock.now_ms() - 60_000, b"k", b"x" * 200)
        await broker._housekeeping.tidy_round(retires=False)
        assert partition.log.start_offset == 0
        with caplog.at_level("INFO"):
            await broker._housekeeping.tidy_round()
        assert partition.log.start_offset == 50
        assert "Retention removed" in caplog.text

    tell(tmp_path, story, housekeeping_interval_ms=3_600_000)


def test_a_topic_that_is_to_be_flushed_is_synced_although_the_node_leaves_that_to_the_system(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        by_count = await topic(broker, flush_messages="3")
        await broker.create_topic(TopicSpec(name="timed", partitions=1, configs={"flush.ms": "20"}))
        await broker.create_topic(TopicSpec(name="never", partitions=1))
        by_time, never = broker.partition("timed", 0), broker.partition("never", 0)
        for partition in (by_count, by_time, never):
            write(partition, 1, b"k", b"v")
        await until(lambda: by_time.log.durable_offset == 1)
        assert by_count.log.durable_offset == 0
        for _ in range(2):
            write(by_count, 1, b"k", b"v")
        await until(lambda: by_count.log.durable_offset == 3)
        assert never.log.durable_offset == 0

    tell(tmp_path, story, fsync=Fsync.NONE)


def test_a_compacted_topic_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        partition = await topic(broker, cleanup_policy="compact", segment_bytes="2048", min_cleanable_dirty_ratio="0")
        for number in range(200):
            write(partition, broker.clock.now_ms(), b"key-%d" % (number % 5), b"%03d" % number + b"x" * 100)
        before = partition.log.size_bytes
        await until(lambda: partition.log.size_bytes < before / 5)
        found = values(partition)
        assert {key: (value or b"")[:3] for key, value in found.items()} == {
            b"key-%d" % index: b"%03d" % (195 + index) for index in range(5)
        }

    tell(tmp_path, story, housekeeping_interval_ms=30, fsync_interval_ms=20)


def test_records_nobody_waits_for_are_synced_all_the_same(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        partition = await topic(broker)
        write(partition, broker.clock.now_ms(), b"k", b"v")
        assert partition.log.durable_offset == 0
        await until(lambda: partition.log.durable_offset == 1)

    tell(tmp_path, story, fsync_interval_ms=20)


def test_a_deleted_topic_leaves_nothing_behind_and_its_name_can_be_used_again(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        partition = await topic(broker)
        write(partition, 1, b"k", b"old")
        await broker.delete_topic("t")
        assert not (tmp_path / "data" / "logs" / "t").exists()
        again = await topic(broker)
        assert again.log.end_offset == 0

    tell(tmp_path, story)


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        partition = await topic(broker, retention_ms="-1")
        for number in range(10):
            write(partition, 1, b"%d" % number, b"v")

    async def second(broker: Broker) -> None:
        partition = broker.partition("t", 0)
        assert len(values(partition)) == 10
        assert partition.leader_epoch > 0  # a new reign
        assert partition.high_watermark == 10
        assert broker.topic_settings("t").log.retention_ms == -1

    tell(tmp_path, first)
    tell(tmp_path, second)


def test_nothing_is_kept_of_a_deleted_topic(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        gone = await topic(broker)
        write(gone, 1, b"key", b"value")
        await broker.delete_topic("t")
        await until(lambda: gone.log.is_released)
        assert not gone.log.segments[0].has_file
        async with broker.replicas.upkeep(gone):  # somebody comes late
            pass
        assert gone not in broker.replicas._upkeep
        again = await topic(broker)
        write(again, 1, b"key", b"again")
        with pytest.raises(StorageError):
            gone.log.read(0, 1 << 20, 1)
        assert values(again) == {b"key": b"again"}

    tell(tmp_path, story)


def test_a_bug_in_housekeeping_ends_nothing_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody expected is counted and named; the task goes on, for this partition too once it can."""

    async def story(broker: Broker) -> None:
        partition = await topic(broker)
        with monkeypatch.context() as patch:
            patch.setattr(type(partition.log), "roll_aged", lambda *_: 1 // 0)
            patch.setattr(type(broker._housekeeping), "sync_round", lambda *_: 1 // 0)
            while not {"housekeeping", "background syncs"} <= set(broker.supervision.failures):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert {name for name, _ in broker.supervision.troubles()} == {"housekeeping", "background syncs"}
        goes_on = asyncio.Event()
        monkeypatch.setattr(type(broker._housekeeping), "sync_round", lambda *_: goes_on.set())
        await goes_on.wait()

    tell(tmp_path, story, housekeeping_interval_ms=20, fsync_interval_ms=20)
