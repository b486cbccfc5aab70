"""The log of a shard: written with anchors, read in whole and in parts, cut, and never in doubt."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.support.schedule_house import HOUR_MS, ScheduleHouse
from tests.support.virtual_time import run

from penstock.errors import DiskFull
from penstock.features.schedules.leading.shard import ScheduleShard, carry, cut
from penstock.features.schedules.messages import ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import (
    Put,
    ScheduleChange,
    ScheduledMessage,
    StoredSchedule,
    events_of,
    pick,
    to_record,
)
from penstock.records import Codec, Record, decode_records, encode_batch
from penstock.testing.files import MemoryFiles


def batch(count: int, *, codec: Codec = Codec.NONE, spread_ms: int = 0) -> memoryview:
    changes = [
        ScheduleChange(Put(StoredSchedule(f"s{at}", 5_000 + at, ScheduledMessage("t", 0, None, b"x" * at))))
        for at in range(count)
    ]
    records = [to_record(change, at, 1_000 + at * spread_ms, at * 3) for at, change in enumerate(changes)]
    return memoryview(
        encode_batch([record._replace(offset=700 + at) for at, record in enumerate(records)], codec=codec)
    )


@pytest.mark.parametrize("count", [1, 64, 300])
@pytest.mark.parametrize(("codec", "spread_ms"), [(Codec.NONE, 0), (Codec.ZSTD, 0), (Codec.NONE, 900)])
def test_events_are_read_from_batches_as_they_were_written(count: int, codec: Codec, spread_ms: int) -> None:
    data = batch(count, codec=codec, spread_ms=spread_ms)
    read = list(events_of(data))
    assert [(offset, at_ms) for offset, at_ms, _ in read] == [
        (each.offset, each.timestamp) for each in decode_records(data)
    ]
    assert [event.schedule.id for _, _, event in read if isinstance(event, Put)] == [f"s{at}" for at in range(count)]
    dice = Random(count)
    for _ in range(20):
        wanted = sorted(dice.sample(range(700, 700 + count), dice.randrange(1, count + 1)))
        assert list(pick(data, wanted)) == [(offset, read[offset - 700][2]) for offset in wanted]


def test_what_nobody_here_wrote_is_left_out() -> None:
    foreign = memoryview(encode_batch([Record(0, 5, b"12345678", b"\xc1"), Record(1, 5, None, None)]))
    assert list(events_of(foreign)) == []
    assert list(pick(foreign, [0])) == []


async def shard_with(house: ScheduleHouse, count: int) -> ScheduleShard:
    await house.topic()
    news = [
        ScheduleRequest(
            message=ScheduledMessage("orders", 0, None, b"%d" % at), due_ms=house.now_ms + HOUR_MS + at, id=f"id-{at}"
        )
        for at in range(count)
    ]
    await house.calendar.add(news)
    (shard,) = list(house.calendar.coordinator)
    return shard


def test_a_snapshot_is_the_anchor_and_what_is_before_it_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.features.schedules.state._SNAPSHOT_CHANGES_MIN", 50)

    async def story() -> None:
        files = MemoryFiles()
        async with ScheduleHouse(files, shards=1) as house:
            shard = await shard_with(house, 100)
            before = shard.journal.end_offset
            shard.snapshot()
            assert shard.journal.anchor == before
            end = shard.journal.end_offset
            shard.snapshot()
            assert shard.journal.end_offset == end, "none is due"
            await house.calendar.cancel(["id-5"])
            assert await carry(shard, 0, 40)
            await cut(shard, 40, house.broker.topics)
            assert shard.journal.partition.log.start_offset == 40
            assert (await house.calendar.show("id-7")).message.value == b"7"
        async with ScheduleHouse(files, shards=1) as house:
            await house.until(lambda: bool(list(house.calendar.coordinator)))
            (shard,) = list(house.calendar.coordinator)
            assert shard.journal.anchor == before
            assert shard.machine.live == 99
            for number in (0, 39, 40, 99):
                assert (await house.calendar.show(f"id-{number}")).message.value == b"%d" % number
            assert await house.calendar.cancel(["id-5", "id-6"]) == [ScheduleOutcome.NOT_FOUND, ScheduleOutcome.DONE]

    run(story)


def test_half_a_snapshot_on_a_full_disk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.features.schedules.state._SNAPSHOT_CHANGES_MIN", 50)
    monkeypatch.setattr("penstock.features.schedules.state._ROWS_OF_PART", 20)

    async def story() -> None:
        files = MemoryFiles()
        async with ScheduleHouse(files, shards=1) as house:
            shard = await shard_with(house, 100)
            append, parts = shard.journal.partition.append, 0

            def failing(*arguments: object, **options: object) -> object:
                nonlocal parts
                parts += 1
                if parts > 2:
                    raise DiskFull("full")
                return append(*arguments, **options)  # type: ignore[arg-type]

            end = shard.journal.end_offset
            monkeypatch.setattr(type(shard.journal.partition), "append", lambda _self, *a, **o: failing(*a, **o))
            shard.snapshot()
            monkeypatch.undo()
            assert (parts, shard.journal.end_offset - end, shard.journal.anchor) == (3, 2, 0)
            await house.calendar.cancel(["id-1"])
        async with ScheduleHouse(files, shards=1) as house:
            await house.until(lambda: bool(list(house.calendar.coordinator)))
            (shard,) = list(house.calendar.coordinator)
            assert (shard.machine.live, shard.journal.anchor) == (99, 0)
            await asyncio.sleep(0)

    run(story)
