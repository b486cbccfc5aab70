"""Time in the shell of queues: leases end when they should, whatever the wall clock and the disk do."""

from __future__ import annotations

import asyncio

from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run

from penstock.machines.clocks import SteadyClock


class JumpingClock:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.seconds = 50.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds


def test_the_clock_of_leases_shows_the_time_of_day_and_never_jumps() -> None:
    clock = JumpingClock()
    steady = SteadyClock(clock)
    assert steady.now_ms() == 1_000_000
    clock.seconds += 1.5
    clock.wall_ms -= 3_600_000
    assert steady.now_ms() == 1_001_500
    assert SteadyClock(clock).now_ms() == clock.wall_ms, "whoever leads next goes by the wall clock again"


async def note_lags(lags: list[float]) -> None:
    """How late the event loop is, as seen by somebody who only sleeps."""
    while True:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.005)
        lags.append(asyncio.get_running_loop().time() - began - 0.005)


def test_each_lease_ends_by_its_own_time_and_none_early() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*(str(at) for at in range(200)))
            until: dict[str, int] = {}
            for at in range(200):
                (message,) = await house.take(1, visibility_timeout_ms=3_000 + at * 3)
                until[values([message])[0]] = message.lease_until_ms
            late: list[int] = []
            lags: list[float] = []
            lagging = asyncio.ensure_future(note_lags(lags))
            while until:
                taken = await house.take(wait_ms=5_000)
                now_ms = house.broker.clock.now_ms()
                late += [now_ms - until.pop(value) for value in values(taken)]
            lagging.cancel()
            assert min(late) >= -2, "the two clocks may differ by a rounding"
            assert sorted(late)[100] < 50 + 1000 * max(lags), "but for what the machine itself was late"

    run(story)


def test_leases_end_once_the_disk_takes_it_and_nobody_turns_in_circles_until_then() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a")
            await house.take(visibility_timeout_ms=50)
            (shard,) = list(house.queues.coordinator)
            queue = shard.machines["workers"]
            ticks = 0
            tick = queue.tick

            def counted(now_ms: int) -> object:
                nonlocal ticks
                ticks += 1
                return tick(now_ms)

            queue.tick = counted  # type: ignore[method-assign, assignment]
            shard.journal.partition.is_isolated = True
            await asyncio.sleep(0.4)
            assert 1 <= ticks < 20
            assert queue.in_flight == 1
            shard.journal.partition.is_isolated = False
            began = asyncio.get_running_loop().time()
            assert values(await house.take(wait_ms=5_000)) == ["a"]
            assert asyncio.get_running_loop().time() - began < 1

    run(story)


def test_many_leases_that_end_together_all_end() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_tries="0")
            for _ in range(10):
                house.put(*("x" for _ in range(500)))
            for _ in range(2_500):  # more rows than one tick ends
                await house.queues.receive(
                    "orders", "workers", consumer="", max_messages=2, visibility_timeout_ms=6_000
                )
            (shard,) = list(house.queues.coordinator)
            queue = shard.machines["workers"]
            while queue.in_flight:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.02)
            (stats,) = await house.queues.stats("orders", "workers")
            assert stats.partitions[0].waiting == 5_000
            figures = house.queues.figures.of("orders", "workers")
            assert (figures.received, figures.expired, figures.redelivered) == (5_000, 5_000, 0)

    run(story)


def test_a_small_part_of_a_large_batch_is_cut_out_of_it() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*(str(at) * 50 for at in range(200)), keys=[f"key {at}" for at in range(200)])
            whole = house.broker.partition("orders", 0).log.size_bytes
            (lease,) = await house.queues.receive("orders", "workers", consumer="", max_messages=2)
            assert len(lease.batches) < whole / 20
            found = lease.messages()
            assert [(message.offset, message.key, message.value) for message in found] == [
                (0, b"key 0", b"0" * 50),
                (1, b"key 1", b"1" * 50),
            ]
            await house.nack(found[1], delay_ms=0)
            (lease,) = await house.queues.receive("orders", "workers", consumer="", max_messages=150, wait_ms=1_000)
            assert len(lease.batches) < whole
            assert [message.offset for message in lease.messages()] == list(range(1, 151))
            assert lease.messages()[0].delivery_count == 2

    run(story)


def test_who_receives_without_a_pause_does_not_stop_time_for_others() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            await house.queues.declare("orders", "workers")
            house.put(*("x" for _ in range(500)))
            turns = 0

            async def somebody_else() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            other = asyncio.ensure_future(somebody_else())
            for _ in range(200):
                assert await house.queues.receive("orders", "workers", consumer="", max_messages=1)
            assert turns >= 10
            other.cancel()

    run(story)
