"""Schedules of a broker whose topics, disk and clock do not do what they should."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.schedule_house import HOUR_MS, ScheduleHouse
from tests.support.virtual_time import run

from penstock.errors import DiskFull, PenstockError, ScheduleBeingFired
from penstock.features.schedules.messages import ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage, ScheduleStatus
from penstock.machines.clocks import DayClock
from penstock.testing.files import MemoryFiles


def test_a_schedule_whose_topic_is_gone_fails_with_the_reason_and_can_be_run_later() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            placed = await house.add("late", HOUR_MS)
            await house.broker.delete_topic("orders")
            await house.calendar.run_now(placed.id)
            await house.until(lambda: house.calendar.stats_here().failed == 1)
            shown = await house.calendar.show(placed.id)
            assert shown.state is ScheduleStatus.FAILED
            assert "'orders'" in shown.reason
            await house.topic()
            assert (await house.calendar.run_now(placed.id)).state is ScheduleStatus.PENDING
            await house.await_values("late")
            await house.recorded(1)
            assert (await house.calendar.stats()).failed == 0

    run(story)


def test_one_message_that_is_refused_keeps_no_other_back() -> None:
    async def story() -> None:
        async with ScheduleHouse(tries=2) as house:
            await house.topic(partitions=1)
            message = ScheduledMessage("orders", 0, None, b"x" * 500)
            due_ms = house.now_ms + 150
            large = await house.calendar.add([ScheduleRequest(message=message, due_ms=due_ms)])
            names = [str(at) for at in range(20)]
            small = [
                ScheduleRequest(message=ScheduledMessage("orders", 0, None, name.encode()), due_ms=due_ms)
                for name in names
            ]
            await house.calendar.add(small)
            await house.broker.configure_topic("orders", {"max.message.bytes": "400"})
            await house.await_values(*names)
            await house.until(lambda: house.calendar.stats_here().failed == 1)
            shown = await house.calendar.show(large[0].id)
            assert "max.message.bytes" in shown.reason
            assert await house.calendar.cancel([large[0].id]) == [ScheduleOutcome.DONE]
            assert (await house.calendar.stats()).failed == 0

    run(story)


def test_a_partition_that_takes_nothing_for_a_while_holds_up_no_other() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic(partitions=2)
            house.broker.partition("orders", 0).is_isolated = True
            stuck = await house.add("stuck", 10, partition=0)
            await house.until(lambda: house.calendar.stats_here().firing == 1)
            with pytest.raises(ScheduleBeingFired):
                await house.calendar.reschedule(stuck.id, due_ms=house.now_ms + HOUR_MS)
            assert await house.calendar.cancel([stuck.id]) == [ScheduleOutcome.TOO_LATE]
            waiting = [await house.add(f"w{at}", 0, partition=0) for at in range(5)]
            await house.add("free", 0, partition=1)
            await house.await_values("free")
            await house.until(lambda: house.calendar.stats_here().pending == 6)  # a moment after it can be read
            page = await house.calendar.page()
            assert {each.id for each in page.schedules} == {stuck.id, *(each.id for each in waiting)}
            assert await house.calendar.cancel([waiting[0].id]) == [ScheduleOutcome.DONE]
            house.broker.partition("orders", 0).is_isolated = False
            await house.await_values("free", "stuck", "w1", "w2", "w3", "w4")

    run(story)


def test_more_than_can_stand_in_line_comes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.features.schedules.leading.firing._WAITING_MAX", 20)
    monkeypatch.setattr("penstock.features.schedules.leading.firing._STUCK_LINE_MAX", 5)
    monkeypatch.setattr("penstock.features.schedules.leading.firing._TAKEN_AT_ONCE", 10)
    monkeypatch.setattr("penstock.features.schedules.leading.firing._FIRED_AT_ONCE", 3)

    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic(partitions=2)
            house.broker.partition("orders", 0).is_isolated = True
            due_ms = house.now_ms + 20
            for at in range(100):
                message = ScheduledMessage("orders", 0, None, str(at).encode())
                await house.calendar.add([ScheduleRequest(message=message, due_ms=due_ms)])
            await house.add("free", 0, partition=1)
            await house.await_values("free")
            house.broker.partition("orders", 0).is_isolated = False
            await house.await_values("free", *map(str, range(100)))

    run(story)


def test_a_full_disk_loses_nothing_and_fires_nothing_twice() -> None:
    async def story() -> None:
        files = MemoryFiles(capacity_bytes=64 * 1024 * 1024)
        async with ScheduleHouse(files) as house:
            await house.topic()
            for at in range(20):
                await house.add(str(at), HOUR_MS)
            files.capacity_bytes = 1
            with pytest.raises(DiskFull):
                await house.add("refused", HOUR_MS)
            house.clock.skew_ms += HOUR_MS
            await house.until(lambda: house.calendar.stats_here().due > 0)
            await asyncio.sleep(0.3)
            assert await house.values() == []
            files.capacity_bytes = 64 * 1024 * 1024
            await house.await_values(*map(str, range(20)))
            await house.add("later")
            await house.await_values(*map(str, range(20)), "later")

    run(story)


def test_what_waits_and_what_was_on_its_way_survives_a_restart() -> None:
    async def story() -> None:
        files = MemoryFiles()
        async with ScheduleHouse(files) as house:
            await house.topic(partitions=2)
            house.broker.partition("orders", 1).is_isolated = True
            await house.add("on its way", 0, partition=1)
            await house.until(lambda: house.calendar.stats_here().firing == 1)
            await house.add("later", 300, partition=0)
            await house.add("far", 90 * 24 * HOUR_MS, id="far")
        async with ScheduleHouse(files) as house:
            await house.await_values("on its way", "later")
            assert (await house.calendar.stats()).far == 1
            assert await house.calendar.cancel(["far"]) == [ScheduleOutcome.DONE]
        async with ScheduleHouse(files) as house:
            await asyncio.sleep(5)
            assert len(await house.values()) == 2
            await house.until(lambda: len(list(house.calendar.coordinator)) == 2)
            assert (await house.calendar.stats()).pending == 0

    run(story)


def test_clocks_that_are_set_count_at_once_and_nothing_comes_early_by_them() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            await house.add("hour", HOUR_MS)
            await house.add("five days", 120 * HOUR_MS)
            house.clock.skew_ms += HOUR_MS
            (first,) = await house.await_values("hour")
            await house.add("soon", 1_500)
            house.clock.skew_ms -= 2 * HOUR_MS  # "soon" is two hours away now
            await asyncio.sleep(2.5)
            assert await house.values() == ["hour"]
            await house.add("now", 50)
            await house.await_values("hour", "now")
            house.clock.skew_ms += 3 * HOUR_MS
            await house.await_values("hour", "now", "soon")
            house.clock.skew_ms += 120 * HOUR_MS
            messages = await house.await_values("hour", "now", "soon", "five days")
            assert first in messages
            for message in messages:
                assert message.timestamp_ms >= int(dict(message.headers)["penstock-due"] or b"")

    run(story)


def test_a_clock_waits_out_small_steps_back_and_follows_large_ones() -> None:
    class Hands:
        wall_ms = 1_000_000

        def now_ms(self) -> int:
            return self.wall_ms

        def monotonic(self) -> float:
            return 0.0

    hands = Hands()
    clock = DayClock(hands)
    for wall_ms, shown_ms in ((1_000_500, 1_000_500), (999_600, 1_000_500), (1_000_501, 1_000_501), (5, 5), (9, 9)):
        hands.wall_ms = wall_ms
        assert clock.now_ms() == shown_ms


def test_a_node_that_stops_fires_nothing_more_and_leaves_nothing_running() -> None:
    async def story() -> None:
        files = MemoryFiles()
        before = asyncio.all_tasks()
        house = ScheduleHouse(files)
        await house.broker.start()
        await house.topic()
        for at in range(50):
            await house.add(str(at), 40 * at)
        await house.calendar.stop()
        there = await house.values()
        await asyncio.sleep(0.3)
        assert await house.values() == there
        with pytest.raises(PenstockError):
            house.calendar.coordinator.shard_at(0)
        await house.broker.close()
        async with ScheduleHouse(files) as again:
            await again.await_values(*map(str, range(50)))
        left = [task.get_coro().__qualname__ for task in asyncio.all_tasks() - before]
        assert [name for name in left if "Schedule" in name] == []

    run(story)
