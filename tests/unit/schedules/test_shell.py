"""Schedules of a broker: what is asked of them, and what comes of it in topics."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.support.schedule_house import HOUR_MS, ScheduleHouse
from tests.support.virtual_time import run

from penstock.errors import (
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    PenstockError,
    PolicyViolation,
    ScheduleNotFound,
    UnknownPartition,
    UnknownTopic,
)
from penstock.features.messages.publishing import OutgoingMessage as Published
from penstock.features.messages.publishing import publish_each
from penstock.features.schedules.leading.firing import FiringDelivery
from penstock.features.schedules.messages import ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage, ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import ByCron, Every
from penstock.model import SCHEDULES_TOPIC, is_internal


def test_messages_come_once_when_they_are_due_and_not_before() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic(partitions=3)
            dues = {}
            for at in range(60):
                placed = await house.add(str(at), 50 + 7 * at, key=b"key%d" % at)
                dues[placed.id] = placed.due_ms
            messages = await house.await_values(*map(str, range(60)))
            for message in messages:
                headers = dict(message.headers)
                due_ms = dues.pop((headers["penstock-schedule-id"] or b"").decode())
                assert headers["penstock-due"] == b"%d" % due_ms
                assert message.timestamp_ms >= due_ms
            await house.recorded(60)
            stats = await house.calendar.stats()
            assert (stats.pending, stats.fired_total, stats.added_total) == (0, 60, 60)
            assert stats.lateness[-1] == 60
            assert stats == house.calendar.stats_here()

    run(story)


def test_keys_choose_partitions_as_for_other_messages_and_the_rest_is_spread() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic(partitions=5)
            await house.topic("twin", partitions=5)
            keys = [b"key%d" % at for at in range(20)]
            messages = [Published(key=key, value=key) for key in keys]
            assert not any(
                isinstance(each, PenstockError) for each in await publish_each(house.broker.ports, "twin", messages)
            )
            for key in keys:
                await house.add(key.decode(), 0, key=key)
            came = await house.await_values(*(key.decode() for key in keys))
            twins = {message.key: message.partition for message in await house.messages("twin")}
            assert {message.key: message.partition for message in came} == twins
            await house.topic("keyless", partitions=3)
            for at in range(30):
                await house.add(str(at), 0, topic="keyless")
                await house.recorded(20 + at + 1)  # so that each goes by itself
            spread = await house.await_values(*map(str, range(30)), topic="keyless")
            assert {message.partition for message in spread} == {0, 1, 2}

    run(story)


def test_what_is_due_already_comes_at_once_and_through_the_log() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            assert SCHEDULES_TOPIC not in house.broker.metadata.topics, "made with the first schedule"
            message = ScheduledMessage("orders", None, None, b"old", (("trace", b"1"),), "high")
            (placed,) = await house.calendar.add([ScheduleRequest(message=message, due_ms=0)])
            assert placed.is_new
            (came,) = await house.await_values("old")
            headers = list(came.headers)
            assert headers[0] == ("penstock-schedule-id", placed.id.encode())
            assert headers[1] == ("penstock-due", b"0")
            assert headers[2:] == [("trace", b"1"), ("penstock-priority", b"high")]
            assert is_internal(SCHEDULES_TOPIC)
            with pytest.raises(PolicyViolation):
                await house.broker.delete_topic(SCHEDULES_TOPIC)

    run(story)


def test_an_id_is_added_once_as_long_as_it_waits() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            first = await house.add("a", HOUR_MS, id="mine")
            again = await house.add("b", 5, id="mine")
            assert (again.is_new, again.due_ms, again.id) == (False, first.due_ms, "mine")
            message = ScheduledMessage("orders", None, None, b"c")
            twice = await house.calendar.add(
                [ScheduleRequest(message=message, due_ms=house.now_ms + HOUR_MS, id="both")] * 2
            )
            assert [each.is_new for each in twice] == [True, False]
            assert twice[0].due_ms == twice[1].due_ms
            assert (await house.calendar.show("mine")).message.value == b"a"
            with pytest.raises(ScheduleNotFound):
                await house.calendar.show("yours")
            with pytest.raises(ScheduleNotFound):
                await house.calendar.show("sched-99-1")

    run(story)


def test_what_cannot_be_delivered_is_refused_before_anything_is_added() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            await house.topic("compacted", cleanup_policy="compact")
            await house.topic("small", max_message_bytes="200")
            good = ScheduleRequest(message=ScheduledMessage("orders", None, None, b"x"), due_ms=1)
            for error, message in (
                (UnknownTopic, ScheduledMessage("nowhere", None, None, b"x")),
                (UnknownPartition, ScheduledMessage("orders", 1, None, b"x")),
                (PolicyViolation, ScheduledMessage(SCHEDULES_TOPIC, None, None, b"x")),
                (InvalidRecord, ScheduledMessage("compacted", None, None, b"x")),
                (MessageTooLarge, ScheduledMessage("small", None, None, bytes(200))),
            ):
                with pytest.raises(error):
                    await house.calendar.add([good, ScheduleRequest(message=message, due_ms=1)])
            with pytest.raises(InvalidRequest):
                await house.calendar.add([good, ScheduleRequest(message=good.message, rule=ByCron("61 * * * *"))])
            with pytest.raises(InvalidRequest):
                await house.calendar.add([good, ScheduleRequest(message=good.message)])
            with pytest.raises(InvalidRequest):
                await house.calendar.page(limit=0)
            with pytest.raises(InvalidRequest):
                await house.calendar.page(after="x")
            assert await house.calendar.add([]) == []
            assert await house.calendar.cancel(["sched-0-1", "other"]) == [ScheduleOutcome.NOT_FOUND] * 2
            assert SCHEDULES_TOPIC not in house.broker.metadata.topics
            await house.calendar.add(
                [ScheduleRequest(message=ScheduledMessage("small", None, None, bytes(60)), due_ms=1)]
            )
            await house.until(lambda: house.calendar.stats_here().fired_total == 1)

    run(story)


def test_cancelling_moving_and_running() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            near = await house.add("near", HOUR_MS)
            far = await house.add("far", 100 * 24 * HOUR_MS)
            mine = await house.add("mine", 200 * 24 * HOUR_MS, id="mine")
            fates = await house.calendar.cancel([near.id, "mine", "none", near.id])
            assert fates == [
                ScheduleOutcome.DONE,
                ScheduleOutcome.DONE,
                ScheduleOutcome.NOT_FOUND,
                ScheduleOutcome.NOT_FOUND,
            ]
            moved = await house.calendar.reschedule(far.id, due_ms=house.now_ms + 20)
            assert moved.due_ms < far.due_ms
            await house.await_values("far")
            with pytest.raises(ScheduleNotFound):
                await house.calendar.reschedule(mine.id, due_ms=5)
            with pytest.raises(InvalidRequest):
                await house.calendar.reschedule(far.id)
            await house.add("run", HOUR_MS, id="run")
            ran = await house.calendar.run_now("run")
            assert ran.due_ms <= house.now_ms
            await house.await_values("far", "run")
            await house.recorded(2)
            with pytest.raises(ScheduleNotFound):
                await house.calendar.run_now("run")

    run(story)


def test_what_comes_again_comes_until_it_is_cancelled() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic()
            await house.add("tick", None, id="tick", rule=Every(100, 0))
            await house.add("noon", None, id="noon", rule=ByCron("0 12 * * *", "Europe/Berlin"))
            before = await house.calendar.show("noon")
            assert (await house.calendar.run_now("noon")).due_ms < before.due_ms
            await house.recorded(4)
            assert await house.calendar.cancel(["tick"]) == [ScheduleOutcome.DONE]
            again = await house.calendar.show("noon")
            assert (again.due_ms, again.runs) == (before.due_ms, 1)
            await asyncio.sleep(1)  # one that was on its way
            count = len(await house.values())
            await asyncio.sleep(5)
            assert len(await house.values()) == count >= 4
            dues = [
                int(dict(each.headers)["penstock-due"] or b"")
                for each in await house.messages()
                if each.value == b"tick"
            ]
            assert [after - due for due, after in pairwise(dues)] == [100] * (len(dues) - 1)

    run(story)


async def all_of(house: ScheduleHouse, limit: int, **filters: object) -> list[StoredSchedule]:
    found: list[StoredSchedule] = []
    after = ""
    while True:
        page = await house.calendar.page(limit=limit, after=after, **filters)  # type: ignore[arg-type]
        assert len(page.schedules) <= limit
        found += page.schedules
        after = page.next
        if not after:
            return found


def test_all_schedules_can_be_listed_page_by_page() -> None:
    async def story() -> None:
        async with ScheduleHouse(shards=3, tries=1) as house:
            await house.topic()
            await house.topic("others")
            await house.topic("gone")
            expected = set()
            for at in range(60):
                delay_ms = HOUR_MS + at * 20 * HOUR_MS  # some near, some far
                topic = "others" if at % 4 == 0 else "orders"
                expected.add((await house.add(str(at), delay_ms, topic, id=f"id-{at}")).id)
            for limit in (1, 7, 100):
                found = await all_of(house, limit)
                assert len(found) == 60
                assert {each.id for each in found} == expected
            by_shard: dict[int, list[int]] = {}
            shards = list(house.calendar.coordinator)
            for each in found:
                (number,) = [shard.number for shard in shards if shard.machine.where(each.id)]
                by_shard.setdefault(number, []).append(each.due_ms)
            assert all(dues == sorted(dues) for dues in by_shard.values())
            assert list(by_shard) == sorted(by_shard)
            assert len(await all_of(house, 4, topic="others")) == 15
            assert await all_of(house, 4, state=ScheduleStatus.FAILED) == []
            doomed = await house.add("doomed", HOUR_MS, "gone")
            await house.broker.delete_topic("gone")
            await house.calendar.run_now(doomed.id)
            await house.until(lambda: house.calendar.stats_here().failed == 1)
            (failed,) = await all_of(house, 4, state=ScheduleStatus.FAILED)
            assert (failed.id, failed.state) == (doomed.id, ScheduleStatus.FAILED)
            assert len(await all_of(house, 9)) == 61
            assert len(await all_of(house, 9, state=ScheduleStatus.PENDING)) == 60

    run(story)


def test_what_becomes_due_while_much_is_under_way_goes_together() -> None:
    async def story() -> None:
        async with ScheduleHouse(shards=1) as house:
            await house.topic(partitions=8)
            appender, loop = house.calendar.coordinator.appender, asyncio.get_running_loop()
            sizes: list[int] = []

            def send_slowly(delivery: FiringDelivery) -> None:
                sizes.append(len(delivery.schedules))
                loop.call_later(0.06, at_once, delivery)

            at_once, appender.send = appender.send, send_slowly  # type: ignore[method-assign]
            news = [
                ScheduleRequest(
                    message=ScheduledMessage("orders", None, None, b"%d" % at), due_ms=house.now_ms + 100 + 10 * at
                )
                for at in range(100)
            ]
            await house.calendar.add(news)
            await house.await_values(*map(str, range(100)))
            assert sum(sizes) == 100
            assert max(sizes) <= 10, "nobody waits for more than a hundred milliseconds"
            assert len(sizes) < 60, "there are a hundred ticks, and two firings are under way at a time"
            partitions = {message.partition for message in await house.messages()}
            assert partitions == set(range(8))

    run(story)


def test_a_schedule_of_a_deleted_topic_says_so_long_before_it_is_due() -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic("orders")
            await house.topic("gone", partitions=3)
            kept = await house.add("kept", HOUR_MS)
            lost = await house.add("lost", HOUR_MS, topic="gone", partition=2)
            assert (await house.calendar.show(lost.id)).reason == ""
            await house.broker.delete_topic("gone")
            assert "no topic 'gone'" in (await house.calendar.show(lost.id)).reason
            reasons = {each.id: each.reason for each in (await house.calendar.page()).schedules}
            assert (bool(reasons[lost.id]), bool(reasons[kept.id])) == (True, False)
            await house.topic("gone", partitions=1)
            assert "no partition 2 of 'gone'" in (await house.calendar.show(lost.id)).reason

    run(story)
